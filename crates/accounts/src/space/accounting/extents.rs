//! The single extents of an account: whether each is shared, and which have been counted.

use super::leaves::Extent;
use super::owners::Owner;
use super::sets::{SetId, Sets, members};
use buttress_format::{ByteCount, Logical};
use std::collections::HashMap;

/// All data extents to which files refer, in order of address.
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

/// An extent of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The position of the extent in the table.
    pub index: usize,
    /// The length of the extent on disk.
    pub disk: ByteCount,
    /// Whether more than one file refers to the extent: several files of one subvolume, or files of
    /// several subvolumes.
    pub is_shared: bool,
}

impl ExtentTable {
    pub(super) fn new(extents: Vec<Extent>, sets: &Sets, owners: &[Owner]) -> Self {
        // Several owners of one subvolume count as one here; its files are distinguished by their
        // inodes.
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

    /// Returns the number of extents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there are no extents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the extent that begins at `logical`.
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
