//! Tests of images that are deleted, replaced or moved while mounted. After that, each sync, commit
//! and unmount reports the deletion, with a method to save the content.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use buttress_oracle::skip::skips;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::mounting;

use mounting::{Mounted, buttress, no_fuse, sound, text};

/// Mounts the image for writing. Returns the path of the file beside the image to which the server
/// writes its messages.
fn mount_with_log(mounted: &Mounted, more: &[&str]) -> PathBuf {
    let log = mounted.image.with_file_name("log");
    let mut words = vec!["mount", "--log", log.to_str().unwrap(), "-o", "rw,commit=3600"];
    words.extend(more);
    words.extend([mounted.image(), mounted.directory()]);
    sound(&words);
    log
}

/// Returns the name of the open file in a message.
fn descriptor(message: &str) -> PathBuf {
    let (_, rest) = message
        .split_once("/proc/")
        .unwrap_or_else(|| panic!("{message}"));
    let name = format!("/proc/{}", rest.split(' ').next().unwrap());
    PathBuf::from(name)
}

fn refused(words: &[&str]) -> String {
    let output = buttress(words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    text(&output.stderr)
}

fn write_unsynced(path: &Path) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(b"content").unwrap();
    file
}

#[test]
fn deleted_or_replaced_image_fails_syncs_and_can_be_saved() {
    if skips(no_fuse()) {
        return;
    }
    for is_replaced in [false, true] {
        let mounted = Mounted::new();
        let log = mount_with_log(&mounted, &[]);
        write_unsynced(&mounted.path("before")).sync_all().unwrap();
        let after = write_unsynced(&mounted.path("after"));
        if is_replaced {
            let other = Mounted::new();
            fs::rename(&other.image, &mounted.image).unwrap();
        } else {
            fs::remove_file(&mounted.image).unwrap();
        }
        for synced in [
            after.sync_all(),
            after.sync_data(),
            File::open(&mounted.at).unwrap().sync_all(),
        ] {
            assert_eq!(synced.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        drop(after);
        let logged = fs::read_to_string(&log).unwrap();
        assert!(logged.contains("was deleted while mounted"), "{logged}");
        for words in [
            vec!["filesystem", "sync", mounted.directory()],
            vec!["umount", mounted.directory()],
            vec!["umount", "--lazy", mounted.directory()],
        ] {
            let said = refused(&words);
            assert!(said.contains("was deleted while mounted"), "{said}");
            assert_eq!(descriptor(&said), descriptor(&logged));
        }
        // This step follows the advice of the message.
        refused(&["mount", "-o", "remount,ro", mounted.image(), mounted.directory()]);
        assert!(File::create(mounted.path("more")).is_err());
        let saved = mounted.image.with_file_name("saved.img");
        fs::copy(descriptor(&logged), &saved).unwrap();
        sound(&["umount", "--force", mounted.directory()]);
        let saved = saved.to_str().unwrap();
        sound(&["check", saved]);
        assert_eq!(text(&sound(&["ls", saved]).stdout), "after\nbefore\n");
        assert_eq!(sound(&["cat", &format!("{saved}:/after")]).stdout, b"content");
    }
}

#[test]
fn deletion_is_logged_without_a_sync_and_after_a_plain_umount() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let log = mount_with_log(&mounted, &[]);
    fs::remove_file(&mounted.image).unwrap();
    let times = || {
        fs::read_to_string(&log)
            .unwrap()
            .matches("was deleted while mounted")
            .count()
    };
    while times() < 1 {
        std::thread::yield_now();
    }
    let mut umount = std::process::Command::new("umount");
    assert!(
        mounting::when_not_busy(umount.arg("-i").arg(&mounted.at))
            .status
            .success()
    );
    while times() < 2 {
        std::thread::yield_now();
    }
}

#[test]
fn deleted_overlay_or_second_device_is_seen() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let changes = mounted.image.with_file_name("changes");
    mount_with_log(&mounted, &["--overlay", changes.to_str().unwrap()]);
    write_unsynced(&mounted.path("file")).sync_all().unwrap();
    fs::remove_file(&changes).unwrap();
    let said = refused(&["umount", mounted.directory()]);
    assert!(said.contains("changes was deleted while mounted"), "{said}");
    sound(&["umount", "--force", mounted.directory()]);

    let second = mounted.image.with_file_name("second.img");
    fs::remove_file(&mounted.image).unwrap();
    sound(&[
        "mkfs",
        "-q",
        "-b",
        "512M",
        "-d",
        "raid1",
        "-m",
        "raid1",
        mounted.image(),
        second.to_str().unwrap(),
    ]);
    mount_with_log(&mounted, &["-o", &format!("device={}", second.display())]);
    fs::remove_file(&second).unwrap();
    let said = refused(&["umount", mounted.directory()]);
    assert!(said.contains("second.img was deleted while mounted"), "{said}");
    sound(&["umount", "--force", mounted.directory()]);
}

#[test]
fn moved_image_keeps_all_and_umount_names_it() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mount_with_log(&mounted, &[]);
    write_unsynced(&mounted.path("file")).sync_all().unwrap();
    let moved = mounted.image.with_file_name("moved.img");
    fs::rename(&mounted.image, &moved).unwrap();
    write_unsynced(&mounted.path("later")).sync_all().unwrap();
    let output = sound(&["umount", mounted.directory()]);
    let said = text(&output.stderr);
    assert!(
        said.contains(&format!("its changes are in {}", moved.display())),
        "{said}"
    );
    let moved = moved.to_str().unwrap();
    assert_eq!(text(&sound(&["ls", moved]).stdout), "file\nlater\n");
}

/// A mount with an open file stays busy, so the server ends without an unmount.
#[test]
fn deletion_is_logged_when_a_signal_ends_a_busy_server() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let log = mount_with_log(&mounted, &[]);
    let held = write_unsynced(&mounted.path("held"));
    fs::remove_file(&mounted.image).unwrap();
    let logged = || {
        let all = fs::read_to_string(&log).unwrap();
        let lines = all
            .lines()
            .filter(|line| line.contains("was deleted while mounted"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    while logged().is_empty() {
        std::thread::yield_now();
    }
    let descriptor = descriptor(&logged()[0]);
    let process = descriptor.iter().nth(2).unwrap().to_str().unwrap();
    let process = Pid::from_raw(process.parse().unwrap()).unwrap();
    kill_process(process, Signal::TERM).unwrap();
    while logged().len() < 2 {
        std::thread::yield_now();
    }
    drop(held);
}
