//! Tests of the choice of superblock and devices when a volume is opened, and of refusals.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::unreachable,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use buttress_device::Device;
use buttress_format::block_group::Profile;
use buttress_format::{ByteCount, ErrorKind, Logical, Physical};
use buttress_volume::{Corruption, DevicesError, Error, Notice, OpenOptions, Volume};
use support::{CHUNK_AT, Image, Super, device_uuid, put};
use uuid::Uuid;

const SECOND_COPY: usize = 64 << 20;

/// Returns a device with space for two superblocks.
fn device(primary: &Super, copy: Option<&Super>) -> Vec<u8> {
    let mut image = vec![0; SECOND_COPY + 65536];
    put(&mut image, 65536, &primary.bytes(65536));
    if let Some(copy) = copy {
        put(&mut image, SECOND_COPY, &copy.bytes(SECOND_COPY as u64));
    }
    image
}

fn open(images: Vec<Vec<u8>>) -> Result<Volume, Error> {
    Volume::open(
        images.into_iter().map(Device::memory).collect(),
        OpenOptions::default(),
    )
}

fn refused(images: Vec<Vec<u8>>) -> Error {
    open(images).unwrap_err()
}

#[test]
fn a_valid_primary_is_used_even_if_a_copy_is_newer() {
    let primary = Super::new(1, 1);
    let newer = Super {
        generation: 99,
        ..primary.clone()
    };
    let volume = open(vec![device(&primary, Some(&newer))]).unwrap();
    assert_eq!(volume.superblock().generation.get(), 10);
    assert!(volume.notices().is_empty());
}

#[test]
fn bad_primary_is_replaced_by_its_copy_with_a_notice() {
    let primary = Super::new(1, 1);
    let copy = Super {
        generation: 9,
        ..primary.clone()
    };
    // The damages are a flipped bit, a wiped magic, and all zeros.
    for damage in [
        65536 + 0x100..65536 + 0x101,
        65536 + 0x40..65536 + 0x48,
        65536..65536 + 4096,
    ] {
        let mut image = device(&primary, Some(&copy));
        image[damage.clone()]
            .iter_mut()
            .for_each(|byte| *byte = if damage.len() == 1 { *byte ^ 1 } else { 0 });
        let volume = open(vec![image]).unwrap();
        assert_eq!(volume.superblock().generation.get(), 9);
        let [Notice::SuperblockCopyUsed { copy, generation, .. }] = &volume.notices()[..] else {
            panic!("{:?}", volume.notices());
        };
        assert_eq!((copy.get(), generation.get()), (SECOND_COPY as u64, 9));
    }
}

#[test]
fn superblock_copies_of_another_volume_are_not_used() {
    let primary = Super::new(1, 1);
    let other = Super {
        fsid: Uuid::from_u128(5),
        ..primary.clone()
    };
    let mut image = device(&primary, Some(&other));
    // Three superblocks would need 256 GiB. With two superblocks, a single foreign copy is used if
    // nothing contradicts it. The ids in the damaged primary match no copy, so they have no effect.
    image[65536 + 0x100] ^= 1;
    let volume = open(vec![image]).unwrap();
    assert_eq!(volume.superblock().fsid, Uuid::from_u128(5));
    assert_eq!(volume.notices().len(), 1);
}

#[test]
fn files_that_are_no_volume_are_refused_with_what_was_found() {
    let zip = b"PK\x03\x04".repeat(40_000);
    for image in [
        Vec::new(),
        vec![0; 100],
        vec![0; 65536 + 4095],
        zip,
        support::noise(3, 1 << 20),
    ] {
        let size = image.len().to_string();
        let error = refused(vec![image]);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let Error::Corrupt(corruption) = &error else {
            panic!("{error}")
        };
        assert!(matches!(**corruption, Corruption::NoSuperblock { .. }));
        assert!(error.to_string().contains(&size), "{error}");
    }
    assert!(matches!(refused(Vec::new()), Error::Devices(error) if *error == DevicesError::None));
}

#[test]
fn every_flipped_bit_of_a_lone_superblock_is_noticed() {
    let image = {
        let mut image = vec![0; 65536 + 4096];
        put(&mut image, 65536, &Super::new(1, 1).bytes(65536));
        image
    };
    // The field for the checksum is wider than the checksum itself.
    for position in (65536..65536 + 4).chain((65536 + 32..65536 + 4096).step_by(7)) {
        let mut damaged = image.clone();
        damaged[position] ^= 1 << (position % 8);
        assert!(open(vec![damaged]).is_err(), "{position}");
    }
}

#[test]
fn unknown_features_are_refused_or_make_the_volume_read_only() {
    let base = Super::new(1, 1);
    for (bit, name) in [
        (13, "EXTENT_TREE_V2"),
        (17, "REMAP_TREE"),
        (40, "UNKNOWN_FLAG_0x10000000000"),
    ] {
        let superblock = Super {
            incompat: base.incompat | 1 << bit,
            ..base.clone()
        };
        let error = refused(vec![device(&superblock, None)]);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let volume = open(vec![device(
        &Super {
            compat_ro: 1 << 20,
            ..base.clone()
        },
        None,
    )])
    .unwrap();
    assert!(!volume.may_be_written());
    assert!(
        volume.notices()[0].to_string().contains("UNKNOWN_FLAG_0x100000"),
        "{:?}",
        volume.notices()
    );
    assert!(open(vec![device(&base, None)]).unwrap().may_be_written());
}

#[test]
fn devices_of_two_volumes_and_one_device_twice_are_refused() {
    let first = Super::new(1, 2);
    let foreign = Super {
        fsid: Uuid::from_u128(5),
        ..Super::new(2, 2)
    };
    let error = refused(vec![device(&first, None), device(&foreign, None)]);
    assert_eq!(error.kind(), ErrorKind::Caller);
    let text = error.to_string();
    assert!(
        text.contains(&first.fsid.to_string()) && text.contains(&foreign.fsid.to_string()),
        "{text}"
    );
    let error = refused(vec![device(&first, None), device(&first, None)]);
    assert!(matches!(error, Error::Devices(error) if matches!(*error, DevicesError::Duplicate { .. })));
}

#[test]
fn the_newest_device_leads_and_a_stale_one_is_read_last() {
    for (profile, devices) in [
        (Profile::Raid1, 2),
        (Profile::Raid1C3, 3),
        (Profile::Raid5, 3),
        (Profile::Raid6, 4),
    ] {
        let mut image = Image::new(profile, devices, 4 << 20);
        for id in 2..=devices {
            let newer = Super {
                generation: 12,
                ..Image::superblock(id as u64, devices as u64)
            };
            put(&mut image.devices[id - 1], 65536, &newer.bytes(65536));
        }
        // Noise in the whole stripe of device 1 stands for its old data.
        image.spoil(0);
        let volume = image.open(&[]);
        assert_eq!(volume.superblock().generation.get(), 12);
        assert!(volume.notices().iter().any(|notice| {
            matches!(notice, Notice::StaleDevice { id, generations, .. }
                if id.get() == 1 && generations.generation.get() == 10)
        }));
        // The read has no verifier, so only the order of copies excludes the old bytes.
        let read = buttress_volume::ExtentRead {
            logical: Logical::new(CHUNK_AT),
            length: 4 << 20,
        };
        let (data, lost) = volume.read_data(read, &|_, _| ()).unwrap();
        assert!(lost.is_empty() && *data == *image.data, "{profile:?}");
    }
}

#[test]
fn volumes_and_pending_reads_are_send() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Volume>();
    sent::<buttress_volume::PendingExtent>();
}

#[test]
fn missing_devices_are_listed_unless_degraded() {
    let image = Image::new(Profile::Raid1C4, 4, 1 << 20);
    let given = vec![
        Device::memory(image.devices[0].clone()),
        Device::memory(image.devices[2].clone()),
    ];
    let volume = Volume::open(given, OpenOptions::default()).unwrap();
    for id in 1..=4 {
        volume.add_device(Image::superblock(id, 4).item()).unwrap();
    }
    volume.add_chunk(Logical::new(CHUNK_AT), image.chunk()).unwrap();
    let error = volume.finish_bootstrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let text = error.to_string();
    for id in [2, 4] {
        assert!(
            text.contains(&format!("devid {id} uuid {}", device_uuid(id))),
            "{text}"
        );
    }
    assert!(!text.contains("devid 1 ") && !text.contains("devid 3 "), "{text}");
}

#[test]
fn a_seed_device_belongs_when_the_sprout_lists_it() {
    let seed = Super {
        fsid: Uuid::from_u128(5),
        flags: 1 | 1 << 32,
        generation: 30,
        ..Super::new(1, 1)
    };
    let sprout = Super::new(2, 2);
    let volume = open(vec![device(&seed, None), device(&sprout, None)]).unwrap();
    assert_eq!(volume.superblock().fsid, sprout.fsid);
    assert_eq!(volume.block_format().seed_fsids.to_vec(), [seed.fsid]);
    volume.add_device(seed.item()).unwrap();
    volume.add_device(sprout.item()).unwrap();
    volume.finish_bootstrap().unwrap();
    assert!(volume.notices().is_empty(), "{:?}", volume.notices());

    let volume = open(vec![device(&seed, None), device(&sprout, None)]).unwrap();
    volume.add_device(sprout.item()).unwrap();
    let missing_seed = volume.finish_bootstrap().unwrap_err();
    assert!(matches!(missing_seed, Error::Devices(error) if matches!(*error, DevicesError::Foreign { .. })));

    let volume = open(vec![device(&seed, None)]).unwrap();
    assert_eq!(volume.notices(), [Notice::Seed]);
    assert!(!volume.may_be_written());
}

#[test]
fn zoned_superblocks_are_found_in_their_log() {
    let zone_bytes = 4 << 20;
    let entry = |generation| Super {
        generation,
        incompat: 0x1141,
        ..Super::new(1, 1)
    };
    let mut image = vec![0; 3 * zone_bytes];
    // The first zone is full, the second zone has one entry, and an old entry is at 64 KiB.
    for index in 0..zone_bytes / 4096 {
        put(&mut image, index * 4096, &entry(100 + index as u64).bytes(65536));
    }
    for index in 0..3 {
        put(
            &mut image,
            zone_bytes + index * 4096,
            &entry(5000 + index as u64).bytes(65536),
        );
    }
    let volume = open(vec![image.clone()]).unwrap();
    assert_eq!(volume.superblock().generation.get(), 5002);
    image[zone_bytes..2 * zone_bytes].fill(0);
    let volume = open(vec![image]).unwrap();
    assert_eq!(volume.superblock().generation.get(), 100 + 1023);
}

#[test]
fn invalid_chunks_are_refused_or_fail_when_read() {
    let image = Image::new(Profile::Raid1, 2, 1 << 20);
    let volume = image.open(&[]);
    let chunk = image.chunk();
    let overlap = volume
        .add_chunk(Logical::new(CHUNK_AT + (512 << 10)), chunk.clone())
        .unwrap_err();
    assert!(matches!(overlap, Error::Corrupt(error) if matches!(*error, Corruption::ChunksOverlap { .. })));
    volume.add_chunk(Logical::new(CHUNK_AT), chunk.clone()).unwrap();
    let past = volume
        .add_chunk(Logical::new(u64::MAX - 4095), chunk.clone())
        .unwrap_err();
    assert!(matches!(past, Error::Corrupt(error) if matches!(*error, Corruption::ChunkTooLong { .. })));

    let mut wild = chunk.clone();
    wild.stripes[0].physical = Physical::new(u64::MAX - 10_000);
    wild.stripes[1].physical = Physical::new(1 << 50);
    let at = Logical::new(1 << 40);
    volume.add_chunk(at, wild).unwrap();
    for offset in [0, 65536] {
        let logical = Logical::new(at.get() + offset);
        let read = buttress_volume::ExtentRead {
            logical,
            length: 16384,
        };
        let error = volume.read_verified(read, &mut |_| Ok(())).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::Caller, "{error}");
        assert!(
            error
                .to_string()
                .contains(&(1u64 << 50 | (offset + 16384)).to_string()),
            "{error}"
        );
        assert!(volume.map(logical, ByteCount::new(16384)).is_ok());
    }

    let mut renamed = chunk;
    renamed.stripes[1].device = buttress_format::DeviceId::new(7);
    let error = volume.add_chunk(Logical::new(1 << 41), renamed).unwrap_err();
    assert!(
        matches!(error, Error::Corrupt(error) if matches!(*error, Corruption::DeviceItemsDisagree { .. }))
    );
}

#[test]
fn a_crash_between_superblocks_leaves_no_device_stale() {
    let of = |device: u64, generation: u64| Super {
        generation,
        ..Super::new(device, 2)
    };
    // The columns of the test's table are the generations of the first device's primary and copy,
    // and whether the second device missed a commit. The superblocks of the second device have
    // generation 10.
    for (primary, copy, is_stale) in [
        (11, Some(10), false),
        (11, Some(11), true),
        (12, Some(10), true),
        (12, Some(11), true),
        (11, None, true),
    ] {
        let copied = copy.map(|generation| of(1, generation));
        let first = device(&of(1, primary), copied.as_ref());
        let second = device(&of(2, 10), Some(&of(2, 10)));
        let volume = open(vec![first, second]).unwrap();
        assert_eq!(volume.superblock().generation.get(), primary);
        let said = volume
            .notices()
            .iter()
            .any(|notice| matches!(notice, Notice::StaleDevice { .. }));
        assert_eq!(said, is_stale, "{primary} {copy:?}");
    }
}
