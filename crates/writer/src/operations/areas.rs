//! The parts of an operation: a borrowed handle for each kind of items that an operation edits.
//!
//! A handle borrows the [`Operation`] for one call and holds no state. The module of a part adds
//! the part's calls to its handle. [`Operation`] keeps what all parts need: lookups, the first
//! edit, and changes of inodes and directories.

use super::Operation;

/// The file extent items of one operation: inserts, cuts and removes them with their references.
///
/// Invariant: each extent item holds one reference to its extent. An edit changes both.
pub(crate) struct FileItems<'o, 'a> {
    pub(crate) operation: &'o mut Operation<'a>,
}

/// A rename: checks both ends, and moves, replaces or exchanges their entries.
///
/// Invariant: every check and lookup precedes the first edit.
pub(crate) struct Renaming<'o, 'a> {
    pub(crate) operation: &'o mut Operation<'a>,
}

/// The extended attributes of an inode: sets and removes them by the rules of their prefixes.
///
/// Invariant: an attribute of the kernel's own meaning has a valid value.
pub(crate) struct Xattrs<'o, 'a> {
    pub(crate) operation: &'o mut Operation<'a>,
}

/// The removal of an inode without names, in steps of bounded size.
///
/// Invariant: the last step removes the orphan item.
pub(crate) struct OrphanRemoval<'o, 'a> {
    pub(crate) operation: &'o mut Operation<'a>,
}

impl<'a> Operation<'a> {
    /// Returns the calls that edit file extent items.
    pub(crate) const fn file_items(&mut self) -> FileItems<'_, 'a> {
        FileItems { operation: self }
    }

    /// Returns the calls that rename entries.
    pub(crate) const fn renaming(&mut self) -> Renaming<'_, 'a> {
        Renaming { operation: self }
    }

    /// Returns the calls that set and remove extended attributes.
    pub(crate) const fn xattrs(&mut self) -> Xattrs<'_, 'a> {
        Xattrs { operation: self }
    }

    /// Returns the calls that remove the items of an inode.
    pub(crate) const fn orphan_removal(&mut self) -> OrphanRemoval<'_, 'a> {
        OrphanRemoval { operation: self }
    }
}
