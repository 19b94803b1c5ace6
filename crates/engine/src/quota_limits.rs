//! Quota limits, and the bytes that writers charge against them.
//!
//! A write charges its bytes before it makes data dirty, and fails if a group above its subvolume
//! has no bytes left. A group's use is the sum of three parts:
//!
//! - the stored counters of the group;
//! - bytes *reserved* by dirty data;
//! - bytes *landed*: written back, but not in the stored counters yet.
//!
//! A commit with simple quotas brings the stored counters up to date, so nothing is landed after
//! it. With classic quotas only a rescan does; until then, overwritten and deleted data stays
//! charged. The use is therefore never too low by this writer's own data, and a caller that is
//! refused commits or rescans, and retries.
//!
//! If a rescan is due when the volume is opened, the stored counters are *stale*. Callers then
//! rescan before the first charge to a subvolume with a limit ([`QuotaLimits::needs_count`]). If the
//! rescan fails, the limits hold for the stale counters: damage elsewhere stops no writer.
//!
//! Shared data that a clone or a snapshot adds is not charged, as in Linux. Tree blocks are not
//! charged; they are in the counters after a commit or a rescan. Data that was dirty when the first
//! limit was set is charged only once it is in the counters.
//!
//! Invariant: `pending` of a group is the sum of the charges of all subvolumes below it.

use buttress_accounts::quotas::{QuotaGroup, QuotaGroups};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, QgroupId, QgroupLimitFlags, TreeId};
use buttress_fs::error::{Error, QuotaExceeded, Result};
use buttress_locks::atomic::{AtomicBool, Ordering};
use buttress_locks::{Mutex, Rank, lock_class};
use std::collections::{BTreeMap, HashMap};

lock_class!(TableLock, "table", Rank::LEAF);

/// The limits of a volume, and the charges of this writer. See the module's documentation.
#[derive(Debug, Default)]
pub struct QuotaLimits {
    /// Whether any group has a limit. Without a limit, no call acquires the lock.
    any: AtomicBool,
    table: Mutex<Table, TableLock>,
}

#[derive(Debug, Default)]
struct Table {
    limited: BTreeMap<QgroupId, Limited>,
    /// The limited groups above each subvolume that has any.
    of_tree: HashMap<TreeId, Vec<QgroupId>>,
    charges: HashMap<TreeId, Charge>,
    /// Whether the stored counters miss data that was written before this writer opened the volume.
    is_stale: bool,
}

/// A group with a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Limited {
    max_referenced: Option<u64>,
    max_exclusive: Option<u64>,
    /// The stored counters.
    referenced: u64,
    exclusive: u64,
    pending: u64,
}

/// The bytes that a subvolume's writers charged.
#[derive(Clone, Copy, Debug, Default)]
struct Charge {
    reserved: u64,
    landed: u64,
}

impl Limited {
    fn of(group: &QuotaGroup) -> Option<Self> {
        let limit = &group.limit;
        let flag = |flag, bytes: ByteCount| limit.flags.contains(flag).then_some(bytes.get());
        let limited = Self {
            max_referenced: flag(QgroupLimitFlags::MAX_RFER, limit.max_referenced),
            max_exclusive: flag(QgroupLimitFlags::MAX_EXCL, limit.max_exclusive),
            referenced: group.info.referenced.get(),
            exclusive: group.info.exclusive.get(),
            pending: 0,
        };
        (limited.max_referenced.is_some() || limited.max_exclusive.is_some()).then_some(limited)
    }

    /// Returns the error of a write that the limits refuse.
    fn refusal(&self, group: QgroupId, wanted: u64) -> Option<QuotaExceeded> {
        let limits = [
            (false, self.max_referenced, self.referenced),
            (true, self.max_exclusive, self.exclusive),
        ];
        limits.into_iter().find_map(|(exclusive, limit, stored)| {
            let limit = limit?;
            // Clamp: stored counters come from disk; a sum beyond 64 bits exceeds every limit.
            let used = stored.saturating_add(self.pending);
            (used.saturating_add(wanted) > limit).then_some(QuotaExceeded {
                group,
                exclusive,
                limit: ByteCount::new(limit),
                used: ByteCount::new(used),
                wanted: ByteCount::new(wanted),
            })
        })
    }
}

impl QuotaLimits {
    /// Returns whether the counters of a limit of this subvolume are stale.
    pub fn needs_count(&self, tree: TreeId) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let table = self.table.lock();
        table.is_stale && table.of_tree.contains_key(&tree)
    }

    /// Uses the stored counters although they are stale, since the volume cannot be counted.
    pub fn accept_stale(&self) {
        self.table.lock().is_stale = false;
    }

    /// Returns whether writers charged bytes that the stored counters do not include.
    pub fn has_charges(&self) -> bool {
        let table = self.table.lock();
        let mut charges = table.charges.values();
        charges.any(|charge| charge.reserved > 0 || charge.landed > 0)
    }

    /// Charges bytes of new data to a subvolume, or fails and charges nothing.
    ///
    /// # Errors
    /// Fails with [`Error::QuotaExceeded`].
    pub fn charge(&self, tree: TreeId, bytes: u64) -> Result<()> {
        self.require(tree, bytes, true)
    }

    /// Checks that the limits allow bytes of new data or tree blocks, and charges nothing.
    ///
    /// # Errors
    /// Fails with [`Error::QuotaExceeded`].
    pub fn allow(&self, tree: TreeId, bytes: u64) -> Result<()> {
        self.require(tree, bytes, false)
    }

    fn require(&self, tree: TreeId, bytes: u64, charges: bool) -> Result<()> {
        if bytes == 0 || !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut table = self.table.lock();
        let Table {
            limited,
            of_tree,
            charges: charged,
            ..
        } = &mut *table;
        let groups = of_tree.get(&tree).map_or(&[][..], Vec::as_slice);
        for id in groups {
            let refused = limited.get(id).and_then(|group| group.refusal(*id, bytes));
            if let Some(exceeded) = refused
                && !buttress_faults::on("quota-limit-ignored")
            {
                return Err(Error::QuotaExceeded(exceeded));
            }
        }
        if charges {
            for id in groups {
                if let Some(group) = limited.get_mut(id) {
                    group.pending = group.pending.exact_add(bytes);
                }
            }
            let charge = charged.entry(tree).or_default();
            charge.reserved = charge.reserved.exact_add(bytes);
        }
        Ok(())
    }

    /// Takes a charge back: the data did not become dirty.
    pub fn uncharge(&self, tree: TreeId, bytes: u64) {
        if bytes == 0 || !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table.lock();
        if let Some(charge) = table.charges.get_mut(&tree) {
            // Clamp: a limit that was set meanwhile knows nothing of the charge.
            charge.reserved = charge.reserved.saturating_sub(bytes);
            table.sum_up();
        }
    }

    /// Charges space that a call allocated after [`allow`](Self::allow), until the stored counters
    /// include it.
    pub fn note_allocated(&self, tree: TreeId, bytes: u64) {
        if self.any.load(Ordering::Acquire) {
            let mut table = self.table.lock();
            let charge = table.charges.entry(tree).or_default();
            charge.landed = charge.landed.exact_add(bytes);
            table.sum_up();
        }
    }

    /// Charges a snapshot for its source's landed data, which the copied counters do not include.
    pub(crate) fn copy_charge(&self, source: TreeId, snapshot: TreeId) {
        if self.any.load(Ordering::Acquire) {
            let mut table = self.table.lock();
            let landed = table.charges.get(&source).map_or(0, |charge| charge.landed);
            let charge = Charge { reserved: 0, landed };
            table.charges.insert(snapshot, charge);
        }
    }

    /// Records that charged data was written back or given up. Its bytes stay charged until the
    /// stored counters include them.
    pub fn land(&self, tree: TreeId, bytes: u64) {
        if bytes == 0 || !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table.lock();
        if let Some(charge) = table.charges.get_mut(&tree) {
            // Clamp: data that was dirty before the first limit was set is not charged.
            let landed = bytes.min(charge.reserved);
            charge.reserved = charge.reserved.exact_sub(landed);
            charge.landed = charge.landed.exact_add(landed);
        }
    }

    /// Removes the charges of landed data, which the stored counters now include.
    pub(crate) fn settle(&self) {
        if self.any.load(Ordering::Acquire) {
            self.table.lock().settle();
        }
    }

    /// Follows a change of a group's stored counters.
    pub(crate) fn note_change(&self, group: QgroupId, by: i64) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Some(limited) = self.table.lock().limited.get_mut(&group) {
            // Clamp: the same as for the stored counters.
            limited.referenced = limited.referenced.saturating_add_signed(by);
            limited.exclusive = limited.exclusive.saturating_add_signed(by);
        }
    }

    /// Loads limits, counters and relations. `None` stands for a volume without quotas.
    pub(crate) fn load(&self, groups: Option<&QuotaGroups>, is_stale: bool) {
        let mut table = self.table.lock();
        table.is_stale = is_stale;
        table.limited.clear();
        table.of_tree.clear();
        let all = groups.into_iter().flat_map(|groups| &groups.groups);
        for (id, group) in all {
            if let Some(limited) = Limited::of(group) {
                table.limited.insert(*id, limited);
            }
        }
        self.any.store(!table.limited.is_empty(), Ordering::Release);
        if table.limited.is_empty() {
            table.charges.clear();
            return;
        }
        for (groups, id) in groups
            .into_iter()
            .flat_map(|all| all.groups.keys().map(move |id| (all, id)))
        {
            if id.level() > 0 {
                continue;
            }
            let mut limited = groups.above(*id);
            limited.insert(*id);
            limited.retain(|id| table.limited.contains_key(id));
            if !limited.is_empty() {
                let tree = TreeId::new(id.get());
                table.of_tree.insert(tree, limited.into_iter().collect());
            }
        }
        table.sum_up();
    }
}

impl Table {
    fn settle(&mut self) {
        self.charges.retain(|_, charge| {
            charge.landed = 0;
            charge.reserved > 0
        });
        self.sum_up();
    }

    /// Computes the pending bytes of all groups from the charges.
    fn sum_up(&mut self) {
        let Self {
            limited,
            of_tree,
            charges,
            ..
        } = self;
        limited.values_mut().for_each(|group| group.pending = 0);
        for (tree, charge) in charges {
            for id in of_tree.get(tree).into_iter().flatten() {
                if let Some(group) = limited.get_mut(id) {
                    group.pending = group.pending.exact_add(charge.reserved.exact_add(charge.landed));
                }
            }
        }
    }
}
