//! Tests of damage at known places of small volumes: scrub repairs everything repairable byte for
//! byte, touches nothing else, and reports the rest.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use crate::support;

use buttress_format::node::RawHeader;
use buttress_format::{ChecksumType, DeviceStatistics, Generation, Physical, Profile, Superblock, TreeId};
use buttress_fs::Progress;
use buttress_scrub::{Cause, Options, Outcome, Part, Scrub};
use buttress_volume::MappingContent;
use buttress_writer::{WritableFilesystem, WriteOptions};
use support::{Lab, Make, REDUNDANT, Use};
use zerocopy::FromBytes;

const BLOCK: usize = 4096;

/// Returns all blocks of the given extents.
fn blocks(uses: &[Use]) -> Vec<(Use, u64)> {
    let blocks = |used: &Use| {
        let used = used.clone();
        (0..used.length)
            .step_by(BLOCK)
            .map(move |offset| (used.clone(), used.physical + offset as u64))
    };
    uses.iter().flat_map(blocks).collect()
}

/// The number of blocks tried over all profiles; `BUTTRESS_SOAK` requests all.
const TRIED: usize = 2000;

#[test]
fn each_block_of_each_copy_is_mended_and_nothing_else_is_touched() {
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    let mut random = support::random(1);
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let blocks = blocks(&uses);
        let step = match all {
            true => 1,
            false => blocks.len().div_ceil(TRIED / REDUNDANT.len()),
        };
        let first = random.below(step as u64) as usize;
        let tried = blocks.iter().skip(first).step_by(step);
        eprintln!(
            "{profile}: {} of {} blocks spoilt in turn",
            tried.len(),
            blocks.len()
        );
        for (used, physical) in tried {
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
    let mut random = support::random(2);
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
            // The second superblock of the lost device is damaged too.
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

/// Damages runs of adjacent blocks on one device, like a scratch or a bad cable.
#[test]
fn bursts_are_repaired_and_nothing_else_is_touched() {
    let mut random = support::random(12);
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        for burst in 0..10 {
            let hit = &uses[random.below(uses.len() as u64) as usize];
            let start = hit.physical + random.below(hit.length as u64 / BLOCK as u64) * BLOCK as u64;
            let end = start + (1 + random.below(64)) * BLOCK as u64;
            // Damage one copy of content that has two copies on its device. The space between the
            // two damaged extents is not in use.
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
                    // A tree block is damaged as a whole.
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

/// The extents that share a RAID6 row with an extent of data, by column. The test damages two of
/// these extents at the same offset.
#[test]
fn raid6_with_two_wrong_in_a_row_is_mended_and_with_three_is_told() {
    let lab = Lab::new(&Make::new(Profile::Raid6, 5)).unwrap();
    let uses = lab.uses().unwrap();
    let before = lab.contents(&uses);
    let mut random = support::random(3);
    // A row full of data has three uses with the same `P`.
    let place_of = |data: &Use, parity: MappingContent| {
        let is_its = |used: &&Use| used.content == parity && used.logical == data.logical;
        uses.iter().find(is_its)
    };
    let is_full = |used: &&Use| used.is_data && used.length == 65536 && used.is_copy();
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
    let spoilt: Vec<&Use> = row.iter().filter(|used| used.is_copy()).copied().collect();
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
        // The list of tried columns has the damaged column itself and the two other columns.
        assert_eq!(tried.len(), 3, "{tried:?}");
    }
}

/// A tree block of an older transaction, and a tree block that belongs elsewhere.
#[test]
fn lost_and_misdirected_writes_are_told_from_rot_and_mended() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        let is_tree = |used: &&Use| !used.is_data && used.is_copy();
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
        // The next commit adds these errors to the device's statistics.
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
    // A superblock of a device that missed commits.
    let (device, at) = places[3];
    let good = Superblock::check(&before[3], Physical::new(at)).unwrap();
    let generation = Generation::new(good.generation.get() - 1);
    let old = Superblock { generation, ..good };
    lab.spies[device].put(at, &old.encode().unwrap());
    let report = lab.scrub().unwrap();
    assert_eq!(report.totals().super_errors, 1, "{:#?}", report.damages);
    assert_eq!(lab.spies[device].read(at, BLOCK), before[3]);
    // The superblock of another device of the same volume.
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
    // A device that drops writes to it.
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
fn differing_copies_without_checksums_are_reported_only() {
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
        // Copies of preallocated data that was never written may differ.
        let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        let scrub = scrub.asking(&|_, _, _| Vec::new());
        scrub.run().unwrap();
        assert_eq!(
            scrub.report().totals().unverified_errors,
            0,
            "{profile} {:#?}",
            scrub.report().damages
        );
    }
}

/// Returns whether data has no checksum in the checksum tree.
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
