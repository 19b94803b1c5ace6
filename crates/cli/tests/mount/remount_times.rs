//! Tests of `remount` with access time options, compared with Linux's btrfs: by this program, by
//! mount(8) and its helper, and by the system call alone.
//!
//! FUSE sends no request for a remount. The server learns of a remount from the table of mounts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{Mounted, buttress, no_fuse, sound, text};
use rustix::fs::{Advice, OFlags};
use rustix::mount::{MountFlags, mount_remount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(25);

/// Reads a file that no cache has. Returns whether the read changed the file's access time.
fn read_moves(path: &Path) -> bool {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).unwrap();
    let times = || {
        file.metadata()
            .map(|found| (found.atime(), found.atime_nsec()))
            .unwrap()
    };
    let before = times();
    thread::sleep(TICK);
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    file.read_at(&mut [0; 10], 0).unwrap();
    times() != before
}

fn lists_move(directory: &Path) -> bool {
    let times = || {
        fs::metadata(directory)
            .map(|found| (found.atime(), found.atime_nsec()))
            .unwrap()
    };
    let before = times();
    thread::sleep(TICK);
    fs::read_dir(directory).unwrap().count();
    times() != before
}

fn options_shown(directory: &Path) -> String {
    let table = text(&fs::read("/proc/self/mountinfo").unwrap());
    let is_it = |line: &&str| line.split(' ').nth(4) == directory.to_str();
    let line = table.lines().rfind(is_it).unwrap();
    line.split(' ').nth(5).unwrap().to_owned()
}

/// Creates a file and a directory for each remount, so that no cache of the kernel answers.
fn fill(root: &Path) {
    for number in 0..STEPS.len() {
        fs::write(root.join(format!("file{number}")), "content").unwrap();
        fs::create_dir(root.join(format!("directory{number}"))).unwrap();
        fs::write(root.join(format!("directory{number}/inside")), "content").unwrap();
    }
    let all = File::open(root).unwrap();
    rustix::fs::syncfs(&all).unwrap();
}

/// Options of a remount, and the equivalent flags of mount(2) relative to the previous mount.
/// mount(8) adds the current options, of which `noatime` overrides any later one.
const STEPS: [(&str, MountFlags); 7] = [
    ("noatime", MountFlags::NOATIME),
    ("relatime", MountFlags::RELATIME),
    ("nodiratime", MountFlags::RELATIME.union(MountFlags::NODIRATIME)),
    ("diratime", MountFlags::RELATIME),
    ("strictatime", MountFlags::STRICTATIME),
    (
        "nodiratime",
        MountFlags::STRICTATIME.union(MountFlags::NODIRATIME),
    ),
    ("noatime", MountFlags::NOATIME.union(MountFlags::NODIRATIME)),
];

/// Returns whether accesses change times after a step: of a file, of the file again, of a
/// directory.
fn observed(root: &Path, step: usize) -> [bool; 3] {
    let file = root.join(format!("file{step}"));
    let first = read_moves(&file);
    [
        first,
        read_moves(&file),
        lists_move(&root.join(format!("directory{step}"))),
    ]
}

#[test]
fn remount_changes_access_times_as_on_linux() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let (ours, theirs) = (Mounted::new(), Mounted::new());
    ours.mount("rw,nosuid");
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), "nosuid").unwrap();
    for root in [ours.at.as_path(), kernel.path()] {
        fill(root);
    }
    for (number, (step, flags)) in STEPS.into_iter().enumerate() {
        let options = format!("remount,{step}");
        sound(&["mount", "-o", &options, ours.directory()]);
        mount_remount(kernel.path(), flags | MountFlags::NOSUID, c"").unwrap();
        let expected = observed(kernel.path(), number);
        assert_eq!(observed(&ours.at, number), expected, "after {options}");
        let shown = options_shown(&ours.at);
        assert!(shown.starts_with("rw,nosuid"), "after {options}: {shown}");
    }
    kernel.close().unwrap();
    ours.umount();
}

#[test]
fn server_follows_remount_by_the_system_call() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw,strictatime");
    let path = mounted.path("file");
    fs::write(&path, "content").unwrap();
    assert!(read_moves(&path) && read_moves(&path));
    mount_remount(&mounted.at, MountFlags::NOATIME, c"").unwrap();
    let begun = Instant::now();
    while read_moves(&path) {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "the server did not notice"
        );
    }
    assert!(!read_moves(&path));
    mounted.umount();
}

#[test]
fn remount_keeps_a_mount_for_reading_as_it_is() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("ro,noexec");
    sound(&["mount", "-o", "remount,noatime", mounted.directory()]);
    let shown = options_shown(&mounted.at);
    assert_eq!(shown, "ro,noexec,noatime");
    let refused = buttress(&["mount", "-o", "remount,nonsense", mounted.directory()]);
    assert!(!refused.status.success());
    mounted.umount();
}
