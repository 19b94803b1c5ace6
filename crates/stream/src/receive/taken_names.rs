//! A set of name hashes that proves a name free without a lookup in the tree.
//!
//! Linux's streams create each inode under a temporary name and rename it, so both names must be
//! free. In a large directory each lookup reads another leaf. After enough lookups of names in a
//! directory, the receiver therefore reads the hashes of all its names once, in key order.
//!
//! Invariants:
//! - The set contains the hash of every name that the stream created, in every directory, until the
//!   set is full and emptied.
//! - The set also contains the hash of every name that a directory in [`Known::All`] had when its
//!   hashes were read.
//! - The name that a command removes stays in the set of taken names. Such a removed name costs a
//!   lookup, and the answer stays right.
//!
//! The set covers one subvolume, which no other caller changes. Left out: streams whose names are
//! not [pending](super::made_names).

use super::making::Receiver;
use buttress_format::{DirItem, InodeNumber};
use buttress_fs::Location;
use std::collections::{HashMap, HashSet};

/// The largest number of hashes: a table of 2^21 places, which takes 18 MiB, holds them. At the limit the set is emptied.
const HASHES_MAX: usize = (1 << 21) / 8 * 7;

/// The largest number of directories.
const DIRECTORIES_MAX: usize = 1 << 17;

/// Number of directory entries whose hashes one step reads.
const HASHES_READ: usize = 4096;

/// Bytes of directory size per lookup: a directory of N times this size is read after N lookups.
/// btrfs adds twice the length of each name to the directory size.
const BYTES_OF_LOOKUP: u64 = 4096;

/// The state of a directory.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The number of lookups in the directory. The names of this directory are not in the set of
    /// taken names.
    Lookups(u32),
    /// All names of the directory are in the set of taken names.
    All,
    /// The set of taken names cannot hold the directory's names.
    TooMany,
}

/// Hashes of taken names, and the state of each directory.
#[derive(Debug, Default)]
pub(super) struct TakenNames {
    hashes: HashSet<u64>,
    directories: HashMap<InodeNumber, Known>,
    /// True if the set was emptied and so lacks pending names. Only directories that the stream
    /// creates later can be complete.
    was_emptied: bool,
}

/// Returns the set value of a name hash in a directory. Different names may share a value.
fn value(directory: Location, name_hash: u64) -> u64 {
    directory.inode.get().rotate_left(32) ^ name_hash
}

fn value_of(directory: Location, name: &[u8]) -> u64 {
    value(directory, DirItem::key(directory.inode, name).offset)
}

impl TakenNames {
    /// Adds a new directory of the stream, which has no names yet.
    pub(super) fn add_directory(&mut self, directory: Location) {
        self.set(directory, Known::All);
    }

    /// Adds a name that the stream created.
    pub(super) fn add(&mut self, directory: Location, name: &[u8]) {
        self.add_value(value_of(directory, name));
    }

    /// Returns whether a directory certainly has no entry of this name.
    fn lacks(&self, directory: Location, name: &[u8]) -> bool {
        let known = self.directories.get(&directory.inode);
        matches!(known, Some(Known::All)) && !self.hashes.contains(&value_of(directory, name))
    }

    fn set(&mut self, directory: Location, known: Known) {
        if self.directories.len() >= DIRECTORIES_MAX {
            self.directories.clear();
        }
        self.directories.insert(directory.inode, known);
    }

    fn add_value(&mut self, value: u64) {
        if self.hashes.len() >= HASHES_MAX {
            self.hashes.clear();
            self.directories.clear();
            self.was_emptied = true;
        }
        self.hashes.insert(value);
    }

    /// Counts a lookup. Returns the largest directory size that is worth reading now, if this
    /// directory may be worth it.
    fn count_lookup(&mut self, directory: Location) -> Option<u64> {
        let known = self.directories.get(&directory.inode).copied();
        let Known::Lookups(count) = known.unwrap_or(Known::Lookups(0)) else {
            return None;
        };
        if self.was_emptied {
            return None;
        }
        let count = count.saturating_add(1);
        self.set(directory, Known::Lookups(count));
        // Only few lookups check the directory's size.
        let is_due = count.is_power_of_two();
        is_due.then(|| u64::from(count).saturating_mul(BYTES_OF_LOOKUP))
    }
}

impl Receiver<'_> {
    /// Returns whether a name is certainly free.
    pub(super) fn is_free(&mut self, directory: Location, name: &[u8]) -> bool {
        if self.new_files.may_have(directory, name) {
            return false;
        }
        if self.taken_names.lacks(directory, name) {
            return true;
        }
        if let Some(size_max) = self.taken_names.count_lookup(directory) {
            self.learn_names(directory, size_max);
        }
        matches!(self.filesystem.live().lookup(directory, name), Ok(None))
    }

    /// Adds the hashes of a directory's names, unless the directory is larger than `size_max`. This
    /// method ignores read errors, because later lookups meet these errors again.
    fn learn_names(&mut self, directory: Location, size_max: u64) {
        let metadata = self.filesystem.live().metadata(directory);
        if !metadata.is_ok_and(|metadata| metadata.size.get() <= size_max) {
            return;
        }
        let mut first = 0;
        loop {
            let Ok(hashes) = self.filesystem.live().name_hashes(directory, first, HASHES_READ) else {
                return;
            };
            if self.taken_names.hashes.len().saturating_add(hashes.len()) > HASHES_MAX / 2 {
                return self.taken_names.set(directory, Known::TooMany);
            }
            for hash in &hashes {
                self.taken_names.add_value(value(directory, *hash));
            }
            match hashes.last() {
                Some(last) if hashes.len() == HASHES_READ => first = last.saturating_add(1),
                _ => return self.taken_names.set(directory, Known::All),
            }
        }
    }
}
