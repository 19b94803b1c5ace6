//! Maps of files that are being written, which include dirty data and delayed references.

use crate::WritableFilesystem;
use crate::areas::LiveReads;
use buttress_accounts::back_references::DelayedReferencesOf;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_accounts::fiemap::{ContentState, LiveContent};
use buttress_accounts::{DataRuns, Fiemap};
use buttress_format::{FileOffset, Logical};
use buttress_fs::error::Result;
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use core::ops::Range;
use std::sync::Arc;

#[cfg(test)]
mod tests;

impl LiveReads<'_> {
    /// Returns the current extents of a file that overlap `range`, with their sharedness. The
    /// extent map includes dirty data and delayed references. Offsets are rounded to sectors.
    ///
    /// # Errors
    /// Fails with [`Error::IsADirectory`](buttress_fs::Error::IsADirectory),
    /// [`Error::NotAFile`](buttress_fs::Error::NotAFile), or with an error of reading the inode. If
    /// an error occurs later, the iterator returns it.
    pub fn fiemap(&self, location: Location, range: Range<FileOffset>) -> Result<Fiemap> {
        let view = self.filesystem.view();
        view.open_file(location)?;
        Ok(Fiemap::of_live(
            Arc::new(self.filesystem.clone()),
            location,
            range,
            view.sector_bytes(),
        ))
    }

    /// Returns the runs of data from `start` on, including dirty data.
    ///
    /// # Errors
    /// Fails as [`LiveReads::fiemap`] does.
    pub fn data_runs(&self, location: Location, start: FileOffset) -> Result<DataRuns> {
        let map = self.fiemap(location, start..FileOffset::new(u64::MAX))?;
        let size = FileOffset::new(self.filesystem.contents().size_of(location)?);
        Ok(DataRuns::new(map, start, size))
    }

    /// Returns the start of the next data as
    /// [`Maps::seek_data`](buttress_accounts::Maps::seek_data) does, including dirty data.
    ///
    /// # Errors
    /// Fails as [`LiveReads::fiemap`] does.
    pub fn seek_data(&self, location: Location, start: FileOffset) -> Result<Option<FileOffset>> {
        self.data_runs(location, start)?.first_data()
    }

    /// Returns the start of the next hole as
    /// [`Maps::seek_hole`](buttress_accounts::Maps::seek_hole) does, including dirty data.
    ///
    /// # Errors
    /// Fails as [`LiveReads::fiemap`] does.
    pub fn seek_hole(&self, location: Location, start: FileOffset) -> Result<Option<FileOffset>> {
        self.data_runs(location, start)?.first_hole()
    }
}

impl LiveContent for WritableFilesystem {
    fn content_state(&self, location: Location, from: u64, count: usize) -> Result<ContentState> {
        self.contents().look_at(location, from, count)
    }

    fn delayed_references_of(&self, view: &Filesystem, extents: &[Logical]) -> Option<DelayedReferencesOf> {
        self.engine().delayed_references_of(view, extents)
    }

    fn quiesced_content(
        &self,
        location: Location,
        from: u64,
        count: usize,
        body: &mut dyn FnMut(&ContentState, &DelayedReferences) -> Result<()>,
    ) -> Result<()> {
        self.contents()
            .quiesced(location, from, count, |state, references| {
                body(&state, references)
            })
    }
}
