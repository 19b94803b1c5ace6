//! Quotas: their state, quota groups, limits, and the rescan.

use super::Volume;
#[cfg(feature = "write")]
use super::WritableVolume;
use crate::error::Result;
use crate::quota::QuotaGroups;
#[cfg(feature = "write")]
use crate::quota::{QgroupId, QuotaKind, QuotaLimit, Rescanned};
use buttress_accounts::Accounts as _;
#[cfg(feature = "write")]
use buttress_fs::Progress;

impl Volume {
    /// Returns the quota groups with their counters, limits and relations, or `None` if quotas are
    /// off.
    ///
    /// # Errors
    /// Fails if the quota tree cannot be read.
    pub fn quota_groups(&self) -> Result<Option<QuotaGroups>> {
        Ok(self.view().quota_groups()?)
    }
}

/// Changes of quotas are durable after the next [`sync`](WritableVolume::sync).
#[cfg(feature = "write")]
impl WritableVolume {
    /// Enables quotas. Every subvolume gets a quota group. Classic quotas are counted by
    /// [`rescan_quotas`](Self::rescan_quotas); simple quotas count what is written after the next
    /// commit. Returns false if the volume has quotas already.
    ///
    /// ```
    /// # let memory = buttress::Device::memory(vec![0; 256 << 20]);
    /// # let volume = buttress::Volume::create().on_devices(vec![memory])?;
    /// use buttress::{Progress, quota::QuotaKind};
    ///
    /// volume.root().write("letter", vec![7; 100_000])?;
    /// volume.enable_quotas(QuotaKind::Classic)?;
    /// volume.rescan_quotas(&Progress::new())?;
    /// let groups = volume.quota_groups()?.unwrap();
    /// assert!(groups.groups.values().all(|group| group.info.referenced.get() > 100_000));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the root tree cannot be read, or no space is free.
    pub fn enable_quotas(&self, kind: QuotaKind) -> Result<bool> {
        Ok(self.writer().quotas().enable(kind)?)
    }

    /// Disables quotas, and removes all quota groups. Returns false if the volume has no quotas.
    ///
    /// # Errors
    /// Fails if the quota tree cannot be read.
    pub fn disable_quotas(&self) -> Result<bool> {
        Ok(self.writer().quotas().disable()?)
    }

    /// Counts classic quotas, and commits the counters. Deleted subvolumes are dropped before.
    /// Later changes of files make the counters inexact, until the next rescan.
    ///
    /// # Errors
    /// Fails if quotas are off or simple, the job is cancelled, or a tree cannot be read.
    pub fn rescan_quotas(&self, progress: &Progress) -> Result<Rescanned> {
        Ok(self.writer().quotas().rescan(progress)?)
    }

    /// Disables simple quotas, and removes all that they leave on disk: the maker of each extent, and
    /// the feature flag, without which older kernels mount the volume. Nothing else may use the
    /// volume meanwhile. After a cancellation or a crash, the same call finishes the removal.
    ///
    /// # Errors
    /// Fails if the volume has classic quotas, or no trace of simple quotas; if the job is cancelled;
    /// or with an error of a commit.
    pub fn remove_simple_quotas(&self, progress: &Progress) -> Result<()> {
        Ok(self.writer().quotas().remove_simple(progress)?)
    }

    /// Makes a quota group of level 1 or higher.
    ///
    /// # Errors
    /// Fails if quotas are off, the group exists, or the id belongs to a subvolume.
    pub fn create_quota_group(&self, group: QgroupId) -> Result<()> {
        Ok(self.writer().quotas().create_group(group)?)
    }

    /// Removes a quota group.
    ///
    /// # Errors
    /// Fails if quotas are off, the group does not exist, has members, or is in use by its
    /// subvolume.
    pub fn destroy_quota_group(&self, group: QgroupId) -> Result<()> {
        Ok(self.writer().quotas().destroy_group(group)?)
    }

    /// Makes a quota group a member of a group of a higher level. Returns whether the counters
    /// need a rescan.
    ///
    /// # Errors
    /// Fails if quotas are off, a group does not exist, the levels are wrong, or the group is a
    /// member already.
    pub fn assign_quota_group(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        Ok(self.writer().quotas().assign_group(member, parent)?)
    }

    /// Ends the membership of a quota group in another one. Returns whether the counters need a
    /// rescan.
    ///
    /// # Errors
    /// Fails if quotas are off, a group does not exist, or the group is not a member.
    pub fn unassign_quota_group(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        Ok(self.writer().quotas().unassign_group(member, parent)?)
    }

    /// Sets or removes a limit of a quota group.
    ///
    /// # Errors
    /// Fails if quotas are off, or the group does not exist.
    pub fn limit_quota_group(&self, group: QgroupId, limit: QuotaLimit) -> Result<()> {
        Ok(self.writer().quotas().limit_group(group, limit)?)
    }

    /// Removes the quota groups of subvolumes that no longer exist, and returns them.
    ///
    /// # Errors
    /// Fails if quotas are off, or the quota tree cannot be read.
    pub fn clear_stale_quota_groups(&self) -> Result<Vec<QgroupId>> {
        Ok(self.writer().quotas().clear_stale_groups()?)
    }
}
