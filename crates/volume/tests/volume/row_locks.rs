//! Tests of two writers of one row of RAID5 and RAID6. The second writer waits for the first,
//! because the parity of each write covers the other's data.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::Logical;
use buttress_format::block_group::Profile;
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_volume::{ExtentRead, ExtentWrite, OpenOptions, Volume};
use bytes::Bytes;
use std::sync::Arc;
use support::{CHUNK_AT, Image, UNIT, noise};

fn write(volume: &Volume, at: usize, bytes: Vec<u8>) {
    let logical = Logical::new(CHUNK_AT + at as u64);
    let bytes = Bytes::from(bytes);
    volume.write(&[ExtentWrite { logical, bytes }]).unwrap();
}

/// Opens the volume degraded, with the given devices.
fn volume_on(devices: impl Iterator<Item = Arc<dyn Backend>>, image: &Image) -> Volume {
    let devices = devices.map(|backend| Device::with_backend(backend, Engine::Inline));
    let options = OpenOptions {
        degraded: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(devices.collect(), options).unwrap();
    let count = image.devices.len() as u64;
    for id in 1..=count {
        volume.add_device(Image::superblock(id, count).item()).unwrap();
    }
    volume.add_chunk(Logical::new(CHUNK_AT), image.chunk()).unwrap();
    volume.finish_bootstrap().unwrap();
    volume
}

/// A gate stops the first writer after it has read the missing part of the row. The second writer
/// writes another column of the row. After both writes, each column must be rebuilt from the other
/// columns of the row, whichever device is missing.
fn two_writers(profile: Profile, stripes: usize) {
    let columns = stripes - usize::from(profile.parity_stripes());
    let image = Image::new(profile, stripes, 2 * columns * UNIT);
    let gated: Vec<Arc<GatedBackend>> = image
        .devices
        .iter()
        .map(|bytes| GatedBackend::new(Arc::new(MemoryBackend::new("memory", bytes.clone()))))
        .collect();
    let backends = || gated.iter().map(|gate| Arc::clone(gate) as Arc<dyn Backend>);
    let volume = Arc::new(volume_on(backends(), &image));
    let contents = [noise(1, UNIT), noise(2, UNIT)];
    let writer = |column: usize| {
        let (volume, bytes) = (Arc::clone(&volume), contents[column].clone());
        WatchedThread::start(move || write(&volume, column * UNIT, bytes)).unwrap()
    };

    // The first column lies on the first device, and the first writer reads the second column.
    let gate = &gated[1];
    gate.close(|request| matches!(request, Request::Read { .. }));
    let first = writer(0);
    gate.wait_for_arrivals(1);
    let second = writer(1);
    let waits = second.comes_to_wait();
    for gate in &gated {
        gate.open();
    }
    first.join().unwrap();
    second.join().unwrap();
    drop(volume);
    assert!(waits, "the second writer went on while the first had the row");

    for missing in 0..stripes {
        let rest = backends().enumerate().filter(|(index, _)| *index != missing);
        let volume = volume_on(rest.map(|(_, backend)| backend), &image);
        for (column, content) in contents.iter().enumerate() {
            let read = ExtentRead {
                logical: Logical::new(CHUNK_AT + (column * UNIT) as u64),
                length: UNIT,
            };
            let found = volume.read_verified(read, &mut |bytes| Ok(bytes)).unwrap();
            assert!(
                found[..] == content[..],
                "column {column} without device {missing}"
            );
        }
    }
}

/// A column is written, but its parity is not. A reader that rebuilds a missing column from the two
/// must wait.
fn reader_beside_writer(profile: Profile, stripes: usize) {
    let columns = stripes - usize::from(profile.parity_stripes());
    let image = Image::new(profile, stripes, 2 * columns * UNIT);
    let gated: Vec<Arc<GatedBackend>> = image
        .devices
        .iter()
        .map(|bytes| GatedBackend::new(Arc::new(MemoryBackend::new("memory", bytes.clone()))))
        .collect();
    let there = gated
        .iter()
        .skip(1)
        .map(|gate| Arc::clone(gate) as Arc<dyn Backend>);
    let volume = Arc::new(volume_on(there, &image));
    // In the first row, the data is on the first devices, and P follows.
    let gate = &gated[columns];
    gate.close(|request| matches!(request, Request::Write { .. }));
    let to_write = Arc::clone(&volume);
    let writer = WatchedThread::start(move || write(&to_write, UNIT, noise(3, UNIT))).unwrap();
    gate.wait_for_arrivals(1);
    let to_read = Arc::clone(&volume);
    let reader = WatchedThread::start(move || {
        let read = ExtentRead {
            logical: Logical::new(CHUNK_AT),
            length: UNIT,
        };
        to_read.read_verified(read, &mut |bytes| Ok(bytes)).unwrap()
    })
    .unwrap();
    let waits = reader.comes_to_wait();
    gate.open();
    writer.join().unwrap();
    let found = reader.join().unwrap();
    assert!(found[..] == image.data[..UNIT], "what nobody wrote was read");
    assert!(waits, "the reader went on while the row was being written");
}

#[test]
fn a_reader_of_a_row_of_raid5_that_is_being_written() {
    reader_beside_writer(Profile::Raid5, 3);
}

#[test]
fn a_reader_of_a_row_of_raid6_that_is_being_written() {
    reader_beside_writer(Profile::Raid6, 4);
}

#[test]
fn two_writers_of_one_row_of_raid5() {
    two_writers(Profile::Raid5, 3);
}

#[test]
fn two_writers_of_one_row_of_raid6() {
    two_writers(Profile::Raid6, 4);
}
