//! Tests of partial writes to rows while another part of the row is damaged.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::block_group::{BlockGroupFlags, Profile};
use buttress_format::node::edit::NewBlock;
use buttress_format::{ChecksumType, Generation, Logical, TreeBlock, TreeId, Uuid};
use buttress_volume::{ExtentRead, ExtentWrite, OpenOptions, Rejection, Volume};
use bytes::Bytes;
use std::sync::Arc;
use support::{CHUNK_AT, FSID, Image, Super, UNIT};

const NODE: usize = 16384;

fn block(at: usize, generation: u64) -> Bytes {
    let new = NewBlock {
        fsid: FSID,
        chunk_tree_uuid: Uuid::from_u128(3),
        logical: Logical::new(CHUNK_AT + at as u64),
        generation: Generation::new(generation),
        owner: TreeId::FS,
        level: 0,
    };
    let block = TreeBlock::new_empty(NODE as u32, &new);
    block
        .seal(new.logical, ChecksumType::Crc32c, |_| None)
        .bytes()
        .clone()
}

fn write(volume: &Volume, at: usize, bytes: Bytes) {
    let logical = Logical::new(CHUNK_AT + at as u64);
    volume.write(&[ExtentWrite { logical, bytes }]).unwrap();
}

#[test]
fn a_damaged_tree_block_beside_a_write_is_restored() {
    for (profile, stripes) in [(Profile::Raid5, 3), (Profile::Raid6, 5)] {
        let columns = stripes - usize::from(profile.parity_stripes());
        let mut image = Image::new(profile, stripes, 2 * columns * UNIT);
        image.flags = BlockGroupFlags::METADATA | profile.flag();
        let memories: Vec<_> = image
            .devices
            .iter()
            .map(|bytes| Arc::new(MemoryBackend::new("memory", bytes.clone())))
            .collect();
        let device = |memory: &Arc<MemoryBackend>| {
            Device::with_backend(Arc::clone(memory) as Arc<dyn Backend>, Engine::Inline)
        };
        let volume = Volume::open(memories.iter().map(device).collect(), OpenOptions::default()).unwrap();
        volume.add_chunk(Logical::new(CHUNK_AT), image.chunk()).unwrap();
        // The damaged block is in the second column of the first row, at the offset of the write to
        // the first column.
        let (damaged, written) = (UNIT + 2 * NODE, 2 * NODE);
        write(&volume, damaged, block(damaged, 7));
        let place = image.stripe_range(1).start + 2 * NODE;
        memories[1].write_at(place as u64, &[0xee; 100]).unwrap();
        write(&volume, written, block(written, 8));
        let verify = |wanted: Bytes| {
            move |bytes: Bytes| {
                if bytes == wanted {
                    Ok(())
                } else {
                    Err(Rejection::new("differs"))
                }
            }
        };
        for (at, generation) in [(damaged, 7), (written, 8)] {
            let read = ExtentRead {
                logical: Logical::new(CHUNK_AT + at as u64),
                length: NODE,
            };
            let wanted = block(at, generation);
            volume.read_verified(read, &mut verify(wanted.clone())).unwrap();
            // Each block can be rebuilt from the rest of its row.
            for copy in 2..=volume.copies(read.logical).unwrap() {
                let rebuilt = volume.read_copy(read, copy).unwrap();
                assert!(rebuilt[..] == wanted[..], "{profile:?}: copy {copy} of {at}");
            }
        }
        assert_eq!(volume.faults().total(), 0, "{profile:?}: it is whole again");
    }
}

/// A device that missed commits holds older parity. Together with the other columns, the older
/// parity yields an older block that passes the same checks.
#[test]
fn a_damaged_tree_block_is_not_restored_from_stale_parity() {
    let (profile, stripes) = (Profile::Raid6, 4);
    let mut image = Image::new(profile, stripes, 4 * UNIT);
    image.flags = BlockGroupFlags::METADATA | profile.flag();
    let memories: Vec<_> = image
        .devices
        .iter()
        .map(|bytes| Arc::new(MemoryBackend::new("memory", bytes.clone())))
        .collect();
    let device = |memory: &Arc<MemoryBackend>| {
        Device::with_backend(Arc::clone(memory) as Arc<dyn Backend>, Engine::Inline)
    };
    let open = || {
        let volume = Volume::open(memories.iter().map(device).collect(), OpenOptions::default()).unwrap();
        volume.add_chunk(Logical::new(CHUNK_AT), image.chunk()).unwrap();
        volume
    };
    let (damaged, written) = (UNIT + 2 * NODE, 2 * NODE);
    let volume = open();
    write(&volume, damaged, block(damaged, 7));
    let parity_at = (image.stripe_range(2).start + 2 * NODE) as u64;
    let mut parity = vec![0; NODE];
    memories[2]
        .read_vectored_at(parity_at, &mut [&mut parity[..]])
        .unwrap();
    write(&volume, damaged, block(damaged, 8));
    drop(volume);
    // The third device was absent during the last write.
    memories[2].write_at(parity_at, &parity).unwrap();
    for id in [1, 2, 4] {
        let newer = Super {
            generation: 12,
            ..Image::superblock(id, stripes as u64)
        };
        memories[id as usize - 1]
            .write_at(65536, &newer.bytes(65536))
            .unwrap();
    }
    let place = image.stripe_range(1).start + 2 * NODE;
    memories[1].write_at(place as u64, &[0xee; 100]).unwrap();
    let volume = open();
    write(&volume, written, block(written, 9));
    let read = ExtentRead {
        logical: Logical::new(CHUNK_AT + damaged as u64),
        length: NODE,
    };
    let newest = volume.read_copy(read, 1).unwrap();
    assert!(newest[..] == block(damaged, 8)[..], "an older block was restored");
}
