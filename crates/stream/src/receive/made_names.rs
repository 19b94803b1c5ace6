//! Names that were made and wait to be put into their directories, many at a time
//! ([`defer_names`](buttress_writer::WritableFilesystem::defer_names)).
//!
//! That a directory has such a name already is found then, behind the command that made it. So that the error names that
//! command, the places of those commands are kept as long as their names wait.
//!
//! Left out: streams whose bad commands are left out. There each name is put where it belongs at once.

use super::error::Problem;
use super::making::{Receiver, about};
use super::taken_names::TakenNames;
use crate::error::Place;
use buttress_exact::u64_of;
use buttress_format::SubvolumeId;
use buttress_format::send::CommandKind;
use buttress_fs::Location;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A command, as errors name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandPlace {
    pub(super) place: Place,
    pub(super) command: CommandKind,
}

impl CommandPlace {
    /// Before the first one.
    pub(super) const BEGINNING: Self = Self {
        place: Place {
            offset: 0,
            command: 0,
        },
        command: CommandKind::Subvolume,
    };

    /// The problem of a command that another one met.
    pub(super) fn had(self, problem: Problem) -> Problem {
        Problem::Earlier {
            place: self.place,
            command: self.command,
            problem: Box::new(problem),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct MadeNames {
    /// The subvolume whose names wait.
    of: Option<SubvolumeId>,
    /// Which command made which of them, by a hash of directory and name.
    makers: Vec<(u64, CommandPlace)>,
}

impl MadeNames {
    /// Whether names wait.
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
    /// A subvolume begins: its names wait from now on.
    pub(super) fn begin_names(&mut self, of: SubvolumeId) -> Result<(), Problem> {
        self.made_names = MadeNames::default();
        self.taken_names = TakenNames::default();
        if self.options.errors_max == 1 {
            self.filesystem.defer_names(of).map_err(about(b""))?;
            self.made_names.of = Some(of);
        }
        Ok(())
    }

    /// A command made a name.
    pub(super) fn note_name(&mut self, directory: Location, name: &[u8], maker: CommandPlace) {
        if self.made_names.wait() {
            self.taken_names.add(directory, name);
            self.made_names.makers.push((hash(directory, name), maker));
        }
    }

    /// Puts names into their directories where very many wait. Between two commands: one that finds no space is carried out
    /// again.
    pub(super) fn put_many_names(&mut self) -> Result<(), Problem> {
        let count = u64_of(self.made_names.makers.len());
        match count < self.filesystem.deferred_names_max() {
            true => Ok(()),
            false => self.put_names(),
        }
    }

    /// Puts the names that wait into their directories.
    pub(super) fn put_names(&mut self) -> Result<(), Problem> {
        let Some(of) = self.made_names.of else {
            return Ok(());
        };
        let Some(refused) = self.filesystem.put_names(of).map_err(about(b""))? else {
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
