//! The extents of a file as `FIEMAP` reports them, with exact sharedness, and the ranges of data
//! and holes.
//!
//! [`Maps::fiemap`](crate::Maps::fiemap) and [`Fiemap::of_live`] return a [`Fiemap`]: extents in
//! ascending order, with the flags of the ioctl. The walk visits each leaf of the file once. The
//! walk looks up the sharedness of a batch of extents at a time ([`crate::Sharing`]). Batches begin
//! small and grow, so a map of a few extents is cheap, and a caller can stop anywhere and continue
//! later. Dirty data in memory is searched only in holes and preallocated ranges, and appears as
//! delayed allocation.
//!
//! Extents are joined only if they follow each other in the file and on the volume and have the
//! same flags. Two extents of which one is shared therefore stay separate. Joined extents may
//! belong to different items. Without sharedness ([`Fiemap::without_sharing`]), extents that differ
//! only in that flag are joined, as for an ioctl that only counts.
//!
//! On a writable volume each batch shows one moment: trees, dirty data and delayed references. The
//! file may change between batches, as between two calls of the ioctl.
//!
//! Ranges: extents that overlap `[start, end)` are returned whole; dirty parts are cut at the
//! range. The last extent of the file has [`FiemapFlags::LAST`].
//!
//! Bounds: a batch has at most [`BATCH_MAX`] extents and those of one more leaf. A batch of extents
//! fits into the processor's cache, and is large enough for sequential reads of the extent tree.
//!
//! Source: the kernel's documentation of fiemap, `Documentation/filesystems/fiemap.rst`; what the
//! flags mean on btrfs was taken from the ioctl's answers.

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

/// The number of extents in the first batch; the rest of its last leaf is added.
const BATCH_FIRST: usize = 128;

/// The most extents in a batch; the rest of its last leaf is added.
pub const BATCH_MAX: usize = 4 << 10;

bitflags::bitflags! {
    /// The flags of an extent, as in the ioctl.
    ///
    /// Source: `include/uapi/linux/fiemap.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FiemapFlags: u32 {
        /// The last extent of the file.
        const LAST = 0x1;
        /// The address of the extent is not decided yet.
        const UNKNOWN = 0x2;
        /// The extent's content is dirty.
        const DELALLOC = 0x4;
        /// The stored bytes differ from the content, because they are compressed.
        const ENCODED = 0x8;
        /// The extent does not begin and end at block boundaries.
        const NOT_ALIGNED = 0x100;
        /// The extent's content is inline in the tree.
        const INLINE = 0x200;
        /// The extent is preallocated, and reads as zeros.
        const UNWRITTEN = 0x800;
        /// Another file, or another place of the same file, also uses the extent.
        const SHARED = 0x2000;
    }
}

/// An extent, or several joined extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiemapExtent {
    /// The file offset of the extent.
    pub offset: FileOffset,
    /// The length of the extent in the file, in bytes.
    pub length: ByteCount,
    /// The logical address of the extent; for a compressed extent the start of the whole extent.
    /// `None` for inline and unallocated content, for which the ioctl returns 0.
    pub address: Option<Logical>,
    /// The flags of the extent.
    pub flags: FiemapFlags,
}

impl FiemapExtent {
    /// Returns the file offset at which the extent ends (exclusive).
    #[must_use]
    pub const fn end(&self) -> FileOffset {
        self.offset.saturating_add(self.length) // Clamp: never reached, parsing checked the sum.
    }
}

/// The source of an extent map.
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

/// The extents of a range of a file, in order. After an error, the iterator ends. For the order and
/// the batches of extents, see the module's documentation.
#[derive(Debug)]
pub struct Fiemap {
    source: Source,
    location: Location,
    range: Range<FileOffset>,
    /// The file offset up to which the file was mapped.
    position: FileOffset,
    /// Whether the map has already mapped a part of the range.
    begun: bool,
    asks_sharing: bool,
    progress: Option<Progress>,
    /// The number of extents in the next batch.
    batch_size: usize,
    /// The last batch of extents that the map looked up. The memory of this batch is reused for the
    /// next batch.
    batch: Batch,
    /// For each use of the batch, whether it is shared.
    shared: Vec<bool>,
    /// The first part of the batch that the iterator has not returned yet.
    next_part: usize,
    joiner: Joiner,
    /// True once no part of the file range is left to map.
    end: Option<End>,
}

/// Facts that are known once the whole range is mapped.
#[derive(Clone, Copy, Debug)]
struct End {
    /// The end of the file's last extent; `None` if dirty data follows the range.
    last_extent_end: Option<FileOffset>,
}

/// Returns the extents that overlap `range`, with their sharedness. Offsets are rounded to sectors.
///
/// # Errors
/// Fails if the tree cannot be read. Later errors come from the iterator.
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
    // Clamp: the offset comes from a caller, and no file reaches the largest one.
    range.start.align_down(sector_bytes)..FileOffset::new(end.unwrap_or(u64::MAX))
}

impl Fiemap {
    /// Returns the extents that overlap `range`, rounded to sectors, for a file that is being
    /// written. The caller has checked that the inode is a file.
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

    /// Makes the map skip the lookup of sharedness. The extent map then reads only the file's own
    /// leaves.
    #[must_use]
    pub fn without_sharing(mut self) -> Self {
        self.asks_sharing = false;
        self.batch.keeps_uses = false;
        self
    }

    /// Makes the map count extents and their bytes in `progress`, and end with
    /// [`buttress_fs::Error::Cancelled`] once `progress` is cancelled.
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

    /// Returns the next extent of the batch that no later extent can join.
    fn next_of_batch(&mut self) -> Option<FiemapExtent> {
        while let Some(part) = self.batch.parts.get(self.next_part) {
            self.next_part = self.next_part.exact_add(1);
            let mut extent = part.extent;
            let is_shared = part.used.and_then(|used| self.shared.get(used));
            // Clamp: a part without an extent is not shared.
            extent
                .flags
                .set(FiemapFlags::SHARED, is_shared.copied().unwrap_or(false));
            if let Some(complete) = self.joiner.add(extent) {
                return Some(complete);
            }
        }
        None
    }

    /// Returns the last extent of the map, which is held back for joining. Marks the extent if it
    /// is the file's last.
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
                // After an error the iterator ends.
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
