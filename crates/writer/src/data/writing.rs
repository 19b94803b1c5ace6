//! Writing at any offset, and what a call reads of its own file. Others read by [`crate::live`].

use super::dirty::DirtyData;
use super::items::is_inline;
use super::table::Content;
use crate::transaction::WritableFilesystem;
use buttress_format::{FileExtent, FileOffset, InodeFlags};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;

/// The largest size of a file.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl WritableFilesystem {
    /// Writes at `offset`, as `pwrite(2)` does. The content waits in memory until it is written back or committed.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`], [`Error::IsADirectory`], [`Error::NotAFile`]; [`Error::ReadOnlySubvolume`],
    /// [`Error::NotPermitted`] for immutable files, and for append-only ones except at their end; [`Error::Invalid`] for an
    /// end past the largest size; [`Error::NoSpace`].
    pub fn write_at(&self, location: Location, offset: FileOffset, bytes: &[u8]) -> Result<()> {
        self.with_content(location, |content| {
            content.write(Some(offset.get()), bytes).map(drop)
        })?;
        self.write_back_excess()
    }

    /// Writes at the end, as a file opened with `O_APPEND` does; gives the offset at which the content begins.
    ///
    /// # Errors
    /// As for [`WritableFilesystem::write_at`].
    pub fn append(&self, location: Location, bytes: &[u8]) -> Result<FileOffset> {
        let offset = self.with_content(location, |content| content.write(None, bytes))?;
        self.write_back_excess()?;
        Ok(FileOffset::new(offset))
    }
}

impl WritableFilesystem {
    /// Promises room for the content of a file that is to be made.
    pub(crate) fn reserve_for_new_file(&self, bytes: u64) -> Result<()> {
        match self.reserve_data(bytes) {
            Err(Error::NoSpace { .. }) => {
                // A commit sets free what edits gave up.
                self.commit_metadata()?;
                self.reserve_data(bytes)
            }
            reserved => reserved,
        }
    }

    /// A file that has just been made gets its content, for which so much room was promised. Its times stay.
    pub(crate) fn take_first_content(
        &self,
        location: Location,
        content: Vec<u8>,
        reserved: u64,
    ) -> Result<()> {
        self.with_content(location, |file| {
            file.state.reserved = file.state.reserved.saturating_add(reserved);
            let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
            self.count_content(content.len());
            let mut waiting = file.file.waiting.write();
            waiting.pending.take_first(content, file.sector_bytes);
            waiting.size = Some(size);
            file.state.size = waiting.size;
            Ok(())
        })
    }
}

impl Content<'_> {
    /// Takes content in, at `offset` or at the end.
    pub(super) fn write(&mut self, offset: Option<u64>, bytes: &[u8]) -> Result<u64> {
        let item = self.require_writable()?;
        let size = self.size()?;
        let offset = offset.unwrap_or(size);
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Error::Invalid {
                what: "a file of more than 2^63 - 1 bytes",
            });
        };
        if item.flags.contains(InodeFlags::APPEND) && offset != size && !self.is_unfinished() {
            return Err(Error::NotPermitted {
                location: self.location,
                why: "it is append-only",
            });
        }
        if bytes.is_empty() {
            return Ok(offset);
        }
        let sectors = self.align_down(offset)..self.align_up(end);
        self.reserve_for(&sectors)?;
        if sectors.start != offset {
            self.load(sectors.start)?;
        }
        if sectors.end != end {
            self.load(self.align_down(end))?;
        }
        if offset > 0 || end < size {
            self.load_inline()?;
        }
        {
            // Both at once: else a reader sees the part of it that lies before the old end.
            let mut waiting = self.file.waiting.write();
            waiting.pending.write(offset, bytes, self.sector_bytes);
            if buttress_faults::on("live-write-half-seen") {
                drop(waiting);
                waiting = self.file.waiting.write();
            }
            waiting.size = Some(size.max(end));
            self.state.size = waiting.size;
        }
        self.touch();
        self.filesystem.count_content(bytes.len());
        Ok(offset)
    }

    /// Promises room for the sectors of a range that do not wait yet, and for a sector 0 that may come out of the tree.
    pub(super) fn reserve_for(&mut self, sectors: &core::ops::Range<u64>) -> Result<()> {
        let missing = |pending: &DirtyData| (pending.missing_bytes(sectors), pending.has(0));
        let (mut bytes, has_first) = self.look_at_dirty(missing);
        if sectors.start > 0 && self.size()? <= self.sector_bytes && !has_first {
            bytes = bytes.saturating_add(self.sector_bytes);
        }
        match self.reserve(bytes) {
            // What may be overwritten where it lies needs no room.
            Err(Error::NoSpace { .. }) if self.is_in_place(sectors)? => Ok(()),
            reserved => reserved,
        }
    }

    /// Has the sector at `at` wait with what the file has there.
    pub(super) fn load(&mut self, at: u64) -> Result<()> {
        if self.look_at_dirty(|pending| pending.has(at)) || at >= self.size()? {
            return Ok(());
        }
        let mut sector = vec![0; usize::try_from(self.sector_bytes).unwrap_or(0)];
        self.read_items(at, &mut sector)?;
        self.change_dirty(|pending| pending.write(at, &sector, self.sector_bytes));
        Ok(())
    }

    /// Has sector 0 wait if the file's content lies inside the tree: something else comes beside it.
    pub(super) fn load_inline(&mut self) -> Result<()> {
        if self.look_at_dirty(|pending| pending.has(0)) || self.size()? == 0 {
            return Ok(());
        }
        let key = FileExtent::key(self.location.inode, FileOffset::MIN);
        let tree = self.filesystem.live_tree(self.location.subvolume.tree())?;
        let found = self.filesystem.look_live(|| {
            let mut found = false;
            tree.look(&key, |data| found = is_inline(data))?;
            Ok(found)
        })?;
        if found {
            self.load(0)?;
        }
        Ok(())
    }

    /// Reads what the file has, dirty data included.
    pub(super) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let rest = self.size()?.saturating_sub(offset);
        let length = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..length) else {
            return Ok(0);
        };
        let end = offset.saturating_add(u64::try_from(length).unwrap_or(0));
        let sectors = self.align_down(offset)..self.align_up(end);
        if self.look_at_dirty(|pending| pending.missing_bytes(&sectors)) > 0 {
            self.read_items(offset, buffer)?;
        }
        self.look_at_dirty(|pending| pending.read(offset, buffer));
        Ok(length)
    }

    /// Reads what is in extents, and zeros elsewhere.
    pub(super) fn read_items(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.filesystem.read_extents(self.location, offset, buffer)
    }
}
