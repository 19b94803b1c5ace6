//! The index block of a cluster.

use crate::error::{Error, Result};
use buttress_exact::Exact as _;

/// The size of an index block, and the unit to which clusters are padded.
pub(crate) const INDEX_BYTES: usize = 1024;

/// The largest number of bytes that an item has when it is not compressed.
pub(crate) const ITEM_BYTES_MAX: usize = 256 << 10;

/// The largest number of stored bytes of an item. zlib adds little to bytes that it cannot compress.
pub(crate) const STORED_BYTES_MAX: usize = ITEM_BYTES_MAX + (16 << 10);

const MAGIC: u64 = 0xbd5c_25e2_7295_668b;
const HEAD_BYTES: usize = 21;
const ENTRY_BYTES: usize = 12;

/// The largest number of items of a cluster.
pub(crate) const ITEMS_MAX: usize = (INDEX_BYTES - HEAD_BYTES) / ENTRY_BYTES;

const _: () = assert!(ITEMS_MAX == 83, "btrfs-image has 83 items in a cluster");

/// An item of an index: its logical address and its stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) logical: u64,
    pub(crate) stored_bytes: u32,
}

/// An index block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) is_compressed: bool,
    pub(crate) entries: Vec<Entry>,
}

/// Returns `N` bytes of a block at an offset, or `None` past its end.
pub(crate) fn bytes_at<const N: usize>(block: &[u8], at: usize) -> Option<[u8; N]> {
    block.get(at..)?.first_chunk::<N>().copied()
}

impl Index {
    /// Parses the index block of the cluster at `offset`.
    pub(crate) fn parse(block: &[u8; INDEX_BYTES], offset: u64) -> Result<Self> {
        let damaged = |what, found, expected| Error::Damaged {
            offset,
            what,
            found,
            expected,
        };
        let number = |at| bytes_at(block, at).map(u64::from_le_bytes);
        if number(0) != Some(MAGIC) {
            // Clamp: the block is longer than its head; a missing number is no magic.
            return Err(damaged("no cluster begins here", number(0).unwrap_or(0), MAGIC));
        }
        if number(8) != Some(offset) {
            // Clamp: the block is longer than its head, so the number is there.
            return Err(damaged(
                "the cluster is at another offset",
                number(8).unwrap_or(0),
                offset,
            ));
        }
        let count = bytes_at(block, 16).map(u32::from_le_bytes);
        let count = count.and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| (1..=ITEMS_MAX).contains(count));
        let Some(count) = count else {
            let found = bytes_at(block, 16).map(u32::from_le_bytes);
            let (found, most) = (found.map_or(0, u64::from), ITEMS_MAX as u64);
            return Err(damaged("the number of items is out of range", found, most));
        };
        let is_compressed = match block.get(20) {
            Some(0) => false,
            Some(1) => true,
            other => {
                let found = other.map_or(0, |byte| u64::from(*byte));
                return Err(damaged("the compression is unknown", found, 1));
            }
        };
        let mut entries = Vec::with_capacity(count);
        for item in 0..count {
            let at = HEAD_BYTES.exact_add(item.exact_mul(ENTRY_BYTES));
            let logical = bytes_at(block, at).map(u64::from_le_bytes);
            let stored_bytes = bytes_at(block, at.exact_add(8)).map(u32::from_le_bytes);
            let (Some(logical), Some(stored_bytes)) = (logical, stored_bytes) else {
                return Err(damaged("the index is too short", item as u64, ITEMS_MAX as u64));
            };
            let most = match is_compressed {
                true => STORED_BYTES_MAX,
                false => ITEM_BYTES_MAX,
            };
            if stored_bytes == 0 || u64::from(stored_bytes) > most as u64 {
                let found = u64::from(stored_bytes);
                return Err(damaged("the size of an item is out of range", found, most as u64));
            }
            entries.push(Entry {
                logical,
                stored_bytes,
            });
        }
        Ok(Self {
            is_compressed,
            entries,
        })
    }

    /// Returns the index block of a cluster at `offset`. The index has at most [`ITEMS_MAX`] items.
    pub(crate) fn encode(&self, offset: u64) -> Vec<u8> {
        let mut block = Vec::with_capacity(INDEX_BYTES);
        block.extend_from_slice(&MAGIC.to_le_bytes());
        block.extend_from_slice(&offset.to_le_bytes());
        block.extend_from_slice(&self.entries.len().narrow::<u32>().to_le_bytes());
        block.push(u8::from(self.is_compressed));
        for entry in &self.entries {
            block.extend_from_slice(&entry.logical.to_le_bytes());
            block.extend_from_slice(&entry.stored_bytes.to_le_bytes());
        }
        block.resize(INDEX_BYTES, 0);
        block
    }
}
