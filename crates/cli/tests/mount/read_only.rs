//! Files in read-only subvolumes: no call opens them for writing, as in the kernel.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use crate::mounting::{Mounted, no_fuse, sound};
use buttress_oracle::skip::skips;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;

#[test]
fn a_file_of_a_read_only_snapshot_is_not_opened_for_writing() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let at = |name: &str| mounted.path(name).to_str().unwrap().to_owned();
    sound(&["subvolume", "create", &at("source")]);
    fs::write(mounted.path("source/file"), "content").unwrap();
    sound(&["subvolume", "snapshot", "-r", &at("source"), &at("snapshot")]);
    let open = |name: &str, flags: OFlags| {
        rustix::fs::open(mounted.path(name), flags | OFlags::CLOEXEC, Mode::empty()).map(drop)
    };
    let for_writing = [
        OFlags::WRONLY,
        OFlags::RDWR,
        OFlags::WRONLY | OFlags::APPEND,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::RDWR | OFlags::CREATE,
    ];
    for flags in for_writing {
        assert_eq!(open("snapshot/file", flags), Err(Errno::ROFS), "{flags:?}");
        assert_eq!(open("source/file", flags), Ok(()), "{flags:?}");
    }
    assert_eq!(open("snapshot/file", OFlags::RDONLY), Ok(()));
    assert_eq!(fs::read(mounted.path("snapshot/file")).unwrap(), b"content");
    sound(&["property", "set", &at("snapshot"), "ro", "false"]);
    assert_eq!(open("snapshot/file", OFlags::RDWR), Ok(()));
    sound(&["property", "set", &at("snapshot"), "ro", "true"]);
    assert_eq!(open("snapshot/file", OFlags::RDWR), Err(Errno::ROFS));
    mounted.umount();
    mounted.expect_sound();
}
