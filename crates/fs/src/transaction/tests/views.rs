//! Views that are taken while a commit is under way.

use super::super::{WritableFilesystem, WriteOptions};
use crate::location::Location;
use crate::mkfs::{self, Identity};
use crate::open::OpenOptions;
use crate::operations::NewInode;
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{SubvolumeId, Timestamp, Uuid};
use core::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// A device whose reads wait while its gate is closed.
#[derive(Debug)]
struct Gated {
    memory: MemoryBackend,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    is_closed: bool,
    /// Reads that stand before it.
    waiting: usize,
}

impl Gated {
    fn close(&self) {
        self.gate.lock().is_closed = true;
    }

    fn open(&self) {
        self.gate.lock().is_closed = false;
        self.changed.notify_all();
    }

    fn wait_for_a_read(&self) {
        let mut gate = self.gate.lock();
        self.changed.wait_while(&mut gate, |gate| gate.waiting == 0);
    }
}

impl Backend for Gated {
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
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut gate, |gate| gate.is_closed);
        gate.waiting -= 1;
        drop(gate);
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

fn new_volume() -> (Arc<Gated>, WritableFilesystem) {
    let gated = Arc::new(Gated {
        memory: MemoryBackend::new("memory", vec![0; 256 << 20]),
        gate: Mutex::default(),
        changed: Condvar::new(),
    });
    let device = || Device::with_backend(gated.clone(), Engine::Inline);
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap();
    (gated, filesystem)
}

/// Settling reads what it needs of the extent tree and of free space, under the edit lock.
#[test]
fn a_view_waits_for_no_commit_that_settles() {
    let (gated, filesystem) = new_volume();
    filesystem
        .create(ROOT, b"before", &NewInode::of_root(0o600))
        .unwrap();
    gated.close();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| filesystem.commit());
        gated.wait_for_a_read();
        let (send, receive) = std::sync::mpsc::channel();
        let reader = filesystem.clone();
        scope.spawn(move || send.send(reader.view()));
        let view = receive.recv_timeout(Duration::from_secs(60));
        gated.open();
        let view = view.expect("a view while a commit waits for its device");
        assert!(view.lookup(ROOT, b"before").unwrap().is_some());
        commit.join().unwrap().unwrap();
        // What the view was given before its references were in the trees is not of the same moment as what waits now.
        assert!(filesystem.waiting_references(&view, &[]).is_none());
        assert!(filesystem.view().lookup(ROOT, b"before").unwrap().is_some());
    });
}
