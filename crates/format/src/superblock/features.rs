//! Feature bits of a volume, under the names that btrfs-progs prints.
//!
//! A reader must support every incompat bit. A writer must also support every compat_ro bit.
//! Feature bits without a name are kept, so that errors can refuse them by number.
//!
//! Source: on-disk format documentation, section "Superblock"; btrfs(5), section "Filesystem
//! features".

use crate::error::{FeatureSet, Unsupported};

bitflags::bitflags! {
    /// Features that a writer must support. A volume with an unsupported feature of this set can
    /// only be read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CompatRo: u64 {
        /// A tree stores the free space.
        const FREE_SPACE_TREE = 1 << 0;
        /// The free space tree is up to date.
        const FREE_SPACE_TREE_VALID = 1 << 1;
        /// The volume has files with fs-verity.
        const VERITY = 1 << 2;
        /// A tree of its own holds the block group items.
        const BLOCK_GROUP_TREE = 1 << 3;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Features that a reader must support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Incompat: u64 {
        /// Back references have the form that all current volumes use.
        const MIXED_BACKREF = 1 << 0;
        /// The default subvolume is not the top level.
        const DEFAULT_SUBVOL = 1 << 1;
        /// Data and metadata share block groups.
        const MIXED_GROUPS = 1 << 2;
        /// Extents may be compressed with LZO.
        const COMPRESS_LZO = 1 << 3;
        /// Extents may be compressed with zstd.
        const COMPRESS_ZSTD = 1 << 4;
        /// Tree blocks may be larger than a page.
        const BIG_METADATA = 1 << 5;
        /// Inodes may have more hard links than one item can hold.
        const EXTENDED_IREF = 1 << 6;
        /// Chunks may use RAID5 or RAID6.
        const RAID56 = 1 << 7;
        /// Tree blocks are recorded as metadata items.
        const SKINNY_METADATA = 1 << 8;
        /// Holes in files have no items.
        const NO_HOLES = 1 << 9;
        /// Tree blocks carry another uuid than the one that users see.
        const METADATA_UUID = 1 << 10;
        /// Chunks may use RAID1C3 or RAID1C4.
        const RAID1C34 = 1 << 11;
        /// The devices are zoned.
        const ZONED = 1 << 12;
        /// The volume has several extent trees. The feature of several extent trees was never
        /// finished.
        const EXTENT_TREE_V2 = 1 << 13;
        /// A tree maps extents to their stripes.
        const RAID_STRIPE_TREE = 1 << 14;
        /// Quotas charge each extent to the subvolume that created it.
        const SIMPLE_QUOTA = 1 << 16;
        /// A tree maps relocated addresses to their new addresses.
        const REMAP_TREE = 1 << 17;
        const _ = !0;
    }
}

impl Incompat {
    /// The features that this version can read.
    pub const READABLE: Self = Self::MIXED_BACKREF
        .union(Self::DEFAULT_SUBVOL)
        .union(Self::MIXED_GROUPS)
        .union(Self::COMPRESS_LZO)
        .union(Self::COMPRESS_ZSTD)
        .union(Self::BIG_METADATA)
        .union(Self::EXTENDED_IREF)
        .union(Self::RAID56)
        .union(Self::SKINNY_METADATA)
        .union(Self::NO_HOLES)
        .union(Self::METADATA_UUID)
        .union(Self::RAID1C34)
        .union(Self::ZONED)
        .union(Self::RAID_STRIPE_TREE)
        .union(Self::SIMPLE_QUOTA);

    /// Refuses features that this version cannot read.
    ///
    /// # Errors
    /// Returns the names of the unsupported features.
    pub fn require_readable(self) -> Result<(), Unsupported> {
        match self.difference(Self::READABLE) {
            rest if rest.is_empty() => Ok(()),
            rest => Err(Unsupported {
                set: FeatureSet::Incompat,
                names: rest.names(),
            }),
        }
    }

    /// Returns the names of the set bits, ordered by number. All bits without a name together form
    /// one `UNKNOWN_FLAG_0x…`.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names(
            self.iter_names().map(|(name, flag)| (name, flag.bits())),
            self.bits(),
        )
    }
}

impl CompatRo {
    /// The bits that this version supports. If a volume has any other read-only compatible feature,
    /// it cannot be written.
    pub const KNOWN: Self = Self::FREE_SPACE_TREE
        .union(Self::FREE_SPACE_TREE_VALID)
        .union(Self::VERITY)
        .union(Self::BLOCK_GROUP_TREE);

    /// Refuses features that this version can read but not write.
    ///
    /// # Errors
    /// Returns the names of the unsupported features.
    pub fn require_writable(self) -> Result<(), Unsupported> {
        match self.difference(Self::KNOWN) {
            rest if rest.is_empty() => Ok(()),
            rest => Err(Unsupported {
                set: FeatureSet::CompatRo,
                names: rest.names(),
            }),
        }
    }

    /// Returns the names of the set bits, ordered by number. All bits without a name together form
    /// one `UNKNOWN_FLAG_0x…`.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names(
            self.iter_names().map(|(name, flag)| (name, flag.bits())),
            self.bits(),
        )
    }
}

bitflags::bitflags! {
    /// The state of the volume in its superblock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SuperblockFlags: u64 {
        /// A kernel or a tool has written the superblock. Only an unfinished mkfs leaves this flag
        /// unset.
        const WRITTEN = 1 << 0;
        /// A flag of tree blocks, without a meaning in superblocks.
        const RELOC = 1 << 1;
        /// The kernel stopped on an error.
        const ERROR = 1 << 2;
        /// The volume is a read-only seed, which other devices can extend.
        const SEEDING = 1 << 32;
        /// The volume is an image of metadata without data.
        const METADUMP = 1 << 33;
        /// The volume is an image of metadata without data, in the second format.
        const METADUMP_V2 = 1 << 34;
        /// A change of the fsid has begun and not finished.
        const CHANGING_FSID = 1 << 35;
        /// A change of the fsid in the second format has begun and not finished.
        const CHANGING_FSID_V2 = 1 << 36;
        /// A conversion to or from block-group-tree has begun and not finished.
        const CHANGING_BG_TREE = 1 << 38;
        /// A change of the data checksums has begun and not finished.
        const CHANGING_DATA_CSUM = 1 << 39;
        /// A change of the metadata checksums has begun and not finished.
        const CHANGING_META_CSUM = 1 << 40;
        const _ = !0;
    }
}

/// An unfinished change of a whole volume by btrfstune.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnfinishedChange {
    /// The part of the volume that the unfinished change affects.
    pub what: &'static str,
    /// The remedy: the way to finish the change.
    pub remedy: &'static str,
}

impl SuperblockFlags {
    /// The flags of images that hold a volume's metadata and none of its data.
    pub const METADATA_IMAGE: Self = Self::METADUMP.union(Self::METADUMP_V2);

    /// The flags of a change of the checksums.
    pub const CHANGING_CHECKSUMS: Self = Self::CHANGING_DATA_CSUM.union(Self::CHANGING_META_CSUM);

    /// Returns true if an unfinished change rewrites tree blocks in place, so that the copies of a
    /// block may differ.
    #[must_use]
    pub const fn rewrites_blocks(self) -> bool {
        self.intersects(Self::CHANGING_FSID.union(Self::CHANGING_META_CSUM))
    }

    /// Returns the unfinished change, if the flags name one.
    #[must_use]
    pub fn unfinished(self) -> Option<UnfinishedChange> {
        let changes = [
            (
                Self::CHANGING_FSID,
                "the fsid of all blocks",
                "to finish it, run `buttress tune -u`",
            ),
            (
                Self::CHANGING_FSID_V2,
                "the fsid by a metadata uuid",
                "to finish it, run `buttress tune -m`",
            ),
            (
                Self::CHANGING_BG_TREE,
                "the place of block group items",
                "to finish it, run `buttress tune --convert-to-block-group-tree`",
            ),
            (
                Self::CHANGING_CHECKSUMS,
                "the checksums",
                "to finish it, run `buttress tune --csum` with the same algorithm",
            ),
        ];
        changes
            .into_iter()
            .find(|(flags, ..)| self.intersects(*flags))
            .map(|(_, what, remedy)| UnfinishedChange { what, remedy })
    }

    /// Returns the names of the set bits, ordered by number. All feature bits without a name
    /// together form one `UNKNOWN_FLAG_0x…`.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names(
            self.iter_names().map(|(name, flag)| (name, flag.bits())),
            self.bits(),
        )
    }
}

fn names(named: impl Iterator<Item = (&'static str, u64)>, bits: u64) -> Vec<String> {
    let mut unknown = bits;
    let mut names = Vec::new();
    for (name, flag) in named {
        unknown &= !flag;
        names.push(name.to_owned());
    }
    if unknown != 0 {
        names.push(format!("UNKNOWN_FLAG_0x{unknown:x}"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_refused_by_name() {
        assert_eq!(Incompat::READABLE.require_readable(), Ok(()));
        let found = Incompat::from_bits_retain((1 << 13) | (1 << 8) | (1 << 60)).require_readable();
        assert_eq!(
            found.unwrap_err().to_string(),
            "the volume uses incompat features that this version does not support: \
             EXTENT_TREE_V2, UNKNOWN_FLAG_0x1000000000000000"
        );
        assert_eq!(CompatRo::KNOWN.require_writable(), Ok(()));
        let names = CompatRo::from_bits_retain(0x11)
            .require_writable()
            .unwrap_err()
            .names;
        assert_eq!(names, ["UNKNOWN_FLAG_0x10"]);
    }
}
