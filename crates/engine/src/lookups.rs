//! A read-only borrow of the running transaction, for operations that read under the edit lock
//! without an edit.
//!
//! [`Running`] has lookups and edits. [`Lookups`] has only the lookups, so the compiler rejects a tree
//! edit in code that gets lookups. A lookup may open a tree, so lookups borrow the transaction
//! exclusively.
//!
//! A read-only call can change state that exists only in memory: open handles of inodes, inherited
//! attributes of a directory, and the log state of inodes. No commit writes this in-memory state.

use super::core_state::Core;
use super::data_extents::DataRange;
use super::inode_table::InodeTable;
use super::log_state::LogState;
use super::need::Need;
use super::removed_names::NameChanges;
use super::running::Running;
use super::trees::OpenTree;
use buttress_format::{Generation, Key, RootItem, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_tree::{EditableTree, OwnedItem, Tree};

/// A read-only borrow of the running transaction.
#[derive(Debug)]
pub struct Lookups<'a>(&'a mut Running);

impl<'a> Lookups<'a> {
    /// Borrows this transaction.
    pub const fn new(running: &'a mut Running) -> Self {
        Self(running)
    }

    /// Borrows again for a later lookup, because each lookup consumes this value.
    pub const fn reborrow(&mut self) -> Lookups<'_> {
        Lookups(self.0)
    }

    /// Returns the state that edits of every tree need: format, features, generations, devices.
    #[must_use]
    pub fn core(self) -> &'a Core {
        &self.0.core
    }

    /// Returns the names that this transaction removed.
    #[must_use]
    pub fn names(self) -> &'a NameChanges {
        &self.0.names
    }

    /// Returns the table of inodes in use.
    #[must_use]
    pub fn inodes(self) -> &'a InodeTable {
        &self.0.inodes
    }

    /// Returns a tree, and opens it if necessary.
    ///
    /// # Errors
    /// Fails with [`Error::TreeNotFound`], or with an error of reading a block.
    pub fn open_tree(self, id: TreeId) -> Result<&'a OpenTree> {
        self.0.open_tree(id).map(|open| &*open)
    }

    /// Returns the root item of a tree, with the changes of this transaction.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does.
    pub fn root_item(self, id: TreeId) -> Result<&'a RootItem> {
        self.0.root_item(id)
    }

    /// Returns the current tree, including uncommitted edits.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does.
    pub fn view(self, id: TreeId) -> Result<Tree> {
        self.0.view(id)
    }

    /// Returns the last item at or before a key.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does.
    pub fn at_or_before(self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        self.0.at_or_before(id, key)
    }

    /// Returns the first item at or after a key.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does.
    pub fn at_or_after(self, id: TreeId, key: &Key) -> Result<Option<OwnedItem>> {
        self.0.at_or_after(id, key)
    }

    /// Returns the number that the next new inode or subvolume of a tree gets.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does, or if no number is left.
    pub fn next_inode_number(self, tree: TreeId) -> Result<u64> {
        self.0.inode_items().next_number(tree)
    }

    /// Returns the index that the next name in a directory gets.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does.
    pub fn next_index(self, directory: Location) -> Result<u64> {
        self.0.inode_items().next_index(directory)
    }

    /// Returns the next index in a directory, found in its tree alone.
    ///
    /// # Errors
    /// Fails as [`open_tree`](Self::open_tree) does.
    pub fn next_index_in_tree(self, directory: Location) -> Result<u64> {
        self.0.inode_items().next_index_in_tree(directory)
    }

    /// Returns the number of references of a data extent.
    ///
    /// # Errors
    /// Fails if a block cannot be read.
    pub fn data_references(self, extent: DataRange) -> Result<u64> {
        self.0.core.data_references(extent)
    }

    /// Returns the error of an edit that finds no space for metadata.
    #[must_use]
    pub fn no_metadata_space(self, need: Need) -> Error {
        self.0.block_reserve().no_metadata_space(need)
    }

    /// Returns an empty log for a subvolume.
    #[must_use]
    pub fn new_log(self, generation: Generation) -> EditableTree {
        self.0.log_space().new_log(generation)
    }

    /// Changes the log state of an inode.
    pub fn with_log_state<T>(
        self,
        location: Location,
        generation: Generation,
        change: impl FnOnce(&mut LogState) -> T,
    ) -> T {
        self.0.inodes.with_log_state(location, generation, change)
    }
}
