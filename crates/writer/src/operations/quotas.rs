//! Quotas: on and off, quota groups, their relations and limits, and the rescan of classic quotas.
//!
//! Each call is one operation. The caller commits.
//!
//! A rescan of classic quotas counts the last commit from the trees of files alone, beside readers
//! and writers. Its numbers are exact if no subvolume changed in the meantime. The operation that
//! writes the counters checks this under the edit lock. After `RESCANS_MAX` scans beside writers
//! the counters of the last scan stay, and the state records that another rescan is due.
//!
//! Refused requests are the same as in Linux.

use super::{Access, Operation};
use crate::areas::Quotas;
use buttress_accounts::Accounts as _;
use buttress_accounts::quotas::QuotaUse;
use buttress_accounts::space::accounting::Options;
use buttress_engine::quota_tree::{QUOTA_ROOT_KEY, QuotaKind, relation_keys};
use buttress_engine::reservation::Need;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    ByteCount, ItemError, ItemType, Key, ObjectId, QgroupId, QgroupInfo, QgroupLimit, QgroupLimitFlags,
    RootFlags, SubvolumeId, TreeId,
};
use buttress_fs::error::{Corruption, Error, QuotaRefusal, Result};
use buttress_fs::progress::Progress;
use std::collections::BTreeSet;

/// The most scans of a rescan beside writers.
const RESCANS_MAX: usize = 3;

/// The places of a change of one group: its own items, and its relations.
const GROUP_PLACES: u64 = 8;

/// The quota items of one kind that fit into one place: a leaf of the smallest nodes holds 61 items.
const ITEMS_A_PLACE: u64 = 30;

/// The result of a rescan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rescanned {
    /// The number of counted quota groups.
    pub groups: usize,
    /// Whether the counters are exact. If not, other writers changed the volume during each scan.
    pub is_exact: bool,
}

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

    /// Charges the content of a new file to its subvolume. Returns the charged bytes: all or none.
    pub(crate) fn charge_new_content(&self, subvolume: SubvolumeId, bytes: u64) -> Result<u64> {
        let tree = subvolume.tree();
        self.know_use(subvolume)?;
        self.with_current(|| self.filesystem.quota_limits().charge(tree, bytes))
    }

    /// Runs a call that charges data or inodes. If a limit refuses the call, brings the counters up to
    /// date, and runs the call again. Counters that cannot be counted leave the refusal as it is. The
    /// caller holds no lock.
    pub(crate) fn with_current<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(refused @ Error::QuotaExceeded(_)) => {
                if self.refresh_counters().is_err() {
                    self.filesystem.require_writing()?;
                    return Err(refused);
                }
                call()
            }
            done => done,
        }
    }

    /// Counts classic quotas if a limit of the subvolume has stale counters. If they cannot be counted,
    /// the limit holds for the stale ones. The caller holds no lock.
    pub(crate) fn know_use(&self, subvolume: SubvolumeId) -> Result<()> {
        if self.filesystem.quota_limits().needs_count(subvolume.tree()) && self.refresh_counters().is_err() {
            self.filesystem.require_writing()?;
            self.filesystem.quota_limits().accept_stale();
        }
        Ok(())
    }

    /// Brings the counters up to date that refuse a write: commits, and counts classic quotas again
    /// if any subvolume changed since the last count. If nothing changed since the last call, returns
    /// at once, so that a caller that repeats a refused write costs no commits. The caller holds no
    /// lock.
    ///
    /// # Errors
    /// Also fails once [`stop_recounting`](Self::stop_recounting) was called.
    pub(crate) fn refresh_counters(&self) -> Result<()> {
        let recounts = self.filesystem.recounts();
        recounts.progress().check()?;
        let is_settled = self
            .filesystem
            .read_under_lock(|access| Ok(access.quota_counters_are_settled(recounts.last())))?;
        if is_settled {
            return Ok(());
        }
        self.filesystem.commit()?;
        let is_current = self.filesystem.read_under_lock(|access| {
            access.settle_counted_charges();
            let kind = access.lookups().core().quota_kind();
            Ok(kind != Some(QuotaKind::Classic) || access.quota_counters_are_current())
        })?;
        if !is_current {
            self.rescan(recounts.progress())?;
        }
        recounts.note(self.filesystem.committed_generation());
        Ok(())
    }

    /// Ends counts of quotas that refused writes wait for, and starts no further ones. The writes
    /// then fail with the refusal. An unmount calls this, so that it waits for no count.
    pub fn stop_recounting(&self) {
        self.filesystem.recounts().progress().cancel();
    }

    /// Counts classic quotas, and writes the counters with a commit. Deleted subvolumes are dropped
    /// before. Other threads may read and write the volume during the scan.
    ///
    /// # Errors
    /// Fails with [`QuotaRefusal::NotEnabled`], [`QuotaRefusal::NoRescan`], or if the job is
    /// cancelled, a tree cannot be read, or the account needs too much memory.
    pub fn rescan(&self, progress: &Progress) -> Result<Rescanned> {
        self.filesystem
            .read_under_lock(|access| access.require_classic_quotas())?;
        self.filesystem.subvolumes().drop_deleted(progress)?;
        for attempt in 1..=RESCANS_MAX {
            if let Some(rescanned) = self.rescan_once(attempt == RESCANS_MAX, progress)? {
                return Ok(rescanned);
            }
        }
        Ok(Rescanned {
            groups: 0,
            is_exact: false,
        })
    }

    /// Scans once. Returns `None` if the volume changed during the scan. The last scan writes its
    /// counters even then, unless groups changed.
    fn rescan_once(&self, is_last: bool, progress: &Progress) -> Result<Option<Rescanned>> {
        self.filesystem.commit()?;
        let changes = self
            .filesystem
            .read_under_lock(|access| Ok(access.lookups().core().quota_group_changes()))?;
        let counted = self.filesystem.committed_generation();
        let view = self.filesystem.view();
        let groups = view.quota_groups()?.ok_or(QuotaRefusal::NotEnabled)?;
        let accounting = view.account_space(&Options::default(), progress)?;
        let counts = groups.count(&accounting)?;
        drop(view);
        let keys: Vec<Key> = counts.keys().map(|group| QgroupInfo::key(*group)).collect();
        let is_written =
            self.filesystem
                .operate(Need::places(places_of_items(counts.len())), |operation| {
                    operation.require_classic_quotas()?;
                    let is_exact = operation.ledgers().subvolumes_reach_the_same_since(counted);
                    let same_groups = operation.lookups().core().quota_group_changes() == changes;
                    if !same_groups || !(is_exact || is_last) {
                        return Ok(false);
                    }
                    operation.reach_all_of_quota_tree()?;
                    operation.reach(TreeId::QUOTA, &keys)?;
                    let counts = counts.iter().map(|(group, used)| (*group, *used));
                    operation.edit().quota_tree().put_rescanned(counts, counted)?;
                    Ok(true)
                })?;
        if !is_written {
            return Ok(None);
        }
        self.filesystem.commit()?;
        let state = self.filesystem.view().quota_groups()?;
        Ok(Some(Rescanned {
            groups: counts.len(),
            is_exact: state.is_some_and(|groups| !groups.is_inconsistent()),
        }))
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

impl Access<'_> {
    /// Returns all subvolumes that are not deleted, in order.
    fn live_subvolumes(&mut self) -> Result<Vec<SubvolumeId>> {
        let mut found = vec![SubvolumeId::TOP_LEVEL];
        let mut key = Key::new(ObjectId::FIRST_FREE, ItemType::ROOT_ITEM, 0);
        while let Some(item) = self.lookups().at_or_after(TreeId::ROOT, &key)? {
            let at = item.key();
            let tree = TreeId::new(at.objectid.get());
            let Some(subvolume) = tree.as_subvolume() else {
                break;
            };
            if at.item_type == ItemType::ROOT_ITEM
                && !self.lookups().root_item(tree)?.flags.contains(RootFlags::DEAD)
            {
                found.push(subvolume);
            }
            let Some(next) = at.successor() else { break };
            key = next;
        }
        Ok(found)
    }

    fn require_quotas(&mut self) -> Result<QuotaKind> {
        let kind = self.lookups().core().quota_kind();
        Ok(kind.ok_or(QuotaRefusal::NotEnabled)?)
    }

    fn require_classic_quotas(&mut self) -> Result<()> {
        match self.require_quotas()? {
            QuotaKind::Classic => Ok(()),
            QuotaKind::Simple => Err(QuotaRefusal::NoRescan.into()),
        }
    }

    fn has_group(&mut self, group: QgroupId) -> Result<bool> {
        Ok(self.get(TreeId::QUOTA, &QgroupInfo::key(group))?.is_some())
    }

    pub(super) fn require_group(&mut self, group: QgroupId) -> Result<()> {
        match self.has_group(group)? {
            true => Ok(()),
            false => Err(QuotaRefusal::NoGroup { group }.into()),
        }
    }

    /// Returns whether a group is a member of another one. The item of the member decides, as in
    /// Linux.
    fn is_member(&mut self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        let [key, _] = relation_keys(member, parent);
        Ok(self.get(TreeId::QUOTA, &key)?.is_some())
    }

    /// Returns whether an item of a relation exists. A program that was cut off leaves one of two.
    fn is_related(&mut self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        for key in relation_keys(member, parent) {
            if self.get(TreeId::QUOTA, &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Loads the paths to the items of a group.
    fn reach_group(&mut self, group: QgroupId) -> Result<()> {
        self.reach(TreeId::QUOTA, &[QgroupInfo::key(group), QgroupLimit::key(group)])
    }

    /// Returns the members of a group, and the groups of which it is a member.
    pub(super) fn groups_related_to(&mut self, group: QgroupId) -> Result<Vec<QgroupId>> {
        let mut found = Vec::new();
        let mut key = Key::new(ObjectId::new(group.get()), ItemType::QGROUP_RELATION, 0);
        while let Some(item) = self.lookups().at_or_after(TreeId::QUOTA, &key)? {
            let at = item.key();
            if (at.objectid, at.item_type) != (key.objectid, key.item_type) {
                break;
            }
            found.push(QgroupId::new(at.offset));
            let Some(next) = at.successor() else { break };
            key = next;
        }
        Ok(found)
    }

    /// Returns all groups with an item of a relation to a group. A relation normally has two items.
    fn all_related_to(&mut self, group: QgroupId) -> Result<BTreeSet<QgroupId>> {
        let mut found = BTreeSet::new();
        let mut key = Key::MIN;
        while let Some(item) = self.lookups().at_or_after(TreeId::QUOTA, &key)? {
            let at = item.key();
            let ends = (QgroupId::new(at.objectid.get()), QgroupId::new(at.offset));
            if at.item_type == ItemType::QGROUP_RELATION {
                found.extend((ends.0 == group).then_some(ends.1));
                found.extend((ends.1 == group).then_some(ends.0));
            }
            let Some(next) = at.successor() else { break };
            key = next;
        }
        Ok(found)
    }

    /// Loads all blocks of the quota tree.
    pub(super) fn reach_all_of_quota_tree(&mut self) -> Result<()> {
        let mut key = Key::MIN;
        while let Some(item) = self.lookups().at_or_after(TreeId::QUOTA, &key)? {
            self.reach(TreeId::QUOTA, &[item.key()])?;
            let Some(next) = item.key().successor() else { break };
            key = next;
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Removes a quota group without members that its subvolume no longer needs.
    fn destroy_group(&mut self, kind: QuotaKind, group: QgroupId) -> Result<()> {
        self.reach_all_of_quota_tree()?;
        let related = self.all_related_to(group)?;
        for other in &related {
            if other.level() < group.level() && self.is_member(*other, group)? {
                return Err(QuotaRefusal::HasMembers { group }.into());
            }
        }
        if group.level() == 0 {
            let has_tree = match self.lookups().root_item(TreeId::new(group.get())) {
                Ok(_) => true,
                Err(Error::TreeNotFound { .. }) => false,
                Err(error) => return Err(error),
            };
            if has_tree || kind == QuotaKind::Simple && self.counts_bytes(group)? {
                return Err(QuotaRefusal::InUse { group }.into());
            }
        }
        for other in &related {
            self.reach(TreeId::QUOTA, &relation_keys(group, *other))?;
        }
        self.edit().quota_tree().remove_group(group, &related)
    }

    /// Returns whether a group counts bytes, in its item or with the changes of this transaction.
    fn counts_bytes(&mut self, group: QgroupId) -> Result<bool> {
        if self.lookups().core().has_quota_changes(group) {
            return Ok(true);
        }
        let key = QgroupInfo::key(group);
        let Some(item) = self.get(TreeId::QUOTA, &key)? else {
            return Ok(false);
        };
        let info = QgroupInfo::parse(&key, item.data()).map_err(broken)?;
        Ok(info.referenced != ByteCount::ZERO || info.exclusive != ByteCount::ZERO)
    }
}
