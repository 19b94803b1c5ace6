//! The report of a check: findings, notes, totals.

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
    /// Root references of subvolumes, and uuids.
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

    /// Returns the step's number, from 1.
    #[must_use]
    pub const fn number(self) -> u8 {
        (self as u8).saturating_add(1)
    }

    /// Returns the name of the step in the terms of `btrfs check`.
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

/// A state of a volume that a user should know and that is no damage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Note {
    /// A pending log.
    PendingLog {
        /// The address of the log root tree.
        logical: Logical,
        /// The number of logged subvolumes.
        subvolumes: u64,
        /// The number of tree blocks.
        blocks: u64,
    },
    /// The log of a subvolume that no longer exists; the replay skips it.
    LogOfNoSubvolume {
        /// The id of the subvolume that no longer exists.
        subvolume: TreeId,
    },
    /// A superblock copy that was never written: its place has only zeros.
    SuperblockNotWritten {
        /// The id of the device.
        device: DeviceId,
        /// The offset of the copy.
        physical: Physical,
    },
    /// A superblock of an earlier commit, which a crash leaves between the writes of the primary
    /// and its copies.
    SuperblockBehind {
        /// The offset of the superblock.
        physical: Physical,
        /// The generation of the superblock.
        generation: Generation,
        /// The generation of the volume's last commit.
        expected: Generation,
    },
    /// A deleted subvolume that is not completely dropped.
    BeingDeleted {
        /// The id of the subvolume.
        subvolume: TreeId,
        /// Whether a part of the subvolume's tree is already dropped.
        half: bool,
    },
    /// Inodes that were deleted while open. The next mount removes such inodes.
    Orphans {
        /// The id of the subvolume.
        subvolume: SubvolumeId,
        /// The number of pending inodes.
        count: u64,
    },
    /// An orphan item of a deleted inode. The next mount removes the orphan item.
    OrphanItemLeftOver {
        /// The id of the subvolume.
        subvolume: SubvolumeId,
        /// The number of the deleted inode.
        inode: InodeNumber,
    },
    /// An orphan item of a dropped subvolume. The next mount in Linux removes this orphan item.
    RootOrphanItemLeftOver {
        /// The id of the subvolume.
        subvolume: TreeId,
    },
    /// A cache of free inode numbers, which kernels before 5.11 kept on request. Newer kernels do
    /// not use this cache.
    InodeCache {
        /// The id of the subvolume.
        subvolume: SubvolumeId,
    },
    /// An interrupted balance, which continues at the next mount.
    BalanceInterrupted,
    /// An interrupted device replacement.
    ReplaceInterrupted,
    /// A tree of an interrupted relocation.
    RelocationTree {
        /// The id of the tree that the relocation tree mirrors.
        tree: u64,
    },
    /// The free-space tree is marked as invalid; the next mount rebuilds it.
    FreeSpaceTreeInvalid,
    /// Free space is recorded in the v1 cache, which the check does not read.
    FreeSpaceCacheV1,
    /// Old v1 cache files exist that are not in use.
    FreeSpaceCacheStale,
    /// Free-space items below the first block group, as older versions of mkfs.btrfs leave them.
    FreeSpaceBelowBlockGroups {
        /// The first address of the range.
        logical: Logical,
        /// The length of the range, in bytes.
        length: ByteCount,
    },
    /// The uuid tree is incomplete; the next mount completes it.
    UuidTreeStale,
    /// A uuid entry of a subvolume that is being dropped, or that does not exist.
    UuidLeftOver {
        /// The uuid of the entry.
        uuid: Uuid,
    },
    /// A root directory in the uuid tree, made by mkfs.btrfs 4.16 to 4.19. No feature uses this
    /// root directory of the uuid tree.
    UuidTreeDirectory,
    /// Quotas are marked as inconsistent, and need a rescan.
    QuotasInconsistent,
    /// A quota rescan was interrupted.
    QuotaRescan,
    /// A part of the volume was not checked.
    NotChecked {
        /// The part, and the reason.
        what: String,
    },
}

impl Note {
    /// Returns the code of the note, which never changes between versions.
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

    /// Returns [`Level::Note`].
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

/// A finding and the files that it affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The finding.
    pub finding: Finding,
    /// Paths of affected files and subvolumes from the top level, at most
    /// [`Options::affected_max`](crate::Options::affected_max); empty if they are unknown.
    pub affected: Vec<Vec<u8>>,
}

/// Sums over the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of all extents.
    pub bytes_used: ByteCount,
    /// Bytes of checksums.
    pub checksum_bytes: ByteCount,
    /// Bytes of tree blocks.
    pub tree_bytes: ByteCount,
    /// Bytes of tree blocks of subvolumes.
    pub file_tree_bytes: ByteCount,
    /// Bytes of tree blocks of the extent tree.
    pub extent_tree_bytes: ByteCount,
    /// The number of unused bytes in tree blocks.
    pub tree_waste_bytes: ByteCount,
    /// Bytes of data extents.
    pub data_bytes: ByteCount,
    /// The number of bytes that files refer to.
    pub referenced_bytes: ByteCount,
    /// Bytes of data that were verified against their checksums.
    pub verified_bytes: ByteCount,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The findings, in order of steps; at most
    /// [`Options::findings_max`](crate::Options::findings_max).
    pub findings: Vec<Reported>,
    /// The number of findings for each code, including those that were not kept.
    pub counts: BTreeMap<&'static str, u64>,
    /// Notes on states that are no damage.
    pub notes: Vec<Note>,
    /// Sums over the volume.
    pub totals: Totals,
    /// Steps that do not apply to the volume, with the reason.
    pub skipped: BTreeMap<Step, &'static str>,
}

impl Report {
    /// Returns whether there are no findings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the most severe grade of all findings, including those that were not kept.
    #[must_use]
    pub fn worst(&self) -> Option<Grade> {
        let known = Finding::CODES.iter();
        known
            .filter(|(code, ..)| self.counts.contains_key(code))
            .map(|(_, grade, _)| *grade)
            .max()
    }

    /// Returns the highest level of findings and notes; `None` if there are none.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        let notes = self.notes.iter().map(Note::level);
        notes.chain(self.worst().map(Grade::level)).max()
    }

    /// Returns the number of findings.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Collects findings from all threads. If the findings are too many, the collector keeps the first
/// ones in their order, so that the result does not depend on the speed of threads.
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

/// The most notes that the collector keeps; more would repeat the same facts.
const NOTES_MAX: usize = 10_000;

impl Collector {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            inner: Mutex::default(),
        }
    }

    /// Adds a finding. A duplicate of a finding that the report has does not count again.
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

    /// Returns the reason why a step of the check does not apply.
    pub(crate) fn skipped(&self, step: Step) -> Option<&'static str> {
        self.inner.lock().skipped.get(&step).copied()
    }

    /// Returns whether the check found no valid copy of the tree block at `logical`.
    pub(crate) fn is_lost(&self, logical: Logical) -> bool {
        let inner = self.inner.lock();
        inner.findings.iter().any(|(_, finding)| {
            matches!(finding, Finding::TreeBlockDamaged { logical: lost, .. } if *lost == logical)
        })
    }

    /// Returns the report, without affected files.
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
