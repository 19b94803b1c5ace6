//! Tests of reads during changes of content and names: each read shows one state.

use super::{BYTES, ROOT, ROUNDS, create, new_volume};
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, Compression, FileOffset, SubvolumeId};
use buttress_fs::{Location, Progress};
use buttress_lab::gate::SetOnDrop;
use buttress_writer::operations::RenameMode;
use buttress_writer::{AllocateMode, DataOptions, WritableFilesystem};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a file's content is replaced.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Overwritten.
    Over,
    /// Truncated to zero, and written.
    Anew,
    /// The range is punched and overwritten.
    Hole,
    /// Cloned from a file that was written before.
    Clone,
}

fn change(filesystem: &WritableFilesystem, how: Change, file: Location, other: Location, content: &[u8]) {
    let whole = FileOffset::MIN..FileOffset::new(content.len() as u64);
    match how {
        Change::Over => {}
        Change::Anew => filesystem.truncate(file, ByteCount::ZERO).unwrap(),
        Change::Hole => filesystem.allocate(file, whole, AllocateMode::PunchHole).unwrap(),
        Change::Clone => {
            filesystem.write_at(other, FileOffset::MIN, content).unwrap();
            filesystem
                .clone_range(other, whole, file, FileOffset::MIN)
                .unwrap();
            return;
        }
    }
    filesystem.write_at(file, FileOffset::MIN, content).unwrap();
}

/// A thread changes a file that repeats one byte, while other threads read the file. Other threads
/// read the file, write back, commit and take snapshots.
fn reads_see_one_state(how: Change, bytes: usize, data: DataOptions) {
    let (_, filesystem) = new_volume(data);
    let (file, other) = (create(&filesystem, "file"), create(&filesystem, "other"));
    filesystem
        .write_at(file, FileOffset::MIN, &vec![byte_of(1); bytes])
        .unwrap();
    let (is_done, begun) = (AtomicBool::new(false), AtomicU64::new(1));
    let until_done = |body: &dyn Fn(u64)| {
        let mut round = 0;
        while !is_done.load(Ordering::SeqCst) {
            body(round);
            round += 1;
        }
    };
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_done);
        let reader = || {
            until_done(&|_| {
                let first = begun.load(Ordering::SeqCst).saturating_sub(1);
                let mut content = vec![255; bytes + 100];
                let read = filesystem
                    .live()
                    .read_at(file, FileOffset::MIN, &mut content)
                    .unwrap();
                let last = begun.load(Ordering::SeqCst);
                assert!(read == bytes || read == 0, "{how:?}: {read} bytes");
                let seen = content.first().copied().filter(|_| read > 0);
                let same = content[..read].iter().all(|byte| Some(*byte) == seen);
                assert!(same, "{how:?}: two states in one read");
                if let Some(seen) = seen.filter(|seen| *seen != 0) {
                    let might_be = (first..=last).any(|round| byte_of(round) == seen);
                    assert!(might_be, "{how:?}: {seen} in rounds {first} to {last}");
                }
            });
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        let maintainer = scope.spawn(|| {
            until_done(&|round| match round % 8 {
                0 => drop(filesystem.commit().unwrap()),
                5 => {
                    let name = format!("snapshot-{round}");
                    let of = SubvolumeId::TOP_LEVEL;
                    let id = filesystem
                        .subvolumes()
                        .snapshot(of, ROOT, name.as_bytes(), true)
                        .unwrap();
                    filesystem.subvolumes().delete(id).unwrap();
                    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
                }
                _ => filesystem.writeback().write_all().unwrap(),
            });
        });
        for round in 2..ROUNDS {
            begun.store(round, Ordering::SeqCst);
            change(&filesystem, how, file, other, &vec![byte_of(round); bytes]);
            if readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        drop(over);
        maintainer.join().unwrap();
    });
    filesystem.close().unwrap();
}

fn byte_of(round: u64) -> u8 {
    u8::try_from(round % 250 + 1).unwrap()
}

#[test]
fn reads_of_extents_see_one_state() {
    for how in [Change::Over, Change::Anew, Change::Hole, Change::Clone] {
        reads_see_one_state(how, BYTES, DataOptions::default());
    }
}

#[test]
fn reads_of_content_inside_trees_see_one_state() {
    for how in [Change::Over, Change::Anew, Change::Hole] {
        reads_see_one_state(how, 700, DataOptions::default());
    }
}

#[test]
fn reads_of_compressed_extents_see_one_state() {
    let data = DataOptions {
        compression: Some(CompressionMethod::new(Compression::Zstd)),
        ..DataOptions::default()
    };
    for how in [Change::Over, Change::Anew] {
        reads_see_one_state(how, BYTES, data);
    }
}

#[test]
fn reads_of_extents_without_copies_see_one_state() {
    let data = DataOptions {
        copy_on_write: false,
        ..DataOptions::default()
    };
    for how in [Change::Anew, Change::Hole] {
        reads_see_one_state(how, BYTES, data);
    }
}

/// Very many small files are overwritten, with commits, while other threads read them.
#[test]
fn small_files_are_read_while_they_are_written_and_committed() {
    const FILES: usize = 5000;
    let (_, filesystem) = new_volume(DataOptions::default());
    let files: Vec<Location> = (0..FILES)
        .map(|number| {
            let file = create(&filesystem, &format!("file-{number}"));
            filesystem.write_at(file, FileOffset::MIN, &[1; 4096]).unwrap();
            file
        })
        .collect();
    filesystem.commit().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_done);
        let (filesystem, files, is_done) = (&filesystem, &files, &is_done);
        let reader = move |of: usize| {
            let mut number = of;
            while !is_done.load(Ordering::SeqCst) {
                number = (number + 7919) % FILES;
                let mut content = [0; 4096];
                filesystem
                    .live()
                    .read_at(files[number], FileOffset::MIN, &mut content)
                    .unwrap();
                assert!(content[0] > 0 && content.iter().all(|byte| *byte == content[0]));
            }
        };
        let readers = [scope.spawn(move || reader(0)), scope.spawn(move || reader(2500))];
        for round in 0..30_000 {
            let content = [byte_of(round); 4096];
            let number = usize::try_from(round).unwrap() * 104_729 % FILES;
            filesystem
                .write_at(files[number], FileOffset::MIN, &content)
                .unwrap();
            if round % 2000 == 1999 {
                filesystem.commit().unwrap();
            }
            if readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        drop(over);
    });
    filesystem.close().unwrap();
}

/// A name that a rename replaces exists at every moment.
#[test]
fn a_name_that_is_renamed_over_is_always_found() {
    let (_, filesystem) = new_volume(DataOptions::default());
    create(&filesystem, "target");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_done);
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                assert!(filesystem.live().lookup(ROOT, b"target").unwrap().is_some());
            }
        });
        for _ in 0..5000 {
            create(&filesystem, "new");
            filesystem
                .rename(ROOT, b"new", ROOT, b"target", RenameMode::Replace)
                .unwrap();
            if reader.is_finished() {
                break;
            }
        }
        drop(over);
    });
    filesystem.close().unwrap();
}

/// Unchanged names are always found, and listed once, while other names are added, removed and
/// renamed.
#[test]
fn stable_names_are_found_beside_changing_names() {
    const STAY: usize = 400;
    let (_, filesystem) = new_volume(DataOptions::default());
    let stays = |number: usize| format!("stays-{number}");
    let made: Vec<Location> = (0..STAY)
        .map(|number| create(&filesystem, &stays(number)))
        .collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&is_done);
        let reader = |of: usize| {
            let mut number = of;
            while !is_done.load(Ordering::SeqCst) {
                number = (number + 7) % STAY;
                let found = filesystem.live().lookup(ROOT, stays(number).as_bytes()).unwrap();
                assert_eq!(found.unwrap().target, made[number]);
                assert_eq!(filesystem.live().metadata(made[number]).unwrap().nlink, 1);
                let mut listed = 0;
                let mut from = 0;
                loop {
                    let entries = filesystem.live().list(ROOT, from, 64).unwrap();
                    let Some(last) = entries.last() else { break };
                    from = last.index + 1;
                    listed += entries
                        .iter()
                        .filter(|entry| entry.name.starts_with(b"stays"))
                        .count();
                }
                assert_eq!(listed, STAY);
            }
        };
        let readers = [scope.spawn(move || reader(0)), scope.spawn(move || reader(3))];
        for round in 0..2000 {
            let (one, two) = (format!("goes-{}", round % 50), format!("renamed-{}", round % 50));
            create(&filesystem, &one);
            let (one, two) = (one.as_bytes(), two.as_bytes());
            filesystem
                .rename(ROOT, one, ROOT, two, RenameMode::Replace)
                .unwrap();
            if round % 3 == 0 {
                filesystem.unlink(ROOT, two).unwrap();
            }
            if round % 500 == 0 {
                filesystem.commit().unwrap();
            }
            if readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        drop(over);
    });
    filesystem.close().unwrap();
}
