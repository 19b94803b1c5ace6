//! Quotas during writes: keeps simple quotas correct, and marks classic quotas as inconsistent.
//!
//! With simple quotas, an extent counts for the subvolume that made it until it is freed, even if
//! other subvolumes share it. A data extent names the subvolume that made it in the extent item; a
//! tree block names its maker in its header. Extents older than the generation in which quotas were
//! enabled count for no subvolume. A change of a subvolume's quota group also changes the groups
//! above it.
//!
//! Classic quotas would require the writer to follow every reference. For classic quotas, the
//! status item records instead that a rescan is due, once a transaction changed which subvolumes
//! reach an extent. The kernel expects this status on a volume that was changed without quota
//! accounting. The module `quota_tree` enables quotas, and edits groups.
//!
//! Source: on-disk format documentation, sections "QGROUP_STATUS", "QGROUP_INFO",
//! "QGROUP_RELATION", "EXTENT_OWNER_REF"; btrfs-quota(8), section "Simple quotas".

use crate::quotas::QuotaMode;
use crate::running_parts::QuotaTree;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, ItemError, ItemType, Key, ObjectId, QgroupId, QgroupInfo, QgroupStatus, QgroupStatusFlags,
    TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use std::collections::BTreeSet;

/// The error of a quota item that cannot be parsed.
pub(crate) fn broken(error: ItemError) -> Error {
    Corruption::Item {
        tree: TreeId::QUOTA,
        error,
    }
    .into()
}

impl QuotaTree<'_> {
    /// Loads the kind of quotas that the volume uses.
    pub fn load(&mut self) -> Result<()> {
        let found = match self.running.get(TreeId::QUOTA, &QgroupStatus::KEY) {
            Ok(found) => found,
            Err(Error::TreeNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some(found) = found else {
            return Ok(());
        };
        let status = QgroupStatus::parse(&QgroupStatus::KEY, found.data()).map_err(broken)?;
        self.running.core.quotas.mode = match status.enable_generation {
            _ if !status.flags.contains(QgroupStatusFlags::ON) => QuotaMode::Off,
            Some(enabled) if status.flags.contains(QgroupStatusFlags::SIMPLE_MODE) => {
                QuotaMode::Simple { enabled }
            }
            _ => QuotaMode::Classic,
        };
        // A program that keeps no counters leaves an older generation. A rescan that a crash cut off
        // leaves its flag.
        let is_cut = status
            .flags
            .intersects(QgroupStatusFlags::INCONSISTENT | QgroupStatusFlags::RESCAN);
        let core = &mut self.running.core;
        if !is_cut && status.generation == core.durable {
            core.quotas.counted = Some(core.durable);
        }
        if self.running.core.quotas.counts_by_maker() {
            self.skip_numbers_of_quota_groups()?;
        }
        Ok(())
    }

    /// Reserves the numbers of all quota groups of subvolumes. With simple quotas, the group of a
    /// deleted subvolume stays while its extents exist, so a new subvolume must not get its number.
    fn skip_numbers_of_quota_groups(&mut self) -> Result<()> {
        let last = QgroupInfo::key(QgroupId::LAST_OF_SUBVOLUMES);
        let Some(found) = self.running.at_or_before(TreeId::QUOTA, &last)? else {
            return Ok(());
        };
        let key = found.key();
        let is_group = (key.objectid, key.item_type) == (last.objectid, last.item_type);
        if is_group && TreeId::new(key.offset).as_subvolume().is_some() {
            let next = self.running.inode_items().next_number(TreeId::ROOT)?;
            let after = key.offset.exact_add(1);
            self.running
                .inodes
                .next_numbers
                .insert(TreeId::ROOT, next.max(after));
        }
        Ok(())
    }

    /// Reads the tree blocks of all items that [`QuotaTree::write`] edits.
    pub fn reach_changed(&mut self) -> Result<()> {
        let changed: Vec<TreeId> = self.running.core.quotas.changes.keys().copied().collect();
        for tree in changed {
            for group in self.group_and_above(QgroupId::new(tree.get()))? {
                self.running.reach(TreeId::QUOTA, &QgroupInfo::key(group))?;
            }
        }
        if self.status_is_due() {
            self.running.reach(TreeId::QUOTA, &QgroupStatus::KEY)?;
        }
        Ok(())
    }

    /// Updates the quota items. Returns whether any quota change was pending.
    pub fn write(&mut self) -> Result<bool> {
        let changes = core::mem::take(&mut self.running.core.quotas.changes);
        let mut any = false;
        for (tree, by) in changes.into_iter().filter(|(_, by)| *by != 0) {
            any = true;
            for group in self.group_and_above(QgroupId::new(tree.get()))? {
                self.change_group(group, by)?;
            }
        }
        if self.status_is_due() {
            let needs_rescan = self.needs_rescan();
            self.change_status(|status| {
                if needs_rescan {
                    status.flags.insert(QgroupStatusFlags::INCONSISTENT);
                    // Linux would continue an interrupted rescan with counters of another state.
                    status.flags.remove(QgroupStatusFlags::RESCAN);
                }
            })?;
            self.running.core.quotas.status_written = Some(needs_rescan);
            any = true;
        }
        Ok(any)
    }

    /// Returns whether counters of classic quotas are wrong after this transaction.
    fn needs_rescan(&self) -> bool {
        let (quotas, generation) = (&self.running.core.quotas, self.running.core.generation);
        let is_wrong = quotas.counted.is_none() || quotas.files_changed >= generation;
        quotas.mode == QuotaMode::Classic && is_wrong
    }

    /// Returns whether the quota status item must be written in this transaction.
    fn status_is_due(&self) -> bool {
        let quotas = &self.running.core.quotas;
        let is_recorded = quotas
            .status_written
            .is_some_and(|known| known || !self.needs_rescan());
        quotas.mode != QuotaMode::Off && !is_recorded
    }

    /// Changes the quota status item, and records the running transaction in it.
    pub(crate) fn change_status(&mut self, change: impl FnOnce(&mut QgroupStatus)) -> Result<()> {
        let Some(found) = self.running.get(TreeId::QUOTA, &QgroupStatus::KEY)? else {
            return Ok(());
        };
        let mut status = QgroupStatus::parse(&QgroupStatus::KEY, found.data()).map_err(broken)?;
        status.generation = self.running.core.generation;
        change(&mut status);
        self.running
            .put(TreeId::QUOTA, &QgroupStatus::KEY, &status.encode())
    }

    /// Returns a quota group and all groups above it. Groups that do not exist are left out.
    pub(crate) fn group_and_above(&mut self, group: QgroupId) -> Result<BTreeSet<QgroupId>> {
        let mut found = BTreeSet::new();
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            let is_there = self
                .running
                .get(TreeId::QUOTA, &QgroupInfo::key(group))?
                .is_some();
            if is_there && found.insert(group) {
                waiting.extend(self.groups_above(group)?);
            }
        }
        Ok(found)
    }

    /// Changes the referenced bytes of a quota group.
    pub(crate) fn change_group(&mut self, group: QgroupId, by: i64) -> Result<()> {
        let key = QgroupInfo::key(group);
        let Some(found) = self.running.get(TreeId::QUOTA, &key)? else {
            return Ok(());
        };
        let mut info = QgroupInfo::parse(&key, found.data()).map_err(broken)?;
        let change = |bytes: &mut ByteCount| {
            // Clamp: a group whose counters another program left too low counts from zero.
            *bytes = ByteCount::new(bytes.get().saturating_add_signed(by));
        };
        change(&mut info.referenced);
        change(&mut info.exclusive);
        // As in Linux, simple quotas keep no counters after compression.
        if self.running.core.quotas.mode == QuotaMode::Classic {
            change(&mut info.referenced_compressed);
            change(&mut info.exclusive_compressed);
        }
        info.generation = self.running.core.generation;
        self.running.core.quota_limits.note_change(group, by);
        self.running.put(TreeId::QUOTA, &key, &info.to_bytes())
    }

    fn groups_above(&mut self, group: QgroupId) -> Result<Vec<QgroupId>> {
        let mut above = Vec::new();
        let mut key = Key::new(ObjectId::new(group.get()), ItemType::QGROUP_RELATION, 0);
        while let Some(found) = self.running.at_or_after(TreeId::QUOTA, &key)? {
            let found = found.key();
            if found.objectid != key.objectid || found.item_type != ItemType::QGROUP_RELATION {
                break;
            }
            let other = QgroupId::new(found.offset);
            if other.level() > group.level() {
                above.push(other);
            }
            let Some(next) = found.successor() else {
                break;
            };
            key = next;
        }
        Ok(above)
    }
}
