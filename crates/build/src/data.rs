//! Data on its path to the devices: pieces get addresses, addresses get checksums and references,
//! and bytes go to the writer.
//!
//! Addresses ascend in the order of contents, so the output is one sequence of large writes.
//! Adjacent uncompressed pieces form one extent, up to the kernel's maximum length. Each compressed
//! piece is an extent. If equal pieces are shared, every piece is an extent of its own. Of equal
//! pieces of content, the builder writes the first one in the order of contents.

use crate::content::{Data, Digest};
use crate::error::{Error, Result};
use crate::layout::{FileInfo, GENERATION};
use crate::sharing::Sharing;
use crate::space::DataSpace;
use crate::write::DataParts;
use buttress_device::Buffer;
use buttress_exact::{Exact as _, at_most};
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, InodeNumber, Logical, TreeId,
};
use buttress_mkfs::PlannedChunk;
use buttress_packing::Sorter;
use buttress_packing::Spool;
use buttress_volume::{ExtentWrite, StripeGeometry, Volume};
use crossbeam_channel::Sender;
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum length of an uncompressed extent.
const EXTENT_BYTES_MAX: u64 = 128 << 20;

/// The approximate number of bytes that are passed to the writer at once.
const WRITE_BYTES: u64 = 2 << 20;

/// The address of an extent of a file, and the part of the file that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) at: u64,
    pub(crate) logical: Logical,
    pub(crate) stored_bytes: u64,
    pub(crate) content_bytes: u64,
    pub(crate) compression: Compression,
}

impl Extent {
    /// Returns the file extent item for this extent.
    pub(crate) fn item(&self) -> Vec<u8> {
        FileExtent {
            generation: GENERATION,
            ram_bytes: ByteCount::new(self.content_bytes),
            compression: self.compression,
            other_encoding: 0,
            body: FileExtentBody::Regular(ExtentSlice {
                disk: self.logical,
                disk_bytes: ByteCount::new(self.stored_bytes),
                offset: ByteCount::ZERO,
                num_bytes: ByteCount::new(self.content_bytes),
            }),
        }
        .encode()
    }
}

/// The owner of a reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) tree: TreeId,
    pub(crate) inode: InodeNumber,
}

/// A function that adds a chunk to the volume under construction.
type AddChunk<'a> = Box<dyn Fn(&PlannedChunk) -> Result<()> + 'a>;

/// The writer that assigns addresses to data and passes the data on.
pub(crate) struct DataWriter<'a> {
    pub(crate) space: DataSpace,
    /// References to extents, sorted by address and owner.
    pub(crate) references: Sorter,
    /// Address, length and checksums of each extent, in address order.
    pub(crate) checksums: Spool,
    add_chunk: AddChunk<'a>,
    to_writer: Sender<ExtentWrite>,
    buffer: Option<(Logical, Buffer)>,
    /// The unfinished run of uncompressed pieces.
    open: Option<Extent>,
    /// How contents share blocks with files of the host, if sharing is enabled.
    pub(crate) sharing: Option<Sharing<'a>>,
    /// The locations of pieces that other files may share.
    shared: HashMap<Digest, Extent>,
}

impl<'a> DataWriter<'a> {
    pub(crate) fn new(
        space: DataSpace,
        references: Sorter,
        checksums: Spool,
        volume: &'a Volume,
        item: impl Fn(&PlannedChunk) -> buttress_format::Chunk + 'a,
        to_writer: Sender<ExtentWrite>,
    ) -> Self {
        Self {
            space,
            references,
            checksums,
            add_chunk: Box::new(move |chunk| Ok(volume.add_chunk(chunk.logical, item(chunk))?)),
            to_writer,
            buffer: None,
            open: None,
            sharing: None,
            shared: HashMap::new(),
        }
    }

    /// Writes the next piece of a file. Passes finished extents of the file to `done`.
    pub(crate) fn piece(
        &mut self,
        file: &Arc<FileInfo>,
        piece: &Data,
        done: &mut dyn FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        if let Some(digest) = piece.digest {
            self.end(done)?;
            if let Some(same) = self.shared.get(&digest) {
                return done(Extent {
                    at: piece.at,
                    ..same.clone()
                });
            }
            let extent = self.whole(file, piece)?;
            self.shared.insert(digest, extent.clone());
            return done(extent);
        }
        if piece.compression != Compression::None {
            self.end(done)?;
            let extent = self.whole(file, piece)?;
            return done(extent);
        }
        let mut rest = piece.stored.as_slice();
        let mut sums = piece.checksums.as_slice();
        let mut at = piece.at;
        while !rest.is_empty() {
            let (logical, bytes) = self.take(rest.len() as u64, false)?;
            let length = at_most(bytes, rest.len());
            let (now, later) = rest.split_at(length);
            self.store(file, at, logical, now)?;
            let share = sums
                .len()
                .checked_mul(length)
                .and_then(|all| all.checked_div(rest.len()));
            let (own, others) = sums.split_at(share.unwrap_or(0).min(sums.len()));
            self.checksum(logical, bytes, own)?;
            self.extend(at, logical, bytes, done)?;
            (rest, sums) = (later, others);
            at = at.saturating_add(bytes);
        }
        Ok(())
    }

    /// Writes a piece as one extent.
    fn whole(&mut self, file: &Arc<FileInfo>, piece: &Data) -> Result<Extent> {
        let stored_bytes = piece.stored.len() as u64;
        let logical = self.take(stored_bytes, true)?.0;
        match piece.compression {
            Compression::None => self.store(file, piece.at, logical, &piece.stored)?,
            _ => self.write(logical, &piece.stored)?,
        }
        self.checksum(logical, stored_bytes, &piece.checksums)?;
        Ok(Extent {
            at: piece.at,
            logical,
            stored_bytes,
            content_bytes: piece.content_bytes,
            compression: piece.compression,
        })
    }

    /// Adds a run of sectors to the unfinished extent, or finishes that extent and begins another.
    fn extend(
        &mut self,
        at: u64,
        logical: Logical,
        bytes: u64,
        done: &mut dyn FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        let begins_chunk = self
            .space
            .chunks
            .last()
            .is_some_and(|last| last.chunk.logical == logical);
        if let Some(open) = &mut self.open {
            let follows = open.at.saturating_add(open.content_bytes) == at
                && open.logical.saturating_add(ByteCount::new(open.stored_bytes)) == logical
                && !begins_chunk
                && open.stored_bytes.saturating_add(bytes) <= EXTENT_BYTES_MAX;
            if follows {
                open.stored_bytes = open.stored_bytes.saturating_add(bytes);
                open.content_bytes = open.content_bytes.saturating_add(bytes);
                return Ok(());
            }
        }
        self.end(done)?;
        self.open = Some(Extent {
            at,
            logical,
            stored_bytes: bytes,
            content_bytes: bytes,
            compression: Compression::None,
        });
        Ok(())
    }

    /// Finishes a file.
    pub(crate) fn end(&mut self, done: &mut dyn FnMut(Extent) -> Result<()>) -> Result<()> {
        self.open.take().map_or(Ok(()), done)
    }

    /// Records a file's reference to an extent.
    pub(crate) fn refer(&mut self, owner: Owner, extent: &Extent) -> Result<()> {
        let numbers = [
            extent.logical.get(),
            owner.tree.get(),
            owner.inode.get(),
            extent.at,
        ];
        let key: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        Ok(self.references.push(&key, &extent.stored_bytes.to_le_bytes())?)
    }

    fn checksum(&mut self, logical: Logical, bytes: u64, checksums: &[u8]) -> Result<()> {
        if checksums.is_empty() {
            return Ok(());
        }
        self.checksums.append(&logical.get().to_le_bytes())?;
        self.checksums.append(&bytes.to_le_bytes())?;
        self.checksums.append(&(checksums.len() as u64).to_le_bytes())?;
        Ok(self.checksums.append(checksums)?)
    }

    fn take(&mut self, wanted: u64, whole: bool) -> Result<(Logical, u64)> {
        let room = self.space.take(wanted, whole)?;
        if room.new_chunk
            && let Some(last) = self.space.chunks.last()
        {
            (self.add_chunk)(&last.chunk)?;
        }
        Ok((room.logical, room.bytes))
    }

    /// Returns how many bytes fill whole rows, so that their parity is written without a read.
    fn write_bytes(&self) -> usize {
        let chunk = self.space.chunks.last().map(|last| &last.chunk);
        let geometry = chunk.and_then(|chunk| StripeGeometry::new(chunk.profile(), chunk.stripes.len()).ok());
        let row = geometry.map_or(1, |geometry| geometry.row_bytes().get());
        let rows = WRITE_BYTES.checked_div(row).unwrap_or(1).max(1);
        rows.saturating_mul(row).narrow::<usize>()
    }

    pub(crate) fn write(&mut self, logical: Logical, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        let mut at = logical;
        while !rest.is_empty() {
            let follows = self
                .buffer
                .as_ref()
                .is_some_and(|open| open.0.saturating_add(ByteCount::of(open.1.len())) == at);
            if !follows {
                self.flush()?;
            }
            let room = self.write_bytes();
            let (_, buffer) = self
                .buffer
                .get_or_insert_with(|| (at, Buffer::with_capacity(room)));
            let limit = room.saturating_sub(buffer.len()).min(rest.len());
            let taken = buffer.push(rest.get(..limit).unwrap_or_default());
            if buffer.len() >= room || taken == 0 {
                self.flush()?;
            }
            rest = rest.get(taken..).unwrap_or_default();
            at = at.saturating_add(ByteCount::of(taken));
        }
        Ok(())
    }

    /// Finishes writing the data.
    pub(crate) fn into_parts(self) -> DataParts {
        DataParts {
            space: self.space,
            references: self.references,
            checksums: self.checksums,
        }
    }

    /// Passes the gathered bytes to the writing thread.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let Some((logical, buffer)) = self.buffer.take() else {
            return Ok(());
        };
        let write = ExtentWrite {
            logical,
            bytes: buffer.into_bytes(),
        };
        // The channel closes early only after a failure, which the writing thread reports itself.
        self.to_writer.send(write).map_err(|_| Error::WriterGone)
    }
}
