//! What a built volume is to be like, besides what any new volume is ([`mkfs::Options`]).

use crate::entry::{Compress, EntryPath, SubvolumeMark};
use buttress_format::{ByteCount, InodeFlags, Timestamp};

use buttress_mkfs as mkfs;
use std::path::PathBuf;

/// Wishes for a volume that is built from sources.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// What any new volume is.
    pub volume: mkfs::Options,
    /// How contents are compressed whose entries do not say.
    pub compression: Compress,
    /// Directories of the tree that become subvolumes, in addition to those whose entries say so.
    pub subvolumes: Vec<(EntryPath, SubvolumeMark)>,
    /// Flags of single inodes, in addition to those that their entries have. A directory's are for all that is below, too.
    pub inode_flags: Vec<(EntryPath, InodeFlags)>,
    /// Who owns what.
    pub owners: Owners,
    /// Times later than this become this.
    pub latest_time: Option<Timestamp>,
    /// How large the volume is to be.
    pub size: Size,
    /// Equal contents share their extents.
    pub dedupe: bool,
    /// Contents are shared with the files of sources that lie in the image's file system, instead of copied (`FICLONERANGE`).
    /// Data is single or DUP then. What is compressed is copied.
    pub share_files: bool,
    /// How many threads read, compress and check; as many as there are processors by default.
    pub workers: Option<usize>,
    /// How much memory entries and finished blocks may take before they are spooled to files.
    pub memory: ByteCount,
    /// Where spool files are made; they have no names. The system's place for temporary files by default.
    pub spool: Option<PathBuf>,
}

/// Owners that take the place of those in the sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The user of everything.
    pub uid: Option<u32>,
    /// The group of everything.
    pub gid: Option<u32>,
    /// User, group and, where given, permissions of the root directory; takes precedence.
    pub root: Option<(u32, u32, Option<u32>)>,
}

/// How large a volume is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// As large as its devices.
    #[default]
    Devices,
    /// As small as its content allows, with so much room on top. On one device only.
    Least {
        /// The room on top.
        slack: ByteCount,
    },
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            volume: mkfs::Options::default(),
            compression: Compress::No,
            subvolumes: Vec::new(),
            inode_flags: Vec::new(),
            owners: Owners::default(),
            latest_time: None,
            size: Size::default(),
            dedupe: false,
            share_files: false,
            workers: None,
            memory: ByteCount::new(96 << 20),
            spool: None,
        }
    }
}
