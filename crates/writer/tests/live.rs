//! Reads beside writers: each sees a state that was there, and none waits for a device that only the writer needs.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use buttress_device::gate::{GatedBackend, Request, WatchedThread};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, Compression, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Error, Location, OpenOptions, Progress};
use buttress_writer::mkfs::{self, Identity};
use buttress_writer::operations::{AttributeChanges, NewInode, RenameMode};
use buttress_writer::{AllocateMode, DataOptions, WritableFilesystem, WriteOptions};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const BYTES: usize = 200_000;
const ROUNDS: u64 = 150;

fn identity() -> Identity {
    Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    }
}

fn new_volume(data: DataOptions) -> (Arc<GatedBackend>, WritableFilesystem) {
    let memory = MemoryBackend::new("memory", vec![0; 256 << 20]);
    let gate = GatedBackend::new(Arc::new(memory));
    let device = || Device::with_backend(Arc::clone(&gate) as Arc<dyn Backend>, Engine::Inline);
    mkfs::make(&[device()], &mkfs::Options::default(), &identity()).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    let options = WriteOptions {
        data,
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
    (gate, filesystem)
}

fn create(filesystem: &WritableFilesystem, name: &str) -> Location {
    filesystem
        .create(ROOT, name.as_bytes(), &NewInode::of_root(0o644))
        .unwrap()
}

#[test]
fn reads_wait_for_no_write_back() {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'o'; BYTES])
        .unwrap();
    filesystem.commit().unwrap();
    filesystem
        .write_at(file, FileOffset::new(1000), &vec![b'n'; 50_000])
        .unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.write_back().unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let read = WatchedThread::start(move || {
        let mut content = vec![0; BYTES + 1];
        let read = of.read_at(file, FileOffset::MIN, &mut content).unwrap();
        content.truncate(read);
        (content, of.metadata(file).unwrap().size)
    })
    .unwrap();
    let waits = read.comes_to_wait();
    gate.open();
    let (content, size) = read.join().unwrap();
    assert!(!waits, "a read waited for a write-back");
    write_back.join().unwrap();
    let mut expected = vec![b'o'; BYTES];
    expected[1000..51_000].fill(b'n');
    assert!(content == expected);
    assert_eq!(size, ByteCount::of(BYTES));
    filesystem.close().unwrap();
}

#[test]
fn a_new_file_is_read_while_it_is_written_back() {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'n'; BYTES])
        .unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.write_back_file(file).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let mut content = vec![0; BYTES];
    let read = filesystem.read_at(file, FileOffset::MIN, &mut content).unwrap();
    gate.open();
    write_back.join().unwrap();
    assert_eq!(read, BYTES);
    assert!(content.iter().all(|byte| *byte == b'n'));
    filesystem.close().unwrap();
}

/// A call that sets one time neither waits for a write-back nor loses what the write set.
#[test]
fn times_set_during_a_write_back_stay() {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    let content = vec![b'n'; BYTES];
    filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
    let written = filesystem.metadata(file).unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.write_back_file(file).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let given = Timestamp {
        seconds: 1_000_000,
        nanoseconds: 1,
    };
    let set = WatchedThread::start(move || {
        let accessed = AttributeChanges {
            accessed: Some(given),
            ..AttributeChanges::default()
        };
        of.set_attributes(file, &accessed).unwrap();
        let before = of.metadata(file).unwrap();
        let modified = AttributeChanges {
            modified: Some(given),
            ..AttributeChanges::default()
        };
        of.set_attributes(file, &modified).unwrap();
        before
    })
    .unwrap();
    let waits = set.comes_to_wait();
    gate.open();
    let before = set.join().unwrap();
    write_back.join().unwrap();
    assert!(!waits, "setting times waited for a write-back");
    assert_eq!((before.accessed, before.modified), (given, written.modified));
    for found in [
        filesystem.metadata(file).unwrap(),
        filesystem.view().metadata(file).unwrap(),
    ] {
        assert_eq!((found.accessed, found.modified), (given, given));
    }
    filesystem.close().unwrap();
}

/// A device in memory that has something done before it is read next.
#[derive(Debug)]
struct Interrupted {
    memory: MemoryBackend,
    before_read: Hook,
}

/// What is done once, before a read.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hook")
    }
}

impl Backend for Interrupted {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let hook = self.before_read.0.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.memory.read_vectored_at(offset_bytes, buffers)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset_bytes, bytes)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.memory.discard(offset_bytes, length_bytes)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.memory.zero(offset_bytes, length_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }
}

/// Takes all room for data that there is.
fn fill_up(filesystem: &WritableFilesystem) {
    let other = create(filesystem, "other");
    for number in 0_u64.. {
        let added = filesystem
            .write_at(other, FileOffset::new(number << 20), &vec![b'n'; 1 << 20])
            .and_then(|()| filesystem.write_back_file(other));
        match added {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Between looking up where content lies and reading it, `end` takes the content from the file, and all room is used.
fn use_room_while_reading(end: impl Fn(&WritableFilesystem, Location) + Send + 'static) {
    let backend = Arc::new(Interrupted {
        memory: MemoryBackend::new("memory", vec![0; 128 << 20]),
        before_read: Hook::default(),
    });
    let device = || Device::with_backend(Arc::clone(&backend) as Arc<dyn Backend>, Engine::Inline);
    let options = WriteOptions {
        // What is overwritten must not be told by its checksums alone.
        data: DataOptions {
            checksums: false,
            ..DataOptions::default()
        },
        ..WriteOptions::default()
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity()).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
    let file = create(&filesystem, "file");
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'o'; 4 << 20])
        .unwrap();
    filesystem.commit().unwrap();
    let of = filesystem.clone();
    let hook = move || {
        end(&of, file);
        of.commit().unwrap();
        of.commit().unwrap();
        fill_up(&of);
    };
    *backend.before_read.0.lock().unwrap() = Some(Box::new(hook));
    let mut content = vec![0; 4 << 20];
    let read = filesystem.read_at(file, FileOffset::MIN, &mut content).unwrap();
    assert!(
        backend.before_read.0.lock().unwrap().is_none(),
        "nothing was read"
    );
    assert_eq!(read, 4 << 20);
    assert!(
        content.iter().all(|byte| *byte == b'o'),
        "room was used again while it was read"
    );
    let _ = filesystem.abandon();
}

#[test]
fn what_is_being_read_is_not_used_again() {
    use_room_while_reading(|filesystem, _| filesystem.unlink(ROOT, b"file").unwrap());
}

#[test]
fn what_is_being_read_is_not_used_again_when_it_is_cut_off() {
    use_room_while_reading(|filesystem, file| filesystem.truncate(file, ByteCount::ZERO).unwrap());
}

/// How a file goes from one content to the next.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Written over.
    Over,
    /// Cut to nothing, and written.
    Anew,
    /// Made a hole, and written over.
    Hole,
    /// Made a clone of a file that was written before.
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

/// One thread changes a file that has one byte all over, others read it, and write back, commit and take snapshots.
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
        let reader = || {
            until_done(&|_| {
                let first = begun.load(Ordering::SeqCst).saturating_sub(1);
                let mut content = vec![255; bytes + 100];
                let read = filesystem.read_at(file, FileOffset::MIN, &mut content).unwrap();
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
                    let id = filesystem.snapshot(of, ROOT, name.as_bytes(), true).unwrap();
                    filesystem.delete_subvolume(id).unwrap();
                    filesystem.drop_deleted_subvolumes(&Progress::new()).unwrap();
                }
                _ => filesystem.write_back().unwrap(),
            });
        });
        for round in 2..ROUNDS {
            begun.store(round, Ordering::SeqCst);
            change(&filesystem, how, file, other, &vec![byte_of(round); bytes]);
            if readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        is_done.store(true, Ordering::SeqCst);
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

/// Very many small files are written over, with commits, while others read them.
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
        let (filesystem, files, is_done) = (&filesystem, &files, &is_done);
        let reader = move |of: usize| {
            let mut number = of;
            while !is_done.load(Ordering::SeqCst) {
                number = (number + 7919) % FILES;
                let mut content = [0; 4096];
                filesystem
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
        is_done.store(true, Ordering::SeqCst);
    });
    filesystem.close().unwrap();
}

/// A name that is replaced by a rename is there at every moment.
#[test]
fn a_name_that_is_renamed_over_is_always_found() {
    let (_, filesystem) = new_volume(DataOptions::default());
    create(&filesystem, "target");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                assert!(filesystem.lookup(ROOT, b"target").unwrap().is_some());
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
        is_done.store(true, Ordering::SeqCst);
    });
    filesystem.close().unwrap();
}

/// Names that stay are always found, and listed once, while others around them come, go and are renamed.
#[test]
fn names_that_stay_are_found_beside_those_that_change() {
    const STAY: usize = 400;
    let (_, filesystem) = new_volume(DataOptions::default());
    let stays = |number: usize| format!("stays-{number}");
    let made: Vec<Location> = (0..STAY)
        .map(|number| create(&filesystem, &stays(number)))
        .collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = |of: usize| {
            let mut number = of;
            while !is_done.load(Ordering::SeqCst) {
                number = (number + 7) % STAY;
                let found = filesystem.lookup(ROOT, stays(number).as_bytes()).unwrap();
                assert_eq!(found.unwrap().target, made[number]);
                assert_eq!(filesystem.metadata(made[number]).unwrap().nlink, 1);
                let mut listed = 0;
                let mut from = 0;
                loop {
                    let entries = filesystem.list(ROOT, from, 64).unwrap();
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
        is_done.store(true, Ordering::SeqCst);
    });
    filesystem.close().unwrap();
}
