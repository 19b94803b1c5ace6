//! Tests of every profile, written through the library and read back. The tests compare with a byte
//! vector and with the stripes of an independent writer, and read with devices missing.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use buttress_format::block_group::Profile;
use buttress_format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use buttress_format::{ByteCount, ErrorKind, Generation, Logical};
use buttress_lab::Fault;
use buttress_volume::{Error, WriteRefusal};
use proptest::prelude::*;
use support::lab::{DATA_BYTES, Lab, extent, items, read_all, subsets};
use support::{CHUNK_AT, Image, Super, UNIT, noise, put};

const SHAPES: [(Profile, usize); 14] = [
    (Profile::Single, 1),
    (Profile::Dup, 2),
    (Profile::Raid1, 2),
    (Profile::Raid1C3, 3),
    (Profile::Raid1C4, 4),
    (Profile::Raid0, 1),
    (Profile::Raid0, 3),
    (Profile::Raid10, 2),
    (Profile::Raid10, 6),
    (Profile::Raid5, 2),
    (Profile::Raid5, 4),
    (Profile::Raid6, 3),
    (Profile::Raid6, 4),
    (Profile::Raid6, 6),
];
#[test]
fn what_is_written_at_once_lies_as_an_independent_writer_would_put_it() {
    for (profile, stripes) in SHAPES {
        let lab = Lab::new(profile, stripes);
        let data = noise(41, DATA_BYTES);
        lab.volume.write(&[extent(0, &data)]).unwrap();
        lab.require_stripes(&data);
    }
}

#[test]
fn whole_rows_are_written_without_a_read() {
    for (profile, stripes) in [(Profile::Raid5, 4), (Profile::Raid6, 6)] {
        let lab = Lab::new(profile, stripes);
        let row = (stripes - usize::from(profile.parity_stripes())) * UNIT;
        let before: u64 = lab
            .backends
            .iter()
            .map(|backend| backend.request_counts().0)
            .sum();
        lab.volume
            .write(&[extent(row, &noise(1, row)), extent(0, &noise(2, row))])
            .unwrap();
        let after: u64 = lab
            .backends
            .iter()
            .map(|backend| backend.request_counts().0)
            .sum();
        assert_eq!(before, after, "{profile:?}");
        // The row's units on each device are adjacent, so each device receives one request.
        for backend in &lab.backends {
            assert_eq!(
                backend.request_counts().1,
                1 + 1,
                "{profile:?}: data and parity of two rows, in parts"
            );
        }
    }
}

/// Generates writes of a few extents each, with aligned and unaligned ranges.
fn batches() -> impl Strategy<Value = Vec<Vec<(usize, usize, u64)>>> {
    let extent = (0..DATA_BYTES, 1..3 * UNIT, any::<u64>());
    proptest::collection::vec(proptest::collection::vec(extent, 1..4), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn random_writes_read_back_whichever_devices_are_missing_then(
        shape in proptest::sample::select(SHAPES.to_vec()),
        batches in batches(),
        sectors in any::<bool>(),
    ) {
        let (profile, stripes) = shape;
        let lab = Lab::new(profile, stripes);
        let mut model = noise(3, DATA_BYTES);
        lab.volume.write(&[extent(0, &model)]).unwrap();
        for batch in batches {
            let mut taken: Vec<std::ops::Range<usize>> = Vec::new();
            let mut writes = Vec::new();
            for (at, length, seed) in batch {
                let at = if sectors { at / 4096 * 4096 } else { at };
                let length = if sectors { length.next_multiple_of(4096) } else { length };
                let range = at..(at + length).min(DATA_BYTES);
                if range.is_empty() || taken.iter().any(|other| other.start < range.end && range.start < other.end) {
                    continue;
                }
                let bytes = noise(seed, range.len());
                model[range.clone()].copy_from_slice(&bytes);
                writes.push(extent(range.start, &bytes));
                taken.push(range);
            }
            lab.volume.write(&writes).unwrap();
        }
        prop_assert!(read_all(&lab.volume) == model);
        let image = lab.snapshot();
        for missing in subsets(image.devices.len(), usize::from(profile.tolerated_failures())) {
            prop_assert!(read_all(&image.open(&missing)) == model, "{:?} without {:?}", profile, missing);
        }
        lab.require_stripes(&model);
    }
}

#[test]
fn degraded_writes_read_back_after_further_losses() {
    for (profile, stripes) in SHAPES {
        let tolerated = usize::from(profile.tolerated_failures());
        for missing in subsets(stripes.min(8), tolerated) {
            if missing.is_empty() || profile == Profile::Dup {
                continue;
            }
            let lab = Lab::without(profile, stripes, &missing);
            let mut model = lab.image.data.clone();
            for (at, length) in [
                (0, DATA_BYTES / 2),
                (4096, 8192),
                (3 * UNIT - 4096, 3 * UNIT),
                (5 * UNIT, 4096),
            ] {
                let bytes = noise(at as u64, length);
                model[at..at + length].copy_from_slice(&bytes);
                lab.volume.write(&[extent(at, &bytes)]).unwrap();
            }
            lab.volume.flush().unwrap();
            let image = lab.snapshot();
            for more in subsets(image.devices.len(), tolerated) {
                if !missing.iter().all(|device| more.contains(device)) {
                    continue;
                }
                assert!(
                    read_all(&image.open(&more)) == model,
                    "{profile:?}: written without {missing:?}, read without {more:?}"
                );
            }
        }
    }
}

#[test]
fn one_loss_too_many_is_refused_and_nothing_is_written() {
    for (profile, stripes) in [
        (Profile::Raid1, 2),
        (Profile::Raid5, 3),
        (Profile::Raid6, 4),
        (Profile::Raid0, 3),
    ] {
        let missing: Vec<usize> = (0..=usize::from(profile.tolerated_failures()))
            .map(|index| index + stripes - 1 - usize::from(profile.tolerated_failures()))
            .collect();
        let missing = if profile == Profile::Raid1 {
            vec![1]
        } else {
            missing
        };
        let lab = Lab::without(profile, stripes, &missing);
        if profile == Profile::Raid1 {
            // This write needs only one of the two devices.
            lab.volume.write(&[extent(0, &[1; 4096])]).unwrap();
            continue;
        }
        let before = lab.snapshot().devices;
        let error = lab.volume.write(&[extent(0, &noise(5, DATA_BYTES))]).unwrap_err();
        assert!(
            matches!(error, Error::Write(WriteRefusal::OutOfReach { .. })),
            "{error}"
        );
        assert!(lab.snapshot().devices == before);
        assert!(lab.volume.stopped().is_none(), "nothing is in doubt");
    }
}

#[test]
fn parts_of_one_row_that_several_threads_write_are_all_there() {
    for (profile, stripes) in [(Profile::Raid5, 4), (Profile::Raid6, 5)] {
        let lab = Lab::new(profile, stripes);
        lab.volume.write(&[extent(0, &noise(3, DATA_BYTES))]).unwrap();
        let model = noise(77, DATA_BYTES);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (lab, model) = (&lab, &model);
                scope.spawn(move || {
                    for block in (thread..DATA_BYTES / 4096).step_by(4) {
                        let at = block * 4096;
                        lab.volume.write(&[extent(at, &model[at..at + 4096])]).unwrap();
                    }
                });
            }
        });
        lab.require_stripes(&model);
    }
}

#[test]
fn a_failed_write_or_flush_stops_writing_for_good_and_says_why() {
    for flush in [false, true] {
        let lab = Lab::new(Profile::Raid0, 3);
        if flush {
            lab.backends[1].inject(Fault::FailFlushNumber(0));
            lab.volume.write(&[extent(0, &vec![7; UNIT * 3])]).unwrap();
            let error = lab.volume.flush().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
        } else {
            lab.backends[1].inject(Fault::FailWriteNumber(0));
            let error = lab.volume.write(&[extent(0, &vec![7; UNIT * 3])]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
        }
        // The device works again, but its lost writes stay lost.
        lab.backends[1].heal();
        let refused = [
            lab.volume.write(&[extent(0, &[8; 4096])]).unwrap_err(),
            lab.volume.flush().unwrap_err(),
            lab.volume
                .write_superblocks(&lab.volume.superblock(), &items(&lab.image))
                .unwrap_err(),
        ];
        for error in refused {
            assert!(
                matches!(error, Error::Write(WriteRefusal::Stopped { .. })),
                "{error}"
            );
            let cause = lab.volume.stopped().unwrap();
            assert!(error.to_string().contains(&*cause), "{error}");
        }
    }
}

#[test]
fn superblocks_go_to_all_devices_and_open_there() {
    let lab = Lab::with_room_for_copies(Profile::Raid1, 2);
    let mut superblock = (*lab.volume.superblock()).clone();
    superblock.generation = Generation::new(11);
    let mut items = items(&lab.image);
    items[1].bytes_used = ByteCount::new(4 << 20);
    lab.volume.write_superblocks(&superblock, &items).unwrap();
    assert_eq!(lab.volume.superblock().generation.get(), 11);
    assert_eq!(lab.volume.devices()[1].item(), Some(items[1]));
    for (index, memory) in lab.memories.iter().enumerate() {
        let bytes = memory.snapshot();
        let mut copies = 0;
        for at in SUPERBLOCK_OFFSETS {
            let start = usize::try_from(at.get()).unwrap();
            let Some(copy) = bytes.get(start..start + 4096) else {
                continue;
            };
            let read = Superblock::check(copy, at).unwrap();
            assert_eq!((read.generation.get(), read.device_item), (11, items[index]));
            copies += 1;
        }
        assert_eq!(copies, 2, "the primary and a copy");
    }
    // A write of superblocks refuses a superblock that could not open the volume.
    superblock.root = Logical::new(1);
    let error = lab.volume.write_superblocks(&superblock, &items).unwrap_err();
    assert!(
        matches!(error, Error::Write(WriteRefusal::Superblock(_))),
        "{error}"
    );
    assert_eq!(lab.volume.superblock().root, Logical::new(30 << 20));
}

#[test]
fn a_device_that_missed_commits_is_left_alone() {
    let mut image = Image::new(Profile::Raid1, 2, DATA_BYTES);
    let behind = Super {
        generation: 9,
        ..Image::superblock(2, 2)
    };
    put(&mut image.devices[1], 65536, &behind.bytes(65536));
    let lab = Lab::of(image, &[]);
    let before = lab.memories[1].snapshot();
    lab.volume.write(&[extent(0, &[1; 4096])]).unwrap();
    let mut superblock = (*lab.volume.superblock()).clone();
    superblock.generation = Generation::new(11);
    lab.volume
        .write_superblocks(&superblock, &items(&lab.image))
        .unwrap();
    assert!(lab.memories[1].snapshot() == before, "it was changed");
}

#[test]
fn copies_are_written_after_the_primaries_are_durable() {
    let lab = Lab::with_room_for_copies(Profile::Raid0, 2);
    let mut superblock = (*lab.volume.superblock()).clone();
    superblock.generation = Generation::new(11);
    // The first flush fails on one device, so no copy may have been written.
    lab.backends[0].inject(Fault::FailFlushNumber(0));
    lab.volume
        .write_superblocks(&superblock, &items(&lab.image))
        .unwrap_err();
    for backend in &lab.backends {
        assert_eq!(backend.request_counts().1, 1, "primaries only");
    }
    assert_eq!(lab.volume.superblock().generation.get(), 10);
}

#[test]
fn write_outside_the_chunks_is_refused() {
    let lab = Lab::new(Profile::Raid1, 2);
    let past = lab
        .volume
        .write(&[extent(DATA_BYTES - 4096, &[1; 8192])])
        .unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Corrupt);
    let map = lab.volume.chunk_map();
    lab.volume.remove_chunk(Logical::new(CHUNK_AT)).unwrap();
    assert!(lab.volume.write(&[extent(0, &[1; 4096])]).is_err());
    assert!(lab.volume.remove_chunk(Logical::new(CHUNK_AT)).is_err());
    assert!(
        map.find(Logical::new(CHUNK_AT)).is_some(),
        "a reader keeps its map"
    );
    lab.volume
        .add_chunk(Logical::new(CHUNK_AT), lab.image.chunk())
        .unwrap();
    lab.volume.write(&[extent(0, &[1; 4096])]).unwrap();
}

#[test]
fn discards_reach_all_copies_and_leave_the_rest() {
    for (profile, stripes) in SHAPES {
        let lab = Lab::new(profile, stripes);
        let mut model = noise(3, DATA_BYTES);
        lab.volume.write(&[extent(0, &model)]).unwrap();
        let (at, length) = (UNIT + 4096, 6 * UNIT);
        let logical = Logical::new(CHUNK_AT + at as u64);
        lab.volume.discard(logical, ByteCount::of(length)).unwrap();
        let found = read_all(&lab.volume);
        // Memory devices of this test fill discarded bytes with a pattern. Profiles with parity
        // discard whole rows only.
        let changed: Vec<usize> = (0..DATA_BYTES)
            .filter(|byte| found[*byte] != model[*byte])
            .collect();
        assert!(
            changed.iter().all(|byte| (at..at + length).contains(byte)),
            "{profile:?}"
        );
        if profile.parity_stripes() == 0 {
            model[at..at + length].fill(0xd5);
            assert!(found == model, "{profile:?}");
            let image = lab.snapshot();
            for missing in subsets(image.devices.len(), usize::from(profile.tolerated_failures())) {
                assert!(read_all(&image.open(&missing)) == model, "{profile:?}");
            }
        } else {
            let row = (stripes - usize::from(profile.parity_stripes())) * UNIT;
            let first = at.div_ceil(row) * row;
            let end = (at + length) / row * row;
            assert_eq!(changed.is_empty(), first >= end, "{profile:?} on {stripes}");
        }
    }
}
