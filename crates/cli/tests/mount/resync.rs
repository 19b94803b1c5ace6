//! Tests of mounts that bring devices that missed commits up to date, in the background beside
//! their users.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::skip::skips;
use mounting::{PROGRAM, buttress, no_fuse, sound, text, when_not_busy};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A volume of two devices, of which the second missed sessions, and a mount point.
struct Away {
    folder: TempDir,
}

impl Away {
    fn new(size: &str, missed_bytes: usize) -> Self {
        let away = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let [first, second] = away.images();
        fs::create_dir(away.at()).unwrap();
        sound(&[
            "mkfs", "-q", "-d", "raid1", "-m", "raid1", "-b", size, &first, &second,
        ]);
        let content = away.path("content");
        fs::write(&content, vec![0x6b; missed_bytes]).unwrap();
        let content = content.to_str().unwrap();
        sound(&["cp", "--device", &second, content, &format!("{first}:/old")]);
        for name in ["one", "two"] {
            sound(&["cp", "--degraded", content, &format!("{first}:/{name}")]);
        }
        away
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn at(&self) -> PathBuf {
        self.path("at")
    }

    fn directory(&self) -> String {
        self.at().to_str().unwrap().to_owned()
    }

    fn images(&self) -> [String; 2] {
        ["first.img", "second.img"].map(|name| self.path(name).to_str().unwrap().to_owned())
    }

    fn mount(&self) {
        let [first, second] = self.images();
        let log = self.path("log");
        let words = ["mount", "--device", &second, "--log", log.to_str().unwrap()];
        let done = buttress(&[&words[..], &["-o", "rw", &first, &self.directory()]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
    }

    fn umount(&self) {
        let output = when_not_busy(Command::new(PROGRAM).args(["umount", &self.directory()]));
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Returns the lines about stale devices in `scrub status` of the mount; `None` without any.
    fn resync(&self) -> Option<Value> {
        let output = sound(&["--format", "json", "scrub", "status", &self.directory()]);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        document["scrub-status"].get("resync").cloned()
    }

    fn wait_until_up_to_date(&self) {
        let begun = Instant::now();
        while let Some(resync) = self.resync() {
            assert_eq!(resync["error"], Value::Null, "{resync}");
            assert!(begun.elapsed() < Duration::from_secs(120), "{resync}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let mounts = text(&fs::read("/proc/self/mountinfo").unwrap_or_default());
        if mounts.contains(&self.directory()) {
            let _ = buttress(&["umount", "--lazy", &self.directory()]);
        }
    }
}

fn names_on(image: &str) -> String {
    text(&sound(&["-q", "--degraded", "ls", &format!("{image}:/")]).stdout)
}

fn is_sound(first: &str, second: &str) {
    sound(&["check", "--device", second, first]);
    let scrubbed = sound(&["scrub", "start", "-B", "-r", "--device", second, first]);
    let told = text(&scrubbed.stdout);
    assert!(
        told.contains("no errors found") && !told.contains("Missed"),
        "{told}"
    );
}

#[test]
fn mount_brings_a_device_up_to_date_in_the_background() {
    if skips(no_fuse()) {
        return;
    }
    let away = Away::new("1G", 20 << 20);
    let [first, second] = away.images();
    assert_eq!(names_on(&second), "old\n");
    away.mount();
    fs::write(away.at().join("beside"), vec![9; 5 << 20]).unwrap();
    away.wait_until_up_to_date();
    fs::write(away.at().join("after"), vec![9; 100_000]).unwrap();
    away.umount();
    let log = away.log();
    assert!(
        log.contains("is being brought up to date in the background"),
        "{log}"
    );
    assert!(log.contains("was brought up to date"), "{log}");
    for image in [&first, &second] {
        assert_eq!(names_on(image), "after\nbeside\nold\none\ntwo\n");
    }
    is_sound(&first, &second);
}

/// A scrub and `device resync` on the mount wait for the resynchronisation in the background.
#[test]
fn commands_on_a_mount_wait_for_its_resynchronisation() {
    if skips(no_fuse()) {
        return;
    }
    for words in [&["device", "resync"][..], &["scrub", "start", "-B"][..]] {
        let away = Away::new("1G", 20 << 20);
        let [first, second] = away.images();
        away.mount();
        let done = sound(&[words, &[&away.directory()]].concat());
        assert_eq!(away.resync(), None, "{words:?}: {}", text(&done.stderr));
        away.umount();
        assert_eq!(names_on(&second), "old\none\ntwo\n");
        is_sound(&first, &second);
    }
}

/// An unmount stops the resynchronisation. The stale device is readable alone as before, and the
/// next mount continues.
#[test]
fn an_unmount_pauses_a_resync_until_the_next_mount() {
    if skips(no_fuse()) {
        return;
    }
    let away = Away::new("4G", 100 << 20);
    let [first, second] = away.images();
    let mut stopped = 0;
    for _ in 0..3 {
        away.mount();
        away.umount();
        let names = names_on(&second);
        stopped += i32::from(names == "old\n");
        assert!(names == "old\n" || names == "old\none\ntwo\n", "{names}");
    }
    assert!(stopped > 0, "it was never stopped: {}", away.log());
    assert!(away.log().contains("the next mount continues"), "{}", away.log());
    away.mount();
    away.wait_until_up_to_date();
    away.umount();
    assert_eq!(names_on(&second), "old\none\ntwo\n");
    is_sound(&first, &second);
}

/// Commands do not resynchronise this much data: a command warns and names the remedy, a mount
/// resynchronises.
#[test]
fn command_warns_of_a_device_that_missed_much() {
    if skips(no_fuse()) {
        return;
    }
    let away = Away::new("8G", 140 << 20);
    let [first, second] = away.images();
    let content = away.path("small");
    fs::write(&content, b"small").unwrap();
    let target = format!("{first}:/small");
    let copied = sound(&["cp", "--device", &second, content.to_str().unwrap(), &target]);
    let told = text(&copied.stderr);
    assert!(
        told.contains("missed more than") && told.contains("device resync"),
        "{told}"
    );
    assert_eq!(names_on(&second), "old\n");
    away.mount();
    away.wait_until_up_to_date();
    away.umount();
    assert_eq!(names_on(&second), "old\none\nsmall\ntwo\n");
    is_sound(&first, &second);
}
