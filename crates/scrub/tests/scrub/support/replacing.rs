//! Volumes whose devices are replaced: opening them, damaging them, and checking their files.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails; each test uses a part of this"
)]

use super::{Lab, Spy, Use};
use buttress_device::Device;
use buttress_format::{ByteCount, FileOffset, Profile, SubvolumeId};
use buttress_fs::{Filesystem, Location, OpenOptions, Progress};
use buttress_oracle::content::Random;
use buttress_scrub::{Error, Lost, Replace, ReplaceOptions, Replaced, Report};
use buttress_writer::{WritableFilesystem, WriteOptions};
use core::time::Duration;
use std::sync::Arc;

pub(crate) fn open(devices: Vec<Device>) -> buttress_fs::Result<Filesystem> {
    OpenOptions::new(devices)
        .cache(ByteCount::new(4 << 20))
        .degraded(true)
        .open()
}

pub(crate) fn writable(devices: Vec<Device>) -> buttress_fs::Result<WritableFilesystem> {
    WritableFilesystem::new(open(devices)?, WriteOptions::default())
}

pub(crate) fn often() -> ReplaceOptions {
    ReplaceOptions {
        commit_every: Duration::ZERO,
        ..ReplaceOptions::default()
    }
}

pub(crate) fn run(filesystem: &WritableFilesystem) -> Result<Replaced, Error> {
    Replace::new(filesystem.clone(), often(), Progress::new()).run()
}

/// Returns the lost bytes, their places and the report of a replacement, which must have finished and wiped the source.
pub(crate) fn finished(ended: Result<Replaced, Error>, what: &str) -> (ByteCount, Vec<Lost>, Report) {
    match ended {
        Ok(Replaced::Finished {
            lost,
            lost_places,
            unwiped,
            report,
        }) => {
            assert_eq!(unwiped, None, "{what}");
            (lost, lost_places, report)
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Returns the lab with the target in the place of a device.
pub(crate) fn lab_with_target(lab: &Lab, device: usize, target: Arc<Spy>) -> Lab {
    let mut spies = lab.spies.clone();
    spies[device] = target;
    Lab { spies }
}

/// Damages a third of a device's blocks in use.
pub(crate) fn spoil(spy: &Spy, uses: &[Use], device: usize, seed: u64) {
    let mut random = Random::new(seed);
    for used in uses.iter().filter(|used| used.device == device) {
        for at in (0..used.length as u64).step_by(4096) {
            if random.one_in(3) {
                spy.put(used.physical + at, &random.bytes(4096, false));
            }
        }
    }
}

/// Returns the number of devices that a profile can lose.
pub(crate) fn tolerated(profile: Profile) -> usize {
    match profile {
        Profile::Raid1 | Profile::Raid10 | Profile::Raid5 => 1,
        Profile::Raid1C3 | Profile::Raid6 => 2,
        Profile::Raid1C4 => 3,
        _ => 0,
    }
}

/// Checks the content of the lab's files and of a writer's files.
pub(crate) fn check_files(filesystem: &Filesystem, files: &[(String, Vec<u8>)]) {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    for (name, content) in files {
        let path = format!("/{name}");
        let location = filesystem
            .resolve(root, path.as_bytes(), buttress_fs::Follow::All)
            .unwrap();
        let file = filesystem.open_file(location).unwrap();
        let mut read = vec![0; content.len()];
        let length = file.read_at(FileOffset::MIN, &mut read).unwrap();
        assert_eq!(length, content.len(), "{name}");
        assert!(read == *content, "{name}");
    }
}
