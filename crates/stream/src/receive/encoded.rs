//! Batches of encoded data: many extents of a file per write.
//!
//! The receiver gathers consecutive extents of one file and writes them together. Plain data of
//! whole sectors between encoded extents joins the batch. Writing plain data separately would make
//! it dirty, and each later encoded extent would wait for its write-back.

use super::error::Problem;
use super::making::{Receiver, about};
use crate::view::Problem as TreeProblem;
use crate::view::content::decompress;
use buttress_exact::{Defect, u64_of};
use buttress_format::send::EncodedCompression;
use buttress_format::{ByteCount, Compression};
use buttress_fs::Location;
use buttress_writer::data::EncodedExtent;

/// Largest batch in bytes; the next constant limits its extents.
const BATCH_BYTES: usize = 8 << 20;
const BATCH_EXTENTS: usize = 256;

/// The gathered extents of one file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    file: Option<Location>,
    extents: Vec<EncodedExtent>,
    bytes: usize,
}

impl Batch {
    /// Returns the end of the last gathered extent.
    fn end(&self) -> u64 {
        let last = self.extents.last();
        last.map_or(0, |last| last.offset.get().saturating_add(last.length.get()))
    }

    /// Returns whether plain data can join the gathered extents.
    pub(super) fn takes_plain(&self, file: Location, offset: u64, length: usize, sector_bytes: u64) -> bool {
        let length = u64_of(length);
        let is_whole = |at: u64| at.checked_rem(sector_bytes) == Some(0);
        self.file == Some(file)
            && !self.extents.is_empty()
            && length > 0
            && is_whole(offset)
            && is_whole(length)
            && offset >= self.end()
    }

    fn takes(&self, file: Location, extent: &EncodedExtent) -> bool {
        self.extents.is_empty() || (self.file == Some(file) && extent.offset.get() >= self.end())
    }

    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.extents.len() >= BATCH_EXTENTS
    }
}

impl Receiver<'_> {
    /// Adds an extent of a file to the batch.
    pub(super) fn push(&mut self, file: Location, extent: EncodedExtent) -> Result<(), Problem> {
        if !self.batch.takes(file, &extent) {
            self.flush_batch()?;
        }
        let batch = &mut self.batch;
        batch.file = Some(file);
        batch.bytes = batch.bytes.saturating_add(extent.stored.len());
        batch.extents.push(extent);
        if batch.is_full() {
            self.flush_batch()?;
        }
        Ok(())
    }

    /// Writes the gathered extents.
    pub(super) fn flush_batch(&mut self) -> Result<(), Problem> {
        let batch = core::mem::take(&mut self.batch);
        let Some(file) = batch.file.filter(|_| !batch.extents.is_empty()) else {
            return Ok(());
        };
        let written = self.write_extents(file, &batch.extents);
        if written.as_ref().is_err_and(Problem::is_no_space) {
            // If the receiver can free space, it retries this batch.
            self.batch = batch;
        }
        written
    }

    /// Writes extents of a file, encoded if the volume allows it.
    pub(super) fn write_extents(&mut self, file: Location, extents: &[EncodedExtent]) -> Result<(), Problem> {
        let stored = self
            .filesystem
            .encoded_writes()
            .write(file, extents)
            .map_err(about(b""))?;
        if stored {
            return Ok(());
        }
        // If the volume cannot store one of the extents encoded, write each extent separately.
        for extent in extents {
            let is_alone = extents.len() == 1;
            let stored = !is_alone
                && self
                    .filesystem
                    .encoded_writes()
                    .write(file, core::slice::from_ref(extent))
                    .map_err(about(b""))?;
            if !stored {
                self.write_decoded(file, extent)?;
            }
        }
        Ok(())
    }

    /// Writes the decoded content of an extent.
    pub(super) fn write_decoded(&mut self, file: Location, extent: &EncodedExtent) -> Result<(), Problem> {
        let lzo = u32::try_from(self.sector_bytes)
            .ok()
            .and_then(EncodedCompression::lzo)
            .unwrap_or(EncodedCompression::Lzo4K);
        let compression = match extent.compression {
            Compression::None => return self.write_plain(file, b"", extent.offset.get(), &extent.stored),
            Compression::Zlib => EncodedCompression::Zlib,
            Compression::Zstd => EncodedCompression::Zstd,
            Compression::Lzo => lzo,
        };
        let mut content = vec![0; extent.content_bytes.exact_usize()];
        decompress(&mut self.decompressor, compression, &extent.stored, &mut content)
            .map_err(TreeProblem::Encoded)?;
        let from = extent.content_offset.to_usize();
        let end = extent
            .content_offset
            .checked_add(extent.length)
            .and_then(ByteCount::to_usize);
        let data = from.zip(end).and_then(|(from, end)| content.get(from..end));
        let data = data.ok_or_else(|| {
            let defect = Defect::new("a part of an encoded write is not in what it decodes to")
                .with("content_offset", extent.content_offset.get())
                .with("length", extent.length.get())
                .with("content_bytes", extent.content_bytes.get());
            about(b"")(defect.into())
        })?;
        self.write_plain(file, b"", extent.offset.get(), data)
    }
}
