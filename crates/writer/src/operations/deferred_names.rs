//! Putting names that wait into their directories: those of unfinished subvolumes, in order of their keys.
//!
//! Leaves that are needed are read ahead of the edits, side by side. Each operation puts some names into the tree, and they
//! wait no more; between two of them others get the lock, and commits may come.
//!
//! A name that its directory has already is found here, not when it was made: it stays among those that wait, and the
//! subvolume cannot be finished.

use super::Operation;
use crate::WritableFilesystem;
use buttress_engine::reservation::Need;
use buttress_engine::trees::LiveTree;
use buttress_exact::u64_of;
use buttress_format::limits::item_bytes_max;
use buttress_format::{DirItems, InodeNumber, Key, SubvolumeId};
use buttress_fs::error::{Corruption, Error, Name, Result};
use buttress_fs::location::Location;
use buttress_tree::{EditContext, EditableTree, HeldMemory};

/// How many names are put into the tree by one operation, and for how many leaves are read ahead at a time.
const NAMES_AT_ONCE: usize = 128;
const NAMES_READ_FOR: usize = 1024;

/// A name that cannot be put where it was made.
#[derive(Clone, Debug)]
pub struct RefusedName {
    /// The directory.
    pub directory: Location,
    /// The name.
    pub name: Vec<u8>,
    /// Why: [`Error::Exists`] or [`Error::HashCollision`].
    pub error: Error,
}

impl WritableFilesystem {
    /// From now on names that are made in an unfinished subvolume are kept in memory until [`put_names`](Self::put_names), or
    /// until it is finished or copied. Whether a directory has such a name already is found then, instead of when it is
    /// made.
    ///
    /// # Errors
    /// [`Error::SubvolumeNotFound`]; that the tree cannot be read.
    pub fn defer_names(&self, subvolume: SubvolumeId) -> Result<()> {
        self.look(|operation| {
            operation.require_unfinished(subvolume)?;
            let tree = &operation.look().open_tree(subvolume.tree())?.tree;
            tree.set_defers_names(true);
            Ok(())
        })
    }

    /// Takes memory for a job that makes a whole subvolume from the volume's budget, for as long as it is held.
    #[must_use]
    pub fn hold_memory(&self) -> HeldMemory {
        self.forest().hold_unread()
    }

    /// How many names should wait at most: they take memory that other changes wait in, too.
    #[must_use]
    pub fn deferred_names_max(&self) -> u64 {
        self.waiting_bytes_max().get() >> 10
    }

    /// Puts names that wait into their directories. Ends with the first that cannot be.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; that the tree cannot be read, or that writing has stopped.
    pub fn put_names(&self, subvolume: SubvolumeId) -> Result<Option<RefusedName>> {
        let Some(tree) = self.live_trees().get(subvolume.tree()) else {
            return Ok(None);
        };
        while tree.names_waiting() > 0 {
            let keys = tree.with_names(|names| names.first(NAMES_READ_FOR));
            let places: Vec<(Key, Key)> = keys.iter().map(|key| (*key, *key)).collect();
            self.fault_in_places(subvolume.tree(), &places)?;
            for part in keys.chunks(NAMES_AT_ONCE) {
                let need = Need::places(u64_of(part.len()));
                let refused = self.operate(need, |operation| operation.put_names(subvolume, &tree, part))?;
                if refused.is_some() {
                    return Ok(refused);
                }
            }
        }
        Ok(None)
    }

    /// As [`put_names`](Self::put_names), for who made them without asking for that.
    pub(super) fn put_all_names(&self, subvolume: SubvolumeId) -> Result<()> {
        match self.put_names(subvolume)? {
            None => Ok(()),
            Some(refused) => Err(refused.error),
        }
    }
}

impl Operation<'_> {
    /// Puts what waits under these keys into the tree.
    fn put_names(
        &mut self,
        subvolume: SubvolumeId,
        tree: &LiveTree,
        keys: &[Key],
    ) -> Result<Option<RefusedName>> {
        self.require_unfinished(subvolume)?;
        let id = subvolume.tree();
        self.reach(id, keys)?;
        let entries = tree.with_names(|names| names.entries(keys));
        let items: Vec<(Key, &[u8])> = entries
            .iter()
            .map(|(key, data)| (*key, data.as_slice()))
            .collect();
        let mut refused = None;
        let mut rest = items.as_slice();
        while refused.is_none() {
            let put =
                |tree: &mut EditableTree, context: &mut dyn EditContext| tree.insert_many_new(context, rest);
            rest = self.edit().edit(id, put)?;
            let Some(((key, data), later)) = rest.split_first() else {
                break;
            };
            refused = self.put_beside(subvolume, key, data)?;
            if refused.is_none() {
                rest = later;
            }
        }
        let put = items.len().saturating_sub(rest.len());
        let put = items.iter().take(put).map(|(key, _)| key);
        tree.change_names(|names| names.forget(put));
        Ok(refused)
    }

    /// Puts names into an item that the tree has: of names with the same hash, or the same names.
    fn put_beside(&mut self, subvolume: SubvolumeId, key: &Key, data: &[u8]) -> Result<Option<RefusedName>> {
        let id = subvolume.tree();
        let broken = |error| Corruption::Item { tree: id, error };
        let mut all = self
            .get(id, key)?
            .map_or_else(Vec::new, |item| item.data().to_vec());
        let directory = Location::new(subvolume, InodeNumber::new(key.objectid.get()));
        let refuse = |name: &[u8], error| RefusedName {
            directory,
            name: name.to_vec(),
            error,
        };
        for entry in DirItems::parse(key, data).map_err(broken)? {
            let name = Name::from(entry.name);
            if DirItems::parse(key, &all)
                .map_err(broken)?
                .any(|present| present.name == entry.name)
            {
                return Ok(Some(refuse(entry.name, Error::Exists { name })));
            }
            if all.len().saturating_add(data.len()) > item_bytes_max(self.node_bytes()) {
                return Ok(Some(refuse(entry.name, Error::HashCollision { name })));
            }
        }
        all.extend_from_slice(data);
        self.edit().put(id, key, &all)?;
        Ok(None)
    }
}
