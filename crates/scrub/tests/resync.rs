//! Devices that missed commits: brought up to date, cut off at every write of that, counted by a scrub, refused where they were
//! written apart from the volume.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

mod support;

use buttress_device::crash::{CrashLab, Event, History, Outcome as Cut};
use buttress_device::{Backend, Device, Engine};
use buttress_format::{FileOffset, Generation, Profile, SubvolumeId};
use buttress_fs::{Filesystem, Follow, Location, Progress};
use buttress_oracle::content::Random;
use buttress_scrub::resync::devices_behind;
use buttress_scrub::{Options, Report, Resync, ResyncOptions, Resynced, Scrub};
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::NewInode;
use std::sync::Arc;
use support::replacing::{check_files, open, tolerated, writable};
use support::{Lab, Make, REDUNDANT, Spy};

/// Cuts that are tried of each run, unless `BUTTRESS_SOAK` asks for all.
const CUTS: usize = 12;

type Files = Vec<(String, Vec<u8>)>;

const fn root() -> Location {
    Location::root_of(SubvolumeId::TOP_LEVEL)
}

/// Every redundant profile that can lose a device, with a number of devices; also those of parity with one data column, where
/// each device is readable alone.
fn profiles() -> Vec<(Profile, usize)> {
    let redundant = REDUNDANT.into_iter();
    let redundant = redundant.filter(|(profile, _)| tolerated(*profile) > 0);
    redundant
        .chain([(Profile::Raid5, 2), (Profile::Raid6, 3)])
        .collect()
}

/// A volume of which some devices missed several sessions.
struct Away {
    lab: Lab,
    /// The files at the generation of the devices that were away, and now.
    old: Files,
    new: Files,
    since: Generation,
    /// Of each device whether it could be read alone.
    alone: Vec<bool>,
}

fn content_of(filesystem: &Filesystem, name: &str) -> Vec<u8> {
    let path = format!("/{name}");
    let location = filesystem.resolve(root(), path.as_bytes(), Follow::All).unwrap();
    let file = filesystem.open_file(location).unwrap();
    let mut content = vec![0; 1 << 20];
    let length = file.read_at(FileOffset::MIN, &mut content).unwrap();
    content.truncate(length);
    content
}

fn files_of(filesystem: &Filesystem, names: &[&str]) -> Files {
    let file = |name: &&str| ((*name).to_owned(), content_of(filesystem, name));
    names.iter().map(file).collect()
}

/// Writes over files, and makes one. What one session frees the next one uses.
fn write(filesystem: &WritableFilesystem, session: u64) {
    let mut random = Random::new(100 + session);
    for (name, length) in [("a", 600_000), ("c", 70_000)] {
        let path = format!("/{name}");
        let file = filesystem
            .view()
            .resolve(root(), path.as_bytes(), Follow::All)
            .unwrap();
        // Histories that are to differ in what they allocate.
        let more = if session < 70 { 0 } else { 40_000 };
        let content = random.bytes(length + more, false);
        filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
    }
    let name = format!("session-{session}");
    let file = filesystem
        .create(root(), name.as_bytes(), &NewInode::of_root(0o644))
        .unwrap();
    let content = random.bytes(90_000, false);
    filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
}

fn session(devices: Vec<Device>, number: u64) {
    let filesystem = writable(devices).unwrap();
    write(&filesystem, number);
    filesystem.close().unwrap();
}

impl Away {
    fn new(make: &Make, away: &[usize], sessions: u64) -> Self {
        let lab = Lab::new(make).unwrap();
        let names = ["a", "b", "c"];
        let before = lab.open().unwrap();
        let since = before.superblock().generation;
        let old = files_of(&before, &names);
        drop(before);
        for number in 0..sessions {
            session(Self::present(&lab, away), number);
        }
        let all = open(lab.devices()).unwrap();
        assert!(all.superblock().generation > since);
        let behind = all.volume().devices();
        let behind = behind.iter().filter(|slot| slot.stale().is_some()).count();
        assert_eq!(behind, away.len());
        let new = files_of(&all, &["a", "b", "c", "session-0"]);
        assert!(old[0] != new[0]);
        let alone = |spy: &Arc<Spy>| is_whole_alone(spy.device(), &["a", "b", "c"]);
        let alone = lab.spies.iter().map(alone).collect();
        Self {
            old,
            new,
            since,
            alone,
            lab,
        }
    }

    fn present(lab: &Lab, away: &[usize]) -> Vec<Device> {
        let there = lab.spies.iter().enumerate();
        let there = there.filter(|(number, _)| !away.contains(number));
        there.map(|(_, spy)| spy.device()).collect()
    }

    /// What a device must hold alone: its own state, or the volume's. Returns whether it is the volume's.
    fn require_alone(&self, number: usize, device: Device, what: &str) -> bool {
        let what = format!("{what}, device {} alone", number + 1);
        let alone = open(vec![device]).unwrap_or_else(|error| panic!("{what}: {error}"));
        let is_old = alone.superblock().generation == self.since;
        check_files(&alone, if is_old { &self.old } else { &self.new });
        let report = scrub(&alone, true);
        assert_eq!(report.unwalked, Vec::<String>::new(), "{what}");
        assert_eq!(
            report.totals().uncorrectable_errors,
            0,
            "{what}: {:#?}",
            report.damages
        );
        assert_eq!(report.totals().csum_errors, 0, "{what}: {:#?}", report.damages);
        !is_old
    }
}

fn scrub(filesystem: &Filesystem, read_only: bool) -> Report {
    let options = Options {
        read_only,
        ..Options::default()
    };
    let scrub = Scrub::new(filesystem, options, Progress::new()).unwrap();
    scrub.run().unwrap();
    scrub.report()
}

/// Whether a device alone gives all of its state, some files among that.
fn is_whole_alone(device: Device, names: &[&str]) -> bool {
    let Ok(filesystem) = open(vec![device]) else {
        return false;
    };
    let mut files = names.iter().map(|name| {
        let path = format!("/{name}");
        let location = filesystem.resolve(root(), path.as_bytes(), Follow::All).ok()?;
        let file = filesystem.open_file(location).ok()?;
        file.read_at(FileOffset::MIN, &mut vec![0; 1 << 20]).ok()
    });
    if files.any(|length| length.is_none()) {
        return false;
    }
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let Ok(scrub) = Scrub::new(&filesystem, options, Progress::new()) else {
        return false;
    };
    scrub.run().unwrap();
    let report = scrub.report();
    report.unwalked.is_empty() && report.totals().uncorrectable_errors == 0
}

fn resync(filesystem: &WritableFilesystem) -> Resynced {
    Resync::new(filesystem.clone(), ResyncOptions::default(), Progress::new())
        .run()
        .unwrap()
}

/// Nothing is wrong anywhere, and nothing is missed.
fn require_up_to_date(devices: Vec<Device>, what: &str) {
    let filesystem = open(devices).unwrap_or_else(|error| panic!("{what}: {error}"));
    let generation = filesystem.superblock().generation;
    for slot in filesystem.volume().devices() {
        assert_eq!(slot.stale(), None, "{what}, at {generation}");
    }
    let report = scrub(&filesystem, true);
    assert_eq!(report.totals().errors(), 0, "{what}: {:#?}", report.damages);
    assert_eq!(
        report.totals().unverified_errors,
        0,
        "{what}: {:#?}",
        report.damages
    );
    assert_eq!(report.totals().missed, 0, "{what}");
    assert_eq!(report.unwalked, Vec::<String>::new(), "{what}");
}

/// How many devices are away in the cases of a profile.
fn cases(profile: Profile) -> Vec<Vec<usize>> {
    (1..=tolerated(profile))
        .map(|count| (0..count).collect())
        .collect()
}

#[test]
fn devices_that_missed_commits_are_brought_up_to_date() {
    for (profile, devices) in profiles() {
        for away in cases(profile) {
            let make = Make {
                bare: true,
                ..Make::new(profile, devices)
            };
            let what = format!("{profile} on {devices}, away {away:?}");
            let volume = Away::new(&make, &away, 3);
            let filesystem = writable(volume.lab.devices()).unwrap();
            assert_eq!(
                devices_behind(filesystem.committed_view().volume()).len(),
                away.len()
            );
            let resynced = resync(&filesystem);
            assert_eq!(resynced.devices.len(), away.len(), "{what}");
            assert!(resynced.devices.iter().all(|device| device.since == volume.since));
            assert!(resynced.devices.iter().all(|device| device.missed.get() > 0));
            // The device takes part in what follows.
            write(&filesystem, 50);
            filesystem.close().unwrap();
            require_up_to_date(volume.lab.devices(), &what);
            let readable = (0..devices).filter(|number| volume.alone[*number]);
            for number in readable {
                let alone = open(vec![volume.lab.spies[number].device()]).unwrap();
                check_files(&alone, &volume.new[1..2]);
                assert!(
                    is_whole_alone(volume.lab.spies[number].device(), &["a", "b"]),
                    "{what}: {number}"
                );
            }
            if matches!(profile, Profile::Raid1 | Profile::Raid1C3 | Profile::Raid1C4) {
                assert!(volume.alone.iter().all(|alone| *alone), "{what}");
            }
        }
    }
}

#[test]
fn a_scrub_counts_what_a_device_missed_and_leaves_it() {
    for (profile, devices) in profiles() {
        let volume = Away::new(&Make::new(profile, devices), &[0], 2);
        volume.lab.take_writes();
        let report = scrub(&open(volume.lab.devices()).unwrap(), false);
        assert!(report.totals().missed > 0, "{profile}");
        assert_eq!(report.totals().errors(), 0, "{profile}: {:#?}", report.damages);
        assert_eq!(volume.lab.spies[0].take_writes(), Vec::new(), "{profile}");
        if volume.alone[0] {
            assert!(!volume.require_alone(0, volume.lab.spies[0].device(), "after a scrub"));
        }
    }
}

/// A second run reads, and writes nothing again.
#[test]
fn what_an_interrupted_run_wrote_is_not_written_again() {
    let volume = Away::new(&Make::new(Profile::Raid1, 2), &[1], 1);
    let filesystem = writable(volume.lab.devices()).unwrap();
    let progress = Progress::new();
    // Well behind what is read before the job begins to write.
    let behind = devices_behind(filesystem.committed_view().volume());
    let returning = filesystem.begin_return(behind[0].uuid()).unwrap();
    assert!(returning.missed().get() > 500_000);
    drop(returning);
    volume.lab.spies[1].take_reads();
    progress.cancel();
    let stopped = Resync::new(filesystem.clone(), ResyncOptions::default(), progress).run();
    assert!(stopped.is_err());
    let first = resync(&filesystem);
    assert!(first.devices[0].written.get() > 500_000);
    filesystem.close().unwrap();
    // As if the device's superblock had not come: its blocks are there.
    let stale = Away::new(&Make::new(Profile::Raid1, 2), &[1], 1);
    let filesystem = writable(stale.lab.devices()).unwrap();
    let superblocks: Vec<(u64, Vec<u8>)> = [64 << 10, 64 << 20]
        .map(|at| (at, stale.lab.spies[1].read(at, 4096)))
        .into();
    resync(&filesystem);
    filesystem.close().unwrap();
    for (at, bytes) in superblocks {
        stale.lab.spies[1].put(at, &bytes);
    }
    let filesystem = writable(stale.lab.devices()).unwrap();
    let again = resync(&filesystem);
    assert_eq!(again.devices[0].written.get(), 0);
    filesystem.close().unwrap();
    require_up_to_date(stale.lab.devices(), "again");
}

/// Data without checksums: what is newer than a device is not read from it, and after its return it is.
fn bare_data_of_a_stale_device(profile: Profile, devices: usize) {
    let make = Make {
        bare: true,
        ..Make::new(profile, devices)
    };
    let lab = Lab::new(&make).unwrap();
    let old = content_of(&lab.open().unwrap(), "bare");
    let filesystem = writable(Away::present(&lab, &[1])).unwrap();
    let file = filesystem.view().resolve(root(), b"/bare", Follow::All).unwrap();
    let new = Random::new(3).bytes(old.len(), false);
    filesystem.write_at(file, FileOffset::MIN, &new).unwrap();
    filesystem.close().unwrap();
    let uses = lab.uses().unwrap();
    let bare: Vec<_> = uses
        .iter()
        .filter(|used| used.is_data && used.is_copy() && used.device == 0)
        .filter(|used| {
            let bytes = lab.spies[0].read(used.physical, 4096);
            new.chunks(4096).any(|sector| sector == bytes)
        })
        .collect();
    assert!(!bare.is_empty(), "{profile}");
    for used in &bare {
        let end = used.physical + used.length as u64;
        lab.spies[0].make_unreadable(used.physical..end);
    }
    let filesystem = open(lab.devices()).unwrap();
    let location = filesystem.resolve(root(), b"/bare", Follow::All).unwrap();
    let mut read = vec![0; old.len()];
    let result = filesystem
        .open_file(location)
        .and_then(|file| file.read_at(FileOffset::MIN, &mut read));
    assert!(result.is_err(), "{profile}: old data was read");
    drop(filesystem);
    // The sectors come back with the device that is written again.
    for used in &bare {
        let bytes = lab.spies[0].read(used.physical, used.length);
        lab.spies[0].device().write(used.physical, &bytes).unwrap();
    }
    let filesystem = writable(lab.devices()).unwrap();
    resync(&filesystem);
    filesystem.close().unwrap();
    require_up_to_date(lab.devices(), &profile.to_string());
    for used in &bare {
        let end = used.physical + used.length as u64;
        lab.spies[0].make_unreadable(used.physical..end);
    }
    assert!(
        content_of(&open(lab.devices()).unwrap(), "bare") == new,
        "{profile}"
    );
}

#[test]
fn a_stale_copy_serves_no_data_without_checksums() {
    bare_data_of_a_stale_device(Profile::Raid1, 2);
}

#[test]
fn a_stale_column_rebuilds_no_data_without_checksums() {
    bare_data_of_a_stale_device(Profile::Raid5, 3);
}

#[test]
fn devices_that_were_written_apart_are_refused() {
    for (on_first, on_second) in [(1, 1), (2, 1), (1, 3)] {
        let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
        let [first, second] = [0, 1].map(|number| lab.spies[number].device());
        (0..on_first).for_each(|number| session(vec![first.clone()], number));
        // Once both histories allocate the same, and only what blocks hold differs.
        let base = if on_first == on_second { 20 } else { 70 };
        (0..on_second).for_each(|number| session(vec![second.clone()], base + number));
        let generation = |device: &Device| {
            let alone = open(vec![device.clone()]).unwrap();
            alone.superblock().generation.to_string()
        };
        let generations = [generation(&first), generation(&second)];
        let Err(error) = open(vec![first, second]) else {
            panic!("{on_first} and {on_second} sessions apart: opened");
        };
        let error = error.to_string();
        assert!(generations.iter().all(|number| error.contains(number)), "{error}");
        assert!(error.contains("written without the other"), "{error}");
    }
}

/// Where superblocks do not tell, the device is refused when it is to be written, and nothing is written to it.
#[test]
fn a_device_that_was_written_apart_unseen_is_not_written() {
    for (on_first, number) in [(8, 70), (8, 20), (2, 20)] {
        let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
        let [first, second] = [0, 1].map(|number| lab.spies[number].device());
        session(vec![second.clone()], number);
        (0..on_first).for_each(|number| session(vec![first.clone()], number));
        lab.take_writes();
        let filesystem = writable(vec![first, second]).unwrap();
        let resync = Resync::new(filesystem.clone(), ResyncOptions::default(), Progress::new());
        let Err(error) = resync.run() else {
            panic!("{on_first} sessions: written over");
        };
        assert!(error.to_string().contains("written without the other"), "{error}");
        filesystem.close().unwrap();
        assert_eq!(lab.spies[1].take_writes(), Vec::new());
    }
}

fn record(crashes: &CrashLab, spies: &[Arc<Spy>]) -> Vec<Device> {
    let record = |spy: &Arc<Spy>| device(&crashes.device(Arc::clone(spy) as Arc<dyn Backend>));
    spies.iter().map(record).collect()
}

fn device(image: &Arc<dyn Backend>) -> Device {
    Device::with_backend(Arc::clone(image), Engine::Inline)
}

/// Cuts at which no row of RAID5 or RAID6 is half written: what a row held on devices that do not count is lost when it is, the
/// write hole.
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

/// Work on a volume of which devices missed commits, cut off at every write: each device alone gives what it gave before, or the
/// volume's state; the volume has what it had; a resynchronisation brings all up to date. How often a device that was away was
/// found at its own state, and at the volume's.
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
            // What a repair had not come to, and copies of superblocks of a commit that was cut off.
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
