//! The counters of quotas: charges of writes, and the rescan of classic quotas.
//!
//! A rescan of classic quotas counts the last commit from the trees of files alone, beside readers
//! and writers. Its numbers are exact if no subvolume changed in the meantime. The operation that
//! writes the counters checks this under the edit lock. After `RESCANS_MAX` scans beside writers
//! the counters of the last scan stay, and the state records that another rescan is due.

use super::places_of_items;
use crate::areas::Quotas;
use buttress_accounts::Accounts as _;
use buttress_accounts::space::accounting::Options;
use buttress_engine::quota_tree::QuotaKind;
use buttress_engine::reservation::Need;
use buttress_format::{Key, QgroupInfo, SubvolumeId, TreeId};
use buttress_fs::error::{Error, QuotaRefusal, Result};
use buttress_fs::progress::Progress;

/// The most scans of a rescan beside writers.
const RESCANS_MAX: usize = 3;

/// The result of a rescan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rescanned {
    /// The number of counted quota groups.
    pub groups: usize,
    /// Whether the counters are exact. If not, other writers changed the volume during each scan.
    pub is_exact: bool,
}

impl Quotas<'_> {
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
