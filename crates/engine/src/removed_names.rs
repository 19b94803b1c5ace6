//! The names that the running transaction removed.
//!
//! If a log records a removed name, it must also have the current names of the name's inode, if
//! any. This module therefore records every removed name with its inode, until the next commit.
//!
//! New names need no record: the log gets an inode's names from the tree, and new names get
//! ascending indexes in their directory.
//!
//! The number of names is bounded. A subvolume that loses more names than this in one transaction
//! is not logged until the commit.

use buttress_format::{InodeNumber, TreeId, name_hash};
use std::collections::{HashMap, HashSet};

/// The most removed names that are recorded for one subvolume.
const NAMES_MAX: usize = 1 << 16;

/// A removed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedName {
    /// The directory that lost the name.
    pub directory: InodeNumber,
    /// The index of the entry.
    pub index: u64,
    /// The name.
    pub name: Box<[u8]>,
    /// The inode that the name led to.
    pub inode: InodeNumber,
    /// Whether the inode is a directory.
    pub is_directory: bool,
    /// Whether the last commit contains the name.
    pub is_committed: bool,
}

/// The removed names of one subvolume, in the order of their removal.
#[derive(Debug, Default)]
pub struct RemovedNames {
    all: Vec<RemovedName>,
    by_inode: HashMap<InodeNumber, Vec<usize>>,
    by_directory: HashMap<InodeNumber, Vec<usize>>,
    by_name: HashMap<(InodeNumber, u64), Vec<usize>>,
    /// Directories to which a subvolume was added, or from which one was removed.
    with_subvolumes: HashSet<InodeNumber>,
    /// Whether one of the removed names led to a directory.
    has_directories: bool,
    /// Whether more names were removed than the table records.
    is_full: bool,
}

impl RemovedNames {
    /// Returns whether more names were removed than the table records.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns whether some removed name led to a directory.
    pub const fn has_directories(&self) -> bool {
        self.has_directories
    }

    /// Returns the number of recorded names.
    pub const fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the removed names from a position on.
    pub fn since(&self, position: usize) -> &[RemovedName] {
        self.all.get(position..).unwrap_or_default()
    }

    fn at<'a>(&'a self, positions: Option<&'a Vec<usize>>) -> impl Iterator<Item = &'a RemovedName> {
        let positions = positions.into_iter().flatten();
        positions.filter_map(|position| self.all.get(*position))
    }

    /// Returns the names that an inode lost.
    pub fn of_inode(&self, inode: InodeNumber) -> impl Iterator<Item = &RemovedName> {
        self.at(self.by_inode.get(&inode))
    }

    /// Returns the names that a directory lost, from a position on.
    pub fn of_directory(&self, directory: InodeNumber, since: usize) -> impl Iterator<Item = &RemovedName> {
        let positions = self.by_directory.get(&directory);
        let positions = positions.map_or(&[][..], |positions| {
            let from = positions.partition_point(|position| *position < since);
            positions.get(from..).unwrap_or_default()
        });
        positions.iter().filter_map(|position| self.all.get(*position))
    }

    /// Returns the removals of this name from a directory.
    pub fn under<'a>(
        &'a self,
        directory: InodeNumber,
        name: &'a [u8],
    ) -> impl Iterator<Item = &'a RemovedName> {
        self.at(self.by_name.get(&(directory, name_hash(name))))
            .filter(move |removed| *removed.name == *name)
    }

    /// Returns whether a subvolume was added to or removed from a directory.
    pub fn has_subvolume(&self, directory: InodeNumber) -> bool {
        self.with_subvolumes.contains(&directory)
    }

    fn note(&mut self, removed: RemovedName) {
        if self.all.len() >= NAMES_MAX {
            self.is_full = true;
            return;
        }
        let position = self.all.len();
        self.by_inode.entry(removed.inode).or_default().push(position);
        self.by_directory
            .entry(removed.directory)
            .or_default()
            .push(position);
        let key = (removed.directory, name_hash(&removed.name));
        self.by_name.entry(key).or_default().push(position);
        self.has_directories |= removed.is_directory;
        self.all.push(removed);
    }
}

/// The removed names of all subvolumes.
#[derive(Debug, Default)]
pub struct NameChanges(HashMap<TreeId, RemovedNames>);

impl NameChanges {
    /// Records a name that a directory lost.
    pub fn note_removed(&mut self, tree: TreeId, removed: RemovedName) {
        self.0.entry(tree).or_default().note(removed);
    }

    /// Records that a subvolume was added to or removed from a directory.
    pub fn note_subvolume(&mut self, tree: TreeId, directory: InodeNumber) {
        self.0.entry(tree).or_default().with_subvolumes.insert(directory);
    }

    /// Returns the record of the names that a subvolume lost.
    pub fn of(&self, tree: TreeId) -> Option<&RemovedNames> {
        self.0.get(&tree)
    }

    /// Drops all records when a transaction begins.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}
