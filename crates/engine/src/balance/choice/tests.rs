use super::*;
use buttress_format::Profile;

const GIB: u64 = 1 << 30;

fn group(start: u64, used: u64, flags: BlockGroupFlags) -> Candidate {
    let stripes = match flags.profile().unwrap() {
        Profile::Dup => vec![(1, start), (1, start + GIB)],
        Profile::Raid1 => vec![(1, start), (2, start)],
        Profile::Raid0 | Profile::Raid10 | Profile::Raid5 => (1..=4).map(|device| (device, start)).collect(),
        _ => vec![(1, start)],
    };
    Candidate {
        start: Logical::new(start),
        length: ByteCount::new(GIB),
        used: ByteCount::new(used),
        flags,
        stripes: stripes
            .into_iter()
            .map(|(device, physical)| (DeviceId::new(device), Physical::new(physical)))
            .collect(),
    }
}

/// Five data block groups that are filled by 0, 25, 50, 75 and 100 per cent, one of metadata and one of system.
fn volume() -> Vec<Candidate> {
    let data = (0..5).map(|number| group((number + 3) * GIB, number * GIB / 4, BlockGroupFlags::DATA));
    let metadata = group(2 * GIB, GIB / 2, BlockGroupFlags::METADATA | BlockGroupFlags::DUP);
    let system = group(GIB, 16384, BlockGroupFlags::SYSTEM | BlockGroupFlags::DUP);
    data.chain([metadata, system]).collect()
}

/// Returns the starts, in GiB, of the block groups that a balance of data moves.
fn data(filters: BalanceArguments) -> Vec<u64> {
    starts(BalanceFlags::DATA, filters, volume())
}

fn starts(flags: BalanceFlags, filters: BalanceArguments, volume: Vec<Candidate>) -> Vec<u64> {
    let item = BalanceItem {
        flags,
        data: filters,
        metadata: filters,
        system: filters,
    };
    let choice = choose(&item, volume);
    let starts = choice.groups.iter().map(|group| group.start.get() / GIB);
    starts.collect()
}

fn with(flags: Filter, change: impl FnOnce(&mut BalanceArguments)) -> BalanceArguments {
    let mut filters = BalanceArguments::NONE;
    filters.flags = flags;
    change(&mut filters);
    filters
}

#[test]
fn groups_are_visited_from_the_highest_address() {
    assert_eq!(data(BalanceArguments::NONE), [7, 6, 5, 4, 3]);
    let all = BalanceFlags::DATA | BalanceFlags::METADATA | BalanceFlags::SYSTEM;
    assert_eq!(
        starts(all, BalanceArguments::NONE, volume()),
        [7, 6, 5, 4, 3, 2, 1]
    );
    assert_eq!(
        starts(BalanceFlags::METADATA, BalanceArguments::NONE, volume()),
        [2]
    );
    assert_eq!(
        starts(BalanceFlags::empty(), BalanceArguments::NONE, volume()),
        [0; 0]
    );
}

#[test]
fn usage_is_exclusive_above_and_inclusive_below() {
    let usage = |percent| data(BalanceArguments::NONE.with_usage(percent));
    assert_eq!(usage(0), [3]);
    assert_eq!(usage(25), [3]);
    assert_eq!(usage(26), [4, 3]);
    assert_eq!(
        usage(100),
        [6, 5, 4, 3],
        "a full block group is never below 100 per cent"
    );
    assert_eq!(usage(200), [6, 5, 4, 3]);
    let range = |least, most| {
        data(with(Filter::USAGE_RANGE, |filters| {
            (filters.usage_min, filters.usage_max) = (least, most);
        }))
    };
    assert_eq!(range(25, 75), [5, 4]);
    assert_eq!(range(0, 0), [3]);
    assert_eq!(range(100, 100), [0; 0]);
    let both = data(with(Filter::USAGE_RANGE | Filter::USAGE, |filters| {
        (filters.usage_min, filters.usage_max) = (50, 75);
    }));
    assert_eq!(both, [6, 5, 4, 3], "with both flags the halves are one number");
}

#[test]
fn limits_count_what_other_filters_leave() {
    let usage = BalanceArguments::NONE.with_usage(75);
    assert_eq!(data(usage.with_limit(2)), [5, 4]);
    assert_eq!(data(usage.with_limit(0)), [0; 0]);
    assert_eq!(data(usage.with_limit(50)), [5, 4, 3]);
    let range = |least, most| {
        data(with(Filter::LIMIT_RANGE, |filters| {
            (filters.limit_min, filters.limit_max) = (least, most);
        }))
    };
    assert_eq!(range(2, 3), [7, 6, 5]);
    assert_eq!(range(5, 9), [7, 6, 5, 4, 3]);
    assert_eq!(range(6, 9), [0; 0], "fewer pass than the least");
}

#[test]
fn device_filters_compare_stripes() {
    let on = |device: u64, flags, start: u64, end: u64| {
        let filters = with(Filter::DEVID | flags, |filters| {
            filters.device = DeviceId::new(device);
            (filters.physical_start, filters.physical_end) = (Physical::new(start), Physical::new(end));
        });
        let raid = |number: u64, profile| group(number * GIB, 0, BlockGroupFlags::DATA | profile);
        let volume = vec![
            raid(10, BlockGroupFlags::empty()),
            raid(20, BlockGroupFlags::RAID1),
            raid(30, BlockGroupFlags::RAID0),
        ];
        starts(BalanceFlags::DATA, filters, volume)
    };
    let none = Filter::empty();
    assert_eq!(on(1, none, 0, 0), [30, 20, 10]);
    assert_eq!(on(2, none, 0, 0), [30, 20]);
    assert_eq!(on(4, none, 0, 0), [30]);
    assert_eq!(on(2, Filter::DRANGE, 21 * GIB - 1, 21 * GIB), [20]);
    assert_eq!(on(2, Filter::DRANGE, 21 * GIB, 30 * GIB), [0; 0]);
    let quarter = GIB / 4;
    assert_eq!(
        on(2, Filter::DRANGE, 30 * GIB + quarter, 40 * GIB),
        [0; 0],
        "a stripe of RAID0 has a quarter"
    );
    assert_eq!(on(2, Filter::DRANGE, 30 * GIB + quarter - 1, 40 * GIB), [30]);
    let without_device = with(Filter::DRANGE, |filters| filters.physical_end = Physical::new(1));
    assert_eq!(
        data(without_device).len(),
        5,
        "a range without a device filters nothing"
    );
}

#[test]
fn logical_range_stripes_and_profiles_are_compared() {
    let logical = |start, end| {
        data(with(Filter::VRANGE, |filters| {
            (filters.logical_start, filters.logical_end) = (Logical::new(start), Logical::new(end));
        }))
    };
    assert_eq!(logical(4 * GIB, 4 * GIB + 1), [4]);
    assert_eq!(logical(4 * GIB - 1, 4 * GIB), [3]);
    assert_eq!(logical(0, u64::MAX).len(), 5);
    let all = BalanceFlags::DATA | BalanceFlags::METADATA;
    let stripes = with(Filter::STRIPES_RANGE, |filters| {
        (filters.stripes_min, filters.stripes_max) = (2, 3);
    });
    assert_eq!(starts(all, stripes, volume()), [2]);
    let profiles = |set| with(Filter::PROFILES, |filters| filters.profiles = set);
    assert_eq!(
        starts(
            all,
            profiles(BlockGroupFlags::DUP | BlockGroupFlags::RAID1),
            volume()
        ),
        [2]
    );
    let single = profiles(BlockGroupFlags::AVAIL_ALLOC_BIT_SINGLE);
    assert_eq!(starts(all, single, volume()).len(), 5);
}

#[test]
fn soft_leaves_what_has_the_target() {
    let all = BalanceFlags::DATA | BalanceFlags::METADATA;
    let mut to_dup = BalanceArguments::NONE.with_target(Profile::Dup);
    assert_eq!(starts(all, to_dup, volume()), [7, 6, 5, 4, 3, 2]);
    to_dup.flags |= Filter::SOFT;
    assert_eq!(starts(all, to_dup, volume()), [7, 6, 5, 4, 3]);
    let mut to_single = BalanceArguments::NONE.with_target(Profile::Single);
    to_single.flags |= Filter::SOFT;
    assert_eq!(starts(all, to_single, volume()), [2]);
}

#[test]
fn mixed_groups_count_as_data() {
    let mixed = group(GIB, 0, BlockGroupFlags::DATA | BlockGroupFlags::METADATA);
    for flags in [BalanceFlags::DATA, BalanceFlags::METADATA] {
        assert_eq!(starts(flags, BalanceArguments::NONE, vec![mixed.clone()]), [1]);
    }
    assert_eq!(Kind::of(mixed.flags), Some(Kind::Data));
}

#[test]
fn resumed_balance_skips_what_was_moved() {
    let item = BalanceItem {
        flags: BalanceFlags::DATA | BalanceFlags::METADATA,
        data: BalanceArguments::NONE.with_target(Profile::Raid1),
        metadata: BalanceArguments::NONE,
        system: BalanceArguments::NONE.with_usage(30),
    };
    let resumed = resumed(item);
    assert!(resumed.data.flags.contains(Filter::SOFT));
    assert!(!resumed.data.flags.contains(Filter::USAGE));
    assert_eq!(resumed.metadata, BalanceArguments::NONE.with_usage(90));
    assert_eq!(resumed.system, item.system);
    assert!(resumed.flags.contains(BalanceFlags::RESUME));
}

#[test]
fn bytes_and_considered_groups_are_counted() {
    let item = BalanceItem {
        flags: BalanceFlags::DATA,
        data: BalanceArguments::NONE.with_usage(60),
        metadata: BalanceArguments::NONE,
        system: BalanceArguments::NONE,
    };
    let choice = choose(&item, volume());
    assert_eq!(choice.starts.len(), 7);
    assert_eq!(choice.bytes().get(), GIB / 4 + GIB / 2);
}

#[test]
fn visits_compare_what_block_groups_hold_now() {
    let item = BalanceItem {
        flags: BalanceFlags::DATA,
        data: BalanceArguments::NONE.with_usage(60).with_limit(2),
        metadata: BalanceArguments::NONE,
        system: BalanceArguments::NONE,
    };
    let choice = choose(&item, volume());
    assert_eq!(choice.groups.len(), 2);
    let mut visits = choice.visits();
    let mut taken = Vec::new();
    for start in &choice.starts {
        let mut now = volume().into_iter().find(|group| group.start == *start).unwrap();
        if now.start.get() == 4 * GIB {
            now.used = now.length;
        }
        taken.extend(visits.take(&now).then_some(now.start.get() / GIB));
    }
    assert_eq!(
        taken,
        [5, 3],
        "the second one was filled meanwhile, and the limit counts what is taken"
    );
}

#[test]
fn visits_keep_to_the_least_of_the_plan() {
    let mut filters = BalanceArguments::NONE;
    filters.flags = Filter::LIMIT_RANGE;
    (filters.limit_min, filters.limit_max) = (6, 9);
    let item = BalanceItem {
        flags: BalanceFlags::DATA,
        data: filters,
        metadata: filters,
        system: filters,
    };
    let choice = choose(&item, volume());
    let mut visits = choice.visits();
    assert!(volume().iter().all(|group| !visits.take(group)));
}
