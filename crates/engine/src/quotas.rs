//! Quota changes of the running transaction, counted for the subvolume that made each extent.

use buttress_format::{ByteCount, Generation, TreeId};
use std::collections::BTreeMap;

/// The kind of quotas of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QuotaMode {
    /// No quotas.
    #[default]
    Off,
    /// Classic quotas count every reference. This crate does not update classic quotas.
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
    /// Whether the status item already records this transaction.
    pub status_written: bool,
}

impl Quotas {
    pub(crate) const fn counts_by_maker(&self) -> bool {
        matches!(self.mode, QuotaMode::Simple { .. })
    }

    /// Records that an extent was made for a tree.
    pub(crate) fn note_made(&mut self, owner: TreeId, length: ByteCount) {
        self.note(owner, length, 1);
    }

    /// Records that an extent was freed. Tree `owner` made the extent in transaction `made`.
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
        self.status_written = false;
    }
}
