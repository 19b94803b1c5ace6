//! Edits of the quota tree: quotas on and off, groups, relations, limits, and rescanned counters.
//!
//! Each call is a part of one edit. The caller loads the paths to the edited keys before
//! ([`Running::reach`]) and checks that the request is possible.
//!
//! - Simple quotas count extents from the transaction after the one that enables them. An extent
//!   that the enabling transaction made before therefore never counts, and its end takes nothing
//!   away.
//! - Disabling quotas removes the quota tree. The feature flag of simple quotas stays, as in Linux,
//!   because extents keep the names of their makers.
//! - A change of a relation also changes the counters above it, if the member shares nothing. If
//!   the member shares space, classic quotas need a rescan.
//!
//! Source: on-disk format documentation, sections "QGROUP_STATUS", "QGROUP_INFO", "QGROUP_LIMIT",
//! "QGROUP_RELATION"; btrfs-quota(8), btrfs-qgroup(8).

use crate::core_state::Core;
use crate::quota_items::broken;
use crate::quotas::{QuotaMode, changes_owners};
use crate::running::Running;
use crate::running_parts::QuotaTree;
use crate::trees::OpenTree;
use buttress_accounts::delayed_references::Reference;
use buttress_accounts::quotas::{QuotaGroups, QuotaUse};
use buttress_exact::Exact as _;
use buttress_format::{
    Generation, Incompat, ItemType, Key, QgroupId, QgroupInfo, QgroupLimit, QgroupRelation, QgroupStatus,
    QgroupStatusFlags, SubvolumeId, TreeId,
};
use buttress_fs::error::{Defect, Result};
use std::collections::BTreeSet;

/// The version of the quota items.
const VERSION: u64 = 1;

/// The key of the quota tree's root item.
pub const QUOTA_ROOT_KEY: Key = Key::new(TreeId::QUOTA.object_id(), ItemType::ROOT_ITEM, 0);

/// The kinds of quotas that a volume can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// An extent counts for every subvolume that reaches it.
    Classic,
    /// An extent counts for the subvolume that made it.
    Simple,
}

impl Core {
    /// Returns the kind of quotas, or `None` if quotas are off.
    #[must_use]
    pub const fn quota_kind(&self) -> Option<QuotaKind> {
        match self.quotas.mode {
            QuotaMode::Off => None,
            QuotaMode::Classic => Some(QuotaKind::Classic),
            QuotaMode::Simple { .. } => Some(QuotaKind::Simple),
        }
    }

    /// Returns a number that changes with every change of groups and relations.
    #[must_use]
    pub const fn quota_group_changes(&self) -> u64 {
        self.quotas.group_changes
    }

    /// Returns whether this transaction changes the counters of a subvolume's group at its commit.
    #[must_use]
    pub fn has_quota_changes(&self, group: QgroupId) -> bool {
        self.quotas.changes.contains_key(&TreeId::new(group.get()))
    }
}

impl QuotaTree<'_> {
    /// Makes the quota tree, with a group for each of these subvolumes. The counters of classic
    /// quotas need a rescan afterwards.
    pub fn enable(&mut self, kind: QuotaKind, subvolumes: &[SubvolumeId]) -> Result<()> {
        let generation = self.running.core.generation;
        self.running.make_own_tree(TreeId::QUOTA)?;
        let enabled = Generation::new(generation.get().exact_add(1));
        let (mode, flags, enable_generation) = match kind {
            QuotaKind::Classic => (
                QuotaMode::Classic,
                QgroupStatusFlags::INCONSISTENT,
                Generation::MIN,
            ),
            QuotaKind::Simple => (
                QuotaMode::Simple { enabled },
                QgroupStatusFlags::SIMPLE_MODE,
                enabled,
            ),
        };
        if kind == QuotaKind::Simple {
            self.running.use_feature(Incompat::SIMPLE_QUOTA);
        }
        let status = QgroupStatus {
            version: VERSION,
            generation,
            flags: QgroupStatusFlags::ON | flags,
            rescan: 0,
            enable_generation: Some(enable_generation),
        };
        self.running
            .put(TreeId::QUOTA, &QgroupStatus::KEY, &status.encode())?;
        self.running.core.quotas.mode = mode;
        self.running.core.quotas.counted = None;
        self.running.core.quotas.changes.clear();
        for subvolume in subvolumes {
            self.put_group(QgroupId::new(subvolume.get()), QuotaUse::default())?;
        }
        Ok(())
    }

    /// Removes the quota tree. The caller has loaded all of its leaves.
    pub fn disable(&mut self) -> Result<()> {
        self.running.core.quotas.mode = QuotaMode::Off;
        self.running.core.quotas.changes.clear();
        if self.running.at_or_after(TreeId::QUOTA, &Key::MIN)?.is_none() {
            // A tree that is empty on disk has no item whose removal frees its leaf.
            self.running.insert(TreeId::QUOTA, &Key::MIN, &[])?;
        }
        self.running
            .remove_range(TreeId::QUOTA, Key::MIN..Key::MAX, &mut |_, _| {})?;
        let open = self.running.open_tree(TreeId::QUOTA)?;
        let (level, root, is_dirty) = (open.tree.level(), open.tree.root_logical(), open.tree.is_dirty());
        if level != 0 || !is_dirty {
            let defect = Defect::new("an emptied quota tree is not one leaf of the running transaction");
            return Err(defect.with("level", level).into());
        }
        // A commit that released the edit lock may have given the root an address already.
        if let Some(logical) = root {
            let node_bytes = self.running.core.node_bytes();
            let reference = Reference::TreeBlock { root: TreeId::QUOTA };
            self.running
                .core
                .references
                .let_go(logical, node_bytes, 0, reference, TreeId::QUOTA);
        }
        self.running.trees.remove(TreeId::QUOTA);
        self.running.remove(TreeId::ROOT, &QUOTA_ROOT_KEY)?;
        self.load_limits()
    }

    /// Makes a quota group for a new subvolume, if the volume has quotas.
    pub fn make_group(&mut self, subvolume: SubvolumeId) -> Result<()> {
        if self.running.core.quotas.mode == QuotaMode::Off {
            return Ok(());
        }
        let group = QgroupId::new(subvolume.get());
        if self.running.core.quotas.counts_by_maker() && self.use_of(group)?.is_some() {
            let defect = Defect::new("a new subvolume has the number of an existing quota group");
            return Err(defect.with("subvolume", subvolume.get()).into());
        }
        self.put_group(group, QuotaUse::default())
    }

    /// Gives the group of a snapshot the limits and counters of its source's group, as Linux does for
    /// classic quotas. The next rescan counts both groups. The caller has loaded all leaves of the
    /// tree.
    pub fn inherit_limit(&mut self, source: SubvolumeId, snapshot: SubvolumeId) -> Result<()> {
        let (from, to) = (QgroupId::new(source.get()), QgroupId::new(snapshot.get()));
        if self.running.core.quotas.mode != QuotaMode::Classic {
            return Ok(());
        }
        if let Some(used) = self.use_of(from)? {
            let exclusive = self.running.core.node_bytes();
            self.put_use(to, QuotaUse { exclusive, ..used })?;
            self.put_use(from, QuotaUse { exclusive, ..used })?;
        }
        let key = QgroupLimit::key(from);
        let Some(found) = self.running.get(TreeId::QUOTA, &key)? else {
            return Ok(());
        };
        let limit = QgroupLimit::parse(&key, found.data()).map_err(broken)?;
        if limit.flags.is_empty() {
            return Ok(());
        }
        self.running
            .core
            .quota_limits
            .copy_charge(source.tree(), snapshot.tree());
        self.put_limit(&QgroupLimit { group: to, ..limit })
    }

    /// Makes a quota group without limits.
    pub fn put_group(&mut self, group: QgroupId, used: QuotaUse) -> Result<()> {
        self.running.core.quotas.group_changes = self.running.core.quotas.group_changes.exact_add(1);
        self.put_use(group, used)?;
        let limit = QgroupLimit::none(group);
        self.running
            .put(TreeId::QUOTA, &QgroupLimit::key(group), &limit.to_bytes())
    }

    /// Removes a quota group and its relations to these groups.
    pub fn remove_group(&mut self, group: QgroupId, related: &BTreeSet<QgroupId>) -> Result<()> {
        self.running.core.quotas.group_changes = self.running.core.quotas.group_changes.exact_add(1);
        for other in related {
            match other.level() < group.level() {
                true => self.remove_relation(*other, group)?,
                false => self.remove_relation(group, *other)?,
            };
        }
        self.running.remove(TreeId::QUOTA, &QgroupInfo::key(group))?;
        self.running.remove(TreeId::QUOTA, &QgroupLimit::key(group))?;
        self.load_limits()
    }

    /// Makes a group a member of another one. Returns whether the counters need a rescan.
    pub fn add_relation(&mut self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.running.core.quotas.group_changes = self.running.core.quotas.group_changes.exact_add(1);
        let new = self.groups_above_only_by(member, parent)?;
        for key in relation_keys(member, parent) {
            self.running.put(TreeId::QUOTA, &key, &[])?;
        }
        let needs_rescan = self.pass_on(member, &new, 1)?;
        self.load_limits()?;
        Ok(needs_rescan)
    }

    /// Ends the membership of a group in another one. Returns whether the counters need a rescan.
    pub fn remove_relation(&mut self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        self.running.core.quotas.group_changes = self.running.core.quotas.group_changes.exact_add(1);
        let [of_member, of_parent] = relation_keys(member, parent);
        let was_member = self.running.remove(TreeId::QUOTA, &of_member)?;
        self.running.remove(TreeId::QUOTA, &of_parent)?;
        let gone = match was_member {
            true => self.groups_above_only_by(member, parent)?,
            false => BTreeSet::new(),
        };
        let needs_rescan = self.pass_on(member, &gone, -1)?;
        self.load_limits()?;
        Ok(needs_rescan)
    }

    /// Returns the groups that a relation alone puts above a member, while the relation does not
    /// exist. Other groups count the member already by other relations.
    fn groups_above_only_by(&mut self, member: QgroupId, parent: QgroupId) -> Result<BTreeSet<QgroupId>> {
        let mut above = self.group_and_above(parent)?;
        if !buttress_faults::on("quota-diamond-counts-twice") {
            let others = self.group_and_above(member)?;
            above.retain(|group| !others.contains(group));
        }
        Ok(above)
    }

    /// Adds the counters of a member to groups above it, or subtracts them. If the member shares
    /// space, the status item records that a rescan is due instead.
    fn pass_on(&mut self, member: QgroupId, groups: &BTreeSet<QgroupId>, sign: i64) -> Result<bool> {
        let Some(used) = self.use_of(member)? else {
            return Ok(false);
        };
        // A counter from disk may be larger than any volume, and then needs a rescan, too.
        let bytes = i64::try_from(used.referenced.get()).ok();
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(sign));
        if groups.is_empty() {
            return Ok(false);
        }
        let Some(bytes) = bytes.filter(|_| used.referenced == used.exclusive) else {
            self.running.core.quotas.counted = None;
            self.change_status(|status| status.flags.insert(QgroupStatusFlags::INCONSISTENT))?;
            return Ok(true);
        };
        if bytes != 0 {
            for group in groups {
                self.change_group(*group, bytes)?;
            }
        }
        Ok(false)
    }

    /// Returns the counters of a quota group, if it exists.
    fn use_of(&mut self, group: QgroupId) -> Result<Option<QuotaUse>> {
        let key = QgroupInfo::key(group);
        let Some(found) = self.running.get(TreeId::QUOTA, &key)? else {
            return Ok(None);
        };
        let info = QgroupInfo::parse(&key, found.data()).map_err(broken)?;
        Ok(Some(QuotaUse {
            referenced: info.referenced,
            exclusive: info.exclusive,
        }))
    }

    /// Writes the limits of a quota group.
    pub fn put_limit(&mut self, limit: &QgroupLimit) -> Result<()> {
        self.running
            .put(TreeId::QUOTA, &QgroupLimit::key(limit.group), &limit.to_bytes())?;
        self.load_limits()
    }

    /// Writes the counters of a quota group.
    fn put_use(&mut self, group: QgroupId, used: QuotaUse) -> Result<()> {
        let info = QgroupInfo {
            group,
            generation: self.running.core.generation,
            referenced: used.referenced,
            referenced_compressed: used.referenced,
            exclusive: used.exclusive,
            exclusive_compressed: used.exclusive,
        };
        self.running
            .put(TreeId::QUOTA, &QgroupInfo::key(group), &info.to_bytes())
    }

    /// Writes the counters of a rescan, which counted this commit. Returns whether they hold for the
    /// running transaction.
    pub fn put_rescanned(
        &mut self,
        counts: impl IntoIterator<Item = (QgroupId, QuotaUse)>,
        counted: Generation,
    ) -> Result<bool> {
        let is_exact = self.running.subvolumes_reach_the_same_since(counted);
        self.running.core.quotas.counted = Some(counted);
        for (group, used) in counts {
            self.put_use(group, used)?;
        }
        self.change_status(|status| {
            status.flags.remove(QgroupStatusFlags::RESCAN);
            status.flags.set(QgroupStatusFlags::INCONSISTENT, !is_exact);
            status.rescan = u64::MAX;
        })?;
        // The commit writes the item again if it changes what subvolumes reach.
        self.running.core.quotas.status_written = Some(!is_exact);
        self.running.core.quota_limits.settle(counted);
        self.load_limits()?;
        Ok(is_exact)
    }
}

impl Running {
    /// Returns whether every subvolume still reaches the extents that it reached at the end of
    /// transaction `counted`. Data that is not written back has no extents.
    #[must_use]
    pub fn subvolumes_reach_the_same_since(&self, counted: Generation) -> bool {
        let is_changed = |tree: &OpenTree| tree.tree.is_dirty();
        self.core.quotas.files_changed <= counted
            && !self
                .core
                .references
                .iter()
                .any(|(_, pending)| changes_owners(pending))
            && !self
                .trees
                .iter()
                .any(|(id, open)| id.holds_files() && is_changed(open))
    }

    /// Returns whether a rescan of classic quotas would write the same counters again.
    #[must_use]
    pub fn quota_counters_are_current(&self) -> bool {
        let counted = self.core.quotas.counted;
        counted.is_some_and(|counted| self.subvolumes_reach_the_same_since(counted))
    }

    /// Ends the charges of landed data if the stored counters include all of it: if nothing changed
    /// since the last commit or, with classic quotas, since the last count.
    pub fn settle_counted_charges(&self) {
        let is_counted = match self.core.quotas.mode {
            QuotaMode::Off => false,
            QuotaMode::Classic => self.quota_counters_are_current(),
            QuotaMode::Simple { .. } => !self.is_dirty(),
        };
        if is_counted {
            self.core.quota_limits.settle(self.core.generation);
        }
    }
}

impl QuotaTree<'_> {
    /// Loads the limits of the quota tree, after a change of limits, relations or counters. The
    /// caller has loaded all leaves of the tree.
    pub fn load_limits(&mut self) -> Result<()> {
        let groups = match self.running.core.quotas.mode {
            QuotaMode::Off => None,
            _ => QuotaGroups::of_tree(&self.running.view(TreeId::QUOTA)?)?,
        };
        let quotas = &self.running.core.quotas;
        let is_stale = quotas.mode == QuotaMode::Classic && quotas.counted.is_none();
        let generation = self.running.core.generation;
        self.running
            .core
            .quota_limits
            .load(groups.as_ref(), is_stale, generation);
        Ok(())
    }
}

/// Returns the two keys of a relation.
#[must_use]
pub const fn relation_keys(member: QgroupId, parent: QgroupId) -> [Key; 2] {
    let relation = QgroupRelation {
        group: member,
        other: parent,
    };
    relation.keys()
}
