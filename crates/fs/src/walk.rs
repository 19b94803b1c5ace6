//! Walks over a whole directory tree at the speed of the device: for tar, cp, du, ls -R.
//!
//! Reading one file after another leaves a device idle between small reads. A [`Walk`] works ahead
//! of its caller in three stages, each on its own thread, which pass batches on:
//!
//! 1. the module `order` follows the directories and finds the next entries;
//! 2. the inodes of a batch are loaded, all items of each in one pass, in the order of their
//!    numbers and by several threads;
//! 3. `content` reads the content of a batch's small files in one plug, so that the device receives
//!    the requests in address order. The worker threads verify and decompress.
//!
//! The walk nevertheless returns entries in the order of the directories, parents before their
//! children.
//!
//! # Promises
//!
//! - A walk always ends: it enters a directory only through the entry that the directory names as
//!   its own ([`crate::Corruption::DirectoryLinkedTwice`]). The directories that a walk enters
//!   therefore form a tree.
//! - A bad file or directory becomes a [`WalkItem::Failed`], after which the walk continues.
//! - The sizes of batches, including paths, bound the memory of a walk (`pipeline`).
//! - A walk reports hard links ([`WalkEntry::hard_link`]) while the names for which it expects
//!   further names fit into 64 MiB.
//!
//! On simulated devices, all stages run on the caller's thread.

mod content;
mod hard_links;
mod order;
mod pipeline;

use crate::error::{Error, Result};
use crate::extents::RangeKind;
use crate::filesystem::Filesystem;
use crate::inode::{InodeRecord, Metadata};
use crate::location::Location;
use crate::progress::Progress;
use crate::reader::FileReader;
use crate::xattrs::Xattr;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Compression, FileKind};
use hard_links::HardLinks;
use pipeline::Pipeline;
use std::sync::Arc;

/// The order in which a walk visits entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkOrder {
    /// The walk goes depth first: a directory, then everything below its first entry, and so on, as
    /// tar and cp need.
    #[default]
    Depth,
    /// All entries of a directory, then each of its directories in turn, as `ls -R` needs. `sorted`
    /// returns the entries in byte order of their names, up to [`SORTED_MAX`] entries. Directories
    /// with more entries are returned in the order of their index.
    ByDirectory {
        /// True if entries are sorted by name.
        sorted: bool,
    },
}

/// The maximum number of entries of a directory that are sorted.
pub const SORTED_MAX: usize = 1 << 18;

/// The options of a walk.
#[derive(Clone, Debug)]
pub struct WalkOptions {
    /// The order.
    pub order: WalkOrder,
    /// True if the walk stays in the subvolume where it begins. Nested subvolumes are still
    /// returned as entries.
    pub one_file_system: bool,
    /// True if the walk passes over nested snapshots: subvolumes that were made from another one.
    pub without_snapshots: bool,
    /// The maximum size of files that are read ahead; zero for a walk without content.
    pub read_ahead: ByteCount,
    /// True if inodes that have lost items are returned as far as they can be read, for restoring a
    /// damaged volume ([`WalkEntry::lost`]).
    pub salvage: bool,
    /// The progress of the walk, to watch and cancel it.
    pub progress: Progress,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self {
            order: WalkOrder::default(),
            one_file_system: false,
            without_snapshots: false,
            read_ahead: ByteCount::new(1 << 20),
            salvage: false,
            progress: Progress::new(),
        }
    }
}

impl WalkOptions {
    /// Returns the options of a walk that reads inodes only.
    #[must_use]
    pub fn without_content() -> Self {
        Self {
            read_ahead: ByteCount::ZERO,
            ..Self::default()
        }
    }
}

/// An item that a walk returns.
#[derive(Debug)]
pub enum WalkItem {
    /// An existing entry.
    Entry(Box<WalkEntry>),
    /// The start of a directory: its entries follow.
    Enter(Arc<[u8]>),
    /// The end of a directory: all its entries were returned. With [`WalkOrder::Depth`], the walk
    /// has also returned everything below the directory's entries.
    Leave(Arc<[u8]>),
    /// An entry that could not be read.
    Failed(WalkError),
}

/// The error of an entry that a walk could not read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {error}", crate::error::Name(path.clone()))]
pub struct WalkError {
    /// The entry's path from the start of the walk.
    pub path: Vec<u8>,
    /// The reason for the error.
    pub error: Error,
}

/// An entry that a walk found.
#[derive(Debug)]
pub struct WalkEntry {
    /// The path of the parent directory from the start of the walk, without slashes at its ends.
    pub directory: Arc<[u8]>,
    /// The entry's name; empty for the start of the walk.
    pub name: Vec<u8>,
    /// The inode with its extended attributes.
    pub record: InodeRecord,
    /// For a further name of a file, the path of its first name.
    pub hard_link: Option<Arc<[u8]>>,
    /// The reason why items of the inode are lost, with [`WalkOptions::salvage`].
    pub lost: Option<Error>,
    reader: Option<FileReader>,
    filesystem: Filesystem,
}

/// Joins a directory's path and a name.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len().exact_add(name.len()).exact_add(1));
    path.extend_from_slice(directory);
    if !directory.is_empty() && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

impl WalkEntry {
    /// Makes an entry that no walk has found: the inode of `record` in `filesystem`, under a name in
    /// a directory. `lost` is the reason why items of the inode are lost.
    #[must_use]
    pub fn new(
        filesystem: Filesystem,
        (directory, name): (Arc<[u8]>, Vec<u8>),
        record: InodeRecord,
        lost: Option<Error>,
    ) -> Self {
        Self {
            directory,
            name,
            record,
            hard_link: None,
            lost,
            reader: None,
            filesystem,
        }
    }

    /// Returns the path from the start of the walk, without slashes at its ends; empty for the
    /// start itself.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        join(&self.directory, &self.name)
    }

    /// Returns the entry's location.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.record.metadata.location
    }

    /// Returns the attributes that `stat(2)` shows.
    #[must_use]
    pub const fn metadata(&self) -> &Metadata {
        &self.record.metadata
    }

    /// Returns the extended attributes.
    #[must_use]
    pub fn xattrs(&self) -> &[Xattr] {
        &self.record.xattrs
    }

    /// Returns the content of a regular file, once: from read-ahead, or as a stream that reads on
    /// demand.
    ///
    /// # Errors
    /// Fails if the entry is no regular file.
    pub fn reader(&mut self) -> Result<FileReader> {
        match self.reader.take() {
            Some(reader) => Ok(reader),
            None => Ok(self.filesystem.open_record(&self.record)?.reader()),
        }
    }

    /// Returns the target of a symlink.
    ///
    /// # Errors
    /// Fails as [`Filesystem::read_link`] does.
    pub fn link_target(&self) -> Result<Vec<u8>> {
        if self.record.metadata.kind == FileKind::Symlink
            && let Some([range]) = self.record.extents.as_deref()
            && let RangeKind::Inline(inline) = &range.kind
            && inline.compression == Compression::None
            && inline.ram_bytes == self.record.metadata.size
            && ByteCount::of(inline.stored.len()) == inline.ram_bytes
            && (1..=crate::lookup::PATH_LIMIT).contains(&inline.stored.len())
        {
            return Ok(inline.stored.to_vec());
        }
        self.filesystem.read_link(self.location())
    }
}

/// A walk over a directory tree; see the module's documentation.
#[derive(Debug)]
pub struct Walk {
    pipeline: Pipeline,
    hard_links: HardLinks,
    progress: Progress,
    ended: bool,
}

impl Filesystem {
    /// Walks over `start` and everything below it.
    #[must_use]
    pub fn walk(&self, start: Location, options: WalkOptions) -> Walk {
        let progress = options.progress.clone();
        Walk {
            pipeline: Pipeline::new(self, start, options),
            hard_links: HardLinks::default(),
            progress,
            ended: false,
        }
    }
}

impl Iterator for Walk {
    type Item = WalkItem;

    fn next(&mut self) -> Option<WalkItem> {
        if self.ended {
            return None;
        }
        if let Err(error) = self.progress.check() {
            self.ended = true;
            return Some(WalkItem::Failed(WalkError {
                path: Vec::new(),
                error,
            }));
        }
        let mut item = self.pipeline.next()?;
        match &mut item {
            WalkItem::Entry(entry) => {
                self.progress.advance(1, ByteCount::ZERO);
                entry.hard_link = self.hard_links.first_name(entry);
            }
            WalkItem::Failed(_) => self.progress.count_error(),
            WalkItem::Enter(_) | WalkItem::Leave(_) => {}
        }
        Some(item)
    }
}
