//! Mounts of a volume on several directories, mounts of several volumes on a directory, and `umount` of a foreign
//! mount.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use buttress_oracle::skip::skips;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::mounting;

use mounting::{DETACH_OTHERS, Mounted, NAMESPACES, buttress, no_fuse, sound, text};

/// Creates mount points beside the one of a volume.
fn directories<const COUNT: usize>(mounted: &Mounted) -> [PathBuf; COUNT] {
    core::array::from_fn(|number| {
        let directory = mounted.at.with_file_name(format!("other {number}"));
        fs::create_dir(&directory).unwrap();
        directory
    })
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn umount(directory: &Path) -> String {
    let output = mounting::when_not_busy(Command::new(mounting::PROGRAM).arg("umount").arg(directory));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

fn refusal(words: &[&str]) -> String {
    let output = buttress(words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    text(&output.stderr)
}

/// Returns the directories on which `mount --list` shows an image, and whether each is writable.
fn listed(image: &Path) -> Vec<(Option<String>, bool)> {
    let output = sound(&["mount", "--list", "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["mount-list"].as_array().unwrap().iter();
    let of_image = rows.filter(|row| row["image"].as_str() == image.to_str());
    of_image
        .map(|row| {
            let directory = row["directory"].as_str().map(str::to_owned);
            (directory, row["writes"].as_bool().unwrap())
        })
        .collect()
}

fn row(directory: &Path, writes: bool) -> (Option<String>, bool) {
    (Some(path_text(directory).to_owned()), writes)
}

fn is_mounted(directory: &Path) -> bool {
    let above = fs::metadata(directory.parent().unwrap()).unwrap().dev();
    fs::metadata(directory).unwrap().dev() != above
}

#[test]
fn umount_of_one_directory_leaves_the_others() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let [second, third] = directories(&mounted);
    mounted.mount("rw");
    fs::create_dir(mounted.path("s")).unwrap();
    sound(&["mount", "-o", "rw", mounted.image(), path_text(&second)]);
    let both = [row(&mounted.at, true), row(&second, true)];
    assert_eq!(listed(&mounted.image), both);
    fs::write(mounted.path("file"), b"content").unwrap();

    let said = umount(&mounted.at);
    let still = format!("still mounted on {}", second.display());
    assert!(said.contains(&still), "{said}");
    assert!(!is_mounted(&mounted.at));
    assert_eq!(listed(&mounted.image), [row(&second, true)]);
    assert_eq!(fs::read(second.join("file")).unwrap(), b"content");
    // After the mount's end, the image has the committed content.
    let copy = mounted.image.with_file_name("copy.img");
    fs::copy(&mounted.image, &copy).unwrap();
    let read = sound(&["cat", &format!("{}:/file", copy.display())]);
    assert_eq!(read.stdout, b"content");

    // Commands, a further mount and a remount find the server by its remaining mount.
    sound(&["filesystem", "sync", path_text(&second)]);
    sound(&["mount", "-o", "ro", mounted.image(), path_text(&third)]);
    assert_eq!(listed(&mounted.image), [row(&second, true), row(&third, false)]);
    sound(&["mount", "-o", "remount,ro", mounted.image(), path_text(&second)]);
    assert!(fs::write(second.join("x"), b"").is_err());
    umount(&third);
    assert_eq!(umount(&second), "");
    assert_eq!(listed(&mounted.image), []);
    mounted.expect_sound();
}

#[test]
fn second_mount_of_an_image_on_a_directory_is_refused() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    for options in ["ro", "rw"] {
        mounted.mount(options);
        for again in ["ro", "rw", "rw,subvol=/"] {
            let said = refusal(&["mount", "-o", again, mounted.image(), mounted.directory()]);
            assert!(said.contains("already mounted there"), "{said}");
        }
        assert_eq!(listed(&mounted.image), [row(&mounted.at, options == "rw")]);
        mounted.umount();
        assert!(!is_mounted(&mounted.at));
    }
}

#[test]
fn umount_takes_the_last_of_two_images_on_a_directory() {
    if skips(no_fuse()) {
        return;
    }
    let (lower, upper) = (Mounted::new(), Mounted::new());
    lower.mount("rw");
    fs::write(lower.path("lower"), b"").unwrap();
    sound(&["mount", "-o", "rw", upper.image(), lower.directory()]);
    fs::write(lower.path("upper"), b"").unwrap();
    assert!(!lower.path("lower").exists());
    umount(&lower.at);
    assert!(lower.path("lower").exists() && !lower.path("upper").exists());
    let kept = sound(&["ls", upper.image()]);
    assert_eq!(text(&kept.stdout), "upper\n");
    umount(&lower.at);
    assert!(!is_mounted(&lower.at));
}

#[test]
fn umount_refuses_a_foreign_mount() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let [other] = directories(&mounted);
    let said = refusal(&["umount", path_text(&other)]);
    assert!(said.contains("not a mount point"), "{said}");
    let missing = other.join("missing");
    let said = refusal(&["umount", path_text(&missing)]);
    assert!(said.contains("not a mount point"), "{said}");

    let kernel = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&other)
        .status();
    assert!(kernel.unwrap().success());
    let said = refusal(&["umount", path_text(&other)]);
    assert!(
        said.contains("not a mount of this program (found tmpfs)"),
        "{said}"
    );
    assert!(is_mounted(&other));
    rustix::mount::unmount(&other, rustix::mount::UnmountFlags::empty()).unwrap();

    mounted.mount("rw");
    fs::write(mounted.path("file"), b"").unwrap();
    let said = refusal(&["umount", mounted.image()]);
    let advice = format!("it is mounted on {}", mounted.directory());
    assert!(said.contains(&advice), "{said}");
    let said = refusal(&["umount", path_text(&mounted.path("file"))]);
    assert!(said.contains("inside the mount"), "{said}");
    mounted.umount();
}

#[test]
fn server_detaches_all_of_its_mounts_when_it_ends() {
    if skips(no_fuse()) {
        return;
    }
    for signal in [Signal::TERM, Signal::KILL] {
        let mounted = Mounted::new();
        let [second, third] = directories(&mounted);
        mounted.mount("rw");
        let server = Pid::from_raw(mounted.server()).unwrap();
        for directory in [&second, &third] {
            sound(&["mount", "-o", "rw", mounted.image(), path_text(directory)]);
        }
        // Another volume is mounted on the first directory.
        umount(&mounted.at);
        let upper = Mounted::new();
        sound(&["mount", "-o", "rw", upper.image(), mounted.directory()]);
        kill_process(server, signal).unwrap();
        let is_left = |directory: &Path| {
            let table = text(&fs::read("/proc/self/mountinfo").unwrap());
            table.contains(&path_text(directory).replace(' ', "\\040"))
        };
        while is_left(&second) || is_left(&third) {
            std::thread::yield_now();
        }
        fs::write(mounted.path("other"), b"").unwrap();
        umount(&mounted.at);
    }
}

/// The kernel keeps the mount for processes in other mount namespaces. `umount` does not wait for
/// the processes in these namespaces.
#[test]
fn umount_does_not_wait_for_other_namespaces() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    fs::write(mounted.path("file"), b"content").unwrap();
    // A command that is given the image names the mount that serves it.
    let refused = refusal(&["ls", mounted.image()]);
    let directory = mounted.directory();
    let advice = format!("it is mounted at {directory}: give {directory} in place of the image");
    assert!(refused.contains(&advice), "{refused}");
    let script = format!("{DETACH_OTHERS} detach_others \"$1\"; echo ready; read end");
    let alone = NAMESPACES.write();
    let mut inside = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .args([&script, "sh", directory])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(inside.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    drop(alone);
    let said = umount(&mounted.at);
    assert!(said.contains("other mount namespaces"), "{said}");
    assert_eq!(listed(&mounted.image), [(None, true)]);
    let refused = refusal(&["mount", "-o", "rw", mounted.image(), mounted.directory()]);
    assert!(refused.contains("another process has it open"), "{refused}");
    drop(inside.stdin.take());
    inside.wait().unwrap();
    // During this time, the server is in its last commit, and the new mount waits for it.
    mounted.mount("ro");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
    mounted.umount();
}
