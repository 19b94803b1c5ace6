//! Replay of file content: extents, holes, checksums.
//!
//! A logged extent replaces the file's extents in its range. If only the log refers to a logged
//! extent, the extent becomes new in the volume; otherwise it gains a reference. In the log, a hole
//! is an item with address zero, even on volumes whose holes have no items. On a volume whose holes
//! have no items, the replay only removes the file's extents in that range.

use super::{Replay, inode_of};
use crate::data::stored::Stored;
use buttress_engine::pending_log::broken;
use buttress_format::{
    ByteCount, ChecksumItem, Compression, ExtentSlice, FileExtent, FileExtentBody, Incompat, InodeFlags,
    InodeNumber, ItemType, Logical,
};
use buttress_fs::error::Result;
use buttress_tree::{OwnedItem, ReadAhead};

impl Replay<'_, '_> {
    /// Removes the extents after the current end of a file.
    pub(super) fn cut(&mut self, inode: InodeNumber) -> Result<()> {
        let location = self.at(inode);
        let size = self.operation.inode(location)?.size.get();
        let sector_bytes = self.operation.lookups().core().sector_bytes();
        let end = size.checked_next_multiple_of(sector_bytes).unwrap_or(u64::MAX);
        let gone = self
            .operation
            .file_items()
            .drop_range(location, &(end..u64::MAX))?;
        self.count(inode, 0, gone)
    }

    fn count(&mut self, inode: InodeNumber, more: u64, less: u64) -> Result<()> {
        let file = self.at(inode);
        match more == less {
            true => Ok(()),
            false => self.operation.file_items().count_bytes(file, more, less),
        }
    }

    /// Replays one logged extent item: step 3 of the log replay.
    pub(super) fn extent(&mut self, item: &OwnedItem) -> Result<()> {
        let key = item.key();
        let inode = inode_of(&key);
        let file = self.require_inode(&key)?;
        let tree = self.tree();
        if let Some(present) = self.operation.get(tree, &key)?
            && present.data() == item.data()
        {
            return Ok(());
        }
        let sector_bytes = self.operation.lookups().core().format.sector_bytes;
        let logged = FileExtent::parse(&key, item.data(), sector_bytes).map_err(broken)?;
        let stored = Stored::parse(tree, &key, item.data(), sector_bytes)?;
        let dropped = stored.start..stored.end;
        let at = self.at(inode);
        let gone = self.operation.file_items().drop_range(at, &dropped)?;
        self.count(inode, stored.counted_bytes(), gone)?;
        let is_hole = logged.slice().is_some_and(ExtentSlice::is_hole);
        if is_hole && self.operation.has(Incompat::NO_HOLES) {
            return Ok(());
        }
        self.operation.edit().insert(tree, &key, item.data())?;
        if let Some(range) = stored.disk() {
            let owner = stored.owner(tree, inode);
            match self.unused.remove(&range.logical) {
                Some(_) => self.operation.edit().core.create_data_extent(range, owner),
                None => self.operation.edit().core.add_data_reference(range, owner),
            }
        }
        let needs_checksums = !file.flags.contains(InodeFlags::NODATASUM);
        match logged.body {
            FileExtentBody::Regular(slice) if needs_checksums && !is_hole => {
                self.checksums(&slice, logged.compression)
            }
            _ => Ok(()),
        }
    }

    /// Replaces the volume's checksums by the logged ones, for the extent that an item refers to.
    fn checksums(&mut self, slice: &ExtentSlice, compression: Compression) -> Result<()> {
        let (start, length) = match compression {
            Compression::None => (slice.disk.saturating_add(slice.offset), slice.num_bytes),
            _ => (slice.disk, slice.disk_bytes),
        };
        let end = start.saturating_add(length);
        for (at, sums) in self.logged_sums(start, end)? {
            let running = self.operation.edit();
            let sum_bytes = running.core.format.checksum_type.size_bytes();
            let sectors = sums.len().checked_div(sum_bytes).unwrap_or(0);
            let bytes = ByteCount::of(sectors)
                .get()
                .saturating_mul(running.core.sector_bytes());
            running.checksum_tree().remove(at, ByteCount::new(bytes))?;
            running.checksum_tree().insert(at, &sums)?;
        }
        Ok(())
    }

    /// Returns the log's checksums between two addresses.
    fn logged_sums(&mut self, start: Logical, end: Logical) -> Result<Vec<(Logical, Vec<u8>)>> {
        let format = &self.operation.lookups().core().format;
        let (sector_bytes, checksum_type) = (format.sector_bytes, format.checksum_type);
        // An item that begins before the range may overlap it.
        let mut cursor = self.log.cursor(ReadAhead::None);
        cursor.seek_at_or_before(&ChecksumItem::key(start))?;
        let before = cursor.key().filter(|key| key.item_type == ItemType::EXTENT_CSUM);
        let from = before.unwrap_or_else(|| ChecksumItem::key(start));
        let mut found = Vec::new();
        for item in self.log.range(from..ChecksumItem::key(end), ReadAhead::None) {
            let item = item?;
            let sums =
                ChecksumItem::parse(&item.key(), item.data(), sector_bytes, checksum_type).map_err(broken)?;
            found.extend(sums.range(start, end).map(|(at, bytes)| (at, bytes.to_vec())));
        }
        Ok(found)
    }
}
