//! Names of an unfinished subvolume that are not in their directories yet.
//!
//! A directory entry's key is the hash of its name. Names in the order of a stream therefore go to
//! leaves all over a large directory, and each commit rewrites most of those leaves. No reader sees
//! an unfinished subvolume, so its names may wait here, in order of their keys, until many of them
//! go into each leaf at once.
//!
//! Of a deferred name, only the hashed entry is pending. The tree already has the deferred name's
//! index entry, the inode's reference and the directory's size. Name lookups search here first.
//!
//! Invariants: a key in this table holds the entries to be added to the tree's item with the same
//! key. A name is here or in the tree, never in both, except a name that was made twice. Inserting
//! the name into the tree detects a name that was made twice.

use crate::entry::{Entry, entry_in};
use buttress_format::{DirItem, DirItems, Key};
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use std::collections::BTreeMap;

/// The memory of a waiting name: its entry, and its part of the map.
pub const WAITING_NAME_BYTES: u64 = 192;

/// The waiting names of one subvolume. See the module's documentation.
#[derive(Debug, Default)]
pub struct WaitingNames {
    entries: BTreeMap<Key, Vec<u8>>,
}

impl WaitingNames {
    /// Returns the number of keys with waiting names.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the directory entry of a name, if it waits.
    pub fn find(&self, directory: Location, key: &Key, name: &[u8]) -> Result<Option<Entry>> {
        match self.entries.get(key) {
            Some(data) => entry_in(directory, key, data, name),
            None => Ok(None),
        }
    }

    /// Adds an entry that does not wait yet.
    pub fn add(&mut self, key: Key, entry: &DirItem<'_>) -> Result<(), buttress_format::ItemProblem> {
        DirItems::push(self.entries.entry(key).or_default(), entry)
    }

    /// Removes a name. Returns whether the removed name was pending.
    pub fn remove(&mut self, key: &Key, name: &[u8]) -> bool {
        let Some(data) = self.entries.get_mut(key) else {
            return false;
        };
        let waited = DirItems::remove(data, name);
        if data.is_empty() {
            self.entries.remove(key);
        }
        waited
    }

    /// Returns the first `count` keys, in order.
    pub fn first(&self, count: usize) -> Vec<Key> {
        self.entries.keys().take(count).copied().collect()
    }

    /// Returns the waiting entries of these keys.
    pub fn entries(&self, keys: &[Key]) -> Vec<(Key, Vec<u8>)> {
        let found = keys
            .iter()
            .filter_map(|key| Some((*key, self.entries.get(key)?.clone())));
        found.collect()
    }

    /// Removes the entries of these keys.
    pub fn forget<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        for key in keys {
            self.entries.remove(key);
        }
    }
}
