//! The ustar header and the records of the extended header.

use super::{Kind, Member, Time, acl_text};

/// Length of the header's name and link name fields in bytes.
const NAME_FIELD_BYTES: usize = 100;
/// The largest number an 11-digit octal field holds.
const OCTAL_11_MAX: u64 = (1 << 33) - 1;
/// The largest number a 7-digit octal field holds.
const OCTAL_7_MAX: u64 = (1 << 21) - 1;

/// A 512-byte header.
#[derive(Debug)]
pub(super) struct Header([u8; 512]);

impl Header {
    /// Creates the header of a member whose content takes `stored_bytes` in the archive.
    pub(super) fn of(member: &Member<'_>, stored_bytes: u64) -> Self {
        let (letter, link, device): (u8, &[u8], (u64, u64)) = match &member.kind {
            Kind::File { .. } | Kind::SparseFile { .. } => (b'0', b"", (0, 0)),
            Kind::HardLink { target } => (b'1', target, (0, 0)),
            Kind::Symlink { target } => (b'2', target, (0, 0)),
            Kind::CharacterDevice { major, minor } => (b'3', b"", (*major, *minor)),
            Kind::BlockDevice { major, minor } => (b'4', b"", (*major, *minor)),
            Kind::Directory => (b'5', b"", (0, 0)),
            Kind::Fifo => (b'6', b"", (0, 0)),
        };
        let mut header = Self([0; 512]);
        if matches!(member.kind, Kind::SparseFile { .. }) {
            header.put(0, NAME_FIELD_BYTES, &sparse_stand_in(member.path));
        } else {
            header.put(0, NAME_FIELD_BYTES, member.path);
        }
        header.octal(100, 8, u64::from(member.permissions));
        header.octal(108, 8, u64::from(member.uid));
        header.octal(116, 8, u64::from(member.gid));
        header.octal(124, 12, stored_bytes);
        header.octal(136, 12, u64::try_from(member.modified.seconds).unwrap_or(0));
        header.put(156, 1, &[letter]);
        header.put(157, NAME_FIELD_BYTES, link);
        header.octal(329, 8, device.0);
        header.octal(337, 8, device.1);
        header.seal();
        header
    }

    /// Creates the header of an extended header with `body_bytes` of records, which belongs to the
    /// member `path`.
    pub(super) fn extended(path: &[u8], body_bytes: u64) -> Self {
        let mut header = Self([0; 512]);
        let mut name = b"./PaxHeaders/".to_vec();
        name.extend_from_slice(last_name(path));
        header.put(0, NAME_FIELD_BYTES, &name);
        header.octal(100, 8, 0o644);
        header.octal(108, 8, 0);
        header.octal(116, 8, 0);
        header.octal(124, 12, body_bytes);
        header.octal(136, 12, 0);
        header.put(156, 1, b"x");
        header.octal(329, 8, 0);
        header.octal(337, 8, 0);
        header.seal();
        header
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Writes bytes to a field, truncated to its length.
    fn put(&mut self, at: usize, length: usize, bytes: &[u8]) {
        let field = self.0.get_mut(at..).unwrap_or_default().iter_mut().take(length);
        for (to, from) in field.zip(bytes) {
            *to = *from;
        }
    }

    /// Writes a number to a field of `length` bytes with leading zeros and a NUL; clamps a number
    /// that is too large.
    fn octal(&mut self, at: usize, length: usize, value: u64) {
        let digits = length.saturating_sub(1);
        let limit = if digits >= 11 { OCTAL_11_MAX } else { OCTAL_7_MAX };
        self.put(at, length, format!("{:0digits$o}", value.min(limit)).as_bytes());
    }

    /// Writes magic, version and the checksum: the sum of all bytes, with blanks in the checksum
    /// field.
    fn seal(&mut self) {
        self.put(257, 8, b"ustar\x0000");
        self.put(148, 8, b"        ");
        let sum = self
            .0
            .iter()
            .fold(0u64, |sum, byte| sum.saturating_add(u64::from(*byte)));
        self.put(148, 8, format!("{sum:06o}\0 ").as_bytes());
    }
}

/// Returns the last name of a path, without a trailing slash.
fn last_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Returns the name that a sparse member has for programs without support for the format.
fn sparse_stand_in(path: &[u8]) -> Vec<u8> {
    let name = last_name(path);
    let mut stand_in = path
        .get(..path.len().saturating_sub(name.len()))
        .unwrap_or_default()
        .to_vec();
    stand_in.extend_from_slice(b"GNUSparseFile.0/");
    stand_in.extend_from_slice(name);
    stand_in
}

/// The records of an extended header, as bytes.
#[derive(Debug, Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    /// Creates the records that a member needs.
    pub(super) fn of(member: &Member<'_>, stored_bytes: u64) -> Self {
        let mut records = Self::default();
        let link = match &member.kind {
            Kind::HardLink { target } | Kind::Symlink { target } => Some(*target),
            _ => None,
        };
        let binary = [Some(member.path), link]
            .into_iter()
            .flatten()
            .any(|name| std::str::from_utf8(name).is_err());
        if binary {
            records.add(b"hdrcharset", b"BINARY");
        }
        if let Kind::SparseFile { map } = &member.kind {
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", member.path);
            records.add(b"GNU.sparse.realsize", map.size_bytes().to_string().as_bytes());
        } else if needs_record(member.path) {
            records.add(b"path", member.path);
        }
        if let Some(link) = link.filter(|link| needs_record(link)) {
            records.add(b"linkpath", link);
        }
        if stored_bytes > OCTAL_11_MAX {
            records.add(b"size", stored_bytes.to_string().as_bytes());
        }
        for (key, id) in [(b"uid", member.uid), (b"gid", member.gid)] {
            if u64::from(id) > OCTAL_7_MAX {
                records.add(key, id.to_string().as_bytes());
            }
        }
        let plain = |time: &Time| {
            time.nanoseconds == 0 && u64::try_from(time.seconds).is_ok_and(|seconds| seconds <= OCTAL_11_MAX)
        };
        if !plain(&member.modified) {
            records.add(b"mtime", time_text(member.modified).as_bytes());
        }
        for (key, time) in [(b"atime", member.accessed), (b"ctime", member.changed)] {
            if let Some(time) = time {
                records.add(key, time_text(time).as_bytes());
            }
        }
        records.add_xattrs(member);
        records
    }

    fn add_xattrs(&mut self, member: &Member<'_>) {
        for (name, value) in member.xattrs {
            let acl = match *name {
                b"system.posix_acl_access" => Some(b"SCHILY.acl.access".as_slice()),
                b"system.posix_acl_default" => Some(b"SCHILY.acl.default".as_slice()),
                _ => None,
            };
            if let Some((key, text)) = acl.zip(acl_text(value)) {
                self.add(key, text.as_bytes());
            }
            // The first `=` ends the key, so GNU tar encodes it as `%3D`, and the percent sign as
            // `%25`.
            let mut key = b"SCHILY.xattr.".to_vec();
            for byte in *name {
                match byte {
                    b'=' => key.extend_from_slice(b"%3D"),
                    b'%' => key.extend_from_slice(b"%25"),
                    _ => key.push(*byte),
                }
            }
            self.add(&key, value);
        }
    }

    /// Adds `LENGTH KEY=VALUE\n`, where the length counts the whole record including its own
    /// digits.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len().saturating_add(value.len()).saturating_add(3);
        let mut length = rest.saturating_add(1);
        loop {
            let needed = rest.saturating_add(length.to_string().len());
            if needed == length {
                break;
            }
            length = needed;
        }
        self.0.extend_from_slice(length.to_string().as_bytes());
        self.0.push(b' ');
        self.0.extend_from_slice(key);
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns whether a name does not fit the header's field.
fn needs_record(name: &[u8]) -> bool {
    name.len() > NAME_FIELD_BYTES || !name.is_ascii()
}

/// Formats seconds with as many fraction digits as needed. On disk, the fraction of a time counts
/// upwards from the floor of its seconds. In text form, the sign applies to seconds and fraction,
/// so times before 1970 are converted.
fn time_text(time: Time) -> String {
    let nanoseconds = time.nanoseconds.min(999_999_999);
    if nanoseconds == 0 {
        return time.seconds.to_string();
    }
    let (sign, seconds, nanoseconds) = if time.seconds < 0 {
        (
            "-",
            time.seconds.unsigned_abs().saturating_sub(1),
            1_000_000_000u32.saturating_sub(nanoseconds),
        )
    } else {
        ("", time.seconds.unsigned_abs(), nanoseconds)
    };
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_lengths_count_their_own_digits() {
        let cases = [
            (1, "6 k=v\n".len()),
            (92, 98),
            (93, 99),
            // A length of 100 needs a third digit, which makes it 101.
            (94, 101),
            (991, 998),
            (992, 999),
            (993, 1001),
        ];
        for (value_bytes, expected) in cases {
            let mut records = Records::default();
            records.add(b"k", &vec![b'v'; value_bytes]);
            assert_eq!(records.0.len(), expected, "{value_bytes}");
            assert!(records.0.starts_with(format!("{expected} k=").as_bytes()));
        }
    }

    #[test]
    fn times_before_1970_carry_their_sign_for_both_parts() {
        let text = |seconds, nanoseconds| time_text(Time { seconds, nanoseconds });
        assert_eq!(text(1, 500_000_000), "1.5");
        assert_eq!(text(0, 1), "0.000000001");
        assert_eq!(text(-1, 750_000_000), "-0.25");
        assert_eq!(text(-2, 0), "-2");
        assert_eq!(text(-2, 999_999_999), "-1.000000001");
        assert_eq!(text(i64::MIN, 1), "-9223372036854775807.999999999");
        assert_eq!(text(i64::MAX, u32::MAX), "9223372036854775807.999999999");
    }
}
