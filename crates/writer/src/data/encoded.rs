//! Extents whose stored bytes the caller provides: compressed content is stored as it is, and never
//! decoded.
//!
//! A call writes the provided extents at once, without keeping them in memory. Before it writes
//! encoded extents, the call writes back the file's dirty data.

use super::compressing::{COMPRESSED_BYTES_MAX, NewExtent, PartOfExtent, length_of};
use super::content::Content;
use super::insertion::Insertion;
use super::writing::FILE_BYTES_MAX;
use crate::areas::EncodedWrites;
use crate::data::allocation::writes_of;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::limits::inline_content_bytes_max;
use buttress_format::{ByteCount, Compression, FileOffset, InodeFlags, InodeItem};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use bytes::{Bytes, BytesMut};

/// A range of a file, with the bytes to be stored for it.
#[derive(Clone, Debug)]
pub struct EncodedExtent {
    /// The start of the range, a multiple of the sector size.
    pub offset: FileOffset,
    /// The length of the range in whole sectors, unless the range ends at the old or new end of the
    /// file.
    pub length: ByteCount,
    /// The length of the decoded content, in bytes. The decoded content may be longer than the file
    /// range.
    pub content_bytes: ByteCount,
    /// The offset of the range in the decoded content, a multiple of the sector size.
    pub content_offset: ByteCount,
    /// The compression of the stored bytes. Uncompressed encoded bytes must cover exactly the
    /// range.
    pub compression: Compression,
    /// The bytes to be stored, without padding of the last sector.
    pub stored: Bytes,
}

impl EncodedExtent {
    pub(super) fn end(&self) -> u64 {
        self.offset.get().saturating_add(self.length.get())
    }
}

/// Whether and how the caller's encoded bytes can be stored.
pub(super) enum Fit {
    /// The encoded bytes are stored as an extent, unchanged.
    Extent,
    /// The encoded bytes are stored as an inline extent, unchanged.
    Inline,
    /// The extents cannot be stored unchanged.
    No,
}

impl EncodedWrites<'_> {
    /// Stores a caller's extents in a file, in the order of their ranges, which do not overlap.
    /// Returns `false`, and changes nothing, if an extent cannot be stored unchanged. The bounds of
    /// an extent must be whole sectors, and an extent must not be larger than its content. The file
    /// must have checksums, and a free range must be long enough.
    ///
    /// This call does not verify that compressed bytes can be decoded. A later reader of the file
    /// returns the decoding error.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::write_at`](crate::WritableFilesystem::write_at) does.
    pub fn write(&self, location: Location, extents: &[EncodedExtent]) -> Result<bool> {
        let quotas = self.filesystem.quotas();
        quotas.know_use(location.subvolume)?;
        quotas.with_current(|| {
            self.filesystem
                .contents()
                .with_in_steps(location, |content| content.write_encoded(extents))
        })
    }
}

impl Content<'_> {
    fn write_encoded(&mut self, extents: &[EncodedExtent]) -> Result<bool> {
        let item = self.require_changeable()?;
        let size = self.size()?;
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else {
            return Ok(true);
        };
        let new_size = size.max(last.end());
        let mut previous_end = 0;
        for extent in extents {
            let is_last = extent.end() == new_size;
            match self
                .filesystem
                .encoded_writes()
                .fit(item.flags, extent, size, is_last)
            {
                Fit::Extent if extent.offset.get() >= previous_end => {}
                Fit::Inline if extents.len() == 1 => return self.write_encoded_inline(first, size),
                Fit::Extent | Fit::Inline | Fit::No => return Ok(false),
            }
            previous_end = extent.end();
        }
        let new: Vec<NewExtent> = extents
            .iter()
            .map(|extent| self.filesystem.encoded_writes().new_extent(extent))
            .collect::<Result<_, Defect>>()?;
        let stored = new
            .iter()
            .map(NewExtent::stored_bytes)
            .fold(0, u64::saturating_add);
        if size > 0 && size <= self.sector_bytes {
            self.reserve(self.sector_bytes)?;
            self.load_inline()?;
        }
        let file = self.file;
        let layout = file.layout.write();
        // The write-back ends all reservations of the file.
        self.out_of_tree(Self::write_back)?;
        self.reserve(stored)?;
        let written = self.write_new_extents(&item, new_size, &new);
        drop(layout);
        match &written {
            Ok(()) => self.release(stored),
            Err(_) => self.unreserve(stored),
        }
        match written {
            Err(Error::NoSpace { .. }) => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// Allocates and writes new extents, and inserts their items.
    fn write_new_extents(&mut self, item: &InodeItem, size: u64, extents: &[NewExtent]) -> Result<()> {
        let placed = self.filesystem.writeback().place_extents(extents)?;
        let has_checksums = !item.flags.contains(InodeFlags::NODATASUM);
        let sums = match self
            .filesystem
            .writeback()
            .write_extents_out(&writes_of(&placed), has_checksums)
        {
            Ok(sums) => sums,
            Err(error) => {
                self.filesystem.writeback().give_back_extents(placed);
                return Err(error);
            }
        };
        let bytes = extents.iter().fold(0_usize, |sum, extent| {
            sum.saturating_add(extent.length.narrow::<usize>())
        });
        self.filesystem.count_content(bytes);
        self.touch();
        let insertions: Vec<Insertion> = placed.into_iter().map(Insertion::New).collect();
        // The write-back that just ran changed the inode, so this call reads the inode again.
        let item = self
            .filesystem
            .read_under_lock(|operation| self.require_still_there(operation))?;
        let mut inserted = 0_usize;
        let done = self.insert(&item, size, &insertions, sums, false, &mut inserted);
        if let Err(error) = done {
            self.filesystem
                .writeback()
                .give_back_insertions(insertions.into_iter().skip(inserted));
            return Err(error);
        }
        self.set_size(size);
        Ok(())
    }

    fn write_encoded_inline(&mut self, extent: &EncodedExtent, size: u64) -> Result<bool> {
        let sectors = 0..self.sector_bytes;
        self.reserve(self.sector_bytes)?;
        let forgotten = self.change_dirty(|pending| pending.remove(&sectors));
        self.forget(forgotten);
        self.touch();
        let new_size = size.max(extent.end());
        let file = self.file;
        let layout = file.layout.write();
        let put = self.put_inline(new_size, extent.compression, &extent.stored);
        drop(layout);
        // Inline content takes a part of a tree block, and limits do not charge tree blocks.
        let reserved = self.state.reserved;
        self.unreserve(reserved);
        put?;
        self.set_size(new_size);
        Ok(true)
    }
}

impl EncodedWrites<'_> {
    /// Returns how an extent can be stored in a file of this size.
    pub(super) fn fit(&self, flags: InodeFlags, extent: &EncodedExtent, size: u64, is_last: bool) -> Fit {
        let sector_bytes = u64::from(self.filesystem.forest().block_format().sector_bytes);
        let is_whole = |at: u64| at.checked_rem(sector_bytes) == Some(0);
        let sectors = |bytes: u64| bytes.div_ceil(sector_bytes.max(1));
        let stored = length_of(&extent.stored);
        let (length, content) = (extent.length.get(), extent.content_bytes.get());
        let part_end = extent.content_offset.get().saturating_add(length);
        let is_sound = length > 0 && stored > 0 && part_end <= content && extent.end() <= FILE_BYTES_MAX;
        if !is_sound || flags.intersects(InodeFlags::NODATASUM | InodeFlags::NODATACOW) {
            return Fit::No;
        }
        let ends_well = is_whole(extent.end()) || is_last;
        if !is_whole(extent.offset.get()) || !is_whole(extent.content_offset.get()) || !ends_well {
            return Fit::No;
        }
        if extent.compression == Compression::None {
            let is_all = stored == length && content == length && is_whole(length);
            return if is_all { Fit::Extent } else { Fit::No };
        }
        if stored >= content || content > COMPRESSED_BYTES_MAX || stored > COMPRESSED_BYTES_MAX {
            return Fit::No;
        }
        let most = self
            .filesystem
            .data()
            .options
            .max_inline
            .get()
            .min(length_of_usize(inline_content_bytes_max(
                self.filesystem.forest().block_format().node_bytes,
            )));
        let is_all_of_file = extent.offset.get() == 0 && length == content && size <= length;
        if is_all_of_file && length <= sector_bytes && stored <= most && !flags.contains(InodeFlags::PREALLOC)
        {
            return Fit::Inline;
        }
        // Content of one sector cannot shrink to less than a sector.
        if sectors(stored) >= sectors(content) {
            return Fit::No;
        }
        Fit::Extent
    }

    pub(super) fn new_extent(&self, extent: &EncodedExtent) -> Result<NewExtent, Defect> {
        let sector_bytes = u64::from(self.filesystem.forest().block_format().sector_bytes);
        let too_large = |length: u64| {
            Defect::new("an encoded extent is larger than a file")
                .with("length", length)
                .with("sector", sector_bytes)
        };
        let align_up = |length: u64| {
            let aligned = length.checked_next_multiple_of(sector_bytes);
            aligned.ok_or_else(|| too_large(length))
        };
        let stored = &extent.stored;
        let whole = align_up(length_of(stored))?;
        let whole = usize::try_from(whole).map_err(|_| too_large(whole))?;
        let filled = if whole == stored.len() {
            stored.clone()
        } else {
            let mut filled = BytesMut::with_capacity(whole);
            filled.extend_from_slice(stored);
            filled.resize(whole, 0);
            filled.freeze()
        };
        let part = PartOfExtent {
            ram_bytes: align_up(extent.content_bytes.get())?,
            offset: extent.content_offset.get(),
        };
        Ok(NewExtent {
            start: extent.offset.get(),
            length: align_up(extent.length.get())?,
            compression: extent.compression,
            parts: vec![filled],
            plain: None,
            part: (extent.compression != Compression::None).then_some(part),
        })
    }
}

fn length_of_usize(length: usize) -> u64 {
    u64_of(length)
}
