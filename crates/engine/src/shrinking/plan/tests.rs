//! Plans of handmade volumes: the ends, the order of steps, and places that never overlap.

use super::*;

const MIB: u64 = 1 << 20;
const NODE_BYTES: u64 = 16384;

fn group(start: u64, flags: BlockGroupFlags, used: u64, length: u64, stripes: &[(u64, u64)]) -> Source {
    Source {
        start: Logical::new(start),
        flags,
        used,
        place: Place {
            device_extent: length,
            length,
            stripes: stripes
                .iter()
                .map(|(device, at)| (DeviceId::new(*device), *at))
                .collect(),
        },
    }
}

/// A system and a metadata group, and data groups of (address, length, used) in MiB on one device.
fn volume(data: &[(u64, u64, u64)]) -> Vec<Source> {
    let mut groups = vec![
        group(MIB, BlockGroupFlags::SYSTEM, NODE_BYTES, 4 * MIB, &[(1, MIB)]),
        group(5 * MIB, BlockGroupFlags::METADATA, MIB, 8 * MIB, &[(1, 5 * MIB)]),
    ];
    let data = data.iter().map(|(at, length, used)| {
        group(
            at * MIB,
            BlockGroupFlags::DATA,
            used * MIB,
            length * MIB,
            &[(1, at * MIB)],
        )
    });
    groups.extend(data);
    groups
}

/// Plans a volume whose data extents have this length. Carries out the plan on a map of the devices.
fn planned(groups: Vec<Source>, devices: u64, extent: u64) -> Plan {
    let used: BTreeMap<Logical, u64> = groups.iter().map(|group| (group.start, group.used)).collect();
    let facts = Facts {
        devices: (1..=devices).map(DeviceId::new).collect(),
        groups: groups.clone(),
        node_bytes: NODE_BYTES,
        spare_bytes: 24 * MIB,
    };
    let mut lengths = |group: Logical| {
        let used = used[&group];
        let whole = (0..used / extent).map(|_| extent);
        Ok(whole
            .chain((!used.is_multiple_of(extent)).then_some(used % extent))
            .collect())
    };
    let plan = plan(&facts, &mut lengths).unwrap();
    carry_out(&groups, &plan);
    plan
}

/// Asserts that the places of all steps are free when they are taken, and that the plan ends as it says.
fn carry_out(groups: &[Source], plan: &Plan) {
    let mut taken: BTreeMap<GroupRef, (Place, u64)> = groups
        .iter()
        .map(|group| (GroupRef::Old(group.start), (group.place.clone(), group.used)))
        .collect();
    let mut made = 0;
    for step in &plan.steps {
        match step {
            Step::Make(chunk) => {
                for (device, at) in &chunk.place.stripes {
                    let end = at + chunk.place.device_extent;
                    assert!(*at >= MIB && end <= plan.peaks[device], "{chunk:?}");
                    for copy in [64 * MIB, 256 << 30] {
                        assert!(*at >= copy + STRIPE_BYTES || end <= copy, "{chunk:?}");
                    }
                    for (other, _) in taken.values() {
                        let overlaps = other.stripes.iter().any(|(other_device, other_at)| {
                            device == other_device && *at < other_at + other.device_extent && *other_at < end
                        });
                        assert!(!overlaps, "{chunk:?} overlaps {other:?}");
                    }
                }
                taken.insert(GroupRef::New(made), (chunk.place.clone(), 0));
                made += 1;
            }
            Step::CheckMetadata | Step::Close(_) => {}
            Step::Move { groups, into } => {
                let mut content: u64 = groups.iter().map(|group| taken.remove(group).unwrap().1).sum();
                for number in into {
                    let (place, used) = taken.get_mut(&GroupRef::New(*number)).unwrap();
                    let here = content.min(place.length - *used);
                    *used += here;
                    content -= here;
                }
                assert_eq!(content, 0, "{groups:?} into {into:?}");
            }
        }
    }
    for (device, end) in &plan.ends {
        let stripes = taken.values().flat_map(|(place, _)| {
            let extent = place.device_extent;
            place
                .stripes
                .iter()
                .map(move |(device, at)| (*device, at + extent))
        });
        let last = stripes
            .filter(|(other, _)| other == device)
            .map(|(_, end)| end)
            .max();
        assert_eq!(last.unwrap_or(0), *end);
    }
}

#[test]
fn content_of_sparse_groups_is_packed() {
    let plan = planned(
        volume(&[(100, 100, 10), (200, 100, 7), (300, 100, 30)]),
        1,
        MIB / 4,
    );
    // The first MiB, the data, the chunk tree, metadata with its free space.
    assert_eq!(plan.ends[&DeviceId::new(1)], (1 + 47 + 1 + 3) * MIB);
    // Metadata and the chunk tree move twice, data once.
    assert_eq!(plan.moved_bytes, 47 * MIB + 2 * (MIB + NODE_BYTES));
}

#[test]
fn full_groups_go_to_the_tail_first_and_come_back() {
    let plan = planned(volume(&[(13, 40, 40), (80, 400, 300), (480, 400, 390)]), 1, MIB);
    let data = 40 + 300 + 390;
    // The superblock copy and the end of the space before it.
    let least = (1 + data + 1 + 3) * MIB;
    let end = plan.ends[&DeviceId::new(1)];
    assert!((least..=least + 2 * MIB).contains(&end), "{end} of {least}");
}

#[test]
fn long_extents_leave_the_space_before_a_superblock_copy() {
    let plan = planned(volume(&[(100, 400, 300)]), 1, 100 * MIB);
    let end = plan.ends[&DeviceId::new(1)];
    // Metadata fills a part of the space before the copy.
    assert_eq!(end, (64 + 300) * MIB + STRIPE_BYTES);
}

#[test]
fn packed_volume_stays_and_its_data_stays_when_metadata_moves() {
    let mut packed = volume(&[]);
    packed[0].place.stripes[0].1 = 41 * MIB;
    packed[1].place.stripes[0].1 = 45 * MIB;
    packed.push(group(
        100 * MIB,
        BlockGroupFlags::DATA,
        40 * MIB,
        40 * MIB,
        &[(1, MIB)],
    ));
    // Four MiB for the chunk tree become one, eight MiB for metadata three.
    let plan = planned(packed.clone(), 1, MIB);
    assert_eq!(plan.ends[&DeviceId::new(1)], 45 * MIB);
    let moves_data = plan.steps.iter().any(|step| match step {
        Step::Move { groups, .. } => groups.contains(&GroupRef::Old(Logical::new(100 * MIB))),
        _ => false,
    });
    assert!(!moves_data);
    packed[0].place = Place {
        device_extent: MIB,
        length: MIB,
        ..packed[0].place.clone()
    };
    packed[1].place = Place {
        device_extent: 3 * MIB,
        length: 3 * MIB,
        stripes: vec![(DeviceId::new(1), 42 * MIB)],
    };
    let plan = planned(packed, 1, MIB);
    assert!(plan.steps.is_empty());
    assert_eq!(plan.ends[&DeviceId::new(1)], 45 * MIB);
}

#[test]
fn mirrors_and_copies_shrink_all_their_devices() {
    let raid1 = BlockGroupFlags::RAID1;
    let at = |at: u64| [(1, at * MIB), (2, at * MIB)];
    let groups = vec![
        group(MIB, BlockGroupFlags::SYSTEM | raid1, NODE_BYTES, 8 * MIB, &at(1)),
        group(9 * MIB, BlockGroupFlags::METADATA | raid1, MIB, 30 * MIB, &at(9)),
        group(
            99 * MIB,
            BlockGroupFlags::DATA | raid1,
            20 * MIB,
            60 * MIB,
            &at(70),
        ),
        group(
            199 * MIB,
            BlockGroupFlags::DATA | raid1,
            20 * MIB,
            60 * MIB,
            &at(130),
        ),
    ];
    let plan = planned(groups, 2, MIB);
    for device in [1, 2] {
        assert_eq!(plan.ends[&DeviceId::new(device)], (1 + 40 + 1 + 3) * MIB);
    }
    let dup = BlockGroupFlags::DUP;
    let groups = vec![
        group(
            MIB,
            BlockGroupFlags::SYSTEM | dup,
            NODE_BYTES,
            8 * MIB,
            &[(1, MIB), (1, 9 * MIB)],
        ),
        group(
            9 * MIB,
            BlockGroupFlags::METADATA | dup,
            MIB,
            8 * MIB,
            &[(1, 17 * MIB), (1, 25 * MIB)],
        ),
        group(
            99 * MIB,
            BlockGroupFlags::DATA | dup,
            40 * MIB,
            60 * MIB,
            &[(1, 70 * MIB), (1, 130 * MIB)],
        ),
    ];
    let plan = planned(groups, 1, MIB / 2);
    let least = (1 + 80 + 2 + 6) * MIB;
    let end = plan.ends[&DeviceId::new(1)];
    assert!((least..=least + 2 * MIB).contains(&end), "{end} of {least}");
}

#[test]
fn random_volumes_get_places_that_never_overlap() {
    let mut state = 1_u64;
    let mut next = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for _ in 0..300 {
        let mut at = 13;
        let data: Vec<(u64, u64, u64)> = (0..next(12))
            .map(|_| {
                at += next(3) * next(100);
                let length = 1 + next(200);
                let used = next(length + 1);
                at += length;
                (at - length, length, used)
            })
            .collect();
        let extent = [STRIPE_BYTES, MIB, 20 * MIB, 128 * MIB][usize::try_from(next(4)).unwrap()];
        let plan = planned(volume(&data), 1, extent);
        let used: u64 = data.iter().map(|(_, _, used)| used * MIB).sum();
        let end = plan.ends[&DeviceId::new(1)];
        // At worst the space before the superblock copy stays free, and a small gain is passed over.
        let most = used + used / 64 + (5 + 64 + 3) * MIB + extent.min(63 * MIB);
        assert!(
            end <= most,
            "{data:?} with extents of {extent}: {end}, expected at most {most}"
        );
    }
}
