//! Tests that neither readers nor other edits wait while a thread waits for a device.

use crate::operations::{AttributeChanges, NewInode, RenameMode, SetXattr};
use crate::{WritableFilesystem, WriteOptions};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_fs::progress::Progress;
use buttress_mkfs::{self as mkfs, Identity};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const FILES: usize = 3000;

/// A function that runs before each read.
type Hook = Arc<dyn Fn() + Send + Sync>;

/// A memory device that calls a hook before each read.
struct Watched {
    memory: MemoryBackend,
    before_read: Mutex<Option<Hook>>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl Backend for Watched {
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
        let hook = self.before_read.lock().clone();
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

impl Watched {
    fn new() -> Arc<Self> {
        let backend = Arc::new(Self {
            memory: MemoryBackend::new("memory", vec![0; 256 << 20]),
            before_read: Mutex::default(),
        });
        let identity = Identity {
            fsid: Uuid::from_u128(1),
            chunk_tree: Uuid::from_u128(2),
            top_level: Uuid::from_u128(3),
            devices: vec![Uuid::from_u128(4)],
            time: Timestamp::default(),
        };
        mkfs::make(&[backend.device()], &mkfs::Options::default(), &identity).unwrap();
        backend
    }

    fn device(self: &Arc<Self>) -> Device {
        Device::with_backend(self.clone(), Engine::Inline)
    }

    fn open(self: &Arc<Self>) -> WritableFilesystem {
        let filesystem = OpenOptions::new(vec![self.device()]).open().unwrap();
        WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap()
    }

    fn watch(&self, hook: Option<Hook>) {
        *self.before_read.lock() = hook;
    }
}

/// A commit releases the edit lock while it reads blocks of the extent tree and of free space
/// before convergence.
#[test]
fn view_does_not_wait_for_converging_commit() {
    let device = Watched::new();
    let filesystem = device.open();
    filesystem
        .create(ROOT, b"before", &NewInode::of_root(0o600))
        .unwrap();
    // Whether the gate for reads is closed, and the number of reads that wait at the gate.
    let gate = Arc::new((Mutex::new((true, 0_usize)), Condvar::new()));
    let own = gate.clone();
    device.watch(Some(Arc::new(move || {
        let (state, changed) = &*own;
        let mut state = state.lock();
        state.1 += 1;
        changed.notify_all();
        changed.wait_while(&mut state, |state| state.0);
    })));
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| filesystem.commit());
        let (state, changed) = &*gate;
        changed.wait_while(&mut state.lock(), |state| state.1 == 0);
        let (send, receive) = std::sync::mpsc::channel();
        let reader = filesystem.clone();
        scope.spawn(move || send.send(reader.view()));
        let view = receive.recv_timeout(Duration::from_secs(60));
        state.lock().0 = false;
        changed.notify_all();
        let view = view.expect("a view while a commit waits for its device");
        assert!(view.lookup(ROOT, b"before").unwrap().is_some());
        commit.join().unwrap().unwrap();
        // The view was made before its references were in the trees, so view and pending references
        // have different moments.
        assert!(filesystem.delayed_references_of(&view, &[]).is_none());
        assert!(filesystem.view().lookup(ROOT, b"before").unwrap().is_some());
    });
}

fn name(number: usize) -> Vec<u8> {
    format!("name-{number}").into_bytes()
}

/// Makes three directories of many files, and a snapshot, so that trees have several levels and
/// many leaves.
fn fill(filesystem: &WritableFilesystem) -> Result<()> {
    for directory in ["one", "two", "three"] {
        let directory = filesystem.make_directory(ROOT, directory.as_bytes(), &NewInode::of_root(0o755))?;
        for number in 0..FILES {
            let file = filesystem.create(directory, &name(number), &NewInode::of_root(0o600))?;
            let length = if number % 8 == 0 { 40_000 } else { 300 };
            filesystem.write_at(file, FileOffset::MIN, &vec![b'x'; length])?;
        }
        filesystem.commit()?;
    }
    for subvolume in [&b"gone"[..], b"source"] {
        let made = filesystem.subvolumes().create(ROOT, subvolume)?;
        for number in 0..FILES {
            filesystem.create(Location::root_of(made), &name(number), &NewInode::of_root(0o600))?;
        }
        filesystem.commit()?;
    }
    let source = filesystem
        .live()
        .lookup(ROOT, b"source")?
        .unwrap()
        .target
        .subvolume;
    filesystem.subvolumes().snapshot(source, ROOT, b"copy", true)?;
    filesystem
        .subvolumes()
        .snapshot(SubvolumeId::TOP_LEVEL, ROOT, b"snapshot", true)?;
    filesystem.commit()?;
    Ok(())
}

/// Deletes a subvolume and drops its tree completely.
fn delete(filesystem: &WritableFilesystem, name: &[u8]) -> Result<()> {
    let gone = filesystem.live().lookup(ROOT, name)?.unwrap().target.subvolume;
    filesystem.subvolumes().delete(gone)?;
    filesystem.commit()?;
    filesystem.subvolumes().drop_deleted(&Progress::new())
}

/// A change of a volume that was just opened, with none of its trees in memory.
type Change = fn(&WritableFilesystem, Location, Location) -> Result<()>;

const CHANGES: &[(&str, Change)] = &[
    ("create", |filesystem, one, _| {
        filesystem
            .create(one, b"new", &NewInode::of_root(0o600))
            .map(drop)
    }),
    ("make_unnamed", |filesystem, one, _| {
        filesystem.make_unnamed(one, &NewInode::of_root(0o600)).map(drop)
    }),
    ("link", |filesystem, one, two| {
        let file = filesystem.live().lookup(one, &name(77))?.unwrap().target;
        filesystem.link(file, two, b"linked")
    }),
    ("unlink", |filesystem, one, _| filesystem.unlink(one, &name(1234))),
    ("unlink of a large file", |filesystem, one, _| {
        filesystem.unlink(one, &name(1600))
    }),
    ("rename", |filesystem, one, two| {
        filesystem.rename(one, &name(5), two, b"moved", RenameMode::NoReplace)
    }),
    ("rename over another", |filesystem, one, two| {
        filesystem.rename(one, &name(2001), two, &name(999), RenameMode::Replace)
    }),
    ("exchange", |filesystem, one, two| {
        filesystem.rename(one, &name(2900), two, &name(10), RenameMode::Exchange)
    }),
    ("set_xattr", |filesystem, one, _| {
        let file = filesystem.live().lookup(one, &name(500))?.unwrap().target;
        filesystem.set_xattr(file, b"user.some", b"value", SetXattr::Create)
    }),
    ("set_attributes", |filesystem, one, _| {
        let file = filesystem.live().lookup(one, &name(1500))?.unwrap().target;
        let changes = AttributeChanges {
            mode: Some(0o640),
            ..AttributeChanges::default()
        };
        filesystem.set_attributes(file, &changes)
    }),
    ("a small write", |filesystem, _, two| {
        let file = filesystem.live().lookup(two, &name(33))?.unwrap().target;
        filesystem
            .write_at(file, FileOffset::new(10), b"changed")
            .map(drop)
    }),
    ("a large write", |filesystem, _, two| {
        let file = filesystem.live().lookup(two, &name(1600))?.unwrap().target;
        filesystem
            .write_at(file, FileOffset::new(4096), &vec![b'y'; 1 << 20])
            .map(drop)
    }),
    ("truncate", |filesystem, _, two| {
        let file = filesystem.live().lookup(two, &name(2400))?.unwrap().target;
        filesystem.truncate(file, ByteCount::new(5000))
    }),
    ("create_subvolume", |filesystem, one, _| {
        filesystem.subvolumes().create(one, b"below").map(drop)
    }),
    ("snapshot", |filesystem, one, _| {
        filesystem
            .subvolumes()
            .snapshot(SubvolumeId::TOP_LEVEL, one, b"again", false)
            .map(drop)
    }),
    ("data in new chunks", |filesystem, one, _| {
        let file = filesystem.create(one, b"large", &NewInode::of_root(0o600))?;
        for at in 0..48 {
            filesystem.write_at(file, FileOffset::new(at << 20), &vec![b'z'; 1 << 20])?;
        }
        filesystem.writeback().write_all()
    }),
    ("many changes and a view", |filesystem, one, two| {
        for number in (0..FILES).step_by(97) {
            filesystem.unlink(one, &name(number))?;
            let file = filesystem.live().lookup(two, &name(number + 1))?.unwrap().target;
            filesystem.set_xattr(file, b"user.other", b"value", SetXattr::Create)?;
            drop(filesystem.view());
        }
        Ok(())
    }),
    ("delete_subvolume", |filesystem, _, _| delete(filesystem, b"gone")),
    ("delete_subvolume before its snapshot", |filesystem, _, _| {
        delete(filesystem, b"source")
    }),
];

/// Counts the reads of a device, and the reads while the edit lock was held.
#[derive(Default)]
struct Count {
    all: AtomicUsize,
    under_lock: AtomicUsize,
}

impl Count {
    fn begin(device: &Watched, filesystem: &WritableFilesystem) -> Arc<Self> {
        let count = Arc::new(Self::default());
        let (observer, own) = (filesystem.observer(), count.clone());
        device.watch(Some(Arc::new(move || {
            let Some(is_locked) = observer.is_edit_locked() else {
                return;
            };
            own.all.fetch_add(1, Ordering::Relaxed);
            if is_locked {
                own.under_lock.fetch_add(1, Ordering::Relaxed);
            }
        })));
        count
    }

    fn get(&self) -> (usize, usize) {
        (
            self.all.load(Ordering::Relaxed),
            self.under_lock.load(Ordering::Relaxed),
        )
    }
}

/// All reads happen before the edit lock is acquired, or after it was released.
#[test]
fn no_change_reads_under_the_edit_lock() {
    let device = Watched::new();
    let filesystem = device.open();
    fill(&filesystem).unwrap();
    drop(filesystem);
    let mut read = 0;
    for (what, change) in CHANGES {
        let filesystem = device.open();
        let one = filesystem.live().lookup(ROOT, b"one").unwrap().unwrap().target;
        let two = filesystem.live().lookup(ROOT, b"two").unwrap().unwrap().target;
        let count = Count::begin(&device, &filesystem);
        change(&filesystem, one, two).unwrap();
        let (all, under_lock) = count.get();
        read += all;
        assert_eq!(under_lock, 0, "{what}: of {all} reads under the edit lock");
        filesystem.commit().unwrap();
        let (all, under_lock) = count.get();
        assert_eq!(
            under_lock, 0,
            "{what} with its commit: of {all} reads under the edit lock"
        );
        device.watch(None);
    }
    assert!(read > CHANGES.len(), "only {read} reads: nothing was cold");
}

/// Under the lock, the drop reads blocks that the cache does not keep, and still ends completely.
#[test]
fn a_subvolume_is_dropped_to_the_end_without_a_cache() {
    let device = Watched::new();
    let filesystem = device.open();
    let gone = filesystem.subvolumes().create(ROOT, b"gone").unwrap();
    for number in 0..FILES {
        let file = NewInode::of_root(0o600);
        filesystem
            .create(Location::root_of(gone), &name(number), &file)
            .unwrap();
    }
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = OpenOptions::new(vec![device.device()])
        .cache(ByteCount::ZERO)
        .open()
        .unwrap();
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    filesystem.subvolumes().delete(gone).unwrap();
    filesystem.commit().unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    assert!(filesystem.subvolumes().deleted().unwrap().is_empty());
    assert!(
        filesystem.view().root_item(gone.tree()).is_err(),
        "its root is still there"
    );
}
