//! Quota ioctls of a mount beside the kernel's: the same calls on both sides, with the same results
//! and error numbers, and the same groups at the end.

use crate::mounting;

use buttress_oracle::ioctls::{Data, numbered};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{Mounted, no_fuse, sound, text};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;

const READ: u32 = 2;
const WRITE: u32 = 1;
const BOTH: u32 = 3;

const fn command(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | 0x94 << 8 | number
}

const QUOTA_CTL: u32 = command(BOTH, 40, 16);
const ASSIGN: u32 = command(WRITE, 41, 24);
const CREATE: u32 = command(WRITE, 42, 16);
const LIMIT: u32 = command(READ, 43, 48);
const RESCAN: u32 = command(WRITE, 44, 64);
const RESCAN_STATUS: u32 = command(READ, 45, 64);
const RESCAN_WAIT: u32 = command(0, 46, 0);
const SUBVOL_CREATE: u32 = command(WRITE, 14, 4096);
const SYNC: u32 = command(0, 8, 0);

const ENABLE: u64 = 1;
const DISABLE: u64 = 2;
const ENABLE_SIMPLE: u64 = 4;

const fn group(level: u64, number: u64) -> u64 {
    level << 48 | number
}

fn with(fields: &[u64]) -> Data {
    let mut data = [0; 4096];
    for (place, field) in data.chunks_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    data
}

/// Makes the calls of a kind of quotas, and returns their results as lines.
fn calls(root: &Path, enable: u64) -> String {
    let directory = File::open(root).unwrap();
    let mut said = String::new();
    let mut call = |what: &str, number: u32, fields: &[u64]| {
        let mut data = with(fields);
        let result = numbered(&directory, number, &mut data);
        writeln!(said, "{what}: {result:?}").unwrap();
    };
    let mut name = with(&[0]);
    name[8..12].copy_from_slice(b"home");
    numbered(&directory, SUBVOL_CREATE, &mut name).unwrap();
    fs::write(root.join("home/file"), vec![7; 300_000]).unwrap();
    // Simple quotas count what is written after they were enabled.
    numbered(&directory, SYNC, &mut with(&[])).unwrap();
    call("group without quotas", CREATE, &[1, group(1, 1)]);
    call(
        "relation without quotas",
        ASSIGN,
        &[1, group(0, 256), group(1, 1)],
    );
    call("count without quotas", RESCAN, &[0]);
    call("disable nothing", QUOTA_CTL, &[DISABLE, 0]);
    call("unknown command", QUOTA_CTL, &[9, 0]);
    call("enable", QUOTA_CTL, &[enable, 0]);
    call("enable again", QUOTA_CTL, &[enable, 0]);
    call("wait", RESCAN_WAIT, &[]);
    call("status", RESCAN_STATUS, &[]);
    call("flags of a count", RESCAN, &[1]);
    call("count", RESCAN, &[0]);
    call("wait again", RESCAN_WAIT, &[]);
    call("group", CREATE, &[1, group(1, 1)]);
    call("again", CREATE, &[1, group(1, 1)]);
    call("group zero", CREATE, &[1, 0]);
    call("of a subvolume", CREATE, &[1, group(0, 256)]);
    call("higher", CREATE, &[1, group(2, 1)]);
    call("member", ASSIGN, &[1, group(0, 256), group(1, 1)]);
    call("member again", ASSIGN, &[1, group(0, 256), group(1, 1)]);
    call("level", ASSIGN, &[1, group(1, 1), group(1, 1)]);
    call("of a higher one", ASSIGN, &[1, group(1, 1), group(2, 1)]);
    call("no such parent", ASSIGN, &[1, group(0, 256), group(1, 9)]);
    call("no such member", ASSIGN, &[1, group(0, 999), group(1, 1)]);
    call("with members", CREATE, &[0, group(1, 1)]);
    call("in use", CREATE, &[0, group(0, 256)]);
    call("no such group", CREATE, &[0, group(1, 9)]);
    call("no member", ASSIGN, &[0, group(0, 5), group(1, 1)]);
    call("part", ASSIGN, &[0, group(1, 1), group(2, 1)]);
    call("remove", CREATE, &[0, group(2, 1)]);
    fs::write(root.join("home/later"), vec![7; 200_000]).unwrap();
    call("sync", SYNC, &[]);
    // The kernel counts classic quotas with each commit, this program with each rescan.
    call("count at the end", RESCAN, &[0]);
    call("wait for it", RESCAN_WAIT, &[]);
    said
}

#[test]
fn quota_ioctls_answer_as_the_kernels_do() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    for enable in [ENABLE, ENABLE_SIMPLE] {
        let (ours, theirs) = (Mounted::sized("256M"), Mounted::sized("256M"));
        ours.mount("rw");
        let said = calls(&ours.at, enable);
        let directory = File::open(&ours.at).unwrap();
        // The kernel passes no limit with the call.
        assert_eq!(
            numbered(&directory, LIMIT, &mut with(&[0])),
            Err(Errno::OPNOTSUPP)
        );
        drop(directory);
        ours.umount();
        ours.expect_sound();
        let kernel = Mount::new(std::slice::from_ref(&theirs.image), "").unwrap();
        let expected = calls(kernel.path(), enable);
        kernel.close().unwrap();
        let differ: Vec<String> = said
            .lines()
            .zip(expected.lines())
            .filter(|(ours, theirs)| ours != theirs)
            .map(|(ours, theirs)| format!("{ours}\n  the kernel: {theirs}"))
            .collect();
        assert!(differ.is_empty(), "{enable}: {}", differ.join("\n"));
        let shown = |image: &str| text(&sound(&["qgroup", "show", "-pc", "--raw", image]).stdout);
        assert_eq!(shown(ours.image()), shown(theirs.image()));
    }
}

#[test]
fn quota_ioctls_need_rights_and_a_writable_mount() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("256M");
    sound(&["quota", "enable", mounted.image()]);
    mounted.mount("ro");
    let directory = File::open(&mounted.at).unwrap();
    let call = |number: u32, fields: &[u64]| numbered(&directory, number, &mut with(fields)).unwrap_err();
    assert_eq!(call(QUOTA_CTL, &[DISABLE, 0]), Errno::ROFS);
    assert_eq!(call(CREATE, &[1, group(1, 1)]), Errno::ROFS);
    assert_eq!(call(RESCAN, &[0]), Errno::ROFS);
    drop(directory);
    mounted.umount();
}
