//! The checks of a superblock, in the order in which they run.

use super::{
    CompatRo, HIGHEST_LEVEL, Incompat, MAX_NODE_BYTES, MIN_SECTOR_BYTES, RawSuperblock, SUPERBLOCK_BYTES,
    SUPERBLOCK_MAGIC, SYSTEM_CHUNK_ARRAY_BYTES, Superblock, SuperblockError, SuperblockFlags,
    UsedBytesProblem,
};
use crate::block_group::BlockGroupFlags;
use crate::checksum::{CHECKSUM_FIELD_BYTES, Checksum, ChecksumType};
use crate::chunk::{Chunk, RawChunk, RawStripe};
use crate::item_error::ItemError;
use crate::key::{ItemType, Key, RawKey};
use crate::units::{Logical, Physical};
use buttress_exact::usize_of;
use zerocopy::FromBytes;

/// An empty volume uses a block each for the root, chunk, extent, device, checksum and file-system
/// trees.
const LEAST_TREE_BLOCKS: u64 = 6;

/// The smallest system chunk array: a key and a chunk of one stripe.
const LEAST_ARRAY_BYTES: usize = size_of::<RawKey>() + size_of::<RawChunk>() + size_of::<RawStripe>();

/// The kernel's limit on the number of devices.
const MAX_DEVICES: u64 = 1 << 31;

/// Checks magic, checksum and address, which identify a superblock.
pub(super) fn identity(
    raw: &RawSuperblock,
    bytes: &[u8],
    at: Physical,
) -> Result<ChecksumType, SuperblockError> {
    if raw.magic != SUPERBLOCK_MAGIC {
        return Err(SuperblockError::Magic { found: raw.magic });
    }
    let number = raw.csum_type.get();
    let checksum_type = ChecksumType::from_raw(number).ok_or(SuperblockError::ChecksumType { number })?;
    let stored = stored_checksum(raw, checksum_type);
    let covered = bytes
        .get(CHECKSUM_FIELD_BYTES..SUPERBLOCK_BYTES)
        .unwrap_or_default();
    let computed = checksum_type.compute(covered);
    if stored != computed && !buttress_faults::on("format-superblock-checksum-unchecked") {
        return Err(SuperblockError::Checksum { stored, computed });
    }
    if raw.bytenr.get() != at.get() {
        return Err(SuperblockError::Address {
            stored: raw.bytenr.get(),
            physical: at.get(),
        });
    }
    Ok(checksum_type)
}

pub(super) fn stored_checksum(raw: &RawSuperblock, checksum_type: ChecksumType) -> Checksum {
    Checksum::of(raw.csum.get(..checksum_type.size_bytes()).unwrap_or(&raw.csum))
}

pub(super) fn sizes(raw: &RawSuperblock) -> Result<(), SuperblockError> {
    let sector_bytes = raw.sectorsize.get();
    if !sector_bytes.is_power_of_two() || !(MIN_SECTOR_BYTES..=MAX_NODE_BYTES).contains(&sector_bytes) {
        return Err(SuperblockError::SectorSize { bytes: sector_bytes });
    }
    let node_bytes = raw.nodesize.get();
    if !node_bytes.is_power_of_two() || !(sector_bytes..=MAX_NODE_BYTES).contains(&node_bytes) {
        return Err(SuperblockError::NodeSize {
            bytes: node_bytes,
            sector_bytes,
        });
    }
    let leaf_bytes = raw.leafsize.get();
    if leaf_bytes != node_bytes {
        return Err(SuperblockError::LeafSize {
            leaf_bytes,
            node_bytes,
        });
    }
    let stripe_bytes = raw.stripesize.get();
    if !stripe_bytes.is_power_of_two() {
        return Err(SuperblockError::StripeSize { bytes: stripe_bytes });
    }
    Ok(())
}

pub(super) fn roots(superblock: &Superblock) -> Result<(), SuperblockError> {
    let sector_bytes = superblock.sector_bytes;
    let roots: [(&'static str, Logical, u8, bool); 3] = [
        ("root tree", superblock.root, superblock.root_level, true),
        (
            "chunk tree",
            superblock.chunk_root,
            superblock.chunk_root_level,
            true,
        ),
        ("log tree", superblock.log_root, superblock.log_root_level, false),
    ];
    for (tree, logical, level, required) in roots {
        if !logical.is_aligned(u64::from(sector_bytes)) {
            return Err(SuperblockError::RootUnaligned {
                tree,
                logical: logical.get(),
                sector_bytes,
            });
        }
        if required && logical == Logical::MIN {
            return Err(SuperblockError::RootMissing { tree });
        }
        if level > HIGHEST_LEVEL {
            return Err(SuperblockError::Level { tree, level });
        }
    }
    Ok(())
}

/// Returns an error if the superblock alone proves that its count of used bytes is wrong.
pub(super) fn used_bytes(superblock: &Superblock) -> Option<UsedBytesProblem> {
    let used_bytes = superblock.bytes_used.get();
    let total_bytes = superblock.total_bytes.get();
    let least_bytes = LEAST_TREE_BLOCKS.saturating_mul(u64::from(superblock.node_bytes));
    if used_bytes < least_bytes {
        return Some(UsedBytesProblem::TooSmall {
            used_bytes,
            least_bytes,
        });
    }
    (used_bytes > total_bytes).then_some(UsedBytesProblem::ExceedsTotal {
        used_bytes,
        total_bytes,
    })
}

pub(super) fn totals(superblock: &Superblock) -> Result<(), SuperblockError> {
    if superblock.num_devices == 0 || superblock.num_devices > MAX_DEVICES {
        return Err(SuperblockError::DeviceCount {
            count: superblock.num_devices,
        });
    }
    let device_fsid = superblock.device_item.fsid;
    // While all blocks get a new fsid, the device item carries the former one.
    let is_changing = superblock.flags.contains(SuperblockFlags::CHANGING_FSID);
    if device_fsid != superblock.metadata_uuid && !is_changing {
        return Err(SuperblockError::DeviceFsid {
            device_fsid,
            metadata_uuid: superblock.metadata_uuid,
        });
    }
    Ok(())
}

/// A feature and its state, then the feature that it depends on and the state of that feature.
type Dependency = (&'static str, bool, &'static str, bool);

pub(super) fn features(superblock: &Superblock) -> Result<(), SuperblockError> {
    let incompat = |flag: Incompat| superblock.incompat.contains(flag);
    let compat_ro = |flag: CompatRo| superblock.compat_ro.contains(flag);
    let block_group_tree = compat_ro(CompatRo::BLOCK_GROUP_TREE);
    let remap_tree = incompat(Incompat::REMAP_TREE);
    let free_space_tree_valid = compat_ro(CompatRo::FREE_SPACE_TREE_VALID);
    let dependencies: [Dependency; 5] = [
        (
            "BLOCK_GROUP_TREE",
            block_group_tree,
            "NO_HOLES",
            incompat(Incompat::NO_HOLES),
        ),
        (
            "BLOCK_GROUP_TREE",
            block_group_tree,
            "FREE_SPACE_TREE_VALID",
            free_space_tree_valid,
        ),
        ("REMAP_TREE", remap_tree, "NO_HOLES", incompat(Incompat::NO_HOLES)),
        (
            "REMAP_TREE",
            remap_tree,
            "FREE_SPACE_TREE_VALID",
            free_space_tree_valid,
        ),
        ("REMAP_TREE", remap_tree, "BLOCK_GROUP_TREE", block_group_tree),
    ];
    for (feature, set, needed, needed_set) in dependencies {
        if set && !needed_set {
            return Err(SuperblockError::FeatureDependency { feature, needed });
        }
    }
    let (node_bytes, sector_bytes) = (superblock.node_bytes, superblock.sector_bytes);
    if incompat(Incompat::MIXED_GROUPS) && node_bytes != sector_bytes {
        return Err(SuperblockError::MixedNodeSize {
            node_bytes,
            sector_bytes,
        });
    }
    Ok(())
}

pub(super) fn system_chunks(raw: &RawSuperblock) -> Result<Vec<(Key, Chunk)>, SuperblockError> {
    let size_bytes = raw.sys_chunk_array_size.get();
    let least_bytes = LEAST_ARRAY_BYTES;
    let room = least_bytes..=SYSTEM_CHUNK_ARRAY_BYTES;
    if !usize::try_from(size_bytes).is_ok_and(|size| room.contains(&size)) {
        return Err(SuperblockError::SystemArraySize {
            size_bytes,
            least_bytes,
            capacity_bytes: SYSTEM_CHUNK_ARRAY_BYTES,
        });
    }
    let mut chunks = Vec::new();
    each_system_chunk(raw, &mut |key, chunk| chunks.push((key, chunk)))?;
    Ok(chunks)
}

/// Passes each chunk of the array to `found`, up to the first invalid chunk.
pub(super) fn each_system_chunk(
    raw: &RawSuperblock,
    found: &mut dyn FnMut(Key, Chunk),
) -> Result<(), SuperblockError> {
    let sector_bytes = raw.sectorsize.get();
    let used = usize_of(raw.sys_chunk_array_size.get());
    let array = raw.sys_chunk_array.get(..used).unwrap_or(&raw.sys_chunk_array);
    let mut rest = array;
    while !rest.is_empty() {
        let Ok((raw_key, after_key)) = RawKey::ref_from_prefix(rest) else {
            return Err(SuperblockError::SystemArrayCut {
                rest_bytes: rest.len(),
            });
        };
        let key = Key::from(*raw_key);
        if key.item_type != ItemType::CHUNK_ITEM {
            let offset_bytes = array.len().saturating_sub(rest.len());
            return Err(SuperblockError::SystemArrayType {
                item_type: key.item_type.0,
                offset_bytes,
            });
        }
        let (chunk, after) = Chunk::parse_prefix(&key, after_key, sector_bytes)?;
        if !chunk.profile.contains(BlockGroupFlags::SYSTEM) {
            return Err(SuperblockError::SystemChunkType {
                logical: key.offset,
                flags: chunk.profile.bits(),
            });
        }
        chunk
            .check_mixed(Incompat::from_bits_retain(raw.incompat_flags.get()))
            .map_err(|problem| ItemError::new(&key, problem))?;
        found(key, chunk);
        rest = after;
    }
    Ok(())
}
