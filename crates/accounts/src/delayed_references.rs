//! Delayed references: the running transaction's changes of references to extents.
//!
//! Every copy of a tree block and every file extent item changes reference counts in the extent
//! tree. If each change was applied immediately, small edits would pay for edits of another large
//! tree; collected, most changes cancel out. Changes are therefore collected here, merged by extent
//! and by reference. A commit of the writer applies the remaining changes in order of address.
//!
//! Invariants:
//! - An extent that this transaction created has [`Pending::created`], and all its references are
//!   here.
//! - A change with sum zero is dropped.
//! - The number of references of an extent is the extent tree's number plus [`Pending::sum`].

use crate::back_references::DelayedReferencesOf;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, InodeNumber, Key, Logical, TreeId};
use buttress_fs::error::Defect;
use std::collections::BTreeMap;

mod changes;
pub use changes::Changes;

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A keyed reference of a tree to one of its blocks.
    TreeBlock {
        /// The tree that owns the block.
        root: TreeId,
    },
    /// A full back reference of a block to its child, by the block's own address.
    SharedBlock {
        /// The address of the parent block.
        parent: Logical,
    },
    /// A keyed reference of one file's items to data.
    Data {
        /// The tree of the file.
        root: TreeId,
        /// The inode number of the file.
        inode: InodeNumber,
        /// The file offset at which the extent's first byte would lie; wraps below zero.
        offset: u64,
    },
    /// A full back reference of one leaf's items to data, by the leaf's address.
    SharedData {
        /// The address of the leaf.
        parent: Logical,
    },
}

/// The kind of an extent: data or a tree block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// File content.
    Data,
    /// A tree block of this level.
    TreeBlock {
        /// The level of the tree block.
        level: u8,
    },
}

/// Facts for the item of a new extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The tree that allocated the extent.
    pub owner: TreeId,
    /// The first key of a tree block.
    pub first_key: Option<Key>,
}

/// The pending changes of one extent.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The length of the extent, in bytes.
    pub length: ByteCount,
    /// The kind of the extent.
    pub kind: ExtentKind,
    /// True if this transaction allocated the extent.
    pub created: Option<Created>,
    /// The tree for which a tree block was made, if the edit that dropped its reference knew it.
    pub owner: Option<TreeId>,
    /// Changes of reference counts, never zero.
    pub changes: Changes,
    /// Whether the block's references to its children change to full back references.
    pub full_backref: bool,
}

impl Pending {
    /// Returns the change of the number of references.
    pub fn sum(&self) -> i64 {
        self.changes
            .iter()
            .fold(0_i64, |sum, (_, change)| sum.exact_add(*change))
    }

    /// Returns whether no change is pending.
    fn is_void(&self) -> bool {
        self.created.is_none() && self.changes.is_empty() && !self.full_backref
    }
}

/// All delayed references of the running transaction.
#[derive(Debug, Default)]
pub struct DelayedReferences {
    pending: BTreeMap<Logical, Pending>,
    /// The sum of all queued changes; `applied` is the sum of the applied ones.
    queued: i128,
    applied: i128,
    /// How often some were taken out.
    taken: u64,
}

impl DelayedReferences {
    /// Returns the number of extents with pending changes.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether no change is pending.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns all extents with pending changes, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (&Logical, &Pending)> {
        self.pending.iter()
    }

    /// Returns the pending changes of the extent at this address.
    pub fn get(&self, logical: Logical) -> Option<&Pending> {
        self.pending.get(&logical)
    }

    /// Returns the pending changes of these extents.
    #[must_use]
    pub fn of_extents(&self, extents: &[Logical]) -> DelayedReferencesOf {
        let waiting = |extent: &Logical| Some((*extent, self.get(*extent)?.clone()));
        extents.iter().filter_map(waiting).collect()
    }

    /// Adds a new extent with one reference.
    pub fn create(
        &mut self,
        logical: Logical,
        length: ByteCount,
        kind: ExtentKind,
        created: Created,
        reference: Reference,
    ) {
        self.entry(logical, length, kind).created = Some(created);
        self.change(logical, length, kind, reference, 1);
    }

    /// Changes the count of one reference.
    pub fn change(
        &mut self,
        logical: Logical,
        length: ByteCount,
        kind: ExtentKind,
        reference: Reference,
        by: i64,
    ) {
        self.queued = self.queued.exact_add(i128::from(by));
        let entry = self.entry(logical, length, kind);
        entry.changes.add(reference, by);
        if entry.is_void() {
            self.pending.remove(&logical);
        }
    }

    /// Drops a tree's reference to a block that was made for `owner`.
    pub fn let_go(
        &mut self,
        logical: Logical,
        length: ByteCount,
        level: u8,
        reference: Reference,
        owner: TreeId,
    ) {
        let kind = ExtentKind::TreeBlock { level };
        self.change(logical, length, kind, reference, -1);
        if let Some(pending) = self.pending.get_mut(&logical) {
            pending.owner = Some(owner);
        }
    }

    /// Records that the block's references to its children become full back references.
    pub fn set_full_backref(&mut self, logical: Logical, length: ByteCount, level: u8) {
        self.entry(logical, length, ExtentKind::TreeBlock { level })
            .full_backref = true;
    }

    /// Returns how often [`take_first`](Self::take_first) removed changes. While the number stays, every later change is
    /// still queued.
    #[must_use]
    pub const fn times_taken(&self) -> u64 {
        self.taken
    }

    /// Removes and returns the changes of the first `count` extents, in order of address.
    pub fn take_first(&mut self, count: usize) -> Vec<(Logical, Pending)> {
        self.taken = self.taken.exact_add(1);
        core::iter::from_fn(|| self.pending.pop_first())
            .take(count)
            .collect()
    }

    /// Records that removed changes are now in the extent tree.
    pub fn note_applied(&mut self, pending: &Pending) {
        self.applied = self.applied.exact_add(i128::from(pending.sum()));
    }

    /// Checks that all queued changes are pending or applied.
    ///
    /// # Errors
    /// Fails with a [`Defect`] if some queued change is neither pending nor applied.
    pub fn balance(&self) -> Result<(), Defect> {
        let waiting = self.pending.values().map(|pending| i128::from(pending.sum()));
        let waiting = waiting.fold(0_i128, i128::exact_add);
        if self.applied.exact_add(waiting) == self.queued {
            return Ok(());
        }
        let what = "delayed references were queued that were not applied, or the other way round";
        Err(Defect::new(what)
            .with("queued", self.queued)
            .with("applied", self.applied)
            .with("waiting", waiting))
    }

    fn entry(&mut self, logical: Logical, length: ByteCount, kind: ExtentKind) -> &mut Pending {
        self.pending.entry(logical).or_insert_with(|| Pending {
            length,
            kind,
            created: None,
            owner: None,
            changes: Changes::default(),
            full_backref: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: ExtentKind = ExtentKind::TreeBlock { level: 0 };
    const NODE: ByteCount = ByteCount::new(16384);

    fn by_root(root: u64) -> Reference {
        Reference::TreeBlock {
            root: TreeId::new(root),
        }
    }

    #[test]
    fn changes_that_cancel_out_are_forgotten() {
        let mut delayed = DelayedReferences::default();
        let at = Logical::new(1 << 20);
        delayed.change(at, NODE, BLOCK, by_root(5), 1);
        delayed.change(at, NODE, BLOCK, by_root(256), -1);
        assert_eq!(delayed.get(at).map(Pending::sum), Some(0));
        delayed.change(at, NODE, BLOCK, by_root(5), -1);
        delayed.change(at, NODE, BLOCK, by_root(256), 1);
        assert!(delayed.is_empty());
    }

    #[test]
    fn a_created_extent_stays_known_without_references() {
        let mut delayed = DelayedReferences::default();
        let at = Logical::new(1 << 20);
        let created = Created {
            owner: TreeId::FS,
            first_key: None,
        };
        delayed.create(at, NODE, BLOCK, created, by_root(5));
        delayed.change(at, NODE, BLOCK, by_root(5), -1);
        let taken = delayed.take_first(2);
        let [(logical, pending)] = taken.as_slice() else {
            panic!("{taken:?}");
        };
        assert_eq!((*logical, pending.sum(), pending.created), (at, 0, Some(created)));
        assert!(delayed.is_empty());
    }

    #[test]
    fn a_flag_alone_is_work() {
        let mut delayed = DelayedReferences::default();
        delayed.set_full_backref(Logical::new(4096), NODE, 1);
        assert_eq!(delayed.len(), 1);
        assert!(delayed.get(Logical::new(4096)).unwrap().full_backref);
    }
}
