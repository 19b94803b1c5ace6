//! What an incremental send must know before its first command: which names go away, and which directories move.
//!
//! From the items that differ, no data, up to the last inode of the parent snapshot: those after it are
//! all new. It finds
//! - every name that the parent snapshot has and the new one has not: what stands in the way of new names, and
//!   what keeps a directory from being empty;
//! - the directories that are made, that go away, and that get another name or parent.
//!
//! New files need no entry, and neither do inodes whose names stay as they are, so memory grows with what was
//! removed or renamed: about 32 bytes a name, and the name.

use crate::send::error::Result;
use crate::send::inode::{InodeState, State};
use crate::send::snapshot::Link;
use buttress_format::InodeNumber;
use std::collections::{HashMap, HashSet};

/// What is known before the first command.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The names that go away, by directory and name once sorted.
    names: Vec<RemovedName>,
    /// The bytes of the names.
    bytes: Vec<u8>,
    /// How many names still have to go from each directory of the parent snapshot.
    remaining: HashMap<InodeNumber, u64>,
    /// Directories of both snapshots whose name or parent changes, and which were not moved yet.
    moving: HashSet<InodeNumber>,
    /// Directories that only the new snapshot has, up to `last_old`.
    created: HashSet<InodeNumber>,
    /// The highest inode number of the parent snapshot.
    last_old: InodeNumber,
    /// Directories that only the parent snapshot has, those among them whose number is used again.
    gone: HashSet<InodeNumber>,
}

/// A name that goes away, and who has it.
#[derive(Clone, Copy, Debug)]
struct RemovedName {
    parent: InodeNumber,
    name_start: usize,
    name_bytes: u8,
    occupant: Occupant,
    vacated: bool,
}

/// Who has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) inode: InodeNumber,
    pub(crate) directory: bool,
    /// Whether the new snapshot does not have this inode.
    pub(crate) gone: bool,
}

impl Plan {
    /// For a parent snapshot whose highest inode number is `last_old`.
    pub(crate) fn new(last_old: InodeNumber) -> Self {
        Self {
            last_old,
            ..Self::default()
        }
    }

    /// Takes note of one inode that differs.
    pub(crate) fn add(&mut self, inode: &InodeState) -> Result<()> {
        let (old, new) = (inode.old_present(), inode.new_present());
        let replaced = inode.state() == State::Replaced;
        let was_directory = old.is_some_and(|item| is_directory(item.mode));
        if new.is_some_and(|item| is_directory(item.mode)) && (old.is_none() || replaced) {
            self.created.insert(inode.number);
        }
        let gone = new.is_none() || replaced;
        if was_directory && gone {
            self.gone.insert(inode.number);
        }
        let Some(_) = old else { return Ok(()) };
        let removed = inode.removed_links();
        if was_directory && !gone && !removed.is_empty() {
            self.moving.insert(inode.number);
        }
        for link in removed {
            self.push(
                link,
                Occupant {
                    inode: inode.number,
                    directory: was_directory,
                    gone,
                },
            );
        }
        Ok(())
    }

    fn push(&mut self, link: &Link, occupant: Occupant) {
        let remaining = self.remaining.entry(link.parent).or_default();
        *remaining = remaining.saturating_add(1);
        self.names.push(RemovedName {
            parent: link.parent,
            name_start: self.bytes.len(),
            name_bytes: u8::try_from(link.name.len()).unwrap_or(u8::MAX),
            occupant,
            vacated: false,
        });
        self.bytes.extend_from_slice(&link.name);
    }

    /// Ends the pass.
    pub(crate) fn finish(&mut self) {
        let mut names = core::mem::take(&mut self.names);
        names.sort_unstable_by(|a, b| (a.parent, self.name(a)).cmp(&(b.parent, self.name(b))));
        names.shrink_to_fit();
        self.bytes.shrink_to_fit();
        self.names = names;
    }

    fn name(&self, removed: &RemovedName) -> &[u8] {
        let end = removed.name_start.saturating_add(usize::from(removed.name_bytes));
        self.bytes.get(removed.name_start..end).unwrap_or_default()
    }

    fn find(&self, parent: InodeNumber, name: &[u8]) -> Option<usize> {
        self.names
            .binary_search_by(|probe| (probe.parent, self.name(probe)).cmp(&(parent, name)))
            .ok()
    }

    /// Who has a name that goes away, and still has it. `parent` is a directory of the parent snapshot.
    pub(crate) fn occupant(&self, parent: InodeNumber, name: &[u8]) -> Option<Occupant> {
        let removed = self.names.get(self.find(parent, name)?)?;
        (!removed.vacated).then_some(removed.occupant)
    }

    /// The name is free now. Returns whether it was the last one that had to go from that directory, or `None`
    /// when it was free already.
    pub(crate) fn vacate(&mut self, parent: InodeNumber, name: &[u8]) -> Option<bool> {
        let index = self.find(parent, name)?;
        let removed = self.names.get_mut(index)?;
        if core::mem::replace(&mut removed.vacated, true) {
            return None;
        }
        let remaining = self.remaining.get_mut(&parent)?;
        *remaining = remaining.saturating_sub(1);
        Some(*remaining == 0)
    }

    /// Whether names still have to go from a directory of the parent snapshot.
    pub(crate) fn holds_names(&self, directory: InodeNumber) -> bool {
        self.remaining.get(&directory).is_some_and(|&names| names > 0)
    }

    /// Whether a directory of both snapshots has not got its new place yet.
    pub(crate) fn is_moving(&self, directory: InodeNumber) -> bool {
        self.moving.contains(&directory)
    }

    /// The directory has got its new place.
    pub(crate) fn moved(&mut self, directory: InodeNumber) {
        self.moving.remove(&directory);
    }

    /// Whether only the new snapshot has the directory.
    pub(crate) fn is_created(&self, directory: InodeNumber) -> bool {
        directory > self.last_old || self.created.contains(&directory)
    }

    /// Whether only the parent snapshot has the directory (the new one may use its number for another inode).
    pub(crate) fn is_gone(&self, directory: InodeNumber) -> bool {
        self.gone.contains(&directory)
    }
}

/// Whether a mode is that of a directory.
pub(crate) const fn is_directory(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}
