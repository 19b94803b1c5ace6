//! Names of an unfinished subvolume that are not in their directories yet.
//!
//! An entry lies under the hash of its name. So names that come in the order of a stream go to leaves all over a large
//! directory, and each commit between them writes most of those leaves again. Nobody sees an unfinished subvolume, so its
//! names may wait here, in order of their keys, until many of them go into each leaf at once.
//!
//! Only the entry under the hash waits: index, the inode's side and the directory's size are in the tree already. Look-ups
//! of names look here first.
//!
//! Invariants: a key has here what is to be added to the item that the tree may have under it; a name is here or in the tree,
//! but for one that was made twice, which is found when it is put into the tree.

use crate::entry::{Entry, entry_in};
use buttress_format::{DirItem, DirItems, Key};
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use std::collections::BTreeMap;

/// What a name that waits takes in memory: its entry, and its part of the map.
pub const WAITING_NAME_BYTES: u64 = 192;

/// See the module.
#[derive(Debug, Default)]
pub struct WaitingNames {
    entries: BTreeMap<Key, Vec<u8>>,
}

impl WaitingNames {
    /// How many keys have names that wait.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The entry of a name, if it waits.
    pub fn find(&self, directory: Location, key: &Key, name: &[u8]) -> Result<Option<Entry>> {
        match self.entries.get(key) {
            Some(data) => entry_in(directory, key, data, name),
            None => Ok(None),
        }
    }

    /// Has an entry wait that does not yet.
    pub fn add(&mut self, key: Key, entry: &DirItem<'_>) -> Result<(), buttress_format::ItemProblem> {
        DirItems::push(self.entries.entry(key).or_default(), entry)
    }

    /// Takes a name out. Says whether it waited.
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

    /// The first keys, in order.
    pub fn first(&self, count: usize) -> Vec<Key> {
        self.entries.keys().take(count).copied().collect()
    }

    /// What waits under these keys.
    pub fn entries(&self, keys: &[Key]) -> Vec<(Key, Vec<u8>)> {
        let found = keys
            .iter()
            .filter_map(|key| Some((*key, self.entries.get(key)?.clone())));
        found.collect()
    }

    /// What was under these keys waits no more.
    pub fn forget<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        for key in keys {
            self.entries.remove(key);
        }
    }
}
