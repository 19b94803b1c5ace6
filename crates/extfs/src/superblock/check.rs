//! The checks of a superblock.
//!
//! Order of the checks: magic number, checksum, features, state, sizes. A refused feature can change
//! the meaning of other fields, so its refusal comes before the checks of sizes.

use super::features::{Compat, Incompat, RoCompat};
use super::fields::Superblock;
use super::raw::{MIN_BLOCK_BYTES, RawSuperblock};
use crate::checksum::{Protection, crc32c};
use crate::error::{ExtError, Place, Problem};
use crate::refusal::{FeatureSet, Refusal, refused};
use crate::units::{BlockNumber, InodeNumber};
use buttress_exact::Exact as _;
use core::mem::offset_of;
use zerocopy::IntoBytes as _;

const MAGIC: u16 = 0xef53;
const STATE_CLEAN: u16 = 0x1;
const STATE_ERRORS: u16 = 0x2;
const CHECKSUM_TYPE_CRC32C: u8 = 1;
const OLD_INODE_BYTES: u32 = 128;
const OLD_FIRST_INODE: u32 = 11;
const SMALL_DESCRIPTOR_BYTES: u32 = 32;
/// The number of blocks that a classical block map or descriptor without `64bit` can address.
const BLOCKS_32_BIT: u64 = 1 << 32;

fn field(field: &'static str, found: impl Into<u64>, least: u64, most: u64) -> Result<(), ExtError> {
    let found = found.into();
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(problem(Problem::Field {
        field,
        found,
        least,
        most,
    }))
}

const fn problem(problem: Problem) -> ExtError {
    ExtError::corrupt(Place::Superblock, problem)
}

/// The features of a superblock. A superblock of revision 0 has none.
struct Features {
    compat: Compat,
    incompat: Incompat,
    ro_compat: RoCompat,
}

/// The sizes and counts of a superblock.
struct Sizes {
    block_bytes: u32,
    blocks: u64,
    groups: u32,
    inode_bytes: u32,
    descriptor_bytes: u32,
    first_meta_block: u32,
}

pub(super) fn check(raw: &RawSuperblock, device_bytes: u64) -> Result<Superblock, ExtError> {
    if raw.magic.get() != MAGIC {
        return Err(ExtError::NotExt {
            found: raw.magic.get(),
        });
    }
    check_checksum(raw)?;
    let features = features(raw)?;
    check_state(raw, &features)?;
    let sizes = sizes(raw, &features, device_bytes)?;
    let is_old = raw.revision.get() == 0;
    let mmp = features.incompat.contains(Incompat::MMP);
    let protection = protection(raw, &features)?;
    let wide = features.incompat.contains(Incompat::SIXTY_FOUR_BIT);
    Ok(Superblock {
        block_bytes: sizes.block_bytes,
        blocks: sizes.blocks,
        free_blocks: join(raw.free_blocks_low.get(), raw.free_blocks_high.get(), wide),
        inodes: raw.inodes.get(),
        free_inodes: raw.free_inodes.get(),
        blocks_per_group: raw.blocks_per_group.get(),
        inodes_per_group: raw.inodes_per_group.get(),
        inode_bytes: sizes.inode_bytes,
        first_inode: first_inode(raw, is_old)?,
        internal_inodes: internal_inodes(raw, &features),
        copies: features
            .compat
            .contains(Compat::SPARSE_SUPER2)
            .then(|| raw.copies.map(zerocopy::little_endian::U32::get)),
        compat: features.compat,
        incompat: features.incompat,
        ro_compat: features.ro_compat,
        uuid: raw.uuid,
        label: raw.label.into_iter().take_while(|byte| *byte != 0).collect(),
        groups: sizes.groups,
        descriptor_bytes: sizes.descriptor_bytes,
        first_meta_block: sizes.first_meta_block,
        reserved_descriptor_blocks: u32::from(raw.reserved_descriptor_blocks.get()),
        mount_protection: mmp.then(|| BlockNumber::new(raw.mount_protection_block.get())),
        protection,
    })
}

/// Returns a number of two halves, of which the high one exists only in a `wide` structure.
fn join(low: u32, high: u32, wide: bool) -> u64 {
    u64::from(low) | if wide { u64::from(high) << 32 } else { 0 }
}

fn check_checksum(raw: &RawSuperblock) -> Result<(), ExtError> {
    let ro_compat = RoCompat::from_bits_truncate(raw.ro_compat.get());
    if raw.revision.get() == 0 || !ro_compat.contains(RoCompat::METADATA_CSUM) {
        return Ok(());
    }
    field(
        "checksum type",
        raw.checksum_type,
        u64::from(CHECKSUM_TYPE_CRC32C),
        u64::from(CHECKSUM_TYPE_CRC32C),
    )?;
    let (covered, _) = raw.as_bytes().split_at(offset_of!(RawSuperblock, checksum));
    let (found, expected) = (raw.checksum.get(), crc32c(!0, covered));
    if found == expected {
        return Ok(());
    }
    Err(problem(Problem::Checksum { found, expected }))
}

fn features(raw: &RawSuperblock) -> Result<Features, ExtError> {
    field("revision", raw.revision.get(), 0, 1)?;
    if raw.revision.get() == 0 {
        return Ok(Features {
            compat: Compat::empty(),
            incompat: Incompat::empty(),
            ro_compat: RoCompat::empty(),
        });
    }
    let (incompat, ro_compat) = (raw.incompat.get(), raw.ro_compat.get());
    let names: Vec<_> = refused(FeatureSet::Incompat, incompat, Incompat::all().bits())
        .chain(refused(FeatureSet::RoCompat, ro_compat, RoCompat::all().bits()))
        .collect();
    if !names.is_empty() {
        return Err(Refusal::Features { names }.into());
    }
    let ro_compat = RoCompat::from_bits_truncate(ro_compat);
    let both = RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM;
    if ro_compat.contains(both) {
        return Err(problem(Problem::Differs {
            field: "uninit_bg beside metadata_csum",
            found: u64::from((ro_compat & both).bits()),
            expected: u64::from(RoCompat::METADATA_CSUM.bits()),
        }));
    }
    Ok(Features {
        compat: Compat::from_bits_retain(raw.compat.get()),
        incompat: Incompat::from_bits_truncate(incompat),
        ro_compat,
    })
}

fn check_state(raw: &RawSuperblock, features: &Features) -> Result<(), ExtError> {
    let state = raw.state.get();
    if state & STATE_ERRORS != 0 {
        return Err(Refusal::Errors.into());
    }
    if state & STATE_CLEAN == 0 {
        return Err(Refusal::NotClean.into());
    }
    if raw.last_orphan.get() != 0 {
        let first = InodeNumber::new(raw.last_orphan.get());
        return Err(Refusal::Orphans { first }.into());
    }
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    if has_journal && (raw.journal_device.get() != 0 || raw.journal_inode.get() == 0) {
        return Err(Refusal::ExternalJournal.into());
    }
    Ok(())
}

fn block_bytes(raw: &RawSuperblock) -> Result<u32, ExtError> {
    let log = raw.log_block_size.get();
    field("log_block_size", log, 0, 6)?;
    let bytes = 1024_u32 << log;
    if bytes < MIN_BLOCK_BYTES {
        return Err(Refusal::BlockSize { bytes }.into());
    }
    field(
        "log_cluster_size",
        raw.log_cluster_size.get(),
        u64::from(log),
        u64::from(log),
    )?;
    Ok(bytes)
}

fn sizes(raw: &RawSuperblock, features: &Features, device_bytes: u64) -> Result<Sizes, ExtError> {
    let block_bytes = block_bytes(raw)?;
    let wide = features.incompat.contains(Incompat::SIXTY_FOUR_BIT);
    let blocks = join(raw.blocks_low.get(), raw.blocks_high.get(), wide);
    let device_blocks = device_bytes.quotient(u64::from(block_bytes));
    field("blocks_count", blocks, 1, device_blocks)?;
    field("first_data_block", raw.first_data_block.get(), 0, 0)?;
    let bits = u64::from(block_bytes).exact_mul(8);
    let per_group = u64::from(raw.blocks_per_group.get());
    field("blocks_per_group", per_group, 8, bits)?;
    field(
        "clusters_per_group",
        raw.clusters_per_group.get(),
        per_group,
        per_group,
    )?;
    // Checked above: a group has 8 blocks at least.
    let groups = blocks.div_ceil(per_group);
    field("number of groups", groups, 1, u64::from(u32::MAX))?;
    let inodes_per_group = u64::from(raw.inodes_per_group.get());
    field("inodes_per_group", inodes_per_group, 1, bits)?;
    let inodes = groups.exact_mul(inodes_per_group);
    field("inodes_count", raw.inodes.get(), inodes, inodes)?;
    let inode_bytes = inode_bytes(raw, block_bytes)?;
    let descriptor_bytes = descriptor_bytes(raw, wide, block_bytes)?;
    let groups = groups.narrow::<u32>();
    let per_block = block_bytes.quotient(descriptor_bytes);
    let descriptor_blocks = groups.div_ceil(per_block);
    let first_meta_block = if features.incompat.contains(Incompat::META_BG) {
        field(
            "first_meta_bg",
            raw.first_meta_group.get(),
            0,
            u64::from(descriptor_blocks),
        )?;
        raw.first_meta_group.get()
    } else {
        descriptor_blocks
    };
    field(
        "reserved_gdt_blocks",
        raw.reserved_descriptor_blocks.get(),
        0,
        u64::from(block_bytes / 4),
    )?;
    debug_assert!(wide || blocks <= BLOCKS_32_BIT);
    Ok(Sizes {
        block_bytes,
        blocks,
        groups,
        inode_bytes,
        descriptor_bytes,
        first_meta_block,
    })
}

fn inode_bytes(raw: &RawSuperblock, block_bytes: u32) -> Result<u32, ExtError> {
    if raw.revision.get() == 0 {
        return Ok(OLD_INODE_BYTES);
    }
    let found = u32::from(raw.inode_size.get());
    power_of_two("inode_size", found, OLD_INODE_BYTES, block_bytes)?;
    Ok(found)
}

fn descriptor_bytes(raw: &RawSuperblock, wide: bool, block_bytes: u32) -> Result<u32, ExtError> {
    if !wide {
        return Ok(SMALL_DESCRIPTOR_BYTES);
    }
    let found = u32::from(raw.descriptor_size.get());
    power_of_two("desc_size", found, 64, block_bytes)?;
    Ok(found)
}

fn power_of_two(field: &'static str, found: u32, least: u32, most: u32) -> Result<(), ExtError> {
    if found.is_power_of_two() && (least..=most).contains(&found) {
        return Ok(());
    }
    Err(problem(Problem::PowerOfTwo {
        field,
        found: u64::from(found),
        least: u64::from(least),
        most: u64::from(most),
    }))
}

fn first_inode(raw: &RawSuperblock, is_old: bool) -> Result<InodeNumber, ExtError> {
    if is_old {
        return Ok(InodeNumber::new(OLD_FIRST_INODE));
    }
    let found = raw.first_inode.get();
    field(
        "first_ino",
        found,
        u64::from(OLD_FIRST_INODE),
        u64::from(raw.inodes.get()),
    )?;
    Ok(InodeNumber::new(found))
}

fn internal_inodes(raw: &RawSuperblock, features: &Features) -> Vec<InodeNumber> {
    let quota = features.ro_compat.contains(RoCompat::QUOTA);
    let all = [
        (features.compat.contains(Compat::HAS_JOURNAL), raw.journal_inode),
        (
            features.compat.contains(Compat::ORPHAN_FILE),
            raw.orphan_file_inode,
        ),
        (quota, raw.user_quota_inode),
        (quota, raw.group_quota_inode),
        (quota, raw.project_quota_inode),
    ];
    let named = all
        .into_iter()
        .filter(|(exists, inode)| *exists && inode.get() != 0);
    named.map(|(_, inode)| InodeNumber::new(inode.get())).collect()
}

fn protection(raw: &RawSuperblock, features: &Features) -> Result<Protection, ExtError> {
    let has_seed = features.incompat.contains(Incompat::CSUM_SEED);
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        let seed = if has_seed {
            raw.checksum_seed.get()
        } else {
            crc32c(!0, &raw.uuid)
        };
        return Ok(Protection::Metadata { seed });
    }
    if has_seed {
        return Err(problem(Problem::Differs {
            field: "metadata_csum_seed without metadata_csum",
            found: 1,
            expected: 0,
        }));
    }
    Ok(if features.ro_compat.contains(RoCompat::GDT_CSUM) {
        Protection::Groups
    } else {
        Protection::Nothing
    })
}
