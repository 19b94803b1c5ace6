//! The space and the shared space of a file: the figures of `btrfs filesystem du`.

use super::sharing::{ExtentUse, SHARING_BATCH, Sharing};
use buttress_format::{ByteCount, Compression, FileKind, Logical, SubvolumeId};
use buttress_fs::error::Result;
use buttress_fs::inode::InodeRecord;
use std::ops::Range;

/// The space of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSpace {
    /// The length of all its extents in the file. Holes and inline content count nothing;
    /// preallocated ranges count.
    pub total: ByteCount,
    /// The bytes of `total` that are in extents that other files also use.
    pub shared: ByteCount,
    /// The addresses of the file's shared parts, for summing over several files. For compressed
    /// extents, the length is that of the decompressed part in the file.
    pub shared_ranges: Vec<Range<Logical>>,
}

impl FileSpace {
    /// Returns the part of `total` that no other file uses.
    #[must_use]
    pub fn exclusive(&self) -> ByteCount {
        self.total.exact_sub(self.shared)
    }

    /// Adds the length of a shared part of the file.
    fn add_shared(&mut self, one: &ExtentUse, length: ByteCount) {
        self.shared = self.shared.exact_add(length);
        let start = match one.extent.compression {
            Compression::None => one.extent.logical.exact_add(one.extent.offset),
            _ => one.extent.logical,
        };
        // Clamp: for a compressed extent, the length in the file can extend past the last address.
        let end = start.saturating_add(length);
        match self.shared_ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.shared_ranges.push(start..end),
        }
    }
}

impl Sharing {
    /// Returns the space of a file. Directories and special files use no space.
    ///
    /// # Errors
    /// Fails as [`Sharing::are_shared`] does.
    pub fn file_space(&mut self, record: &InodeRecord) -> Result<FileSpace> {
        let mut space = FileSpace::default();
        if record.metadata.kind != FileKind::Regular {
            return Ok(space);
        }
        let location = record.metadata.location;
        let mut batch: Vec<(ExtentUse, ByteCount)> = Vec::new();
        for range in self.filesystem().open_record(record)?.extents()? {
            let range = range?;
            let Some(one) = ExtentUse::of_range(location.inode, &range) else {
                continue;
            };
            space.total = space.total.exact_add(range.length);
            batch.push((one, range.length));
            if batch.len() >= SHARING_BATCH {
                self.add_to(&mut space, location.subvolume, &mut batch)?;
            }
        }
        self.add_to(&mut space, location.subvolume, &mut batch)?;
        Ok(space)
    }

    /// Adds the shared extents of a batch, and empties the batch.
    fn add_to(
        &mut self,
        space: &mut FileSpace,
        subvolume: SubvolumeId,
        batch: &mut Vec<(ExtentUse, ByteCount)>,
    ) -> Result<()> {
        let uses: Vec<ExtentUse> = batch.iter().map(|(one, _)| *one).collect();
        let shared = self.are_shared(subvolume, &uses)?;
        for ((one, length), _) in batch.drain(..).zip(shared).filter(|(_, shared)| *shared) {
            space.add_shared(&one, length);
        }
        Ok(())
    }
}
