//! Tests with callers of mkfs.btrfs: systemd-repart and mkosi run this program under that name.

use super::{deterministic, done, noise};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prepares a folder in which this program has the name mkfs.btrfs, and a tree for the images.
fn prepared() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let programs = folder.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    symlink(env!("CARGO_BIN_EXE_buttress"), programs.join("mkfs.btrfs")).unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("usr/bin")).unwrap();
    std::fs::create_dir(tree.join("var")).unwrap();
    std::fs::write(tree.join("usr/bin/tool"), noise(1, 2_000_000)).unwrap();
    std::fs::write(tree.join("var/small"), "small").unwrap();
    (folder, tree)
}

fn path_with(folder: &Path) -> std::ffi::OsString {
    let own = folder.join("programs");
    let rest = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&rest))).unwrap()
}

/// The installed systemd-repart builds a disk image with a partition table, with the tree in a
/// volume in its partition. The caller runs this program as mkfs.btrfs, because the folder with
/// mkfs.btrfs comes first in the path.
#[test]
fn systemd_repart_makes_a_disk_image_with_it() {
    if skips(any_missing(&[
        "systemd-repart",
        "root",
        "kernel",
        "loop-devices",
        "losetup",
    ])) {
        return;
    }
    let (folder, tree) = prepared();
    let log = folder.path().join("calls");
    // The script that replaces the program records its call and its arguments.
    let program = folder.path().join("programs/mkfs.btrfs");
    std::fs::remove_file(&program).unwrap();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    symlink(env!("CARGO_BIN_EXE_buttress"), real.join("mkfs.btrfs")).unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\nexec {} \"$@\"\n",
        log.display(),
        real.join("mkfs.btrfs").display()
    );
    std::fs::write(&program, script).unwrap();
    done(Command::new("chmod").arg("755").arg(&program));
    let definitions = folder.path().join("definitions");
    std::fs::create_dir(&definitions).unwrap();
    std::fs::write(
        definitions.join("10-root.conf"),
        format!(
            "[Partition]\nType=root\nFormat=btrfs\nCopyFiles={}:/\nSizeMinBytes=300M\nSizeMaxBytes=300M\n",
            tree.display()
        ),
    )
    .unwrap();
    let disk = folder.path().join("disk.raw");
    let mut repart = Command::new("systemd-repart");
    repart
        .args(["--empty=create", "--size=400M", "--dry-run=no", "--seed=random"])
        .arg(format!("--definitions={}", definitions.display()))
        .arg(&disk)
        .env("PATH", path_with(folder.path()));
    let output = done(&mut repart);
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(
        calls.lines().count() == 1,
        "mkfs.btrfs was called {calls:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("systemd-repart called mkfs.btrfs {}", calls.trim());
    // In the disk image, this program's own reader finds the partition.
    let listing =
        super::support::stdout(&["ls", "-R", "--offset", "part=1", &format!("{}:/", disk.display())]);
    assert!(listing.contains("tool") && listing.contains("small"), "{listing}");
    let check = super::support::stdout(&[
        "check",
        "--check-data-csum",
        "--offset",
        "part=1",
        disk.to_str().unwrap(),
    ]);
    assert!(check.contains("no error found"), "{check}");
}

/// These are the arguments of systemd-repart 257 and mkosi 25 to mkfs.btrfs: `-L LABEL -U UUID -r
/// ROOT --compress … --subvol …`, on an existing file and on a device, with an epoch for
/// reproducible bytes.
#[test]
fn mkosi_s_and_newer_repart_s_words_are_taken() {
    if skips(any_missing(&["root", "kernel", "loop-devices", "losetup"])) {
        return;
    }
    let (folder, tree) = prepared();
    let program = folder.path().join("programs/mkfs.btrfs");
    let image = folder.path().join("file.img");
    std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    let words = |command: &mut Command| {
        command
            .args(["-L", "root-x86-64", "-U", super::UUID, "-K"])
            .args(["--sectorsize", "4096"])
            .args(["--compress", "zstd:3"])
            .args(["--subvol", "ro:usr", "--subvol", "default:var"])
            .arg("-r")
            .arg(&tree);
        deterministic(command);
    };
    let mut on_file = Command::new(&program);
    words(on_file.arg("-q"));
    done(on_file.arg(&image));
    let mount = Mount::new(std::slice::from_ref(&image), "ro,subvolid=5").unwrap();
    assert!(std::fs::read(mount.path().join("usr/bin/tool")).unwrap() == noise(1, 2_000_000));
    mount.close().unwrap();
    let listing = super::support::stdout(&["subvolume", "list", image.to_str().unwrap()]);
    assert!(
        listing.contains("path usr") && listing.contains("path var"),
        "{listing}"
    );
    // mkosi measures the smallest image size for Minimize=guess.
    let least = folder.path().join("least.img");
    let mut shrunk = Command::new(&program);
    words(shrunk.args(["-q", "--shrink"]));
    done(shrunk.arg(&least));
    let bytes = least.metadata().unwrap().len();
    assert!(bytes < 16 << 20, "{bytes} bytes");
}
