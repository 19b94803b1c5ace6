//! Group descriptors: the places of each group's bitmaps and inode table.
//!
//! Descriptors follow the superblock in group 0. The feature `meta_bg` instead keeps one block of
//! descriptors in the first group of those that the block describes, from `first_meta_bg` on.
//!
//! Source: ext4 documentation, sections "Block Group Descriptors", "Layout" and "Meta Block Groups".

use crate::checksum::{Protection, crc16, crc32c, low_16};
use crate::error::{ExtError, Place, Problem};
use crate::units::{BlockNumber, BlockRange, GroupNumber};
use crate::volume::{Ext, require_checksum};
use buttress_device::Buffer;
use buttress_exact::{Exact as _, usize_of};
use core::mem::offset_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

bitflags::bitflags! {
    /// The parts of a group that were not initialised.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct GroupFlags: u16 {
        /// The inode bitmap is not initialised: all inodes are free.
        const INODE_UNINIT = 0x1;
        /// The block bitmap is not initialised: only metadata at fixed places is used.
        const BLOCK_UNINIT = 0x2;
        const _ = !0;
    }
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Low {
    block_bitmap: U32,
    inode_bitmap: U32,
    inode_table: U32,
    free_blocks: U16,
    free_inodes: U16,
    directories: U16,
    flags: U16,
    exclude_bitmap: U32,
    block_bitmap_checksum: U16,
    inode_bitmap_checksum: U16,
    unused_inodes: U16,
    checksum: U16,
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct High {
    block_bitmap: U32,
    inode_bitmap: U32,
    inode_table: U32,
    free_blocks: U16,
    free_inodes: U16,
    directories: U16,
    unused_inodes: U16,
    exclude_bitmap: U32,
    block_bitmap_checksum: U16,
    inode_bitmap_checksum: U16,
    reserved: U32,
}

const _: () = assert!(size_of::<Low>() == 32 && size_of::<High>() == 32);

/// A checked group descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group.
    pub number: GroupNumber,
    /// The blocks of the group.
    pub blocks: BlockRange,
    /// The block with the bitmap of the group's blocks.
    pub block_bitmap: BlockNumber,
    /// The block with the bitmap of the group's inodes.
    pub inode_bitmap: BlockNumber,
    /// The blocks with the group's inodes.
    pub inode_table: BlockRange,
    /// The number of free blocks.
    pub free_blocks: u32,
    /// The number of free inodes.
    pub free_inodes: u32,
    pub(crate) flags: GroupFlags,
    /// The checksum of the block bitmap, 16 or 32 bits wide.
    pub(crate) block_bitmap_checksum: u32,
    /// The checksum of the inode bitmap, 16 or 32 bits wide.
    pub(crate) inode_bitmap_checksum: u32,
    /// Whether the checksums of bitmaps have 32 bits.
    pub(crate) has_wide_checksums: bool,
}

/// The groups of a volume in order, with one block of descriptors in memory.
pub struct Groups<'a> {
    volume: &'a Ext,
    next: u32,
    block: Option<(u32, Buffer)>,
}

impl Iterator for Groups<'_> {
    type Item = Result<Group, ExtError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.volume.superblock.groups {
            return None;
        }
        let group = self.group(GroupNumber::new(self.next));
        match group {
            Ok(_) => self.next = self.next.exact_add(1),
            Err(_) => self.stop(),
        }
        Some(group)
    }
}

impl Groups<'_> {
    /// Ends the iteration.
    pub(crate) const fn stop(&mut self) {
        self.next = self.volume.superblock.groups;
    }

    fn group(&mut self, number: GroupNumber) -> Result<Group, ExtError> {
        let index = number
            .get()
            .quotient(self.volume.superblock.descriptors_per_block());
        let block = match self.block.take() {
            Some((held, block)) if held == index => block,
            _ => self.volume.descriptor_block(number, index)?,
        };
        let group = self.volume.parse_group(number, &block);
        self.block = Some((index, block));
        group
    }
}

impl Ext {
    /// Returns all groups in order.
    #[must_use]
    pub const fn groups(&self) -> Groups<'_> {
        Groups {
            volume: self,
            next: 0,
            block: None,
        }
    }

    /// Reads the descriptor of one group, which must exist.
    pub(crate) fn group(&self, number: GroupNumber) -> Result<Group, ExtError> {
        let index = number.get().quotient(self.superblock.descriptors_per_block());
        let block = self.descriptor_block(number, index)?;
        self.parse_group(number, &block)
    }

    /// Reads block `index` of the descriptors, which has the descriptor of group `number`.
    fn descriptor_block(&self, number: GroupNumber, index: u32) -> Result<Buffer, ExtError> {
        let superblock = &self.superblock;
        let place = Place::Group(number);
        let block = if index < superblock.first_meta_block {
            u64::from(index).exact_add(1)
        } else {
            let first = GroupNumber::new(index.exact_mul(superblock.descriptors_per_block()));
            let begin = u64::from(first.get()).exact_mul(u64::from(superblock.blocks_per_group));
            begin.exact_add(u64::from(superblock.has_superblock(first)))
        };
        self.read_block(place, "the descriptor", BlockNumber::new(block))
    }

    /// Returns the blocks of a group, which must exist.
    pub(crate) fn group_blocks(&self, number: GroupNumber) -> BlockRange {
        let per_group = u64::from(self.superblock.blocks_per_group);
        let start = u64::from(number.get()).exact_mul(per_group);
        let end = start.exact_add(per_group).min(self.superblock.blocks);
        BlockRange {
            start: BlockNumber::new(start),
            end: BlockNumber::new(end),
        }
    }

    /// Returns the number of blocks of a group's inode table.
    pub(crate) fn inode_table_blocks(&self) -> u32 {
        let superblock = &self.superblock;
        let bytes = u64::from(superblock.inodes_per_group).exact_mul(u64::from(superblock.inode_bytes));
        bytes.div_ceil(u64::from(superblock.block_bytes)).narrow()
    }

    fn parse_group(&self, number: GroupNumber, block: &[u8]) -> Result<Group, ExtError> {
        let superblock = &self.superblock;
        let place = Place::Group(number);
        let length = usize_of(superblock.descriptor_bytes);
        let index = number.get().remainder(superblock.descriptors_per_block());
        let offset = usize_of(index).exact_mul(length);
        let bounds = Problem::Bounds {
            what: "the descriptor",
            offset: buttress_exact::u64_of(offset),
            length: buttress_exact::u64_of(length),
            end: buttress_exact::u64_of(block.len()),
        };
        let bytes = block.get(offset..offset.exact_add(length));
        let Some((bytes, Ok((low, rest)))) = bytes.map(|bytes| (bytes, Low::ref_from_prefix(bytes))) else {
            return Err(ExtError::corrupt(place, bounds));
        };
        self.check_descriptor(place, number, bytes, low.checksum.get())?;
        let high = High::ref_from_prefix(rest).ok().map(|(high, _)| high);
        let group = self.join_halves(number, low, high);
        self.check_group(place, &group)?;
        Ok(group)
    }

    fn join_halves(&self, number: GroupNumber, low: &Low, high: Option<&High>) -> Group {
        let block = |low: U32, high: Option<U32>| {
            BlockNumber::new(u64::from(low.get()) | (u64::from(high.map_or(0, U32::get)) << 32))
        };
        let count =
            |low: U16, high: Option<U16>| u32::from(low.get()) | (u32::from(high.map_or(0, U16::get)) << 16);
        let table = block(low.inode_table, high.map(|high| high.inode_table));
        // A table out of the volume is refused by the next check, whatever its end.
        let table_end = table.get().checked_add(u64::from(self.inode_table_blocks()));
        // `uninit_bg` and `metadata_csum` guard the flags; without them the flags have no meaning.
        let is_guarded = self.superblock.protection != Protection::Nothing;
        Group {
            number,
            blocks: self.group_blocks(number),
            block_bitmap: block(low.block_bitmap, high.map(|high| high.block_bitmap)),
            inode_bitmap: block(low.inode_bitmap, high.map(|high| high.inode_bitmap)),
            inode_table: BlockRange {
                start: table,
                end: table_end.map_or(table, BlockNumber::new),
            },
            free_blocks: count(low.free_blocks, high.map(|high| high.free_blocks)),
            free_inodes: count(low.free_inodes, high.map(|high| high.free_inodes)),
            flags: if is_guarded {
                GroupFlags::from_bits_retain(low.flags.get())
            } else {
                GroupFlags::empty()
            },
            block_bitmap_checksum: count(
                low.block_bitmap_checksum,
                high.map(|high| high.block_bitmap_checksum),
            ),
            inode_bitmap_checksum: count(
                low.inode_bitmap_checksum,
                high.map(|high| high.inode_bitmap_checksum),
            ),
            has_wide_checksums: high.is_some(),
        }
    }

    fn check_group(&self, place: Place, group: &Group) -> Result<(), ExtError> {
        self.require_inside(place, "the block bitmap", group.block_bitmap, 1)?;
        self.require_inside(place, "the inode bitmap", group.inode_bitmap, 1)?;
        let table_blocks = u64::from(self.inode_table_blocks());
        self.require_inside(place, "the inode table", group.inode_table.start, table_blocks)?;
        let most = u64::from(self.superblock.inodes_per_group);
        let (field, found) = ("free inodes", u64::from(group.free_inodes));
        if found > most {
            let problem = Problem::Field {
                field,
                found,
                least: 0,
                most,
            };
            return Err(ExtError::corrupt(place, problem));
        }
        Ok(())
    }

    /// Verifies the checksum of a descriptor's bytes.
    fn check_descriptor(
        &self,
        place: Place,
        number: GroupNumber,
        bytes: &[u8],
        found: u16,
    ) -> Result<(), ExtError> {
        let number = number.get().to_le_bytes();
        let (before, rest) = bytes.split_at(offset_of!(Low, checksum));
        let (_, after) = rest.split_at(size_of::<U16>());
        let expected = match self.superblock.protection {
            Protection::Nothing => return Ok(()),
            Protection::Groups => {
                let state = crc16(crc16(!0, &self.superblock.uuid), &number);
                crc16(crc16(state, before), after)
            }
            Protection::Metadata { seed } => {
                let state = crc32c(crc32c(seed, &number), before);
                low_16(crc32c(crc32c(state, &[0; 2]), after))
            }
        };
        require_checksum(place, u32::from(found), u32::from(expected))
    }
}
