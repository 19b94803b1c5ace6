//! Exclusive operations of a mounted volume: a balance, changes of the devices, and a replacement
//! refuse each other, and the refusal names the operation in progress.

use crate::mounting;

use buttress_oracle::skip::skips;
use mounting::{Mounted, PROGRAM, buttress, no_fuse, sound, text};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const FILES: usize = 12;
const FILE_BYTES: usize = 2 << 20;

fn content(number: usize) -> Vec<u8> {
    let words = (0..FILE_BYTES / 8).map(|at| (at.wrapping_mul(2_654_435_761) ^ number).to_le_bytes());
    words.flatten().collect()
}

/// A mounted volume of two image files with some files.
struct Pair {
    mounted: Mounted,
    second: PathBuf,
}

impl Pair {
    fn new(profiles: [&str; 4]) -> Self {
        let mounted = Mounted::sized("256M");
        let second = mounted.image.with_file_name("second.img");
        // New chunks take the device with the most unallocated space.
        File::create(&second).unwrap().set_len(400 << 20).unwrap();
        let pair = Self { mounted, second };
        let images = [pair.mounted.image(), pair.second()];
        sound(&[&["mkfs", "-q", "-f"], &profiles[..], &images].concat());
        pair.mount();
        for number in 0..FILES {
            fs::write(pair.mounted.path(&format!("f{number}")), content(number)).unwrap();
        }
        sound(&["filesystem", "sync", pair.directory()]);
        pair
    }

    fn mount(&self) {
        let image = self.mounted.image();
        sound(&[
            "mount",
            "-o",
            "rw",
            "--device",
            self.second(),
            image,
            self.directory(),
        ]);
    }

    fn second(&self) -> &str {
        self.second.to_str().unwrap()
    }

    fn directory(&self) -> &str {
        self.mounted.directory()
    }

    /// An empty image file of a size in MiB.
    fn empty(&self, name: &str, mib: u64) -> String {
        let path = self.mounted.image.with_file_name(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Unmounts, and verifies the volume on these images.
    fn expect_whole(&self, images: &[&str]) {
        for number in 0..FILES {
            assert!(fs::read(self.mounted.path(&format!("f{number}"))).unwrap() == content(number));
        }
        self.mounted.umount();
        let mut words = vec!["check", "--check-data-csum"];
        for image in &images[1..] {
            words.extend(["--device", image]);
        }
        words.push(images[0]);
        sound(&words);
    }

    /// Verifies that all operations but the named ones are refused with this text.
    fn expect_refusals(&self, but: &[&str], expected: impl Fn(&str) -> String) {
        let third = self.empty("refused.img", 256);
        let directory = self.directory();
        let commands: [(&str, &[&str]); 5] = [
            ("balance", &["balance", "start", "-dusage=0", directory]),
            ("device remove", &["device", "remove", "2", directory]),
            ("resize", &["filesystem", "resize", "2:300M", directory]),
            ("resize", &["filesystem", "resize", "2:max", directory]),
            ("device add", &["device", "add", &third, directory]),
        ];
        for (name, words) in commands {
            if but.contains(&name) {
                continue;
            }
            let refused = buttress(words);
            let told = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{words:?}: {told}");
            assert!(told.contains(&expected(name)), "{words:?}: {told}");
        }
        assert_eq!(
            fs::read(&third).unwrap(),
            vec![0; 256 << 20],
            "a refused device is unchanged"
        );
        fs::remove_file(third).unwrap();
    }
}

#[test]
fn balance_on_a_mount_excludes_changes_of_devices() {
    if skips(no_fuse()) {
        return;
    }
    let pair = Pair::new(["-d", "raid0", "-m", "raid1"]);
    let directory = pair.directory();
    sound(&[
        "balance",
        "start",
        "--full-balance",
        "--background",
        "--limit",
        "1M",
        directory,
    ]);
    let running = |name: &str| match name {
        "balance" => "a balance is already running".to_owned(),
        _ => format!("no {name} is possible: the exclusive operation 'balance' is in progress"),
    };
    pair.expect_refusals(&[], running);
    sound(&["balance", "pause", directory]);
    // A paused balance allows a new device alone.
    let paused = |name: &str| match name {
        "balance" => "a balance is in progress or paused".to_owned(),
        _ => format!("no {name} is possible: a balance is paused"),
    };
    pair.expect_refusals(&["device add"], paused);
    let third = pair.empty("third.img", 256);
    sound(&["device", "add", &third, directory]);
    sound(&["balance", "cancel", directory]);
    sound(&["device", "remove", "3", directory]);
    pair.expect_whole(&[pair.mounted.image(), pair.second()]);
}

#[test]
fn removal_on_a_mount_excludes_other_operations() {
    if skips(no_fuse()) {
        return;
    }
    let pair = Pair::new(["-d", "single", "-m", "dup"]);
    let directory = pair.directory();
    // A send whose output waits keeps its view of the volume, and the removal waits for the view.
    let snapshot = pair.mounted.path("snapshot");
    let snapshot = snapshot.to_str().unwrap();
    sound(&["subvolume", "snapshot", "-r", directory, snapshot]);
    let mut send = Command::new(PROGRAM);
    let mut send = send
        .args(["send", "-q", snapshot])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stream = send.stdout.take().unwrap();
    stream.read_exact(&mut [0; 17]).unwrap();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            loop {
                let output = buttress(&["device", "remove", "2", directory]);
                // A resize of this test may come first.
                if !text(&output.stderr).contains("'resize' is in progress") {
                    return output;
                }
            }
        });
        let busy = |name: &str| {
            format!("no {name} is possible: the exclusive operation 'device remove' is in progress")
        };
        while !text(&buttress(&["filesystem", "resize", "1:max", directory]).stderr).contains(&busy("resize"))
        {
            assert!(!removal.is_finished(), "the removal does not wait for the reader");
        }
        pair.expect_refusals(&[], busy);
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        let removed = removal.join().unwrap();
        assert!(removed.status.success(), "{}", text(&removed.stderr));
    });
    assert!(send.wait().unwrap().success());
    // The volume no longer uses the image file of the removed device.
    fs::remove_file(&pair.second).unwrap();
    sound(&["filesystem", "sync", directory]);
    pair.expect_whole(&[pair.mounted.image()]);
}

#[test]
fn replacement_excludes_other_operations_on_a_mount() {
    if skips(no_fuse()) {
        return;
    }
    let pair = Pair::new(["-d", "raid1", "-m", "raid1"]);
    pair.mounted.umount();
    let target = pair.empty("target.img", 400);
    let image = pair.mounted.image();
    // A rate limit stalls the replacement, and a signal suspends it.
    let started = [
        "replace",
        "start",
        "--limit",
        "64K",
        "2",
        &target,
        "--device",
        pair.second(),
        image,
    ];
    sound(&started);
    sound(&["replace", "status", "-1", "--device", pair.second(), image]);
    let record = fs::read_to_string(format!("{image}.replace-status")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let process = rustix::process::Pid::from_raw(record["process"][0].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let mount = [
        "mount",
        "-o",
        "rw",
        "--device",
        pair.second(),
        "--device",
        &target,
        image,
        pair.directory(),
    ];
    while !buttress(&mount).status.success() {
        std::thread::yield_now();
    }
    pair.expect_refusals(&[], |_| "being replaced".to_owned());
    pair.mounted.umount();
    sound(&[
        "replace",
        "cancel",
        "--device",
        pair.second(),
        "--device",
        &target,
        image,
    ]);
    pair.mount();
    pair.expect_whole(&[image, pair.second()]);
}
