//! The encoder of send streams: commands to bytes.
//!
//! [`Encoder`] appends to the caller's buffer. It allocates memory only for the growth of this
//! buffer, and copies each value once. A caller can place file data directly in the buffer:
//! [`Encoder::begin_data`] writes a command without its data, and [`Encoder::finish_data`]
//! completes the command. This way of appending copies no data.
//!
//! The only state of an encoder is the stream version. Several threads may therefore encode
//! commands of one stream, each into its own buffer. A failed call leaves the buffer unchanged.
//!
//! The caller determines the order of commands: a stream is [`Encoder::header`], a `Subvolume` or
//! `Snapshot`, the changes, and `End`.

use crate::command::{AttributeSink, Command, Value};
use crate::error::{EncodeProblem, Error, Result};
use buttress_format::crc32c;
use buttress_format::send::{
    ATTRIBUTE_BYTES_MAX, AttributeKind, COMMAND_CHECKSUM_OFFSET, COMMAND_HEADER_BYTES, CommandKind, MAGIC,
    Version,
};

/// Encodes commands for a stream of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    version: Version,
}

/// A command from [`Encoder::begin_data`] whose data the caller has yet to append.
/// [`Encoder::finish_data`] consumes this value.
#[derive(Debug)]
#[must_use = "the command is not whole before finish_data"]
pub struct PendingData {
    kind: CommandKind,
    start: usize,
    data_start: usize,
    data_bytes: usize,
}

impl Encoder {
    /// Creates an encoder for streams of `version`.
    #[must_use]
    pub const fn new(version: Version) -> Self {
        Self { version }
    }

    /// Returns the version of the stream.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Appends the header of a stream.
    pub fn header(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_raw().to_le_bytes());
    }

    /// Appends one command with its length and checksum. For version 1 it omits the creation time
    /// of `Utimes`, which this version does not define.
    ///
    /// # Errors
    /// [`Error::Encode`] if the version does not define the command, or if an attribute or the
    /// whole command is too long for the version. `out` stays unchanged.
    #[inline]
    pub fn encode(&self, command: &Command<'_>, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        self.open(command, 0, out)
            .and_then(|()| self.close(start, out))
            .map_err(|problem| {
                out.truncate(start);
                Error::Encode {
                    command: command.kind(),
                    problem,
                }
            })
    }

    /// Appends a `Write` or `EncodedWrite` without its data; the data field of `command` is empty.
    /// The caller then appends exactly `data_bytes` bytes to `out` and calls
    /// [`Encoder::finish_data`], or gives up with [`Encoder::abandon_data`].
    ///
    /// # Errors
    /// [`Error::Encode`] as for [`Encoder::encode`], and for any other command. `out` stays
    /// unchanged.
    #[inline]
    pub fn begin_data(
        &self,
        command: &Command<'_>,
        data_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<PendingData> {
        let start = out.len();
        let opened = match command {
            Command::Write { data: [], .. } | Command::EncodedWrite { data: [], .. } => {
                self.open(command, data_bytes, out)
            }
            _ => Err(EncodeProblem::NoData),
        };
        let payload_bytes = out
            .len()
            .saturating_sub(start)
            .saturating_sub(COMMAND_HEADER_BYTES)
            .saturating_add(data_bytes);
        match opened.and_then(|()| self.check_payload(payload_bytes)) {
            Ok(_) => Ok(PendingData {
                kind: command.kind(),
                start,
                data_start: out.len(),
                data_bytes,
            }),
            Err(problem) => {
                out.truncate(start);
                Err(Error::Encode {
                    command: command.kind(),
                    problem,
                })
            }
        }
    }

    /// Completes a stream command whose data the caller has appended.
    ///
    /// # Errors
    /// [`Error::Encode`] if the number of appended bytes differs from the announced number. If the
    /// numbers differ, the call removes the whole command.
    #[inline]
    pub fn finish_data(&self, pending: PendingData, out: &mut Vec<u8>) -> Result<()> {
        let appended_bytes = out.len().saturating_sub(pending.data_start);
        let closed = if appended_bytes == pending.data_bytes {
            self.close(pending.start, out)
        } else {
            Err(EncodeProblem::DataLength {
                appended_bytes,
                announced_bytes: pending.data_bytes,
            })
        };
        closed.map_err(|problem| {
            out.truncate(pending.start);
            Error::Encode {
                command: pending.kind,
                problem,
            }
        })
    }

    /// Removes a command from [`Encoder::begin_data`] whose data the caller cannot append.
    #[expect(clippy::needless_pass_by_value, reason = "it is used up")]
    pub fn abandon_data(&self, pending: PendingData, out: &mut Vec<u8>) {
        out.truncate(pending.start);
    }

    /// Appends a zeroed command header and the attributes.
    #[inline]
    fn open(&self, command: &Command<'_>, data_bytes: usize, out: &mut Vec<u8>) -> Result<(), EncodeProblem> {
        let kind = command.kind();
        if kind.version() > self.version {
            return Err(EncodeProblem::Version {
                needed: kind.version(),
                version: self.version,
            });
        }
        let [low, high] = kind.to_raw().to_le_bytes();
        out.extend_from_slice(&[0, 0, 0, 0, low, high, 0, 0, 0, 0]);
        command.visit(&mut Attributes {
            version: self.version,
            data_bytes,
            out,
        })
    }

    /// Fills in length and checksum of the command at `start`, which extends to the end of `out`.
    #[inline]
    fn close(&self, start: usize, out: &mut [u8]) -> Result<(), EncodeProblem> {
        let command = out.get_mut(start..).unwrap_or_default();
        let payload_bytes = self.check_payload(command.len().saturating_sub(COMMAND_HEADER_BYTES))?;
        if let Some(length) = command.first_chunk_mut() {
            *length = payload_bytes.to_le_bytes();
        }
        let checksum = crc32c(0, command);
        if let Some(field) = command
            .get_mut(COMMAND_CHECKSUM_OFFSET..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *field = checksum.to_le_bytes();
        }
        Ok(())
    }

    /// Returns the payload length in the width of its header field, if the version allows this
    /// length.
    fn check_payload(&self, payload_bytes: usize) -> Result<u32, EncodeProblem> {
        let maximum_bytes = self.version.payload_bytes_max();
        match u32::try_from(payload_bytes) {
            Ok(length) if payload_bytes <= maximum_bytes => Ok(length),
            _ => Err(EncodeProblem::PayloadLength {
                found_bytes: payload_bytes,
                maximum_bytes,
                version: self.version,
            }),
        }
    }
}

/// Attribute sink that appends to a buffer.
struct Attributes<'b> {
    version: Version,
    /// Number of data bytes that the caller will append later.
    data_bytes: usize,
    out: &'b mut Vec<u8>,
}

impl AttributeSink for Attributes<'_> {
    type Error = EncodeProblem;

    #[inline]
    fn attribute(&mut self, kind: AttributeKind, value: Value<'_>) -> Result<(), EncodeProblem> {
        if kind.version() > self.version {
            return Ok(());
        }
        self.out.extend_from_slice(&kind.to_raw().to_le_bytes());
        if kind != AttributeKind::Data || !self.version.has_unsized_data() {
            let later = if kind == AttributeKind::Data {
                self.data_bytes
            } else {
                0
            };
            let found_bytes = value.size_bytes().saturating_add(later);
            let length = u16::try_from(found_bytes).map_err(|_| EncodeProblem::AttributeLength {
                attribute: kind,
                found_bytes,
                maximum_bytes: ATTRIBUTE_BYTES_MAX,
            })?;
            self.out.extend_from_slice(&length.to_le_bytes());
        }
        value.append_to(self.out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{FileOffset, InodeNumber, Timestamp};

    fn encoded(version: Version, command: &Command<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        Encoder::new(version).encode(command, &mut out).unwrap();
        out
    }

    fn write(data: &[u8]) -> Command<'_> {
        Command::Write {
            path: b"f",
            offset: FileOffset::new(0x1000),
            data,
        }
    }

    #[test]
    fn a_command_is_framed_as_documented() {
        let command = Command::Mkfile {
            path: b"o257-7-0",
            inode: Some(InodeNumber::new(257)),
        };
        let bytes = encoded(Version::V1, &command);
        let payload: &[u8] = b"\x0f\x00\x08\x00o257-7-0\x03\x00\x08\x00\x01\x01\0\0\0\0\0\0";
        assert_eq!(bytes[..6], [u8::try_from(payload.len()).unwrap(), 0, 0, 0, 3, 0]);
        assert_eq!(bytes[10..], *payload);
        let mut cleared = bytes.clone();
        cleared[6..10].fill(0);
        assert_eq!(bytes[6..10], crc32c(0, &cleared).to_le_bytes());
        assert_eq!(crc32c(0, b"123456789"), 0x58e3_fa20, "raw, from a start of zero");
    }

    #[test]
    fn the_end_has_no_payload() {
        assert_eq!(
            encoded(Version::V1, &Command::End),
            b"\0\0\0\0\x15\0\x50\x6c\xc9\x9d"
        );
    }

    #[test]
    fn data_has_a_length_in_version_1_alone() {
        let command = write(b"abc");
        assert!(encoded(Version::V1, &command).ends_with(b"\x13\0\x03\0abc"));
        assert!(encoded(Version::V2, &command).ends_with(b"\0\x13\0abc"));
    }

    #[test]
    fn creation_times_are_left_out_of_version_1() {
        let time = Timestamp::default();
        let with = Command::Utimes {
            path: b"f",
            atime: time,
            mtime: time,
            ctime: time,
            otime: Some(time),
        };
        let one = encoded(Version::V1, &with).len();
        assert_eq!(encoded(Version::V2, &with).len(), one + 16);
    }

    #[test]
    fn data_that_is_appended_in_place_gives_the_same_bytes() {
        for version in [Version::V1, Version::V2] {
            let encoder = Encoder::new(version);
            let data = vec![7; version.write_bytes_max()];
            let mut out = b"before".to_vec();
            let pending = encoder.begin_data(&write(b""), data.len(), &mut out).unwrap();
            out.extend_from_slice(&data);
            encoder.finish_data(pending, &mut out).unwrap();
            assert!(out[6..] == encoded(version, &write(&data)));
        }
    }

    #[test]
    fn too_long_commands_are_refused_and_leave_the_buffer_unchanged() {
        let long = vec![b'x'; 65_536];
        let path = Command::Unlink { path: &long };
        let two_paths = Command::Rename {
            from: &long[..40_000],
            to: &long[..40_000],
        };
        let fallocate = Command::Fallocate {
            path: b"f",
            mode: 0,
            offset: FileOffset::new(0),
            length: buttress_format::ByteCount::new(1),
        };
        let one = Encoder::new(Version::V1);
        let cases: [(&Command<'_>, &str); 4] = [
            (
                &path,
                "unlink cannot be encoded: attribute path is too long (found 65536 bytes, expected at most 65535)",
            ),
            (
                &two_paths,
                "rename cannot be encoded: the payload is too long (found 80008 bytes, expected at most 65526 in version 1)",
            ),
            (
                &fallocate,
                "fallocate cannot be encoded: the command needs stream version 2 (found version 1)",
            ),
            (
                &write(&long),
                "write cannot be encoded: attribute data is too long (found 65536 bytes, expected at most 65535)",
            ),
        ];
        for (command, message) in cases {
            let mut out = b"before".to_vec();
            let error = one.encode(command, &mut out).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(error.kind(), buttress_format::ErrorKind::Caller);
            assert_eq!(out, b"before");
        }
    }

    #[test]
    fn appended_data_must_be_as_long_as_announced() {
        let encoder = Encoder::new(Version::V2);
        let mut out = b"before".to_vec();
        let pending = encoder.begin_data(&write(b""), 3, &mut out).unwrap();
        out.extend_from_slice(b"four");
        assert!(encoder.finish_data(pending, &mut out).is_err());
        assert_eq!(out, b"before");
        let pending = encoder.begin_data(&write(b""), 3, &mut out).unwrap();
        encoder.abandon_data(pending, &mut out);
        assert_eq!(out, b"before");
        for refused in [Command::End, write(b"x")] {
            assert!(encoder.begin_data(&refused, 1, &mut out).is_err());
        }
        for (version, bytes) in [(Version::V1, 65_520), (Version::V2, 16 << 20)] {
            assert!(
                Encoder::new(version)
                    .begin_data(&write(b""), bytes, &mut out)
                    .is_err()
            );
        }
        assert_eq!(out, b"before");
    }
}
