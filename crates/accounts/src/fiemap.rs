//! The extents of a file as `FIEMAP` reports them, with exact sharedness; and where its data and holes are.
//!
//! [`Maps::fiemap`](crate::Maps::fiemap) and [`Fiemap::of_live`] give a [`Fiemap`]: extents in rising order, one after another, in
//! the flags of the ioctl. Each leaf of the file is visited once. Whether extents are shared is asked for a batch of them
//! at a time ([`crate::Sharing`]); batches begin small and grow, so that looking at a few extents costs little, and a
//! map can be given up and gone on with anywhere. Dirty data in memory is looked for only in holes and preallocated
//! ranges: it shows as delayed allocation.
//!
//! Extents are joined only where they follow each other in the file and on the volume, and have the same flags: so two
//! extents of which one is shared stay two. Joined extents may belong to different items. Without sharedness
//! ([`Fiemap::without_sharing`]) there is one flag less to differ in, as for an ioctl that only counts.
//!
//! On a writable volume each batch is of one moment: trees, dirty data and delayed references. Between batches
//! the file may change, as it may between two calls of the ioctl.
//!
//! Ranges: extents that overlap `[start, end)` come whole; dirty parts are cut off at the range. The last
//! extent of the file has [`FiemapFlags::LAST`].
//!
//! Bounds: the extents of a batch, [`BATCH_MAX`] of them and those of a leaf. That is little enough for a processor's
//! cache, and enough for the extent tree to be read in runs.
//!
//! Source: the kernel's documentation of fiemap, `Documentation/filesystems/fiemap.rst`; what the flags mean on btrfs
//! was taken from the ioctl's answers.

mod join;
mod live;
mod seek;
mod walk;

use buttress_exact::{Exact as _, u64_of};
pub use live::{ContentState, LiveContent};
pub use seek::DataRuns;

use crate::back_references::Sharing;
use crate::back_references::sharing::sharing;
use buttress_format::{ByteCount, FileOffset, Logical};
use buttress_fs::error::Result;
use buttress_fs::file::File;
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use core::iter::FusedIterator;
use core::ops::Range;
use join::Joiner;
use std::sync::Arc;
use walk::{Batch, Walk};

/// How many extents the first batch has, or as many as the first leaf has more.
const BATCH_FIRST: usize = 128;

/// How many extents a batch has at most, or as many as its last leaf has more.
pub const BATCH_MAX: usize = 4 << 10;

bitflags::bitflags! {
    /// What is said of an extent: the flags of the ioctl.
    ///
    /// Source: `include/uapi/linux/fiemap.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FiemapFlags: u32 {
        /// The last extent of the file.
        const LAST = 0x1;
        /// Nobody knows yet where it will be.
        const UNKNOWN = 0x2;
        /// Its content is dirty.
        const DELALLOC = 0x4;
        /// Its bytes are not the file's: they are compressed.
        const ENCODED = 0x8;
        /// It is not whole blocks.
        const NOT_ALIGNED = 0x100;
        /// Its content lies inside the tree.
        const INLINE = 0x200;
        /// It was reserved, and nothing was written there.
        const UNWRITTEN = 0x800;
        /// Somebody else uses it too.
        const SHARED = 0x2000;
    }
}

/// An extent, or several that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiemapExtent {
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// Its length in the file.
    pub length: ByteCount,
    /// Where it lies, in the addresses of the volume, not of a device: of compressed extents the start of the whole extent.
    /// `None` where it lies inside the tree or nowhere yet; the ioctl says 0 then.
    pub address: Option<Logical>,
    /// What is said of it.
    pub flags: FiemapFlags,
}

impl FiemapExtent {
    /// Where in the file it ends (exclusive).
    #[must_use]
    pub const fn end(&self) -> FileOffset {
        self.offset.saturating_add(self.length) // Clamp: never reached, parsing checked the sum.
    }
}

/// Where a map comes from.
#[derive(Debug)]
enum Source {
    /// A file that does not change.
    Still(Box<Still>),
    /// A file of a volume that is open for writing.
    Live(Arc<dyn LiveContent>),
}

#[derive(Debug)]
struct Still {
    filesystem: Filesystem,
    walk: Walk,
    sharing: Sharing,
}

/// The extents of a range of a file, in order; see the module. After an error there are no more.
#[derive(Debug)]
pub struct Fiemap {
    source: Source,
    location: Location,
    range: Range<FileOffset>,
    /// Up to where the file was mapped.
    position: FileOffset,
    /// Whether anything of the range was mapped.
    begun: bool,
    asks_sharing: bool,
    progress: Option<Progress>,
    /// How many extents the next batch has.
    batch_size: usize,
    /// What was mapped last. Its memory serves for the next batch too.
    batch: Batch,
    /// Which of the batch's uses are shared.
    shared: Vec<bool>,
    /// The first part of the batch that was not handed out.
    next_part: usize,
    joiner: Joiner,
    /// Set once nothing is left to be mapped.
    end: Option<End>,
}

/// What is known when all of the range was mapped.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Where the file's last extent ends; `None`: content waits behind it.
    last_extent_end: Option<FileOffset>,
}

/// The extents that overlap `range`, with their sharedness. Offsets are rounded to sectors.
///
/// # Errors
/// That the tree cannot be read. Errors on the way come from the iterator.
pub(crate) fn of_file(file: &File, range: Range<FileOffset>) -> Result<Fiemap> {
    let filesystem = file.filesystem();
    let range = in_sectors(&range, filesystem.sector_bytes());
    let location = file.metadata().location;
    let still = Still {
        walk: Walk::new(filesystem, location, &range, Vec::new(), None)?,
        sharing: sharing(filesystem),
        filesystem: filesystem.clone(),
    };
    Ok(Fiemap::new(Source::Still(Box::new(still)), location, range))
}

fn in_sectors(range: &Range<FileOffset>, sector_bytes: u32) -> Range<FileOffset> {
    let sector_bytes = u64::from(sector_bytes);
    let end = range.end.get().checked_next_multiple_of(sector_bytes);
    // Clamp: a caller's offset; no file reaches the last one.
    range.start.align_down(sector_bytes)..FileOffset::new(end.unwrap_or(u64::MAX))
}

impl Fiemap {
    /// The extents of a file that is being written that overlap `range`, rounded to sectors. The caller has looked that
    /// it is a file.
    #[must_use]
    pub fn of_live(
        writer: Arc<dyn LiveContent>,
        location: Location,
        range: Range<FileOffset>,
        sector_bytes: u32,
    ) -> Self {
        Self::new(Source::Live(writer), location, in_sectors(&range, sector_bytes))
    }

    fn new(source: Source, location: Location, range: Range<FileOffset>) -> Self {
        Self {
            source,
            location,
            position: range.start,
            end: (range.start >= range.end).then_some(End {
                last_extent_end: None,
            }),
            range,
            begun: false,
            asks_sharing: true,
            progress: None,
            batch_size: BATCH_FIRST,
            batch: Batch::default(),
            shared: Vec::new(),
            next_part: 0,
            joiner: Joiner::default(),
        }
    }

    /// The same without asking whether extents are shared: nothing but the file's own leaves is read.
    #[must_use]
    pub fn without_sharing(mut self) -> Self {
        self.asks_sharing = false;
        self.batch.keeps_uses = false;
        self
    }

    /// The same, counting extents and their bytes in `progress`, and ending with [`buttress_fs::Error::Cancelled`] once it was
    /// cancelled.
    #[must_use]
    pub fn with_progress(mut self, progress: &Progress) -> Self {
        if let Source::Still(still) = &mut self.source {
            still.sharing = sharing(&still.filesystem).with_progress(progress);
        }
        self.progress = Some(progress.clone());
        self
    }

    /// Maps the next batch.
    fn fill(&mut self) -> Result<()> {
        let size = self.batch_size;
        self.batch_size = size.exact_mul(2).min(BATCH_MAX);
        self.batch.parts.clear();
        match &mut self.source {
            Source::Still(still) => {
                still
                    .walk
                    .collect(size, self.progress.as_ref(), &mut self.batch)?;
                self.shared = if self.asks_sharing {
                    still
                        .sharing
                        .are_shared(self.location.subvolume, &self.batch.uses)?
                } else {
                    Vec::new()
                };
                if still.walk.has_ended() {
                    let last = walk::last_extent_end(&still.filesystem, self.location)?;
                    self.end = Some(End {
                        last_extent_end: Some(last),
                    });
                }
            }
            Source::Live(writer) => {
                let writer = writer.clone();
                self.fill_live(&*writer, size)?;
            }
        }
        self.next_part = 0;
        if let Some(progress) = &self.progress {
            let parts = &self.batch.parts;
            let bytes = parts
                .iter()
                .fold(ByteCount::ZERO, |bytes, part| bytes.exact_add(part.extent.length));
            progress.advance(u64_of(parts.len()), bytes);
        }
        Ok(())
    }

    /// The next extent of the batch of which it is known that nothing joins it.
    fn next_of_batch(&mut self) -> Option<FiemapExtent> {
        while let Some(part) = self.batch.parts.get(self.next_part) {
            self.next_part = self.next_part.exact_add(1);
            let mut extent = part.extent;
            let is_shared = part.used.and_then(|used| self.shared.get(used));
            // Clamp: without an extent nothing is shared.
            extent
                .flags
                .set(FiemapFlags::SHARED, is_shared.copied().unwrap_or(false));
            if let Some(complete) = self.joiner.add(extent) {
                return Some(complete);
            }
        }
        None
    }

    /// The extent that is held back, when nothing is left: marked if it is the file's last.
    fn last(&mut self, end: End) -> Option<FiemapExtent> {
        let mut last = self.joiner.take()?;
        let is_last = end.last_extent_end.is_some_and(|end| last.end() >= end);
        last.flags.set(FiemapFlags::LAST, is_last);
        Some(last)
    }
}

impl Iterator for Fiemap {
    type Item = Result<FiemapExtent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(extent) = self.next_of_batch() {
                return Some(Ok(extent));
            }
            if let Some(end) = self.end {
                return self.last(end).map(Ok);
            }
            if let Err(error) = self.fill() {
                // After an error there is nothing more.
                self.end = Some(End {
                    last_extent_end: None,
                });
                self.batch.parts.clear();
                self.joiner.take();
                return Some(Err(error));
            }
        }
    }
}

impl FusedIterator for Fiemap {}
