//! Quotas: on and off, quota groups, their relations and limits.
//!
//! Each call is one operation. The caller commits. The module `counting` charges writes and counts
//! classic quotas. The module `groups` looks up the items of groups.
//!
//! Refused requests are the same as in Linux.

mod counting;
mod groups;

pub use counting::Rescanned;

use super::Operation;
use crate::areas::Quotas;
use buttress_accounts::Accounts as _;
use buttress_accounts::quotas::QuotaUse;
use buttress_engine::quota_tree::{QUOTA_ROOT_KEY, QuotaKind, relation_keys};
use buttress_engine::reservation::Need;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, ItemError, QgroupId, QgroupLimit, QgroupLimitFlags, SubvolumeId, TreeId};
use buttress_fs::error::{Corruption, Error, QuotaRefusal, Result};

/// The places of a change of one group: its own items, and its relations.
const GROUP_PLACES: u64 = 8;

/// The quota items of one kind that fit into one place: a leaf of the smallest nodes holds 61 items.
const ITEMS_A_PLACE: u64 = 30;

/// A limit of a quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaLimit {
    /// Whether the limit is on exclusive bytes; otherwise it is on referenced bytes.
    pub exclusive: bool,
    /// The most bytes, or `None` to remove the limit.
    pub bytes: Option<ByteCount>,
    /// Whether the limit is recorded as one on compressed bytes. Linux enforces both kinds alike.
    pub compressed: bool,
}

fn broken(error: ItemError) -> Error {
    let tree = TreeId::QUOTA;
    Corruption::Item { tree, error }.into()
}

fn places_of_items(count: usize) -> u64 {
    u64_of(count).div_ceil(ITEMS_A_PLACE).exact_add(GROUP_PLACES)
}

impl Quotas<'_> {
    /// Enables quotas. Every subvolume gets a quota group. Classic quotas need a
    /// [rescan](Self::rescan) afterwards. Returns false if the volume has quotas already.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read, or no space is free.
    pub fn enable(&self, kind: QuotaKind) -> Result<bool> {
        let count = self
            .filesystem
            .read_under_lock(|access| access.live_subvolumes())?
            .len();
        self.filesystem
            .operate(Need::places(places_of_items(count.exact_mul(2))), |operation| {
                if operation.lookups().core().quota_kind().is_some() {
                    return Ok(false);
                }
                let subvolumes = operation.live_subvolumes()?;
                operation.reach(TreeId::ROOT, &[QUOTA_ROOT_KEY])?;
                if operation.get(TreeId::ROOT, &QUOTA_ROOT_KEY)?.is_some() {
                    // Quotas were disabled, but a crash of another program left their tree.
                    operation.reach_all_of_quota_tree()?;
                    operation.edit().quota_tree().disable()?;
                }
                operation.edit().quota_tree().enable(kind, &subvolumes)?;
                Ok(true)
            })
    }

    /// Disables quotas, and removes all quota groups. Returns false if the volume has no quotas.
    ///
    /// # Errors
    /// Fails if the quota tree cannot be read.
    pub fn disable(&self) -> Result<bool> {
        self.filesystem.operate(Need::freeing(GROUP_PLACES), |operation| {
            if operation.lookups().core().quota_kind().is_none() {
                return Ok(false);
            }
            operation.reach(TreeId::ROOT, &[QUOTA_ROOT_KEY])?;
            operation.reach_all_of_quota_tree()?;
            operation.edit().quota_tree().disable()?;
            Ok(true)
        })
    }

    /// Makes a quota group. The groups of subvolumes are made with the subvolumes.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], [`QuotaRefusal::OfSubvolume`],
    /// [`QuotaRefusal::Exists`].
    pub fn create_group(&self, group: QgroupId) -> Result<()> {
        self.filesystem.operate(Need::places(GROUP_PLACES), |operation| {
            operation.require_quotas()?;
            if group.level() == 0 && TreeId::new(group.get()).as_subvolume().is_some() {
                return Err(QuotaRefusal::OfSubvolume { group }.into());
            }
            if operation.has_group(group)? {
                return Err(QuotaRefusal::Exists { group }.into());
            }
            operation.reach_group(group)?;
            operation
                .edit()
                .quota_tree()
                .put_group(group, QuotaUse::default())
        })
    }

    /// Removes a quota group, and its relations to the groups above it.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], [`QuotaRefusal::NoGroup`],
    /// [`QuotaRefusal::HasMembers`]. Fails with [`QuotaRefusal::InUse`] while the group's subvolume
    /// exists, and for simple quotas also while the group counts any bytes.
    pub fn destroy_group(&self, group: QgroupId) -> Result<()> {
        self.filesystem
            .operate(Need::freeing(GROUP_PLACES.exact_mul(2)), |operation| {
                let kind = operation.require_quotas()?;
                operation.require_group(group)?;
                operation.destroy_group(kind, group)
            })
    }

    /// Removes the quota groups of subvolumes that no longer exist, and returns them. For simple
    /// quotas, a group that still counts bytes stays.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], or if the quota tree cannot be read.
    pub fn clear_stale_groups(&self) -> Result<Vec<QgroupId>> {
        // Changes of this transaction are not in the counters yet.
        self.filesystem.commit_metadata()?;
        let groups = self
            .filesystem
            .view()
            .quota_groups()?
            .ok_or(QuotaRefusal::NotEnabled)?;
        let of_subvolumes = groups.groups.keys().filter(|group| group.level() == 0);
        let mut cleared = Vec::new();
        for group in of_subvolumes {
            match self.destroy_group(*group) {
                Ok(()) => cleared.push(*group),
                Err(Error::QuotaRefused(QuotaRefusal::InUse { .. } | QuotaRefusal::NoGroup { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(cleared)
    }

    /// Removes the groups of subvolumes that were just dropped, as far as they count nothing.
    pub(crate) fn forget_groups_of(&self, dropped: &[SubvolumeId]) -> Result<()> {
        let kind = self
            .filesystem
            .read_under_lock(|access| Ok(access.lookups().core().quota_kind()))?;
        let Some(kind) = kind.filter(|_| !dropped.is_empty()) else {
            return Ok(());
        };
        if kind == QuotaKind::Simple {
            // The freed extents change the counters at the commit.
            self.filesystem.commit_metadata()?;
        }
        for subvolume in dropped {
            match self.destroy_group(QgroupId::new(subvolume.get())) {
                Ok(()) | Err(Error::QuotaRefused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a quota group a member of another one. Returns whether the counters need a rescan.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], [`QuotaRefusal::NoGroup`],
    /// [`QuotaRefusal::Levels`], [`QuotaRefusal::IsMember`].
    pub fn assign_group(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.change_relation(member, parent, |operation| {
            if operation.is_member(member, parent)? {
                return Err(QuotaRefusal::IsMember { member, parent }.into());
            }
            operation.edit().quota_tree().add_relation(member, parent)
        })
    }

    /// Ends the membership of a quota group in another one. Returns whether the counters need a
    /// rescan.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], [`QuotaRefusal::NoGroup`],
    /// [`QuotaRefusal::Levels`], [`QuotaRefusal::NotMember`].
    pub fn unassign_group(&self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.change_relation(member, parent, |operation| {
            if !operation.is_related(member, parent)? {
                return Err(QuotaRefusal::NotMember { member, parent }.into());
            }
            operation.edit().quota_tree().remove_relation(member, parent)
        })
    }

    fn change_relation(
        &self,
        member: QgroupId,
        parent: QgroupId,
        change: impl Fn(&mut Operation<'_>) -> Result<bool>,
    ) -> Result<bool> {
        self.filesystem
            .operate(Need::places(GROUP_PLACES.exact_mul(2)), |operation| {
                operation.require_quotas()?;
                if member.level() >= parent.level() {
                    return Err(QuotaRefusal::Levels { member, parent }.into());
                }
                operation.require_group(member)?;
                operation.require_group(parent)?;
                operation.reach_all_of_quota_tree()?;
                operation.reach(TreeId::QUOTA, &relation_keys(member, parent))?;
                change(operation)
            })
    }

    /// Sets or removes a limit of a quota group.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], [`QuotaRefusal::NoGroup`].
    pub fn limit_group(&self, group: QgroupId, change: QuotaLimit) -> Result<()> {
        self.filesystem.operate(Need::places(GROUP_PLACES), |operation| {
            operation.require_quotas()?;
            operation.require_group(group)?;
            operation.reach_all_of_quota_tree()?;
            operation.reach_group(group)?;
            let key = QgroupLimit::key(group);
            let mut limit = match operation.get(TreeId::QUOTA, &key)? {
                Some(item) => QgroupLimit::parse(&key, item.data()).map_err(broken)?,
                None => QgroupLimit::none(group),
            };
            change.apply(&mut limit);
            operation.edit().quota_tree().put_limit(&limit)
        })
    }
}

impl QuotaLimit {
    fn apply(self, limit: &mut QgroupLimit) {
        let (flag, place) = match self.exclusive {
            false => (QgroupLimitFlags::MAX_RFER, &mut limit.max_referenced),
            true => (QgroupLimitFlags::MAX_EXCL, &mut limit.max_exclusive),
        };
        *place = match self.bytes {
            Some(bytes) => bytes,
            None => ByteCount::ZERO,
        };
        limit.flags.set(flag, self.bytes.is_some());
        if self.compressed {
            limit.flags |= QgroupLimitFlags::RFER_CMPR | QgroupLimitFlags::EXCL_CMPR;
        }
    }
}
