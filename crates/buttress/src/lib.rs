//! A library for btrfs without the kernel. This library opens, makes and changes real btrfs
//! volumes, in image files and on block devices. The library needs no root and no mount, and trusts
//! no byte that it reads.
//!
//! | to | see |
//! |---|---|
//! | open or make a volume, make changes durable | [`Volume`], [`VolumeOptions`], [`NewVolume`], [`WritableVolume`] |
//! | read and change files by their paths | [`Subvolume`], [`WritableSubvolume`] |
//! | read and write one file | [`File`], [`WritableFile`] |
//! | make snapshots | [`WritableSubvolume::create_snapshot`] |
//! | send and receive snapshots | [`Subvolume::send`], [`WritableSubvolume::receive`] |
//! | see how the space is used | [`Volume::space`] |
//! | check every cross-reference | [`Volume::check`] |
//! | see which owner uses which space, and which extents are shared | [`Volume::account_space`], [`File::extents`] |
//! | make images of whole trees, of archives and of plans | [`build`], [`sources`] |
//! | shrink a volume to the smallest size that holds it | [`WritableVolume::shrink`] |
//! | join small extents of a file, compress its content | [`WritableFile::defragment`] |
//! | move block groups, convert them to other profiles | [`WritableVolume::balance`] |
//! | count and limit what subvolumes use | [`Volume::quota_groups`], [`WritableVolume::enable_quotas`] |
//! | write and restore metadata dumps | [`dump`] |
//! | convert ext2, ext3 and ext4 in place | [`convert`] |
//! | repair what a check finds | [`repair`] |
//! | find tree blocks and older roots on damaged devices | [`salvage`] |
//! | see where an address is located on the devices | [`Volume::copies`] |
//! | read every copy, and repair bad ones | [`WritableVolume::scrub`], [`WritableVolume::healed`] |
//!
//! A volume that is open for reading has no call that changes it: [`Volume`], [`Subvolume`] and [`File`]
//! only read. [`WritableVolume`], [`WritableSubvolume`] and [`WritableFile`] dereference to these
//! types, and have the calls that write.
//!
//! # Reading an image
//!
//! ```no_run
//! # fn main() -> buttress::Result<()> {
//! let volume = buttress::Volume::open("backup.img")?;
//! for entry in volume.root().read_dir("home")? {
//!     println!("{}", entry?.shown());
//! }
//! let hosts = volume.root().read_to_string("etc/hosts")?;
//! # Ok(())
//! # }
//! ```
//!
//! # Making a volume
//!
//! ```
//! # fn main() -> buttress::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("buttress-doc-lib-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let path = folder.join("new.img");
//! use buttress::{ByteCount, SnapshotMode, Volume};
//!
//! let volume = Volume::create().in_file(&path, ByteCount::new(256 << 20))?;
//! let home = volume.root().create_subvolume("home")?;
//! home.create_dir_all("ann/letters")?;
//! home.write("ann/letters/first", "Dear Bob")?;
//! volume.root().create_snapshot(&home, "monday", SnapshotMode::ReadOnly)?;
//! home.write("ann/letters/first", "Dear Carol")?;
//! volume.sync()?;
//!
//! assert_eq!(volume.root().read("monday/ann/letters/first")?, b"Dear Bob");
//! assert_eq!(volume.root().read("home/ann/letters/first")?, b"Dear Carol");
//! # drop((home, volume));
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # Sending changes
//!
//! Makes a stream for `btrfs receive`, without a mount:
//!
//! ```
//! # fn main() -> buttress::Result<()> {
//! # use buttress::{Device, SnapshotMode, Volume};
//! # let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
//! let root = volume.root();
//! let home = root.create_subvolume("home")?;
//! let monday = root.create_snapshot(&home, "monday", SnapshotMode::ReadOnly)?;
//! home.write("new", "since monday")?;
//! let tuesday = root.create_snapshot(&home, "tuesday", SnapshotMode::ReadOnly)?;
//!
//! let mut stream = Vec::new();
//! let sent = tuesday.send()?.parent(&monday)?.to(&mut stream)?;
//! assert_eq!(sent.stream_bytes.get(), stream.len() as u64);
//! # Ok(())
//! # }
//! ```
//!
//! # A device that holds no volume
//!
//! A device with any bytes may be given to the calls that open a volume. If the bytes are not
//! btrfs, the error says so.
//!
//! ```
//! use buttress::{Device, ErrorKind, Volume};
//!
//! let noise = Device::memory(vec![0xa5; 1 << 20]);
//! let error = Volume::options().open_devices(vec![noise]).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Corrupt);
//! ```
//!
//! # Errors
//!
//! [`Error::kind`] returns the kind for callers to match on, such as [`ErrorKind::NotFound`].
//! [`Error::errno`] returns the number with which a system call would have failed.
//!
//! # Features
//!
//! | feature | has |
//! |---|---|
//! | none | reading volumes: subvolumes, paths, files, extents, space; a pending log is replayed in memory |
//! | `write` | making and changing volumes |
//! | `stream` | sending and receiving snapshots |
//! | `check` | checking every cross-reference |
//! | `scrub` | reading and repairing every copy, and healing while a volume is in use |
//! | `repair` | repairing what a check finds |
//! | `salvage` | scans of devices for tree blocks that no root leads to |
//! | `build`, `sources` | images of whole trees, archives, containers and plans |
//! | `convert` | conversion of ext2, ext3 and ext4 in place |
//! | `full` | all of these |
//!
//! # Any source of bytes
//!
//! A volume opens from any source that can read at an offset:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use buttress::{Device, Volume};
//! use std::io::Cursor;
//! # let folder = std::env::temp_dir().join(format!("buttress-doc-reader-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("new.img");
//! # let volume = Volume::create().in_file(&path, buttress::ByteCount::new(128 << 20))?;
//! # volume.root().write("hosts", "127.0.0.1")?;
//! # volume.close()?;
//! # let image = std::fs::read(&path)?;
//! # std::fs::remove_dir_all(&folder)?;
//!
//! let device = Device::reading("an image in memory", Cursor::new(image))?;
//! let volume = Volume::options().open_devices(vec![device])?;
//! assert_eq!(volume.root().read("hosts")?, b"127.0.0.1");
//! # Ok(())
//! # }
//! ```
//!
//! # Stability
//!
//! All names outside of the module `unstable` are stable. The feature `unstable` adds that module
//! with the layers below: trees, addresses, devices, the bytes on disk as types. These layers can
//! change with any version. `crates/buttress/api.txt` lists all
//! stable items.
#![forbid(unsafe_code)]

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(feature = "convert")]
pub mod convert;
#[cfg(feature = "dump")]
pub mod dump;
mod error;
mod file;
mod options;
#[cfg(all(feature = "write", target_os = "linux"))]
mod overlay;
mod path;
mod subvolume;
#[cfg(feature = "write")]
mod superblocks;
mod volume;
#[cfg(feature = "write")]
mod whole_volume;

pub use error::{Error, ErrorKind, Result};
pub use file::File;
#[cfg(feature = "write")]
pub use file::WritableFile;
#[cfg(feature = "write")]
pub use options::NewVolume;
pub use options::VolumeOptions;
#[cfg(all(feature = "write", target_os = "linux"))]
pub use overlay::{apply_overlay, apply_overlays, discard_overlay, superblocks_last};
pub use path::VolumePath;
pub use subvolume::Subvolume;
pub use subvolume::directory::{DirectoryEntry, Found, ReadDir, Walk};
#[cfg(feature = "stream")]
pub use subvolume::send::Send;
#[cfg(feature = "write")]
pub use subvolume::{SnapshotMode, Times, WritableSubvolume};
#[cfg(feature = "write")]
pub use superblocks::{recover_superblocks, select_superblock, survey_superblocks};
pub use volume::{CopyPlace, DeviceInfo, Volume, VolumeInfo};
#[cfg(feature = "write")]
pub use volume::{NewDevice, StructureRepairs, WritableVolume};
#[cfg(feature = "write")]
pub use whole_volume::{WholeVolume, WholeVolumeInfo};

pub use buttress_accounts::{
    DataReference, DataRuns, DeviceSpace, Fiemap, FiemapExtent, FiemapFlags, GroupSpace, Space,
    Totals as SpaceTotals,
};
#[cfg(feature = "check")]
pub use buttress_check::{Finding, Grade, Options as CheckOptions, Report as CheckReport};
#[cfg(all(feature = "write", target_os = "linux"))]
pub use buttress_device::LockedFile;
pub use buttress_device::{
    Backend, Device, Engine as DeviceEngine, Offset as DeviceOffset, OpenOptions as DeviceOptions,
};
#[cfg(feature = "write")]
pub use buttress_format::compression::CompressionMethod;
pub use buttress_format::{
    BlockGroupFlags, ByteCount, ChecksumType, Compression, DeviceId, DeviceStatistics, FileKind, FileOffset,
    Generation, InodeFlags, InodeNumber, Logical, Physical, Profile, SubvolumeId, Timestamp, TreeId, Uuid,
    printable::is_printable,
};
pub use buttress_fs::{
    ChangedInodes, Chunk, Content, Corruption, DeviceNumber, DirEntry, FileAttributes, FileExtents,
    FileRange, FileReader, Follow, InodeLink, InodeRecord, Location, Metadata, Name, NodeKind, Notice,
    Progress, RangeKind, SubvolumeInfo, SubvolumePlace, Walk as TreeWalk, WalkEntry, WalkError, WalkItem,
    WalkOptions, WalkOrder, Xattr, directory::is_valid_name, inode::kind_of_mode,
    progress::Snapshot as ProgressSnapshot, property::COMPRESSION_NAME,
};
#[cfg(feature = "scrub")]
pub use buttress_scrub::{Healed, Options as ScrubOptions, Report as ScrubReport};
#[cfg(feature = "stream")]
pub use buttress_stream::send::Summary as SendSummary;
pub use buttress_tree::ReadAhead;
#[cfg(feature = "write")]
pub use buttress_volume::superblock_recovery::DeviceSuperblocks;
pub use buttress_volume::{Fault, FaultCounts, FaultLog, FaultReason, Rescue};
#[cfg(feature = "write")]
pub use buttress_writer::SizeFix;
#[cfg(feature = "write")]
pub use buttress_writer::{
    AllocateMode, AutoReclaim, AutoReclaiming, CommitCause, DataOptions, Environment, LogStatistics,
    Reclaimed, ShrinkSummary, ShrunkDevice, SystemEnvironment, Trimmed, Uncommitted,
    data::{DefragmentCompression, DefragmentOptions, DefragmentSummary},
    operations::{AccessPolicy, AccessTimes, AttributeChanges, NewInode, ReceivedUuid, RenameMode, SetXattr},
};

/// Owners of space, as [`Volume::account_space`] counts them.
pub mod accounting {
    pub use buttress_accounts::space::accounting::{
        Accounting, ByKind, ContentKind, ExtentTable, Extents, Files, Group, Nesting, Occupied, Options,
        Owned, Owner, OwnerIndex, OwnerSpace, Parts, Place, References, Scope, Share,
    };
}

/// Balances: filters, the choice of block groups, and a run's control and summary.
#[cfg(feature = "write")]
pub mod balance {
    pub use buttress_format::{BalanceArgumentFlags, BalanceArguments, BalanceFlags, BalanceItem};
    pub use buttress_fs::BalanceRefusal;
    pub use buttress_writer::balance::choice::{Candidate, Choice, Kind};
    pub use buttress_writer::balance::job::{
        BalanceControl, BalanceCounts, BalanceEnd, BalanceSummary, NotRelocated,
    };
    pub use buttress_writer::relocation::RelocationSummary;
}

/// Images from whole trees, in one pass and without transactions.
#[cfg(feature = "build")]
pub use buttress_build as build;

/// The report of [`Volume::check`].
#[cfg(feature = "check")]
pub mod check {
    pub use buttress_check::{
        Finding, Grade, Level, Note, Options, Reference, Report, Reported, Step, Subject, Totals, Value,
    };
}

/// The steps of making a volume, below [`NewVolume`].
#[cfg(feature = "write")]
pub mod mkfs {
    pub use buttress_mkfs::{
        Error, Feature, Identity, Made, Options, PlannedChunk, Quotas, least_device_bytes,
        least_device_bytes_for_a_file, make,
    };
}

/// Quotas: groups, limits, and their state.
pub mod quota {
    pub use buttress_accounts::quotas::{QuotaGroup, QuotaGroups, QuotaUse};
    pub use buttress_format::{
        QgroupId, QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupStatus, QgroupStatusFlags,
    };
    pub use buttress_fs::{QuotaExceeded, QuotaRefusal};
    #[cfg(feature = "write")]
    pub use buttress_writer::QuotaKind;
    #[cfg(feature = "write")]
    pub use buttress_writer::operations::{QuotaLimit, Rescanned};
}

/// Repairs of what [`Volume::check`] finds, on devices that are open for writing. Give devices with
/// overlays: a repair cannot undo its commits.
#[cfg(feature = "repair")]
pub mod repair {
    pub use buttress_repair::{
        Applied, Done, Edit, Kept, Left, Loss, Options, Outcome, Plan, RepairKind, Step, guard::Lost, kinds,
        plan, severity,
    };

    pub use crate::volume::repairing::run;
}

/// Scans of whole devices for tree blocks that no root leads to, and the roots of earlier commits.
#[cfg(feature = "salvage")]
pub mod salvage {
    pub use crate::volume::salvaging::{
        devices_of, first_directory, is_usable, judge_of, tree_roots, volume_of,
    };
    pub use buttress_format::SUPERBLOCK_OFFSETS;
    pub use buttress_packing::SpoolFolder;
    pub use buttress_salvage::{
        BlockCounts, BlockIndex, CompleteReader, Error, FileFindings, FoundDevice, FoundRoots, History,
        Identity, IndexProblem, IndexReader, IndexWriter, Judge, OpenedIndex, Origin, Record, RecordFlags,
        Result, RootQuery, Scanned, State, Survey, Surveyor, Verdict, Version, View, ViewOptions,
        WantedFiles, best_versions, find_roots, history::Directories as VersionDirectories,
        history::entries as version_entries, history::history, identify, identify_by_blocks, scan::ScanSink,
        scan::scan, states, states_at, view::open as open_state,
    };
}

/// Jobs over every copy of a volume: scrubs, resynchronisation of devices that missed commits,
/// device replacement.
#[cfg(feature = "scrub")]
pub mod scrub {
    pub use buttress_scrub::{
        Cause, ChunkPosition, Counters, Damage, DeviceReport, Error, Healed, Lost, Options, Outcome, Part,
        Position, ReplaceOptions, Replaced, Report, ResyncOptions, Resynced, ResyncedDevice, Scrub, Shape,
    };
}

/// Sources of images: archives, layers of containers and plans.
#[cfg(feature = "sources")]
pub use buttress_sources as sources;

/// Send streams: making, reading, combining and inspecting.
#[cfg(feature = "stream")]
pub mod stream {
    pub use buttress_stream::{
        AttributeKind, Command, CommandKind, Decoder, EncodedCompression, Encoder, Error, Frame, Oddity,
        PendingData, ReadAhead, Result, SkippedCommand, Streams, TextDump, Version, command, merge, send,
        trail, view,
    };

    /// The options, events and errors of
    /// [`WritableSubvolume::receive`](crate::WritableSubvolume::receive).
    pub mod receive {
        pub use buttress_stream::receive::{
            Error, Event, Kept, Note, Options, Problem, ReceivedSubvolume, Summary,
        };
    }
}

/// The layers below the facade, each under its name. These layers can change with any version.
#[cfg(feature = "unstable")]
pub mod unstable {
    pub use buttress_accounts as accounts;
    #[cfg(feature = "build")]
    pub use buttress_build as build;
    #[cfg(feature = "check")]
    pub use buttress_check as check;
    pub use buttress_device as device;
    pub use buttress_format as format;
    pub use buttress_fs as fs;
    pub use buttress_locks as locks;
    #[cfg(feature = "write")]
    pub use buttress_mkfs as mkfs;
    #[cfg(feature = "scrub")]
    pub use buttress_scrub as scrub;
    #[cfg(feature = "sources")]
    pub use buttress_sources as sources;
    #[cfg(feature = "stream")]
    pub use buttress_stream as stream;
    pub use buttress_tree as tree;
    pub use buttress_volume as volume;
    pub use buttress_writer as writer;

    use crate::Volume;
    #[cfg(feature = "write")]
    use crate::{WritableVolume, volume::Access};

    /// Returns the file system below a volume, in its current state.
    #[must_use]
    pub fn filesystem_of(volume: &Volume) -> fs::Filesystem {
        volume.view()
    }

    /// Returns the error of the file system that an error has as its cause.
    #[must_use]
    pub const fn filesystem_error_of(error: &crate::Error) -> Option<&fs::Error> {
        error.filesystem_error()
    }

    /// Returns the volume of a file system from the layer below.
    #[must_use]
    pub fn volume_over(filesystem: fs::Filesystem) -> Volume {
        Volume::over(filesystem)
    }

    /// Returns the writer below a volume.
    #[cfg(feature = "write")]
    #[must_use]
    pub const fn writer_of(volume: &WritableVolume) -> &writer::WritableFilesystem {
        volume.writer()
    }

    /// Returns the volume over a writer, without a healer. New files get the owner and the umask of
    /// `new_files`.
    #[cfg(feature = "write")]
    #[must_use]
    pub fn writable_over(
        writer: writer::WritableFilesystem,
        new_files: writer::operations::NewInode,
    ) -> WritableVolume {
        let volume = Volume::new(Access::Writing(writer.clone()));
        WritableVolume::new(volume, writer, new_files)
    }
}
