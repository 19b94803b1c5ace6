//! Tests of the RAID stripe tree: data at the places of its items, and missing or wrong items.
//!
//! No available tool makes volumes with a stripe tree, so these tests make them by hand
//! ([`crate::testing::striped`]).

use crate::content::Content;
use crate::filesystem::Filesystem;
use crate::notice::Notice;
use crate::testing::at;
use crate::testing::striped::{DATA_LOGICAL, DEVICE_BYTES, Entry, FILE, Shape, Striped, UNIT, opening};
use buttress_format::{ByteCount, ErrorKind, FileOffset, Logical, TreeId};
use std::io::Read;

const SECTOR: usize = 4096;
const SECTORS: usize = 100;

/// The numbers of sectors of the items. With striped profiles, items also end at the units.
const RUNS: [u64; 6] = [1, 7, 30, 2, 16, 5];

fn content() -> Vec<u8> {
    (0..SECTORS * SECTOR)
        .map(|at| ((at / SECTOR * 31 + at % 239) % 256).to_le_bytes()[0])
        .collect()
}

fn striped(shape: Shape) -> Striped {
    Striped::new(shape, content(), &RUNS)
}

fn open(striped: Striped) -> Filesystem {
    opening(striped.finish()).open().unwrap()
}

fn read_all(filesystem: &Filesystem) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut reader = filesystem.open_file(at(FILE)).unwrap().reader();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns the errors and the `(offset, length)` of the damage in the test file. Bytes outside the
/// damage must equal the written bytes.
fn damage(filesystem: &Filesystem) -> Vec<(u64, u64, crate::Error)> {
    let content = content();
    let mut reader = filesystem.open_file(at(FILE)).unwrap().reader();
    let mut damaged = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        let start = usize::try_from(chunk.offset.get()).unwrap();
        match chunk.content {
            Content::Data(bytes) => assert!(content[start..start + bytes.len()] == bytes[..], "at {start}"),
            Content::Hole => panic!("a hole at {start}"),
            Content::Damaged(error) => damaged.push((chunk.offset.get(), chunk.length.get(), error)),
        }
    }
    damaged
}

/// Returns the item that covers a byte of the file.
fn entry_at(striped: &Striped, offset: u64) -> Entry {
    let covers = |entry: &&Entry| (entry.offset..entry.offset + entry.length).contains(&offset);
    striped.entries.iter().find(covers).unwrap().clone()
}

#[test]
fn data_is_read_from_where_the_items_say() {
    let content = content();
    // Items that describe one sector each fill several leaves of the stripe tree. A single item is
    // larger than most reads.
    for runs in [&RUNS[..], &[1], &[SECTORS as u64]] {
        for shape in Shape::ALL {
            let filesystem = open(Striped::new(shape, content.clone(), runs));
            assert!(read_all(&filesystem) == content, "{shape:?} {runs:?}");
            let file = filesystem.open_file(at(FILE)).unwrap();
            for (offset, length) in [
                (0, 1),
                (5000, 100),
                (3 * SECTOR + 17, 9 * SECTOR),
                (65_535, 2),
                (20 * SECTOR, SECTOR),
                (SECTORS * SECTOR - 3, 3),
            ] {
                let mut buffer = vec![0; length];
                let read = file.read_at(FileOffset::new(offset as u64), &mut buffer).unwrap();
                assert!(
                    read == length && buffer == content[offset..offset + length],
                    "{shape:?} {runs:?} {offset}"
                );
            }
            assert!(filesystem.volume().faults().is_empty(), "{shape:?}");
            assert_eq!(filesystem.notices(), [], "{shape:?}");
        }
    }
}

#[test]
fn a_missing_item_costs_what_it_mapped_and_its_address_is_named() {
    for shape in Shape::ALL {
        for offset in [0, 20 * SECTOR as u64, (SECTORS as u64 - 1) * SECTOR as u64] {
            let mut striped = striped(shape);
            let entry = entry_at(&striped, offset);
            striped
                .items()
                .remove(&Striped::key_of(entry.offset, entry.length));
            let filesystem = open(striped);
            let damaged = damage(&filesystem);
            let [(start, length, error)] = &damaged[..] else {
                panic!("{shape:?}: {damaged:?}")
            };
            assert_eq!((*start, *length), (entry.offset, entry.length), "{shape:?}");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let named = format!(
                "no RAID stripe extent for logical {}",
                DATA_LOGICAL + entry.offset
            );
            assert!(error.to_string().contains(&named), "{error}");
            let whole = ByteCount::of(SECTORS * SECTOR);
            assert!(
                filesystem
                    .volume()
                    .map(Logical::new(DATA_LOGICAL), whole)
                    .is_err()
            );
        }
    }
}

#[test]
fn stripe_beyond_the_end_of_its_device_is_skipped() {
    for shape in Shape::ALL {
        let mut striped = striped(shape);
        let entry = entry_at(&striped, 20 * SECTOR as u64);
        // The change affects every copy except the last; RAID0 has no other copy.
        let mut places: Vec<(u64, u64)> = entry
            .copies
            .iter()
            .map(|(stripe, physical)| (shape.device_of(*stripe), *physical))
            .collect();
        let spoiled = places.len().max(2) - 1;
        places
            .iter_mut()
            .take(spoiled)
            .for_each(|place| place.1 = DEVICE_BYTES);
        striped.list(entry.offset, entry.length, &places);
        let filesystem = open(striped);
        let damaged = damage(&filesystem);
        if shape == Shape::RAID0 {
            let [(start, length, error)] = &damaged[..] else {
                panic!("{damaged:?}")
            };
            assert_eq!((*start, *length), (entry.offset, entry.length));
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            let words = format!("past the device's end at {DEVICE_BYTES}");
            assert!(error.to_string().contains(&words), "{error}");
        } else {
            assert!(damaged.is_empty(), "{shape:?}: {damaged:?}");
        }
        for fault in filesystem.volume().faults().faults {
            assert!(fault.physical.get() >= DEVICE_BYTES, "{fault}");
        }
        assert!(
            shape.is_striped() || shape.devices() > 1 || !filesystem.volume().faults().is_empty(),
            "{shape:?}"
        );
    }
}

#[test]
fn damaged_copy_is_replaced_and_the_fault_reported() {
    let offset = 20 * SECTOR as u64;
    for shape in Shape::MIRRORED {
        let entry = entry_at(&striped(shape), offset);
        let mut reported = 0;
        for (stripe, physical) in &entry.copies {
            let mut striped = striped(shape);
            let physical = physical + (offset - entry.offset);
            let device = shape.device_of(*stripe);
            striped.devices[usize::try_from(device - 1).unwrap()][usize::try_from(physical).unwrap() + 9] ^=
                1;
            let filesystem = open(striped);
            assert!(read_all(&filesystem) == content(), "{shape:?} stripe {stripe}");
            for fault in filesystem.volume().faults().faults {
                assert_eq!(
                    (fault.device.get(), fault.physical.get(), fault.logical.get()),
                    (device, physical, DATA_LOGICAL + offset),
                    "{fault}"
                );
                reported += 1;
            }
        }
        // Only the copy that is tried first can be found bad.
        assert_eq!(reported, 1, "{shape:?}");

        let mut striped = striped(shape);
        for (stripe, physical) in &entry.copies {
            let device = usize::try_from(shape.device_of(*stripe) - 1).unwrap();
            striped.devices[device][usize::try_from(physical + (offset - entry.offset)).unwrap()] ^= 1;
        }
        let damaged = damage(&open(striped));
        assert!(
            matches!(damaged[..], [(start, 4096, _)] if start == offset),
            "{shape:?}: {damaged:?}"
        );
    }
}

#[test]
fn missing_devices_are_made_up_for_when_opened_degraded() {
    for (shape, missing) in [
        (Shape::RAID1, &[2][..]),
        (Shape::RAID1C3, &[2, 3]),
        (Shape::RAID1C4, &[2, 3, 4]),
        (Shape::RAID10, &[2, 3]),
        (Shape::RAID0, &[2]),
    ] {
        let made = striped(shape);
        let lost: Vec<Entry> = made.entries.clone();
        let present: Vec<Vec<u8>> = (1..)
            .zip(made.finish())
            .filter(|(id, _)| !missing.contains(id))
            .map(|(_, device)| device)
            .collect();
        let error = opening(present.clone()).open().unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        let filesystem = opening(present).degraded(true).open().unwrap();
        let damaged = damage(&filesystem);
        if shape != Shape::RAID0 {
            assert!(damaged.is_empty(), "{shape:?}: {damaged:?}");
        } else {
            assert!(!damaged.is_empty());
        }
        for (start, _, error) in &damaged {
            assert_eq!(start / UNIT % shape.stripes, 1);
            assert!(error.to_string().contains("device missing"), "{error}");
        }
        // An unavailable copy is still at the place in the stripe tree.
        for entry in lost {
            let logical = Logical::new(DATA_LOGICAL + entry.offset);
            let found = filesystem
                .volume()
                .map(logical, ByteCount::new(entry.length))
                .unwrap();
            let found: Vec<(u64, u64, bool)> = found
                .iter()
                .map(|place| (place.device.get(), place.physical.get(), place.missing))
                .collect();
            let expected: Vec<(u64, u64, bool)> = entry
                .copies
                .iter()
                .map(|(stripe, physical)| (shape.device_of(*stripe), *physical))
                .map(|(device, physical)| (device, physical, missing.contains(&device)))
                .collect();
            assert_eq!(found, expected, "{shape:?}");
        }
    }
}

#[test]
fn an_item_over_several_units_serves_its_first_unit_only() {
    for shape in [Shape::RAID0, Shape::RAID10] {
        let mut striped = Striped::new(shape, content(), &[16]);
        let all: Vec<(u64, u64)> = striped.entries[..4]
            .iter()
            .flat_map(|entry| entry.copies.clone())
            .map(|(stripe, physical)| (shape.device_of(stripe), physical))
            .collect();
        for entry in 0..4 {
            striped.items().remove(&Striped::key_of(entry * UNIT, UNIT));
        }
        striped.list(0, 4 * UNIT, &all);
        let damaged = damage(&open(striped));
        let lost: u64 = damaged.iter().map(|(_, length, _)| length).sum();
        assert_eq!((damaged[0].0, lost), (UNIT, 3 * UNIT), "{shape:?}: {damaged:?}");
        let named = format!("position of logical {} is unknown", DATA_LOGICAL + UNIT);
        assert!(damaged[0].2.to_string().contains(&named), "{}", damaged[0].2);
        assert_eq!(damaged[0].2.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn an_item_without_a_place_on_the_chunks_device_is_named() {
    for shape in [Shape::RAID0, Shape::RAID1] {
        let mut striped = striped(shape);
        let entry = entry_at(&striped, 0);
        striped.list(entry.offset, entry.length, &[(77, FAR)]);
        let damaged = damage(&open(striped));
        assert!(
            matches!(&damaged[..], [(0, length, error)]
                if *length == entry.length && error.to_string().contains("has no stripe on device")),
            "{shape:?}: {damaged:?}"
        );
    }
}

/// The test offset is located in every device's stripe.
const FAR: u64 = 11 << 20;

#[test]
fn a_stripe_tree_that_cannot_be_read_costs_only_data() {
    let mut without = striped(Shape::RAID1);
    without.world.trees.remove(&TreeId::RAID_STRIPE.get());
    // The items of the first kernels with the stripe tree feature have eight bytes before the
    // places.
    let mut early = striped(Shape::RAID1);
    for item in early.items().values_mut() {
        item.splice(0..0, [0; 8]);
    }
    for (made, words) in [
        (without, "no RAID stripe extent"),
        (early, "RAID stripe tree cannot be read"),
    ] {
        let filesystem = open(made);
        let notices = filesystem.notices();
        assert!(
            matches!(
                &notices[..],
                [Notice::TreeUnreadable {
                    tree: TreeId::RAID_STRIPE,
                    ..
                }]
            ),
            "{notices:?}"
        );
        assert!(filesystem.metadata(at(FILE)).is_ok());
        let damaged = damage(&filesystem);
        let lost: u64 = damaged.iter().map(|(_, length, _)| length).sum();
        assert_eq!(lost, (SECTORS * SECTOR) as u64);
        assert!(damaged[0].2.to_string().contains(words), "{}", damaged[0].2);
    }
}
