//! Writes at any offset, and a call's reads of its own file. Readers outside a write call use
//! [`crate::live`].

use super::content::{Content, Of};
use super::stored::is_inline;
use crate::WritableFilesystem;
use buttress_engine::dirty_data::DirtyData;
use buttress_engine::inodes::LiveInode;
use buttress_exact::{Exact as _, at_most, u64_of};
use buttress_format::{FileExtent, FileOffset, InodeFlags};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use core::ops::Range;

/// The largest size of a file.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl WritableFilesystem {
    /// Writes at `offset`, as `pwrite(2)` does. The content stays dirty in memory until it is
    /// written back or committed.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], [`Error::IsADirectory`], [`Error::NotAFile`],
    /// [`Error::ReadOnlySubvolume`], [`Error::NoSpace`], [`Error::QuotaExceeded`]. Fails with
    /// [`Error::NotPermitted`] for
    /// immutable files, and for append-only files except at their end. Fails with
    /// [`Error::Invalid`] for an end beyond the maximum file size. Fails with
    /// [`Error::OutOfHostSpace`] if dirty content is at its limit.
    pub fn write_at(&self, location: Location, offset: FileOffset, bytes: &[u8]) -> Result<()> {
        self.write_kept_at(location, None, offset, bytes)
    }

    /// Writes as [`WritableFilesystem::write_at`] does, to a file whose live inode the caller may
    /// keep.
    pub(crate) fn write_kept_at(
        &self,
        location: Location,
        inode: Option<&LiveInode>,
        offset: FileOffset,
        bytes: &[u8],
    ) -> Result<()> {
        self.writeback().require_host_space()?;
        self.take_in(Of { location, inode }, Source::CallAt(offset.get()), bytes)?;
        self.writeback().write_taken_in()
    }

    /// Writes content that an earlier write call stored in a cache. The cache's owner sets the
    /// file's times itself ([`WritableFilesystem::set_attributes`]), so times stay unchanged. An
    /// append-only file accepts content at any offset here.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does.
    pub fn write_cached_at(&self, location: Location, offset: FileOffset, bytes: &[u8]) -> Result<()> {
        self.writeback().require_host_space()?;
        self.take_in(Of::location(location), Source::Cache(offset.get()), bytes)?;
        self.writeback().write_taken_in()
    }

    /// Writes at the end, as for a file opened with `O_APPEND`. Returns the offset at which the
    /// content begins.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`] does.
    pub fn append(&self, location: Location, bytes: &[u8]) -> Result<FileOffset> {
        self.writeback().require_host_space()?;
        let offset = self.take_in(Of::location(location), Source::CallAtEnd, bytes)?;
        self.writeback().write_taken_in()?;
        Ok(FileOffset::new(offset))
    }

    /// Adds content to the file's dirty data. The call does not wait for content in flight, unless
    /// it needs a part of that content. If space for more dirty data is lacking, the write first
    /// writes back the dirty data of all files.
    fn take_in(&self, of: Of<'_>, source: Source, bytes: &[u8]) -> Result<u64> {
        self.quotas().know_use(of.location.subvolume)?;
        self.quotas()
            .with_current(|| match self.take_in_beside_data(of, source, bytes) {
                Err(Error::NoSpace { .. }) if self.data().delalloc_bytes() > 0 => {
                    self.writeback().write_all()?;
                    self.take_in_beside_data(of, source, bytes)
                }
                taken => taken,
            })
    }

    fn take_in_beside_data(&self, of: Of<'_>, source: Source, bytes: &[u8]) -> Result<u64> {
        let taken = self
            .contents()
            .hold(of, false, |content| content.write_in_flight(source, bytes))?;
        match taken {
            Some(offset) => Ok(offset),
            None => self
                .contents()
                .hold(of, true, |content| content.write(source, bytes)),
        }
    }
}

impl WritableFilesystem {
    /// Reserves space for content without a file in the table, such as the content of a file that is
    /// made afterwards. [`release_beside`](Self::release_beside) releases the space, unless
    /// [`take_first_content`](Self::take_first_content) gives it to the file.
    pub(crate) fn reserve_beside(&self, bytes: u64) -> Result<()> {
        self.data().begin_beside(bytes);
        let reserved = match self.reserve_data(bytes) {
            // A commit frees the space that earlier edits released.
            Err(error) if error.is_out_of_space() => {
                self.commit_metadata().and_then(|_| self.reserve_data(bytes))
            }
            reserved => reserved,
        };
        reserved.inspect_err(|_| self.data().end_beside(bytes))
    }

    /// Releases space that [`reserve_beside`](Self::reserve_beside) reserved.
    pub(crate) fn release_beside(&self, bytes: u64) {
        self.release_data(bytes);
        self.data().end_beside(bytes);
    }

    /// Stores the first content of a new file, for which `reserved` bytes are reserved and `charged`
    /// bytes charged. The call leaves the file's times unchanged.
    pub(crate) fn take_first_content(
        &self,
        location: Location,
        content: Vec<u8>,
        reserved: u64,
        charged: u64,
    ) -> Result<()> {
        self.contents().with(location, |file| {
            file.state.reserved = file.state.reserved.saturating_add(reserved);
            self.data().end_beside(reserved);
            file.state.charged = file.state.charged.exact_add(charged);
            let size = u64_of(content.len());
            self.count_content(content.len());
            let mut waiting = file.file.waiting.write();
            waiting.pending.take_first(content, file.sector_bytes);
            waiting.size = Some(size);
            file.state.size = waiting.size;
            Ok(())
        })
    }
}

impl WritableFilesystem {
    /// Returns whether a file's content is inline.
    pub(super) fn lies_in_tree(&self, location: Location) -> Result<bool> {
        let key = FileExtent::key(location.inode, FileOffset::MIN);
        let tree = self.live().tree(location.subvolume.tree())?;
        self.live().read_whole(|| {
            let mut found = false;
            tree.with_item(&key, |data| found = is_inline(data))?;
            Ok(found)
        })
    }
}

/// Returns whether a write failed since it takes new space. A write in place takes none.
fn takes_space(error: &Error) -> bool {
    let is_over_limit = matches!(error, Error::QuotaExceeded(_));
    error.is_out_of_space() || is_over_limit && !buttress_faults::on("quota-limit-refuses-in-place")
}

/// The origin of written content, and its offset.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A write call at a given offset.
    CallAt(u64),
    /// A write call that appends at the end of the file.
    CallAtEnd,
    /// A cache that received the content from an earlier call for this offset.
    Cache(u64),
}

/// The destination of written content.
struct Place {
    offset: u64,
    end: u64,
    /// The file's size before the write.
    size: u64,
    sectors: Range<u64>,
}

impl Content<'_> {
    /// Stores content at `offset` or at the end. Returns the offset of the content.
    pub(super) fn write(&mut self, source: Source, bytes: &[u8]) -> Result<u64> {
        let place = self.place_of(source, bytes)?;
        if bytes.is_empty() {
            return Ok(place.offset);
        }
        self.reserve_for(&place.sectors)?;
        if place.sectors.start != place.offset {
            self.load(place.sectors.start)?;
        }
        if place.sectors.end != place.end {
            self.load(self.align_down(place.end))?;
        }
        if place.offset > 0 || place.end < place.size {
            self.load_inline()?;
        }
        Ok(self.put_in(&place, source, bytes))
    }

    /// Stores content as [`write`](Self::write) does, while earlier content of the file may be in
    /// flight. Returns `None`, without a change, if the write needs more of the file than its dirty
    /// data.
    fn write_in_flight(&mut self, source: Source, bytes: &[u8]) -> Result<Option<u64>> {
        if !self.state.in_flight || bytes.is_empty() {
            return self.write(source, bytes).map(Some);
        }
        let place = self.place_of(source, bytes)?;
        if !self.needs_no_items(&place)? {
            return Ok(None);
        }
        let missing = self.with_dirty(|pending| pending.missing_bytes(&place.sectors));
        let tree = self.location.subvolume.tree();
        let limits = self.filesystem.quota_limits();
        let reserved = limits.charge(tree, missing).and_then(|charged| {
            let reserved = self.filesystem.reserve_data(missing);
            reserved.inspect_err(|_| limits.uncharge(tree, charged))?;
            Ok(charged)
        });
        let charged = match reserved {
            Ok(charged) => charged,
            Err(error) if takes_space(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.state.reserved = self.state.reserved.saturating_add(missing);
        self.state.charged = self.state.charged.exact_add(charged);
        Ok(Some(self.put_in(&place, source, bytes)))
    }

    /// Returns whether content can be stored without reading the file's extents or content in
    /// flight.
    fn needs_no_items(&self, place: &Place) -> Result<bool> {
        if self.file.waiting.read().may_land_inline(self.sector_bytes) {
            return Ok(false);
        }
        let is_whole = |at: u64, is_part: bool| {
            let waits = || self.with_dirty(|pending| pending.has(at));
            !is_part || at >= place.size || waits() || buttress_faults::on("in-flight-sector-unread")
        };
        let is_whole = is_whole(place.sectors.start, place.sectors.start != place.offset)
            && is_whole(self.align_down(place.end), place.sectors.end != place.end);
        Ok(is_whole
            && (self.with_dirty(|pending| pending.has(0)) || !self.filesystem.lies_in_tree(self.location)?))
    }

    /// Returns the destination of content of this length. Fails if the file does not accept content
    /// at that place.
    fn place_of(&mut self, source: Source, bytes: &[u8]) -> Result<Place> {
        let item = self.require_writable()?;
        let size = self.size()?;
        let offset = match source {
            Source::CallAt(offset) | Source::Cache(offset) => offset,
            Source::CallAtEnd => size,
        };
        let length = u64_of(bytes.len());
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Error::Invalid {
                what: "the file would be longer than 2^63 - 1 bytes",
            });
        };
        let is_judged = matches!(source, Source::Cache(_));
        if item.flags.contains(InodeFlags::APPEND) && offset != size && !is_judged && !self.is_unfinished() {
            return Err(Error::NotPermitted {
                location: self.location,
                why: "it is append-only",
            });
        }
        Ok(Place {
            offset,
            end,
            size,
            sectors: self.align_down(offset)..self.align_up(end),
        })
    }

    /// Makes content dirty whose space is already reserved. Returns the offset of the content.
    fn put_in(&mut self, place: &Place, source: Source, bytes: &[u8]) -> u64 {
        {
            // The content and the file's size change under one lock; otherwise a reader would see
            // only the part before the old end.
            let mut waiting = self.file.waiting.write();
            waiting.pending.write(place.offset, bytes, self.sector_bytes);
            if buttress_faults::on("live-write-half-seen") {
                drop(waiting);
                waiting = self.file.waiting.write();
            }
            waiting.size = Some(place.size.max(place.end));
            self.state.size = waiting.size;
        }
        match source {
            Source::CallAt(_) | Source::CallAtEnd => self.touch(),
            Source::Cache(_) => self.count_write(),
        }
        self.filesystem.count_content(bytes.len());
        place.offset
    }

    /// Reserves space for the clean sectors of a range, and for sector 0 if it may leave its inline
    /// extent.
    pub(super) fn reserve_for(&mut self, sectors: &Range<u64>) -> Result<()> {
        let missing = |pending: &DirtyData| (pending.missing_bytes(sectors), pending.has(0));
        let (mut bytes, has_first) = self.with_dirty(missing);
        if sectors.start > 0 && self.size()? <= self.sector_bytes && !has_first {
            bytes = bytes.saturating_add(self.sector_bytes);
        }
        match self.reserve(bytes) {
            // A write in place needs no new space, and a quota limit allows it, as in Linux.
            Err(error) if takes_space(&error) && self.is_in_place(sectors)? => {
                self.state.unreserved = self.state.unreserved.exact_add(bytes);
                Ok(())
            }
            reserved => reserved,
        }
    }

    /// Makes the sector at `at` dirty with the content that the file has there.
    pub(super) fn load(&mut self, at: u64) -> Result<()> {
        if self.with_dirty(|pending| pending.has(at)) || at >= self.size()? {
            return Ok(());
        }
        let mut sector = vec![0; self.sector_bytes.narrow::<usize>()];
        self.read_items(at, &mut sector)?;
        self.change_dirty(|pending| pending.write(at, &sector, self.sector_bytes));
        Ok(())
    }

    /// Makes sector 0 dirty if the file's content is inline, because a write will add content after
    /// it.
    pub(super) fn load_inline(&mut self) -> Result<()> {
        if self.with_dirty(|pending| pending.has(0)) || self.size()? == 0 {
            return Ok(());
        }
        if self.filesystem.lies_in_tree(self.location)? {
            self.load(0)?;
        }
        Ok(())
    }

    /// Reads the file's content, including dirty data.
    pub(super) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let rest = self.size()?.saturating_sub(offset);
        let length = at_most(rest, buffer.len());
        let Some(buffer) = buffer.get_mut(..length) else {
            return Ok(0);
        };
        let end = offset.saturating_add(u64_of(length));
        let sectors = self.align_down(offset)..self.align_up(end);
        if self.with_dirty(|pending| pending.missing_bytes(&sectors)) > 0 {
            self.read_items(offset, buffer)?;
        }
        self.with_dirty(|pending| pending.read(offset, buffer));
        Ok(length)
    }

    /// Reads the content of extents into `buffer`, and zeros elsewhere.
    pub(super) fn read_items(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.filesystem.live().read_extents(self.location, offset, buffer)
    }
}
