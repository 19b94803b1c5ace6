//! Synced changes survive: random operations and syncs in the crash laboratory, cut at random
//! moments with random losses.
//!
//! A small tree of files, hard links and directories is changed at random, and parts of it are
//! synced ([`history`]). The test records the state of each inode after each operation
//! ([`moments`]). After a cut the volume is opened, which replays its log, and checked
//! ([`recovering`]). The test then verifies for each inode ([`promises`]):
//!
//! - A file's content is one that it has had since its last returned sync or, if later, the last
//!   commit.
//! - The names of a file, all together, are those of one moment since its last sync: a rename is
//!   atomic, and no living file is lost.
//! - The attributes of a file are those of one such moment.
//!
//! A synced directory has exactly the names that it had at one moment since its sync. The kernel
//! also replays some of the images, and must find the same state. The same applies to volumes
//! without data space, on which syncs may fail.
//!
//! Several threads write and sync separate files concurrently ([`threads`]).
//!
//! `BUTTRESS_CRASH_SEED` and `BUTTRESS_CRASH_CUTS` set the first seed and the number of cuts of
//! each history; `BUTTRESS_FSYNC_HISTORIES` sets the number of histories.

mod history;
mod moments;
mod promises;
mod recovering;
mod threads;

use anyhow::Result;
use buttress::mkfs::{Feature, Options};
use buttress::unstable::format::block_group::Profile;
use buttress::{AllocateMode, FileOffset, Location, NewInode, SubvolumeId};
use buttress_oracle::seeds::budget;
use buttress_oracle::tools::kernel_missing;
use buttress_proof::writing::volume::{Backends, empty, open_checked_but_for_holes, open_for_writing};
use history::run;
use recovering::{KERNEL_LOOKS, cut};
use std::sync::atomic::Ordering;
use threads::threads;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Number of histories of a kind of volume, and of cuts of each, in a nightly run.
const ALL: (u64, u64) = (20, 24);

/// Number of histories, and of cuts of each, in the suite for most kinds.
const SOME: (u64, u64) = (4, 12);

/// Returns the number of cuts of each history.
pub(crate) fn cuts() -> u64 {
    budget("BUTTRESS_CRASH_CUTS", SOME.1, ALL.1)
}

fn profile(profile: Profile) -> Options {
    Options {
        data: Some(profile),
        metadata: Some(profile),
        ..Options::default()
    }
}

/// Creates a volume for a history. A quarter of the histories run on discarded devices, which
/// devices in memory fill with a pattern; code that relies on zeros fails there. The other
/// histories take less than half of the time.
pub(crate) fn base(devices: &[usize], options: &Options, seed: u64) -> Backends {
    let options = Options {
        keep_contents: !seed.is_multiple_of(4),
        ..options.clone()
    };
    empty(devices, &options).unwrap()
}

/// Runs a few histories on this kind of volume.
fn histories(devices: &[usize], options: &Options, salt: u64) {
    histories_of(SOME, devices, options, salt);
}

/// Runs this number of histories and cuts, or all of a nightly run.
fn histories_of((histories, cuts): (u64, u64), devices: &[usize], options: &Options, salt: u64) {
    // The kernel and its check have the write hole, too.
    let has_parity = matches!(options.data, Some(Profile::Raid5 | Profile::Raid6));
    let asks_kernel = !has_parity;
    let count = budget("BUTTRESS_FSYNC_HISTORIES", histories, ALL.0);
    let cuts = budget("BUTTRESS_CRASH_CUTS", cuts, ALL.1);
    let first = buttress_oracle::seeds::seed("fsync_crash", "BUTTRESS_CRASH_SEED", 1) + salt * 1_000_003;
    for seed in first..first + count {
        let base = base(devices, options, seed);
        let run = run(base, seed, 80).unwrap();
        cut(&run, seed, cuts, asks_kernel).unwrap();
    }
}

/// Creates a file that preallocates all data space past its end, where nothing reads it.
fn fill(base: &Backends) -> Result<()> {
    let filesystem = open_for_writing(base)?;
    let filler = filesystem.create(TOP, b"filler", &NewInode::of_root(0o644))?;
    let mut at = 0;
    for piece in [4_u64 << 20, 256 << 10, 16 << 10] {
        loop {
            let range = FileOffset::new(at)..FileOffset::new(at + piece);
            match filesystem.allocate(filler, range, AllocateMode::AllocateKeepSize) {
                Ok(()) => at += piece,
                Err(buttress::unstable::fs::Error::NoSpace { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    filesystem.close()?;
    Ok(())
}

fn full(devices: &[usize], options: &Options, salt: u64) {
    let count = budget("BUTTRESS_FSYNC_HISTORIES", 3, 10);
    let first = buttress_oracle::seeds::seed("fsync_crash", "BUTTRESS_CRASH_SEED", 1) + salt * 1_000_003;
    for seed in first..first + count {
        let base = base(devices, options, seed);
        fill(&base).unwrap();
        let run = run(base, seed, 80).unwrap();
        cut(&run, seed, cuts(), true).unwrap();
    }
}

/// In this test a preallocated extent is written and cloned, and only the clone is synced. A crash
/// then leaves one file with the preallocated extent, and the other file with the extent's
/// checksums.
#[test]
fn a_clone_of_what_was_preallocated_is_sound() {
    let images = base(&[128 << 20], &Options::default(), 1);
    let filesystem = open_for_writing(&images).unwrap();
    let new = NewInode::of_root(0o644);
    let source = filesystem.create(TOP, b"source", &new).unwrap();
    let clone = filesystem.create(TOP, b"clone", &new).unwrap();
    let range = |start: u64, end: u64| FileOffset::new(start)..FileOffset::new(end);
    filesystem
        .allocate(source, range(0, 65_536), AllocateMode::Allocate)
        .unwrap();
    filesystem.commit().unwrap();
    filesystem
        .write_at(source, FileOffset::new(8192), &[b'w'; 16_384])
        .unwrap();
    filesystem
        .clone_range(source, range(8192, 16_384), clone, FileOffset::MIN)
        .unwrap();
    filesystem.log_tree().fsync(clone).unwrap();
    filesystem.abandon();

    let filesystem = open_for_writing(&images).unwrap();
    let mut content = [0; 8192];
    filesystem
        .live()
        .read_at(clone, FileOffset::MIN, &mut content)
        .unwrap();
    assert!(content.iter().all(|byte| *byte == b'w'));
    filesystem
        .live()
        .read_at(source, FileOffset::new(8192), &mut content)
        .unwrap();
    assert!(content.iter().all(|byte| *byte == 0), "it was not synced");
    filesystem.set_label(b"replayed").unwrap();
    filesystem.close().unwrap();
    open_checked_but_for_holes(&images).unwrap();
}

#[test]
fn on_a_full_volume() {
    full(&[128 << 20], &Options::default(), 6);
}

#[test]
fn on_a_full_volume_with_two_copies() {
    full(&[160 << 20; 2], &profile(Profile::Raid1), 9);
}

#[test]
fn by_several_threads() {
    threads(&[128 << 20], &Options::default(), 7);
}

#[test]
fn by_several_threads_on_two_devices() {
    threads(&[160 << 20; 2], &profile(Profile::Raid1), 8);
}

#[test]
fn by_several_threads_with_parity() {
    threads(&[160 << 20; 3], &profile(Profile::Raid6), 10);
}

#[test]
fn on_one_device() {
    // This kind of volume and small nodes run completely, because their tests must catch deliberate
    // faults.
    histories_of(ALL, &[128 << 20], &Options::default(), 0);
    assert!(
        KERNEL_LOOKS.load(Ordering::Relaxed) > 0 || kernel_missing().is_some(),
        "the kernel looked at nothing"
    );
}

#[test]
fn with_small_nodes() {
    let options = Options {
        node_bytes: Some(4096),
        ..Options::default()
    };
    histories_of(ALL, &[128 << 20], &options, 1);
}

#[test]
fn with_items_for_holes() {
    let options = Options {
        features: vec![(Feature::NoHoles, false)],
        ..Options::default()
    };
    histories(&[128 << 20], &options, 2);
}

#[test]
fn in_mixed_groups() {
    let options = Options {
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Options::default()
    };
    histories(&[72 << 20], &options, 3);
}

#[test]
fn on_two_devices_with_a_copy_on_each() {
    histories(&[160 << 20; 2], &profile(Profile::Raid1), 4);
}

#[test]
fn on_three_devices_with_parity() {
    histories(&[160 << 20; 3], &profile(Profile::Raid5), 5);
}

#[test]
fn on_four_devices_with_double_parity() {
    histories(&[160 << 20; 4], &profile(Profile::Raid6), 11);
}

#[test]
fn on_two_devices_with_stripes() {
    histories(&[160 << 20; 2], &profile(Profile::Raid0), 12);
}

#[test]
fn on_four_devices_with_stripes_of_two_copies() {
    histories(&[160 << 20; 4], &profile(Profile::Raid10), 13);
}

#[test]
fn on_three_devices_with_three_copies() {
    histories(&[160 << 20; 3], &profile(Profile::Raid1C3), 14);
}

#[test]
fn on_four_devices_with_four_copies() {
    histories(&[160 << 20; 4], &profile(Profile::Raid1C4), 15);
}
