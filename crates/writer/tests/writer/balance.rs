//! Balances in memory: the item is durable from before the first move to after the last, and a balance that is cut off anywhere
//! goes on to the same end.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{
    BalanceArguments, BalanceFlags, BalanceItem, FileOffset, Profile, SubvolumeId, Timestamp, Uuid,
};
use buttress_fs::error::BalanceRefusal;
use buttress_fs::{Error, Location, OpenOptions};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::balance::job::{BalanceControl, BalanceEnd};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions, balance_item};
use std::collections::BTreeSet;
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const FILES: usize = 24;
const FILE_BYTES: usize = 1 << 20;
/// What the history marks: the start has returned, and the end.
const STARTED: u64 = 1;
const ENDED: u64 = 2;

fn content(number: usize) -> Vec<u8> {
    let words = (0..FILE_BYTES / 8).map(|at| (at * 2_654_435_761 + number).to_le_bytes());
    words.flatten().collect()
}

fn to_dup() -> BalanceItem {
    BalanceItem {
        flags: BalanceFlags::DATA,
        data: BalanceArguments::NONE.with_target(Profile::Dup),
        metadata: BalanceArguments::NONE,
        system: BalanceArguments::NONE,
    }
}

fn open(devices: Vec<Device>) -> Result<WritableFilesystem, Error> {
    WritableFilesystem::new(OpenOptions::new(devices).open()?, WriteOptions::default())
}

/// A volume in memory with single data in some block groups.
fn volume() -> Arc<MemoryBackend> {
    let memory = Arc::new(MemoryBackend::new("memory", vec![0; 192 << 20]));
    let device = || Device::with_backend(Arc::clone(&memory) as Arc<dyn Backend>, Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(10)],
        time: Timestamp::default(),
    };
    let options = mkfs::Options {
        data: Some(Profile::Single),
        metadata: Some(Profile::Dup),
        ..mkfs::Options::default()
    };
    mkfs::make(&[device()], &options, &identity).unwrap();
    let filesystem = open(vec![device()]).unwrap();
    for number in 0..FILES {
        let name = format!("f{number}");
        let file = filesystem
            .create(ROOT, name.as_bytes(), &NewInode::of_root(0o600))
            .unwrap();
        filesystem
            .write_at(file, FileOffset::MIN, &content(number))
            .unwrap();
    }
    filesystem.commit().unwrap();
    memory
}

fn device(memory: &Arc<MemoryBackend>) -> Device {
    Device::with_backend(Arc::clone(memory) as Arc<dyn Backend>, Engine::Inline)
}

fn data_profiles(filesystem: &WritableFilesystem) -> BTreeSet<&'static str> {
    let choice = filesystem
        .balances()
        .plan(&BalanceItem {
            data: BalanceArguments::NONE,
            ..to_dup()
        })
        .unwrap();
    let profiles = choice.groups.iter().map(|chosen| chosen.flags.profile().unwrap());
    profiles.map(Profile::name).collect()
}

/// What is wrong with the files, if anything is.
fn wrong_files(filesystem: &WritableFilesystem) -> Result<(), String> {
    for number in 0..FILES {
        let name = format!("f{number}");
        let found = filesystem.view().lookup(ROOT, name.as_bytes());
        let entry = found
            .map_err(|error| error.to_string())?
            .ok_or("a file is gone")?;
        let mut bytes = vec![0; FILE_BYTES];
        let read = filesystem
            .live()
            .read_at(entry.target, FileOffset::MIN, &mut bytes);
        read.map_err(|error| error.to_string())?;
        if bytes != content(number) {
            return Err(format!("{name} has other content"));
        }
    }
    Ok(())
}

#[test]
fn item_lasts_from_start_to_end() {
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    let refused = |result: Result<_, Error>| match result {
        Err(Error::BalanceRefused(refusal)) => refusal,
        Err(error) => panic!("{error}"),
        Ok(()) => panic!("not refused"),
    };
    assert_eq!(
        refused(filesystem.balances().end()),
        BalanceRefusal::NotInProgress
    );
    assert_eq!(
        refused(filesystem.balances().resume().map(drop)),
        BalanceRefusal::NotInProgress
    );
    let choice = filesystem.balances().start(to_dup()).unwrap();
    assert!(!choice.groups.is_empty());
    assert_eq!(
        refused(filesystem.balances().start(to_dup()).map(drop)),
        BalanceRefusal::InProgress
    );
    let committed = || OpenOptions::new(vec![device(&memory)]).open().unwrap();
    assert_eq!(balance_item(&committed()).unwrap(), Some(to_dup()));
    // Paused before anything moved, and opened again: new chunks have the target's profile.
    let control = BalanceControl::default();
    control.pause();
    let summary = filesystem.balances().run(&choice, None, &control).unwrap();
    assert_eq!(summary.end, BalanceEnd::Paused);
    drop(filesystem);
    let filesystem = open(vec![device(&memory)]).unwrap();
    assert_eq!(filesystem.balances().current(), Some(to_dup()));
    let big = filesystem
        .create(ROOT, b"big", &NewInode::of_root(0o600))
        .unwrap();
    filesystem
        .write_at(big, FileOffset::MIN, &vec![1; 30 << 20])
        .unwrap();
    filesystem.commit().unwrap();
    assert!(data_profiles(&filesystem).contains("DUP"));
    filesystem.balances().end().unwrap();
    assert_eq!(filesystem.balances().current(), None);
    assert_eq!(balance_item(&committed()).unwrap(), None);
    wrong_files(&filesystem).unwrap();
}

#[test]
fn cancelled_balance_ends_with_what_was_moved() {
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    let choice = filesystem.balances().start(to_dup()).unwrap();
    let control = BalanceControl::default();
    control.cancel();
    let summary = filesystem.balances().run(&choice, None, &control).unwrap();
    assert_eq!(summary.end, BalanceEnd::Cancelled);
    assert_eq!(summary.counts.relocated, 0);
    assert_eq!(filesystem.balances().current(), None);
    let again = filesystem.balances().start(to_dup()).unwrap();
    let summary = filesystem
        .balances()
        .run(&again, None, &BalanceControl::default())
        .unwrap();
    assert_eq!(
        (summary.end, summary.without_space.len()),
        (BalanceEnd::Finished, 0)
    );
    assert_eq!(summary.counts.relocated, again.groups.len() as u64);
    assert_eq!(data_profiles(&filesystem), BTreeSet::from(["DUP"]));
    wrong_files(&filesystem).unwrap();
}

#[test]
fn balance_cut_off_anywhere_is_resumed_to_its_end() {
    let disk: Arc<dyn Backend> = volume();
    let history = CrashLab::record([disk], |lab, devices| {
        let filesystem = open(devices)?;
        let choice = filesystem.balances().start(to_dup())?;
        lab.mark(STARTED);
        filesystem
            .balances()
            .run(&choice, None, &BalanceControl::default())?;
        lab.mark(ENDED);
        Ok::<(), Error>(())
    })
    .unwrap();
    let step = history.len().div_ceil(40).max(1);
    let verdict = history.judge(&Cuts::every().step(step).draws(1), |state| {
        let filesystem = open(state.devices()).map_err(|error| error.to_string())?;
        let is_under_way = filesystem.balances().current().is_some();
        match state.last_mark() {
            Some(STARTED) if !is_under_way && data_profiles(&filesystem).contains("single") => {
                return Err("it is neither under way nor done".to_owned());
            }
            Some(ENDED) if is_under_way => return Err("it is under way after its end".to_owned()),
            _ => {}
        }
        wrong_files(&filesystem)?;
        if is_under_way {
            let choice = filesystem
                .balances()
                .resume()
                .map_err(|error| error.to_string())?;
            let ended = filesystem
                .balances()
                .run(&choice, None, &BalanceControl::default());
            let summary = ended.map_err(|error| error.to_string())?;
            if summary.end != BalanceEnd::Finished || !summary.without_space.is_empty() {
                return Err(format!("{summary:?}"));
            }
            if data_profiles(&filesystem) != BTreeSet::from(["DUP"]) {
                return Err("it left block groups of another profile".to_owned());
            }
            wrong_files(&filesystem)?;
        }
        filesystem.abandon();
        Ok(())
    });
    assert!(verdict.accepted().unwrap() > 20);
}
