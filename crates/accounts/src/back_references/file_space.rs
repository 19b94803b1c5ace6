//! What a file takes up, and how much of that it shares: the figures of `btrfs filesystem du`.

use super::sharing::{ExtentUse, SHARING_BATCH, Sharing};
use buttress_format::{ByteCount, Compression, FileKind, Logical, SubvolumeId};
use buttress_fs::error::Result;
use buttress_fs::inode::InodeRecord;
use std::ops::Range;

/// What a file takes up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSpace {
    /// Length of all its extents in the file: holes and inline content count nothing, preallocated ranges do.
    pub total: ByteCount,
    /// How much of that lies in extents that somebody else uses too.
    pub shared: ByteCount,
    /// Where the shared parts lie, for adding up what several files share. For compressed extents the length is
    /// that in the file.
    pub shared_ranges: Vec<Range<Logical>>,
}

impl FileSpace {
    /// How much of the file nobody else uses.
    #[must_use]
    pub fn exclusive(&self) -> ByteCount {
        self.total.exact_sub(self.shared)
    }

    /// Adds a part of the file that is shared.
    fn add_shared(&mut self, one: &ExtentUse, length: ByteCount) {
        self.shared = self.shared.exact_add(length);
        let start = match one.extent.compression {
            Compression::None => one.extent.logical.exact_add(one.extent.offset),
            _ => one.extent.logical,
        };
        // Clamp: of a compressed extent the length is that in the file, which can be past the last address.
        let end = start.saturating_add(length);
        match self.shared_ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.shared_ranges.push(start..end),
        }
    }
}

impl Sharing {
    /// What a file takes up. Directories and special files take up nothing.
    ///
    /// # Errors
    /// As [`Sharing::are_shared`].
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

    /// Adds what is shared of a batch, and empties it.
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
