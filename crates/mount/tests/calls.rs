//! Calls of a mount: the number of lookups of each call, and its result beside concurrent threads.
//!
//! `cargo test -p buttress-mount --test calls -- --nocapture` prints the table of lookups of
//! docs/internals/performance.md.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests state what must hold"
)]

use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer::look_ups::{LookUps, so_far};
use buttress::unstable::writer_of;
use buttress::{Device, Location, Volume};
use buttress_mount::vfs::{
    Caller, Changes, Errno, HandleId, NewKind, NewNode, NewTime, NodeId, OpenMode, Opened, ReadHow,
    RenameHow, SetHow, Vfs,
};
use buttress_mount::volume::{Access, MountedVolume, Showing};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

const READ: OpenMode = OpenMode {
    write: false,
    ..WRITE
};

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// For each call of the mount, the largest allowed number of lookups: inodes, trees, items, edit
/// locks.
const MKDIR: [u64; 4] = [10, 0, 0, 1];
const LOOKUP_DIRECTORY: [u64; 4] = [2, 2, 1, 0];
const LOOKUP_NOTHING: [u64; 4] = [1, 2, 1, 0];
const RENAME: [u64; 4] = [18, 0, 0, 1];
const RMDIR: [u64; 4] = [13, 2, 1, 1];
const CREATE: [u64; 4] = [9, 0, 0, 1];
const FIRST_WRITE: [u64; 4] = [3, 3, 0, 2];
const WRITE_AGAIN: [u64; 4] = [0; 4];
const SETATTR: [u64; 4] = [6, 0, 0, 1];
const FSYNC: [u64; 4] = [16, 0, 3, 9];
const LOOKUP_FILE: [u64; 4] = [2, 2, 1, 0];
const GETATTR: [u64; 4] = [1, 0, 0, 0];
const OPEN: [u64; 4] = [0; 4];
const READ_AGAIN: [u64; 4] = [0; 4];
const OPEN_WRITING: [u64; 4] = [1, 1, 0, 0];
const LIST: [u64; 4] = [8, 2, 1, 1];
const UNLINK: [u64; 4] = [11, 0, 0, 1];
const FORGET: [u64; 4] = [11, 0, 0, 1];

fn volume() -> MountedVolume {
    volume_and_writer().0
}

fn volume_and_writer() -> (MountedVolume, WritableFilesystem) {
    let device = Device::memory(vec![0; 256 << 20]);
    let volume = Volume::create().on_devices(vec![device]).unwrap();
    let writer = writer_of(&volume).clone();
    let root = Location::root_of(writer.view().default_subvolume().unwrap());
    let log = Arc::new(|_: &str| {});
    let access = Access::Writing(writer.clone());
    (MountedVolume::new(access, root, Showing::default(), log), writer)
}

/// Rows of the table of lookups.
#[derive(Default)]
struct Table(Vec<(&'static str, LookUps, LookUps)>);

impl Table {
    /// Makes a call, and records its lookups. `most`: the largest number of searches of inodes,
    /// trees and items, and of edit locks.
    fn call<T>(&mut self, name: &'static str, most: [u64; 4], call: impl FnOnce() -> T) -> T {
        let before = so_far();
        let result = call();
        let [inodes, trees, items, edit_locks] = most;
        let most = LookUps {
            inodes,
            trees,
            items,
            edit_locks,
        };
        self.0.push((name, so_far() - before, most));
        result
    }
}

fn calls_of_names(mounted: &MountedVolume, table: &mut Table) {
    let root = mounted.root();
    let (directory, other) = ("directory".as_bytes(), "other".as_bytes());
    table.call("mkdir", MKDIR, || {
        mounted.make(root, directory, &NEW, NewKind::Directory).unwrap()
    });
    table.call("lookup of a directory", LOOKUP_DIRECTORY, || {
        mounted.lookup(root, directory).unwrap()
    });
    table.call("lookup of no name", LOOKUP_NOTHING, || {
        assert!(mounted.lookup(root, other).is_err());
    });
    table.call("rename", RENAME, || {
        mounted
            .rename((root, directory), (root, other), RenameHow::Replace, CALLER)
            .unwrap();
    });
    table.call("rmdir", RMDIR, || mounted.remove_directory(root, other).unwrap());
}

fn calls_of_files(mounted: &MountedVolume, table: &mut Table) {
    let root = mounted.root();
    let name = "file".as_bytes();
    let (node, handle) = table.call("create", CREATE, || {
        let (entry, handle) = mounted.create(root, name, &NEW, WRITE).unwrap();
        (entry.node, handle)
    });
    let block = vec![7; 4096];
    let write = |handle: HandleId| mounted.write(handle, 0, &block, false, false).unwrap();
    table.call("first write of 4 KiB", FIRST_WRITE, || write(handle));
    table.call("write of 4 KiB", WRITE_AGAIN, || write(handle));
    table.call("setattr of times", SETATTR, || {
        let changes = Changes {
            modified: Some(NewTime::Now),
            ..Changes::default()
        };
        mounted.change(node, &changes).unwrap();
    });
    table.call("fsync", FSYNC, || mounted.sync(node, false).unwrap());
    table.call("release", [0; 4], || mounted.release(handle));
    mounted.sync_all().unwrap();
    table.call("lookup of a file", LOOKUP_FILE, || {
        mounted.lookup(root, name).unwrap()
    });
    table.call("getattr", GETATTR, || {
        mounted.attributes(node).unwrap();
    });
    let reading = table.call("open for reading", OPEN, || mounted.open(node, READ).unwrap());
    let mut buffer = vec![0; 4096];
    let mut read = || {
        let file = Opened::Handle(reading);
        mounted.read(file, 0, &mut buffer, ReadHow::Cached).unwrap()
    };
    // The first read changes the access time.
    read();
    table.call("read of 4 KiB", READ_AGAIN, read);
    mounted.release(reading);
    let writing = table.call("open for writing", OPEN_WRITING, || {
        mounted.open(node, WRITE).unwrap()
    });
    mounted.release(writing);
    table.call("readdir with attributes", LIST, || list(mounted, root));
    table.call("unlink", UNLINK, || mounted.unlink(root, name).unwrap());
    // A directory listing also referred to the file.
    table.call("forget of a removed file", FORGET, || mounted.forget(node, 3));
}

/// Lists a directory of one file with attributes, as the server does.
fn list(mounted: &MountedVolume, directory: NodeId) {
    for entry in mounted.list(Opened::Node(directory), 0, 256).unwrap() {
        if !entry.is_dot {
            mounted.revive(entry.node, Some(directory)).unwrap();
        }
    }
}

#[test]
fn calls_look_up_no_more_than_the_table_says() {
    let mounted = volume();
    let mut table = Table::default();
    // The first calls load the root directory and the trees.
    mounted
        .make(mounted.root(), b"first", &NEW, NewKind::File)
        .unwrap();
    calls_of_names(&mounted, &mut table);
    calls_of_files(&mounted, &mut table);
    println!("| call | inodes | trees | items | edit locks |\n|---|---|---|---|---|");
    for (name, found, _) in &table.0 {
        let LookUps {
            inodes,
            trees,
            items,
            edit_locks,
        } = found;
        println!("| {name} | {inodes} | {trees} | {items} | {edit_locks} |");
    }
    if cfg!(debug_assertions) {
        for (name, found, most) in &table.0 {
            assert!(
                found.inodes <= most.inodes
                    && found.trees <= most.trees
                    && found.items <= most.items
                    && found.edit_locks <= most.edit_locks,
                "{name}: {found:?}, expected at most {most:?}"
            );
        }
    }
    mounted.leave().unwrap();
}

/// Number of rounds, enough for the system to stop the creating thread many times between a
/// creation and its answer.
const ROUNDS: u64 = 60_000;

/// Number of other threads, more than there are processors.
const OTHERS: usize = 4;

/// Creates the same file many times, while other threads run `other`.
fn create_beside(mounted: &MountedVolume, other: impl Fn() + Sync, made: impl Fn(HandleId)) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for _ in 0..OTHERS {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    other();
                }
            });
        }
        for _ in 0..ROUNDS {
            let (entry, handle) = match mounted.create(mounted.root(), b"file", &NEW, WRITE) {
                Err(Errno::EXIST) => continue,
                created => created.unwrap(),
            };
            made(handle);
            mounted.release(handle);
            mounted.forget(entry.node, 1);
        }
    });
    mounted.leave().unwrap();
}

/// Another thread of the server removes the file between its creation and the answer; the creation
/// must still succeed.
#[test]
fn create_reports_no_missing_file_beside_removals() {
    let (mounted, writer) = volume_and_writer();
    let root = Location::root_of(writer.view().default_subvolume().unwrap());
    let remove = || drop(writer.unlink(root, b"file"));
    create_beside(&mounted, remove, |_| ());
}

/// Another caller removes the file at once; its creator must still be able to use it.
#[test]
fn created_file_stays_usable_beside_unlinks() {
    let mounted = volume();
    let unlink = || {
        let _is_removed = mounted.unlink(mounted.root(), b"file").is_ok();
    };
    create_beside(&mounted, unlink, |handle| {
        mounted.write(handle, 0, b"content", false, false).unwrap();
    });
}

/// Flag guard that ends the other threads, also when this thread fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A search that finds no capability while another caller sets one must not hide it afterwards.
#[test]
fn getxattr_beside_setcap_does_not_hide_the_capability() {
    const CAPABILITY: &[u8] = b"security.capability";
    let mounted = volume();
    let (entry, handle) = mounted.create(mounted.root(), b"program", &NEW, WRITE).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let _is_found = mounted.xattr(entry.node, CAPABILITY).is_ok();
            }
        });
        for _ in 0..300 {
            mounted
                .set_xattr(entry.node, CAPABILITY, b"value", SetHow::Create, false)
                .unwrap();
            assert_eq!(mounted.xattr(entry.node, CAPABILITY).unwrap(), b"value");
            mounted.write(handle, 0, b"new", false, false).unwrap();
            let found = mounted.xattr(entry.node, CAPABILITY);
            assert!(matches!(found, Err(Errno::NODATA)), "{found:?}");
        }
    });
    mounted.leave().unwrap();
}
