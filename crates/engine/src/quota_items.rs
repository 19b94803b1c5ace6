//! Quotas during writes: keeps simple quotas correct, and marks classic quotas as inconsistent.
//!
//! With simple quotas, an extent counts for the subvolume that made it until it is freed, even if
//! other subvolumes share it. A data extent names the subvolume that made it in the extent item; a
//! tree block names its maker in its header. Extents older than the generation in which quotas were
//! enabled count for no subvolume. A change of a subvolume's quota group also changes the groups
//! above it. The writer does not enforce quota limits.
//!
//! Classic quotas would require the writer to follow every reference. For classic quotas, the
//! status item records instead that a rescan is due. The kernel expects this status on a volume
//! that was changed without quota accounting.
//!
//! Source: on-disk format documentation, sections "QGROUP_STATUS", "QGROUP_INFO",
//! "QGROUP_RELATION", "EXTENT_OWNER_REF"; btrfs-quota(8), section "Simple quotas".

use crate::quotas::QuotaMode;
use crate::running::Running;
use buttress_format::{
    ByteCount, ItemError, ItemType, Key, ObjectId, QgroupId, QgroupInfo, QgroupLimit, QgroupLimitFlags,
    QgroupStatus, QgroupStatusFlags, SubvolumeId, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use std::collections::BTreeSet;

fn broken(error: ItemError) -> Error {
    Corruption::Item {
        tree: TreeId::QUOTA,
        error,
    }
    .into()
}

impl Running {
    /// Loads the kind of quotas that the volume uses.
    pub fn load_quotas(&mut self) -> Result<()> {
        let found = match self.get(TreeId::QUOTA, &QgroupStatus::KEY) {
            Ok(found) => found,
            Err(Error::TreeNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some(found) = found else {
            return Ok(());
        };
        let status = QgroupStatus::parse(&QgroupStatus::KEY, found.data()).map_err(broken)?;
        self.core.quotas.mode = match status.enable_generation {
            _ if !status.flags.contains(QgroupStatusFlags::ON) => QuotaMode::Off,
            Some(enabled) if status.flags.contains(QgroupStatusFlags::SIMPLE_MODE) => {
                QuotaMode::Simple { enabled }
            }
            _ => QuotaMode::Classic,
        };
        Ok(())
    }

    /// Reads the tree blocks of all items that [`Running::write_quotas`] edits.
    pub fn look_at_quotas(&mut self) -> Result<()> {
        let changed: Vec<TreeId> = self.core.quotas.changes.keys().copied().collect();
        for tree in changed {
            for group in self.group_and_above(QgroupId::new(tree.get()))? {
                self.reach(TreeId::QUOTA, &QgroupInfo::key(group))?;
            }
        }
        if self.core.quotas.mode != QuotaMode::Off && !self.core.quotas.status_written {
            self.reach(TreeId::QUOTA, &QgroupStatus::KEY)?;
        }
        Ok(())
    }

    /// Updates the quota items. Returns whether any quota change was pending.
    pub fn write_quotas(&mut self) -> Result<bool> {
        let changes = core::mem::take(&mut self.core.quotas.changes);
        let mut any = false;
        for (tree, by) in changes.into_iter().filter(|(_, by)| *by != 0) {
            any = true;
            for group in self.group_and_above(QgroupId::new(tree.get()))? {
                self.change_group(group, by)?;
            }
        }
        if self.core.quotas.mode != QuotaMode::Off && !self.core.quotas.status_written {
            self.core.quotas.status_written = true;
            self.write_quota_status()?;
            any = true;
        }
        Ok(any)
    }

    fn write_quota_status(&mut self) -> Result<()> {
        let Some(found) = self.get(TreeId::QUOTA, &QgroupStatus::KEY)? else {
            return Ok(());
        };
        let mut status = QgroupStatus::parse(&QgroupStatus::KEY, found.data()).map_err(broken)?;
        status.generation = self.core.generation;
        if self.core.quotas.mode == QuotaMode::Classic {
            status.flags.insert(QgroupStatusFlags::INCONSISTENT);
        }
        self.put(TreeId::QUOTA, &QgroupStatus::KEY, &status.encode())
    }

    /// Returns a quota group and all groups above it.
    fn group_and_above(&mut self, group: QgroupId) -> Result<BTreeSet<QgroupId>> {
        let mut found = BTreeSet::new();
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            let is_there = self.get(TreeId::QUOTA, &QgroupInfo::key(group))?.is_some();
            if is_there && found.insert(group) {
                waiting.extend(self.groups_above(group)?);
            }
        }
        Ok(found)
    }

    /// Changes the referenced bytes of a quota group.
    fn change_group(&mut self, group: QgroupId, by: i64) -> Result<()> {
        let key = QgroupInfo::key(group);
        let Some(found) = self.get(TreeId::QUOTA, &key)? else {
            return Ok(());
        };
        let mut info = QgroupInfo::parse(&key, found.data()).map_err(broken)?;
        for bytes in [
            &mut info.referenced,
            &mut info.referenced_compressed,
            &mut info.exclusive,
            &mut info.exclusive_compressed,
        ] {
            *bytes = ByteCount::new(bytes.get().saturating_add_signed(by));
        }
        info.generation = self.core.generation;
        self.put(TreeId::QUOTA, &key, &info.to_bytes())
    }

    fn groups_above(&mut self, group: QgroupId) -> Result<Vec<QgroupId>> {
        let mut above = Vec::new();
        let mut key = Key::new(ObjectId::new(group.get()), ItemType::QGROUP_RELATION, 0);
        while let Some(found) = self.at_or_after(TreeId::QUOTA, &key)? {
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

    /// Makes a quota group for a new subvolume, if the volume has quotas.
    pub fn make_quota_group(&mut self, subvolume: SubvolumeId) -> Result<()> {
        if self.core.quotas.mode == QuotaMode::Off {
            return Ok(());
        }
        let group = QgroupId::new(subvolume.get());
        let info = QgroupInfo {
            group,
            generation: self.core.generation,
            referenced: ByteCount::ZERO,
            referenced_compressed: ByteCount::ZERO,
            exclusive: ByteCount::ZERO,
            exclusive_compressed: ByteCount::ZERO,
        };
        let limit = QgroupLimit {
            group,
            flags: QgroupLimitFlags::empty(),
            max_referenced: ByteCount::ZERO,
            max_exclusive: ByteCount::ZERO,
            reserved_referenced: ByteCount::ZERO,
            reserved_exclusive: ByteCount::ZERO,
        };
        self.put(TreeId::QUOTA, &QgroupInfo::key(group), &info.to_bytes())?;
        self.put(TreeId::QUOTA, &QgroupLimit::key(group), &limit.to_bytes())
    }
}
