//! The extents one by one: whether somebody else uses one, and which have been counted.

use super::leaves::Extent;
use super::owners::Owner;
use super::sets::{SetId, Sets, members};
use buttress_format::{ByteCount, Logical};
use std::collections::HashMap;

/// All data extents that files refer to, in order of address.
#[derive(Debug)]
pub struct ExtentTable {
    list: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    logical: Logical,
    disk: ByteCount,
    is_shared: bool,
}

/// One extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its place in the table.
    pub index: usize,
    /// What it takes up on disk.
    pub disk: ByteCount,
    /// Whether more than one file refers to it: of one subvolume, or the same file of several.
    pub is_shared: bool,
}

impl ExtentTable {
    pub(super) fn new(extents: Vec<Extent>, sets: &Sets, owners: &[Owner]) -> Self {
        // Owners of one subvolume are not others to each other: files are told apart by their inodes.
        let mut known: HashMap<SetId, bool> = HashMap::new();
        let mut is_of_several = |set: SetId| {
            *known.entry(set).or_insert_with(|| {
                let mut trees = members(sets.runs(set))
                    .filter_map(|owner| owners.get(usize::try_from(owner).ok()?))
                    .map(|owner| owner.tree);
                let first = trees.next();
                trees.any(|tree| Some(tree) != first)
            })
        };
        let list = extents
            .into_iter()
            .map(|extent| Entry {
                logical: Logical::new(extent.logical),
                disk: ByteCount::new(extent.disk_bytes),
                is_shared: extent.several_inodes || is_of_several(extent.set),
            })
            .collect();
        Self { list }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The extent that begins at `logical`.
    #[must_use]
    pub fn get(&self, logical: Logical) -> Option<Owned> {
        let index = self
            .list
            .binary_search_by_key(&logical, |entry| entry.logical)
            .ok()?;
        self.list.get(index).map(|entry| Owned {
            index,
            disk: entry.disk,
            is_shared: entry.is_shared,
        })
    }
}
