//! Tests of devices that missed commits: degraded writes, returns, and scrubs, each cut at every
//! write.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine};
use buttress_format::Profile;
use buttress_lab::crash::{CrashLab, Event, History, Outcome as Cut};
use std::sync::Arc;
use support::away::{
    Away, cases, is_whole_alone, profiles, require_up_to_date, resync, scrub, session, write,
};
use support::replacing::{check_files, open, spoil, writable};
use support::{Make, Spy};

/// The cuts that each run tries, unless `BUTTRESS_SOAK` requests all.
const CUTS: usize = 12;

fn record(crashes: &CrashLab, spies: &[Arc<Spy>]) -> Vec<Device> {
    let record = |spy: &Arc<Spy>| device(&crashes.device(Arc::clone(spy) as Arc<dyn Backend>));
    spies.iter().map(record).collect()
}

fn device(image: &Arc<dyn Backend>) -> Device {
    Device::with_backend(Arc::clone(image), Engine::Inline)
}

/// Returns cuts at which no row of RAID5 or RAID6 is half-written. A half-written row loses the
/// data of devices that are not used: the write hole.
fn cuts(history: &History, profile: Profile, devices: usize) -> Vec<usize> {
    if !matches!(profile, Profile::Raid5 | Profile::Raid6) || devices < 4 && profile == Profile::Raid6 {
        return (0..=history.len()).collect();
    }
    let mut open = vec![false; devices];
    let mut cuts = vec![0];
    for (number, event) in history.events().enumerate() {
        match event {
            Event::Write {
                device, offset_bytes, ..
            } if !matches!(*offset_bytes, 0x1_0000 | 0x400_0000) => open[*device] = true,
            Event::Flush { device } => open[*device] = false,
            _ => {}
        }
        if !open.contains(&true) {
            cuts.push(number + 1);
        }
    }
    cuts
}

/// Simulates a power cut at every write of some work on a volume with stale devices. Opened alone,
/// each device has its old state or the volume's state. The volume keeps its content, and a
/// resynchronisation updates all devices. Returns how often an away device was found in its own
/// state, and in the volume's.
fn cut_off(
    what: &str,
    volume: &Away,
    (profile, away): (Profile, &[usize]),
    work: impl FnOnce(Vec<Device>),
) -> (usize, usize) {
    let devices = volume.lab.spies.len();
    let crashes = CrashLab::new();
    work(record(&crashes, &volume.lab.spies));
    let history = crashes.history();
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    let cuts = cuts(&history, profile, devices);
    let step = if all { 1 } else { cuts.len().div_ceil(CUTS) };
    let (mut tried, mut at_old, mut at_new) = (0, 0, 0);
    let unchanged = &volume.new[1..2];
    for cut in cuts.into_iter().rev().step_by(step) {
        let drawn = Cut::Drawn {
            seed: support::seed(cut as u64),
        };
        for outcome in [Cut::AllKept, Cut::NoneKept, drawn] {
            let what = format!(
                "{profile}, away {away:?}, {what}, cut {cut} of {}, {outcome:?}",
                history.len()
            );
            let images = history.images_at(cut, outcome);
            for number in (0..devices).filter(|number| volume.alone[*number]) {
                let alone = open(vec![device(&images[number])]);
                let alone = alone.unwrap_or_else(|error| panic!("{what}, device {number} alone: {error}"));
                let is_old = alone.superblock().generation == volume.since;
                check_files(&alone, if is_old { &volume.old } else { unchanged });
                drop(alone);
                let is_whole = is_whole_alone(device(&images[number]), &["a", "b", "c"]);
                assert!(is_whole, "{what}: device {number} alone");
                if away.contains(&number) {
                    let count = if is_old { &mut at_old } else { &mut at_new };
                    *count += 1;
                }
            }
            let given: Vec<Device> = images.iter().map(device).collect();
            let filesystem = writable(given.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
            check_files(&filesystem.view(), unchanged);
            resync(&filesystem);
            write(&filesystem, 62);
            filesystem.close().unwrap();
            for number in (0..devices).filter(|number| volume.alone[*number]) {
                let is_whole = is_whole_alone(device(&images[number]), &["a", "b", "c"]);
                assert!(is_whole, "{what}: device {number} alone after all was written");
            }
            // The errors are damage that the repair had not reached, and superblock copies of an
            // interrupted commit.
            let scrubbed = open(given.clone()).unwrap();
            assert_eq!(scrub(&scrubbed, false).totals().uncorrectable_errors, 0, "{what}");
            drop(scrubbed);
            require_up_to_date(given, &what);
            tried += 1;
        }
    }
    eprintln!(
        "{profile} on {devices}, away {away:?}, {what}: {} events, {tried} crashes, alone {at_old} times at the old state, \
         {at_new} at the new",
        history.len()
    );
    assert!(history.len() > CUTS, "{what}: {} events", history.len());
    (at_old, at_new)
}

#[test]
fn a_device_is_never_less_readable_alone_wherever_its_return_is_cut() {
    for (profile, devices) in profiles() {
        for away in cases(profile) {
            let volume = Away::new(&Make::new(profile, devices), &away, 3);
            let (at_old, at_new) = cut_off("return", &volume, (profile, &away), |given| {
                let filesystem = writable(given).unwrap();
                write(&filesystem, 60);
                filesystem.commit().unwrap();
                resync(&filesystem);
                write(&filesystem, 61);
                filesystem.close().unwrap();
            });
            if volume.alone[away[0]] {
                assert!(at_old > 0 && at_new > 0, "{profile}");
            }
        }
    }
}

#[test]
fn a_degraded_write_that_is_cut_off_leaves_devices_that_return() {
    for (profile, devices) in profiles() {
        for away in cases(profile) {
            let volume = Away::new(&Make::new(profile, devices), &away, 1);
            let (_, at_new) = cut_off("degraded write", &volume, (profile, &away), |given| {
                let there = given.into_iter().enumerate();
                let there = there.filter(|(number, _)| !away.contains(number));
                session(there.map(|(_, device)| device).collect(), 60);
            });
            assert_eq!(at_new, 0, "{profile}");
        }
    }
}

/// Scrubs a volume with one stale device and another that is damaged.
#[test]
fn interrupted_scrub_does_not_change_stale_device() {
    for (profile, devices) in [(Profile::Raid1C3, 3), (Profile::Raid1C4, 4), (Profile::Raid6, 4)] {
        let mut volume = Away::new(&Make::new(profile, devices), &[0], 2);
        let uses = volume.lab.uses().unwrap();
        spoil(&volume.lab.spies[1], &uses, 1, 17);
        volume.alone[1] = false;
        let (_, at_new) = cut_off("scrub", &volume, (profile, &[0]), |given| {
            let report = scrub(&open(given).unwrap(), false);
            assert!(report.totals().corrected_errors > 0, "{profile}");
            assert_eq!(
                report.totals().uncorrectable_errors,
                0,
                "{profile}: {:#?}",
                report.damages
            );
        });
        assert_eq!(at_new, 0, "{profile}");
    }
}

/// The first commit without a device is cut between superblocks. The device then has the previous
/// commit's superblock, like a device that was present at the cut.
#[test]
fn the_first_degraded_commit_that_is_cut_off_leaves_devices_behind() {
    for (profile, devices) in profiles() {
        for away in cases(profile) {
            let volume = Away::new(&Make::new(profile, devices), &away, 0);
            cut_off("first degraded write", &volume, (profile, &away), |given| {
                let there = given.into_iter().enumerate();
                let there = there.filter(|(number, _)| !away.contains(number));
                session(there.map(|(_, device)| device).collect(), 60);
            });
        }
    }
}
