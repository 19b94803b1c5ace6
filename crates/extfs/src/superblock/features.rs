//! The features that a volume can have here. Other features of the last two sets are refused.
//!
//! Source: ext4 documentation, section "Super Block".

bitflags::bitflags! {
    /// Features that older programs can ignore.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// A journal.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks reserved for the growth of the descriptor table.
        const RESIZE_INODE = 0x10;
        /// Directories with hash trees.
        const DIR_INDEX = 0x20;
        /// Superblock copies in two groups that the superblock names.
        const SPARSE_SUPER2 = 0x200;
        /// A file that lists deleted inodes in use.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features that a reader must support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Directory entries have the type of their inode.
        const FILETYPE = 0x2;
        /// Group descriptors are distributed over the volume.
        const META_BG = 0x10;
        /// Files with extent trees.
        const EXTENTS = 0x40;
        /// More than 2^32 blocks, and large group descriptors.
        const SIXTY_FOUR_BIT = 0x80;
        /// Protection from mounts by several hosts.
        const MMP = 0x100;
        /// Bitmaps and inode tables of several groups are stored together.
        const FLEX_BG = 0x200;
        /// Values of attributes in inodes of their own.
        const EA_INODE = 0x400;
        /// The superblock has the start of checksums.
        const CSUM_SEED = 0x2000;
        /// Directories above 2 GiB.
        const LARGEDIR = 0x4000;
        /// Content of small files in inodes.
        const INLINE_DATA = 0x8000;
    }

    /// Features that a writer must support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Superblock copies only in groups 0 and 1 and the powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x1;
        /// A file above 2 GiB exists.
        const LARGE_FILE = 0x2;
        /// Block counts of inodes have 48 bits, and a unit by inode.
        const HUGE_FILE = 0x8;
        /// Group descriptors have CRC-16 checksums (`uninit_bg`).
        const GDT_CSUM = 0x10;
        /// A directory with an unknown number of links has a link count of 1.
        const DIR_NLINK = 0x20;
        /// Inodes have fields beyond the first 128 bytes.
        const EXTRA_ISIZE = 0x40;
        /// Quotas in inodes of their own.
        const QUOTA = 0x100;
        /// All metadata has CRC-32C checksums.
        const METADATA_CSUM = 0x400;
        /// The volume must not be changed.
        const READONLY = 0x1000;
        /// Inodes have project ids.
        const PROJECT = 0x2000;
    }
}
