//! Bitmaps of blocks and inodes: which ones are used.
//!
//! The bitmap of a group that was never written is not on disk. Such a group uses only the copies
//! of the superblock and descriptors, and its own bitmaps and inode table, as far as they are in
//! the group.
//!
//! A bitmap must have as many free blocks or inodes as its group descriptor counts. This rule finds
//! damage in volumes without checksums.
//!
//! Source: ext4 documentation, sections "Block and inode Bitmaps" and "Lazy Block Group
//! Initialization".

use crate::checksum::{crc32c, low_16};
use crate::error::{ExtError, Place, Problem};
use crate::groups::{Group, GroupFlags, Groups};
use crate::superblock::Incompat;
use crate::units::{BlockNumber, BlockRange, GroupNumber};
use crate::volume::{Ext, require_checksum};
use buttress_exact::{Exact as _, usize_of};

/// The used blocks of a group or its used inodes: one bit each, from the lowest bit of the first
/// byte on.
pub(crate) struct Bitmap {
    bytes: Vec<u8>,
    /// The number of blocks or inodes.
    bits: u32,
}

impl Bitmap {
    fn empty(bits: u32) -> Self {
        Self {
            bytes: vec![0; usize_of(bits.div_ceil(8))],
            bits,
        }
    }

    /// Returns true if the block or inode is used.
    pub(crate) fn is_used(&self, index: u32) -> bool {
        let byte = self.bytes.get(usize_of(index / 8));
        index < self.bits && byte.is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }

    fn set(&mut self, index: u32) {
        if let Some(byte) = self.bytes.get_mut(usize_of(index / 8)) {
            *byte |= 1 << (index % 8);
        }
    }

    /// Returns the end of the run of equal bits that begins at `index`.
    fn run_end(&self, index: u32) -> u32 {
        let is_used = self.is_used(index);
        let uniform = if is_used { 0xff } else { 0 };
        let mut end = index.exact_add(1);
        while end < self.bits && self.is_used(end) == is_used {
            let whole = end.is_multiple_of(8) && self.bytes.get(usize_of(end / 8)) == Some(&uniform);
            end = end.exact_add(if whole { 8 } else { 1 });
        }
        end.min(self.bits)
    }

    fn free(&self) -> u32 {
        let mut free = 0_u32;
        let mut at = 0;
        while at < self.bits {
            let end = self.run_end(at);
            if !self.is_used(at) {
                free = free.exact_add(end.exact_sub(at));
            }
            at = end;
        }
        free
    }

    fn require_free(&self, place: Place, field: &'static str, counted: u32) -> Result<(), ExtError> {
        let free = self.free();
        if free == counted {
            return Ok(());
        }
        Err(ExtError::corrupt(
            place,
            Problem::Differs {
                field,
                found: u64::from(free),
                expected: u64::from(counted),
            },
        ))
    }
}

/// The used blocks of a volume, as ranges in order that do not touch.
pub struct UsedBlocks<'a> {
    volume: &'a Ext,
    groups: Groups<'a>,
    /// The current group, its bitmap, and the next block in it.
    current: Option<(Group, Bitmap, u32)>,
    /// A range that the next group can continue.
    open: Option<BlockRange>,
}

impl Iterator for UsedBlocks<'_> {
    type Item = Result<BlockRange, ExtError>;

    fn next(&mut self) -> Option<Self::Item> {
        let range = self.advance();
        if range.is_err() {
            self.groups.stop();
            (self.current, self.open) = (None, None);
        }
        range.transpose()
    }
}

impl UsedBlocks<'_> {
    fn advance(&mut self) -> Result<Option<BlockRange>, ExtError> {
        loop {
            while let Some(run) = self.next_run() {
                match self.open.as_mut() {
                    Some(open) if open.end == run.start => open.end = run.end,
                    _ => {
                        if let Some(open) = self.open.replace(run) {
                            return Ok(Some(open));
                        }
                    }
                }
            }
            match self.groups.next().transpose()? {
                Some(group) => {
                    let bitmap = self.volume.block_bitmap(&group)?;
                    self.current = Some((group, bitmap, 0));
                }
                None => return Ok(self.open.take()),
            }
        }
    }

    /// Returns the next used run of the current group.
    fn next_run(&mut self) -> Option<BlockRange> {
        let (group, bitmap, at) = self.current.as_mut()?;
        while *at < bitmap.bits {
            let begin = *at;
            *at = bitmap.run_end(begin);
            if bitmap.is_used(begin) {
                let first = group.blocks.start.get();
                return Some(BlockRange {
                    start: BlockNumber::new(first.exact_add(u64::from(begin))),
                    end: BlockNumber::new(first.exact_add(u64::from(*at))),
                });
            }
        }
        None
    }
}

impl Ext {
    /// Returns the ranges of used blocks in order: metadata, reserved blocks and content. The
    /// iterator ends after an error.
    #[must_use]
    pub const fn used_blocks(&self) -> UsedBlocks<'_> {
        UsedBlocks {
            volume: self,
            groups: self.groups(),
            current: None,
            open: None,
        }
    }

    fn block_bitmap(&self, group: &Group) -> Result<Bitmap, ExtError> {
        let place = Place::BlockBitmap(group.number);
        let bits = group
            .blocks
            .end
            .get()
            .exact_sub(group.blocks.start.get())
            .narrow();
        let bitmap = if group.flags.contains(GroupFlags::BLOCK_UNINIT) {
            self.fixed_blocks(group, bits)
        } else {
            let covered = self.superblock.blocks_per_group;
            let bytes = self.bitmap_bytes(
                place,
                group,
                group.block_bitmap,
                covered,
                group.block_bitmap_checksum,
            )?;
            Bitmap { bytes, bits }
        };
        bitmap.require_free(place, "number of free blocks", group.free_blocks)?;
        Ok(bitmap)
    }

    /// Reads the bitmap of a group's inodes.
    pub(crate) fn inode_bitmap(&self, group: &Group) -> Result<Bitmap, ExtError> {
        let place = Place::InodeBitmap(group.number);
        let bits = self.superblock.inodes_per_group;
        let bitmap = if group.flags.contains(GroupFlags::INODE_UNINIT) {
            Bitmap::empty(bits)
        } else {
            let bytes = self.bitmap_bytes(
                place,
                group,
                group.inode_bitmap,
                bits,
                group.inode_bitmap_checksum,
            )?;
            Bitmap { bytes, bits }
        };
        bitmap.require_free(place, "number of free inodes", group.free_inodes)?;
        Ok(bitmap)
    }

    /// Reads a bitmap, whose checksum covers `covered_bits`.
    fn bitmap_bytes(
        &self,
        place: Place,
        group: &Group,
        block: BlockNumber,
        covered_bits: u32,
        checksum: u32,
    ) -> Result<Vec<u8>, ExtError> {
        let bytes = self.read_block(place, "the bitmap", block)?;
        if let Some(seed) = self.superblock.protection.seed() {
            let (covered, _) = bytes.split_at(usize_of(covered_bits / 8).min(bytes.len()));
            let expected = crc32c(seed, covered);
            let expected = if group.has_wide_checksums {
                expected
            } else {
                u32::from(low_16(expected))
            };
            require_checksum(place, checksum, expected)?;
        }
        Ok(bytes.to_vec())
    }

    /// Returns the bitmap of a group whose bitmap was never written.
    fn fixed_blocks(&self, group: &Group, bits: u32) -> Bitmap {
        let mut bitmap = Bitmap::empty(bits);
        let mut mark = |first: u64, end: u64| {
            let (first, end) = (
                first.max(group.blocks.start.get()),
                end.min(group.blocks.end.get()),
            );
            for block in first..end {
                bitmap.set(block.exact_sub(group.blocks.start.get()).narrow());
            }
        };
        let begin = group.blocks.start.get();
        mark(begin, begin.exact_add(self.copied_blocks(group.number)));
        for block in [group.block_bitmap.get(), group.inode_bitmap.get()] {
            mark(block, block.exact_add(1));
        }
        mark(group.inode_table.start.get(), group.inode_table.end.get());
        bitmap
    }

    /// Returns the number of blocks at the start of a group that hold the superblock, descriptors,
    /// and blocks reserved for descriptors.
    #[must_use]
    pub fn copied_blocks(&self, number: GroupNumber) -> u64 {
        let superblock = &self.superblock;
        let has_superblock = superblock.has_superblock(number);
        let per_block = superblock.descriptors_per_block();
        let is_meta = superblock.incompat.contains(Incompat::META_BG)
            && number.get().quotient(per_block) >= superblock.first_meta_block;
        let descriptors = if is_meta {
            let in_meta_group = number.get().remainder(per_block);
            u64::from(in_meta_group < 2 || in_meta_group.exact_add(1) == per_block)
        } else if has_superblock {
            let blocks = superblock
                .first_meta_block
                .exact_add(superblock.reserved_descriptor_blocks);
            u64::from(blocks)
        } else {
            0
        };
        u64::from(has_superblock).exact_add(descriptors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_bitmap_match_its_bits() {
        let bytes = vec![0b1110_0001, 0xff, 0xff, 0, 0b1000_0000];
        let bitmap = Bitmap { bytes, bits: 39 };
        let mut runs = Vec::new();
        let mut at = 0;
        while at < bitmap.bits {
            let end = bitmap.run_end(at);
            runs.push((at, end, bitmap.is_used(at)));
            at = end;
        }
        assert_eq!(
            runs,
            [(0, 1, true), (1, 5, false), (5, 24, true), (24, 39, false)]
        );
        assert_eq!(bitmap.free(), 19);
    }
}
