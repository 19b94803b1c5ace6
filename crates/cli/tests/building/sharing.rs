//! Tests of `--reflink`: images that share file blocks with their source directory.

use super::{done, mkfs, noise, same_bytes};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shareable bytes in the tree below.
const SHARED_BYTES: u64 = 20 << 20;

fn fill(tree: &Path) {
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("large"), noise(1, SHARED_BYTES as usize)).unwrap();
    std::fs::write(tree.join("d/tail"), noise(2, 100_003)).unwrap();
    std::fs::write(tree.join("d/in the tree"), noise(3, 100)).unwrap();
    std::fs::write(tree.join("d/one sector"), noise(4, 4096)).unwrap();
    std::fs::hard_link(tree.join("large"), tree.join("d/large again")).unwrap();
    std::fs::write(tree.join("d/equal"), noise(2, 100_003)).unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(&noise(5, 70_000), 1 << 20).unwrap();
    sparse.write_all_at(&noise(6, 10), (3 << 20) - 10).unwrap();
}

/// Writes all dirty data of one file system, because other file systems of the machine may hang.
fn sync(mount: &Path) {
    rustix::fs::syncfs(File::open(mount).unwrap()).unwrap();
}

/// Returns the used bytes of a file system after a sync.
fn used(mount: &Path) -> u64 {
    sync(mount);
    let state = rustix::fs::statvfs(mount).unwrap();
    (state.f_blocks - state.f_bfree) * state.f_frsize
}

/// Mounts a new volume on a loop device.
fn host() -> (tempfile::TempDir, Mount) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("host.img");
    File::create(&image).unwrap().set_len(1 << 30).unwrap();
    done(Command::new(newest("mkfs.btrfs")).arg("-q").arg(&image));
    let mount = Mount::new(&[image], "").unwrap();
    (folder, mount)
}

fn build(tree: &Path, image: &Path, words: &[&str]) -> Command {
    let mut command = mkfs();
    command
        .args(["--shrink", "--rootdir"])
        .arg(tree)
        .args(words)
        .arg(image);
    command
}

#[test]
fn an_image_that_shares_blocks_has_the_same_bytes_and_takes_next_to_no_space() {
    if skips(kernel_missing()) {
        return;
    }
    let (folder, mount) = host();
    let tree = mount.path().join("tree");
    fill(&tree);
    for (number, words) in [
        &[][..],
        &["-d", "dup"],
        &["--dedupe"],
        &["--inode-flags", "nodatasum:large"],
        &["--csum", "sha256", "-n", "4096"],
    ]
    .iter()
    .enumerate()
    {
        let copied = folder.path().join(format!("copied-{number}"));
        done(&mut build(&tree, &copied, words));
        let shared = mount.path().join(format!("shared-{number}"));
        let before = used(mount.path());
        done(build(&tree, &shared, words).arg("--reflink"));
        let taken = used(mount.path()) - before;
        assert!(taken < SHARED_BYTES / 2, "{words:?}: {taken} bytes");
        assert!(same_bytes(&copied, &shared), "{words:?}");
        btrfs_check(&[shared]).unwrap();
    }
    // Writes to a source file go to other blocks than those that the image shares.
    File::options()
        .write(true)
        .open(tree.join("large"))
        .unwrap()
        .write_all_at(b"changed", 4096)
        .unwrap();
    sync(mount.path());
    assert!(same_bytes(
        &folder.path().join("copied-0"),
        &mount.path().join("shared-0")
    ));
    mount.close().unwrap();
}

#[test]
fn failed_sharing_of_blocks_leaves_no_volume() {
    if skips(kernel_missing()) {
        return;
    }
    let (folder, mount) = host();
    let tree = mount.path().join("tree");
    fill(&tree);
    let refused = |images: &[PathBuf], words: &[&str], problem: &str| {
        let (first, others) = images.split_first().unwrap();
        let output = build(&tree, first, words)
            .args(others)
            .arg("--reflink")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(problem), "{error}");
        assert!(
            error.contains("to copy the contents, leave out --reflink"),
            "{error}"
        );
        assert!(!first.exists(), "{error}");
    };
    let elsewhere = folder.path().join("elsewhere");
    refused(&[elsewhere], &[], "cannot be shared with the image");
    let two = [mount.path().join("one"), mount.path().join("other")];
    let mut command = mkfs();
    let output = command
        .args(["--reflink", "-d", "raid0", "--byte-count", "300M", "--rootdir"])
        .arg(&tree)
        .args(&two)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("expected single or dup"), "{error}");
    assert!(!two[0].exists() && !two[1].exists(), "{error}");
    // Blocks of nodatacow files cannot be shared.
    let in_place = mount.path().join("in place");
    File::create(&in_place).unwrap();
    done(Command::new("chattr").arg("+C").arg(&in_place));
    let output = build(&tree, &in_place, &["--reflink"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot be shared with the image"), "{error}");
    let probe = Command::new(newest("btrfs"))
        .args(["inspect-internal", "dump-super"])
        .arg(&in_place)
        .output()
        .unwrap();
    let probe = String::from_utf8_lossy(&probe.stdout).into_owned();
    assert!(!probe.contains("[match]"), "{probe}");
    mount.close().unwrap();
}
