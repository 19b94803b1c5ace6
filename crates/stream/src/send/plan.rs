//! Facts that an incremental send needs before its first command: removed names, and moved
//! directories.
//!
//! The plan comes from the differing items without data, up to the last inode of the parent
//! snapshot; later inodes are all new. It contains
//! - every name that the parent snapshot has and the new one lacks. The old name of a removed or
//!   moved inode blocks a new name, and keeps a directory from being empty;
//! - the directories that the receiver creates, removes, renames or moves.
//!
//! New files and inodes with unchanged names need no entry in the plan. Memory therefore grows with
//! the removed and renamed names: about 32 bytes per name, and the name itself.

use crate::send::error::Result;
use crate::send::inode::{InodeState, State};
use crate::send::snapshot::Link;
use buttress_format::InodeNumber;
use std::collections::{HashMap, HashSet};

/// The plan of an incremental send.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Removed names; `finish` sorts them by directory and name.
    names: Vec<RemovedName>,
    /// Bytes of the removed names.
    bytes: Vec<u8>,
    /// Number of names still to be removed, by directory of the parent snapshot.
    remaining: HashMap<InodeNumber, u64>,
    /// Directories of both snapshots with a new name or parent that have not moved yet.
    moving: HashSet<InodeNumber>,
    /// Directories with inode numbers up to `last_old` that only the new snapshot has.
    created: HashSet<InodeNumber>,
    /// The highest inode number of the parent snapshot.
    last_old: InodeNumber,
    /// Directories that only the parent snapshot has, including those with a reused inode number.
    gone: HashSet<InodeNumber>,
}

/// A removed name, and the inode that has it.
#[derive(Clone, Copy, Debug)]
struct RemovedName {
    parent: InodeNumber,
    name_start: usize,
    name_bytes: u8,
    occupant: Occupant,
    vacated: bool,
}

/// An inode that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) inode: InodeNumber,
    pub(crate) directory: bool,
    /// True if the new snapshot lacks this inode.
    pub(crate) gone: bool,
}

impl Plan {
    /// Creates a plan for a parent snapshot whose highest inode number is `last_old`.
    pub(crate) fn new(last_old: InodeNumber) -> Self {
        Self {
            last_old,
            ..Self::default()
        }
    }

    /// Adds a differing inode to the plan.
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

    /// Sorts the plan after the last inode.
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

    /// Returns the inode that still has a removed name. `parent` is a directory of the parent
    /// snapshot.
    pub(crate) fn occupant(&self, parent: InodeNumber, name: &[u8]) -> Option<Occupant> {
        let removed = self.names.get(self.find(parent, name)?)?;
        (!removed.vacated).then_some(removed.occupant)
    }

    /// Marks a name of the parent snapshot as free at the receiver. Returns whether it was the last
    /// name to be removed from that directory, or `None` if the name was free already.
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

    /// Returns whether a directory of the parent snapshot still has names that the send must
    /// remove.
    pub(crate) fn holds_names(&self, directory: InodeNumber) -> bool {
        self.remaining.get(&directory).is_some_and(|&names| names > 0)
    }

    /// Returns whether a directory of both snapshots is not at its new place yet.
    pub(crate) fn is_moving(&self, directory: InodeNumber) -> bool {
        self.moving.contains(&directory)
    }

    /// Records that the receiver moved a directory to its new place.
    pub(crate) fn moved(&mut self, directory: InodeNumber) {
        self.moving.remove(&directory);
    }

    /// Returns whether only the new snapshot has the directory.
    pub(crate) fn is_created(&self, directory: InodeNumber) -> bool {
        directory > self.last_old || self.created.contains(&directory)
    }

    /// Returns whether only the parent snapshot has the directory. The new snapshot may use this
    /// inode number for another inode.
    pub(crate) fn is_gone(&self, directory: InodeNumber) -> bool {
        self.gone.contains(&directory)
    }
}

/// Returns whether a mode has the directory type.
pub(crate) const fn is_directory(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}
