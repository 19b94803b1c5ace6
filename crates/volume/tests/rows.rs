//! Rows that are written in part while another part of them is damaged.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::block_group::{BlockGroupFlags, Profile};
use buttress_format::node::edit::NewBlock;
use buttress_format::{ChecksumType, Generation, Logical, TreeBlock, TreeId, Uuid};
use buttress_volume::{ExtentRead, ExtentWrite, OpenOptions, Rejection, Volume};
use bytes::Bytes;
use std::sync::Arc;
use support::{CHUNK_AT, FSID, Image, UNIT};

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
fn parity_goes_on_holding_a_tree_block_that_is_damaged_on_its_device() {
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
        // In the second column of the first row, at the offset where the first column will be written.
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
            volume
                .read_verified(read, &mut verify(block(at, generation)))
                .unwrap();
        }
        assert_eq!(
            volume.faults().total(),
            1,
            "{profile:?}: the damaged copy was passed over"
        );
    }
}
