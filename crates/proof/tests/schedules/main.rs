//! The protocols of the live layer under a model checker: for every schedule, some order of the
//! calls must explain the answers. `cargo xtask schedules` builds and runs this program; in other
//! builds it is empty.
//!
//! Each scene covers one protocol, with as few calls as necessary. A failure prints the seed, the
//! record and the schedule.
#![cfg(buttress_shuttle)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use anyhow::Result;
use buttress::{AllocateMode, ByteCount, Location};
use buttress_proof::concurrent::call::Call;
use buttress_proof::concurrent::schedules::{Plan, Scene, Stage, TOP, explore};
use buttress_proof::writing::content::Change;
use buttress_proof::writing::operation::{Mode, Operation};
use std::sync::Arc;

const SECTOR: u64 = 4096;

/// Number of schedules of each scene in the ordinary suite.
const SCHEDULES: usize = 300;

fn number(name: &str, or: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn plan(cold: bool) -> Plan {
    let schedules = number("BUTTRESS_SCHEDULES", SCHEDULES as u64);
    Plan {
        seed: buttress_oracle::seeds::seed("schedules", "BUTTRESS_SCHEDULES_SEED", 1),
        schedules: usize::try_from(schedules).unwrap(),
        cache: ByteCount::new(16 << 20),
        cold,
    }
}

fn both(scene: Scene) {
    explore(plan(false), scene);
    explore(plan(true), scene);
}

fn name(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn file(stage: &mut Stage, directory: Location, text: &str, sectors: u64) -> Result<Location> {
    let file = stage.make(Operation::Create(directory, name(text), 0o644))?;
    if sectors > 0 {
        stage.change(write(file, 0, sectors * SECTOR, b'o'))?;
    }
    Ok(file)
}

fn write(file: Location, offset: u64, length: u64, byte: u8) -> Operation {
    let bytes = vec![byte; usize::try_from(length).unwrap()];
    Operation::Content(file, Change::Write(offset, Arc::new(bytes)))
}

fn rename(from: Location, old: &str, to: Location, new: &str, mode: Mode) -> Operation {
    Operation::Rename(from, name(old), to, name(new), mode)
}

fn read(file: Location) -> Call {
    Call::Read(file, 0, 64 << 10)
}

/// Trees: operations change several items of several trees, atomically for readers.
fn names(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let directory = stage.make(Operation::MakeDirectory(TOP, name("d"), 0o755))?;
    let a = file(stage, TOP, "a", 0)?;
    file(stage, directory, "b", 0)?;
    Ok(vec![
        vec![
            Call::Change(rename(TOP, "a", directory, "b", Mode::Exchange)),
            Call::Change(rename(directory, "b", TOP, "a", Mode::Replace)),
        ],
        vec![
            Call::Lookup(TOP, name("a")),
            Call::Lookup(directory, name("b")),
            Call::List(TOP),
        ],
        vec![Call::Stat(a), Call::Stat(directory), Call::Stat(TOP)],
    ])
}

#[test]
fn operations_are_seen_whole() {
    both(names);
}

/// Inodes: the first reader loads an item, and other callers change it.
fn inodes(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 1)?;
    Ok(vec![
        vec![
            Call::Change(Operation::SetMode(a, 0o600)),
            Call::Change(write(a, 0, 2 * SECTOR, 1)),
            Call::Change(Operation::Link(a, TOP, name("b"))),
        ],
        vec![Call::Stat(a), Call::Stat(TOP), Call::Stat(a)],
        vec![
            Call::Change(Operation::SetXattr(a, name("user.a"), name("1"))),
            Call::Xattr(a, name("user.a")),
            Call::Stat(a),
        ],
    ])
}

#[test]
fn an_inode_is_of_one_moment() {
    both(inodes);
}

/// Content: dirty data, data in write-back, and extents.
fn content(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 3)?;
    stage.change(Operation::SetMode(a, 0o640))?;
    Ok(vec![
        vec![
            Call::Change(write(a, 1000, 5000, 1)),
            Call::WriteBack(a),
            Call::Change(write(a, 2 * SECTOR, 2 * SECTOR, 2)),
        ],
        vec![
            Call::WriteBack(a),
            Call::Change(Operation::Content(a, Change::Truncate(6000))),
        ],
        vec![read(a), read(a), Call::Stat(a), read(a)],
    ])
}

#[test]
fn content_is_seen_through_a_write_back() {
    both(content);
}

/// Writing bytes and growing the file are one atomic change.
fn write_across_the_end(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 1)?;
    Ok(vec![
        vec![
            Call::Change(write(a, 1000, 2 * SECTOR, 1)),
            Call::Change(write(a, 2 * SECTOR, 2 * SECTOR, 2)),
        ],
        vec![read(a), read(a), read(a)],
    ])
}

#[test]
fn a_write_across_the_end_is_seen_whole() {
    both(write_across_the_end);
}

/// The last call on a file ends as the next one begins, which must not show an older state.
fn calls_that_follow(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 1)?;
    Ok(vec![
        vec![Call::WriteBack(a), Call::WriteBack(a)],
        vec![Call::Change(write(a, 0, 100, 1)), read(a)],
    ])
}

/// A call begins and ends between two reads of one reader, so extents and size belong to different
/// states.
fn calls_between_looks(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 1)?;
    Ok(vec![
        vec![Call::Change(write(a, 0, 2 * SECTOR, 1)), Call::WriteBack(a)],
        vec![read(a), read(a)],
    ])
}

#[test]
fn a_call_that_came_and_went_is_noticed() {
    both(calls_between_looks);
}

/// The item and the content of one inode change alternately.
fn item_and_content(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 1)?;
    Ok(vec![
        vec![
            Call::Change(write(a, 0, SECTOR, 1)),
            Call::Change(Operation::SetMode(a, 0o600)),
            Call::Change(write(a, 0, 2 * SECTOR, 1)),
        ],
        vec![Call::Stat(a), Call::Stat(a)],
    ])
}

#[test]
fn a_stat_is_of_one_moment() {
    both(item_and_content);
}

#[test]
fn what_a_call_shows_stays_shown_when_another_ends() {
    both(calls_that_follow);
}

/// Layout: calls that change extents in several steps are atomic for readers.
fn layout(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 4)?;
    let b = file(stage, TOP, "b", 0)?;
    stage.change(write(b, 0, 3 * SECTOR, 7))?;
    let range =
        |offset, length, mode| Call::Change(Operation::Content(a, Change::Allocate(offset, length, mode)));
    Ok(vec![
        vec![
            range(1000, 2 * SECTOR, AllocateMode::PunchHole),
            range(3 * SECTOR, 3 * SECTOR, AllocateMode::ZeroRange),
        ],
        vec![
            read(a),
            Call::Change(Operation::Content(a, Change::Clone(b, 0, 2 * SECTOR, SECTOR))),
        ],
        vec![read(a), read(a), read(a)],
    ])
}

#[test]
fn changes_of_extents_are_seen_whole() {
    both(layout);
}

/// Pins: space that is being read is not reused, whatever the number of commits.
fn pins(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let a = file(stage, TOP, "a", 2)?;
    let b = file(stage, TOP, "b", 0)?;
    Ok(vec![
        vec![
            Call::Change(Operation::Content(a, Change::Truncate(0))),
            Call::Commit,
            Call::Change(write(b, 0, 2 * SECTOR, 3)),
            Call::WriteBack(b),
        ],
        vec![read(a)],
        vec![read(a)],
        vec![read(a)],
    ])
}

#[test]
fn what_is_read_is_not_used_again() {
    // The schedule must delay a reader during all those calls, between two of its own steps.
    let often = |cold| Plan {
        schedules: 5 * plan(cold).schedules,
        ..plan(cold)
    };
    explore(often(false), pins);
    explore(often(true), pins);
}

/// Views: the engine caches the newest view until an edit.
fn views(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    file(stage, TOP, "a", 1)?;
    Ok(vec![
        vec![
            Call::Change(Operation::Create(TOP, name("b"), 0o644)),
            Call::ListInView(TOP),
            Call::Change(Operation::Unlink(TOP, name("a"))),
        ],
        vec![Call::ListInView(TOP), Call::ListInView(TOP)],
        vec![Call::Commit, Call::ListInView(TOP)],
    ])
}

#[test]
fn a_view_is_the_newest() {
    both(views);
}

/// Subvolumes: snapshots beside writers, and deletions beside readers.
fn subvolumes(stage: &mut Stage) -> Result<Vec<Vec<Call>>> {
    let root = stage.make(Operation::CreateSubvolume(TOP, name("s")))?;
    let a = file(stage, root, "a", 1)?;
    let id = root.subvolume;
    Ok(vec![
        vec![
            Call::Change(Operation::Snapshot(id, TOP, name("t"), true)),
            Call::Change(Operation::DeleteSubvolume(id)),
        ],
        vec![
            Call::Change(write(a, 0, 100, 1)),
            Call::Change(rename(TOP, "s", TOP, "u", Mode::Replace)),
            Call::Stat(a),
        ],
        vec![Call::List(TOP), Call::Lookup(root, name("a")), read(a)],
    ])
}

#[test]
fn subvolumes_come_and_go_at_one_moment() {
    both(subvolumes);
}
