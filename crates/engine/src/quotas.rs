//! The changes of quotas by the running transaction, by the subvolume that made an extent.

use buttress_format::{ByteCount, Generation, TreeId};
use std::collections::BTreeMap;

/// How the volume counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QuotaMode {
    /// Not at all.
    #[default]
    Off,
    /// Every reference: not kept up here.
    Classic,
    /// By maker, extents of this generation and newer.
    Simple {
        /// The first generation that counts.
        enabled: Generation,
    },
}

/// What the running transaction changed.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    pub mode: QuotaMode,
    /// By how many bytes each subvolume's extents grew.
    pub changes: BTreeMap<TreeId, i64>,
    /// Whether the status item says what has to be said of this transaction.
    pub status_written: bool,
}

impl Quotas {
    pub(crate) const fn counts_by_maker(&self) -> bool {
        matches!(self.mode, QuotaMode::Simple { .. })
    }

    /// An extent was made for a tree.
    pub(crate) fn note_made(&mut self, owner: TreeId, length: ByteCount) {
        self.note(owner, length, 1);
    }

    /// An extent was freed that `owner` had made in the transaction `made`.
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

    /// The next transaction begins.
    pub(crate) const fn begin(&mut self) {
        self.status_written = false;
    }
}
