//! Quota groups and limits that a new subvolume inherits, as in Linux.
//!
//! | volume | a new subvolume's group joins | a snapshot's group gets |
//! |---|---|---|
//! | without quotas | no group; requested groups are ignored | nothing |
//! | classic quotas | the requested groups | limits and counters of its source's group |
//! | simple quotas | the requested groups, or the groups of the subvolume that contains it | nothing |
//!
//! With simple quotas, a member's counters are counted for all groups above. With classic quotas the
//! counters of a snapshot hold until the next rescan, which the volume's state asks for.
//!
//! Source: behaviour of Linux 6.18 (`QGROUP_INHERIT`; automatic inheritance since Linux 6.8).

use super::{Access, Operation};
use buttress_engine::quota_tree::{QuotaKind, relation_keys};
use buttress_format::{QgroupId, QgroupInfo, QgroupLimit, SubvolumeId, TreeId};
use buttress_fs::error::{QuotaRefusal, Result};

/// The places of a new member's relations. All relations of a group are adjacent, and those of its
/// parents are a place each.
pub(super) const INHERITANCE_PLACES: u64 = 16;

/// The wanted inheritance of a new subvolume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inheritance<'a> {
    /// The subvolume that will contain the new subvolume's name.
    pub(super) container: SubvolumeId,
    /// The source of a snapshot.
    pub(super) source: Option<SubvolumeId>,
    /// The requested groups; empty for Linux's choice.
    pub(super) groups: &'a [QgroupId],
}

impl Access<'_> {
    /// Returns the groups that the new subvolume's group joins.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NoGroup`] or [`QuotaRefusal::Levels`] for a requested group.
    fn inherited_groups(&mut self, member: QgroupId, inherits: &Inheritance<'_>) -> Result<Vec<QgroupId>> {
        let Some(kind) = self.lookups().core().quota_kind() else {
            return Ok(Vec::new());
        };
        let mut groups = inherits.groups.to_vec();
        for parent in &groups {
            if parent.level() == 0 {
                let parent = *parent;
                return Err(QuotaRefusal::Levels { member, parent }.into());
            }
            self.require_group(*parent)?;
        }
        if groups.is_empty() && kind == QuotaKind::Simple {
            let container = QgroupId::new(inherits.container.get());
            groups = self.groups_related_to(container)?;
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(groups)
    }

    /// Loads all items that a snapshot's group inherits from its source's.
    pub(super) fn reach_inherited_limits(&mut self, source: SubvolumeId) -> Result<()> {
        if self.lookups().core().quota_kind() != Some(QuotaKind::Classic) {
            return Ok(());
        }
        let source = QgroupId::new(source.get());
        self.reach(
            TreeId::QUOTA,
            &[QgroupInfo::key(source), QgroupLimit::key(source)],
        )?;
        // The limits are loaded again from all items.
        self.reach_all_of_quota_tree()
    }

    /// Loads the paths to the items of a new subvolume's group, and checks the requested groups.
    pub(super) fn reach_inheritance(&mut self, new: SubvolumeId, inherits: &Inheritance<'_>) -> Result<()> {
        let member = QgroupId::new(new.get());
        self.reach(
            TreeId::QUOTA,
            &[QgroupInfo::key(member), QgroupLimit::key(member)],
        )?;
        if let Some(source) = inherits.source {
            self.reach_inherited_limits(source)?;
        }
        let groups = self.inherited_groups(member, inherits)?;
        if !groups.is_empty() {
            self.reach_all_of_quota_tree()?;
        }
        for parent in groups {
            self.reach(TreeId::QUOTA, &relation_keys(member, parent))?;
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Gives the group of a new subvolume its limits and its parents.
    pub(super) fn inherit_quotas(&mut self, new: SubvolumeId, inherits: &Inheritance<'_>) -> Result<()> {
        let member = QgroupId::new(new.get());
        let groups = self.inherited_groups(member, inherits)?;
        if let Some(source) = inherits.source {
            self.edit().quota_tree().inherit_limit(source, new)?;
        }
        for parent in groups {
            self.edit().quota_tree().add_relation(member, parent)?;
        }
        Ok(())
    }
}
