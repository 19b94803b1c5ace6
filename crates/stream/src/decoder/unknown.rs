//! Commands with unknown numbers: the decoder refuses them, or skips them on request if they hold
//! no file content.

use super::payload::split_sized;
use super::{Decoder, Error, Place, Result};
use buttress_format::send::{AttributeKind, COMMAND_HEADER_BYTES, UNSIZED_ATTRIBUTE_HEADER_BYTES, Version};
use std::collections::BTreeSet;
use std::io::Read;

/// The attributes that only commands about file content have.
const OF_CONTENT: [AttributeKind; 14] = [
    AttributeKind::Size,
    AttributeKind::FileOffset,
    AttributeKind::Data,
    AttributeKind::CloneUuid,
    AttributeKind::CloneTransid,
    AttributeKind::ClonePath,
    AttributeKind::CloneOffset,
    AttributeKind::CloneLength,
    AttributeKind::FallocateMode,
    AttributeKind::UnencodedFileBytes,
    AttributeKind::UnencodedBytes,
    AttributeKind::UnencodedOffset,
    AttributeKind::Compression,
    AttributeKind::Encryption,
];

/// A command that the decoder skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedCommand {
    /// The place of the command in the stream.
    pub place: Place,
    /// Number of the command.
    pub number: u16,
    /// Version of the command's stream.
    pub version: Version,
}

/// State of skipping commands with unknown numbers: whether it is enabled, and the skipped
/// commands.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    is_skipped: bool,
    numbers: BTreeSet<u16>,
    /// First skipped command of each command number, until the caller takes the list.
    firsts: Vec<SkippedCommand>,
}

impl Unknown {
    pub(super) const fn are_skipped(&self) -> bool {
        self.is_skipped
    }
}

impl<R: Read> Decoder<R> {
    /// Makes the decoder skip commands with unknown numbers. Commands with an attribute about
    /// content remain errors.
    pub const fn skip_unknown(&mut self) {
        self.unknown.is_skipped = true;
    }

    /// Takes the commands skipped since the last call: the first of each number.
    pub fn take_skipped(&mut self) -> Vec<SkippedCommand> {
        core::mem::take(&mut self.unknown.firsts)
    }

    /// Skips the next command, which the buffer holds completely.
    pub(super) fn skip_command(&mut self, version: Version, number: u16, whole_bytes: usize) -> Result<()> {
        let place = self.place;
        let mut rest = self.unread_command(COMMAND_HEADER_BYTES, whole_bytes)?;
        while let Some((raw, after)) = rest.split_first_chunk::<UNSIZED_ATTRIBUTE_HEADER_BYTES>() {
            let kind = AttributeKind::from_raw(u16::from_le_bytes(*raw));
            if let Some(attribute) = kind.filter(|kind| OF_CONTENT.contains(kind)) {
                return Err(Error::CommandNotSkipped {
                    place,
                    number,
                    version,
                    attribute,
                });
            }
            // If the payload of an unknown command is not made of attributes, it may hold content:
            // refuse the command.
            let Ok((_, later)) = split_sized(after) else {
                return Err(Error::CommandUnknown {
                    place,
                    number,
                    version,
                });
            };
            rest = later;
        }
        if !rest.is_empty() {
            return Err(Error::CommandUnknown {
                place,
                number,
                version,
            });
        }
        self.unread.start = self.unread.start.saturating_add(whole_bytes);
        self.place.offset = place.offset.saturating_add(whole_bytes as u64);
        self.place.command = place.command.saturating_add(1);
        if self.unknown.numbers.insert(number) {
            self.unknown.firsts.push(SkippedCommand {
                place,
                number,
                version,
            });
        }
        Ok(())
    }
}
