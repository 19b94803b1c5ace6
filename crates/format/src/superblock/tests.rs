//! Tests with a hand-made superblock: each has one fault, and the checks find exactly that fault.

use super::*;
use crate::chunk::{ChunkProblem, RawChunk, RawStripe};
use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, RawKey};
use proptest::prelude::*;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

const AT: Physical = Physical::new(65536);

fn system_chunk() -> Vec<u8> {
    let key = RawKey::from(Key::new(
        ObjectId::FIRST_CHUNK_TREE,
        ItemType::CHUNK_ITEM,
        1 << 20,
    ));
    let chunk = RawChunk {
        length: U64::new(8 << 20),
        owner: U64::new(2),
        stripe_len: U64::new(65536),
        chunk_type: U64::new(2),
        io_align: U32::new(65536),
        io_width: U32::new(65536),
        sector_size: U32::new(4096),
        num_stripes: U16::new(1),
        sub_stripes: U16::new(1),
    };
    let stripe = RawStripe {
        devid: U64::new(1),
        offset: U64::new(1 << 20),
        dev_uuid: [7; 16],
    };
    [key.as_bytes(), chunk.as_bytes(), stripe.as_bytes()].concat()
}

fn sound() -> RawSuperblock {
    let mut raw = RawSuperblock::read_from_bytes(&[0; SUPERBLOCK_BYTES]).unwrap();
    raw.fsid = [1; 16];
    raw.bytenr = U64::new(AT.get());
    raw.flags = U64::new(1);
    raw.magic = SUPERBLOCK_MAGIC;
    raw.generation = U64::new(9);
    raw.root = U64::new(2 << 20);
    raw.chunk_root = U64::new(1 << 20);
    raw.total_bytes = U64::new(1 << 30);
    raw.bytes_used = U64::new(1 << 20);
    raw.root_dir_objectid = U64::new(6);
    raw.num_devices = U64::new(1);
    raw.sectorsize = U32::new(4096);
    raw.nodesize = U32::new(16384);
    raw.leafsize = U32::new(16384);
    raw.stripesize = U32::new(4096);
    raw.incompat_flags = U64::new(0x341);
    raw.compat_ro_flags = U64::new(3);
    raw.dev_item.devid = U64::new(1);
    raw.dev_item.fsid = [1; 16];
    raw.label[..4].copy_from_slice(b"name");
    let chunk = system_chunk();
    raw.sys_chunk_array_size = U32::new(u32::try_from(chunk.len()).unwrap());
    raw.sys_chunk_array[..chunk.len()].copy_from_slice(&chunk);
    raw
}

fn sealed(mut raw: RawSuperblock) -> Vec<u8> {
    let checksum_type = ChecksumType::from_raw(raw.csum_type.get()).unwrap_or(ChecksumType::Crc32c);
    let checksum = checksum_type.compute(&raw.as_bytes()[32..]);
    raw.csum[..checksum.as_bytes().len()].copy_from_slice(checksum.as_bytes());
    raw.as_bytes().to_vec()
}

fn fault(change: impl FnOnce(&mut RawSuperblock)) -> SuperblockError {
    let mut raw = sound();
    change(&mut raw);
    Superblock::check(&sealed(raw), AT).unwrap_err()
}

#[test]
fn a_sound_superblock_is_read_with_every_checksum_type() {
    for checksum_type in ChecksumType::ALL {
        let mut raw = sound();
        raw.csum_type = U16::new(checksum_type.to_raw());
        let superblock = Superblock::check(&sealed(raw), AT).unwrap();
        assert_eq!(superblock.checksum_type, checksum_type);
        assert_eq!(superblock.label, b"name");
        assert_eq!(superblock.metadata_uuid, superblock.fsid);
        assert_eq!(superblock.system_chunks.len(), 1);
        assert_eq!(
            superblock.incompat.names(),
            ["MIXED_BACKREF", "EXTENDED_IREF", "SKINNY_METADATA", "NO_HOLES"]
        );
        assert_eq!(superblock.block_format().node_bytes, 16384);
    }
}

#[test]
fn the_metadata_uuid_counts_where_the_feature_is_set() {
    let mut raw = sound();
    raw.incompat_flags = U64::new(0x341 | Incompat::METADATA_UUID.bits());
    raw.metadata_uuid = [5; 16];
    raw.dev_item.fsid = [5; 16];
    let superblock = Superblock::check(&sealed(raw), AT).unwrap();
    assert_eq!(superblock.block_format().fsid, Uuid::from_bytes([5; 16]));
    assert_eq!(superblock.fsid, Uuid::from_bytes([1; 16]));
}

#[test]
fn identity_is_checked() {
    assert_eq!(
        Superblock::check(&[0; 4095], AT).unwrap_err(),
        SuperblockError::Size { size_bytes: 4095 }
    );
    assert_eq!(
        fault(|raw| raw.magic = [0; 8]),
        SuperblockError::Magic { found: [0; 8] }
    );
    assert_eq!(
        fault(|raw| raw.csum_type = U16::new(4)),
        SuperblockError::ChecksumType { number: 4 }
    );
    let mut noisy = sealed(sound());
    noisy[4095] ^= 1;
    assert!(matches!(
        Superblock::check(&noisy, AT),
        Err(SuperblockError::Checksum { .. })
    ));
    assert_eq!(
        fault(|raw| raw.bytenr = U64::new(1)),
        SuperblockError::Address {
            stored: 1,
            physical: AT.get()
        }
    );
}

/// The flags report a change that btrfstune began. The superblock is still readable.
#[test]
fn unfinished_changes_are_reported_and_still_readable() {
    for (bit, what) in [
        (35, Some("the fsid of all blocks")),
        (36, Some("the fsid by a metadata uuid")),
        (38, Some("the place of block group items")),
        (39, Some("the checksums")),
        (40, Some("the checksums")),
        (0, None),
        (33, None),
    ] {
        let mut raw = sound();
        raw.flags = U64::new(1 << bit);
        let superblock = Superblock::check(&sealed(raw), AT).unwrap();
        let found = superblock.flags.unfinished().map(|change| change.what);
        assert_eq!(found, what, "bit {bit}");
    }
}

#[test]
fn sizes_are_checked() {
    for bytes in [0, 512, 2048, 4097, 12288, 1 << 17] {
        assert_eq!(
            fault(|raw| raw.sectorsize = U32::new(bytes)),
            SuperblockError::SectorSize { bytes }
        );
    }
    for bytes in [0, 2048, 20000, 1 << 17] {
        assert_eq!(
            fault(|raw| raw.nodesize = U32::new(bytes)),
            SuperblockError::NodeSize {
                bytes,
                sector_bytes: 4096
            }
        );
    }
    assert_eq!(
        fault(|raw| raw.leafsize = U32::new(4096)),
        SuperblockError::LeafSize {
            leaf_bytes: 4096,
            node_bytes: 16384
        }
    );
    assert_eq!(
        fault(|raw| raw.stripesize = U32::new(0)),
        SuperblockError::StripeSize { bytes: 0 }
    );
}

#[test]
fn roots_are_checked() {
    type Change = fn(&mut RawSuperblock, u64, u8);
    let roots: [(&'static str, Change); 3] = [
        ("root tree", |raw, root, level| {
            (raw.root, raw.root_level) = (U64::new(root), level)
        }),
        ("chunk tree", |raw, root, level| {
            (raw.chunk_root, raw.chunk_root_level) = (U64::new(root), level)
        }),
        ("log tree", |raw, root, level| {
            (raw.log_root, raw.log_root_level) = (U64::new(root), level)
        }),
    ];
    for (tree, change) in roots {
        assert_eq!(
            fault(|raw| change(raw, 4097, 0)),
            SuperblockError::RootUnaligned {
                tree,
                logical: 4097,
                sector_bytes: 4096
            }
        );
        assert_eq!(
            fault(|raw| change(raw, 4096, 8)),
            SuperblockError::Level { tree, level: 8 }
        );
        if tree != "log tree" {
            assert_eq!(
                fault(|raw| change(raw, 0, 0)),
                SuperblockError::RootMissing { tree }
            );
        }
    }
}

#[test]
fn totals_are_checked() {
    // The checks report a wrong count of bytes in use. The superblock with the wrong count is still
    // readable.
    let problem = |bytes: u64| {
        let mut raw = sound();
        raw.bytes_used = U64::new(bytes);
        Superblock::check(&sealed(raw), AT).unwrap().used_bytes_problem()
    };
    let least_bytes = 6 * 16384;
    assert_eq!(
        problem(least_bytes - 1),
        Some(UsedBytesProblem::TooSmall {
            used_bytes: least_bytes - 1,
            least_bytes
        })
    );
    assert_eq!(problem(least_bytes), None);
    assert_eq!(
        problem(1 << 31),
        Some(UsedBytesProblem::ExceedsTotal {
            used_bytes: 1 << 31,
            total_bytes: 1 << 30
        })
    );
    for count in [0, (1 << 31) + 1] {
        assert_eq!(
            fault(|raw| raw.num_devices = U64::new(count)),
            SuperblockError::DeviceCount { count }
        );
    }
    assert_eq!(
        fault(|raw| raw.dev_item.fsid = [3; 16]),
        SuperblockError::DeviceFsid {
            device_fsid: Uuid::from_bytes([3; 16]),
            metadata_uuid: Uuid::from_bytes([1; 16])
        }
    );
}

#[test]
fn features_need_each_other() {
    let block_group_tree = U64::new(CompatRo::KNOWN.bits());
    assert_eq!(
        fault(|raw| (raw.compat_ro_flags, raw.incompat_flags) = (block_group_tree, U64::new(0x141))),
        SuperblockError::FeatureDependency {
            feature: "BLOCK_GROUP_TREE",
            needed: "NO_HOLES"
        }
    );
    assert_eq!(
        fault(|raw| raw.compat_ro_flags = U64::new(8)),
        SuperblockError::FeatureDependency {
            feature: "BLOCK_GROUP_TREE",
            needed: "FREE_SPACE_TREE_VALID"
        }
    );
    assert_eq!(
        fault(|raw| raw.incompat_flags = U64::new(0x341 | Incompat::REMAP_TREE.bits())),
        SuperblockError::FeatureDependency {
            feature: "REMAP_TREE",
            needed: "BLOCK_GROUP_TREE"
        }
    );
    assert_eq!(
        fault(|raw| raw.incompat_flags = U64::new(0x345)),
        SuperblockError::MixedNodeSize {
            node_bytes: 16384,
            sector_bytes: 4096
        }
    );
}

#[test]
fn the_system_chunk_array_is_checked() {
    for size_bytes in [0, 96, 2049] {
        assert_eq!(
            fault(|raw| raw.sys_chunk_array_size = U32::new(size_bytes)),
            SuperblockError::SystemArraySize {
                size_bytes,
                least_bytes: 97,
                capacity_bytes: 2048
            }
        );
    }
    assert_eq!(
        fault(|raw| raw.sys_chunk_array_size = U32::new(100)),
        SuperblockError::SystemArrayCut { rest_bytes: 3 }
    );
    assert_eq!(
        fault(|raw| raw.sys_chunk_array[8] = 1),
        SuperblockError::SystemArrayType {
            item_type: 1,
            offset_bytes: 0
        }
    );
    let type_at = 17 + 24;
    assert_eq!(
        fault(|raw| raw.sys_chunk_array[type_at] = 4),
        SuperblockError::SystemChunkType {
            logical: 1 << 20,
            flags: 4
        }
    );
    let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, 1 << 20);
    assert_eq!(
        fault(|raw| raw.sys_chunk_array[type_at] = 0),
        SuperblockError::SystemChunk(ItemError::new(&key, ChunkProblem::TypeMissing { flags: 0 }))
    );
    let stripes_at = 17 + 44;
    assert_eq!(
        fault(|raw| raw.sys_chunk_array[stripes_at] = 9),
        SuperblockError::SystemChunk(ItemError::new(
            &key,
            ItemProblem::SizeTooSmall {
                size_bytes: 80,
                needed_bytes: 48 + 9 * 32
            }
        ))
    );
    let mut raw = sound();
    raw.sys_chunk_array[type_at] = 4;
    let (chunks, end) = Superblock::inspect_system_chunks(&raw);
    assert!(chunks.is_empty() && matches!(end, Some(SuperblockError::SystemChunkType { .. })));
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(places in proptest::collection::vec((0_usize..4096, any::<u8>()), 0..40)) {
        let mut bytes = sealed(sound());
        for (at, value) in places {
            bytes[at] = value;
        }
        let _ = Superblock::check(&bytes, AT);
        let mut raw = RawSuperblock::read_from_bytes(&bytes).unwrap();
        raw.magic = SUPERBLOCK_MAGIC;
        raw.bytenr = U64::new(AT.get());
        let _ = Superblock::check(&sealed(raw), AT);
        let _ = Superblock::inspect_system_chunks(&raw);
    }

    #[test]
    fn raw_superblocks_round_trip(bytes in proptest::collection::vec(any::<u8>(), SUPERBLOCK_BYTES)) {
        let raw = Superblock::raw(&bytes).unwrap();
        prop_assert_eq!(raw.as_bytes(), bytes.as_slice());
    }
}
