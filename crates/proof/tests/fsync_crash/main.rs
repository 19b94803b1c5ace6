//! What was synced lasts: random operations and syncs in the crash laboratory, cut at random moments with random losses.
//!
//! A small tree of files, hard links and directories is changed at random, and some of it synced ([`history`]). What each inode
//! was after each operation is kept ([`moments`]). After a cut the volume is opened, which replays its log, and checked
//! ([`recovering`]); then of each inode ([`promises`])
//!
//! - content is one that it had since its last sync that had returned (since the last commit, if that is later);
//! - names, all of them together, are those that it had at one moment since then: a rename is seen whole, and nothing that
//!   lives is lost;
//! - attributes are those of one such moment;
//!
//! and a directory that was synced has no name less and none more than it had at a moment since. Of the images some are
//! replayed by the kernel as well, which must find the same. The same on volumes without room for data, where syncs may fail.
//!
//! Several threads at once write files of their own and sync them ([`threads`]).
//!
//! `BUTTRESS_CRASH_SEED` and `BUTTRESS_CRASH_CUTS` choose the first seed and the number of cuts of each history;
//! `BUTTRESS_FSYNC_HISTORIES` the number of histories.

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

/// Histories of a kind of volume, and cuts of each: all of them, as in a nightly run.
const ALL: (u64, u64) = (20, 24);

/// In the suite, of most kinds.
const SOME: (u64, u64) = (4, 12);

/// How often each history is cut.
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

/// A volume for a history. One in four is on devices whose contents were discarded, which devices in memory fill with a
/// pattern: whoever relies on zeros there fails. The others take less than half of the time.
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

/// Runs so many histories with so many cuts, or all in a nightly run.
fn histories_of((histories, cuts): (u64, u64), devices: &[usize], options: &Options, salt: u64) {
    // The write hole is the kernel's, too, and its check's.
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

/// Has a file take all the room for data, behind its end, where nobody reads it.
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

/// A preallocated extent is written and cloned, and only the clone is synced: after a crash one file has it as preallocated, and its
/// checksums are the other's.
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
    filesystem.fsync(clone).unwrap();
    filesystem.abandon();

    let filesystem = open_for_writing(&images).unwrap();
    let mut content = [0; 8192];
    filesystem.read_at(clone, FileOffset::MIN, &mut content).unwrap();
    assert!(content.iter().all(|byte| *byte == b'w'));
    filesystem
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
    // All of this kind and of small nodes: deliberate faults must be caught by their tests.
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
fn where_holes_have_items() {
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
