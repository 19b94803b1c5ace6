//! Where a file has data and where it has holes: `SEEK_DATA` and `SEEK_HOLE` of `lseek(2)`.
//!
//! Data is what has an extent, lies inside the tree or is dirty, in whole sectors; the rest, preallocated ranges
//! among it, is holes, and so is what begins at the file's end. A walk over all runs visits each leaf once, as a map does,
//! and reads nothing else.

use super::{Fiemap, FiemapFlags};
use buttress_format::FileOffset;
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;
use core::ops::Range;

/// The runs of data of a file from an offset on: in order, apart, none empty, cut off at the file's size. After an error
/// there are no more.
#[derive(Debug)]
pub struct DataRuns {
    map: Fiemap,
    start: FileOffset,
    size: FileOffset,
    held: Option<Range<FileOffset>>,
}

impl DataRuns {
    /// The runs of a map that goes from `start` on, of a file of this size.
    #[must_use]
    pub fn new(map: Fiemap, start: FileOffset, size: FileOffset) -> Self {
        Self {
            map: map.without_sharing(),
            start,
            size,
            held: None,
        }
    }

    /// The same, ending with [`buttress_fs::Error::Cancelled`] once `progress` was cancelled.
    #[must_use]
    pub fn with_progress(self, progress: &Progress) -> Self {
        Self {
            map: self.map.with_progress(progress),
            ..self
        }
    }

    /// The first offset with data; `None` when there is none, or the runs begin at the file's end.
    /// The first offset that has data.
    ///
    /// # Errors
    /// That the tree cannot be read.
    pub fn first_data(mut self) -> Result<Option<FileOffset>> {
        let first = self.next().transpose()?;
        Ok(first.map(|run| run.start))
    }

    /// The first offset without; `None` when the runs begin at the file's end.
    /// The first offset without data, at most the size; `None` from the size on.
    ///
    /// # Errors
    /// That the tree cannot be read.
    pub fn first_hole(mut self) -> Result<Option<FileOffset>> {
        let start = self.start;
        if start >= self.size {
            return Ok(None);
        }
        let first = self.next().transpose()?;
        let covering = first.filter(|run| run.start == start);
        Ok(Some(covering.map_or(start, |run| run.end)))
    }
}

impl Iterator for DataRuns {
    type Item = Result<Range<FileOffset>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.start >= self.size {
            return None;
        }
        for extent in self.map.by_ref() {
            let extent = match extent {
                Ok(extent) => extent,
                Err(error) => return Some(Err(error)),
            };
            let run = extent.offset.max(self.start)..extent.end().min(self.size);
            if extent.flags.contains(FiemapFlags::UNWRITTEN) || run.start >= run.end {
                continue;
            }
            match &mut self.held {
                Some(held) if held.end == run.start => held.end = run.end,
                held => {
                    if let Some(before) = held.replace(run) {
                        return Some(Ok(before));
                    }
                }
            }
        }
        self.held.take().map(Ok)
    }
}
