//! `device add` to a mounted volume: the client opens the device, and the server uses it.

use crate::mounting;

use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use mounting::{Mounted, PROGRAM, buttress, no_fuse, sound, text};
use serde_json::Value;
use std::fs::{self, File};
use std::process::Command;

fn content(number: usize) -> Vec<u8> {
    let words = (0..1_usize << 18).map(|at| (at.wrapping_mul(2_654_435_761) + number).to_le_bytes());
    words.flatten().collect()
}

const FILES: usize = 8;

/// A mounted volume of one image file with some files.
fn mounted() -> Mounted {
    let mounted = Mounted::sized("256M");
    mounted.mount("rw");
    for number in 0..FILES {
        fs::write(mounted.path(&format!("f{number}")), content(number)).unwrap();
    }
    mounted
}

fn expect_files(mounted: &Mounted) {
    for number in 0..FILES {
        assert!(fs::read(mounted.path(&format!("f{number}"))).unwrap() == content(number));
    }
}

/// An image file of a size in MiB beside the volume's.
fn empty(mounted: &Mounted, name: &str, mib: u64) -> String {
    let path = mounted.image.with_file_name(name);
    File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path.to_str().unwrap().to_owned()
}

fn devices(mounted: &Mounted) -> usize {
    let shown = sound(&["device", "usage", "--format", "json", mounted.directory()]);
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    document["device-usage"].as_array().unwrap().len()
}

fn refused(words: &[&str], expected: &str) {
    let output = buttress(words);
    let told = text(&output.stderr);
    assert!(!output.status.success(), "{words:?}");
    assert!(told.contains(expected), "{words:?}: {told}");
}

#[test]
fn mounted_volume_gets_a_mirror_and_loses_its_first_device() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    let folder = mounted.image.parent().unwrap();
    let second = empty(&mounted, "second.img", 300);
    // The server has another current directory than the client.
    let added = Command::new(PROGRAM)
        .args(["device", "add", "second.img", directory])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(added.status.success(), "{}", text(&added.stderr));
    assert!(
        text(&added.stdout).contains("added as device 2 (300.00MiB)"),
        "{}",
        text(&added.stdout)
    );
    assert_eq!(devices(&mounted), 2);
    // The server holds the lock of the new device.
    refused(&["ls", &second], "another process is writing to it");
    sound(&[
        "balance",
        "start",
        "-dconvert=raid1",
        "-mconvert=raid1",
        directory,
    ]);
    fs::write(mounted.path("later"), content(99)).unwrap();
    expect_files(&mounted);
    mounted.umount();
    let check = ["check", "--check-data-csum", "--device", &second, mounted.image()];
    sound(&check);
    // The second device alone has everything.
    sound(&["mount", "-o", "ro", "--degraded", &second, directory]);
    expect_files(&mounted);
    sound(&["umount", directory]);
    sound(&[
        "mount",
        "-o",
        "rw",
        "--device",
        &second,
        mounted.image(),
        directory,
    ]);
    sound(&[
        "balance",
        "start",
        "-f",
        "-dconvert=single",
        "-mconvert=dup",
        directory,
    ]);
    let removed = Command::new(PROGRAM)
        .args(["device", "remove", "second.img", directory])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    // The volume no longer uses the file, so its deletion loses nothing.
    fs::remove_file(&second).unwrap();
    sound(&["filesystem", "sync", directory]);
    expect_files(&mounted);
    assert!(fs::read(mounted.path("later")).unwrap() == content(99));
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
}

#[test]
fn deleted_image_of_an_added_device_fails_syncs() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let second = empty(&mounted, "second.img", 64);
    sound(&["device", "add", &second, mounted.directory()]);
    fs::remove_file(&second).unwrap();
    refused(
        &["filesystem", "sync", mounted.directory()],
        "second.img was deleted while mounted",
    );
}

#[test]
fn unsuitable_devices_are_refused_on_a_mount() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    let add = |words: &[&str], expected: &str| {
        refused(&[&["device", "add"], words, &[directory]].concat(), expected)
    };
    let used = empty(&mounted, "used.img", 128);
    sound(&["mkfs", "-q", "-f", &used]);
    let before = fs::read(&used).unwrap();
    add(&[&used], "to overwrite it, give -f");
    let small = empty(&mounted, "small.img", 8);
    add(&[&small], "too small");
    // Every device is checked before one changes.
    let free = empty(&mounted, "free.img", 64);
    add(&[&free, &small], "too small");
    assert!(fs::read(&free).unwrap().iter().all(|byte| *byte == 0));
    add(&[&free, &free], "given twice");
    add(&[mounted.image()], "another process has it open");
    add(&["/dev/null"], "neither a regular file nor a block device");
    add(&["missing.img"], "No such file");
    // A file of the volume cannot be one of its devices.
    let inside = mounted.path("inside.img");
    File::create(&inside).unwrap().set_len(128 << 20).unwrap();
    add(&[inside.to_str().unwrap()], "cannot be stored in it");
    fs::copy(&used, &inside).unwrap();
    add(&["-f", inside.to_str().unwrap()], "cannot be stored in it");
    assert!(fs::read(&used).unwrap() == before);
    assert_eq!(devices(&mounted), 1);
    sound(&["device", "add", "-f", &used, directory]);
    add(&["-f", &used], "another process has it open");
    mounted.umount();
    let image = mounted.image();
    sound(&["mount", "-o", "ro", "--device", &used, image, directory]);
    add(&[&free], "it is mounted read-only");
}

#[test]
fn loop_device_is_added_and_removed_on_a_mount() {
    if skips(no_fuse().or_else(|| missing("loop-devices"))) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    let second = empty(&mounted, "second.img", 128);
    let device = LoopDevice::attach(second.as_ref()).unwrap();
    let path = device.path().to_str().unwrap();
    sound(&["device", "add", path, directory]);
    sound(&[
        "balance",
        "start",
        "-dconvert=raid1",
        "-mconvert=raid1",
        directory,
    ]);
    refused(&["mkfs", "-q", "-f", path], "in use");
    sound(&[
        "balance",
        "start",
        "-f",
        "-dconvert=single",
        "-mconvert=dup",
        directory,
    ]);
    sound(&["device", "remove", path, directory]);
    sound(&["mkfs", "-q", "-f", path]);
    expect_files(&mounted);
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
}

#[test]
fn killed_server_leaves_the_volume_with_or_without_the_device() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted();
    let directory = mounted.directory();
    sound(&["filesystem", "sync", directory]);
    for turn in 0..4_u64 {
        let second = empty(&mounted, &format!("second-{turn}.img"), 64);
        let mut adds = Command::new(PROGRAM)
            .args(["device", "add", &second, directory])
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(4 * turn));
        mounted.signal(rustix::process::Signal::KILL);
        mounted.wait_until_gone();
        adds.wait().unwrap();
        let with = buttress(&["check", "--device", &second, mounted.image()]);
        let without = buttress(&["check", mounted.image()]);
        assert!(
            with.status.success() || without.status.success(),
            "{}",
            text(&without.stderr)
        );
        if !without.status.success() {
            sound(&["device", "remove", "2", "--device", &second, mounted.image()]);
        }
        mounted.mount("rw");
        // This command continues an interrupted one, or adds the removed device.
        sound(&["device", "add", &second, directory]);
        sound(&["device", "remove", &second, directory]);
    }
    expect_files(&mounted);
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
}

/// A mounted volume of two image files that mirror each other.
fn mirror() -> (Mounted, String) {
    let mounted = mounted();
    let second = empty(&mounted, "second.img", 256);
    sound(&["device", "add", &second, mounted.directory()]);
    sound(&[
        "balance",
        "start",
        "-dconvert=raid1",
        "-mconvert=raid1",
        mounted.directory(),
    ]);
    (mounted, second)
}

#[test]
fn device_of_a_mounted_volume_is_replaced_beside_writers() {
    if skips(no_fuse()) {
        return;
    }
    let (mounted, second) = mirror();
    let directory = mounted.directory();
    let third = empty(&mounted, "third.img", 300);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..100_u8 {
                fs::write(mounted.path(&format!("new{}", number % 5)), vec![number; 50_000]).unwrap();
            }
        });
        sound(&["replace", "start", "-B", &second, &third, directory]);
        writer.join().unwrap();
    });
    let told = text(&sound(&["replace", "status", "-1", directory]).stdout);
    assert!(told.contains("finished on"), "{told}");
    // The volume no longer uses the file of the replaced device.
    fs::remove_file(&second).unwrap();
    sound(&["filesystem", "sync", directory]);
    expect_files(&mounted);
    mounted.umount();
    sound(&["check", "--check-data-csum", "--device", &third, mounted.image()]);
    sound(&["mount", "-o", "ro", "--degraded", &third, directory]);
    expect_files(&mounted);
    sound(&["umount", directory]);
}

#[test]
fn replacement_on_a_mount_is_suspended_by_the_unmount() {
    if skips(no_fuse()) {
        return;
    }
    let (mounted, second) = mirror();
    let directory = mounted.directory();
    let third = empty(&mounted, "third.img", 300);
    let small = empty(&mounted, "small.img", 100);
    refused(&["replace", "start", &second, &small, directory], "is too small");
    refused(
        &["replace", "start", "9", &third, directory],
        "the volume has no device 9",
    );
    refused(
        &["replace", "start", "2", mounted.image(), directory],
        "already a device of the volume",
    );
    sound(&["replace", "start", "--limit", "64K", "2", &third, directory]);
    refused(
        &["replace", "start", "2", &third, directory],
        "already being replaced",
    );
    refused(&["balance", "start", "-dusage=0", directory], "being replaced");
    mounted.umount();
    let devices = ["--device", &second, "--device", &third, mounted.image()];
    let told = text(&sound(&[&["replace", "status", "-1"][..], &devices].concat()).stdout);
    assert!(told.contains("suspended on"), "{told}");
    sound(&[&["mount", "-o", "rw"][..], &devices, &[directory]].concat());
    sound(&["replace", "start", "-B", "2", &third, directory]);
    mounted.umount();
    sound(&["check", "--check-data-csum", "--device", &third, mounted.image()]);
    // Cancelling keeps the old device.
    sound(&[
        "mount",
        "-o",
        "rw",
        "--device",
        &third,
        mounted.image(),
        directory,
    ]);
    let fourth = empty(&mounted, "fourth.img", 300);
    sound(&["replace", "start", "--limit", "64K", "2", &fourth, directory]);
    let told = text(&sound(&["replace", "cancel", directory]).stdout);
    assert!(told.contains("device 2 stays"), "{told}");
    assert_eq!(buttress(&["replace", "cancel", directory]).status.code(), Some(2));
    fs::remove_file(&fourth).unwrap();
    sound(&["filesystem", "sync", directory]);
    mounted.umount();
    sound(&["check", "--check-data-csum", "--device", &third, mounted.image()]);
}
