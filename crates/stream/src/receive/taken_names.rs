//! A set of name hashes that proves a name free without a look-up in the tree.
//!
//! Linux's streams make each inode under a made-up name and rename it, so both names must be free. In a large directory each
//! look-up goes to another leaf. The directory's hashes are therefore read once, in order of their keys, when enough
//! look-ups have been made in it.
//!
//! Invariants:
//! - The set contains the hash of every name that the stream made, in every directory, until it is full and emptied.
//! - It also contains the hash of every name that a directory in [`Known::All`] had when its hashes were read.
//! - A removed name stays in the set. Such a name costs a look-up, and the answer stays right.
//!
//! The set is of one subvolume, which no other caller changes. Left out are streams whose names do not
//! [wait](super::made_names).

use super::making::Receiver;
use buttress_format::{DirItem, InodeNumber};
use buttress_fs::Location;
use std::collections::{HashMap, HashSet};

/// The largest number of hashes: a table of 2^21 places, which takes 18 MiB, holds them. At the limit the set is emptied.
const HASHES_MAX: usize = (1 << 21) / 8 * 7;

/// The largest number of directories.
const DIRECTORIES_MAX: usize = 1 << 17;

/// How many hashes are read at a time.
const HASHES_READ: usize = 4096;

/// A directory is read after one look-up for so many bytes of its size, which are two for each byte of a name.
const BYTES_OF_LOOKUP: u64 = 4096;

/// The state of a directory.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// The number of look-ups made in it. Its names are not in the set.
    Lookups(u32),
    /// All of its names are in the set.
    All,
    /// The set cannot hold its names.
    TooMany,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct TakenNames {
    hashes: HashSet<u64>,
    directories: HashMap<InodeNumber, Known>,
    /// The set was emptied, so it lacks names that wait. Only directories that the stream makes later can be complete.
    was_emptied: bool,
}

/// Names of one hash in one directory have the same value. Other names may have it, too.
fn value(directory: Location, name_hash: u64) -> u64 {
    directory.inode.get().rotate_left(32) ^ name_hash
}

fn value_of(directory: Location, name: &[u8]) -> u64 {
    value(directory, DirItem::key(directory.inode, name).offset)
}

impl TakenNames {
    /// Adds a directory that the stream made, which has no names yet.
    pub(super) fn add_directory(&mut self, directory: Location) {
        self.set(directory, Known::All);
    }

    /// Adds a name that the stream made.
    pub(super) fn add(&mut self, directory: Location, name: &[u8]) {
        self.add_value(value_of(directory, name));
    }

    /// Whether a directory surely lacks a name.
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

    /// Counts a look-up. Returns the largest size of a directory that is worth reading now, if the directory may be.
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
        // The size is looked up at few of them.
        let is_due = count.is_power_of_two();
        is_due.then(|| u64::from(count).saturating_mul(BYTES_OF_LOOKUP))
    }
}

impl Receiver<'_> {
    /// Whether surely nothing has a name.
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
        matches!(self.filesystem.lookup(directory, name), Ok(None))
    }

    /// Reads the hashes of a directory's names, unless it is larger than `size_max`. An error is left to the look-up, which
    /// meets it again.
    fn learn_names(&mut self, directory: Location, size_max: u64) {
        let metadata = self.filesystem.metadata(directory);
        if !metadata.is_ok_and(|metadata| metadata.size.get() <= size_max) {
            return;
        }
        let mut first = 0;
        loop {
            let Ok(hashes) = self.filesystem.name_hashes(directory, first, HASHES_READ) else {
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
