//! Ranges of data and holes of a file: `SEEK_DATA` and `SEEK_HOLE` of `lseek(2)`.
//!
//! Data are sectors that have an extent, are inline or are dirty. All other ranges are holes,
//! including preallocated ranges and the end of the file. A walk over all runs of data and holes
//! visits each leaf once, as an extent map does, and reads nothing else.

use super::{Fiemap, FiemapFlags};
use buttress_format::FileOffset;
use buttress_fs::error::Result;
use buttress_fs::progress::Progress;
use core::ops::Range;

/// The runs of data of a file from an offset on: in order, not adjacent, not empty, cut at the
/// file's size. After an error the iterator ends.
#[derive(Debug)]
pub struct DataRuns {
    map: Fiemap,
    start: FileOffset,
    size: FileOffset,
    held: Option<Range<FileOffset>>,
}

impl DataRuns {
    /// Returns the runs of data and holes of an extent map that begins at `start`, for a file of
    /// this size.
    #[must_use]
    pub fn new(map: Fiemap, start: FileOffset, size: FileOffset) -> Self {
        Self {
            map: map.without_sharing(),
            start,
            size,
            held: None,
        }
    }

    /// Makes the walk end with [`buttress_fs::Error::Cancelled`] once `progress` is cancelled.
    #[must_use]
    pub fn with_progress(self, progress: &Progress) -> Self {
        Self {
            map: self.map.with_progress(progress),
            ..self
        }
    }

    /// Returns the first offset with data; `None` if there is none, or if the runs begin at the
    /// file's end.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    pub fn first_data(mut self) -> Result<Option<FileOffset>> {
        let first = self.next().transpose()?;
        Ok(first.map(|run| run.start))
    }

    /// Returns the first offset without data, at most the file's size; `None` if the runs begin at
    /// the file's end or after it.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
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
