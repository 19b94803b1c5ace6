//! Requests as the kernel sends them, to a server of a volume in an image. A copy of the image,
//! taken after an answer, is the volume after a crash at that moment.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

mod commands;
mod partly;

use super::*;
use crate::vfs::{HandleId, NewNode, OpenMode};
use crate::volume::{Access, MountedVolume, Showing};
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer_of;
use buttress::{Device, DeviceOptions, FileAttributes, FileKind, Location, Volume};
use std::path::PathBuf;
use tempfile::TempDir;

const NEW: NewNode = NewNode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
};

const WRITE: OpenMode = OpenMode {
    write: true,
    write_only: false,
    append: false,
    truncate: false,
    drop_privileges: false,
    durable: false,
};

/// Size of the test's file in bytes.
const BYTES: usize = 64 << 10;

struct Served {
    folder: TempDir,
    mounted: Arc<MountedVolume>,
    writer: WritableFilesystem,
    server: Server,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("volume.img");
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        let device = Device::open(&image, &options).unwrap();
        let volume = Volume::create().on_devices(vec![device]).unwrap();
        let writer = writer_of(&volume).clone();
        let root = Location::root_of(writer.view().default_subvolume().unwrap());
        let access = Access::Writing(writer.clone());
        let mounted = MountedVolume::new(access, root, Showing::default(), Arc::new(|_: &str| {}));
        let mounted = Arc::new(mounted);
        let server = Server::new(Arc::<MountedVolume>::clone(&mounted));
        Self {
            folder,
            mounted,
            writer,
            server,
        }
    }

    /// Creates a committed file of the byte `content`, and opens it.
    fn file(&self, name: &str, content: u8, mode: OpenMode) -> (Location, NodeId, HandleId) {
        let root = self.mounted.root();
        let (entry, handle) = self.mounted.create(root, name.as_bytes(), &NEW, mode).unwrap();
        let bytes = vec![content; BYTES];
        self.mounted.write(handle, 0, &bytes, false, false).unwrap();
        self.mounted.sync_all().unwrap();
        (entry.metadata.location, entry.node, handle)
    }

    /// Sends a request, and returns the error number of its answer, 0 for none.
    fn ask(&self, operation: u32, node: u64, body: &[u8]) -> (i32, When) {
        let mut request = Output::default();
        request
            .u32(u32::try_from(IN_HEADER + body.len()).unwrap())
            .u32(operation)
            .u64(1)
            .u64(node)
            .zeros(IN_HEADER - 24)
            .bytes(body);
        let mut input = Input::of(&request.body);
        let header = Header::parse(&mut input).unwrap();
        let mut out = Output::default();
        let when = self.server.respond(header, input, Turn::First, &mut out);
        let errno = i32::from_ne_bytes(*out.body.get(4..).unwrap().first_chunk().unwrap());
        (-errno, when)
    }

    /// Writes to the beginning of a file that was opened with these flags.
    fn write(&self, (node, handle): (NodeId, HandleId), flags: i32, content: &[u8]) {
        let mut body = Output::default();
        body.u64(handle.0)
            .u64(0)
            .u32(u32::try_from(content.len()).unwrap())
            .zeros(12)
            .u32(u32::try_from(flags).unwrap())
            .zeros(4)
            .bytes(content);
        let (errno, _) = self.ask(operation::WRITE, node.0, &body.body);
        assert_eq!(errno, 0);
    }

    /// Copies the image, and returns the copy's path.
    fn copy(&self) -> PathBuf {
        let copy = self.folder.path().join("copy.img");
        std::fs::copy(self.folder.path().join("volume.img"), &copy).unwrap();
        copy
    }

    /// Returns the content of a file after a crash at this moment.
    fn after_a_crash(&self, name: &str) -> Vec<u8> {
        let volume = Volume::open(self.copy()).unwrap();
        volume.default_subvolume().unwrap().read(name).unwrap()
    }
}

/// For an asynchronous direct write, the kernel sends no FSYNC.
#[test]
fn direct_write_with_dsync_survives_a_crash_after_its_answer() {
    for flag in [libc::O_DSYNC, libc::O_SYNC] {
        let served = Served::new();
        let (_, node, handle) = served.file("file", 1, WRITE);
        let flags = libc::O_RDWR | libc::O_DIRECT | flag;
        served.write((node, handle), flags, &[2; 4096]);
        let found = served.after_a_crash("file");
        assert_eq!(found.first_chunk(), Some(&[2; 4096]));
        assert_eq!(found.len(), BYTES);
    }
}

#[test]
fn write_to_a_synchronous_file_survives_a_crash() {
    let served = Served::new();
    let (location, node, handle) = served.file("file", 1, WRITE);
    served.writer.set_flags(location, FileAttributes::SYNC).unwrap();
    served.mounted.sync_all().unwrap();
    served.write((node, handle), libc::O_RDWR, &[2; 4096]);
    assert_eq!(served.after_a_crash("file").first_chunk(), Some(&[2; 4096]));
}

#[test]
fn copy_into_a_file_opened_with_dsync_survives_a_crash() {
    let served = Served::new();
    let (_, _, from) = served.file("from", 2, WRITE);
    let durable = OpenMode {
        durable: true,
        ..WRITE
    };
    let (_, _, to) = served.file("to", 1, durable);
    served.mounted.copy((from, 0), (to, 0), 4096).unwrap();
    assert_eq!(served.after_a_crash("to").first_chunk(), Some(&[2; 4096]));
}

/// Programs close their files after a panic; the last close requests a commit.
#[test]
fn changes_of_a_call_that_panicked_are_never_committed() {
    let served = Served::new();
    served.file("file", 1, WRITE);
    served
        .mounted
        .create(served.mounted.root(), b"new", &NEW, WRITE)
        .unwrap();
    served.mounted.broke();
    served.writer.commit().unwrap_err();
    served.mounted.leave().unwrap();
    let copy = served.copy();
    let root = Volume::open(&copy).unwrap().default_subvolume().unwrap();
    root.read("new").unwrap_err();
    root.read("file").unwrap();
}

/// `RENAME_NOREPLACE | RENAME_WHITEOUT` of `renameat2(2)`.
#[test]
fn rename_to_a_free_name_can_leave_a_whiteout() {
    let served = Served::new();
    served.file("one", 1, WRITE);
    served.file("two", 1, WRITE);
    let rename = |to: &str| {
        let mut body = Output::default();
        body.u64(ROOT)
            .u32(5)
            .u32(0)
            .bytes(format!("one\0{to}\0").as_bytes());
        served.ask(operation::RENAME2, ROOT, &body.body).0
    };
    assert_eq!(rename("two"), libc::EEXIST);
    assert_eq!(rename("three"), 0);
    let root = served.mounted.root();
    let whiteout = served.mounted.lookup(root, b"one").unwrap();
    assert_eq!(whiteout.metadata.kind, FileKind::CharacterDevice);
    let moved = served.mounted.lookup(root, b"three").unwrap();
    assert_eq!(moved.metadata.kind, FileKind::Regular);
}
