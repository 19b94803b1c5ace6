//! The checksum tree: inserts checksums of new data and removes checksums of freed extents.
//!
//! Each checksum item holds the checksums of adjacent sectors, of one extent or of several. New
//! checksums are appended to the item that ends at their first sector, as long as that item has
//! space. Removing the checksums of a range cuts checksum items.
//!
//! Source: on-disk format documentation, section "EXTENT_CSUM".

use crate::core_state::Core;
use crate::running_parts::ChecksumTree;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, ChecksumItem, ChecksumType, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_fs::error::{Corruption, Result};

/// Returns the key of an item with checksums from an address on.
pub fn checksum_key(logical: u64) -> Key {
    Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, logical)
}

/// A copy of one item of the checksum tree.
struct Stored {
    start: u64,
    end: u64,
    sums: Vec<u8>,
}

impl Core {
    fn checksum_type(&self) -> ChecksumType {
        self.format.checksum_type
    }

    fn checksum_bytes(&self) -> usize {
        self.checksum_type().size_bytes()
    }

    /// Returns the most bytes of checksums that one item may hold.
    fn checksum_item_limit(&self) -> usize {
        // The limit is a leaf's size without two item headers and one checksum, as in the kernel.
        let room = self
            .format
            .node_bytes
            .narrow::<usize>()
            .saturating_sub(101 + 2 * 25);
        let unit = self.checksum_bytes();
        room.checked_div(unit)
            .unwrap_or(1)
            .saturating_sub(1)
            .max(1)
            .saturating_mul(unit)
    }

    fn bytes_of_sums(&self, sums: usize) -> u64 {
        let count = sums.checked_div(self.checksum_bytes()).unwrap_or(0);
        ByteCount::of(count).get().saturating_mul(self.sector_bytes())
    }

    fn sums_of_bytes(&self, bytes: u64) -> usize {
        let count = bytes.checked_div(self.sector_bytes()).unwrap_or(0);
        count.narrow::<usize>().saturating_mul(self.checksum_bytes())
    }
}

impl ChecksumTree<'_> {
    /// Returns the checksum item that covers an address or is the last one before it.
    fn sums_at_or_before(&mut self, logical: u64) -> Result<Option<Stored>> {
        let found = self
            .running
            .at_or_before(TreeId::CHECKSUM, &checksum_key(logical))?;
        let Some(found) = found.filter(|item| item.key().item_type == ItemType::EXTENT_CSUM) else {
            return Ok(None);
        };
        let item = ChecksumItem::parse(
            &found.key(),
            found.data(),
            self.running.core.format.sector_bytes,
            self.running.core.checksum_type(),
        )
        .map_err(|error| Corruption::Item {
            tree: TreeId::CHECKSUM,
            error,
        })?;
        Ok(Some(Stored {
            start: item.start.get(),
            end: item.end.get(),
            sums: found.data().to_vec(),
        }))
    }

    /// Adds the checksums of consecutive sectors from `logical` on.
    pub fn insert(&mut self, logical: Logical, sums: &[u8]) -> Result<()> {
        if buttress_faults::on("checksums-uninserted") {
            return Ok(());
        }
        // An edit of checksums in several steps removes and reinserts neighbouring checksums.
        // Readers must not see the checksum tree between the steps.
        let tree = self.running.open_tree(TreeId::CHECKSUM)?.tree.clone();
        tree.edit_as_one(|| self.put(logical, sums))
    }

    fn put(&mut self, logical: Logical, sums: &[u8]) -> Result<()> {
        let limit = self.running.core.checksum_item_limit();
        let mut position = logical.get();
        let mut rest = sums;
        if let Some(before) = self.sums_at_or_before(position)?
            && before.end == position
            && before.sums.len() < limit
        {
            let room = limit.saturating_sub(before.sums.len()).min(rest.len());
            let (now, later) = rest.split_at(room);
            let mut joined = before.sums;
            joined.extend_from_slice(now);
            self.running
                .put(TreeId::CHECKSUM, &checksum_key(before.start), &joined)?;
            position = position.saturating_add(self.running.core.bytes_of_sums(now.len()));
            rest = later;
        }
        while !rest.is_empty() {
            let (now, later) = rest.split_at(limit.min(rest.len()));
            self.running.put(TreeId::CHECKSUM, &checksum_key(position), now)?;
            position = position.saturating_add(self.running.core.bytes_of_sums(now.len()));
            rest = later;
        }
        Ok(())
    }

    /// Removes all existing checksums of sectors in `[logical, logical + length)`.
    pub fn remove(&mut self, logical: Logical, length: ByteCount) -> Result<()> {
        if buttress_faults::on("checksums-unremoved") {
            return Ok(());
        }
        // An edit of checksums in several steps removes and reinserts neighbouring checksums.
        // Readers must not see the checksum tree between the steps.
        let tree = self.running.open_tree(TreeId::CHECKSUM)?.tree.clone();
        tree.edit_as_one(|| self.take(logical, length))
    }

    fn take(&mut self, logical: Logical, length: ByteCount) -> Result<()> {
        let (start, end) = (logical.get(), logical.get().saturating_add(length.get()));
        // The search starts at the end of the range, so that each turn searches before the previous
        // item.
        let mut below = end;
        while let Some(last) = below.checked_sub(1) {
            let Some(item) = self.sums_at_or_before(last)? else {
                break;
            };
            if item.end <= start {
                break;
            }
            self.cut(&item, start, end)?;
            if item.start <= start {
                break;
            }
            below = item.start;
        }
        Ok(())
    }

    fn cut(&mut self, item: &Stored, start: u64, end: u64) -> Result<()> {
        let keep_before = self
            .running
            .core
            .sums_of_bytes(start.saturating_sub(item.start))
            .min(item.sums.len());
        let cut_after = self
            .running
            .core
            .sums_of_bytes(end.saturating_sub(item.start))
            .min(item.sums.len());
        let (before, after) = (
            item.sums.get(..keep_before).unwrap_or_default(),
            item.sums.get(cut_after..).unwrap_or_default(),
        );
        if before.is_empty() {
            self.running.remove(TreeId::CHECKSUM, &checksum_key(item.start))?;
        } else {
            self.running
                .put(TreeId::CHECKSUM, &checksum_key(item.start), before)?;
        }
        if !after.is_empty() {
            self.running.put(TreeId::CHECKSUM, &checksum_key(end), after)?;
        }
        Ok(())
    }
}
