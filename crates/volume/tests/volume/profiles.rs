//! Tests of every profile, written in memory by an independent writer. The tests read each volume
//! with every allowed set of devices missing, and with noise in place of some copies.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::single_range_in_vec_init,
    clippy::unreachable,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use buttress_format::block_group::Profile;
use buttress_format::{ByteCount, DeviceId, ErrorKind, Logical};
use buttress_volume::{
    Error, ExtentRead, FaultReason, MappingContent, Notice, Rejection, StripeResolver, Volume,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use support::{CHUNK_AT, Image, STRIPE_TREE, Super, UNIT, put};

/// Profiles and stripes. The test data fills several rows, and the last row partially.
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
const DATA_BYTES: usize = 9 * UNIT + 8192;
const SECTOR: usize = 4096;

/// Returns the test image of a profile. Each image is written once and copied.
fn image(profile: Profile, stripes: usize) -> Image {
    static MADE: Mutex<BTreeMap<String, Image>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let new = || Image::new(profile, stripes, DATA_BYTES);
    made.entry(format!("{profile:?} {stripes}"))
        .or_insert_with(new)
        .clone()
}

fn read(logical: usize, length: usize) -> ExtentRead {
    ExtentRead {
        logical: Logical::new(CHUNK_AT + logical as u64),
        length,
    }
}

/// Collects the sectors of `data` that differ from the data written at `start`.
fn compare(image: &Image, start: usize, data: &[u8], bad: &mut Vec<Range<usize>>) {
    for (index, sector) in data.chunks(SECTOR).enumerate() {
        let at = index * SECTOR;
        if image.data[start + at..start + at + sector.len()] != *sector {
            bad.push(at..at + sector.len());
        }
    }
}

/// Reads everything as data, in pieces that cross units, and as blocks of 16 KiB that must verify.
fn read_all(image: &Image, volume: &Volume) {
    let step = 3 * UNIT + SECTOR;
    for start in (0..DATA_BYTES).step_by(step) {
        let length = step.min(DATA_BYTES - start);
        let verify = |data: &[u8], bad: &mut Vec<Range<usize>>| compare(image, start, data, bad);
        let (data, lost) = volume.read_data(read(start, length), &verify).unwrap();
        assert!(
            lost.is_empty(),
            "{:?} {start}: {:?}",
            image.profile,
            lost[0].error.to_string()
        );
        assert!(*data == image.data[start..start + length]);
    }
    let reads: Vec<_> = (0..DATA_BYTES / 16384)
        .map(|block| read(block * 16384, 16384))
        .collect();
    for (pending, wanted) in volume
        .start_reads(&reads)
        .into_iter()
        .zip(image.data.chunks(16384))
    {
        let mut verify = |bytes: bytes::Bytes| {
            if bytes == wanted {
                Ok(())
            } else {
                Err(Rejection::new("differs"))
            }
        };
        pending.wait_verified(volume, &mut verify).unwrap();
    }
}

/// Returns all sets of at most `size` numbers below `count`.
fn subsets(count: usize, size: usize) -> Vec<Vec<usize>> {
    (0u32..1 << count)
        .map(|bits| {
            (0..count)
                .filter(|index| bits >> index & 1 == 1)
                .collect::<Vec<_>>()
        })
        .filter(|set| set.len() <= size)
        .collect()
}

#[test]
fn everything_reads_with_every_allowed_set_of_devices_missing() {
    for (profile, stripes) in SHAPES {
        let image = image(profile, stripes);
        for missing in subsets(image.devices.len(), usize::from(profile.tolerated_failures())) {
            let volume = image.open(&missing);
            read_all(&image, &volume);
            assert!(volume.faults().is_empty(), "{profile:?} without {missing:?}");
            let said = volume
                .notices()
                .iter()
                .filter(|notice| matches!(notice, Notice::MissingDevice(_)))
                .count();
            // The system chunk of the test superblock is single, on device 1.
            assert_eq!(said, missing.len());
        }
    }
}

#[test]
fn noise_in_as_many_stripes_as_the_profile_tolerates_is_passed_over_and_reported() {
    for (profile, stripes) in SHAPES {
        let tolerated = if profile == Profile::Dup {
            1
        } else {
            usize::from(profile.tolerated_failures())
        };
        for spoiled in subsets(stripes, tolerated) {
            let mut image = image(profile, stripes);
            spoiled.iter().for_each(|stripe| image.spoil(*stripe));
            let volume = image.open(&[]);
            read_all(&image, &volume);
            let faults = volume.faults();
            for fault in &faults.faults {
                assert!(fault.reason.is_corruption());
                let device = usize::try_from(fault.device.get()).unwrap() - 1;
                let blamed = spoiled.iter().any(|stripe| image.device_of(*stripe) == device);
                assert!(blamed, "{profile:?} with noise in {spoiled:?}: {fault}");
                let at = usize::try_from(fault.physical.get()).unwrap();
                let inside = spoiled
                    .iter()
                    .any(|stripe| image.stripe_range(*stripe).contains(&at));
                assert!(inside, "{profile:?} with noise in {spoiled:?}: {fault}");
            }
            // A mirror may never read the bad copy, and parity is only read for rebuilds. Data with
            // one copy is always read.
            let mappings = volume
                .map(Logical::new(CHUNK_AT), ByteCount::of(DATA_BYTES))
                .unwrap();
            let touched = mappings.iter().any(|mapping| {
                let device = usize::try_from(mapping.device.get()).unwrap() - 1;
                matches!(mapping.content, MappingContent::Data { .. }) && spoiled.contains(&device)
            });
            if profile.parity_stripes() > 0 && touched {
                assert!(faults.total() > 0, "{profile:?} {spoiled:?}");
            }
        }
    }
}

#[test]
fn two_failures_are_read_around_if_the_profile_tolerates_them() {
    for (profile, stripes) in [
        (Profile::Raid1C3, 3),
        (Profile::Raid1C4, 4),
        (Profile::Raid6, 4),
        (Profile::Raid6, 5),
    ] {
        for missing in 0..stripes {
            for spoiled in (0..stripes).filter(|stripe| *stripe != missing) {
                let mut image = image(profile, stripes);
                image.spoil(spoiled);
                read_all(&image, &image.open(&[missing]));
            }
        }
    }
}

#[test]
fn sectors_are_taken_from_wherever_they_are_good() {
    let mut image = image(Profile::Raid1, 2);
    // On one device odd sectors are bad, on the other even sectors.
    for stripe in 0..2 {
        for sector in (0..DATA_BYTES / SECTOR).filter(|sector| sector % 2 == stripe) {
            let at = image.stripe_range(stripe).start + sector * SECTOR;
            image.devices[stripe][at] ^= 1;
        }
    }
    let volume = image.open(&[]);
    let verify = |data: &[u8], bad: &mut Vec<Range<usize>>| compare(&image, 0, data, bad);
    let (data, lost) = volume.read_data(read(0, DATA_BYTES), &verify).unwrap();
    assert!(lost.is_empty());
    assert!(*data == *image.data);
    assert_eq!(
        volume.faults().total() as usize,
        (DATA_BYTES / SECTOR).div_ceil(2)
    );
}

#[test]
fn bytes_without_a_good_copy_are_listed_as_lost() {
    let mut image = image(Profile::Raid1, 2);
    for stripe in 0..2 {
        let at = image.stripe_range(stripe).start;
        image.devices[stripe][at + 2 * SECTOR] ^= 1;
    }
    let volume = image.open(&[]);
    let verify = |data: &[u8], bad: &mut Vec<Range<usize>>| compare(&image, 0, data, bad);
    let (data, lost) = volume.read_data(read(0, 8 * SECTOR), &verify).unwrap();
    assert_eq!(
        lost.iter().map(|lost| lost.range.clone()).collect::<Vec<_>>(),
        [2 * SECTOR..3 * SECTOR]
    );
    assert_eq!(lost[0].error.kind(), ErrorKind::Corrupt);
    assert!(data[3 * SECTOR..] == image.data[3 * SECTOR..8 * SECTOR]);
    let mut verify = |_: bytes::Bytes| -> Result<(), _> { Err(Rejection::new("never good enough")) };
    let error = volume.read_verified(read(0, 16384), &mut verify).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.to_string().matches("never good enough").count(),
        2,
        "{error}"
    );
}

#[test]
fn truncated_images_lose_only_bytes_beyond_their_end() {
    let mut image = image(Profile::Single, 1);
    let cut = image.stripe_range(0).start + 5 * SECTOR + 100;
    image.devices[0].truncate(cut);
    let volume = image.open(&[]);
    assert!(
        volume
            .notices()
            .iter()
            .any(|notice| matches!(notice, Notice::DeviceCutShort { .. }))
    );
    assert!(!volume.may_be_written());
    let (data, lost) = volume.read_data(read(0, 8 * SECTOR), &|_, _| ()).unwrap();
    assert!(data[..5 * SECTOR] == image.data[..5 * SECTOR]);
    assert_eq!(
        lost.iter().map(|lost| lost.range.clone()).collect::<Vec<_>>(),
        [5 * SECTOR..8 * SECTOR]
    );
    let message = lost[0].error.to_string();
    assert!(message.contains(&cut.to_string()), "{message}");
    assert_eq!(lost[0].error.kind(), ErrorKind::Io);
    let error = volume
        .read_verified(read(4 * SECTOR, 16384), &mut |_| Ok(()))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[test]
fn each_copy_and_each_stripe_can_be_read_alone() {
    for (profile, stripes) in SHAPES {
        let image = image(profile, stripes);
        let volume = image.open(&[]);
        let copies = volume.copies(Logical::new(CHUNK_AT)).unwrap();
        for copy in 1..=copies {
            let data = volume.read_copy(read(SECTOR, 3 * UNIT), copy).unwrap();
            assert!(
                *data == image.data[SECTOR..SECTOR + 3 * UNIT],
                "{profile:?} copy {copy}"
            );
        }
        for copy in [0, copies + 1] {
            let error = volume.read_copy(read(0, SECTOR), copy).unwrap_err();
            assert!(matches!(error, Error::NoSuchCopy { .. }));
        }
        for stripe in 0..stripes {
            let range = image.stripe_range(stripe);
            let offset = buttress_volume::layout::StripeOffset::new(SECTOR as u64);
            let map = volume.chunk_map();
            let layout = *map.find(Logical::new(CHUNK_AT)).unwrap().layout();
            let length = layout.device_extent_bytes().to_usize().unwrap() - SECTOR;
            let bytes = volume
                .read_stripe(Logical::new(CHUNK_AT), stripe, offset, length)
                .unwrap();
            let start = range.start + SECTOR;
            assert!(*bytes == image.devices[image.device_of(stripe)][start..start + length]);
            assert!(
                volume
                    .read_stripe(Logical::new(CHUNK_AT), stripe, offset, length + 1)
                    .is_err()
            );
        }
    }
}

#[test]
fn mappings_point_to_the_bytes() {
    for (profile, stripes) in SHAPES {
        let image = image(profile, stripes);
        let volume = image.open(&[]);
        let mappings = volume
            .map(Logical::new(CHUNK_AT), ByteCount::of(DATA_BYTES))
            .unwrap();
        let mut covered = 0;
        for mapping in &mappings {
            let start = usize::try_from(mapping.logical.get() - CHUNK_AT).unwrap();
            let length = mapping.length.to_usize().unwrap();
            let at = usize::try_from(mapping.physical.get()).unwrap();
            let device = &image.devices[usize::try_from(mapping.device.get()).unwrap() - 1];
            if let MappingContent::Data { copy } = mapping.content {
                assert!(
                    device[at..at + length] == image.data[start..start + length],
                    "{profile:?} {mapping:?}"
                );
                covered += if copy == 1 { length } else { 0 };
                let found = volume.contents_at(mapping.device_uuid, mapping.physical);
                let offset = buttress_volume::layout::ChunkOffset::new(start as u64);
                let content = buttress_volume::layout::Content::Data(offset);
                assert!(
                    found.contains(&(Logical::new(CHUNK_AT), content)),
                    "{profile:?} {found:?}"
                );
            }
        }
        assert_eq!(covered, DATA_BYTES);
        let parities = mappings
            .iter()
            .filter(|mapping| !matches!(mapping.content, MappingContent::Data { .. }));
        assert_eq!(parities.count() > 0, profile.parity_stripes() > 0);
    }
}

#[test]
fn reads_outside_the_map_and_of_impossible_lengths_are_refused() {
    let image = image(Profile::Raid0, 3);
    let volume = image.open(&[]);
    let kind = |read: ExtentRead| volume.read_data(read, &|_, _| ()).unwrap_err().kind();
    assert_eq!(kind(read(DATA_BYTES, SECTOR)), ErrorKind::Corrupt);
    assert_eq!(kind(read(DATA_BYTES - SECTOR, 2 * SECTOR)), ErrorKind::Corrupt);
    assert_eq!(
        kind(ExtentRead {
            logical: Logical::MAX,
            length: SECTOR
        }),
        ErrorKind::Corrupt
    );
    assert_eq!(kind(read(0, 0)), ErrorKind::Caller);
    assert_eq!(kind(read(0, usize::MAX)), ErrorKind::Caller);
}

#[test]
fn too_many_missing_devices_are_reported_and_the_rest_reads() {
    let image = image(Profile::Raid0, 3);
    let volume = image.open(&[1]);
    assert!(
        volume
            .notices()
            .iter()
            .any(|notice| matches!(notice, Notice::ChunkBeyondTolerance { missing: 1, .. }))
    );
    assert!(!volume.may_be_written());
    let (data, lost) = volume.read_data(read(0, 3 * UNIT), &|_, _| ()).unwrap();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].range, UNIT..2 * UNIT);
    assert!(
        lost[0].error.to_string().contains("device missing"),
        "{}",
        lost[0].error
    );
    assert!(data[..UNIT] == image.data[..UNIT] && data[2 * UNIT..] == image.data[2 * UNIT..3 * UNIT]);
}

/// A stripe tree in which all data is moved by a fixed distance, in extents of 48 KiB.
#[derive(Debug)]
struct Moved {
    image_stripes: Vec<(DeviceId, u64)>,
    by: u64,
}

const MOVED_EXTENT: u64 = 48 << 10;

impl StripeResolver for Moved {
    fn resolve(&self, logical: Logical) -> Result<Option<buttress_volume::ResolvedStripes>, Error> {
        let offset = (logical.get() - CHUNK_AT) / MOVED_EXTENT * MOVED_EXTENT;
        let stripes = self
            .image_stripes
            .iter()
            .map(|(device, start)| buttress_volume::ResolvedStripe {
                device: *device,
                physical: buttress_format::Physical::new(start + offset + self.by),
            });
        Ok(Some(buttress_volume::ResolvedStripes {
            logical: Logical::new(CHUNK_AT + offset),
            length: ByteCount::new(MOVED_EXTENT),
            stripes: stripes.collect(),
        }))
    }
}

#[test]
fn stripe_tree_locates_mirrored_data() {
    for (profile, stripes) in [(Profile::Raid1, 2), (Profile::Raid1C3, 3), (Profile::Dup, 2)] {
        let mut image = image(profile, stripes);
        let by = 12288u64;
        let starts: Vec<_> = (0..stripes)
            .map(|stripe| {
                let range = image.stripe_range(stripe);
                let device = image.device_of(stripe);
                let moved = range.start + usize::try_from(by).unwrap();
                image.devices[device].copy_within(range.clone(), moved);
                (DeviceId::new(device as u64 + 1), range.start as u64)
            })
            .collect();
        // The copy that the read tries first has one bad sector. The stripe tree also locates the
        // other copies.
        let first = if profile == Profile::Dup {
            0
        } else {
            (CHUNK_AT >> 20) as usize % stripes
        };
        let at = image.stripe_range(first).start + usize::try_from(by).unwrap() + 2 * SECTOR;
        let device = image.device_of(first);
        image.devices[device][at] ^= 1;
        let devices = image.devices.len() as u64;
        for (id, device) in (1..).zip(&mut image.devices) {
            let base = Image::superblock(id, devices);
            let superblock = Super {
                incompat: base.incompat | STRIPE_TREE,
                ..base
            };
            put(device, 65536, &superblock.bytes(65536));
        }
        let volume = image.open(&[]);
        // Without a connected stripe tree, no address is mapped. The read loses its whole range as
        // one lost range.
        let (_, lost) = volume.read_data(read(0, 3 * SECTOR), &|_, _| ()).unwrap();
        assert!(
            matches!(&lost[..], [lost] if lost.range == (0..3 * SECTOR)
                && lost.error.to_string().contains("no RAID stripe extent")),
            "{lost:?}"
        );
        let verified = volume.read_verified(read(0, SECTOR), &mut |_| Ok(()));
        assert!(
            verified
                .unwrap_err()
                .to_string()
                .contains("no RAID stripe extent")
        );
        volume.set_stripe_resolver(std::sync::Arc::new(Moved {
            image_stripes: starts,
            by,
        }));
        read_all(&image, &volume);
        let faults = volume.faults();
        assert!(faults.total() > 0);
        for fault in faults.faults {
            let start = fault.physical.get();
            assert!(
                (start..start + fault.length.get()).contains(&(at as u64)),
                "{fault}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any read of any profile, with noise in one random stripe, returns the written bytes.
    #[test]
    fn any_read_gives_what_was_written(
        shape in prop::sample::select(SHAPES.to_vec()),
        start in 0..DATA_BYTES / SECTOR, sectors in 1usize..80, spoiled: prop::sample::Index,
    ) {
        let (profile, stripes) = shape;
        let mut image = image(profile, stripes);
        if profile == Profile::Dup || profile.tolerated_failures() > 0 {
            image.spoil(spoiled.index(stripes));
        }
        let start = start * SECTOR;
        let length = (sectors * SECTOR).min(DATA_BYTES - start);
        let volume = image.open(&[]);
        let verify = |data: &[u8], bad: &mut Vec<Range<usize>>| compare(&image, start, data, bad);
        let (data, lost) = volume.read_data(read(start, length), &verify).unwrap();
        prop_assert!(lost.is_empty());
        prop_assert!(*data == image.data[start..start + length]);
        let wanted = &image.data[start..start + length];
        let mut verify = |bytes: bytes::Bytes| if bytes == wanted { Ok(()) } else { Err(Rejection::new("differs")) };
        // The number of tried combinations of copies is limited, so only short runs must verify as
        // one block.
        if length <= UNIT {
            prop_assert!(volume.read_verified(read(start, length), &mut verify).is_ok());
        }
    }
}

#[test]
fn failing_reads_are_faults_of_their_device() {
    let mut image = image(Profile::Raid1, 2);
    // The second stripe's device ends in the middle. Reads beyond it fail, and the mirror provides
    // the bytes.
    let end = image.stripe_range(1).start + UNIT;
    image.devices[1].truncate(end);
    let volume = image.open(&[]);
    read_all(&image, &volume);
    for fault in volume.faults().faults {
        assert_eq!(fault.device, DeviceId::new(2));
        assert!(matches!(fault.reason, FaultReason::BeyondEnd { .. }), "{fault}");
    }
}
