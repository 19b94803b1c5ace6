//! A volume on its own image for the tests of mounts.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use buttress_oracle::needs::Missing;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_buttress");

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn buttress(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().unwrap()
}

pub fn sound(words: &[&str]) -> Output {
    let output = buttress(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    output
}

/// Runs an unmount command, and retries while the mount is busy. A program that another test starts
/// inherits this process's open files until its `exec`, so closed files may keep a mount busy for a
/// moment.
pub fn when_not_busy(unmount: &mut Command) -> Output {
    const TRIES: u32 = 100;
    let mut output = unmount.output().unwrap();
    for _ in 1..TRIES {
        let said = text(&output.stderr);
        if !said.contains("target is busy") && !said.contains("Device or resource busy") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        output = unmount.output().unwrap();
    }
    output
}

/// Held exclusively while a test makes a mount namespace, which copies all mounts, and shared by tests
/// whose mount must be gone when umount(8) returns.
pub static NAMESPACES: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

/// Shell function for scripts in a mount namespace of their own: detaches the copies of all mounts of
/// this program except the one on the directory `$1`. Other tests wait for these copies.
pub const DETACH_OTHERS: &str = r#"
detach_others() {
  grep -E ' fuse(blk)?[.]buttress ' /proc/self/mounts | cut -d ' ' -f 2 | while read -r at; do
    test "$at" = "$1" || umount -l "$at" || true
  done
}
"#;

/// Returns the missing requirement of these tests.
pub fn no_fuse() -> Option<Missing> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match opened {
        Ok(_) if rustix::process::geteuid().is_root() => None,
        Ok(_) => Some(Missing::new("fuse", "only root mounts here")),
        Err(error) => Some(Missing::new("fuse", format!("/dev/fuse: {error}"))),
    }
}

/// A volume in its own folder, which may be mounted.
pub struct Mounted {
    _folder: tempfile::TempDir,
    pub image: PathBuf,
    pub at: PathBuf,
}

impl Mounted {
    pub fn new() -> Self {
        Self::sized("512M")
    }

    pub fn sized(size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let folder_path = folder.path().canonicalize().unwrap();
        let mounted = Self {
            image: folder_path.join("volume.img"),
            at: folder_path.join("at"),
            _folder: folder,
        };
        fs::create_dir(&mounted.at).unwrap();
        sound(&["mkfs", "-q", "-b", size, mounted.image()]);
        mounted
    }

    pub fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    pub fn directory(&self) -> &str {
        self.at.to_str().unwrap()
    }

    pub fn mount(&self, options: &str) {
        sound(&["mount", "-o", options, self.image(), self.directory()]);
    }

    pub fn umount(&self) {
        let output = when_not_busy(Command::new(PROGRAM).args(["umount", self.directory()]));
        let told = text(&output.stderr);
        assert!(output.status.success(), "{told}");
        if told.contains("still mounted on") {
            return;
        }
        // A mount namespace of another test copies all mounts, and keeps them until it has
        // detached its copies.
        const TRIES: u32 = 1000;
        let mut holders = self.holders();
        for _ in 0..TRIES {
            if holders.is_empty() || !told.contains("other mount namespaces") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            holders = self.holders();
        }
        assert!(holders.is_empty(), "{told}: {holders}");
    }

    /// Returns the writers' locks of the image from the kernel's table of locks, each with its
    /// process.
    fn holders(&self) -> String {
        let number = format!(":{} ", fs::metadata(&self.image).unwrap().ino());
        let table = fs::read_to_string("/proc/locks").unwrap();
        let lines = table
            .lines()
            .filter(|line| line.contains(&number) && line.contains("WRITE"));
        let with_process = lines.map(|line| {
            let process = line.split_whitespace().nth(4).unwrap_or_default();
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            let command = fs::read(format!("/proc/{process}/cmdline"));
            format!(
                "{line}: {:?} {:?}\n",
                status.map(|status| status.lines().take(7).map(str::to_owned).collect::<Vec<_>>()),
                command.map(|command| text(&command))
            )
        });
        with_process.collect()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    pub fn expect_sound(&self) {
        sound(&["check", self.image()]);
    }

    /// Returns the server's process id.
    pub fn server(&self) -> i32 {
        let listed = sound(&["mount", "--list", "--format", "json"]);
        let document: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let rows = document["mount-list"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["directory"].as_str() == self.at.to_str())
            .unwrap();
        assert_eq!(row["image"].as_str(), self.image.to_str());
        i32::try_from(row["pid"].as_i64().unwrap()).unwrap()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.server()).unwrap();
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        if signal == rustix::process::Signal::KILL {
            // The mount may end before the server's process closes its image.
            let gone = rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN);
            rustix::event::poll(&mut [gone], None).unwrap();
        }
        if signal == rustix::process::Signal::STOP {
            // A thread handles the stop signal when it runs next; until then the other threads
            // continue.
            while !is_stopped(pid) {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until the volume is no longer mounted.
    pub fn wait_until_gone(&self) {
        let below = fs::metadata(self.at.parent().unwrap()).unwrap().dev();
        while fs::metadata(&self.at).map_or(true, |found| found.dev() != below) {
            std::thread::yield_now();
        }
    }
}

/// Returns whether all threads of a process are stopped. io_uring workers take no requests by
/// themselves.
fn is_stopped(process: rustix::process::Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    threads.flatten().all(|thread| {
        // A thread that has ended has no `stat` file.
        let stat = text(&fs::read(thread.path().join("stat")).unwrap_or_default());
        let state = stat.rsplit_once(") ").map(|(_, fields)| fields.starts_with('T'));
        state.unwrap_or(true) || stat.contains("(iou-")
    })
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failed test must not leave a mount.
        let mounts = text(&fs::read("/proc/self/mountinfo").unwrap_or_default());
        if mounts.contains(self.directory()) {
            let _ = buttress(&["umount", "--lazy", self.directory()]);
        }
    }
}
