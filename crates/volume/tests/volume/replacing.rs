//! Tests of a device replacement while chunks are added and removed.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_device::{Device, Engine, MemoryBackend};
use buttress_format::block_group::Profile;
use buttress_format::{DeviceId, Generation, Logical};
use buttress_volume::Volume;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use support::lab::{Lab, items};
use support::{CHUNK_AT, Image};
use uuid::Uuid;

/// The number of device exchanges in the test. With an unlocked read-modify-write of the map, this
/// number lost chunks in every run.
const EXCHANGES: u64 = 200;

fn exchange(lab: &Lab, number: u64) {
    let target = Arc::new(MemoryBackend::new("target", vec![0; lab.image.devices[0].len()]));
    let target = Device::with_backend(target, Engine::Inline);
    let uuid = Uuid::from_u128(u128::from(number) + 1);
    lab.volume
        .begin_replacement(DeviceId::new(1), target, uuid)
        .unwrap();
    let mut superblock = (*lab.volume.superblock()).clone();
    superblock.generation = Generation::new(100 + number);
    lab.volume
        .write_superblocks_and_replace(&superblock, &items(&lab.image))
        .unwrap();
}

/// Adds chunks after the test's first chunk, and removes every second one. Returns the remaining
/// chunks.
fn add_chunks(volume: &Volume, image: &Image, stop: &AtomicBool) -> Vec<Logical> {
    let mut left = Vec::new();
    for number in 1.. {
        let start = Logical::new(CHUNK_AT + number * (64 << 20));
        volume.add_chunk(start, image.chunk()).unwrap();
        if number % 2 == 0 {
            volume.remove_chunk(start).unwrap();
        } else {
            left.push(start);
        }
        if stop.load(Ordering::SeqCst) {
            break;
        }
        // Each change of chunks copies the map, so the test keeps the map small.
        if left.len() > 40 {
            volume.remove_chunk(left.remove(0)).unwrap();
        }
    }
    left
}

#[test]
fn chunks_added_during_an_exchange_use_the_new_slot() {
    let lab = Lab::new(Profile::Raid1, 2);
    let stop = AtomicBool::new(false);
    let left = std::thread::scope(|scope| {
        let adding = scope.spawn(|| add_chunks(&lab.volume, &lab.image, &stop));
        for number in 0..EXCHANGES {
            exchange(&lab, number);
        }
        stop.store(true, Ordering::SeqCst);
        adding.join().unwrap()
    });
    let map = lab.volume.chunk_map();
    let slots = lab.volume.devices();
    let found: Vec<Logical> = map.chunks().iter().map(|chunk| chunk.start()).collect();
    // These chunks belong to the image: its system chunk, and the chunk that holds its data.
    let own = found.iter().filter(|start| start.get() <= CHUNK_AT);
    let expected: Vec<Logical> = own.copied().chain(left).collect();
    assert_eq!(found, expected);
    for chunk in map.chunks() {
        for slot in chunk.devices() {
            let is_known = slots.iter().any(|known| Arc::ptr_eq(known, slot));
            assert!(is_known, "{} is on a slot that was exchanged", chunk.start());
        }
    }
}
