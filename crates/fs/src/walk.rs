//! Going over a whole directory tree at the speed of the device: for tar, cp, du, ls -R.
//!
//! Looking at one file after another leaves a device idle between small reads. A [`Walk`] works ahead of its
//! caller in three stages, each on its own thread and each handing on batches:
//!
//! 1. `order` follows the directories and finds what comes next;
//! 2. the inodes of a batch are loaded, all items of each in one pass, in the order of their numbers and by
//!    several threads at once;
//! 3. `content` reads the content of small files, all those of a batch in one go, so that the device sees them
//!    in the order of their addresses; checksums and decompression go to the worker threads.
//!
//! What comes out is in the order of the directories all the same, parents before their children.
//!
//! # Promises
//!
//! - It ends, whatever is on disk: a directory is entered only by the entry that it names itself as its own
//!   ([`crate::Corruption::DirectoryLinkedTwice`]), so what is entered is a tree.
//! - One bad file or directory is a [`WalkItem::Failed`], and the walk goes on.
//! - Memory is bounded by the sizes of batches (`pipeline`); paths count too.
//! - Hard links are told ([`WalkEntry::hard_link`]) as long as the names that wait for others fit into 64 MiB.
//!
//! On simulated devices all stages run on the caller's thread.

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

/// In which order a walk visits what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkOrder {
    /// A directory, then everything below its first entry, and so on: as tar and cp want it.
    #[default]
    Depth,
    /// All entries of a directory, then each of its directories in turn: as `ls -R` wants it. `sorted` gives the
    /// entries in the order of the bytes of their names, up to [`SORTED_MAX`] of them; larger directories come
    /// in the order of their index.
    ByDirectory {
        /// Whether entries are sorted by name.
        sorted: bool,
    },
}

/// How many entries of a directory are sorted.
pub const SORTED_MAX: usize = 1 << 18;

/// What a walk is to do.
#[derive(Clone, Debug)]
pub struct WalkOptions {
    /// The order.
    pub order: WalkOrder,
    /// Whether to stay in the subvolume where the walk begins. Nested ones are entries all the same.
    pub one_file_system: bool,
    /// Files up to this size are read ahead; zero for a walk that wants no content.
    pub read_ahead: ByteCount,
    /// For watching and stopping it.
    pub progress: Progress,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self {
            order: WalkOrder::default(),
            one_file_system: false,
            read_ahead: ByteCount::new(1 << 20),
            progress: Progress::new(),
        }
    }
}

impl WalkOptions {
    /// A walk that looks at inodes only.
    #[must_use]
    pub fn without_content() -> Self {
        Self {
            read_ahead: ByteCount::ZERO,
            ..Self::default()
        }
    }
}

/// What a walk comes upon.
#[derive(Debug)]
pub enum WalkItem {
    /// Something that exists.
    Entry(Box<WalkEntry>),
    /// The entries of this directory follow.
    Enter(Arc<[u8]>),
    /// All entries of this directory, and with [`WalkOrder::Depth`] all below them, have come.
    Leave(Arc<[u8]>),
    /// Something that could not be read.
    Failed(WalkError),
}

/// Something that a walk could not read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {error}", crate::error::Name(path.clone()))]
pub struct WalkError {
    /// Its path, from where the walk began.
    pub path: Vec<u8>,
    /// Why.
    pub error: Error,
}

/// Something that a walk found.
#[derive(Debug)]
pub struct WalkEntry {
    /// The path of the directory that holds it, from where the walk began, without slashes at its ends.
    pub directory: Arc<[u8]>,
    /// Its name; empty for where the walk began.
    pub name: Vec<u8>,
    /// The inode with its extended attributes.
    pub record: InodeRecord,
    /// For a further name of a file that came already: the path of the first one.
    pub hard_link: Option<Arc<[u8]>>,
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
    /// Its path from where the walk began, without slashes at its ends; empty for the beginning itself.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        join(&self.directory, &self.name)
    }

    /// Where it is.
    #[must_use]
    pub const fn location(&self) -> Location {
        self.record.metadata.location
    }

    /// What `stat(2)` shows.
    #[must_use]
    pub const fn metadata(&self) -> &Metadata {
        &self.record.metadata
    }

    /// Its extended attributes.
    #[must_use]
    pub fn xattrs(&self) -> &[Xattr] {
        &self.record.xattrs
    }

    /// The content of a regular file, once: what was read ahead, or a stream that reads as it goes.
    ///
    /// # Errors
    /// That it is no regular file.
    pub fn reader(&mut self) -> Result<FileReader> {
        match self.reader.take() {
            Some(reader) => Ok(reader),
            None => Ok(self.filesystem.open_record(&self.record)?.reader()),
        }
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// As [`Filesystem::read_link`].
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

/// A walk over a directory tree. See the module.
#[derive(Debug)]
pub struct Walk {
    pipeline: Pipeline,
    hard_links: HardLinks,
    progress: Progress,
    ended: bool,
}

impl Filesystem {
    /// Walks over everything below `start`, itself first.
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
