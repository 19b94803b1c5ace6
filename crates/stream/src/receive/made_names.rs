//! New names that are pending, so that many enter their directories together
//! ([`defer_names`](buttress_writer::Subvolumes::defer_names)).
//!
//! A directory that already has a pending name causes an error only at this later point. This
//! module remembers the command of each pending name, so that the error names this command.
//!
//! Left out: receives that leave out failed commands. A receive that leaves out failed commands
//! inserts each name immediately.

use super::error::Problem;
use super::making::{Receiver, about};
use super::taken_names::TakenNames;
use crate::error::Place;
use buttress_exact::u64_of;
use buttress_format::SubvolumeId;
use buttress_format::send::CommandKind;
use buttress_fs::Location;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Position and kind of a command, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandPlace {
    pub(super) place: Place,
    pub(super) command: CommandKind,
}

impl CommandPlace {
    /// The place before the first command of a stream, as an initial value.
    pub(super) const BEGINNING: Self = Self {
        place: Place {
            offset: 0,
            command: 0,
        },
        command: CommandKind::Subvolume,
    };

    /// Attributes a problem that another command met to the command at this place.
    pub(super) fn had(self, problem: Problem) -> Problem {
        Problem::Earlier {
            place: self.place,
            command: self.command,
            problem: Box::new(problem),
        }
    }
}

/// The stream commands of names that the receiver has not created yet.
#[derive(Debug, Default)]
pub(super) struct MadeNames {
    /// Subvolume whose names are pending.
    of: Option<SubvolumeId>,
    /// Command that created each name, keyed by a hash of directory and name.
    makers: Vec<(u64, CommandPlace)>,
}

impl MadeNames {
    /// Returns whether new names stay pending.
    pub(super) const fn wait(&self) -> bool {
        self.of.is_some()
    }
}

fn hash(directory: Location, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (directory, name).hash(&mut hasher);
    hasher.finish()
}

impl Receiver<'_> {
    /// Begins a subvolume, whose new names stay pending.
    pub(super) fn begin_names(&mut self, of: SubvolumeId) -> Result<(), Problem> {
        self.made_names = MadeNames::default();
        self.taken_names = TakenNames::default();
        if self.options.errors_max == 1 {
            self.filesystem.subvolumes().defer_names(of).map_err(about(b""))?;
            self.made_names.of = Some(of);
        }
        Ok(())
    }

    /// Records the stream command that created a name.
    pub(super) fn note_name(&mut self, directory: Location, name: &[u8], maker: CommandPlace) {
        if self.made_names.wait() {
            self.taken_names.add(directory, name);
            self.made_names.makers.push((hash(directory, name), maker));
        }
    }

    /// Inserts the pending names if more than a fixed number are pending. The caller inserts
    /// pending names between two commands, so a command that finds no space can run again.
    pub(super) fn put_many_names(&mut self) -> Result<(), Problem> {
        let count = u64_of(self.made_names.makers.len());
        match count < self.filesystem.subvolumes().deferred_names_max() {
            true => Ok(()),
            false => self.put_names(),
        }
    }

    /// Inserts the pending names into their directories.
    pub(super) fn put_names(&mut self) -> Result<(), Problem> {
        let Some(of) = self.made_names.of else {
            return Ok(());
        };
        let Some(refused) = self.filesystem.subvolumes().put_names(of).map_err(about(b""))? else {
            self.made_names.makers.clear();
            return Ok(());
        };
        let wanted = hash(refused.directory, &refused.name);
        let mut makers = self.made_names.makers.iter().rev();
        let maker = makers.find(|(found, _)| *found == wanted);
        let problem = about(&refused.name)(refused.error);
        Err(match maker {
            Some((_, maker)) => maker.had(problem),
            None => problem,
        })
    }
}
