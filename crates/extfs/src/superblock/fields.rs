//! The checked fields, and what follows from them.

use super::features::{Compat, Incompat, RoCompat};
use crate::checksum::{Protection, crc32c};
use crate::units::{BlockNumber, GroupNumber, InodeNumber};
use buttress_exact::Exact as _;

/// A checked superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The size of a block in bytes: a power of two from 4 KiB to 64 KiB.
    pub block_bytes: u32,
    /// The number of blocks of the volume.
    pub blocks: u64,
    /// The number of free blocks, as the superblock counts them.
    pub free_blocks: u64,
    /// The number of inodes.
    pub inodes: u32,
    /// The number of free inodes, as the superblock counts them.
    pub free_inodes: u32,
    /// The number of blocks of a group. Only the last group can be shorter.
    pub blocks_per_group: u32,
    /// The number of inodes of a group.
    pub inodes_per_group: u32,
    /// The size of an inode in the inode table, in bytes: a power of two, at least 128.
    pub inode_bytes: u32,
    /// The first inode that users' files can have.
    pub first_inode: InodeNumber,
    /// The compatible features.
    pub compat: Compat,
    /// The features that a reader must support.
    pub incompat: Incompat,
    /// The features that a writer must support.
    pub ro_compat: RoCompat,
    /// The UUID of the volume.
    pub uuid: [u8; 16],
    /// The label, without NUL bytes at its end.
    pub label: Vec<u8>,
    /// The inodes that no directory names: journal, quotas, list of orphans.
    pub internal_inodes: Vec<InodeNumber>,
    /// The number of groups.
    pub(crate) groups: u32,
    /// The size of a group descriptor in bytes.
    pub(crate) descriptor_bytes: u32,
    /// The first block of descriptors that `meta_bg` distributes.
    pub(crate) first_meta_block: u32,
    /// The number of blocks reserved after the group descriptors.
    pub(crate) reserved_descriptor_blocks: u32,
    /// The groups with superblock copies, if the volume has `sparse_super2`.
    pub(crate) copies: Option<[u32; 2]>,
    /// The block of multiple-mount protection, if the volume has it.
    pub(crate) mount_protection: Option<BlockNumber>,
    pub(crate) protection: Protection,
}

impl Superblock {
    /// Returns the number of block groups.
    #[must_use]
    pub const fn groups(&self) -> u32 {
        self.groups
    }

    /// Returns true if the volume has checksums of all metadata.
    #[must_use]
    pub const fn has_checksums(&self) -> bool {
        self.protection.seed().is_some()
    }

    /// Returns true if no directory names the inode: a reserved inode other than the root, a
    /// journal, quotas, or the list of orphans.
    #[must_use]
    pub fn is_internal(&self, inode: InodeNumber) -> bool {
        (inode < self.first_inode && inode != InodeNumber::ROOT) || self.internal_inodes.contains(&inode)
    }

    /// Returns true if the group begins with a copy of the superblock.
    pub(crate) fn has_superblock(&self, group: GroupNumber) -> bool {
        let group = group.get();
        if group == 0 {
            return true;
        }
        if let Some(copies) = self.copies {
            return copies.contains(&group);
        }
        if group == 1 || !self.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power(group, base))
    }

    /// Returns the number of descriptors in one block.
    pub(crate) fn descriptors_per_block(&self) -> u32 {
        self.block_bytes.quotient(self.descriptor_bytes)
    }

    /// Returns the start of the checksums of metadata of an inode, if the volume has checksums.
    pub(crate) fn inode_seed(&self, inode: InodeNumber, generation: u32) -> Option<u32> {
        let seed = crc32c(self.protection.seed()?, &inode.get().to_le_bytes());
        Some(crc32c(seed, &generation.to_le_bytes()))
    }
}

/// Returns true if `number` is `base` to a power above zero.
fn is_power(number: u32, base: u32) -> bool {
    let mut power = base;
    while power < number {
        let Some(next) = power.checked_mul(base) else {
            return false;
        };
        power = next;
    }
    power == number
}

#[cfg(test)]
mod tests {
    use super::is_power;

    #[test]
    fn powers_are_found_up_to_the_largest_number() {
        let powers: Vec<u32> = (2..400).filter(|group| is_power(*group, 3)).collect();
        assert_eq!(powers, [3, 9, 27, 81, 243]);
        assert!(is_power(7_u32.pow(11), 7));
        assert!(!is_power(u32::MAX, 7));
    }
}
