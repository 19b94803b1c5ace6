//! Progress of a transfer: the number of output bytes, and a digest of their commands.
//!
//! A receiver that keeps an interrupted stream reports the text of its trail. To resume, a sender
//! makes the same output again and follows the trail up to its end. If the digest matches at that
//! end, the sender's remaining output continues the receiver's part. The digest covers the header
//! of each command, which a sender knows without reading file data. The digest of a trail covers
//! neither the data nor the checksums of commands with data.

use buttress_exact::u64_of;
use buttress_format::ChecksumType;
use buttress_format::send::{
    COMMAND_CHECKSUM_OFFSET, COMMAND_HEADER_BYTES, CommandKind, STREAM_HEADER_BYTES, Version,
};
use core::fmt;
use core::str::FromStr;

/// Prefix of a trail's text.
const PREFIX: &str = "receive1";

/// Progress of a transfer. Text form: `receive1-<digest>-<bytes>`.
///
/// ```
/// use buttress_stream::trail::Trail;
///
/// let start: Trail = "receive1-0000000000000000-0".parse()?;
/// assert_eq!(start, Trail::default());
/// # Ok::<(), buttress_stream::trail::TrailError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    bytes: u64,
    digest: u64,
}

/// Reason why a text is not a trail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a token of a receiver (expected {PREFIX}-<16 hexadecimal digits>-<bytes>)")]
pub struct TrailError {
    text: String,
}

impl Trail {
    /// Returns the number of output bytes so far.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Advances the trail by a stream header.
    pub fn pass_header(&mut self, version: Version) {
        let mut header = [0; COMMAND_HEADER_BYTES];
        for (to, from) in header.iter_mut().zip(version.to_raw().to_le_bytes()) {
            *to = from;
        }
        self.pass(header, STREAM_HEADER_BYTES);
    }

    /// Advances the trail by a command of `bytes` bytes that begins with `header`.
    pub fn pass_command(&mut self, header: &[u8], bytes: usize) {
        let mut own = [0; COMMAND_HEADER_BYTES];
        for (to, from) in own.iter_mut().zip(header) {
            *to = *from;
        }
        let number = u16::from_le_bytes([own[4], own[5]]);
        let carries_data = [CommandKind::Write, CommandKind::EncodedWrite]
            .iter()
            .any(|kind| kind.to_raw() == number);
        if carries_data && let Some(checksum) = own.get_mut(COMMAND_CHECKSUM_OFFSET..) {
            checksum.fill(0);
        }
        self.pass(own, bytes);
    }

    /// Advances the trail by a command whose data is known only by its length.
    pub fn pass_data(&mut self, kind: CommandKind, bytes: usize) {
        let payload = u32::try_from(bytes.saturating_sub(COMMAND_HEADER_BYTES)).unwrap_or(u32::MAX);
        let ([a, b, c, d], [e, f]) = (payload.to_le_bytes(), kind.to_raw().to_le_bytes());
        self.pass([a, b, c, d, e, f, 0, 0, 0, 0], bytes);
    }

    fn pass(&mut self, header: [u8; COMMAND_HEADER_BYTES], bytes: usize) {
        let mut hashed = [0; 8 + COMMAND_HEADER_BYTES];
        let digest = self.digest.to_le_bytes();
        for (to, from) in hashed.iter_mut().zip(digest.iter().chain(&header)) {
            *to = *from;
        }
        let sum = ChecksumType::Xxhash64.compute(&hashed);
        let sum = sum.as_bytes().first_chunk().copied().unwrap_or_default();
        self.digest = u64::from_le_bytes(sum);
        self.bytes = self.bytes.saturating_add(u64_of(bytes));
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-{:016x}-{}", self.digest, self.bytes)
    }
}

impl FromStr for Trail {
    type Err = TrailError;

    fn from_str(text: &str) -> Result<Self, TrailError> {
        let wrong = || TrailError {
            text: text.to_owned(),
        };
        let mut parts = text.split('-');
        let (Some(PREFIX), Some(digest), Some(bytes), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let is_number =
            |text: &str, is_digit: fn(&u8) -> bool| !text.is_empty() && text.as_bytes().iter().all(is_digit);
        if digest.len() != 16
            || !is_number(digest, u8::is_ascii_hexdigit)
            || !is_number(bytes, u8::is_ascii_digit)
        {
            return Err(wrong());
        }
        Ok(Self {
            bytes: bytes.parse().map_err(|_| wrong())?,
            digest: u64::from_str_radix(digest, 16).map_err(|_| wrong())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_others_are_refused() {
        let mut trail = Trail::default();
        trail.pass_header(Version::V2);
        trail.pass_data(CommandKind::Write, 5000);
        assert_eq!(trail.to_string().parse(), Ok(trail));
        for text in [
            "",
            "receive1",
            "receive1--",
            "receive2-0000000000000000-0",
            "receive1-000000000000000-0",
            "receive1-+000000000000000-0",
            "receive1-0000000000000000-+1",
            "receive1-0000000000000000-0-",
            "receive1-0000000000000000-99999999999999999999",
        ] {
            assert!(text.parse::<Trail>().is_err(), "{text}");
        }
    }

    #[test]
    fn data_does_not_matter_but_its_length_does() {
        let mut with_checksum = Trail::default();
        let mut header = [9, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        header[4..6].copy_from_slice(&CommandKind::Write.to_raw().to_le_bytes());
        with_checksum.pass_command(&header, 19);
        let mut without = Trail::default();
        without.pass_data(CommandKind::Write, 19);
        assert_eq!(with_checksum, without);
        let mut longer = Trail::default();
        longer.pass_data(CommandKind::Write, 20);
        assert_ne!(with_checksum, longer);
    }
}
