//! Harmless oddities of a stream, which no version of the format allows. The receive reports each
//! kind once, at its first command.

use super::making::Receiver;
use super::{Event, Note};
use crate::command::{Command, PathForm};
use crate::decoder::{Decoder, Frame, Oddity};
use buttress_format::printable::Printable;
use buttress_format::send::AttributeKind;
use core::fmt;
use std::collections::BTreeSet;
use std::io::Read;

/// Kinds of notes that the receive has already reported to the caller.
#[derive(Debug, Default)]
pub(super) struct Told {
    attributes: BTreeSet<(bool, AttributeKind)>,
    paths: BTreeSet<PathForm>,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EarlyAttribute {
                place,
                command,
                attribute,
                version,
            } => write!(
                f,
                "{place}: {command}: the attribute {attribute} belongs to a later stream version than {version}; it is used"
            ),
            Self::SuperfluousAttribute {
                place,
                command,
                attribute,
            } => write!(
                f,
                "{place}: {command}: the attribute {attribute} does not belong to this command; it is ignored"
            ),
            Self::Path {
                place,
                command,
                path,
                form,
            } => write!(
                f,
                "{place}: {command}: the path {} {}; it is used as a path below the subvolume's root",
                Printable(path),
                match form {
                    PathForm::Absolute => "begins with a slash",
                    PathForm::Dot => "has a `.`",
                    PathForm::TrailingSlash => "ends with a slash",
                }
            ),
            Self::UnknownCommand(skipped) => write!(
                f,
                "{}: unknown command number {} in a stream of version {}; it is skipped",
                skipped.place, skipped.number, skipped.version
            ),
        }?;
        f.write_str(" (reported once)")
    }
}

impl Receiver<'_> {
    /// Reports an attribute that the version does not define for the command, or that belongs to
    /// other commands.
    pub(super) fn note_oddity(&mut self, frame: &Frame<'_>) {
        let Some(oddity) = frame.oddity() else { return };
        let (place, command) = (frame.place(), frame.command().kind());
        let (is_used, attribute, note) = match oddity {
            Oddity::Early(attribute) => (
                true,
                attribute,
                Note::EarlyAttribute {
                    place,
                    command,
                    attribute,
                    version: frame.version(),
                },
            ),
            Oddity::Superfluous(attribute) => (
                false,
                attribute,
                Note::SuperfluousAttribute {
                    place,
                    command,
                    attribute,
                },
            ),
        };
        if self.told.attributes.insert((is_used, attribute)) {
            self.tell(&Event::Note(&note));
        }
    }

    /// Returns the stream command with plain paths. Reports a path that was not plain.
    pub(super) fn plain<'f>(&mut self, frame: &Frame<'f>) -> Command<'f> {
        let (plain, form) = frame.command().plain();
        if let Some(form) = form
            && self.told.paths.insert(form)
        {
            let note = Note::Path {
                place: frame.place(),
                command: plain.kind(),
                path: frame.command().path().unwrap_or_default().to_vec(),
                form,
            };
            self.tell(&Event::Note(&note));
        }
        plain
    }

    /// Reports the commands that were skipped.
    pub(super) fn note_skipped<R: Read>(&mut self, decoder: &mut Decoder<R>) {
        for skipped in decoder.take_skipped() {
            self.tell(&Event::Note(&Note::UnknownCommand(skipped)));
        }
    }
}
