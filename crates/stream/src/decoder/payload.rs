//! The payload of a command: one pass finds and checks its attributes.

use crate::command::{AttributeSource, Command};
use crate::error::{CommandProblem, Error, Place, Result, StreamProblem};
use buttress_format::send::{
    ATTRIBUTE_HEADER_BYTES, AttributeKind, CommandKind, UNSIZED_ATTRIBUTE_HEADER_BYTES, Version,
};

/// Largest attribute number plus one.
const ATTRIBUTE_SLOTS: usize = AttributeKind::ALL.len() + 1;

/// The attributes of one command, indexed by their numbers.
struct Attributes<'a> {
    values: [&'a [u8]; ATTRIBUTE_SLOTS],
    /// Bit set of attributes: bit N is set if the command has the attribute with number N.
    present: u64,
}

impl<'a> AttributeSource<'a> for Attributes<'a> {
    #[inline]
    fn attribute(&self, kind: AttributeKind) -> Option<&'a [u8]> {
        let value = self.values.get(usize::from(kind.to_raw()));
        value.copied().filter(|_| self.present & bit(kind) != 0)
    }
}

const fn bit(kind: AttributeKind) -> u64 {
    1 << kind.to_raw()
}

/// An attribute that the command's stream version does not define for it. Such an attribute is
/// harmless: btrfs-progs ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// An attribute of other commands, which the decoder ignores.
    Superfluous(AttributeKind),
    /// An attribute that only later stream versions define for this command. The decoder uses such
    /// an attribute.
    Early(AttributeKind),
}

/// Builds a command from its verified payload, and returns the first oddity in the payload.
#[inline]
pub(super) fn parse<'a>(
    place: Place,
    version: Version,
    command: CommandKind,
    payload: &'a [u8],
) -> Result<(Command<'a>, Option<Oddity>)> {
    let corrupt = |problem| Error::Corrupt {
        place,
        problem: StreamProblem::Command { command, problem },
    };
    let allowed = Command::attribute_set(command);
    let mut attributes = Attributes {
        values: [&[]; ATTRIBUTE_SLOTS],
        present: 0,
    };
    let mut oddity = None;
    let mut rest = payload;
    while !rest.is_empty() {
        let offset = payload.len().saturating_sub(rest.len());
        let Some((number, after)) = rest.split_first_chunk::<UNSIZED_ATTRIBUTE_HEADER_BYTES>() else {
            return Err(corrupt(CommandProblem::Rest {
                offset,
                left_bytes: rest.len(),
            }));
        };
        let number = u16::from_le_bytes(*number);
        let kind = AttributeKind::from_raw(number).ok_or(Error::AttributeUnknown {
            place,
            command,
            number,
            version,
        })?;
        if attributes.present & bit(kind) != 0 {
            return Err(corrupt(CommandProblem::AttributeRepeated {
                attribute: kind,
                offset,
            }));
        }
        let value;
        (value, rest) = if kind == AttributeKind::Data && version.has_unsized_data() {
            (after, <&[u8]>::default())
        } else {
            split_sized(after).map_err(|length_bytes| {
                corrupt(CommandProblem::AttributeCutShort {
                    number,
                    offset,
                    needed_bytes: ATTRIBUTE_HEADER_BYTES.saturating_add(length_bytes),
                    left_bytes: rest.len(),
                })
            })?
        };
        if allowed & bit(kind) == 0 {
            if command == CommandKind::End {
                // Treat an end command with a foreign attribute as another command that was
                // damaged; skipping the attribute would lose its data.
                return Err(corrupt(CommandProblem::AttributeForeign {
                    attribute: kind,
                    offset,
                }));
            }
            oddity = oddity.or(Some(Oddity::Superfluous(kind)));
            continue;
        }
        if kind.version() > version {
            oddity = oddity.or(Some(Oddity::Early(kind)));
        }
        attributes.present |= bit(kind);
        if let Some(slot) = attributes.values.get_mut(usize::from(number)) {
            *slot = value;
        }
    }
    let command = Command::from_attributes(command, &attributes).map_err(corrupt)?;
    Ok((command, oddity))
}

/// Splits off a length-prefixed value. The error holds the claimed length, or 0 if the length field
/// itself is truncated.
#[inline]
pub(super) fn split_sized(bytes: &[u8]) -> Result<(&[u8], &[u8]), usize> {
    let (length, after) = bytes.split_first_chunk::<2>().ok_or(0_usize)?;
    let length = usize::from(u16::from_le_bytes(*length));
    after.split_at_checked(length).ok_or(length)
}
