//! The options of a built volume, in addition to those of any new volume ([`mkfs::Options`]).

use crate::entry::{Compress, EntryPath, SubvolumeMark};
use buttress_format::{ByteCount, InodeFlags, Timestamp};

use buttress_mkfs as mkfs;
use std::path::PathBuf;

/// The options of a volume that is built from sources.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The options of any new volume.
    pub volume: mkfs::Options,
    /// The compression of contents whose entries do not state one.
    pub compression: Compress,
    /// Directories of the tree that become subvolumes, beside directories whose entries request
    /// this.
    pub subvolumes: Vec<(EntryPath, SubvolumeMark)>,
    /// Flags of single inodes, in addition to those of their entries. The flags of a directory also
    /// apply to everything below it.
    pub inode_flags: Vec<(EntryPath, InodeFlags)>,
    /// How the owners of the entries are replaced.
    pub owners: Owners,
    /// The latest time: later times are replaced by it.
    pub latest_time: Option<Timestamp>,
    /// The size of the volume.
    pub size: Size,
    /// True if equal contents share their extents.
    pub dedupe: bool,
    /// True if contents are shared with sources' files in the image's file system, instead of
    /// copied (`FICLONERANGE`). With shared files, the data profile must be single or DUP.
    /// Compressed content cannot share blocks, so it is copied.
    pub share_files: bool,
    /// The number of threads that read, compress and checksum; the number of processors by default.
    pub workers: Option<usize>,
    /// The memory limit for entries and finished blocks. Beyond this limit, entries and blocks are
    /// spooled to files.
    pub memory: ByteCount,
    /// The folder of spool files, which have no names. The system's folder for temporary files by
    /// default.
    pub spool: Option<PathBuf>,
}

/// Owners that replace those in the sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The user who owns everything.
    pub uid: Option<u32>,
    /// The group that owns everything.
    pub gid: Option<u32>,
    /// User, group and optional permissions of the root directory, which take precedence.
    pub root: Option<(u32, u32, Option<u32>)>,
}

/// The size of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The image is as large as its devices.
    #[default]
    Devices,
    /// The smallest size for its content, plus additional space. A minimal size is possible on one
    /// device only.
    Least {
        /// The additional space.
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
