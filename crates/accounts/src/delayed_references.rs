//! Delayed references: what the running transaction changed about who refers to which extent.
//!
//! Every copy of a tree block and every file extent item changes reference counts in the extent tree. Doing that at
//! once would make each small edit pay for edits of another large tree, and most of them cancel out. So changes wait
//! here, merged by extent and by reference, and a commit applies what is left in order of address
//! (the writer).
//!
//! Invariants: an extent that this transaction created has [`Pending::created`]; its references are all here. A change
//! whose sum is zero is forgotten. Whoever asks how many references an extent has must add [`Pending::sum`] to what the
//! extent tree says.

use crate::back_references::DelayedReferencesOf;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, InodeNumber, Key, Logical, TreeId};
use buttress_fs::error::Defect;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Who refers to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A tree refers to one of its blocks.
    TreeBlock {
        /// The tree.
        root: TreeId,
    },
    /// A block refers to the block below it, by its own address.
    SharedBlock {
        /// The block above.
        parent: Logical,
    },
    /// Items of one file refer to data.
    Data {
        /// The tree of the file.
        root: TreeId,
        /// The file.
        inode: InodeNumber,
        /// Where in the file the extent's first byte would lie; wraps below zero.
        offset: u64,
    },
    /// Items of one leaf refer to data, by the leaf's address.
    SharedData {
        /// The leaf.
        parent: Logical,
    },
}

/// What kind of extent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// File content.
    Data,
    /// A tree block of this level.
    TreeBlock {
        /// Its level.
        level: u8,
    },
}

/// What a new extent's item needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The tree that allocated it.
    pub owner: TreeId,
    /// The first key of a tree block.
    pub first_key: Option<Key>,
}

/// What waits for one extent.
#[derive(Clone, Debug)]
pub struct Pending {
    /// How long the extent is.
    pub length: ByteCount,
    /// What it holds.
    pub kind: ExtentKind,
    /// Set for extents that this transaction allocated.
    pub created: Option<Created>,
    /// The tree that a tree block was made for, where whoever let go of it knew.
    pub owner: Option<TreeId>,
    /// Changes of counts; never zero.
    pub changes: SmallVec<[(Reference, i64); 2]>,
    /// The block's own references change to full back references.
    pub full_backref: bool,
}

impl Pending {
    /// By how much the number of references changes.
    pub fn sum(&self) -> i64 {
        self.changes
            .iter()
            .fold(0_i64, |sum, (_, change)| sum.exact_add(*change))
    }

    /// Whether nothing is left to do.
    fn is_void(&self) -> bool {
        self.created.is_none() && self.changes.is_empty() && !self.full_backref
    }
}

/// All changes that wait.
#[derive(Debug, Default)]
pub struct DelayedReferences {
    pending: BTreeMap<Logical, Pending>,
    /// The sum of all changes that were queued, and that of those that were applied.
    queued: i128,
    applied: i128,
}

impl DelayedReferences {
    /// How many extents have changes that wait.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// All extents for which something waits, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (&Logical, &Pending)> {
        self.pending.iter()
    }

    /// What waits for the extent at this address.
    pub fn get(&self, logical: Logical) -> Option<&Pending> {
        self.pending.get(&logical)
    }

    /// What waits for these extents.
    #[must_use]
    pub fn of_extents(&self, extents: &[Logical]) -> DelayedReferencesOf {
        let waiting = |extent: &Logical| Some((*extent, self.get(*extent)?.clone()));
        extents.iter().filter_map(waiting).collect()
    }

    /// A new extent with one reference.
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
        match entry.changes.iter().position(|(other, _)| *other == reference) {
            Some(position) => {
                if let Some((_, count)) = entry.changes.get_mut(position) {
                    *count = count.exact_add(by);
                    if *count == 0 {
                        entry.changes.swap_remove(position);
                    }
                }
            }
            None => entry.changes.push((reference, by)),
        }
        if entry.is_void() {
            self.pending.remove(&logical);
        }
    }

    /// A tree lets go of a block that was made for `owner`.
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

    /// The block's references to what is below it are from now on by its address.
    pub fn set_full_backref(&mut self, logical: Logical, length: ByteCount, level: u8) {
        self.entry(logical, length, ExtentKind::TreeBlock { level })
            .full_backref = true;
    }

    /// Takes out those of the first `count` extents, in order of address.
    pub fn take_first(&mut self, count: usize) -> Vec<(Logical, Pending)> {
        core::iter::from_fn(|| self.pending.pop_first())
            .take(count)
            .collect()
    }

    /// What was taken out is in the extent tree.
    pub fn note_applied(&mut self, pending: &Pending) {
        self.applied = self.applied.exact_add(i128::from(pending.sum()));
    }

    /// Whether all changes that were queued wait or were applied.
    ///
    /// # Errors
    /// When they do not.
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
            changes: SmallVec::new(),
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
