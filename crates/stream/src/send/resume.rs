//! Resuming an interrupted send.
//!
//! The same snapshots and options always give the same bytes. A resumed transfer therefore makes
//! the stream again and starts its output at the byte where the transfer ended. It walks earlier
//! metadata again, but reads no earlier data. A [`Token`] names this byte and holds a digest of all
//! inputs of the stream, so that a resume cannot continue another stream.

use crate::send::options::Options;
use crate::send::snapshot::Snapshot;
use buttress_exact::u64_of;
use buttress_format::ChecksumType;
use core::fmt;
use core::str::FromStr;

/// Revision of the send's output format. Every change of the bytes for the same snapshots and
/// options must increment it.
const STREAM_REVISION: u32 = 2;

/// Prefix of a token's text.
const PREFIX: &str = "send1";

/// A token: the resume position of a stream. Text form: `send1-<digest>-<byte>`.
///
/// ```
/// use buttress_stream::send::resume::Token;
///
/// let token: Token = "send1-00112233445566778899aabbccddeeff-4096".parse()?;
/// assert_eq!(token.offset, 4096);
/// assert_eq!(token.to_string(), "send1-00112233445566778899aabbccddeeff-4096");
/// # Ok::<(), buttress_stream::send::resume::TokenError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Digest of the send's snapshots and options.
    pub digest: Digest,
    /// Number of output bytes that the receiver has.
    pub offset: u64,
}

/// Digest of all inputs that determine the bytes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 16]);

/// Reason why a text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a token (expected {PREFIX}-<32 hexadecimal digits>-<bytes>)")]
pub struct TokenError {
    text: String,
}

/// Formats the digest as in a resume token.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Digest {
    /// Computes the digest of an output that sends these snapshots in order, each with its options.
    #[must_use]
    pub fn of<'a>(sends: impl IntoIterator<Item = (&'a Snapshot, &'a Options)>) -> Self {
        let mut bytes = Vec::from(STREAM_REVISION.to_le_bytes());
        for (snapshot, options) in sends {
            add_snapshot(&mut bytes, snapshot);
            let count = |number: usize| u64_of(number).to_le_bytes();
            bytes.extend(count(usize::from(options.parent.is_some())));
            options
                .parent
                .iter()
                .for_each(|parent| add_snapshot(&mut bytes, parent));
            bytes.extend(count(options.clone_sources.len()));
            for source in &options.clone_sources {
                add_snapshot(&mut bytes, source);
            }
            bytes.extend(options.version.to_raw().to_le_bytes());
            bytes.extend(
                [
                    options.no_data,
                    options.compressed_data,
                    options.omit_header,
                    options.omit_end,
                ]
                .map(u8::from),
            );
        }
        let mut digest = [0; 16];
        let checksum = ChecksumType::Sha256.compute(&bytes);
        for (to, from) in digest.iter_mut().zip(checksum.as_bytes()) {
            *to = *from;
        }
        Self(digest)
    }
}

/// Appends the values that distinguish one state of a subvolume from all others.
fn add_snapshot(bytes: &mut Vec<u8>, snapshot: &Snapshot) {
    let item = &snapshot.info().root_item;
    bytes.extend(snapshot.filesystem().superblock().fsid.as_bytes());
    bytes.extend(item.uuid.as_bytes());
    bytes.extend(item.received_uuid.as_bytes());
    for number in [
        snapshot.id().get(),
        item.generation.get(),
        item.ctransid.get(),
        item.logical.get(),
    ] {
        bytes.extend(number.to_le_bytes());
    }
    let name = snapshot.name();
    bytes.extend(u64_of(name.len()).to_le_bytes());
    bytes.extend(name);
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-")?;
        for byte in self.digest.0 {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{}", self.offset)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let wrong = || TokenError {
            text: text.to_owned(),
        };
        let mut parts = text.split('-');
        let (Some(PREFIX), Some(hex), Some(offset), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let mut digest = [0; 16];
        if hex.len() != 32 || !hex.is_ascii() {
            return Err(wrong());
        }
        for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = core::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self {
            digest: Digest(digest),
            offset: offset.parse().map_err(|_| wrong())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_texts_are_no_tokens() {
        for text in [
            "",
            "send1",
            "send1--",
            "send2-00112233445566778899aabbccddeeff-0",
            "send1-00112233445566778899aabbccddeef-0",
            "send1-00112233445566778899aabbccddeeffff-0",
            "send1-0011223344556677889+aabbccddeeff-0",
            "send1-00112233445566778899aabbccddeeff--1",
            "send1-00112233445566778899aabbccddeeff-0-",
            "send1-00112233445566778899aabbccddeeff-99999999999999999999",
        ] {
            assert!(text.parse::<Token>().is_err(), "{text}");
        }
    }
}
