//! The quota groups of a volume, and their exact use.
//!
//! [`QuotaGroups`] is the content of the quota tree: the state, and all groups with their counters,
//! limits and relations. [`QuotaGroups::count`] counts classic quotas from the sets of owners of an
//! [`Accounting`]:
//!
//! - a group references an extent or a tree block if any subvolume of the group reaches it;
//! - the space is exclusive to the group if no other subvolume reaches it. A deleted subvolume
//!   counts as another subvolume until it is dropped.
//!
//! Every extent counts as a whole, with its length on disk in one copy. The counts equal those of a
//! rescan by Linux.
//!
//! Left out: simple quotas need the maker of each extent, which the trees of files do not record.

use crate::space::accounting::Accounting;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, ItemError, ItemType, Key, QgroupId, QgroupInfo, QgroupLimit, QgroupRelation, QgroupStatus,
    QgroupStatusFlags, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::{ReadAhead, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A quota group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaGroup {
    /// The counters of the group.
    pub info: QgroupInfo,
    /// The limits of the group.
    pub limit: QgroupLimit,
    /// The groups of which this group is a member.
    pub parents: BTreeSet<QgroupId>,
    /// The members of this group.
    pub members: BTreeSet<QgroupId>,
}

/// The state of quotas, and all quota groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaGroups {
    /// The state of quotas.
    pub status: QgroupStatus,
    /// The groups, in order of their ids.
    pub groups: BTreeMap<QgroupId, QuotaGroup>,
}

/// The bytes that a quota group uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaUse {
    /// The bytes that the group references.
    pub referenced: ByteCount,
    /// The bytes that no other group's subvolumes reference.
    pub exclusive: ByteCount,
}

impl QuotaUse {
    /// Adds bytes. Returns an error if a sum exceeds 64 bits, because the lengths come from disk.
    fn add(&mut self, bytes: Option<ByteCount>, is_exclusive: bool) -> Result<()> {
        let added = |sum: ByteCount| bytes.and_then(|bytes| sum.checked_add(bytes)).ok_or(TOO_BIG);
        self.referenced = added(self.referenced)?;
        if is_exclusive {
            self.exclusive = added(self.exclusive)?;
        }
        Ok(())
    }
}

/// The error of a sum that exceeds 64 bits.
const TOO_BIG: Error = Error::AccountingTooBig {
    what: "bytes in quota groups",
    limit: u64::MAX,
};

fn corrupt(error: ItemError) -> Error {
    let tree = TreeId::QUOTA;
    Corruption::Item { tree, error }.into()
}

impl QuotaGroups {
    /// Reads the quota tree. Returns `None` for a volume without quotas.
    ///
    /// # Errors
    /// Fails if the quota tree cannot be read, or an item cannot be parsed.
    pub(crate) fn read(filesystem: &Filesystem) -> Result<Option<Self>> {
        match filesystem.tree(TreeId::QUOTA) {
            Err(Error::TreeNotFound { .. }) => Ok(None),
            tree => Self::of_tree(&tree?),
        }
    }

    /// Reads this quota tree. Returns `None` if quotas are off.
    ///
    /// # Errors
    /// Fails if a block cannot be read, or an item cannot be parsed.
    pub fn of_tree(tree: &Tree) -> Result<Option<Self>> {
        let mut status = None;
        let mut groups: BTreeMap<QgroupId, QuotaGroup> = BTreeMap::new();
        let mut limits = Vec::new();
        let mut relations = Vec::new();
        for item in tree.range(.., ReadAhead::Forward) {
            let item = item?;
            let key: Key = item.key();
            match key.item_type {
                ItemType::QGROUP_STATUS => {
                    status = Some(QgroupStatus::parse(&key, item.data()).map_err(corrupt)?);
                }
                ItemType::QGROUP_INFO => {
                    let info = QgroupInfo::parse(&key, item.data()).map_err(corrupt)?;
                    let group = QuotaGroup {
                        info,
                        limit: QgroupLimit::none(info.group),
                        parents: BTreeSet::new(),
                        members: BTreeSet::new(),
                    };
                    groups.insert(info.group, group);
                }
                ItemType::QGROUP_LIMIT => {
                    limits.push(QgroupLimit::parse(&key, item.data()).map_err(corrupt)?)
                }
                ItemType::QGROUP_RELATION => {
                    relations.push(QgroupRelation::parse(&key, item.data()).map_err(corrupt)?);
                }
                _ => {}
            }
        }
        for limit in limits {
            if let Some(group) = groups.get_mut(&limit.group) {
                group.limit = limit;
            }
        }
        for relation in relations {
            let (member, parent) = (relation.group, relation.other);
            // The volume stores each relation in both directions.
            if member < parent && groups.contains_key(&member) && groups.contains_key(&parent) {
                if let Some(group) = groups.get_mut(&member) {
                    group.parents.insert(parent);
                }
                if let Some(group) = groups.get_mut(&parent) {
                    group.members.insert(member);
                }
            }
        }
        let on = status.filter(|status| status.flags.contains(QgroupStatusFlags::ON));
        Ok(on.map(|status| Self { status, groups }))
    }

    /// Returns whether the volume has simple quotas.
    #[must_use]
    pub const fn is_simple(&self) -> bool {
        self.status.flags.contains(QgroupStatusFlags::SIMPLE_MODE)
    }

    /// Returns whether the counters need a rescan.
    #[must_use]
    pub const fn is_inconsistent(&self) -> bool {
        self.status.flags.contains(QgroupStatusFlags::INCONSISTENT)
    }

    /// Returns all groups above a group, the group itself excluded.
    #[must_use]
    pub fn above(&self, group: QgroupId) -> BTreeSet<QgroupId> {
        let mut found = BTreeSet::new();
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            let parents = self
                .groups
                .get(&group)
                .into_iter()
                .flat_map(|group| &group.parents);
            waiting.extend(parents.copied().filter(|parent| found.insert(*parent)));
        }
        found
    }

    /// Counts the use of every group from an account of the volume.
    ///
    /// # Errors
    /// Fails if the account has unreadable parts.
    pub fn count(&self, accounting: &Accounting) -> Result<BTreeMap<QgroupId, QuotaUse>> {
        if let Some(failure) = accounting.failures().first() {
            return Err(failure.clone());
        }
        let mut counts: BTreeMap<QgroupId, QuotaUse> = self
            .groups
            .keys()
            .map(|group| (*group, QuotaUse::default()))
            .collect();
        let above = self.higher_groups();
        let mut of_trees: HashMap<TreeId, QuotaUse> = HashMap::new();
        // The number of a set's subvolumes in each higher group.
        let mut inside: BTreeMap<QgroupId, usize> = BTreeMap::new();
        accounting.for_each_set(|trees, occupied| {
            let bytes = occupied.data().checked_add(occupied.metadata);
            for tree in trees {
                of_trees.entry(*tree).or_default().add(bytes, trees.len() == 1)?;
            }
            inside.clear();
            for group in trees.iter().filter_map(|tree| above.get(tree)).flatten() {
                let count = inside.entry(*group).or_default();
                *count = count.exact_add(1);
            }
            for (group, count) in &inside {
                if let Some(sum) = counts.get_mut(group) {
                    sum.add(bytes, *count == trees.len())?;
                }
            }
            Ok(())
        })?;
        for (tree, sum) in of_trees {
            if let Some(count) = counts.get_mut(&QgroupId::new(tree.get())) {
                *count = sum;
            }
        }
        Ok(counts)
    }

    /// Returns the groups above each subvolume that has any.
    fn higher_groups(&self) -> HashMap<TreeId, Vec<QgroupId>> {
        let of_subvolumes = self.groups.keys().filter(|group| group.level() == 0);
        let above = of_subvolumes.map(|group| (TreeId::new(group.get()), self.above(*group)));
        above
            .filter(|(_, above)| !above.is_empty())
            .map(|(tree, above)| (tree, above.into_iter().collect()))
            .collect()
    }
}
