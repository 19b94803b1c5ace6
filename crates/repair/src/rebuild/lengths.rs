//! Doubts about the lengths of data extents, decided by checksums.
//!
//! A file extent item of compressed data states the length of its extent once.  If the old record
//! of the extent is unreadable or differs, the checksums decide. They cover the whole extent, and
//! end with it unless another extent follows.
//!
//! Invariant: the rebuild frees no sector with a checksum because of a doubtful length.

use super::errors::refused;
use super::extents::{Doubt, Extent};
use buttress_exact::Exact as _;
use buttress_format::Logical;
use buttress_fs::{Filesystem, Result};

/// A check of doubtful lengths, for extents in the order of their addresses.
#[derive(Debug)]
pub(super) struct Lengths<'a> {
    filesystem: &'a Filesystem,
    /// The last extent, if its length is doubtful: its start and its end.
    pending: Option<(u64, u64, Doubt)>,
}

impl<'a> Lengths<'a> {
    pub(super) const fn new(filesystem: &'a Filesystem) -> Self {
        Self {
            filesystem,
            pending: None,
        }
    }

    /// Notes the next extent.
    pub(super) fn add(&mut self, extent: &Extent) -> Result<()> {
        self.end_at(extent.start.get())?;
        if extent.doubt != Doubt::Nothing {
            self.pending = Some((extent.start.get(), extent.end()?, extent.doubt));
        }
        Ok(())
    }

    /// Judges the last extent. `next` is the start of the next extent, or the end of the block group.
    pub(super) fn end_at(&mut self, next: u64) -> Result<()> {
        let Some((start, end, doubt)) = self.pending.take() else {
            return Ok(());
        };
        let last = end.exact_sub(self.filesystem.sector_bytes().into());
        let (has_first, has_last) = (self.has_checksum(start), self.has_checksum(last));
        let goes_on = end != next && self.has_checksum(end) == Some(true);
        if goes_on || (has_first == Some(true) && has_last == Some(false)) {
            return Err(refused(
                "the checksums of an extent contradict its length in a file: the file item or the record is wrong",
            ));
        }
        if doubt == Doubt::Unproved && has_first != Some(true) {
            return Err(refused(
                "a file and the record of an extent disagree about its length, and no checksums decide",
            ));
        }
        Ok(())
    }

    /// Returns whether a sector has a checksum; `None` if the checksum tree does not say.
    fn has_checksum(&self, at: u64) -> Option<bool> {
        let sector_bytes = self.filesystem.sector_bytes().narrow();
        let expected = self.filesystem.expected_checksums(Logical::new(at), sector_bytes);
        Some(
            expected
                .ok()?
                .is_some_and(|expected| expected.missing().is_empty()),
        )
    }
}
