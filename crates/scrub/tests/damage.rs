//! Damage at known places of small volumes: everything that can be repaired is, byte for byte, nothing else is touched, and
//! what cannot be is named.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

mod support;

use buttress_device::{Device, Model, VirtualClock};
use buttress_format::node::RawHeader;
use buttress_format::{
    ChecksumType, DeviceStatistics, FileOffset, Generation, Physical, Profile, SubvolumeId, Superblock,
    TreeId,
};
use buttress_fs::{Location, Progress};
use buttress_oracle::content::Random;
use buttress_scrub::{Cause, Options, Outcome, Part, Position, Scrub};
use buttress_volume::MappingContent;
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use support::{Lab, Make, REDUNDANT, Use};
use zerocopy::{FromBytes, IntoBytes};

const BLOCK: usize = 4096;

/// All blocks of all uses.
fn blocks(uses: &[Use]) -> Vec<(Use, u64)> {
    let blocks = |used: &Use| {
        let used = used.clone();
        (0..used.length)
            .step_by(BLOCK)
            .map(move |offset| (used.clone(), used.physical + offset as u64))
    };
    uses.iter().flat_map(blocks).collect()
}

/// How many blocks are tried over all profiles, unless all are: `BUTTRESS_SOAK` asks for that.
const TRIED: usize = 2000;

#[test]
fn each_block_of_each_copy_is_mended_and_nothing_else_is_touched() {
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    let mut random = Random::new(1);
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let blocks = blocks(&uses);
        let step = match all {
            true => 1,
            false => blocks.len().div_ceil(TRIED / REDUNDANT.len()),
        };
        for (used, physical) in blocks
            .iter()
            .skip(random.below(step as u64) as usize)
            .step_by(step)
        {
            let spy = &lab.spies[used.device];
            spy.put(*physical, &random.bytes(BLOCK, false));
            let report = lab.scrub().unwrap();
            let what = format!("{profile}, {used:?}, block at {physical}: {:#?}", report.damages);
            let totals = report.totals();
            assert_eq!(totals.errors(), 1, "{what}");
            assert_eq!(totals.corrected_errors, 1, "{what}");
            assert!(!report.has_uncorrectable(), "{what}");
            let damage = &report.damages[0];
            assert_eq!(damage.outcome, Outcome::Corrected, "{what}");
            let within = used.physical..used.physical + used.length as u64;
            assert!(within.contains(&damage.physical.get()), "{what}");
            for (device, writes) in lab.take_writes().into_iter().enumerate() {
                for write in writes {
                    assert_eq!(device, used.device, "{what}");
                    assert!(
                        within.start <= write.start && write.end <= within.end,
                        "{what}: {write:?}"
                    );
                }
            }
            let part = match used.content {
                MappingContent::P => Part::P,
                MappingContent::Q => Part::Q,
                MappingContent::Data { .. } if used.is_data => Part::Data,
                MappingContent::Data { .. } => Part::Tree,
            };
            assert_eq!(damage.part, part, "{what}");
            assert!(lab.contents(&uses) == before, "{what}");
        }
        lab.require_sound();
    }
}

#[test]
fn a_device_of_noise_is_written_anew() {
    let mut random = Random::new(2);
    for (profile, devices) in REDUNDANT.into_iter().filter(|(_, devices)| *devices > 1) {
        for checksum in [ChecksumType::Crc32c, ChecksumType::Blake2b] {
            let make = Make {
                checksum,
                ..Make::new(profile, devices)
            };
            let lab = Lab::new(&make).unwrap();
            let uses = lab.uses().unwrap();
            let before = lab.contents(&uses);
            let lost = random.below(devices as u64) as usize;
            for used in uses.iter().filter(|used| used.device == lost) {
                lab.spies[lost].put(used.physical, &random.bytes(used.length, false));
            }
            // The second superblock, too.
            lab.spies[lost].put(64 << 20, &random.bytes(BLOCK, false));
            let report = lab.scrub().unwrap();
            let totals = report.totals();
            assert_eq!(totals.errors(), totals.corrected_errors, "{profile}: {totals:?}");
            assert_eq!(totals.super_errors, 1, "{profile}");
            assert!(lab.contents(&uses) == before, "{profile}, {checksum}");
            lab.require_sound();
        }
    }
}

/// Runs of blocks that lie beside each other on one device, as a scratch or a cable leaves them.
#[test]
fn bursts_are_mended_and_nothing_else_is_touched() {
    let mut random = Random::new(12);
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        for burst in 0..10 {
            let hit = &uses[random.below(uses.len() as u64) as usize];
            let start = hit.physical + random.below(hit.length as u64 / BLOCK as u64) * BLOCK as u64;
            let end = start + (1 + random.below(64)) * BLOCK as u64;
            // One copy of what is twice on its device; what lies between is not in use.
            let mut spoilt = 0;
            for used in uses.iter().filter(|used| used.device == hit.device) {
                let range = start.max(used.physical)..end.min(used.physical + used.length as u64);
                if range.is_empty() || (devices == 1 && used.content != hit.content) {
                    continue;
                }
                let length = (range.end - range.start) as usize;
                lab.spies[hit.device].put(range.start, &random.bytes(length, false));
                spoilt += 1;
            }
            assert!(spoilt > 0);
            lab.take_writes();
            let report = lab.scrub().unwrap();
            let totals = report.totals();
            let what = format!("{profile}, burst {burst} at {start} of {hit:?}: {totals:?}");
            assert!(totals.errors() > 0, "{what}");
            assert_eq!(totals.errors(), totals.corrected_errors, "{what}");
            for (device, writes) in lab.take_writes().into_iter().enumerate() {
                for write in writes {
                    assert_eq!(device, hit.device, "{what}");
                    // A tree block is written whole.
                    let block = 16384;
                    assert!(
                        start < write.end + block && write.start < end + block,
                        "{what}: {write:?}"
                    );
                }
            }
            assert!(lab.contents(&uses) == before, "{what}");
        }
        lab.require_sound();
    }
}

fn is_direct(used: &Use) -> bool {
    matches!(used.content, MappingContent::Data { .. })
}

/// Uses that share a row with a use of data, by column: two of them are spoilt in the same place.
#[test]
fn raid6_with_two_wrong_in_a_row_is_mended_and_with_three_is_told() {
    let lab = Lab::new(&Make::new(Profile::Raid6, 5)).unwrap();
    let uses = lab.uses().unwrap();
    let before = lab.contents(&uses);
    let mut random = Random::new(3);
    // A row that is full of data: three uses with one place of P.
    let place_of = |data: &Use, parity: MappingContent| {
        let is_its = |used: &&Use| used.content == parity && used.logical == data.logical;
        uses.iter().find(is_its)
    };
    let is_full = |used: &&Use| used.is_data && used.length == 65536 && is_direct(used);
    let full: Vec<&Use> = uses.iter().filter(is_full).collect();
    let row: Vec<&Use> = {
        let p_of = |used: &Use| place_of(used, MappingContent::P).map(|p| (p.device, p.physical));
        let row_of = |first: &Use| {
            full.iter()
                .filter(|other| p_of(other) == p_of(first))
                .copied()
                .collect()
        };
        let rows: Vec<Vec<&Use>> = full.iter().map(|used| row_of(used)).collect();
        let mut row = rows.into_iter().find(|row| row.len() == 3).unwrap();
        let (p, q) = (
            place_of(row[0], MappingContent::P),
            place_of(row[0], MappingContent::Q),
        );
        row.extend([p.unwrap(), q.unwrap()]);
        row
    };
    assert_eq!(row.len(), 5, "{row:#?}");
    for first in 0..5 {
        for second in first + 1..5 {
            for used in [row[first], row[second]] {
                lab.spies[used.device].put(used.physical + 8192, &random.bytes(BLOCK, false));
            }
            let report = lab.scrub().unwrap();
            let totals = report.totals();
            assert_eq!(
                (totals.errors(), totals.corrected_errors),
                (2, 2),
                "{first} {second} {:#?}",
                report.damages
            );
            assert!(lab.contents(&uses) == before, "{first} {second}");
        }
    }
    lab.take_writes();
    let spoilt: Vec<&Use> = row
        .iter()
        .filter(|used| matches!(used.content, MappingContent::Data { .. }))
        .copied()
        .collect();
    for used in &spoilt {
        lab.spies[used.device].put(used.physical, &random.bytes(BLOCK, false));
    }
    let report = lab.scrub().unwrap();
    let totals = report.totals();
    assert_eq!(totals.uncorrectable_errors, 3, "{:#?}", report.damages);
    assert!(
        lab.take_writes().iter().all(Vec::is_empty),
        "nothing is written where nothing is known"
    );
    for damage in &report.damages {
        let Outcome::Uncorrectable { tried } = &damage.outcome else {
            panic!("{damage}");
        };
        // Its own place, and the two other columns.
        assert_eq!(tried.len(), 3, "{tried:?}");
    }
}

/// A tree block as an older transaction left it, and one that belongs elsewhere.
#[test]
fn lost_and_misdirected_writes_are_told_from_rot_and_mended() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let is_tree = |used: &&Use| !used.is_data && matches!(used.content, MappingContent::Data { .. });
        let trees: Vec<&Use> = uses.iter().filter(is_tree).collect();
        let used = trees[trees.len() / 2];
        let spy = &lab.spies[used.device];
        let mut old = spy.read(used.physical, used.length);
        let (header, _) = RawHeader::mut_from_prefix(&mut old).unwrap();
        header.generation -= 1;
        let sum = ChecksumType::Crc32c.compute(&old[32..]);
        old[..32].copy_from_slice(&[0; 32]);
        old[..sum.as_bytes().len()].copy_from_slice(sum.as_bytes());
        spy.put(used.physical, &old);
        let report = lab.scrub().unwrap();
        assert!(
            matches!(report.damages[..], [ref damage] if matches!(damage.cause, Cause::Generation { .. })),
            "{profile}: {:#?}",
            report.damages
        );
        assert!(lab.contents(&uses) == before, "{profile}");
        let other = trees.iter().find(|other| other.logical != used.logical).unwrap();
        let misdirected = lab.spies[other.device].read(other.physical, other.length);
        spy.put(used.physical, &misdirected);
        let report = lab.scrub().unwrap();
        assert!(
            matches!(report.damages[..], [ref damage] if matches!(damage.cause, Cause::Header(_))),
            "{profile}: {:#?}",
            report.damages
        );
        assert_eq!(report.totals().verify_errors, 1);
        assert!(lab.contents(&uses) == before, "{profile}");
        // The device's statistics are counted up with the next commit.
        let filesystem = lab.open().unwrap();
        spy.put(used.physical, &old);
        let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        scrub.run().unwrap();
        let slot = filesystem.volume().devices()[used.device].id();
        let writable = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
        writable.close().unwrap();
        let key = DeviceStatistics::key(slot);
        let item = lab
            .open()
            .unwrap()
            .tree(TreeId::DEVICE)
            .unwrap()
            .get(&key)
            .unwrap()
            .unwrap();
        let statistics = DeviceStatistics::parse(&key, item.data()).unwrap();
        assert_eq!(
            (statistics.generation_errors, statistics.corruption_errors),
            (1, 0),
            "{profile}"
        );
    }
}

#[test]
fn sectors_that_cannot_be_read_are_written_anew() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let mut seen: Vec<(bool, MappingContent)> = Vec::new();
        for used in &uses {
            if seen.contains(&(used.is_data, used.content)) {
                continue;
            }
            seen.push((used.is_data, used.content));
            let sector = used.physical..used.physical + 512;
            lab.spies[used.device].make_unreadable(sector);
            let report = lab.scrub().unwrap();
            let totals = report.totals();
            assert_eq!(
                (totals.read_errors, totals.corrected_errors),
                (1, 1),
                "{profile} {used:?} {:#?}",
                report.damages
            );
            assert_eq!(totals.errors(), 1, "{profile} {used:?} {:#?}", report.damages);
            assert!(lab.contents(&uses) == before);
        }
        lab.require_sound();
    }
}

#[test]
fn superblocks_are_mended_from_each_other() {
    let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
    let places = [(0, 64 << 10), (0, 64 << 20), (1, 64 << 10), (1, 64 << 20)];
    let before: Vec<_> = places
        .map(|(device, at): (usize, u64)| lab.spies[device].read(at, BLOCK))
        .into();
    for (number, (device, at)) in places.into_iter().enumerate() {
        lab.spies[device].put(at, &[0xaa; BLOCK]);
        let report = lab.scrub().unwrap();
        assert_eq!(
            (report.totals().super_errors, report.totals().corrected_errors),
            (1, 1)
        );
        assert_eq!(lab.spies[device].read(at, BLOCK), before[number]);
    }
    // One that missed commits.
    let (device, at) = places[3];
    let good = Superblock::check(&before[3], Physical::new(at)).unwrap();
    let generation = Generation::new(good.generation.get() - 1);
    let old = Superblock { generation, ..good };
    lab.spies[device].put(at, &old.encode().unwrap());
    let report = lab.scrub().unwrap();
    assert_eq!(report.totals().super_errors, 1, "{:#?}", report.damages);
    assert_eq!(lab.spies[device].read(at, BLOCK), before[3]);
    // One of another device.
    let other = lab.spies[1].read(64 << 20, BLOCK);
    lab.spies[0].put(64 << 20, &other);
    let report = lab.scrub().unwrap();
    assert_eq!(report.damages.len(), 1, "{:#?}", report.damages);
    assert_eq!(lab.spies[0].read(64 << 20, BLOCK), before[1]);
}

#[test]
fn what_is_beyond_repair_is_named_with_every_place_tried() {
    let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
    let uses = lab.uses().unwrap();
    let copies: Vec<&Use> = {
        let first = uses.iter().find(|used| used.is_data).unwrap();
        uses.iter().filter(|used| used.logical == first.logical).collect()
    };
    for used in &copies {
        lab.spies[used.device].put(used.physical + BLOCK as u64, &[1; 2 * BLOCK]);
    }
    let before = lab.contents(&uses);
    let report = lab.scrub().unwrap();
    assert_eq!(report.totals().uncorrectable_errors, 4);
    assert_eq!(report.damages.len(), 2, "neighbouring sectors are one damage");
    for damage in &report.damages {
        assert_eq!(damage.length.get(), 2 * BLOCK as u64);
        assert!(
            matches!(&damage.outcome, Outcome::Uncorrectable { tried } if tried.len() == 2),
            "{damage}"
        );
        assert!(damage.to_string().contains("tried: copy 2 on device"), "{damage}");
    }
    assert!(lab.contents(&uses) == before);
    // A device that loses what is written to it.
    lab.spies[0].put(copies[0].physical, &before[0][..BLOCK]);
    let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
    let used = lab.uses().unwrap().into_iter().find(|used| used.is_data).unwrap();
    lab.spies[used.device].put(used.physical, &[1; BLOCK]);
    lab.spies[used.device].lose_writes();
    let report = lab.scrub().unwrap();
    assert_eq!(report.totals().uncorrectable_errors, 1, "{:#?}", report.damages);
    assert!(
        report.damages[0]
            .to_string()
            .contains("loses or misdirects writes")
    );
}

#[test]
fn copies_without_checksums_that_differ_are_told_and_left() {
    for (profile, devices) in REDUNDANT {
        let make = Make {
            bare: true,
            ..Make::new(profile, devices)
        };
        let lab = Lab::new(&make).unwrap();
        lab.require_sound();
        let uses = lab.uses().unwrap();
        let filesystem = lab.open().unwrap();
        let report = lab.scrub().unwrap();
        assert!(report.totals().no_csum > 0);
        let bare = uses
            .iter()
            .find(|used| used.is_data && is_bare(&filesystem, used))
            .unwrap();
        lab.spies[bare.device].put(bare.physical, &[1; BLOCK]);
        let before = lab.contents(&uses);
        let report = lab.scrub().unwrap();
        let totals = report.totals();
        let parities = match profile {
            Profile::Raid6 => 2,
            _ => 1,
        };
        assert_eq!(
            totals.unverified_errors, parities,
            "{profile}: {:#?}",
            report.damages
        );
        assert_eq!(totals.corrected_errors, 0, "{:#?}", report.damages);
        assert!(lab.contents(&uses) == before, "{profile}");
        // What was reserved and never written may differ.
        let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        let scrub = scrub.asking(&|_, _| false);
        scrub.run().unwrap();
        assert_eq!(
            scrub.report().totals().unverified_errors,
            0,
            "{profile} {:#?}",
            scrub.report().damages
        );
    }
}

/// Whether data has no checksum, as the checksum tree says.
fn is_bare(filesystem: &buttress_fs::Filesystem, used: &Use) -> bool {
    use buttress_format::{ChecksumItem, Key};
    let tree = filesystem.tree(TreeId::CHECKSUM).unwrap();
    let items = tree.range(Key::MIN..=Key::MAX, buttress_tree::ReadAhead::None);
    !items.map(Result::unwrap).any(|item| {
        let parsed = ChecksumItem::parse(&item.key(), item.data(), 4096, ChecksumType::Crc32c);
        parsed.is_ok_and(|item| item.get(used.logical).is_some())
    })
}

#[test]
fn a_scrub_that_only_reads_writes_nothing() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let used = uses.iter().find(|used| used.is_data).unwrap();
        lab.spies[used.device].put(used.physical, &[3; BLOCK]);
        lab.spies[0].put(64 << 20, &[3; BLOCK]);
        let report = lab
            .scrub_with(Options {
                read_only: true,
                ..Options::default()
            })
            .unwrap();
        assert_eq!(report.totals().errors(), 2, "{profile}");
        assert_eq!(report.totals().corrected_errors, 0);
        assert!(
            report
                .damages
                .iter()
                .all(|damage| damage.outcome == Outcome::Correctable)
        );
        assert!(lab.take_writes().iter().all(Vec::is_empty));
    }
}

#[test]
fn only_what_is_in_use_is_read_and_all_of_it_once() {
    for (profile, devices) in REDUNDANT
        .into_iter()
        .chain([(Profile::Single, 2), (Profile::Raid0, 3)])
    {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let filesystem = lab.open().unwrap();
        let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        lab.spies.iter().for_each(|spy| drop(spy.take_reads()));
        scrub.run().unwrap();
        let report = scrub.report();
        assert_eq!(report.totals().bytes_scrubbed(), report.to_scrub(), "{profile}");
        let reads: Vec<Vec<std::ops::Range<u64>>> = lab.spies.iter().map(|spy| spy.take_reads()).collect();
        for used in &uses {
            let end = used.physical + used.length as u64;
            let covers = |read: &std::ops::Range<u64>| read.start < end && used.physical < read.end;
            assert!(
                reads[used.device].iter().any(covers),
                "{profile}: {used:?} was not read"
            );
        }
        let has_parity = matches!(profile, Profile::Raid5 | Profile::Raid6);
        for (device, reads) in reads.iter().enumerate().filter(|_| !has_parity) {
            let is_superblock = |read: &&std::ops::Range<u64>| matches!(read.start, 65536 | 0x400_0000);
            for read in reads.iter().filter(|read| !is_superblock(read)) {
                let mut used_bytes = 0;
                for used in uses.iter().filter(|used| used.device == device) {
                    let end = (used.physical + used.length as u64).min(read.end);
                    used_bytes += end.saturating_sub(used.physical.max(read.start));
                }
                assert_eq!(
                    used_bytes,
                    read.end - read.start,
                    "{profile}: {read:?} holds what is not in use"
                );
            }
        }
    }
}

#[test]
fn a_scrub_that_was_stopped_goes_on_where_it_was() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let whole = lab.scrub().unwrap().totals();
        let is_spoilt = |used: &&Use| {
            let is_other = profile == Profile::Dup && used.content == MappingContent::Data { copy: 2 };
            used.device == 0 && used.is_data && !is_other
        };
        for used in uses.iter().filter(is_spoilt) {
            lab.spies[0].put(used.physical, &[9; 512]);
        }
        let mut resume = Position::default();
        let mut bytes = 0;
        let mut corrected = 0;
        let mut runs = 0;
        loop {
            let filesystem = lab.open().unwrap();
            let progress = Progress::new();
            let options = Options {
                resume,
                // Small groups, so that there are many.
                shape: buttress_scrub::Shape {
                    stripes: 1,
                    groups: 2,
                    plugged: true,
                },
                ..Options::default()
            };
            let scrub = Scrub::new(&filesystem, options, progress.clone()).unwrap();
            lab.spies[0].stop_after(6, &progress);
            let ended = scrub.run().is_ok();
            let totals = scrub.report().totals();
            bytes += totals.bytes_scrubbed();
            corrected += totals.corrected_errors;
            resume = scrub.position();
            runs += 1;
            if ended {
                break;
            }
            assert!(runs < 1000, "{profile}: it does not come to its end");
        }
        assert!(runs > 2, "{profile}: stopped {runs} times");
        assert_eq!(
            bytes,
            whole.bytes_scrubbed(),
            "{profile}: nothing twice, nothing left out"
        );
        assert!(corrected > 0, "{profile}: {whole:?}");
        assert!(lab.contents(&uses) == before, "{profile}");
    }
}

#[test]
fn degraded_volumes_are_scrubbed_without_what_is_missing() {
    for (profile, devices) in REDUNDANT.into_iter().filter(|(_, devices)| *devices > 1) {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let mut given = lab.devices();
        given.remove(1);
        let filesystem = buttress_fs::OpenOptions::new(given)
            .degraded(true)
            .open()
            .unwrap();
        let can_mend = matches!(profile, Profile::Raid1C3 | Profile::Raid1C4 | Profile::Raid6);
        let used = uses
            .iter()
            .find(|used| used.is_data && used.device == 0 && is_direct(used))
            .unwrap();
        lab.spies[0].put(used.physical, &[5; BLOCK]);
        let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        scrub.run().unwrap();
        let report = scrub.report();
        assert_eq!(report.totals().errors(), 1, "{profile}: {:#?}", report.damages);
        if can_mend {
            assert_eq!(
                report.totals().corrected_errors,
                1,
                "{profile}: {:#?}",
                report.damages
            );
            assert!(lab.contents(&uses) == before, "{profile}");
        }
        assert!(report.devices.iter().any(|device| device.missing));
    }
}

#[test]
fn mixed_block_groups_and_all_checksums() {
    for checksum in [
        ChecksumType::Crc32c,
        ChecksumType::Xxhash64,
        ChecksumType::Sha256,
        ChecksumType::Blake2b,
    ] {
        let make = Make {
            checksum,
            mixed: true,
            ..Make::new(Profile::Dup, 1)
        };
        let lab = Lab::new(&make).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        for is_data in [true, false] {
            let used = uses.iter().find(|used| used.is_data == is_data).unwrap();
            lab.spies[0].put(used.physical + 200, &[5]);
            let report = lab.scrub().unwrap();
            assert_eq!(
                (report.totals().csum_errors, report.totals().corrected_errors),
                (1, 1),
                "{checksum}"
            );
            assert!(lab.contents(&uses) == before);
        }
    }
}

#[test]
fn damage_beyond_the_list_is_counted() {
    let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
    let uses = lab.uses().unwrap();
    let trees: Vec<&Use> = uses
        .iter()
        .filter(|used| !used.is_data && used.device == 0)
        .collect();
    for used in &trees {
        let mut bytes = lab.spies[0].read(used.physical, used.length);
        let last = bytes.len() - 1;
        bytes.as_mut_bytes()[last] ^= 1;
        lab.spies[0].put(used.physical, &bytes);
    }
    let report = lab
        .scrub_with(Options {
            damages_max: 2,
            ..Options::default()
        })
        .unwrap();
    assert_eq!(report.damages.len(), 2);
    assert_eq!(report.damages_unlisted, trees.len() as u64 - 2);
    assert_eq!(report.totals().corrected_errors, trees.len() as u64);
}

/// On simulated devices all happens on one thread, in virtual time: the same damage gives the same report, and the same figures.
#[test]
fn simulated_devices_give_the_same_each_time() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let run = || {
            for used in uses.iter().filter(|used| used.is_data && used.device == 0) {
                if profile != Profile::Dup || used.content != (MappingContent::Data { copy: 2 }) {
                    lab.spies[0].put(used.physical, &[7; BLOCK]);
                }
            }
            let clock = VirtualClock::new();
            let simulated = |device: Device| device.as_if_on(&Model::nvme_ssd(), &clock);
            let devices: Vec<Device> = lab.devices().into_iter().map(simulated).collect();
            let filesystem = buttress_fs::OpenOptions::new(devices.clone()).open().unwrap();
            let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
            scrub.run().unwrap();
            let figures: Vec<String> = devices
                .iter()
                .map(|device| device.statistics().to_string())
                .collect();
            (scrub.report(), figures)
        };
        let (first, second) = (run(), run());
        assert_eq!(first, second, "{profile}");
        assert!(first.0.totals().corrected_errors > 0, "{profile}");
        assert!(!first.0.has_uncorrectable(), "{profile}: {:#?}", first.0.damages);
        assert!(lab.contents(&uses) == before, "{profile}");
    }
}

/// A device that was away while the volume was written: what it missed is written to it. Its superblock stays behind.
#[test]
fn a_device_that_missed_commits_gets_what_it_missed() {
    for (profile, devices) in REDUNDANT.into_iter().filter(|(_, devices)| *devices > 1) {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let away = lab.spies[1].memory.snapshot();
        let filesystem = WritableFilesystem::new(lab.open().unwrap(), WriteOptions::default()).unwrap();
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let file = filesystem
            .create(root, b"missed", &NewInode::of_root(0o644))
            .unwrap();
        let content = Random::new(9).bytes(300_000, false);
        filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
        filesystem.close().unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        lab.spies[1].put(0, &away);
        let filesystem = lab.open().unwrap();
        assert!(filesystem.volume().devices()[1].stale().is_some(), "{profile}");
        drop(filesystem);
        let report = lab.scrub().unwrap();
        assert!(report.totals().corrected_errors > 0, "{profile}");
        assert!(!report.has_uncorrectable(), "{profile}: {:#?}", report.damages);
        assert!(lab.contents(&uses) == before, "{profile}");
    }
}
