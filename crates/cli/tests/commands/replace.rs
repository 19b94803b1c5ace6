//! Tests of `replace start|status|cancel`: effects, refusals, and outcomes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stderr,
    reason = "tests state what must hold, and say what they skipped"
)]

use crate::support::in_folder;

use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use in_folder::{PROGRAM, buttress, done, text};

fn empty(folder: &Path, name: &str, mib: u64) {
    File::create(folder.join(name))
        .unwrap()
        .set_len(mib << 20)
        .unwrap();
}

/// Creates a mirror of two images with a file.
fn mirror(folder: &Path) -> Vec<u8> {
    done(
        folder,
        &[
            "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", "300M", "a.img", "b.img",
        ],
    );
    let content: Vec<u8> = (0..1_u32 << 20)
        .flat_map(|number| (number * 7).to_le_bytes())
        .collect();
    fs::write(folder.join("content"), &content).unwrap();
    done(folder, &["cp", "--device", "b.img", "content", "a.img:/content"]);
    content
}

#[test]
fn a_device_is_replaced_and_the_old_one_is_none_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = mirror(folder);
    empty(folder, "c.img", 320);
    assert_eq!(
        done(folder, &["replace", "status", "--device", "b.img", "a.img"]),
        "Never started\n"
    );
    let told = done(
        folder,
        &[
            "replace", "start", "-B", "b.img", "c.img", "--device", "b.img", "a.img",
        ],
    );
    assert_eq!(told, "c.img replaced device 2\n");
    assert!(!buttress(folder, &["ls", "b.img:/"]).status.success());
    let told = done(folder, &["replace", "status", "--device", "c.img", "a.img"]);
    assert!(
        told.starts_with("Started on ") && told.contains(", finished on "),
        "{told}"
    );
    assert!(told.ends_with(", 0 write errs, 0 uncorr. read errs\n"), "{told}");
    fs::remove_file(folder.join("a.img")).unwrap();
    let read = buttress(folder, &["cat", "--degraded", "c.img:/content"]);
    assert!(read.stdout == content);
    // Replace the missing device by its id.
    empty(folder, "d.img", 300);
    let told = done(
        folder,
        &[
            "replace",
            "start",
            "-B",
            "--format",
            "json",
            "--degraded",
            "1",
            "d.img",
            "c.img",
        ],
    );
    let document: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(document["replace-start"]["finished"], true, "{told}");
    done(
        folder,
        &["check", "--check-data-csum", "--device", "d.img", "c.img"],
    );
    let read = buttress(folder, &["cat", "--degraded", "d.img:/content"]);
    assert!(read.stdout == content);
}

#[test]
fn replacement_without_a_status_file_begins_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    mirror(folder);
    empty(folder, "c.img", 320);
    let words = ["replace", "start", "-B", "--status-file", "no/such/folder"];
    let places = ["b.img", "c.img", "--device", "b.img", "a.img"];
    let output = buttress(folder, &[&words[..], &places].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let status = done(folder, &["replace", "status", "--device", "b.img", "a.img"]);
    assert_eq!(status, "Never started\n");
}

#[test]
fn unsuitable_targets_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    mirror(folder);
    empty(folder, "small.img", 200);
    empty(folder, "good.img", 300);
    done(folder, &["mkfs", "-q", "-b", "300M", "other.img"]);
    fs::copy(folder.join("a.img"), folder.join("copy.img")).unwrap();
    fs::hard_link(folder.join("b.img"), folder.join("linked.img")).unwrap();
    let before = fs::read(folder.join("a.img")).unwrap();
    for (words, wanted) in [
        (
            ["2", "b.img"],
            "a device of the volume, and cannot replace another device",
        ),
        (
            ["2", "linked.img"],
            "a device of the volume, and cannot replace another device",
        ),
        (
            ["1", "a.img"],
            "a device of the volume, and cannot replace another device",
        ),
        (
            ["2", "small.img"],
            "is too small (found 209715200 bytes, expected at least 314572800 for device 2)",
        ),
        (["2", "other.img"], "seems to contain btrfs"),
        (["2", "copy.img"], "already is a device of the volume"),
        (["2", "absent.img"], "absent.img"),
        (["3", "good.img"], "the volume has no device 3"),
        (["other.img", "good.img"], "the volume has no device other.img"),
    ] {
        let [source, target] = words;
        let output = buttress(
            folder,
            &[
                "replace", "start", "-B", source, target, "--device", "b.img", "a.img",
            ],
        );
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let told = text(&output.stderr);
        assert!(told.contains(wanted), "{words:?}: {told}");
    }
    // If the user omitted a device, it does not count as lost.
    let output = buttress(folder, &["replace", "start", "-B", "1", "good.img", "a.img"]);
    assert!(
        text(&output.stderr).contains("--degraded"),
        "{}",
        text(&output.stderr)
    );
    assert!(fs::read(folder.join("a.img")).unwrap() == before);
    done(
        folder,
        &[
            "replace",
            "start",
            "-Bf",
            "2",
            "other.img",
            "--device",
            "b.img",
            "a.img",
        ],
    );
}

/// Interrupts a replacement as a crash would: a rate limit stalls it, and SIGKILL ends it.
fn cut_off(folder: &Path) {
    let mut child = Command::new(PROGRAM)
        .current_dir(folder)
        .args([
            "replace", "start", "-B", "--limit", "64K", "2", "c.img", "--device", "b.img", "a.img",
        ])
        .spawn()
        .unwrap();
    let target = File::open(folder.join("c.img")).unwrap();
    // Wait until the target has its first superblock.
    let mut magic = [0; 8];
    while magic != *b"_BHRfS_M" {
        target.read_exact_at(&mut magic, 65536 + 64).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_replacement_that_was_cut_off_goes_on_or_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = mirror(folder);
    empty(folder, "c.img", 300);
    cut_off(folder);
    let told = done(folder, &["replace", "status", "--device", "b.img", "a.img"]);
    assert!(told.contains("% done"), "{told}");
    // If the target is lost, the volume can be read but not written.
    assert!(buttress(folder, &["cat", "--device", "b.img", "a.img:/content"]).stdout == content);
    let refused = buttress(folder, &["cp", "--device", "b.img", "content", "a.img:/more"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("replace cancel"),
        "{}",
        text(&refused.stderr)
    );
    done(
        folder,
        &[
            "cp",
            "--device",
            "b.img",
            "--device",
            "c.img",
            "content",
            "a.img:/more",
        ],
    );
    // The target differs from the target of the interrupted replacement.
    let refused = buttress(
        folder,
        &[
            "replace", "start", "-B", "1", "c.img", "--device", "b.img", "a.img",
        ],
    );
    assert!(
        text(&refused.stderr).contains("device 2 is already being replaced"),
        "{}",
        text(&refused.stderr)
    );
    done(
        folder,
        &[
            "replace", "start", "-B", "2", "c.img", "--device", "b.img", "a.img",
        ],
    );
    done(
        folder,
        &["check", "--check-data-csum", "--device", "c.img", "a.img"],
    );
    fs::remove_file(folder.join("a.img")).unwrap();
    for file in ["content", "more"] {
        let inside = format!("c.img:/{file}");
        assert!(buttress(folder, &["cat", "--degraded", &inside]).stdout == content);
    }

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    mirror(folder);
    empty(folder, "c.img", 300);
    cut_off(folder);
    let told = done(
        folder,
        &[
            "replace", "cancel", "--device", "b.img", "--device", "c.img", "a.img",
        ],
    );
    assert_eq!(told, "replacement cancelled: device 2 stays\n");
    let again = buttress(folder, &["replace", "cancel", "--device", "b.img", "a.img"]);
    assert_eq!(again.status.code(), Some(2));
    let told = done(folder, &["replace", "status", "--device", "b.img", "a.img"]);
    assert!(told.contains("canceled on"), "{told}");
    assert!(
        !buttress(folder, &["ls", "c.img:/"]).status.success(),
        "its superblocks are wiped"
    );
    done(
        folder,
        &["check", "--check-data-csum", "--device", "b.img", "a.img"],
    );
}

#[test]
fn a_directory_shows_what_belongs_together() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    mirror(folder);
    done(folder, &["mkfs", "-q", "-b", "300M", "-L", "alone", "alone.img"]);
    fs::create_dir(folder.join("below")).unwrap();
    let told = done(folder, &["filesystem", "show", "--format", "json", "."]);
    let document: serde_json::Value = serde_json::from_str(&told).unwrap();
    let volumes = document["filesystem-show"].as_array().unwrap();
    assert_eq!(volumes.len(), 2, "{told}");
    for volume in volumes {
        let devices = volume["devices"].as_array().unwrap();
        let names: Vec<_> = devices
            .iter()
            .map(|device| device["path"].as_str().unwrap())
            .collect();
        match volume["label"].as_str() {
            Some("alone") => assert_eq!(names, ["./alone.img"]),
            _ => assert_eq!(names, ["./a.img", "./b.img"]),
        }
        assert_eq!(volume["missing_devices"], 0);
    }
    fs::remove_file(folder.join("a.img")).unwrap();
    let told = done(folder, &["filesystem", "show", "."]);
    assert_eq!(told.matches("Total devices").count(), 2, "{told}");
    assert_eq!(told.matches("*** Some devices missing").count(), 1, "{told}");
    assert!(
        told.contains("devid    2 size 300.00MiB") && !told.contains("a.img"),
        "{told}"
    );
}

/// Starts a replacement in the background with a low rate limit, so that it does not end. Returns
/// the process id of the replacement.
fn begun_slowly(folder: &Path) -> u32 {
    let told = done(
        folder,
        &[
            "replace", "start", "--limit", "256K", "--format", "json", "b.img", "c.img", "--device", "b.img",
            "a.img",
        ],
    );
    let document: serde_json::Value = serde_json::from_str(&told).unwrap();
    let document = &document["replace-start"];
    assert_eq!(document["finished"], false, "{told}");
    u32::try_from(document["process"].as_u64().unwrap()).unwrap()
}

#[test]
fn one_in_the_background_is_looked_at_given_up_and_brought_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = mirror(folder);
    empty(folder, "c.img", 300);
    begun_slowly(folder);
    // During the replacement no other process can open the volume, so its status comes from the
    // status file.
    let told = done(folder, &["replace", "status", "a.img"]);
    assert!(
        told.ends_with("% done, 0 write errs, 0 uncorr. read errs\n"),
        "{told}"
    );
    let second = buttress(
        folder,
        &[
            "replace", "start", "-B", "b.img", "c.img", "--device", "b.img", "a.img",
        ],
    );
    assert_eq!(second.status.code(), Some(1));
    let told = text(&second.stderr);
    assert!(
        told.contains("device 2 is already being replaced (process "),
        "{told}"
    );
    let told = done(folder, &["replace", "cancel", "a.img"]);
    assert_eq!(told, "replacement cancelled: device 2 stays\n");
    assert!(!folder.join("a.img.replace-status").exists());
    let told = done(folder, &["replace", "status", "--device", "b.img", "a.img"]);
    assert!(told.contains("canceled on"), "{told}");
    done(
        folder,
        &["check", "--check-data-csum", "--device", "b.img", "a.img"],
    );
    // Without a limit the replacement ends soon.
    done(
        folder,
        &["replace", "start", "b.img", "c.img", "--device", "b.img", "a.img"],
    );
    while folder.join("a.img.replace-status").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs::remove_file(folder.join("a.img")).unwrap();
    assert!(buttress(folder, &["cat", "--degraded", "c.img:/content"]).stdout == content);
    // A replacement that cannot begin gives the reason, as in the foreground.
    let failed = buttress(folder, &["replace", "start", "--degraded", "7", "d.img", "c.img"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("d.img"), "{}", text(&failed.stderr));
}

#[test]
fn a_signal_suspends_it_and_the_same_command_goes_on() {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = mirror(folder);
    empty(folder, "c.img", 300);
    let process = begun_slowly(folder);
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(process, Signal::INT).unwrap();
    while folder.join("a.img.replace-status").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let all = ["--device", "b.img", "--device", "c.img", "a.img"];
    // The replacing process may hold the devices for another moment.
    let told = loop {
        let output = buttress(folder, &[&["replace", "status"], &all[..]].concat());
        if output.status.success() {
            break text(&output.stdout);
        }
        assert!(text(&output.stderr).contains("another process"), "{output:?}");
    };
    assert!(told.contains(", suspended on "), "{told}");
    let words = [
        "replace", "start", "-B", "b.img", "c.img", "--device", "b.img", "a.img",
    ];
    assert_eq!(done(folder, &words), "c.img replaced device 2\n");
    fs::remove_file(folder.join("a.img")).unwrap();
    assert!(buttress(folder, &["cat", "--degraded", "c.img:/content"]).stdout == content);
}

#[test]
fn targets_in_use_or_without_permission_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    mirror(folder);
    empty(folder, "c.img", 300);
    let before = fs::read(folder.join("a.img")).unwrap();
    let start = [
        "replace", "start", "-B", "2", "c.img", "--device", "b.img", "a.img",
    ];
    // The target of the replacement is in use.
    let lock = File::open(folder.join("c.img")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockShared).unwrap();
    let output = buttress(folder, &start);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(
        told.contains("c.img") && told.contains("another process has it open"),
        "{told}"
    );
    drop(lock);
    // The target is not writable. If the process is root, only an immutable file stops a write.
    let locked = Command::new("chattr")
        .args(["+i", "c.img"])
        .current_dir(folder)
        .output();
    if locked.is_ok_and(|output| output.status.success()) {
        let output = buttress(folder, &start);
        let opened = Command::new("chattr")
            .args(["-i", "c.img"])
            .current_dir(folder)
            .status();
        assert!(opened.unwrap().success());
        assert_eq!(output.status.code(), Some(1));
        let told = text(&output.stderr);
        assert!(told.contains("c.img") && told.contains("not permitted"), "{told}");
    } else {
        eprintln!("SKIPPED: no immutable files here");
    }
    // If the kernel has mounted the target, even -f is refused.
    if !skips(kernel_missing()) {
        done(folder, &["mkfs", "-q", "-b", "400M", "other.img"]);
        let mount = Mount::new(&[folder.join("other.img")], "ro").unwrap();
        let output = buttress(
            folder,
            &[
                "replace",
                "start",
                "-Bf",
                "2",
                "other.img",
                "--device",
                "b.img",
                "a.img",
            ],
        );
        mount.close().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let told = text(&output.stderr);
        assert!(
            told.contains("other.img") && told.contains("mounted or in use"),
            "{told}"
        );
    }
    assert!(fs::read(folder.join("a.img")).unwrap() == before);
    // With closed output the command fails because its messages are lost, but the device is
    // replaced. If the reader closes the pipe, this is no failure of the command.
    let shell = |line: &str, words: &[&str]| {
        Command::new("sh")
            .current_dir(folder)
            .args(["-c", line, PROGRAM])
            .args(words)
            .output()
            .unwrap()
    };
    let closed = shell("exec \"$0\" \"$@\" >&-", &start);
    assert_eq!(closed.status.code(), Some(1));
    assert!(text(&closed.stderr).contains("standard output is closed"));
    done(
        folder,
        &["check", "--check-data-csum", "--device", "c.img", "a.img"],
    );
    let back = [
        "replace", "start", "-B", "2", "b.img", "--device", "c.img", "a.img",
    ];
    let unread = shell("{ \"$0\" \"$@\"; echo $? >code; } | true", &back);
    let code = fs::read_to_string(folder.join("code")).unwrap();
    assert_eq!(code, "0\n", "{}", text(&unread.stderr));
    done(
        folder,
        &["check", "--check-data-csum", "--device", "b.img", "a.img"],
    );
}
