//! What a check says at its end: findings, states, totals.

use crate::finding::{Finding, Grade, Level};
use buttress_format::{
    ByteCount, DeviceId, Generation, InodeNumber, Logical, Physical, SubvolumeId, TreeId, Uuid,
};
use core::fmt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The steps of a check, in the order and by the names of `btrfs check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A pending log.
    Log,
    /// Superblocks, devices, root items.
    Roots,
    /// Chunks, block groups, extents, back references, and the structure of all trees.
    Extents,
    /// The free space tree.
    FreeSpace,
    /// Inodes, names, file extents.
    Files,
    /// Checksums of data.
    Checksums,
    /// Places of subvolumes, uuids.
    RootReferences,
    /// Quota groups.
    Quotas,
}

impl Step {
    /// All steps in order.
    pub const ALL: [Self; 8] = [
        Self::Log,
        Self::Roots,
        Self::Extents,
        Self::FreeSpace,
        Self::Files,
        Self::Checksums,
        Self::RootReferences,
        Self::Quotas,
    ];

    /// Its number, from 1.
    #[must_use]
    pub const fn number(self) -> u8 {
        (self as u8).saturating_add(1)
    }

    /// What is checked, in the words of `btrfs check`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Roots => "root items",
            Self::Extents => "extents",
            Self::FreeSpace => "free space tree",
            Self::Files => "fs roots",
            Self::Checksums => "csums",
            Self::RootReferences => "root refs",
            Self::Quotas => "quota groups",
        }
    }
}

/// A state of a volume that is worth knowing and no damage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Note {
    /// A log waits for replay.
    PendingLog {
        /// Where it begins.
        logical: Logical,
        /// How many subvolumes it is of.
        subvolumes: u64,
        /// How many tree blocks it takes.
        blocks: u64,
    },
    /// A log of a subvolume that is not there any more; replay passes it over.
    LogOfNoSubvolume {
        /// The subvolume.
        subvolume: TreeId,
    },
    /// A copy of the superblock that was never written: there is nothing but zeros in its place.
    SuperblockNotWritten {
        /// The device.
        device: DeviceId,
        /// Where it would lie.
        physical: Physical,
    },
    /// A superblock is of an earlier commit: a crash between the primary and its copies leaves that.
    SuperblockBehind {
        /// Where it lies.
        physical: Physical,
        /// Its generation.
        generation: Generation,
        /// The volume's.
        expected: Generation,
    },
    /// A subvolume was deleted and is not yet gone.
    BeingDeleted {
        /// The subvolume.
        subvolume: TreeId,
        /// Whether a part of it is gone.
        half: bool,
    },
    /// Inodes that were deleted while open, to be cleaned up by the next mount.
    Orphans {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// How many.
        count: u64,
    },
    /// An orphan item without an inode: it was deleted, and the item is by the next mount.
    OrphanItemLeftOver {
        /// The subvolume.
        subvolume: SubvolumeId,
        /// The inode that is gone.
        inode: InodeNumber,
    },
    /// An orphan item of a subvolume that is gone, which goes with the next mount.
    RootOrphanItemLeftOver {
        /// The subvolume.
        subvolume: TreeId,
    },
    /// A cache of free inode numbers, as kernels before 5.11 kept them on request. It is not used any more.
    InodeCache {
        /// The subvolume.
        subvolume: SubvolumeId,
    },
    /// A balance was interrupted and goes on with the next mount.
    BalanceInterrupted,
    /// A replacement of a device was interrupted.
    ReplaceInterrupted,
    /// A tree of a relocation that was interrupted.
    RelocationTree {
        /// The tree that it mirrors.
        tree: u64,
    },
    /// The free space tree is marked as not valid; the next mount makes it anew.
    FreeSpaceTreeInvalid,
    /// Free space is kept in the v1 cache, which is not looked into.
    FreeSpaceCacheV1,
    /// There are old v1 cache files, which are not in use.
    FreeSpaceCacheStale,
    /// Free space information below the first block group: older versions of mkfs.btrfs leave it.
    FreeSpaceBelowBlockGroups {
        /// Where it begins.
        logical: Logical,
        /// How long it is.
        length: ByteCount,
    },
    /// The uuid tree is not complete; the next mount completes it.
    UuidTreeStale,
    /// A uuid entry of a subvolume that is being deleted, or of none.
    UuidLeftOver {
        /// The uuid.
        uuid: Uuid,
    },
    /// A root directory in the uuid tree: mkfs.btrfs 4.16 to 4.19 made one, and nothing uses it.
    UuidTreeDirectory,
    /// Quotas are marked as inconsistent: their counts wait for a rescan.
    QuotasInconsistent,
    /// A rescan of quotas was interrupted.
    QuotaRescan,
    /// Something was not checked.
    NotChecked {
        /// What, and why.
        what: String,
    },
}

impl Note {
    /// The code of the note, which stays the same between versions.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PendingLog { .. } => "pending-log",
            Self::LogOfNoSubvolume { .. } => "log-of-no-subvolume",
            Self::SuperblockNotWritten { .. } => "superblock-not-written",
            Self::SuperblockBehind { .. } => "superblock-behind",
            Self::BeingDeleted { .. } => "being-deleted",
            Self::Orphans { .. } => "orphans",
            Self::OrphanItemLeftOver { .. } => "orphan-item-left-over",
            Self::RootOrphanItemLeftOver { .. } => "root-orphan-item-left-over",
            Self::InodeCache { .. } => "inode-cache",
            Self::BalanceInterrupted => "balance-interrupted",
            Self::ReplaceInterrupted => "replace-interrupted",
            Self::RelocationTree { .. } => "relocation-tree",
            Self::FreeSpaceTreeInvalid => "free-space-tree-invalid",
            Self::FreeSpaceCacheV1 => "free-space-cache-v1",
            Self::FreeSpaceCacheStale => "free-space-cache-stale",
            Self::FreeSpaceBelowBlockGroups { .. } => "free-space-below-block-groups",
            Self::UuidTreeStale => "uuid-tree-stale",
            Self::UuidLeftOver { .. } => "uuid-left-over",
            Self::UuidTreeDirectory => "uuid-tree-directory",
            Self::QuotasInconsistent => "quotas-inconsistent",
            Self::QuotaRescan => "quota-rescan",
            Self::NotChecked { .. } => "not-checked",
        }
    }

    /// Always [`Level::Note`].
    #[must_use]
    pub const fn level(&self) -> Level {
        Level::Note
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PendingLog {
                logical,
                subvolumes,
                blocks,
            } => {
                let (of, s) = (subvolumes, if *subvolumes == 1 { "" } else { "s" });
                write!(
                    f,
                    "a log at {logical} is pending replay ({of} subvolume{s}, {blocks} blocks)"
                )
            }
            Self::LogOfNoSubvolume { subvolume } => {
                write!(
                    f,
                    "the log has a part for subvolume {subvolume}, which no longer exists"
                )
            }
            Self::SuperblockNotWritten { device, physical } => {
                write!(
                    f,
                    "device {device}: the superblock at {physical} was never written"
                )
            }
            Self::OrphanItemLeftOver { subvolume, inode } => {
                write!(
                    f,
                    "subvolume {subvolume}: an orphan item is left for inode {inode}, which no longer exists"
                )
            }
            Self::RootOrphanItemLeftOver { subvolume } => {
                write!(
                    f,
                    "an orphan item is left for subvolume {subvolume}, which no longer exists"
                )
            }
            Self::InodeCache { subvolume } => {
                write!(
                    f,
                    "subvolume {subvolume} has an inode cache, which is no longer used"
                )
            }
            Self::SuperblockBehind {
                physical,
                generation,
                expected,
            } => write!(
                f,
                "the superblock at {physical} is from an earlier commit (found generation {generation}, expected {expected})"
            ),
            Self::BeingDeleted { subvolume, half } => {
                let progress = if *half { ", and partly gone" } else { "" };
                write!(f, "subvolume {subvolume} is being deleted{progress}")
            }
            Self::Orphans { subvolume, count } => {
                write!(
                    f,
                    "subvolume {subvolume} has {count} orphans, which the next mount cleans up"
                )
            }
            Self::BalanceInterrupted => f.write_str("a balance was interrupted"),
            Self::ReplaceInterrupted => f.write_str("a device replacement was interrupted"),
            Self::RelocationTree { tree } => write!(f, "tree {tree} is being relocated"),
            Self::FreeSpaceTreeInvalid => f.write_str("the free space tree is marked as not valid"),
            Self::FreeSpaceCacheV1 => f.write_str("the v1 space cache is in use; it is not checked"),
            Self::FreeSpaceCacheStale => f.write_str("an old v1 space cache exists, which is not in use"),
            Self::FreeSpaceBelowBlockGroups { logical, length } => write!(
                f,
                "free space information at {logical} ({length} bytes) is left from mkfs.btrfs"
            ),
            Self::UuidTreeStale => f.write_str("the uuid tree is incomplete"),
            Self::UuidLeftOver { uuid } => {
                write!(f, "the uuid tree has {uuid} of a subvolume that no longer exists")
            }
            Self::UuidTreeDirectory => {
                f.write_str("the uuid tree has a root directory, which mkfs.btrfs 4.16 to 4.19 made")
            }
            Self::QuotasInconsistent => f.write_str("quotas are marked as inconsistent"),
            Self::QuotaRescan => f.write_str("a rescan of quotas was interrupted"),
            Self::NotChecked { what } => write!(f, "not checked: {what}"),
        }
    }
}

/// A finding and what it touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The finding.
    pub finding: Finding,
    /// Paths of files and subvolumes that it touches, from the top level, at most
    /// [`Options::affected_max`](crate::Options::affected_max); empty where that could not be told.
    pub affected: Vec<Vec<u8>>,
}

/// What there is on the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of all extents.
    pub bytes_used: ByteCount,
    /// Bytes of checksums.
    pub checksum_bytes: ByteCount,
    /// Bytes of tree blocks.
    pub tree_bytes: ByteCount,
    /// Those of subvolumes.
    pub file_tree_bytes: ByteCount,
    /// Those of the extent tree.
    pub extent_tree_bytes: ByteCount,
    /// Bytes of tree blocks that are not used.
    pub tree_waste_bytes: ByteCount,
    /// Bytes of data extents.
    pub data_bytes: ByteCount,
    /// Bytes that files refer to.
    pub referenced_bytes: ByteCount,
    /// Bytes of data that were compared with their checksums.
    pub verified_bytes: ByteCount,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was found, in order of steps; at most [`Options::findings_max`](crate::Options::findings_max).
    pub findings: Vec<Reported>,
    /// How many findings of each code there are, those that were not kept included.
    pub counts: BTreeMap<&'static str, u64>,
    /// States that are worth knowing.
    pub notes: Vec<Note>,
    /// What there is.
    pub totals: Totals,
    /// Steps that the volume has nothing for, with the reason.
    pub skipped: BTreeMap<Step, &'static str>,
}

impl Report {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }

    /// The worst grade of what was found, what was not kept included.
    #[must_use]
    pub fn worst(&self) -> Option<Grade> {
        let known = Finding::CODES.iter();
        known
            .filter(|(code, ..)| self.counts.contains_key(code))
            .map(|(_, grade, _)| *grade)
            .max()
    }

    /// The highest level of all that there is to say; `None` where there is nothing.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        let notes = self.notes.iter().map(Note::level);
        notes.chain(self.worst().map(Grade::level)).max()
    }

    /// How many findings there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Takes findings from all threads. Of more than it may keep, it keeps the first ones in their order, so that the
/// outcome does not depend on which thread was faster.
#[derive(Debug)]
pub(crate) struct Collector {
    most: usize,
    inner: Mutex<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    findings: BTreeSet<(Step, Finding)>,
    counts: BTreeMap<&'static str, u64>,
    notes: BTreeSet<Note>,
    skipped: BTreeMap<Step, &'static str>,
}

/// More notes than this say nothing new.
const NOTES_MAX: usize = 10_000;

impl Collector {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            inner: Mutex::default(),
        }
    }

    /// Takes a finding. One that is kept already does not count again.
    pub(crate) fn find(&self, finding: Finding) {
        let mut inner = self.inner.lock();
        let code = finding.code();
        if inner.findings.insert((finding.step(), finding)) {
            let count = inner.counts.entry(code).or_default();
            *count = count.saturating_add(1);
            if inner.findings.len() > self.most {
                inner.findings.pop_last();
            }
        }
    }

    pub(crate) fn note(&self, note: Note) {
        let notes = &mut self.inner.lock().notes;
        if notes.len() < NOTES_MAX {
            notes.insert(note);
        }
    }

    pub(crate) fn skip(&self, step: Step, reason: &'static str) {
        self.inner.lock().skipped.insert(step, reason);
    }

    /// Why a step has nothing to do.
    pub(crate) fn skipped(&self, step: Step) -> Option<&'static str> {
        self.inner.lock().skipped.get(&step).copied()
    }

    /// Whether the tree block at `logical` was found to have no good copy.
    pub(crate) fn is_lost(&self, logical: Logical) -> bool {
        let inner = self.inner.lock();
        inner.findings.iter().any(|(_, finding)| {
            matches!(finding, Finding::TreeBlockDamaged { logical: lost, .. } if *lost == logical)
        })
    }

    /// The report, without what the findings touch.
    pub(crate) fn finish(self, totals: Totals) -> Report {
        let Collected {
            findings,
            counts,
            notes,
            skipped,
        } = self.inner.into_inner();
        Report {
            findings: findings
                .into_iter()
                .map(|(_, finding)| Reported {
                    finding,
                    affected: Vec::new(),
                })
                .collect(),
            counts,
            notes: notes.into_iter().collect(),
            totals,
            skipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_keeps_the_first_in_order_and_counts_all() {
        let collector = Collector::new(2);
        for group in [5_u64, 3, 9, 3, 1] {
            collector.find(Finding::FreeSpaceInfoMissing {
                logical: Logical::new(group),
            });
        }
        collector.find(Finding::TreeMissing { tree: TreeId::FS });
        let report = collector.finish(Totals::default());
        let kept: Vec<String> = report
            .findings
            .iter()
            .map(|reported| reported.finding.to_string())
            .collect();
        assert_eq!(
            kept,
            [
                "tree 5 has no root item",
                "block group 1 has no free space information"
            ]
        );
        assert_eq!(report.count(), 5);
        assert_eq!(report.worst(), Some(Grade::Loss));
    }

    #[test]
    fn codes_are_unique_and_steps_are_numbered() {
        let mut codes: Vec<_> = Finding::CODES.iter().map(|(code, ..)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Finding::CODES.len());
        assert_eq!(Step::ALL.map(Step::number), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
