//! Content on its way from memory to extents, and the file's lock meanwhile.
//!
//! A write-back takes out what waits, writes it, and has it land: extents with it are in the tree. A call that needs the
//! file's extents holds the file's lock throughout. Who writes back for others (the background, a commit, a sync) lets go of
//! it while content is in flight, so that a writer of that file waits for no device.
//!
//! Invariants:
//! - Of one file, content is in flight once at a time. Whoever wants more of the file than to write waits until it has landed.
//! - What is written meanwhile lies over what is in flight, and that over extents. A write that would have to look at the
//!   file's items waits as well: a part of a sector that is not dirty, a file that may lie in the tree, want of
//!   room.
//! - Size, time and number of writes, and the room promised, go with the content that is taken out. What came since stays.

use super::content::Content;
use super::write_back::{Pieces, is_of_gone_file};
use crate::WritableFilesystem;
use buttress_engine::dirty_data::DirtyData;
use buttress_engine::file_content::{FileContent, FileState};
use buttress_exact::u64_of;
use buttress_format::InodeItem;
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use bytes::Bytes;
use core::ops::Range;
use std::sync::Arc;

/// What was taken out of memory to be written back.
struct Taken {
    item: InodeItem,
    pieces: Pieces,
    /// The file as it was then.
    state: FileState,
    /// How much room was promised for it.
    reserved: u64,
}

impl Taken {
    /// Writes it, and puts extents with it into the tree.
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
        content.write_pieces(&self.item, &self.pieces)
    }
}

/// Content in flight, without the file's lock. It lands when this is dropped.
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
            .leave_content(self.location, &self.file, &mut state, before);
        drop(state);
        // After the lock: giving much memory back to the system takes milliseconds.
        drop(taken);
        landed
    }
}

impl Drop for Flight<'_> {
    /// Nothing is left to land but where writing panicked: then the content waits again, and nobody waits for it in vain.
    fn drop(&mut self) {
        let _told_by_the_panic = self.land(Err(Defect::new("a write-back panicked").into()));
    }
}

impl WritableFilesystem {
    /// Writes back one file's content.
    ///
    /// # Errors
    /// As for [`WritableFilesystem::write_back`].
    pub fn write_back_file(&self, location: Location) -> Result<()> {
        self.with_host_space(|| self.write_back_in_flight(location, None))
    }

    /// Writes back content. If the host has no space, it commits and retries once: the commit discards freed extents on
    /// the host.
    fn with_host_space(&self, write_back: impl Fn() -> Result<()>) -> Result<()> {
        match write_back() {
            Err(Error::OutOfHostSpace(_)) if self.start_to_look().is_dirty() => {
                self.commit_metadata()?;
                write_back()
            }
            written => written,
        }
    }

    /// Writes back what waits in a range of a file.
    pub(crate) fn write_back_range(&self, location: Location, range: &Range<u64>) -> Result<()> {
        self.with_host_space(|| self.write_back_in_flight(location, Some(range)))
    }

    fn write_back_in_flight(&self, location: Location, range: Option<&Range<u64>>) -> Result<()> {
        let taken = self.with_content(location, |content| {
            let taken = content.take_out(range)?;
            content.state.in_flight = taken.is_some();
            Ok(taken.map(|taken| (taken, Arc::clone(content.file))))
        })?;
        let Some((taken, file)) = taken else {
            return Ok(());
        };
        let flight = Flight {
            filesystem: self,
            location,
            file,
            taken: Some(taken),
        };
        flight.run()
    }
}

impl Content<'_> {
    /// Writes back what waits of the file, with its lock held.
    pub(super) fn write_back(&mut self) -> Result<()> {
        let Some(mut taken) = self.take_out(None)? else {
            return Ok(());
        };
        let written = taken.write(self.filesystem, self.location, self.file);
        self.land(&mut taken, written)
    }

    /// Takes out what waits, of a range or of the whole file. Where the file has another size than its items say, or fits
    /// into the tree, a range is the whole file: the one goes with the other. `None` when nothing waits, or nobody wants it.
    fn take_out(&mut self, range: Option<&Range<u64>>) -> Result<Option<Taken>> {
        let range = range.map(|range| self.align_down(range.start)..self.align_up(range.end));
        if !self.has_to_write_back(range.as_ref()) {
            if range.is_none() {
                let reserved = self.state.reserved;
                self.release(reserved);
            }
            return Ok(None);
        }
        let found = self
            .filesystem
            .look(|operation| self.require_still_there(operation));
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
        let (pieces, reserved) = match part {
            Some(range) => {
                let pieces = self.file.waiting.write().begin_write_back_of(&range);
                let length = |piece: &Bytes| u64_of(piece.len());
                let lengths = pieces.iter().map(|(_, piece)| length(piece));
                let bytes = lengths.fold(0_u64, u64::saturating_add);
                (pieces, bytes)
            }
            None => (self.file.waiting.write().begin_write_back(), self.state.reserved),
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
        }))
    }

    fn has_to_write_back(&self, range: Option<&Range<u64>>) -> bool {
        match range {
            None => self.has_pending_times() || !self.look_at_dirty(DirtyData::is_empty),
            Some(range) => {
                let waits = self.look_at_dirty(|dirty| dirty.ranges(range.start, 1));
                waits.first().is_some_and(|first| first.start < range.end)
            }
        }
    }

    /// What was taken out is in extents, or nobody wants it any more, or it waits again.
    fn land(&mut self, taken: &mut Taken, written: Result<()>) -> Result<()> {
        match written {
            Ok(()) => {
                self.file.waiting.write().end_write_back();
                self.release(taken.reserved);
                if self.look_at_dirty(DirtyData::is_empty) {
                    let reserved = self.state.reserved;
                    self.release(reserved);
                }
                Ok(())
            }
            // It went meanwhile.
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
