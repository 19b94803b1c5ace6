//! The names that went in the running transaction.
//!
//! A log may say that a name is gone, and must then say where its inode is, if that lives on. So every name that is taken
//! away is noted here, with the inode that it led to, until the commit, which makes all of it the state that logs follow.
//!
//! Names that came need no note: an inode has its names, and a directory gives rising indexes.
//!
//! What is noted is bounded: a subvolume that loses more names in one transaction is not logged until the commit.

use buttress_format::{InodeNumber, TreeId, name_hash};
use std::collections::{HashMap, HashSet};

/// The most names of one subvolume.
const NAMES_MAX: usize = 1 << 16;

/// A name that was taken away.
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
    /// Whether that is a directory.
    pub is_directory: bool,
    /// Whether the last commit has the name.
    pub is_committed: bool,
}

/// Those of one subvolume, in the order in which they went.
#[derive(Debug, Default)]
pub struct RemovedNames {
    all: Vec<RemovedName>,
    by_inode: HashMap<InodeNumber, Vec<usize>>,
    by_directory: HashMap<InodeNumber, Vec<usize>>,
    by_name: HashMap<(InodeNumber, u64), Vec<usize>>,
    /// Directories to which a subvolume came, or from which one went.
    with_subvolumes: HashSet<InodeNumber>,
    /// Whether a directory is among the inodes.
    has_directories: bool,
    /// Whether there were too many.
    is_full: bool,
}

impl RemovedNames {
    /// Returns whether some names are missing here.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns whether names of directories are among them.
    pub const fn has_directories(&self) -> bool {
        self.has_directories
    }

    /// Returns how many names are here.
    pub const fn count(&self) -> usize {
        self.all.len()
    }

    /// Those from a position on.
    pub fn since(&self, position: usize) -> &[RemovedName] {
        self.all.get(position..).unwrap_or_default()
    }

    fn at<'a>(&'a self, positions: Option<&'a Vec<usize>>) -> impl Iterator<Item = &'a RemovedName> {
        let positions = positions.into_iter().flatten();
        positions.filter_map(|position| self.all.get(*position))
    }

    /// The names that an inode lost.
    pub fn of_inode(&self, inode: InodeNumber) -> impl Iterator<Item = &RemovedName> {
        self.at(self.by_inode.get(&inode))
    }

    /// The names that a directory lost, from a position on.
    pub fn of_directory(&self, directory: InodeNumber, since: usize) -> impl Iterator<Item = &RemovedName> {
        let positions = self.by_directory.get(&directory);
        let positions = positions.map_or(&[][..], |positions| {
            let from = positions.partition_point(|position| *position < since);
            positions.get(from..).unwrap_or_default()
        });
        positions.iter().filter_map(|position| self.all.get(*position))
    }

    /// What else had a name in a directory.
    pub fn under<'a>(
        &'a self,
        directory: InodeNumber,
        name: &'a [u8],
    ) -> impl Iterator<Item = &'a RemovedName> {
        self.at(self.by_name.get(&(directory, name_hash(name))))
            .filter(move |removed| *removed.name == *name)
    }

    /// Whether a subvolume came to a directory or left it.
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

/// Those of all subvolumes.
#[derive(Debug, Default)]
pub struct NameChanges(HashMap<TreeId, RemovedNames>);

impl NameChanges {
    /// A name was taken away.
    pub fn note_removed(&mut self, tree: TreeId, removed: RemovedName) {
        self.0.entry(tree).or_default().note(removed);
    }

    /// A subvolume came to a directory, or left it.
    pub fn note_subvolume(&mut self, tree: TreeId, directory: InodeNumber) {
        self.0.entry(tree).or_default().with_subvolumes.insert(directory);
    }

    /// Returns the names that a subvolume lost.
    pub fn of(&self, tree: TreeId) -> Option<&RemovedNames> {
        self.0.get(&tree)
    }

    /// A transaction begins.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}
