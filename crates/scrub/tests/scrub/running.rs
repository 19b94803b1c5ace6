//! Tests of running scrubs: the ranges that they read, stopping and resuming, missing or stale
//! devices, simulated devices, and more damage than the report lists.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_device::{Device, VirtualClock};
use buttress_format::{FileOffset, Profile, SubvolumeId};
use buttress_fs::{Location, Progress};
use buttress_lab::Model;
use buttress_oracle::content::Random;
use buttress_scrub::{Options, Outcome, Position, Scrub};
use buttress_volume::MappingContent;
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use support::{Lab, Make, REDUNDANT, Use};
use zerocopy::IntoBytes;

const BLOCK: usize = 4096;

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
fn used_ranges_are_read_exactly_once() {
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
fn stopped_scrub_continues_at_its_position() {
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
                // The groups are small, so that the scrub has many groups.
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
fn degraded_volumes_are_scrubbed_without_missing_devices() {
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
            .find(|used| used.is_data && used.device == 0 && used.is_copy())
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

/// On simulated devices everything runs on one thread in virtual time: equal damage gives equal
/// reports and figures.
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
            let simulated = |device: Device| buttress_lab::as_if_on(&device, &Model::nvme_ssd(), &clock);
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

/// A scrub of a stale device changes nothing on it: missed writes are no damage.
#[test]
fn a_scrub_leaves_a_device_that_missed_commits() {
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
        lab.spies[1].put(0, &away);
        let filesystem = lab.open().unwrap();
        assert!(filesystem.volume().devices()[1].stale().is_some(), "{profile}");
        drop(filesystem);
        let report = lab.scrub().unwrap();
        assert!(report.totals().missed > 0, "{profile}");
        assert_eq!(report.totals().errors(), 0, "{profile}: {:#?}", report.damages);
        assert!(lab.spies[1].memory.snapshot() == away, "{profile}");
    }
}
