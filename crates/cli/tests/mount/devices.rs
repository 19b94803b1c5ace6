//! Tests of mounts of block devices, mounts by the helpers' names, and shutdown.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::mounting;

use mounting::{Mounted, NAMESPACES, PROGRAM, no_fuse, sound, text, when_not_busy};

/// Opens a block device exclusively.
fn exclusively(device: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(device)
}

fn umount_plainly(directory: &Path) {
    let output = when_not_busy(Command::new("umount").arg("-i").arg(directory));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn type_of(directory: &Path) -> String {
    let table = text(&fs::read("/proc/self/mounts").unwrap());
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(1) == directory.to_str());
    line.unwrap().split(' ').nth(2).unwrap().to_owned()
}

#[test]
fn a_device_is_free_and_whole_when_a_plain_umount_returns() {
    if skips(no_fuse().or_else(|| missing("loop-devices"))) {
        return;
    }
    let mounted = Mounted::new();
    let device = LoopDevice::attach(&mounted.image).unwrap();
    let path = device.path();
    for turn in 0..5_u32 {
        sound(&["mount", "-o", "rw", path.to_str().unwrap(), mounted.directory()]);
        assert_eq!(type_of(&mounted.at), "fuseblk.buttress");
        let refused = exclusively(path).unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(libc::EBUSY),
            "the kernel keeps others away"
        );
        for file in 0..200_u32 {
            fs::write(mounted.path(&format!("{turn}-{file}")), vec![7; 10_000]).unwrap();
        }
        let no_namespaces = NAMESPACES.read();
        umount_plainly(&mounted.at);
        drop(exclusively(path).unwrap());
        drop(no_namespaces);
        // This command does not wait for the server, so the last commit must be complete already.
        let listed = sound(&["ls", path.to_str().unwrap()]);
        let count = text(&listed.stdout).lines().count();
        assert_eq!(count, usize::try_from((turn + 1) * 200).unwrap());
        sound(&["check", path.to_str().unwrap()]);
    }
}

#[test]
fn a_device_in_use_is_not_mounted_for_writing() {
    if skips(no_fuse().or_else(|| missing("loop-devices"))) {
        return;
    }
    let mounted = Mounted::new();
    let device = LoopDevice::attach(&mounted.image).unwrap();
    let path = device.path().to_str().unwrap();
    let user = exclusively(device.path()).unwrap();
    let refused = mounting::buttress(&["mount", "-o", "rw", path, mounted.directory()]);
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("in use by another program"),
        "{}",
        text(&refused.stderr)
    );
    drop(user);
    sound(&["mount", "-o", "rw", path, mounted.directory()]);
    mounted.umount();
}

#[test]
fn syncing_the_file_system_commits_on_a_device() {
    if skips(no_fuse().or_else(|| missing("loop-devices"))) {
        return;
    }
    let mounted = Mounted::new();
    let device = LoopDevice::attach(&mounted.image).unwrap();
    sound(&[
        "mount",
        "-o",
        "rw",
        device.path().to_str().unwrap(),
        mounted.directory(),
    ]);
    fs::write(mounted.path("kept"), b"kept").unwrap();
    rustix::fs::syncfs(File::open(&mounted.at).unwrap()).unwrap();
    let processes = text(&sound(&["mount", "--list", "--format", "json"]).stdout);
    let document: serde_json::Value = serde_json::from_str(&processes).unwrap();
    let rows = document["mount-list"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["directory"].as_str() == Some(mounted.directory()));
    let pid = i32::try_from(row.unwrap()["pid"].as_i64().unwrap()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    mounted.wait_until_gone();
    while exclusively(device.path()).is_err() {
        std::thread::yield_now();
    }
    let shown = sound(&["cat", &format!("{}:/kept", device.path().display())]);
    assert_eq!(shown.stdout, b"kept");
}

/// Shuts a mounted volume down.
fn shut_down(directory: &Path, kind: u32) -> Result<(), Errno> {
    const SHUTDOWN: rustix::ioctl::Opcode = opcode::read::<u32>(b'X', 125);
    let mut kind = kind;
    let open = File::open(directory).unwrap();
    // SAFETY: the command takes a pointer to this number, which lives until the command has
    // finished.
    unsafe { ioctl(&open, Updater::<SHUTDOWN, u32>::new(&mut kind)) }
}

#[test]
fn shutdown_keeps_what_was_synced_and_by_its_kind_the_rest() {
    if skips(no_fuse()) {
        return;
    }
    for (kind, rest_is_kept) in [(0, true), (1, true), (2, false)] {
        let mounted = Mounted::new();
        // Prevent commits between the calls.
        mounted.mount("rw,commit=3600");
        let open = File::create_new(mounted.path("open")).unwrap();
        let mut synced = File::create_new(mounted.path("synced")).unwrap();
        synced.write_all(b"synced").unwrap();
        synced.sync_all().unwrap();
        // While this file is open, the idle commit does not happen.
        let mut rest = File::create_new(mounted.path("rest")).unwrap();
        rest.write_all(b"rest").unwrap();
        assert_eq!(
            shut_down(&mounted.at, 7),
            Err(Errno::FAULT),
            "there is no such kind"
        );
        shut_down(&mounted.at, kind).unwrap();
        for failed in [
            rest.write_all(b"more"),
            open.sync_all(),
            File::create_new(mounted.path("new")).map(drop),
            // The kernel opens directories without sending a request to the server.
            fs::read_dir(&mounted.at).and_then(|mut listed| listed.next().transpose().map(drop)),
        ] {
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        drop((open, synced, rest));
        umount_plainly(&mounted.at);
        mounted.mount("rw");
        assert_eq!(fs::read(mounted.path("synced")).unwrap(), b"synced");
        assert_eq!(mounted.path("rest").exists(), rest_is_kept, "kind {kind}");
        mounted.umount();
        mounted.expect_sound();
    }
}

#[test]
fn shutdown_is_for_root() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw,allow_other");
    fs::set_permissions(&mounted.at, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(mounted.at.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let at = mounted.at.clone();
    // Only a thread of this process can drop its rights.
    let refused = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_uid(nobody).unwrap();
        shut_down(&at, 2)
    });
    assert_eq!(refused.join().unwrap(), Err(Errno::PERM));
    fs::write(mounted.path("after"), b"").unwrap();
    mounted.umount();
}

/// Runs the program under another program name.
fn by_name(name: &str, words: &[&str]) -> Output {
    Command::new(PROGRAM).arg0(name).args(words).output().unwrap()
}

#[test]
fn helpers_of_mount_and_umount_have_names_of_their_own() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    for (mount, umount) in [
        ("/sbin/mount.buttress", "/sbin/umount.buttress"),
        ("mount.fuse.buttress", "umount.fuse.buttress"),
        ("mount.btrfs", "umount.fuseblk.buttress"),
    ] {
        let words = [mounted.image(), mounted.directory(), "-v", "-o", "rw,noatime"];
        let done = by_name(mount, &words);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let table = text(&fs::read("/proc/self/mounts").unwrap());
        let line = table
            .lines()
            .find(|line| line.contains(mounted.directory()))
            .unwrap();
        assert!(line.contains("allow_other"), "root mounts for all: {line}");
        fs::write(mounted.path("file"), mount).unwrap();
        let done = by_name(umount, &[mounted.directory(), "-r", "-t", "fuse.buttress"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let shown = sound(&["cat", &format!("{}:/file", mounted.image())]);
        assert_eq!(text(&shown.stdout), mount);
    }
}

#[test]
fn a_write_protected_device_is_mounted_read_only_with_a_warning() {
    if skips(no_fuse().or_else(|| missing("loop-devices"))) {
        return;
    }
    let mounted = Mounted::new();
    let device = LoopDevice::attach(&mounted.image).unwrap();
    let path = device.path().to_str().unwrap();
    let set = |how: &str| {
        let done = Command::new("blockdev").args([how, path]).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    set("--setro");
    let words = ["mount", "-o", "rw", path, mounted.directory()];
    let done = sound(&words);
    assert!(
        text(&done.stderr).contains("source write-protected, mounted read-only"),
        "{}",
        text(&done.stderr)
    );
    let refused = fs::write(mounted.path("file"), b"").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    mounted.umount();
    set("--setrw");
    let done = sound(&words);
    assert!(done.stderr.is_empty(), "{}", text(&done.stderr));
    fs::write(mounted.path("file"), b"").unwrap();
    mounted.umount();
}

#[test]
fn a_mount_can_be_remounted_and_bound_to_another_directory() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let other = mounted.at.with_file_name("other");
    fs::create_dir(&other).unwrap();
    let other_text = other.to_str().unwrap();
    mounted.mount("rw");
    sound(&["subvolume", "create", mounted.path("s").to_str().unwrap()]);
    fs::write(mounted.path("s/file"), b"inside").unwrap();
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());

    sound(&["mount", "-o", "rw", mounted.image(), other_text]);
    fs::write(other.join("new"), b"by the other").unwrap();
    assert_eq!(fs::read(mounted.path("new")).unwrap(), b"by the other");
    umount_plainly(&other);
    sound(&["mount", "-o", "ro,subvol=s", mounted.image(), other_text]);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"inside");
    assert_eq!(errno(fs::write(other.join("file"), b"")), Some(libc::EROFS));
    fs::write(mounted.path("still"), b"for changes").unwrap();
    umount_plainly(&other);

    sound(&["mount", "-o", "remount,ro", mounted.image(), mounted.directory()]);
    assert_eq!(errno(fs::write(mounted.path("x"), b"")), Some(libc::EROFS));
    sound(&["mount", "-o", "remount,rw", mounted.image(), mounted.directory()]);
    fs::write(mounted.path("x"), b"").unwrap();
    mounted.umount();

    mounted.mount("ro,fakeroot");
    for words in [
        ["mount", "-o", "rw", mounted.image(), other_text],
        ["mount", "-o", "remount,ro", mounted.image(), other_text],
    ] {
        let refused = mounting::buttress(&words);
        assert!(!refused.status.success(), "{words:?}");
        assert!(!refused.stderr.is_empty(), "{words:?}");
    }
    mounted.umount();
    mounted.expect_sound();
}

/// The server of a read-only mount cannot open devices for writing later, so a remount needs a new
/// mount, and fails while the mount is in use.
#[test]
fn a_read_only_mount_can_be_remounted_for_writing() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    sound(&["subvolume", "create", mounted.path("s").to_str().unwrap()]);
    fs::write(mounted.path("s/file"), b"inside").unwrap();
    mounted.umount();
    mounted.mount("subvol=s,uid=7");
    let remount = ["mount", "-o", "remount,rw", mounted.image(), mounted.directory()];
    let held = File::open(mounted.path("file")).unwrap();
    let refused = mounting::buttress(&remount);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("in use"), "{said}");
    drop(held);
    sound(&remount);
    fs::write(mounted.path("new"), b"for changes").unwrap();
    // The mount still has its first options.
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"inside");
    assert_eq!(fs::metadata(mounted.path("file")).unwrap().uid(), 7);
    mounted.umount();

    // Mount options given outside of `-o` are not repeated by a remount, so the remount is refused.
    sound(&["--cache", "64M", "mount", mounted.image(), mounted.directory()]);
    assert!(!mounting::buttress(&remount).status.success());
    mounted.umount();
    mounted.expect_sound();
}

/// The kernel reads as far ahead as for its own btrfs; the device's own setting stays unchanged.
#[test]
fn the_kernel_reads_further_ahead() {
    if skips(no_fuse()) || skips(missing("losetup")) {
        return;
    }
    let ahead = |name: String| {
        let path = format!("/sys/class/bdi/{name}/read_ahead_kb");
        fs::read_to_string(path).map(|text| text.trim().parse::<u32>().unwrap())
    };
    let name_of = |device: u64| format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounted = Mounted::new();
    mounted.mount("ro");
    let name = name_of(fs::metadata(&mounted.at).unwrap().dev());
    assert_eq!(ahead(name).unwrap(), 4096);
    mounted.umount();

    let device = LoopDevice::attach(&mounted.image).unwrap();
    let name = name_of(fs::metadata(device.path()).unwrap().rdev());
    let before = ahead(name.clone()).unwrap();
    sound(&[
        "mount",
        "-o",
        "rw",
        device.path().to_str().unwrap(),
        mounted.directory(),
    ]);
    // Kernel and server have completed their negotiation by now.
    assert!(fs::read_dir(&mounted.at).unwrap().next().is_none());
    assert_eq!(ahead(format!("{name}-fuseblk")).unwrap(), 4096);
    assert_eq!(ahead(name).unwrap(), before);
    mounted.umount();
}
