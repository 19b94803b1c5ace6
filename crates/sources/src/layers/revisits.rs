//! Targets of hard links: a link repeats the headers of its target.
//!
//! A link takes 512 bytes of an archive, and the headers of its target up to 16 MiB. The latest target
//! stays in memory, so consecutive links to one target read its headers once. Links also repeat the
//! target's attributes in the image builder's spools.
//!
//! Invariant: the headers that links repeat are bounded by the size of the archives. The bound admits
//! every link to a target with 64 KiB of headers.

use crate::tar::{Member, Problem};

/// A layer, and the offset of a member in it.
pub(super) type MemberPlace = (usize, u64);

/// The number of repeated bytes that any archive may have.
const REPEATED_BYTES_FREE: u64 = 1 << 30;
/// The number of further repeated bytes for each byte of the archives.
const REPEATED_PER_BYTE: u64 = 128;

/// The latest target of a hard link, and the sum of the repeated headers.
#[derive(Debug, Default)]
pub(super) struct Revisits {
    latest: Option<(MemberPlace, Revisited)>,
    repeated_bytes: u64,
}

/// A member that was read again.
#[derive(Clone, Debug)]
pub(super) struct Revisited {
    pub(super) member: Member,
    /// The size of the member's headers in bytes.
    pub(super) header_bytes: u64,
}

impl Revisits {
    /// Returns the member at `place`, which `read` reads if the latest link had another target.
    /// `archive_bytes` is the size of all archives.
    pub(super) fn member(
        &mut self,
        place: MemberPlace,
        archive_bytes: u64,
        read: impl FnOnce() -> Result<Option<Revisited>, Problem>,
    ) -> Result<Option<Member>, Problem> {
        let known = self.latest.take().filter(|(known, _)| *known == place);
        let found = match known {
            Some((_, found)) => Some(found),
            None => read()?,
        };
        let Some(found) = found else { return Ok(None) };
        // Clamp: a sum beyond the largest number is beyond every limit, too.
        self.repeated_bytes = self.repeated_bytes.saturating_add(found.header_bytes);
        // Clamp: archives of 2^57 bytes may repeat any number of bytes.
        let most = archive_bytes
            .saturating_mul(REPEATED_PER_BYTE)
            .saturating_add(REPEATED_BYTES_FREE);
        if self.repeated_bytes > most {
            return Err(Problem::RepeatedHeaders {
                bytes: self.repeated_bytes,
                most,
            });
        }
        let member = found.member.clone();
        self.latest = Some((place, found));
        Ok(Some(member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::Kind;
    use buttress_format::Timestamp;

    fn revisited(offset: u64, header_bytes: u64) -> Revisited {
        let member = Member {
            offset,
            path: b"a".to_vec(),
            kind: Kind::Fifo,
            permissions: 0,
            uid: 0,
            gid: 0,
            modified: Timestamp::default(),
            xattrs: Vec::new(),
        };
        Revisited { member, header_bytes }
    }

    #[test]
    fn links_to_one_target_read_it_once() {
        let mut revisits = Revisits::default();
        let mut reads = Vec::new();
        for offset in [512, 512, 512, 1024, 1024, 512] {
            let found = revisits.member((0, offset), 1 << 20, || {
                reads.push(offset);
                Ok(Some(revisited(offset, 16 << 20)))
            });
            assert_eq!(found.unwrap().unwrap().offset, offset);
        }
        assert_eq!(reads, [512, 1024, 512]);
    }

    #[test]
    fn repeated_headers_are_limited_by_the_archive() {
        let archive_bytes = 17 << 20;
        let mut revisits = Revisits::default();
        let mut link = |place| {
            let read = || Ok(Some(revisited(0, 16 << 20)));
            revisits.member((0, place), archive_bytes, read)
        };
        // Repeated and alternating targets repeat equally much.
        let links = (0..1_000_u64).take_while(|number| link(*number / 2).is_ok());
        assert_eq!(links.count(), 64 + 17 * 8);
        assert!(matches!(link(0), Err(Problem::RepeatedHeaders { .. })));
    }

    #[test]
    fn links_to_headers_of_64_kib_are_never_refused() {
        let links = 65_535;
        let mut revisits = Revisits::default();
        for _ in 0..links {
            let found = revisits.member((0, 0), links * 512, || Ok(Some(revisited(0, 64 << 10))));
            assert!(found.unwrap().is_some());
        }
    }
}
