//! Files in read-only subvolumes: no call opens them for writing, as in the kernel. Mounts that
//! became read-only: nothing changes the volume.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use crate::mounting::{Mounted, buttress, no_fuse, sound, text};
use buttress_oracle::skip::skips;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileExt as _;

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

/// Offset of the generation in the primary superblock, in bytes.
const GENERATION_OFFSET: u64 = (64 << 10) + 72;

/// Reads of new files would move access times, and a commit of them would tear a copy of the image.
#[test]
fn image_stays_unchanged_after_a_remount_to_read_only() {
    if skips(no_fuse()) || !rustix::process::geteuid().is_root() {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw,commit=1,strictatime");
    let at = |name: &str| mounted.path(name).to_str().unwrap().to_owned();
    sound(&["subvolume", "create", &at("old")]);
    fs::write(mounted.path("file"), "content").unwrap();
    sound(&["mount", "-o", "remount,ro", mounted.image(), mounted.directory()]);
    let generation = || {
        let mut bytes = [0; 8];
        let image = fs::File::open(&mounted.image).unwrap();
        image.read_exact_at(&mut bytes, GENERATION_OFFSET).unwrap();
        u64::from_le_bytes(bytes)
    };
    let before = generation();
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
    assert_eq!(fs::read_dir(&mounted.at).unwrap().count(), 2);
    for words in [
        vec!["subvolume", "create", &at("new")],
        vec!["subvolume", "delete", &at("old")],
        vec!["property", "set", &at("old"), "ro", "true"],
    ] {
        let refused = buttress(&words);
        assert!(text(&refused.stderr).contains("read-only"), "{words:?}");
        assert_eq!(refused.status.code(), Some(1));
    }
    sound(&["filesystem", "sync", mounted.directory()]);
    assert_eq!(generation(), before);
    sound(&["mount", "-o", "remount,rw", mounted.image(), mounted.directory()]);
    sound(&["subvolume", "create", &at("new")]);
    mounted.umount();
    mounted.expect_sound();
}
