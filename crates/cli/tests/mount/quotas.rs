//! Quotas of a mounted volume, and the tables of `qgroup show` beside the kernel's.
#![allow(clippy::unwrap_used, reason = "tests state what must hold")]

use crate::mounting;

use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::{REFERENCE_PROGS, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest};
use mounting::{Mounted, buttress, no_fuse, sound, text};
use std::fs::{self, File};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const EDQUOT: i32 = 122;

#[test]
fn mount_refuses_writes_beyond_a_limit() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("256M");
    mounted.mount("rw");
    let directory = mounted.directory();
    let home = mounted.path("home");
    let home = home.to_str().unwrap();
    sound(&["quota", "enable", "--simple", directory]);
    sound(&["filesystem", "sync", directory]);
    sound(&["subvolume", "create", home]);
    sound(&["qgroup", "limit", "1M", home]);
    fs::write(mounted.path("home/small"), vec![1; 500_000]).unwrap();
    let refused = fs::write(mounted.path("home/big"), vec![1; 900_000]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EDQUOT), "{refused}");
    fs::write(mounted.path("beside"), vec![1; 900_000]).unwrap();
    fs::remove_file(mounted.path("home/big")).unwrap();
    fs::remove_file(mounted.path("home/small")).unwrap();
    fs::write(mounted.path("home/big"), vec![1; 900_000]).unwrap();
    let shown = text(&sound(&["qgroup", "show", "-r", "--raw", "-f", home]).stdout);
    assert!(shown.contains(" 1048576 "), "{shown}");
    sound(&["quota", "disable", directory]);
    fs::write(mounted.path("home/more"), vec![1; 900_000]).unwrap();
    mounted.umount();
    mounted.expect_sound();
    let refused = buttress(&["qgroup", "show", mounted.image()]);
    assert!(
        text(&refused.stderr).contains("quotas are not enabled"),
        "{refused:?}"
    );
    assert_eq!(
        buttress(&["quota", "status", "--is-enabled", mounted.image()])
            .status
            .code(),
        Some(1)
    );
}

#[test]
fn new_subvolumes_join_the_named_groups() {
    let mounted = Mounted::sized("256M");
    let (image, directory) = (mounted.image(), mounted.directory());
    sound(&["quota", "enable", "--simple", image]);
    for group in ["1/1", "1/2"] {
        sound(&["qgroup", "create", group, image]);
    }
    let at = |path: &str| format!("{image}:{path}");
    sound(&["subvolume", "create", "-i", "1/1", "-i", "1/2", &at("/home")]);
    // A subvolume inside joins the groups of the outer one.
    sound(&["subvolume", "create", &at("/home/inner")]);
    sound(&["subvolume", "snapshot", "-i", "1/2", &at("/home"), &at("/copy")]);
    let parents = |place: &str| {
        let table = text(&sound(&["qgroup", "show", "-p", place]).stdout);
        let rows = table
            .lines()
            .skip(2)
            .map(|line| line.split_whitespace().nth(3).unwrap().to_owned());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(parents(image), ["-", "1/1,1/2", "1/1,1/2", "1/2", "-", "-"]);
    for (group, told) in [
        ("1/9", "quota group 1/9 does not exist"),
        ("0/256", "the parent needs a higher level than 0"),
        ("x", "is not a quota group"),
    ] {
        let refused = buttress(&["subvolume", "create", "-i", group, &at("/no")]);
        assert!(text(&refused.stderr).contains(told), "{}", text(&refused.stderr));
    }
    // A subvolume's path names its group, as for btrfs-progs.
    sound(&["qgroup", "remove", &at("/copy"), "1/2", image]);
    sound(&["qgroup", "assign", &at("/copy"), "1/2", image]);
    let other = buttress(&["qgroup", "assign", "other.img:/copy", "1/2", image]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
    if skips(no_fuse()) {
        return;
    }
    mounted.mount("rw");
    let copied = mounted.path("copy");
    sound(&["qgroup", "remove", copied.to_str().unwrap(), "1/2", directory]);
    sound(&["qgroup", "assign", copied.to_str().unwrap(), "1/2", directory]);
    let (made, copy) = (mounted.path("made"), mounted.path("again"));
    let (made, copy) = (made.to_str().unwrap(), copy.to_str().unwrap());
    sound(&["subvolume", "create", "-i", "1/1", made]);
    sound(&["subvolume", "snapshot", "-r", "-i", "1/2", made, copy]);
    assert_eq!(
        parents(directory),
        ["-", "1/1,1/2", "1/1,1/2", "1/2", "1/1", "1/2", "-", "-"]
    );
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn rescan_of_a_mount_is_exact_beside_readers() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("256M");
    mounted.mount("rw");
    let directory = mounted.directory();
    fs::write(mounted.path("first"), vec![1; 900_000]).unwrap();
    sound(&["quota", "enable", directory]);
    fs::write(mounted.path("second"), vec![1; 900_000]).unwrap();
    assert_eq!(
        text(&sound(&["quota", "rescan", "-w", directory]).stdout),
        "quota rescan started\n"
    );
    let status = text(&sound(&["quota", "status", directory]).stdout);
    assert!(status.contains("Inconsistent:            no"), "{status}");
    mounted.umount();
    mounted.expect_sound();
}

/// A rescan beside a writer is exact, or fails by its exit code.
#[test]
fn inexact_rescan_does_not_exit_with_0() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("256M");
    mounted.mount("rw");
    let directory = mounted.directory();
    sound(&["quota", "enable", directory]);
    let ended = AtomicBool::new(false);
    let busy = mounted.path("busy");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                fs::write(&busy, vec![1; 9000]).unwrap();
                File::open(&busy).unwrap().sync_all().unwrap();
            }
        });
        let rescan = ["quota", "rescan", "--format", "json", directory];
        let outputs: Vec<_> = (0..5).map(|_| buttress(&rescan)).collect();
        ended.store(true, Ordering::Relaxed);
        for output in outputs {
            let document: String = text(&output.stdout).split_whitespace().collect();
            let is_exact = document.contains("\"exact\":true");
            assert_eq!(output.status.code(), Some(i32::from(!is_exact)), "{output:?}");
        }
    });
    mounted.umount();
    mounted.expect_sound();
}

/// The CLI's message names the group, the limit, the use, the wanted bytes and a remedy.
#[test]
fn copy_beyond_a_limit_names_the_group() {
    let mounted = Mounted::sized("256M");
    let folder = tempfile::tempdir().unwrap();
    let big = folder.path().join("big");
    fs::write(&big, vec![7; 3_000_000]).unwrap();
    let image = mounted.image();
    sound(&["quota", "enable", image]);
    sound(&["subvolume", "create", &format!("{image}:/home")]);
    sound(&["quota", "rescan", "-q", image]);
    sound(&["qgroup", "limit", "2M", &format!("{image}:/home")]);
    let refused = buttress(&["cp", big.to_str().unwrap(), &format!("{image}:/home/big")]);
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    for part in ["0/256", "2097152", "buttress qgroup limit"] {
        assert!(told.contains(part), "{told}");
    }
}

/// `qgroup show` prints the table of btrfs-progs on a kernel mount of the same volume.
#[test]
fn tables_of_groups_equal_those_of_btrfs_progs() {
    if skips(kernel_missing()) || skips(missing(REFERENCE_PROGS)) {
        return;
    }
    let mounted = Mounted::sized("256M");
    let image = mounted.image();
    let at = |path: &str| format!("{image}:{path}");
    sound(&["subvolume", "create", &at("/a")]);
    sound(&["subvolume", "create", &at("/a/bbbb")]);
    sound(&["quota", "enable", image]);
    for group in ["1/1", "1/22", "2/7"] {
        sound(&["qgroup", "create", group, image]);
    }
    for (member, parent) in [
        ("0/256", "1/1"),
        ("0/256", "1/22"),
        ("0/257", "1/1"),
        ("1/1", "2/7"),
    ] {
        sound(&["qgroup", "assign", member, parent, image]);
    }
    sound(&["qgroup", "limit", "3G", &at("/a")]);
    sound(&["qgroup", "limit", "-e", "5M", "1/1", image]);
    let calls: [&[&str]; 7] = [
        &["-pcre"],
        &["-p"],
        &["-c", "--raw"],
        &["-re", "--si"],
        &["--sort=-path"],
        &["--sort=excl,-qgroupid", "-e"],
        &["--kbytes"],
    ];
    let ours: Vec<String> = calls
        .iter()
        .map(|flags| text(&sound(&[&["qgroup", "show"][..], flags, &[image]].concat()).stdout))
        .collect();
    let mount = Mount::new(std::slice::from_ref(&mounted.image), "").unwrap();
    for (flags, ours) in calls.iter().zip(ours) {
        let mut show = Command::new(newest("btrfs"));
        let theirs = show
            .args(["qgroup", "show"])
            .args(*flags)
            .arg(mount.path())
            .output()
            .unwrap();
        // btrfs-progs prints a zero byte after "member qgroup".
        let table = text(&theirs.stdout).replace('\0', "");
        assert_eq!(ours, table, "{flags:?}: {}", text(&theirs.stderr));
    }
}
