//! Content in flight from memory to extents, and the file lock during the flight.
//!
//! A write-back takes dirty data out, writes it, and lands it: the tree then has extents with this
//! data. A call that needs a file's extents holds the file lock for its whole length. Write-backs
//! by the background, a commit or a sync release the file lock while content is in flight, so
//! writers of the file wait for no device.
//!
//! Invariants:
//! - A file never has two write-backs of its content in flight. A call that needs more of the file
//!   than to write waits until content in flight has landed.
//! - Newer writes cover in-flight content, and in-flight content covers extents. A write that needs
//!   the file's items also waits until content in flight has landed. A write needs the items for a
//!   clean part of a sector, a possibly inline file, or lack of space.
//! - A file's size, times, number of writes and reservation are taken out together with its
//!   content. Changes of the file after the take-out stay.

use super::content::Content;
use super::write_back::{Pieces, is_of_gone_file};
use crate::WritableFilesystem;
use crate::areas::WriteBack;
use buttress_engine::dirty_data::DirtyData;
use buttress_engine::file_content::{FileContent, FileState};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::InodeItem;
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;
use std::sync::Arc;

/// Dirty data that was taken out of memory for a write-back.
struct Taken {
    item: InodeItem,
    pieces: Pieces,
    /// The state of the file at the moment of the take-out.
    state: FileState,
    /// The bytes that were reserved for this data.
    reserved: u64,
    /// The bytes of this data without reserved space.
    unreserved: u64,
    /// The bytes that the write-back wrote to new extents.
    new_bytes: u64,
}

impl Taken {
    /// Writes the data and inserts its extents into the tree.
    fn write(
        &mut self,
        filesystem: &WritableFilesystem,
        location: Location,
        file: &Arc<FileContent>,
    ) -> Result<()> {
        let mut content = Content {
            filesystem,
            location,
            inode: None,
            file,
            state: &mut self.state,
            sector_bytes: u64::from(filesystem.forest().block_format().sector_bytes),
            keeps_times: false,
        };
        let in_place = content.write_pieces(&self.item, &self.pieces)?;
        self.new_bytes = bytes_of(&self.pieces).exact_sub(in_place);
        Ok(())
    }
}

/// Content that a write-back has in flight without the file lock. The content lands at the latest
/// when this value is dropped.
struct Flight<'a> {
    filesystem: &'a WritableFilesystem,
    location: Location,
    file: Arc<FileContent>,
    taken: Option<Taken>,
}

impl Flight<'_> {
    fn run(mut self) -> Result<()> {
        let written = match &mut self.taken {
            Some(taken) => taken.write(self.filesystem, self.location, &self.file),
            None => Ok(()),
        };
        self.land(written)
    }

    fn land(&mut self, written: Result<()>) -> Result<()> {
        let Some(mut taken) = self.taken.take() else {
            return Ok(());
        };
        let mut state = self.file.state.lock();
        let before = self.file.memory_bytes();
        let mut content = Content {
            filesystem: self.filesystem,
            location: self.location,
            inode: None,
            file: &self.file,
            state: &mut state,
            sector_bytes: u64::from(self.filesystem.forest().block_format().sector_bytes),
            keeps_times: false,
        };
        let landed = content.land(&mut taken, written);
        state.in_flight = false;
        self.file.has_landed.notify_all();
        self.filesystem
            .contents()
            .leave(self.location, &self.file, &mut state, before);
        drop(state);
        // Drop the pieces after releasing the file lock: returning much memory to the system takes
        // milliseconds.
        drop(taken);
        landed
    }
}

impl Drop for Flight<'_> {
    /// In this drop, content is still in flight only if writing panicked. The content then becomes
    /// dirty again, and waiting calls wake up.
    fn drop(&mut self) {
        let _told_by_the_panic = self.land(Err(Defect::new("a write-back panicked").into()));
    }
}

impl WriteBack<'_> {
    /// Writes back the dirty data of one file.
    ///
    /// # Errors
    /// Fails as [`WriteBack::write_all`] does.
    pub fn write_file(&self, location: Location) -> Result<()> {
        self.with_host_space(|| self.write_in_flight(location, None))
    }

    /// Runs a write-back, with one retry if the host has no space. If the host has no space,
    /// commits and retries once: the commit discards freed extents on the host.
    fn with_host_space(&self, write_back: impl Fn() -> Result<()>) -> Result<()> {
        match write_back() {
            Err(Error::OutOfHostSpace(_)) if self.filesystem.start_reading().is_dirty() => {
                self.filesystem.commit_metadata()?;
                write_back()
            }
            written => written,
        }
    }

    /// Writes back the dirty data in a range of a file.
    pub(crate) fn write_range(&self, location: Location, range: &Range<u64>) -> Result<()> {
        self.with_host_space(|| self.write_in_flight(location, Some(range)))
    }

    fn write_in_flight(&self, location: Location, range: Option<&Range<u64>>) -> Result<()> {
        let taken = self.filesystem.contents().with(location, |content| {
            let taken = content.take_out(range)?;
            content.state.in_flight = taken.is_some();
            Ok(taken.map(|taken| (taken, Arc::clone(content.file))))
        })?;
        let Some((taken, file)) = taken else {
            return Ok(());
        };
        let flight = Flight {
            filesystem: self.filesystem,
            location,
            file,
            taken: Some(taken),
        };
        flight.run()
    }
}

impl Content<'_> {
    /// Writes back the dirty data of the file while the call holds the file lock.
    pub(super) fn write_back(&mut self) -> Result<()> {
        let Some(mut taken) = self.take_out(None)? else {
            return Ok(());
        };
        let written = taken.write(self.filesystem, self.location, self.file);
        self.land(&mut taken, written)
    }

    /// Takes out the dirty data of a range or of the whole file. The write-back takes the whole
    /// file if the file's size differs from its item's, or if the file fits inline. Returns `None`
    /// if the file has no dirty data, or if the file is deleted.
    fn take_out(&mut self, range: Option<&Range<u64>>) -> Result<Option<Taken>> {
        let range = range.map(|range| self.align_down(range.start)..self.align_up(range.end));
        if !self.has_to_write_back(range.as_ref()) {
            if range.is_none() {
                self.end_clean();
            }
            return Ok(None);
        }
        let found = self
            .filesystem
            .read_under_lock(|operation| self.require_still_there(operation));
        let item = match found {
            Ok(item) => item,
            Err(error) if is_of_gone_file(&error) => {
                self.discard();
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let size = self.size()?;
        let keeps_size = item.size.get() == size && size > self.sector_bytes;
        let part = range.filter(|_| keeps_size && !buttress_faults::on("range-writes-all"));
        let (pieces, reserved, unreserved) = match part {
            Some(range) => {
                let pieces = self.file.waiting.write().begin_write_back_of(&range);
                let bytes = bytes_of(&pieces);
                let unreserved = bytes.min(self.state.unreserved);
                (pieces, bytes.exact_sub(unreserved), unreserved)
            }
            None => {
                let pieces = self.file.waiting.write().begin_write_back();
                (pieces, self.state.reserved, self.state.unreserved)
            }
        };
        let state = FileState {
            size: Some(size),
            never_inline: self.state.never_inline,
            ..FileState::default()
        };
        Ok(Some(Taken {
            item,
            pieces,
            state,
            reserved,
            unreserved,
            new_bytes: 0,
        }))
    }

    /// Releases what stays reserved although the file has no dirty data.
    fn end_clean(&mut self) {
        self.state.unreserved = 0;
        let reserved = self.state.reserved;
        self.unreserve(reserved);
    }

    fn has_to_write_back(&self, range: Option<&Range<u64>>) -> bool {
        match range {
            None => self.has_pending_times() || !self.with_dirty(DirtyData::is_empty),
            Some(range) => {
                let waits = self.with_dirty(|dirty| dirty.ranges(range.start, 1));
                waits.first().is_some_and(|first| first.start < range.end)
            }
        }
    }

    /// Ends a write-back: the data is in extents, or is obsolete, or becomes dirty again.
    fn land(&mut self, taken: &mut Taken, written: Result<()>) -> Result<()> {
        match written {
            Ok(()) => {
                self.file.waiting.write().end_write_back();
                self.state.unreserved = self.state.unreserved.exact_sub(taken.unreserved);
                // Data in new extents may have no reserved space, and other data may have too much.
                let new_bytes = taken.new_bytes.min(taken.reserved);
                self.release(new_bytes);
                self.unreserve(taken.reserved.exact_sub(new_bytes));
                if self.with_dirty(DirtyData::is_empty) {
                    self.end_clean();
                }
                Ok(())
            }
            // The file was removed during its write-back.
            Err(error) if is_of_gone_file(&error) => {
                self.discard();
                Ok(())
            }
            Err(error) => {
                self.file
                    .waiting
                    .write()
                    .fail_write_back(core::mem::take(&mut taken.pieces));
                Err(error)
            }
        }
    }
}

fn bytes_of(pieces: &Pieces) -> u64 {
    let lengths = pieces.iter().map(|(_, piece)| u64_of(piece.len()));
    lengths.fold(0, u64::exact_add)
}
