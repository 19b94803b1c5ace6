//! Tests of devices that begin to fail while the volume is written. The volume continues without
//! the failed devices if every chunk can, and the remaining devices hold the written data. If a
//! chunk does not tolerate the failure, writing stops.
//!
//! The image's only system chunk is single on the first device, and no test writes to it. The first
//! device is therefore always a device that another chunk than the tested one needs.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::block_group::Profile;
use buttress_format::superblock::Superblock;
use buttress_format::{DeviceId, ErrorKind, Generation, Logical, Physical};
use buttress_lab::{Fault, FaultyBackend};
use buttress_volume::{DeviceErrors, Error, ExtentWrite, Notice, Volume, WriteRefusal};
use std::sync::Arc;
use support::lab::{DATA_BYTES, Lab, extent, items, read_all, subsets};
use support::{CHUNK_AT, Image, UNIT, noise, superblock_offset};

/// Profiles that can do without a device, with their numbers of stripes.
const TOLERANT: [(Profile, usize); 8] = [
    (Profile::Raid1, 2),
    (Profile::Raid1C3, 3),
    (Profile::Raid1C4, 4),
    (Profile::Raid10, 6),
    (Profile::Raid5, 2),
    (Profile::Raid5, 4),
    (Profile::Raid6, 3),
    (Profile::Raid6, 5),
];

/// Returns batches of writes: whole rows, parts of rows, and rewrites of earlier ranges.
fn batches() -> Vec<Vec<(usize, usize)>> {
    vec![
        vec![(0, DATA_BYTES)],
        vec![(4096, 8192), (5 * UNIT, UNIT)],
        vec![(3 * UNIT - 4096, 3 * UNIT)],
        vec![(0, 4096), (UNIT, 4096), (8 * UNIT + 4096, UNIT)],
        vec![(0, 4 * UNIT)],
        vec![(7 * UNIT, 4096), (2 * UNIT, 12_288)],
    ]
}

/// Writes one batch to the volume and to the model.
fn write(volume: &Volume, model: &mut [u8], number: usize, batch: &[(usize, usize)]) -> Result<(), Error> {
    let mut writes: Vec<ExtentWrite> = Vec::new();
    for (at, length) in batch {
        let bytes = noise((number * 1000 + at) as u64, *length);
        model[*at..at + length].copy_from_slice(&bytes);
        writes.push(extent(*at, &bytes));
    }
    volume.write(&writes)
}

/// Flushes the devices and writes superblocks, as far as the volume layer alone can commit.
fn commit(lab: &Lab, generation: u64) -> Result<(), Error> {
    lab.volume.flush()?;
    let mut superblock = (*lab.volume.superblock()).clone();
    superblock.generation = Generation::new(generation);
    lab.volume.write_superblocks(&superblock, &items(&lab.image))
}

/// Returns the generation of a device's primary superblock.
fn generation_on(bytes: &[u8]) -> u64 {
    let at = Physical::new(65536);
    Superblock::check(&bytes[65536..65536 + 4096], at)
        .unwrap()
        .generation
        .get()
}

fn is_stale(volume: &Volume, device: u64) -> bool {
    let slots = volume.devices();
    slots
        .iter()
        .any(|slot| slot.id().get() == device && slot.stale().is_some())
}

/// Asserts that all data reads back without the failed device, also without further devices that
/// the profile tolerates. Without other copies, reads use the failed device last, because its
/// generation is older.
fn require_readable(lab: &Lab, model: &[u8], failed: usize, all: bool, what: &str) {
    let image = lab.snapshot();
    let tolerated = usize::from(image.profile.tolerated_failures());
    for missing in subsets(image.devices.len(), if all { tolerated } else { 1 }) {
        // A failed device counts as lost even if it is present.
        if missing.contains(&failed) || missing.len() < tolerated && (all || missing.is_empty()) {
            let found = read_all(&image.open(&missing));
            assert!(found == model, "{what}: read without {missing:?}");
        }
    }
}

/// Returns the number of writes of the batches and the commit to a device.
fn writes_of(profile: Profile, stripes: usize, device: usize) -> u64 {
    let lab = Lab::new(profile, stripes);
    let mut model = vec![0; DATA_BYTES];
    for (number, batch) in batches().iter().enumerate() {
        write(&lab.volume, &mut model, number, batch).unwrap();
    }
    commit(&lab, 11).unwrap();
    lab.backends[device].request_counts().1
}

/// Makes the device fail from its write `first` on, and work again once the volume has noticed.
/// After the failure, no write and no read may use the device.
fn fail_from(profile: Profile, stripes: usize, device: usize, first: u64) {
    let what = format!("{profile:?} on {stripes}, device {device} from write {first} on");
    let lab = Lab::new(profile, stripes);
    let slot = Arc::clone(&lab.volume.devices()[device]);
    lab.backends[device].inject(Fault::FailWritesFrom(first));
    let mut model = vec![0; DATA_BYTES];
    let mut counts = None;
    let mut look = || {
        if slot.failure().is_some() && counts.is_none() {
            lab.backends[device].heal();
            counts = Some(lab.backends[device].request_counts());
        }
    };
    for (number, batch) in batches().iter().enumerate() {
        write(&lab.volume, &mut model, number, batch).unwrap_or_else(|error| panic!("{what}: {error}"));
        look();
    }
    commit(&lab, 11).unwrap_or_else(|error| panic!("{what}: {error}"));
    look();
    assert!(
        read_all(&lab.volume) == model,
        "{what}: read by the volume itself"
    );
    let failure = slot
        .failure()
        .unwrap_or_else(|| panic!("{what}: it did not fail"));
    let errors = slot.errors();
    assert!(errors.writes > 0, "{what}: {errors:?}");
    assert_eq!((errors.reads, errors.flushes), (0, 0), "{what}");
    assert_eq!(
        Some(lab.backends[device].request_counts()),
        counts,
        "{what}: it was asked for more"
    );
    let notice = Notice::DeviceLeftOut {
        id: DeviceId::new(device as u64 + 1),
        failure: failure.clone(),
    };
    assert!(lab.volume.notices().contains(&notice), "{what}");
    commit(&lab, 12).unwrap();
    for (index, bytes) in lab.snapshot().devices.iter().enumerate() {
        let expected = if index == device { 10 } else { 12 };
        assert_eq!(generation_on(bytes), expected, "{what}: device {index}");
    }
    require_readable(&lab, &model, device, first.is_multiple_of(4), &what);
}

#[test]
fn a_device_that_fails_from_any_write_on_is_done_without() {
    for (profile, stripes) in TOLERANT {
        for device in [1, stripes - 1] {
            let writes = writes_of(profile, stripes, device);
            assert!(writes > 3, "{writes}");
            for first in 0..writes {
                fail_from(profile, stripes, device, first);
            }
        }
    }
}

/// Each device that the profile can lose fails, one after the other, and then one device more.
#[test]
fn one_failure_more_than_is_tolerated_stops_writing_and_says_which_chunk_needs_the_device() {
    for (profile, stripes) in TOLERANT {
        let tolerated = usize::from(profile.tolerated_failures());
        let what = format!("{profile:?} on {stripes}");
        // The system chunk needs the first device. For profiles that tolerate fewer missing
        // devices, that device is missing from the start.
        let lab = Lab::without(profile, stripes, &[0]);
        let mut model = lab.image.data.clone();
        let batches = batches();
        let failing: Vec<usize> = (1..=tolerated).collect();
        for (number, device) in failing.iter().enumerate() {
            lab.backends[*device].inject(Fault::FailWritesFrom(0));
            let mut expected = model.clone();
            let written = write(&lab.volume, &mut expected, number, &batches[0]);
            if number + 2 <= tolerated {
                written.unwrap_or_else(|error| panic!("{what}: {error}"));
                model = expected;
                assert!(read_all(&lab.volume) == model, "{what}");
                continue;
            }
            let error = written.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{what}");
            let Error::Write(WriteRefusal::Needed(needed)) = &error else {
                panic!("{what}: {error}");
            };
            assert_eq!(needed.device.get(), *device as u64 + 1, "{what}");
            assert_eq!(
                (needed.logical.get(), needed.profile),
                (CHUNK_AT, profile.name()),
                "{what}"
            );
            assert_eq!(
                (needed.lost, needed.tolerated),
                (tolerated + 1, tolerated),
                "{what}"
            );
            assert_eq!(&*lab.volume.stopped().unwrap(), error.to_string(), "{what}");
        }
        let refused = write(&lab.volume, &mut model, 9, &batches[1]).unwrap_err();
        assert!(
            matches!(refused, Error::Write(WriteRefusal::Stopped { .. })),
            "{what}: {refused}"
        );
    }
}

#[test]
fn a_device_that_another_chunk_needs_stops_writing_and_is_still_read() {
    let lab = Lab::new(Profile::Raid1, 2);
    let mut model = vec![0; DATA_BYTES];
    write(&lab.volume, &mut model, 0, &[(0, DATA_BYTES)]).unwrap();
    lab.backends[0].inject(Fault::FailWritesFrom(0));
    let error = lab.volume.write(&[extent(0, &[1; 4096])]).unwrap_err();
    let Error::Write(WriteRefusal::Needed(needed)) = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (needed.logical, needed.profile, needed.lost),
        (Logical::new(20 << 20), "single", 1)
    );
    assert!(
        error.to_string().starts_with("cannot write memory at bytes ["),
        "{error}"
    );
    assert!(lab.volume.stopped().is_some());
    let slot = &lab.volume.devices()[0];
    assert!(
        slot.failure().is_none(),
        "what was committed may lie nowhere else"
    );
    assert!(read_all(&lab.volume)[4096..] == model[4096..]);
    let is_told = |notice: &Notice| matches!(notice, Notice::DeviceLeftOut { .. });
    assert!(
        !lab.volume.notices().iter().any(is_told),
        "what stops is in the error"
    );
}

#[test]
fn a_device_that_fails_a_flush_gets_no_superblock() {
    for flush in 0..3 {
        let lab = Lab::with_room_for_copies(Profile::Raid1, 2);
        lab.backends[1].inject(Fault::FailFlushNumber(flush));
        lab.volume.write(&[extent(0, &[7; 4096])]).unwrap();
        commit(&lab, 11).unwrap();
        let slot = Arc::clone(&lab.volume.devices()[1]);
        let expected = DeviceErrors {
            flushes: 1,
            ..DeviceErrors::default()
        };
        assert_eq!(slot.errors(), expected, "flush {flush}");
        assert!(slot.failure().is_some(), "flush {flush}");
        // The device may hold the superblock of the commit in which it failed, because its blocks
        // were durable before.
        let image = lab.snapshot();
        let own = generation_on(&image.devices[1]);
        assert_eq!(own, if flush == 0 { 10 } else { 11 }, "flush {flush}");
        let before = lab.backends[1].request_counts();
        lab.volume.write(&[extent(0, &[8; 4096])]).unwrap();
        commit(&lab, 12).unwrap();
        assert_eq!(lab.backends[1].request_counts(), before, "flush {flush}");
        let image = lab.snapshot();
        assert_eq!(
            (generation_on(&image.devices[0]), generation_on(&image.devices[1])),
            (12, own)
        );
        // The next open identifies the device by its generation.
        let again = image.open(&[]);
        assert!(is_stale(&again, 2), "flush {flush}");
        assert!(read_all(&again)[..4096] == [8; 4096], "flush {flush}");
    }
}

#[test]
fn a_device_that_refuses_its_superblock_is_done_without() {
    for number in 0..2 {
        let lab = Lab::with_room_for_copies(Profile::Raid1, 2);
        lab.backends[1].inject(Fault::FailWriteNumber(number));
        commit(&lab, 11).unwrap();
        let slot = Arc::clone(&lab.volume.devices()[1]);
        assert_eq!(slot.errors().writes, 1, "write {number}");
        assert!(slot.failure().is_some(), "write {number}");
        commit(&lab, 12).unwrap();
        let image = lab.snapshot();
        assert_eq!(generation_on(&image.devices[0]), 12);
        assert_eq!(
            generation_on(&image.devices[1]),
            if number == 0 { 10 } else { 11 }
        );
        assert!(is_stale(&image.open(&[]), 2));
    }
}

/// Content without checksums is overwritten in place, so old bytes on a stale device stay
/// undetected. Only the volume's knowledge of the device prevents the return of the old bytes.
#[test]
fn what_a_device_missed_never_comes_back_from_it() {
    for (profile, stripes) in TOLERANT {
        let lab = Lab::new(profile, stripes);
        lab.volume.write(&[extent(0, &noise(1, DATA_BYTES))]).unwrap();
        let (_, writes, _) = lab.backends[1].request_counts();
        lab.backends[1].inject(Fault::FailWritesFrom(writes));
        let model = noise(2, DATA_BYTES);
        lab.volume.write(&[extent(0, &model)]).unwrap();
        lab.backends[1].heal();
        let (reads, ..) = lab.backends[1].request_counts();
        assert!(read_all(&lab.volume) == model, "{profile:?} on {stripes}");
        assert_eq!(
            lab.backends[1].request_counts().0,
            reads,
            "{profile:?}: it was read"
        );
        let copy = buttress_volume::ExtentRead {
            logical: Logical::new(CHUNK_AT),
            length: 4096,
        };
        let mapped = lab
            .volume
            .map(copy.logical, buttress_format::ByteCount::of(4096))
            .unwrap();
        let on_it = mapped.iter().position(|place| place.device.get() == 2);
        if let Some(buttress_volume::MappingContent::Data { copy: number }) =
            on_it.map(|place| mapped[place].content)
        {
            let error = lab.volume.read_copy(copy, number).unwrap_err();
            assert!(error.to_string().contains("left out"), "{profile:?}: {error}");
        }
    }
}

#[test]
fn failed_reads_are_counted_and_the_device_stays() {
    let lab = Lab::new(Profile::Raid1, 2);
    let mut model = vec![0; DATA_BYTES];
    write(&lab.volume, &mut model, 0, &[(0, DATA_BYTES)]).unwrap();
    lab.backends[0].inject(Fault::FailReads(0..u64::MAX));
    assert!(read_all(&lab.volume) == model);
    let slot = Arc::clone(&lab.volume.devices()[0]);
    assert!(slot.errors().reads > 0);
    assert!(slot.failure().is_none());
    commit(&lab, 11).unwrap();
    assert_eq!(generation_on(&lab.snapshot().devices[0]), 11);
}

#[test]
fn a_volume_that_is_being_made_tolerates_nothing() {
    let image = Image::new(Profile::Raid1, 2, DATA_BYTES);
    let backends: Vec<_> = image
        .devices
        .iter()
        .map(|bytes| {
            let memory = Arc::new(MemoryBackend::new("memory", vec![0; bytes.len()]));
            FaultyBackend::new(memory as Arc<dyn Backend>, 1)
        })
        .collect();
    let given = backends.iter().zip(items(&image)).map(|(backend, item)| {
        let backend = Arc::clone(backend) as Arc<dyn Backend>;
        (Device::with_backend(backend, Engine::Inline), item)
    });
    let superblock = (*image.open(&[]).superblock()).clone();
    let volume = Volume::create(given.collect(), superblock).unwrap();
    volume.add_chunk(Logical::new(CHUNK_AT), image.chunk()).unwrap();
    backends[1].inject(Fault::FailWritesFrom(0));
    let error = volume.write(&[extent(0, &[1; 4096])]).unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
    assert!(volume.stopped().is_some());
}

/// Only a primary superblock names a log. A torn write of the primary must leave copies of the new
/// state: otherwise they lead back to the state before the log.
#[test]
fn copies_are_written_before_a_primary_that_names_a_log() {
    for writes in 0.. {
        let lab = Lab::with_room_for_copies(Profile::Single, 1);
        lab.volume.write_log_root(Logical::new(CHUNK_AT), 0).unwrap();
        let backend = &lab.backends[0];
        backend.inject(Fault::FailWritesFrom(backend.request_counts().1 + writes));
        let generation = lab.volume.superblock().generation.get() + 1;
        let is_whole = commit(&lab, generation).is_ok();
        let bytes = lab.memories[0].snapshot();
        let is_new = |at: usize| {
            let found = Superblock::check(&bytes[at..at + 4096], Physical::new(at as u64));
            found.is_ok_and(|found| found.generation.get() == generation)
        };
        let (primary, copy) = (is_new(65536), is_new(superblock_offset(1)));
        assert!(copy || !primary, "after {writes} writes");
        if is_whole {
            assert!(primary && writes == 2, "{writes} writes");
            return;
        }
    }
}
