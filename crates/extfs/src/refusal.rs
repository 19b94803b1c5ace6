//! The features and states of a valid volume that this crate refuses, each with its remedy.
//!
//! A reader cannot ignore an unknown `incompat` feature. This crate also refuses unknown
//! `ro_compat` features: `bigalloc`, for example, changes the meaning of the bitmaps.
//!
//! Source: ext4 documentation, sections "Super Block" and "Multiple Mount Protection".

use crate::units::{BlockNumber, InodeNumber};
use core::fmt;

/// A feature or state that this crate does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Features without support.
    #[error("the volume uses features that are not supported: {}", list(names))]
    Features {
        /// The features, each with its reason or remedy.
        names: Vec<RefusedFeature>,
    },
    /// Blocks are smaller than 4 KiB.
    #[error(
        "the block size is {bytes} bytes, and the smallest supported size is 4096. Copy the files to a new volume"
    )]
    BlockSize {
        /// The size of a block.
        bytes: u32,
    },
    /// The volume was not unmounted.
    #[error("the volume was not unmounted cleanly. Unmount it, or run `e2fsck -f`")]
    NotClean,
    /// The kernel found errors.
    #[error("the kernel recorded errors in the volume. Run `e2fsck -f`")]
    Errors,
    /// Deleted files wait for the release of their blocks.
    #[error(
        "deleted inodes, the first one {first}, wait for their removal. Mount the volume once, or run `e2fsck -f`"
    )]
    Orphans {
        /// The first inode of the list.
        first: InodeNumber,
    },
    /// The journal is on another device.
    #[error("the journal is on another device. To remove the journal, run `tune2fs -O ^has_journal`")]
    ExternalJournal,
    /// Another program uses the volume.
    #[error(
        "multiple-mount protection in block {block} has sequence 0x{sequence:08x}: another host or \
         e2fsck uses the volume. If none does, run `tune2fs -f -E clear_mmp`"
    )]
    InUse {
        /// The block of multiple-mount protection.
        block: BlockNumber,
        /// The sequence number.
        sequence: u32,
    },
}

/// The superblock's feature set that a feature belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSet {
    /// Features that a reader must support.
    Incompat,
    /// Features that a writer must support.
    RoCompat,
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incompat => "incompat",
            Self::RoCompat => "ro_compat",
        })
    }
}

/// A refused feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedFeature {
    /// The set.
    pub set: FeatureSet,
    /// The bit.
    pub bit: u32,
    /// The name as in mke2fs(8), and the remedy, if the feature is known.
    pub known: Option<(&'static str, &'static str)>,
}

impl fmt::Display for RefusedFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known {
            Some((name, remedy)) => write!(f, "{name} ({remedy})"),
            None => write!(
                f,
                "unknown {} feature 0x{:x} (use a newer version)",
                self.set, self.bit
            ),
        }
    }
}

fn list(names: &[RefusedFeature]) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    names.join(", ")
}

const COPY: &str = "copy the files to a new volume";

/// The refused features that have a name: set, bit, name, remedy.
const REFUSED: [(FeatureSet, u32, &str, &str); 13] = [
    (FeatureSet::Incompat, 0x1, "compression", COPY),
    (
        FeatureSet::Incompat,
        0x4,
        "needs_recovery",
        "mount the volume once, or run `e2fsck`",
    ),
    (
        FeatureSet::Incompat,
        0x8,
        "journal_dev",
        "the device is a journal; name the volume",
    ),
    (FeatureSet::Incompat, 0x1000, "dirdata", COPY),
    (FeatureSet::Incompat, 0x1_0000, "encrypt", COPY),
    (FeatureSet::Incompat, 0x2_0000, "casefold", COPY),
    (FeatureSet::RoCompat, 0x4, "btree_dir", COPY),
    (FeatureSet::RoCompat, 0x80, "snapshot", COPY),
    (FeatureSet::RoCompat, 0x200, "bigalloc", COPY),
    (FeatureSet::RoCompat, 0x800, "replica", COPY),
    (FeatureSet::RoCompat, 0x8000, "verity", COPY),
    (
        FeatureSet::RoCompat,
        0x1_0000,
        "orphan_present",
        "mount the volume once, or run `e2fsck`",
    ),
    (FeatureSet::RoCompat, 0x4000, "shared_blocks", COPY),
];

/// Returns the refused features among `found`, of which the bits `accepted` are supported.
pub(crate) fn refused(set: FeatureSet, found: u32, accepted: u32) -> impl Iterator<Item = RefusedFeature> {
    (0..u32::BITS)
        .filter_map(|shift| 1_u32.checked_shl(shift))
        .filter(move |bit| found & bit != 0 && accepted & bit == 0)
        .map(move |bit| RefusedFeature {
            set,
            bit,
            known: REFUSED
                .iter()
                .find(|(known, known_bit, ..)| *known == set && *known_bit == bit)
                .map(|(_, _, name, remedy)| (*name, *remedy)),
        })
}
