//! Reading of dumps: items in their order, bounded and checked.

use crate::cluster::{Entry, INDEX_BYTES, ITEM_BYTES_MAX, Index};
use crate::error::{Error, Result};
use buttress_exact::{Exact as _, usize_of};
use flate2::read::ZlibDecoder;
use std::collections::VecDeque;
use std::io::Read;

/// A run of bytes of the dumped volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpItem {
    /// The logical address of the run. The superblock has its address on the device.
    pub logical: u64,
    /// The bytes of the run, at most 256 KiB.
    pub bytes: Vec<u8>,
}

/// Reads the items of a dump. See the crate's documentation.
#[derive(Debug)]
pub struct DumpReader<R> {
    input: R,
    /// The number of bytes read so far.
    offset: u64,
    is_compressed: bool,
    entries: VecDeque<Entry>,
}

impl<R: Read> DumpReader<R> {
    /// Reads a dump from its beginning.
    pub const fn new(input: R) -> Self {
        Self {
            input,
            offset: 0,
            is_compressed: false,
            entries: VecDeque::new(),
        }
    }

    /// Returns the next item, or `None` at the end.
    ///
    /// # Errors
    /// Fails with [`Error::Damaged`] for bytes that violate the format, or with an error of the
    /// input.
    pub fn next_item(&mut self) -> Result<Option<DumpItem>> {
        if self.entries.is_empty() && !self.next_cluster()? {
            return Ok(None);
        }
        let Some(entry) = self.entries.pop_front() else {
            return Ok(None);
        };
        let at = self.offset;
        let stored = self.take(usize_of(entry.stored_bytes))?;
        let bytes = match self.is_compressed {
            true => inflate(&stored, at)?,
            false => stored,
        };
        Ok(Some(DumpItem {
            logical: entry.logical,
            bytes,
        }))
    }

    /// Reads the index of the next cluster. Returns false at the end of the dump.
    fn next_cluster(&mut self) -> Result<bool> {
        let unit = INDEX_BYTES as u64;
        let padding = self.offset.next_multiple_of(unit).exact_sub(self.offset);
        // Padding at the end may be cut off.
        let mut skipped = Vec::new();
        let taken = (&mut self.input).take(padding).read_to_end(&mut skipped)?;
        self.offset = self.offset.exact_add(taken as u64);
        if (taken as u64) < padding {
            return Ok(false);
        }
        let mut block = Vec::with_capacity(INDEX_BYTES);
        (&mut self.input).take(unit).read_to_end(&mut block)?;
        if block.is_empty() && self.offset > 0 {
            return Ok(false);
        }
        let Some(whole) = block.first_chunk::<INDEX_BYTES>() else {
            return Err(self.cut_off(block.len(), INDEX_BYTES));
        };
        let index = Index::parse(whole, self.offset)?;
        self.offset = self.offset.exact_add(unit);
        self.is_compressed = index.is_compressed;
        self.entries = index.entries.into();
        Ok(true)
    }

    /// Reads the stored bytes of an item.
    fn take(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut stored = Vec::with_capacity(bytes);
        (&mut self.input).take(bytes as u64).read_to_end(&mut stored)?;
        if stored.len() < bytes {
            return Err(self.cut_off(stored.len(), bytes));
        }
        self.offset = self.offset.exact_add(bytes as u64);
        Ok(stored)
    }

    const fn cut_off(&self, found: usize, expected: usize) -> Error {
        Error::Damaged {
            offset: self.offset,
            what: "the dump ends within a cluster",
            found: found as u64,
            expected: expected as u64,
        }
    }
}

/// Decompresses the item that is stored at `offset`.
fn inflate(stored: &[u8], offset: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = (ITEM_BYTES_MAX as u64).exact_add(1);
    let read = ZlibDecoder::new(stored).take(limit).read_to_end(&mut bytes);
    let damaged = |what, found| Error::Damaged {
        offset,
        what,
        found,
        expected: ITEM_BYTES_MAX as u64,
    };
    if read.is_err() {
        return Err(damaged("an item does not decompress", bytes.len() as u64));
    }
    if bytes.is_empty() || bytes.len() > ITEM_BYTES_MAX {
        return Err(damaged("an item has a wrong length", bytes.len() as u64));
    }
    Ok(bytes)
}
