//! Tests of devices that missed commits: brought up to date, counted by a scrub, refused after
//! divergent writes.
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

use buttress_device::Device;
use buttress_format::{FileOffset, Profile};
use buttress_fs::Progress;
use buttress_oracle::content::Random;
use buttress_scrub::resync::devices_behind;
use buttress_scrub::{Resync, ResyncOptions};
use buttress_writer::WritableFilesystem;
use buttress_writer::data::AllocateMode;
use buttress_writer::operations::NewInode;
use support::away::{
    Away, cases, is_whole_alone, profiles, require_up_to_date, resync, root, scrub, session, write,
};
use support::replacing::{check_files, open, writable};
use support::{Lab, Make};

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
            // The returning device receives the following writes.
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

/// A second run of the resynchronisation only reads, and writes nothing again.
#[test]
fn writes_of_interrupted_run_are_not_repeated() {
    let volume = Away::new(&Make::new(Profile::Raid1, 2), &[1], 1);
    let filesystem = writable(volume.lab.devices()).unwrap();
    let progress = Progress::new();
    // An offset far beyond the ranges that the resync reads before it begins to write.
    let behind = devices_behind(filesystem.committed_view().volume());
    let returning = filesystem
        .devices()
        .begin_return(behind[0].uuid(), &Progress::new())
        .unwrap();
    assert!(returning.missed().get() > 500_000);
    drop(returning);
    volume.lab.spies[1].take_reads();
    progress.cancel();
    let stopped = Resync::new(filesystem.clone(), ResyncOptions::default(), progress).run();
    assert!(stopped.is_err());
    let first = resync(&filesystem);
    assert!(first.devices[0].written.get() > 500_000);
    filesystem.close().unwrap();
    // Pretend that only the stale device's superblock is missing: its blocks are present.
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

#[test]
fn devices_that_were_written_apart_are_refused() {
    for (on_first, on_second) in [(1, 1), (2, 1), (1, 3)] {
        let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
        let [first, second] = [0, 1].map(|number| lab.spies[number].device());
        (0..on_first).for_each(|number| session(vec![first.clone()], number));
        // In one case both histories allocate the same addresses, and only the content of blocks
        // differs.
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

/// If superblocks do not show the divergence, the device is refused before anything is written to
/// it.
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

/// Writes a file into extents that were preallocated while all devices were present.
#[test]
fn data_in_space_reserved_before_comes_with_the_return() {
    for (profile, devices) in profiles() {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let filesystem = writable(lab.devices()).unwrap();
        let reserved = filesystem
            .create(root(), b"reserved", &NewInode::of_root(0o644))
            .unwrap();
        let range = FileOffset::MIN..FileOffset::new(400_000);
        filesystem
            .allocate(reserved, range, AllocateMode::Allocate)
            .unwrap();
        filesystem.close().unwrap();
        let filesystem = writable(Away::present(&lab, &[0])).unwrap();
        let content = Random::new(11).bytes(400_000, false);
        filesystem.write_at(reserved, FileOffset::MIN, &content).unwrap();
        filesystem.close().unwrap();
        let filesystem = writable(lab.devices()).unwrap();
        resync(&filesystem);
        filesystem.close().unwrap();
        let what = profile.to_string();
        require_up_to_date(lab.devices(), &what);
        // A device other than the formerly absent device is lost.
        let others = Away::present(&lab, &[1]);
        check_files(&open(others).unwrap(), &[("reserved".to_owned(), content)]);
    }
}

/// Data without redundancy or checksums on a device that only lacks superblocks: no other device
/// has the data, and the device missed none of it.
#[test]
fn single_data_without_checksums_stays_on_its_device() {
    let make = Make {
        bare: true,
        data: Some(Profile::Single),
        ..Make::new(Profile::Raid1, 2)
    };
    let lab = Lab::new(&make).unwrap();
    let uses = lab.uses().unwrap();
    let home = &lab.spies[uses.iter().find(|used| used.is_data).unwrap().device];
    let superblocks = [64 << 10, 64 << 20].map(|at| (at, home.read(at, 4096)));
    for number in 0..2 {
        let filesystem = writable(lab.devices()).unwrap();
        let name = format!("directory-{number}");
        filesystem
            .make_directory(root(), name.as_bytes(), &NewInode::of_root(0o755))
            .unwrap();
        filesystem.close().unwrap();
    }
    for (at, bytes) in superblocks {
        home.put(at, &bytes);
    }
    let filesystem = writable(lab.devices()).unwrap();
    let resynced = resync(&filesystem);
    assert_eq!(resynced.devices.len(), 1);
    filesystem.close().unwrap();
    require_up_to_date(lab.devices(), "single data");
}

/// A device that is full of chunks has no place for stripes that must move. The stale device stays
/// unchanged, the error names it, and the volume continues without it.
#[test]
fn device_without_unallocated_space_stays_stale_and_is_named() {
    let volume = Away::with(&Make::new(Profile::Raid1, 2), &[0], 3, &|lab| fill(lab));
    let filesystem = writable(Away::present(&volume.lab, &[0])).unwrap();
    // Deleted extents of the device's own state are reused.
    for round in 0..2 {
        for number in 0..8 {
            let name = format!("full-{}", 16 * round + 2 * number + 1);
            let _gone = filesystem.unlink(root(), name.as_bytes());
        }
        filesystem.commit().unwrap();
        filesystem.commit().unwrap();
        for number in 0..6 {
            let name = format!("again-{round}-{number}");
            put(&filesystem, &name, number).unwrap();
        }
        filesystem.commit().unwrap();
    }
    filesystem.close().unwrap();
    let filesystem = writable(volume.lab.devices()).unwrap();
    let job = Resync::new(filesystem.clone(), ResyncOptions::default(), Progress::new());
    let error = job.run().unwrap_err().to_string();
    for part in [
        "device-0",
        "no space to move its stripes",
        "unallocated",
        "replace start",
    ] {
        assert!(error.contains(part), "{error}");
    }
    write(&filesystem, 60);
    filesystem.close().unwrap();
    assert!(!volume.require_alone(0, volume.lab.spies[0].device(), "refused"));
    assert!(is_whole_alone(volume.lab.spies[1].device(), &["a", "b", "c"]));
}

const FULL_BYTES: usize = 4 << 20;

fn put(filesystem: &WritableFilesystem, name: &str, seed: u64) -> buttress_fs::Result<()> {
    let file = filesystem.create(root(), name.as_bytes(), &NewInode::of_root(0o644))?;
    let content = Random::new(seed).bytes(FULL_BYTES, false);
    filesystem.write_at(file, FileOffset::MIN, &content)?;
    filesystem.writeback().write_all()
}

/// Fills the devices with chunks, and leaves half of the chunks' space free.
fn fill(lab: &Lab) {
    let filesystem = writable(lab.devices()).unwrap();
    let mut count = 0;
    while put(&filesystem, &format!("full-{count}"), count).is_ok() {
        count += 1;
        filesystem.commit().unwrap();
    }
    for number in (0..=count).step_by(2) {
        let name = format!("full-{number}");
        let _gone = filesystem.unlink(root(), name.as_bytes());
    }
    filesystem.commit().unwrap();
    filesystem.close().unwrap();
}
