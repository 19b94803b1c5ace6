//! Tests of error messages: they are true, name their object, and give advice.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use buttress::ChecksumType;
use buttress::unstable::format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use support::{Volume, buttress, failure, stdout};

/// Offsets of fields of a superblock.
const FLAGS: usize = 0x38;
const BYTES_USED: usize = 0x78;
const COMPAT_RO: usize = 0xb4;

/// Changes the superblocks of an image, and updates their checksums.
fn change_superblocks(image: &str, change: impl Fn(&mut [u8])) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let size = file.metadata().unwrap().len();
    for at in SUPERBLOCK_OFFSETS {
        if at.get() + 4096 > size {
            continue;
        }
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        file.read_exact_at(&mut bytes, at.get()).unwrap();
        change(&mut bytes);
        let checksum = ChecksumType::Crc32c.compute(&bytes[32..]);
        bytes[..4].copy_from_slice(&checksum.as_bytes()[..4]);
        file.write_all_at(&bytes, at.get()).unwrap();
    }
}

fn set_number(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Returns standard output and standard error of a command that must exit with 0.
fn told(words: &[&str]) -> (String, String) {
    let output = buttress(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {stderr}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), stderr)
}

#[test]
fn a_wrong_count_of_used_bytes_is_reported_and_fixed() {
    for wrong in [1, 1 << 50] {
        let volume = Volume::copy();
        let names = stdout(&["ls", "-R", volume.path()]);
        change_superblocks(volume.path(), |bytes| set_number(bytes, BYTES_USED, wrong));
        let (listed, warning) = told(&["ls", "-R", volume.path()]);
        assert_eq!(listed, names);
        assert!(
            warning.contains("the used bytes in the superblock are wrong"),
            "{warning}"
        );
        let (code, _) = failure(&["check", volume.path()]);
        assert_eq!(code, 1);
        let checked = buttress(&["check", volume.path()]);
        let findings = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(findings.contains("bytes-used"), "{findings}");
        stdout(&["subvolume", "create", &volume.inside("/new")]);
        volume.check();
    }
}

#[test]
fn states_that_are_not_written_are_told_with_what_ends_them() {
    let cases: [(u64, &str, &str); 6] = [
        (
            1 << 33,
            "metadata image made by btrfs-image",
            "metadata image without file data",
        ),
        (
            1 << 34,
            "metadata image made by btrfs-image",
            "metadata image without file data",
        ),
        (1 << 35, "change of the fsid of all blocks", "buttress tune -u"),
        (
            1 << 36,
            "change of the fsid by a metadata uuid",
            "buttress tune -m",
        ),
        (
            1 << 38,
            "place of block group items",
            "--convert-to-block-group-tree",
        ),
        (1 << 39, "change of the checksums", "buttress tune --csum"),
    ];
    for (flag, notice, refusal) in cases {
        let volume = Volume::copy();
        change_superblocks(volume.path(), |bytes| {
            let flags = number(bytes, FLAGS);
            set_number(bytes, FLAGS, flags | flag);
        });
        let (_, warning) = told(&["ls", volume.path()]);
        assert!(warning.contains(notice), "{warning}");
        let (code, message) = failure(&["subvolume", "create", &volume.inside("/new")]);
        assert_eq!(code, 1);
        assert!(
            message.contains("cannot be written") && message.contains(refusal),
            "{message}"
        );
        assert!(!message.contains("mount it with the kernel"), "{message}");
    }
}

#[test]
fn features_that_are_not_known_are_named_alone() {
    let volume = Volume::copy();
    change_superblocks(volume.path(), |bytes| {
        let features = number(bytes, COMPAT_RO);
        set_number(bytes, COMPAT_RO, features | 1 << 40);
    });
    let (_, message) = failure(&["subvolume", "create", &volume.inside("/new")]);
    assert!(message.contains("(UNKNOWN_FLAG_0x10000000000)"), "{message}");
}

/// Creates a volume of two devices, and returns the path of the second image, too.
fn pair(profile: &str) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (first, second) = (image("one.img"), image("two.img"));
    stdout(&[
        "mkfs", "-q", "-b", "300M", "-d", profile, "-m", profile, &first, &second,
    ]);
    (folder, first, second)
}

#[test]
fn a_missing_device_is_told_as_that() {
    for profile in ["raid1", "raid0"] {
        let (_folder, first, second) = pair(profile);
        for (words, code) in [
            (&["ls"][..], 1),
            (&["check"], 2),
            (&["shell", "-w", "-c", "ls"], 1),
        ] {
            let (found, message) = failure(&[words, &[first.as_str()]].concat());
            assert_eq!(found, code, "{message}");
            assert!(
                message.contains("a device of the volume is missing: devid 2")
                    && message.contains("degraded"),
                "{profile}: {message}"
            );
        }
        stdout(&["ls", "--device", &second, &first]);
    }
}

/// If more devices are missing than a profile tolerates, the volume is not writable, and the
/// message says why.
#[test]
fn a_volume_that_lacks_too_much_is_not_written_and_says_why() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (first, second) = (image("one.img"), image("two.img"));
    stdout(&[
        "mkfs", "-q", "-b", "300M", "-d", "raid0", "-m", "raid1", &first, &second,
    ]);
    let (code, message) = failure(&["subvolume", "create", "--degraded", &format!("{first}:/new")]);
    assert_eq!(code, 1);
    let refusal = message.lines().find(|line| line.starts_with("error:")).unwrap();
    assert!(
        refusal.contains("raid0") || refusal.contains("RAID0"),
        "{message}"
    );
    assert!(refusal.contains("missing devices"), "{message}");
    assert!(!message.contains("compat_ro"), "{message}");
}

#[test]
fn a_bad_primary_superblock_is_reported_and_fixed_by_a_commit() {
    let volume = Volume::copy();
    let file = File::options().write(true).open(volume.path()).unwrap();
    file.write_all_at(&[0; 8], 65536 + 64).unwrap();
    for command in [&["ls"][..], &["subvolume", "list"]] {
        let (_, warning) = told(&[command, &[volume.path()]].concat());
        for part in [
            "the primary superblock at 65536 is damaged",
            "the copy at 67108864 (generation",
            "The kernel will refuse to mount the volume",
            "filesystem sync",
            "btrfs rescue super-recover",
        ] {
            assert!(warning.contains(part), "no {part:?} in {warning}");
        }
    }
    let checked = buttress(&["check", volume.path()]);
    assert_eq!(checked.status.code(), Some(1));
    let findings = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        findings.contains("it is the primary superblock, so the kernel will refuse to mount"),
        "{findings}"
    );
    let (_, warning) = told(&["filesystem", "sync", volume.path()]);
    assert!(warning.contains("the primary superblock"), "{warning}");
    let (_, warning) = told(&["ls", volume.path()]);
    assert_eq!(warning, "");
    volume.check();
}

#[test]
fn a_device_with_another_filesystem_is_not_written() {
    let volume = Volume::copy();
    let file = File::options().write(true).open(volume.path()).unwrap();
    file.write_all_at(&[0; 4096], 65536).unwrap();
    file.write_all_at(b"\x53\xef", 1080).unwrap();
    let before = fs::read(volume.path()).unwrap();
    told(&["ls", volume.path()]);
    let (code, message) = failure(&["filesystem", "sync", volume.path()]);
    assert_eq!(code, 1);
    assert!(
        message.contains("seems to contain ext2, ext3 or ext4 now"),
        "{message}"
    );
    assert!(
        fs::read(volume.path()).unwrap() == before,
        "the image was changed"
    );
}

#[test]
fn the_path_that_is_in_the_way_is_named() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let way = folder.path().join("way");
    fs::create_dir(&way).unwrap();
    let (code, message) = failure(&[
        "cp",
        "-T",
        &support::inside("/home/plain/text"),
        way.to_str().unwrap(),
    ]);
    assert_eq!(code, 1);
    assert!(message.contains(way.to_str().unwrap()), "{message}");
    fs::write(folder.path().join("file"), b"x").unwrap();
    let file = folder.path().join("file");
    let (code, message) = failure(&[
        "cp",
        "-r",
        "-T",
        &support::inside("/home"),
        file.to_str().unwrap(),
    ]);
    assert_eq!(code, 1);
    assert!(message.contains(file.to_str().unwrap()), "{message}");
}

/// If an ordinary user cannot create a device node, the node is missing, and the exit code reports
/// this.
#[test]
fn device_nodes_that_could_not_be_made_are_lost() {
    let volume = Volume::copy();
    stdout(&[
        "shell",
        "-w",
        volume.path(),
        "-c",
        "mkdir /d",
        "-c",
        "mknod /d/null c 1 3",
        "-c",
        "mknod /d/pipe p",
    ]);
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let image = folder.path().join("volume.img");
    fs::copy(volume.path(), &image).unwrap();
    fs::set_permissions(&image, Permissions::from_mode(0o644)).unwrap();
    let out = folder.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.args([
        "cp",
        "-a",
        &format!("{}:/d", image.display()),
        out.to_str().unwrap(),
    ]);
    if rustix::process::geteuid().is_root() {
        // Root could create the device node.
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("error:") && message.contains("1 device nodes were left out"),
        "{message}"
    );
    assert!(out.join("pipe").exists() && !out.join("null").exists());
}

/// A copy onto a full volume reports this once and stops; committed content stays unchanged.
#[test]
fn a_full_volume_is_told_once() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("small.img").to_str().unwrap().to_owned();
    stdout(&["mkfs", "-q", "-b", "128M", &image]);
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut noise = vec![0; 256 << 10];
    let mut state = 1u64;
    for number in 0..800 {
        for bytes in noise.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.copy_from_slice(&state.to_le_bytes());
        }
        fs::write(source.join(format!("file-{number:04}")), &noise).unwrap();
    }
    let (code, message) = failure(&["cp", "-r", source.to_str().unwrap(), &format!("{image}:/copy")]);
    assert_eq!(code, 1);
    assert!(
        message.contains("no space left") && message.contains("file-"),
        "{message}"
    );
    assert!(
        message.lines().count() <= 4,
        "{} lines: {message}",
        message.lines().count()
    );
    stdout(&["check", "--check-data-csum", &image]);
}

#[test]
fn receiving_without_a_place_says_what_is_missing() {
    let (code, message) = failure(&["receive"]);
    assert_eq!(code, 2);
    assert!(message.contains("IMAGE:/directory"), "{message}");
}

#[test]
fn refusals_name_the_command_that_helps() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (image, new) = (path("v.img"), path("new.img"));
    let (code, message) = failure(&["mkfs", "-b", "2M", &new]);
    assert_eq!(code, 1);
    assert!(
        message.contains("MiB (") && message.contains("give --size "),
        "{message}"
    );
    told(&["mkfs", "-q", "-b", "200M", &image]);
    let (code, message) = failure(&["rm", &format!("{image}:/file")]);
    assert_eq!(code, 2);
    assert!(
        message.contains("`buttress shell -w -c 'rm …' IMAGE`"),
        "{message}"
    );
    let (code, message) = failure(&["device", "add", &new, &image]);
    assert_eq!(code, 1);
    assert!(
        message.contains(&format!("`truncate -s SIZE {new}`")),
        "{message}"
    );
    let output = buttress(&["quota", "rescan", &image]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{output:?}");
    let overlay = path("overlay");
    told(&["--overlay", &overlay, "shell", "-w", "-c", "mkdir /a", &image]);
    told(&["shell", "-w", "-c", "mkdir /b", &image]);
    let (code, message) = failure(&["--overlay", &overlay, "ls", &image]);
    assert_eq!(code, 1);
    assert!(
        message.contains(&format!("to discard them, delete {overlay}")),
        "{message}"
    );
    let (code, message) = failure(&["overlay", "commit", &overlay, &image]);
    assert_eq!(code, 1);
    assert!(message.contains("run `overlay discard`"), "{message}");
    // The plan of an image of minimal size names the switch that gives the same bytes.
    let remark = "give --shrink again";
    assert!(!told(&["manifest", &image]).0.contains(remark));
    told(&["filesystem", "shrink", &image]);
    assert!(told(&["manifest", &image]).0.contains(remark));
}
