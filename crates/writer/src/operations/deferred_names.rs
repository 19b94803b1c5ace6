//! Inserts the deferred names of unfinished subvolumes into their directories, in order of their
//! keys.
//!
//! The leaves of the directories are read ahead of the edits, side by side. Each operation inserts
//! some deferred names, which are then in the tree. Other threads may acquire the edit lock between
//! two operations, and commits may run.
//!
//! If the directory already has a deferred name, the insertion fails, not the earlier call that
//! made the name. A deferred name whose insertion fails stays deferred, and its subvolume cannot be
//! finished.

use super::Operation;
use crate::WritableFilesystem;
use crate::areas::Subvolumes;
use buttress_engine::reservation::Need;
use buttress_engine::trees::LiveTree;
use buttress_exact::u64_of;
use buttress_format::limits::item_bytes_max;
use buttress_format::{DirItems, InodeNumber, Key, SubvolumeId};
use buttress_fs::error::{Corruption, Error, Name, Result};
use buttress_fs::location::Location;
use buttress_tree::{EditContext, EditableTree, HeldMemory};

/// The number of names that one operation inserts, and whose leaves are read ahead together.
const NAMES_AT_ONCE: usize = 128;
const NAMES_READ_FOR: usize = 1024;

/// A deferred name that cannot be inserted into its directory.
#[derive(Clone, Debug)]
pub struct RefusedName {
    /// The directory.
    pub directory: Location,
    /// The name.
    pub name: Vec<u8>,
    /// The cause: [`Error::Exists`] or [`Error::HashCollision`].
    pub error: Error,
}

impl Subvolumes<'_> {
    /// Starts to keep new names of an unfinished subvolume in memory, until
    /// [`put_names`](Self::put_names), or until the subvolume is finished or copied. The check
    /// whether a directory already has a name also moves to the time of insertion.
    ///
    /// # Errors
    /// Fails with [`Error::SubvolumeNotFound`], or with an error of the tree.
    pub fn defer_names(&self, subvolume: SubvolumeId) -> Result<()> {
        self.filesystem.read_under_lock(|operation| {
            operation.require_unfinished(subvolume)?;
            let tree = &operation.lookups().open_tree(subvolume.tree())?.tree;
            tree.set_defers_names(true);
            Ok(())
        })
    }

    /// Returns the most names that should be deferred: they share memory with other dirty state.
    #[must_use]
    pub fn deferred_names_max(&self) -> u64 {
        self.filesystem.waiting_bytes_max().get() >> 10
    }

    /// Inserts the waiting names into their directories. Stops at the first deferred name that
    /// cannot be inserted, and returns it.
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`], or with an error of the tree, or with the error that stopped
    /// writing.
    pub fn put_names(&self, subvolume: SubvolumeId) -> Result<Option<RefusedName>> {
        let Some(tree) = self.filesystem.live_trees().get(subvolume.tree()) else {
            return Ok(None);
        };
        while tree.names_waiting() > 0 {
            let keys = tree.with_names(|names| names.first(NAMES_READ_FOR));
            let places: Vec<(Key, Key)> = keys.iter().map(|key| (*key, *key)).collect();
            self.filesystem.fault_in_places(subvolume.tree(), &places)?;
            for part in keys.chunks(NAMES_AT_ONCE) {
                let need = Need::places(u64_of(part.len()));
                let refused = self
                    .filesystem
                    .operate(need, |operation| operation.put_names(subvolume, &tree, part))?;
                if refused.is_some() {
                    return Ok(refused);
                }
            }
        }
        Ok(None)
    }

    /// Inserts the deferred names as [`put_names`](Self::put_names) does, and returns an error for
    /// a name that cannot be inserted.
    pub(super) fn put_all_names(&self, subvolume: SubvolumeId) -> Result<()> {
        match self.put_names(subvolume)? {
            None => Ok(()),
            Some(refused) => Err(refused.error),
        }
    }
}

impl WritableFilesystem {
    /// Reserves memory of the volume's budget for a job that makes a whole subvolume, until the
    /// value is dropped.
    #[must_use]
    pub fn hold_memory(&self) -> HeldMemory {
        self.forest().hold_unread()
    }
}

impl Operation<'_> {
    /// Inserts the names that are deferred under these keys into the tree.
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

    /// Inserts names into an existing item that already holds names of the same hash, or the same
    /// names.
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
