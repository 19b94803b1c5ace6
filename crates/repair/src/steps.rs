//! The steps of a repair, as data.

use buttress_format::{InodeNumber, TreeId, Uuid};
use core::fmt;
use std::collections::BTreeSet;

/// The possible loss of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Nothing that a reader of the volume could see before.
    #[default]
    Nothing,
    /// Attributes that no record holds any more, such as owner, mode and times.
    Attributes(&'static str),
    /// Names that lead to nothing.
    Names(u64),
    /// Another loss, in words.
    Other(&'static str),
}

impl Loss {
    /// Returns whether the step needs the owner's consent.
    #[must_use]
    pub const fn needs_consent(&self) -> bool {
        matches!(self, Self::Names(_) | Self::Other(_))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Attributes(what) | Self::Other(what) => f.write_str(what),
            Self::Names(1) => f.write_str("the name"),
            Self::Names(count) => write!(f, "{count} names"),
        }
    }
}

/// A change of a repair. The order of the variants is the order in which a round applies them:
/// inodes before the names that lead to them, names before counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edit {
    /// The extent tree, the block groups and the free-space tree are written again.
    RebuildSpace,
    /// The device tree is written again, and the counts and types of the chunk tree are set.
    RebuildDevices,
    /// The checksum tree is written again without surplus and unreadable blocks.
    RebuildChecksums,
    /// The root item names inode 256 as root directory.
    RootDirectory(TreeId),
    /// The tree gets the inode of its root directory.
    MakeRootDirectory(TreeId),
    /// The root directory is `..` in itself.
    NameRootDirectory(TreeId),
    /// An inode item from the other items of the inode.
    MakeInode(TreeId, InodeNumber),
    /// An inode with entries becomes a directory, or loses stray entries.
    Directory(TreeId, InodeNumber),
    /// Flags that a symlink cannot have are cleared.
    SymlinkFlags(TreeId, InodeNumber),
    /// All records of a name agree: both directory items, and the record of the target.
    Name(TreeId, InodeNumber, Vec<u8>),
    /// A file extent gets the generation of the volume.
    ExtentGeneration(TreeId, InodeNumber, u64),
    /// A hole gets its item.
    Hole(TreeId, InodeNumber, u64, u64),
    /// Data in a range of addresses gets checksums if another copy confirms it.
    Checksums(u64, u64),
    /// An inode without names gets a name in `lost+found`, or an orphan item if it is empty.
    LostAndFound(TreeId, InodeNumber),
    /// Link count, directory size and byte count become the sums over the items.
    Recount(TreeId, InodeNumber),
    /// Both references of a subvolume record the place that a directory confirms.
    Place {
        /// The subvolume with the directory.
        parent: TreeId,
        /// The subvolume that the directory contains.
        child: TreeId,
    },
    /// A subvolume without a place gets one in `lost+found` of the top level.
    SubvolumeToLostAndFound(TreeId),
    /// A subvolume without references gets its orphan item, so that its deletion continues.
    RootOrphanItem(TreeId),
    /// The place of a subvolume that does not exist is removed.
    ForgetSubvolume {
        /// The subvolume with the directory.
        parent: TreeId,
        /// The missing subvolume.
        child: TreeId,
    },
    /// The default subvolume becomes the top level.
    DefaultSubvolume,
    /// The uuid tree has, or has no longer, a subvolume under a uuid.
    Uuid {
        /// The subvolume.
        subvolume: TreeId,
        /// The uuid in the uuid tree.
        uuid: Uuid,
        /// Whether the tree must have the entry.
        exists: bool,
    },
    /// A quota group gets its counts: referenced and exclusive bytes.
    QuotaCount(String, u64, u64),
    /// A quota group is created.
    QuotaGroup(String),
    /// Both quota groups record their relation, or none if one does not exist.
    QuotaRelation(String, String),
    /// A commit writes all superblocks.
    Superblocks,
}

impl Edit {
    /// Returns whether the edit writes whole trees again.
    #[must_use]
    pub const fn is_rebuild(&self) -> bool {
        matches!(
            self,
            Self::RebuildSpace | Self::RebuildDevices | Self::RebuildChecksums
        )
    }

    /// Returns whether the edit changes quota groups. These edits run alone, because the engine
    /// counts what other edits use.
    #[must_use]
    pub const fn is_of_quotas(&self) -> bool {
        matches!(
            self,
            Self::QuotaCount(..) | Self::QuotaGroup(..) | Self::QuotaRelation(..)
        )
    }
}

/// A step of a plan.
#[derive(Clone, Debug)]
pub struct Step {
    /// The codes of the findings that the step repairs.
    pub codes: BTreeSet<&'static str>,
    /// The findings, in words.
    pub findings: Vec<String>,
    /// The change, in words.
    pub what: String,
    /// The records on which the change relies.
    pub evidence: &'static str,
    /// The possible loss.
    pub loss: Loss,
    /// Paths of affected files and subvolumes.
    pub affected: BTreeSet<Vec<u8>>,
    /// The change.
    pub edit: Edit,
    /// Inodes and subvolumes that the findings name beside the edit's own.
    pub hints: Hints,
}

/// The targets that the findings about a name mention.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Inodes of the same subvolume.
    pub inodes: BTreeSet<InodeNumber>,
    /// Subvolumes.
    pub subvolumes: BTreeSet<TreeId>,
}

/// A finding that the plan does not repair.
#[derive(Clone, Debug)]
pub struct Left {
    /// The code of the finding.
    pub code: &'static str,
    /// The finding, in words.
    pub finding: String,
    /// The reason.
    pub reason: String,
}

/// The steps of a repair, and the findings that it leaves.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The steps, in the order in which they run.
    pub steps: Vec<Step>,
    /// The findings without a step.
    pub left: Vec<Left>,
    /// The reason why no step can run; `None` if the steps can.
    pub blocked: Option<String>,
}

/// The result of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The items were changed.
    Changed,
    /// Nothing was changed, for this reason.
    Nothing(&'static str),
}
