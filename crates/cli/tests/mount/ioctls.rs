//! Compares btrfs's ioctls on a mount of this program with the kernel's btrfs: the same calls on
//! the same volume, line by line.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::ioctls::{Data, numbered};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{Mounted, no_fuse, sound};
use rustix::io::Errno;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const READ: u32 = 2;
const WRITE: u32 = 1;
const BOTH: u32 = 3;

const fn command(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | 0x94 << 8 | number
}

const SUBVOL_CREATE: u32 = command(WRITE, 14, 4096);
const SUBVOL_CREATE_V2: u32 = command(WRITE, 24, 4096);
const SNAP_CREATE_V2: u32 = command(WRITE, 23, 4096);
const SNAP_DESTROY: u32 = command(WRITE, 15, 4096);
const SNAP_DESTROY_V2: u32 = command(WRITE, 63, 4096);
const GETFLAGS: u32 = command(READ, 25, 8);
const SETFLAGS: u32 = command(WRITE, 26, 8);
const SUBVOL_INFO: u32 = command(READ, 60, 504);
const ROOTREF: u32 = command(BOTH, 61, 4096);
const INO_LOOKUP: u32 = command(BOTH, 18, 4096);
const INO_LOOKUP_USER: u32 = command(BOTH, 62, 4096);
const TREE_SEARCH: u32 = command(BOTH, 17, 4096);
const DEFAULT_SUBVOL: u32 = command(WRITE, 19, 8);
const FS_INFO: u32 = command(READ, 31, 1024);
const DEV_INFO: u32 = command(BOTH, 30, 4096);
const DEV_STATS: u32 = command(BOTH, 52, 1032);
const FEATURES: u32 = command(READ, 57, 24);
const SPACE_INFO: u32 = command(BOTH, 20, 16);
const GET_LABEL: u32 = command(READ, 49, 256);
const SET_LABEL: u32 = command(WRITE, 50, 256);
const SYNC: u32 = command(0, 8, 0);
const START_SYNC: u32 = command(READ, 24, 8);
const WAIT_SYNC: u32 = command(WRITE, 22, 8);
/// This ioctl is not specific to btrfs.
const FITRIM: u32 = BOTH << 30 | 24 << 16 | 0x58 << 8 | 121;

/// The answers of the calls as lines.
#[derive(Default)]
struct Said(String);

fn with(fields: &[u64]) -> Data {
    let mut data = [0; 4096];
    for (index, field) in fields.iter().enumerate() {
        data[index * 8..index * 8 + 8].copy_from_slice(&field.to_ne_bytes());
    }
    data
}

fn named(offset: usize, fields: &[u64], name: &str) -> Data {
    let mut data = with(fields);
    data[offset..offset + name.len()].copy_from_slice(name.as_bytes());
    data
}

fn field(data: &Data, index: usize) -> u64 {
    u64::from_ne_bytes(data[index * 8..index * 8 + 8].try_into().unwrap())
}

fn text(data: &[u8]) -> String {
    let end = data.iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(data[..end].to_vec()).unwrap()
}

impl Said {
    /// Makes a call of which the test compares only the result.
    fn end(&mut self, what: &str, file: &File, number: u32, mut data: Data) {
        let ended = numbered(file, number, &mut data);
        writeln!(self.0, "{what}: {ended:?}").unwrap();
    }

    /// Makes a call and records a part of its answer.
    fn answer<T: std::fmt::Debug>(
        &mut self,
        what: &str,
        (file, number): (&File, u32),
        mut data: Data,
        read: impl FnOnce(&Data) -> T,
    ) {
        match numbered(file, number, &mut data) {
            Ok(_) => writeln!(self.0, "{what}: {:?}", read(&data)),
            Err(error) => writeln!(self.0, "{what}: {error}"),
        }
        .unwrap();
    }
}

fn descriptor(file: &File) -> u64 {
    u64::try_from(file.as_raw_fd()).unwrap()
}

fn making(said: &mut Said, root: &Path) {
    let directory = File::open(root).unwrap();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/file"), b"content").unwrap();
    let file = File::open(root.join("d/file")).unwrap();
    file.sync_all().unwrap();
    let create = |name: &str| named(8, &[0], name);
    said.end("create", &directory, SUBVOL_CREATE, create("one"));
    fs::write(root.join("one/inside"), b"x").unwrap();
    said.end("again", &directory, SUBVOL_CREATE, create("one"));
    said.end("a slash", &directory, SUBVOL_CREATE, create("a/b"));
    said.end("a dot", &directory, SUBVOL_CREATE, create("."));
    said.end("two dots", &directory, SUBVOL_CREATE, create(".."));
    said.end("nothing", &directory, SUBVOL_CREATE, create(""));
    said.end("long", &directory, SUBVOL_CREATE, create(&"n".repeat(256)));
    said.end("in a file", &file, SUBVOL_CREATE, create("x"));
    said.end(
        "second kind",
        &directory,
        SUBVOL_CREATE_V2,
        named(56, &[0, 0, 0], "two"),
    );
    said.end(
        "flags",
        &directory,
        SUBVOL_CREATE_V2,
        named(56, &[0, 0, 1 << 20], "three"),
    );

    let one = File::open(root.join("one")).unwrap();
    let snapshot = |of: u64, flags: u64, name: &str| named(56, &[of, 0, flags], name);
    said.end(
        "snapshot",
        &directory,
        SNAP_CREATE_V2,
        snapshot(descriptor(&one), 0, "copy"),
    );
    said.end(
        "read-only",
        &directory,
        SNAP_CREATE_V2,
        snapshot(descriptor(&one), 2, "fixed"),
    );
    said.end(
        "exists",
        &directory,
        SNAP_CREATE_V2,
        snapshot(descriptor(&one), 0, "copy"),
    );
    let d = File::open(root.join("d")).unwrap();
    said.end(
        "of no subvolume",
        &directory,
        SNAP_CREATE_V2,
        snapshot(descriptor(&d), 0, "x"),
    );
    said.end("of nothing", &directory, SNAP_CREATE_V2, snapshot(9999, 0, "x"));
    let elsewhere = File::open("/").unwrap();
    said.end(
        "of another",
        &directory,
        SNAP_CREATE_V2,
        snapshot(descriptor(&elsewhere), 0, "x"),
    );
    said.end("into it", &one, SUBVOL_CREATE, create("nested"));
    said.0 += &format!("{:?}\n", fs::read(root.join("copy/inside")));
    said.0 += &format!(
        "{:?}\n",
        fs::write(root.join("fixed/x"), b"").map_err(|error| error.raw_os_error())
    );

    let fixed = File::open(root.join("fixed")).unwrap();
    let flags = |data: &Data| field(data, 0);
    said.answer("flags of a read-only one", (&fixed, GETFLAGS), with(&[]), flags);
    said.answer("flags", (&one, GETFLAGS), with(&[]), flags);
    said.answer("flags of a directory", (&d, GETFLAGS), with(&[]), flags);
    said.end("writable", &fixed, SETFLAGS, with(&[0]));
    said.end("other flags", &fixed, SETFLAGS, with(&[4]));
    said.end("of a directory", &d, SETFLAGS, with(&[2]));
    said.0 += &format!("{:?}\n", fs::write(root.join("fixed/x"), b""));
}

fn telling(said: &mut Said, root: &Path) {
    let directory = File::open(root).unwrap();
    let one = File::open(root.join("one")).unwrap();
    let copy = File::open(root.join("copy")).unwrap();
    let info = |data: &Data| {
        let is_set = |at: usize| data[at..at + 16].iter().any(|byte| *byte != 0);
        (
            field(data, 0),
            text(&data[8..264]),
            field(data, 33),
            field(data, 34),
            field(data, 36),
            (is_set(296), is_set(312), is_set(328)),
            field(data, 46) > 0,
        )
    };
    said.answer("of the top", (&directory, SUBVOL_INFO), with(&[]), info);
    said.answer("of one", (&one, SUBVOL_INFO), with(&[]), info);
    said.answer("of a copy", (&copy, SUBVOL_INFO), with(&[]), info);
    let references = |data: &Data| {
        let count = usize::from(data[8 + 255 * 16]);
        let all: Vec<u64> = (0..1 + 2 * count).map(|index| field(data, index)).collect();
        (count, all)
    };
    said.answer("children", (&directory, ROOTREF), with(&[0]), references);
    said.answer("from", (&directory, ROOTREF), with(&[258]), references);
    said.answer("none", (&copy, ROOTREF), with(&[0]), references);
    let path = |data: &Data| (field(data, 0), text(&data[16..]));
    said.answer("own tree", (&one, INO_LOOKUP), with(&[0, 256]), path);
    said.answer("a file", (&directory, INO_LOOKUP), with(&[0, 258]), path);
    said.answer("in another", (&directory, INO_LOOKUP), with(&[256, 257]), path);
    said.answer("no inode", (&directory, INO_LOOKUP), with(&[0, 9999]), path);
    said.answer("no tree", (&directory, INO_LOOKUP), with(&[9999, 257]), path);
    let place = |data: &Data| (text(&data[16..272]), text(&data[272..]));
    said.answer("a place", (&directory, INO_LOOKUP_USER), with(&[256, 256]), place);
    said.answer(
        "not there",
        (&directory, INO_LOOKUP_USER),
        with(&[257, 256]),
        place,
    );
    said.answer(
        "no such",
        (&directory, INO_LOOKUP_USER),
        with(&[256, 9999]),
        place,
    );
}

/// Searches items of one file, and the references to subvolumes.
fn searching(said: &mut Said, root: &Path) {
    let directory = File::open(root).unwrap();
    let found = |data: &Data| {
        let count = u32::from_ne_bytes(data[64..68].try_into().unwrap());
        let (mut at, mut keys) = (104, Vec::new());
        for _ in 0..count {
            let number = |from: usize| u64::from_ne_bytes(data[from..from + 8].try_into().unwrap());
            let short = |from: usize| u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
            let length = usize::try_from(short(at + 28)).unwrap();
            keys.push((number(at + 8), short(at + 24), number(at + 16), length));
            at += 32 + length;
        }
        keys
    };
    let search = |tree: u64, from: (u64, u32, u64), to: (u64, u32, u64), count: u32| {
        let mut data = with(&[tree, from.0, to.0, from.2, to.2, 0, u64::MAX]);
        for (index, part) in [from.1, to.1, count].into_iter().enumerate() {
            data[56 + index * 4..60 + index * 4].copy_from_slice(&part.to_ne_bytes());
        }
        data
    };
    let all = search(0, (258, 0, 0), (258, 255, u64::MAX), u32::MAX);
    said.answer("a file's items", (&directory, TREE_SEARCH), all, found);
    let two = search(0, (256, 0, 0), (u64::MAX, 255, u64::MAX), 2);
    said.answer("two", (&directory, TREE_SEARCH), two, found);
    let references = search(1, (5, 156, 0), (5, 156, u64::MAX), 100);
    said.answer("references", (&directory, TREE_SEARCH), references, found);
    let none = search(9999, (0, 0, 0), (5, 156, u64::MAX), 100);
    said.answer("no such tree", (&directory, TREE_SEARCH), none, found);
}

fn describing(said: &mut Said, root: &Path) {
    let directory = File::open(root).unwrap();
    let information = |data: &Data| {
        let short = |from: usize| u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
        (field(data, 0), field(data, 1), short(32), short(36), short(40))
    };
    said.answer("volume", (&directory, FS_INFO), with(&[]), information);
    let device = |data: &Data| (field(data, 0), field(data, 4), data[3072] == b'/');
    said.answer("device", (&directory, DEV_INFO), with(&[1]), device);
    said.answer("no device", (&directory, DEV_INFO), with(&[7]), device);
    let counters = |data: &Data| (0..8).map(|index| field(data, index)).collect::<Vec<_>>();
    said.answer("counters", (&directory, DEV_STATS), with(&[1, 5, 0]), counters);
    said.answer("some", (&directory, DEV_STATS), with(&[1, 2, 0]), counters);
    said.answer("of none", (&directory, DEV_STATS), with(&[7, 5, 0]), counters);
    let three = |data: &Data| (field(data, 0), field(data, 1), field(data, 2));
    said.answer("features", (&directory, FEATURES), with(&[]), three);
    said.answer(
        "kinds of space",
        (&directory, SPACE_INFO),
        with(&[0, 0]),
        |data| field(data, 1),
    );
    said.end("set label", &directory, SET_LABEL, named(0, &[], "new label"));
    said.answer("label", (&directory, GET_LABEL), with(&[]), |data| text(data));
    let mut long = with(&[]);
    long[..256].fill(b'l');
    said.end("long label", &directory, SET_LABEL, long);
    said.end("sync", &directory, SYNC, with(&[]));
    said.answer("start", (&directory, START_SYNC), with(&[]), |data| {
        field(data, 0) > 0
    });
    said.end("wait", &directory, WAIT_SYNC, with(&[0]));
    said.end("trim less than a sector", &directory, FITRIM, with(&[0, 4095, 0]));
    said.end("from the end", &directory, FITRIM, with(&[u64::MAX, u64::MAX, 0]));
    let all = with(&[0, u64::MAX, 0]);
    said.answer("trim", (&directory, FITRIM), all, |data| {
        (field(data, 0), field(data, 1) > 100 << 20, field(data, 2))
    });
}

fn deleting(said: &mut Said, root: &Path) {
    let directory = File::open(root).unwrap();
    let delete = |name: &str| named(8, &[0], name);
    said.end("has another in it", &directory, SNAP_DESTROY, delete("one"));
    said.end("no subvolume", &directory, SNAP_DESTROY, delete("d"));
    fs::write(root.join("file"), b"content").unwrap();
    said.end("a file", &directory, SNAP_DESTROY, delete("file"));
    said.end("nothing", &directory, SNAP_DESTROY, delete("none"));
    said.end("default", &directory, DEFAULT_SUBVOL, with(&[258]));
    said.end("no such default", &directory, DEFAULT_SUBVOL, with(&[9999]));
    said.end("the default", &directory, SNAP_DESTROY, delete("copy"));
    said.end("the top again", &directory, DEFAULT_SUBVOL, with(&[0]));
    let mut by_id = with(&[0, 0, 16]);
    by_id[56..64].copy_from_slice(&258_u64.to_ne_bytes());
    said.end("by its id", &directory, SNAP_DESTROY_V2, by_id);
    said.end("again", &directory, SNAP_DESTROY_V2, by_id);
    said.end(
        "by name",
        &directory,
        SNAP_DESTROY_V2,
        named(56, &[0, 0, 0], "two"),
    );
    said.end(
        "unknown flag",
        &directory,
        SNAP_DESTROY_V2,
        named(56, &[0, 0, 1], "two"),
    );
    said.0 += &format!("{:?}\n", names(root));
}

fn names(root: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

/// Makes the calls in a separate thread, as a user without privileges.
fn without_rights(said: &mut Said, root: &Path) {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(root.join("open")).unwrap();
    fs::set_permissions(root.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let root = root.to_owned();
    let ran = std::thread::spawn(move || {
        let mut said = Said::default();
        let nobody = rustix::thread::Uid::from_raw(65534);
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_gid(rustix::thread::Gid::from_raw(65534)).unwrap();
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let (top, open) = (File::open(&root).unwrap(), File::open(root.join("open")).unwrap());
        let one = File::open(root.join("one")).unwrap();
        let create = |name: &str| named(8, &[0], name);
        said.end("nobody's at the top", &top, SUBVOL_CREATE, create("his"));
        said.end("nobody's", &open, SUBVOL_CREATE, create("his"));
        said.end("again", &open, SUBVOL_CREATE, create("his"));
        said.0 += &format!("{:?}\n", fs::write(root.join("open/his/file"), b"x"));
        let of = |source: &File| named(56, &[descriptor(source), 0, 0], "copy");
        said.end("of root's", &open, SNAP_CREATE_V2, of(&one));
        let his = File::open(root.join("open/his")).unwrap();
        said.end("of his", &open, SNAP_CREATE_V2, of(&his));
        said.end("delete", &open, SNAP_DESTROY, create("copy"));
        said.end("root's flags", &one, SETFLAGS, with(&[2]));
        said.end("his flags", &his, SETFLAGS, with(&[2]));
        said.answer("his tree", (&his, INO_LOOKUP), with(&[0, 256]), |data| {
            field(data, 0) > 256
        });
        said.end("a path", &top, INO_LOOKUP, with(&[0, 258]));
        said.end("search", &top, TREE_SEARCH, with(&[1]));
        said.end("label", &top, SET_LABEL, named(0, &[], "his"));
        said.end("default", &top, DEFAULT_SUBVOL, with(&[256]));
        said.end("trim", &top, FITRIM, with(&[0, u64::MAX, 0]));
        said
    });
    said.0 += &ran.join().unwrap().0;
}

fn everything(root: &Path) -> String {
    let mut said = Said::default();
    making(&mut said, root);
    telling(&mut said, root);
    searching(&mut said, root);
    describing(&mut said, root);
    without_rights(&mut said, root);
    deleting(&mut said, root);
    said.0
}

#[test]
fn ioctls_answer_as_the_kernels_do() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let (ours, theirs) = (Mounted::new(), Mounted::new());
    ours.mount("rw,allow_other");
    fs::set_permissions(ours.at.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = everything(&ours.at);
    ours.umount();
    ours.expect_sound();
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), "").unwrap();
    let expected = everything(kernel.path());
    kernel.close().unwrap();
    let differ: Vec<String> = said
        .lines()
        .zip(expected.lines())
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("{ours}\n  the kernel: {theirs}"))
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert_eq!(said.lines().count(), expected.lines().count());
}

#[test]
fn unsupported_ioctls_fail_with_specific_errors() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let directory = File::open(&mounted.at).unwrap();
    let mut data = with(&[4, 0]);
    assert_eq!(numbered(&directory, SPACE_INFO, &mut data), Err(Errno::OPNOTSUPP));
    const TREE_SEARCH_V2: u32 = command(BOTH, 17, 112);
    assert_eq!(
        numbered(&directory, TREE_SEARCH_V2, &mut data),
        Err(Errno::OPNOTSUPP)
    );
    const BALANCE_CONTROL: u32 = command(WRITE, 33, 4);
    assert_eq!(
        numbered(&directory, BALANCE_CONTROL, &mut data),
        Err(Errno::NOTTY)
    );
    drop(directory);
    mounted.umount();
    mounted.mount("ro");
    let directory = File::open(&mounted.at).unwrap();
    let mut data = named(8, &[0], "new");
    assert_eq!(numbered(&directory, SUBVOL_CREATE, &mut data), Err(Errno::ROFS));
    let mut data = with(&[0, u64::MAX, 0]);
    assert_eq!(numbered(&directory, FITRIM, &mut data), Err(Errno::ROFS));
    drop(directory);
    mounted.umount();
    sound(&["check", mounted.image()]);
}

#[test]
fn a_cached_listing_shows_a_new_subvolume() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    fs::create_dir(mounted.at.join("d")).unwrap();
    assert_eq!(names(&mounted.at), ["d"]);
    let directory = File::open(&mounted.at).unwrap();
    let mut data = named(8, &[0], "unseen");
    numbered(&directory, SUBVOL_CREATE, &mut data).unwrap();
    assert_eq!(names(&mounted.at), ["d", "unseen"]);
    drop(directory);
    mounted.umount();
    mounted.expect_sound();
}
