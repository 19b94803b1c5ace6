//! Volumes with devices that missed commits: helpers that make such volumes, update their devices,
//! and read the content of each device alone.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests compute with known numbers, and a panic is how a test fails; each test uses a part of this"
)]

use super::replacing::{check_files, open, tolerated, writable};
use super::{Lab, Make, REDUNDANT, Spy};
use buttress_device::Device;
use buttress_format::{FileOffset, Generation, Profile, SubvolumeId};
use buttress_fs::{Filesystem, Follow, Location, Progress};
use buttress_scrub::{Options, Report, Resync, ResyncOptions, Resynced, Scrub};
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::NewInode;
use std::sync::Arc;

pub(crate) type Files = Vec<(String, Vec<u8>)>;

pub(crate) const fn root() -> Location {
    Location::root_of(SubvolumeId::TOP_LEVEL)
}

/// Returns every redundant profile that can lose a device, with a number of devices. Parity
/// profiles with one data column are included, since each of their devices is readable alone.
pub(crate) fn profiles() -> Vec<(Profile, usize)> {
    let redundant = REDUNDANT.into_iter();
    let redundant = redundant.filter(|(profile, _)| tolerated(*profile) > 0);
    redundant
        .chain([(Profile::Raid5, 2), (Profile::Raid6, 3)])
        .collect()
}

/// A volume of which some devices missed sessions, or will miss them.
pub(crate) struct Away {
    pub(crate) lab: Lab,
    /// The files at the generation of the absent devices, and the files now.
    pub(crate) old: Files,
    pub(crate) new: Files,
    pub(crate) since: Generation,
    /// For each device, true if it could be read alone.
    pub(crate) alone: Vec<bool>,
}

pub(crate) fn content_of(filesystem: &Filesystem, name: &str) -> Vec<u8> {
    let path = format!("/{name}");
    let location = filesystem.resolve(root(), path.as_bytes(), Follow::All).unwrap();
    let file = filesystem.open_file(location).unwrap();
    let mut content = vec![0; 1 << 20];
    let length = file.read_at(FileOffset::MIN, &mut content).unwrap();
    content.truncate(length);
    content
}

pub(crate) fn files_of(filesystem: &Filesystem, names: &[&str]) -> Files {
    let file = |name: &&str| ((*name).to_owned(), content_of(filesystem, name));
    names.iter().map(file).collect()
}

/// Overwrites files, and makes one. Each write session reuses the space that the previous session
/// freed.
pub(crate) fn write(filesystem: &WritableFilesystem, session: u64) {
    let mut random = super::random(100 + session);
    for (name, length) in [("a", 600_000), ("c", 70_000)] {
        let path = format!("/{name}");
        let file = filesystem
            .view()
            .resolve(root(), path.as_bytes(), Follow::All)
            .unwrap();
        // The histories of different sessions must differ in their allocations.
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

pub(crate) fn session(devices: Vec<Device>, number: u64) {
    let filesystem = writable(devices).unwrap();
    write(&filesystem, number);
    filesystem.close().unwrap();
}

impl Away {
    pub(crate) fn new(make: &Make, away: &[usize], sessions: u64) -> Self {
        Self::with(make, away, sessions, &|_| {})
    }

    /// Makes the same volume, and runs `before` on it before the devices leave.
    pub(crate) fn with(make: &Make, away: &[usize], sessions: u64, before: &dyn Fn(&Lab)) -> Self {
        let lab = Lab::new(make).unwrap();
        before(&lab);
        let names = ["a", "b", "c"];
        let before = lab.open().unwrap();
        let since = before.superblock().generation;
        let old = files_of(&before, &names);
        drop(before);
        for number in 0..sessions {
            session(Self::present(&lab, away), number);
        }
        let all = open(lab.devices()).unwrap();
        assert_eq!(all.superblock().generation > since, sessions > 0);
        let behind = all.volume().devices();
        let behind = behind.iter().filter(|slot| slot.stale().is_some()).count();
        assert_eq!(behind, if sessions > 0 { away.len() } else { 0 });
        let new = files_of(&all, &["a", "b", "c"]);
        assert_eq!(old[0] != new[0], sessions > 0);
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

    pub(crate) fn present(lab: &Lab, away: &[usize]) -> Vec<Device> {
        let there = lab.spies.iter().enumerate();
        let there = there.filter(|(number, _)| !away.contains(number));
        there.map(|(_, spy)| spy.device()).collect()
    }

    /// Requires that a device, opened alone, has its own old state or the volume's state. Returns
    /// whether the device has the volume's state.
    pub(crate) fn require_alone(&self, number: usize, device: Device, what: &str) -> bool {
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

pub(crate) fn scrub(filesystem: &Filesystem, read_only: bool) -> Report {
    let options = Options {
        read_only,
        ..Options::default()
    };
    let scrub = Scrub::new(filesystem, options, Progress::new()).unwrap();
    scrub.run().unwrap();
    scrub.report()
}

/// Returns whether a device, opened alone, has its whole state, including some files.
pub(crate) fn is_whole_alone(device: Device, names: &[&str]) -> bool {
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

pub(crate) fn resync(filesystem: &WritableFilesystem) -> Resynced {
    Resync::new(filesystem.clone(), ResyncOptions::default(), Progress::new())
        .run()
        .unwrap()
}

/// Requires that scrub finds no error and no missed writes.
pub(crate) fn require_up_to_date(devices: Vec<Device>, what: &str) {
    let unverified = require_up_to_date_except_in_place(devices, what);
    assert_eq!(unverified, 0, "{what}");
}

/// Requires that the devices are up to date, except for data that was overwritten in place. A power
/// cut can leave different copies of data that a write was overwriting, and it is unknown which
/// copy is right. Returns the number of differing sectors.
pub(crate) fn require_up_to_date_except_in_place(devices: Vec<Device>, what: &str) -> u64 {
    let filesystem = open(devices).unwrap_or_else(|error| panic!("{what}: {error}"));
    let generation = filesystem.superblock().generation;
    for slot in filesystem.volume().devices() {
        assert_eq!(slot.stale(), None, "{what}, at {generation}");
    }
    let report = scrub(&filesystem, true);
    assert_eq!(report.totals().errors(), 0, "{what}: {:#?}", report.damages);
    assert_eq!(report.totals().missed, 0, "{what}");
    assert_eq!(report.unwalked, Vec::<String>::new(), "{what}");
    report.totals().unverified_errors
}

/// Returns how many devices are away in the cases of a profile.
pub(crate) fn cases(profile: Profile) -> Vec<Vec<usize>> {
    (1..=tolerated(profile))
        .map(|count| (0..count).collect())
        .collect()
}
