//! Quota changes of the running transaction.
//!
//! Simple quotas count each extent for the subvolume that made it. For classic quotas, the
//! transaction only records whether it changed which subvolumes reach an extent, because counters
//! are exact only as long as no transaction does.

use buttress_accounts::delayed_references::{ExtentKind, Pending, Reference};
use buttress_format::{ByteCount, Generation, TreeId};
use std::collections::BTreeMap;

/// The kind of quotas of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QuotaMode {
    /// No quotas.
    #[default]
    Off,
    /// Classic quotas count every reference. A rescan counts them; commits do not update them.
    Classic,
    /// Simple quotas count by maker, for extents of generation `enabled` and newer.
    Simple {
        /// The first generation whose extents count.
        enabled: Generation,
    },
}

/// The quota changes of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    pub mode: QuotaMode,
    /// The change of each subvolume's bytes.
    pub changes: BTreeMap<TreeId, i64>,
    /// The recorded state of the quota status item, if the item records this transaction: whether a
    /// rescan is due.
    pub status_written: Option<bool>,
    /// The last transaction that changed which subvolumes reach an extent, if it is known.
    pub files_changed: Generation,
    /// The last commit that counters of classic quotas count, if it is known.
    pub counted: Option<Generation>,
    /// The number of changes of groups and relations since the volume was opened.
    pub group_changes: u64,
}

impl Quotas {
    pub(crate) const fn counts_by_maker(&self) -> bool {
        matches!(self.mode, QuotaMode::Simple { .. })
    }

    /// Records that transaction `made` made an extent for a tree.
    pub(crate) fn note_made(&mut self, owner: TreeId, length: ByteCount, made: Generation) {
        if let QuotaMode::Simple { enabled } = self.mode
            && made >= enabled
        {
            self.note(owner, length, 1);
        }
    }

    /// Records that an extent was freed. Tree `owner` made the freed extent in transaction `made`.
    pub(crate) fn note_freed(&mut self, owner: TreeId, length: ByteCount, made: Generation) {
        if let QuotaMode::Simple { enabled } = self.mode
            && made >= enabled
        {
            self.note(owner, length, -1);
        }
    }

    fn note(&mut self, owner: TreeId, length: ByteCount, sign: i64) {
        if self.counts_by_maker() && owner.as_subvolume().is_some() {
            let bytes = i64::try_from(length.get()).unwrap_or(i64::MAX);
            let sum = self.changes.entry(owner).or_default();
            *sum = sum.saturating_add(bytes.saturating_mul(sign));
        }
    }

    /// Resets the quota changes for the next transaction.
    pub(crate) const fn begin(&mut self) {
        self.status_written = None;
    }

    /// Records a change of references to an extent. `generation` is the running transaction.
    pub(crate) fn note_references(&mut self, pending: &Pending, generation: Generation) {
        if changes_owners(pending) {
            self.files_changed = generation;
        }
    }
}

/// Returns whether pending changes may change which subvolumes reach an extent.
pub(crate) fn changes_owners(pending: &Pending) -> bool {
    let is_of_files = |(reference, _): &(Reference, i64)| match reference {
        Reference::TreeBlock { root } => root.holds_files(),
        Reference::SharedBlock { .. } | Reference::Data { .. } | Reference::SharedData { .. } => true,
    };
    pending.kind == ExtentKind::Data || pending.changes.iter().any(is_of_files)
}
