//! `tune`: features and the uuid of a volume, read by the kernel and by btrfs-progs.

use super::support::{failure, stdout};
use super::{check, fresh, made};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::{REFERENCE_PROGS, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest};
use std::process::Command;

const OLD: &str = "^extref,^skinny-metadata,^no-holes";
const FSID: &str = "01234567-89ab-4def-8123-456789abcdef";

/// An image without the features that `tune` adds, with a directory and a file in it.
fn old() -> (tempfile::TempDir, String) {
    let (folder, image) = fresh();
    stdout(&["mkfs", "-q", "-b", "256M", "-O", OLD, &image]);
    write(&image, "before");
    (folder, image)
}

fn write(image: &str, name: &str) {
    let words = format!("pwrite -S 0x5a 8192 70000 /{name}");
    stdout(&["shell", "-w", "-c", &words, image]);
}

fn superblock(image: &str) -> String {
    stdout(&["inspect-internal", "dump-super", image])
}

/// Requires that Linux mounts the image, reads its file and writes another.
fn linux_uses(image: &str) {
    if skips(kernel_missing()) {
        return;
    }
    {
        let mounted = Mount::new(&[image.into()], "").unwrap();
        let bytes = std::fs::read(mounted.path().join("before")).unwrap();
        assert!(bytes.len() == 78192 && bytes[8192..].iter().all(|byte| *byte == 0x5a));
        std::fs::write(mounted.path().join("by-linux"), "text").unwrap();
    }
    check(image);
    assert_eq!(stdout(&["cat", &format!("{image}:/by-linux")]), "text");
}

#[test]
fn tune_adds_features_to_an_old_volume() {
    let (_folder, image) = old();
    for (option, name) in [
        ("-r", "EXTENDED_IREF"),
        ("-x", "SKINNY_METADATA"),
        ("-n", "NO_HOLES"),
    ] {
        assert!(!superblock(&image).contains(name), "{name}");
        stdout(&["tune", option, &image]);
        assert!(superblock(&image).contains(name), "{name}");
        write(&image, &format!("after{option}"));
        check(&image);
    }
    linux_uses(&image);
}

#[test]
fn tune_changes_the_uuid_and_takes_it_back() {
    let (_folder, image) = old();
    let before = superblock(&image);
    let old_fsid = before
        .lines()
        .find_map(|line| line.strip_prefix("fsid"))
        .map(str::trim)
        .unwrap();
    let said = stdout(&["tune", "-M", FSID, &image]);
    assert_eq!(said, format!("new uuid: {FSID}\n"));
    let changed = superblock(&image);
    assert!(
        changed.contains("METADATA_UUID") && changed.contains(FSID),
        "{changed}"
    );
    check(&image);
    write(&image, "after");
    linux_uses(&image);
    stdout(&["tune", "-M", old_fsid, &image]);
    assert!(!superblock(&image).contains("METADATA_UUID"));
    check(&image);
    let (first, second) = (stdout(&["tune", "-m", &image]), stdout(&["tune", "-m", &image]));
    assert_ne!(first, second);
}

#[test]
fn tune_makes_a_seed_that_stays_as_it_is() {
    let (_folder, image) = old();
    stdout(&["tune", "-f", "-S", "1", &image]);
    assert!(superblock(&image).contains("SEEDING"));
    check(&image);
    let (_, told) = failure(&["filesystem", "label", &image, "new"]);
    assert!(told.contains("seed"), "{told}");
    let (_, told) = failure(&["tune", "-r", &image]);
    assert!(told.contains("seed"), "{told}");
}

#[test]
fn volume_with_a_metadata_uuid_becomes_no_seed() {
    let (_folder, image) = made();
    stdout(&["tune", "-m", &image]);
    let before = std::fs::read(&image).unwrap();
    let (_, told) = failure(&["tune", "-f", "-S", "1", &image]);
    assert!(told.contains("fsid was changed"), "{told}");
    assert!(std::fs::read(&image).unwrap() == before, "a refused change wrote");
}

#[test]
fn tune_refuses_changes_that_it_cannot_make() {
    let (_folder, image) = made();
    let before = std::fs::read(&image).unwrap();
    for words in [
        &["tune", &image][..],
        &["tune", "-S", "0", &image],
        &["tune", "-S", "2", &image],
        &["tune", "-m", "-M", FSID, &image],
        &["tune", "-u", "-U", FSID, &image],
        &["tune", "-m", "-r", &image],
        &["tune", "-U", "00000000-0000-0000-0000-000000000000", &image],
        &["tune", "--csum", "md5", &image],
        &["tune", "--csum", "crc32c", &image],
        &["tune", "-M", "00000000-0000-0000-0000-000000000000", &image],
        &["tune", "-M", "no-uuid", &image],
    ] {
        failure(words);
    }
    assert!(std::fs::read(&image).unwrap() == before, "a refused change wrote");
}

/// Requires that both checks find nothing and that Linux reads and writes the images.
fn all_agree(images: &[&str]) {
    let paths: Vec<std::path::PathBuf> = images.iter().map(Into::into).collect();
    if skips(kernel_missing()) {
        return;
    }
    buttress_oracle::btrfs_check::btrfs_check(&paths).unwrap();
    let mounted = Mount::new(&paths, "").unwrap();
    let bytes = std::fs::read(mounted.path().join("before")).unwrap();
    assert!(bytes.len() == 78192 && bytes[8192..].iter().all(|byte| *byte == 0x5a));
    std::fs::write(mounted.path().join("by-linux"), "text").unwrap();
    mounted.close().unwrap();
    buttress_oracle::btrfs_check::btrfs_check(&paths).unwrap();
}

/// A mirror of two images, with a file.
fn mirror() -> (tempfile::TempDir, String, String) {
    let (folder, first) = fresh();
    let second = folder.path().join("second.img").to_str().unwrap().to_owned();
    stdout(&[
        "mkfs", "-q", "-b", "256M", "-d", "raid1", "-m", "raid1", &first, &second,
    ]);
    let words = "pwrite -S 0x5a 8192 70000 /before";
    stdout(&["shell", "-w", "-c", words, "--device", &second, &first]);
    (folder, first, second)
}

fn line_of(image: &str, field: &str) -> String {
    let shown = superblock(image);
    let line = shown.lines().find(|line| line.starts_with(field));
    assert!(line.is_some(), "{field}: {shown}");
    line.unwrap_or_default().to_owned()
}

#[test]
fn tune_rewrites_the_uuid_of_all_blocks() {
    let (_folder, first, second) = mirror();
    let before = line_of(&first, "fsid");
    let said = stdout(&["tune", "-U", FSID, "--device", &second, &first]);
    assert_eq!(said, format!("new uuid: {FSID}\n"));
    for image in [&first, &second] {
        let shown = superblock(image);
        assert!(!shown.contains("METADATA_UUID"), "{shown}");
        assert!(line_of(image, "dev_item.fsid").contains(FSID), "{shown}");
        assert_ne!(line_of(image, "fsid"), before);
    }
    let text = stdout(&["check", "--device", &second, &first]);
    assert!(text.contains("no error found"), "{text}");
    all_agree(&[&first, &second]);
    // A missing device would keep the old uuid.
    let (_, told) = failure(&["tune", "-u", "--degraded", &first]);
    assert!(told.contains("missing"), "{told}");
    let said = stdout(&["tune", "-f", "-u", "--device", &second, &first]);
    assert!(said.starts_with("new uuid: ") && !said.contains(FSID), "{said}");
    all_agree(&[&first, &second]);
}

#[test]
fn tune_changes_the_uuid_on_several_devices() {
    let (_folder, first, second) = mirror();
    stdout(&["tune", "-M", FSID, "--device", &second, &first]);
    for image in [&first, &second] {
        assert!(superblock(image).contains("METADATA_UUID"));
        assert!(line_of(image, "fsid").contains(FSID));
    }
    all_agree(&[&first, &second]);
    let (_, told) = failure(&["tune", "-u", "--device", &second, &first]);
    assert!(told.contains("metadata uuid"), "{told}");
}

/// A copy of a volume with another fsid has the same roots, but no flag of a change.
#[test]
fn tune_leaves_devices_of_a_copy_alone() {
    let (folder, first, second) = mirror();
    let copy_of = |image: &str, name: &str| {
        let copy = folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::copy(image, &copy).unwrap();
        copy
    };
    // No other test has a volume with this fsid.
    let fsid = "89abcdef-0123-4567-89ab-cdef01234567";
    let (copy, other) = (copy_of(&first, "copy.img"), copy_of(&second, "other.img"));
    stdout(&["tune", "-M", fsid, "--device", &other, &copy]);
    let before = superblock(&other);
    for change in ["-m", "-u"] {
        let (code, told) = failure(&["tune", "-f", change, "--device", &other, &first]);
        assert_ne!(code, 0, "{change}");
        assert_eq!(superblock(&other), before, "{change}: {told}");
        assert!(!superblock(&first).contains(fsid), "{change}: {told}");
    }
    for (image, device) in [(&first, &second), (&copy, &other)] {
        let text = stdout(&["check", "--device", device, image]);
        assert!(text.contains("no error found"), "{text}");
    }
}

#[test]
fn tune_changes_all_checksums() {
    let (_folder, image) = old();
    stdout(&["filesystem", "sync", &image]);
    for (word, name) in [
        ("xxhash", "xxhash64"),
        ("sha256", "sha256"),
        ("blake2", "blake2b"),
        ("crc32c", "crc32c"),
    ] {
        let said = stdout(&["tune", "--csum", word, &image]);
        assert!(said.contains(&format!("to {name} (")), "{said}");
        assert!(line_of(&image, "csum_type").contains(name));
        check(&image);
        all_agree(&[&image]);
        let (_, told) = failure(&["tune", "--csum", word, &image]);
        assert!(told.contains("already"), "{told}");
    }
}

#[test]
fn tune_converts_block_groups_there_and_back() {
    let (_folder, image) = fresh();
    stdout(&["mkfs", "-q", "-b", "256M", "-O", "^block-group-tree", &image]);
    write(&image, "before");
    for (option, has) in [
        ("--convert-to-block-group-tree", true),
        ("--convert-from-block-group-tree", false),
        ("--convert-to-block-group-tree", true),
    ] {
        let said = stdout(&["tune", option, &image]);
        assert!(said.starts_with("Converted "), "{said}");
        assert_eq!(superblock(&image).contains("BLOCK_GROUP_TREE"), has);
        check(&image);
        all_agree(&[&image]);
        let (_, told) = failure(&["tune", option, &image]);
        assert!(told.contains("filesystem"), "{told}");
    }
}

#[test]
fn tune_makes_a_free_space_tree() {
    let (folder, image) = old();
    let features = "^block-group-tree,^free-space-tree";
    let by_linux = folder.path().join("linux.img").to_str().unwrap().to_owned();
    std::fs::File::create(&by_linux)
        .unwrap()
        .set_len(256 << 20)
        .unwrap();
    stdout(&["mkfs", "-q", "-f", "-b", "256M", "-O", features, &by_linux]);
    write(&by_linux, "before");
    if !skips(kernel_missing()) {
        // Linux writes the v1 cache.
        let mounted = Mount::new(&[by_linux.clone().into()], "space_cache=v1").unwrap();
        for number in 0..20 {
            std::fs::write(mounted.path().join(format!("file{number}")), vec![number; 30_000]).unwrap();
        }
        mounted.close().unwrap();
    }
    let (_, told) = failure(&["tune", "--convert-to-block-group-tree", &by_linux]);
    assert!(told.contains("no valid free-space tree"), "{told}");
    stdout(&["tune", "--convert-to-free-space-tree", &by_linux]);
    let shown = superblock(&by_linux);
    assert!(shown.contains("FREE_SPACE_TREE_VALID"), "{shown}");
    check(&by_linux);
    all_agree(&[&by_linux]);
    let (_, told) = failure(&["tune", "--convert-to-free-space-tree", &image]);
    assert!(told.contains("already has free-space-tree"), "{told}");
}

#[test]
fn tune_makes_a_seed_and_clears_the_flag() {
    let (_folder, image) = old();
    stdout(&["tune", "-f", "-S", "1", &image]);
    let (_, told) = failure(&["tune", "-S", "0", &image]);
    assert!(told.contains("not to be mountable"), "{told}");
    assert!(superblock(&image).contains("SEEDING"));
    stdout(&["tune", "-f", "-S", "0", &image]);
    assert!(!superblock(&image).contains("SEEDING"));
    linux_uses(&image);
    let (_, told) = failure(&["tune", "-f", "-S", "0", &image]);
    assert!(told.contains("not set"), "{told}");
}

/// The feature lines of a superblock, and the number of extents that name their makers.
fn traces(image: &str) -> (bool, usize) {
    let tree = stdout(&["inspect-internal", "dump-tree", "-t", "extent", image]);
    let owners = tree
        .lines()
        .filter(|line| line.contains("extent owner root"))
        .count();
    (superblock(image).contains("SIMPLE_QUOTA"), owners)
}

#[test]
fn tune_enables_and_removes_simple_quotas() {
    let (_folder, image) = old();
    let (_, told) = failure(&["tune", "--remove-simple-quota", &image]);
    assert!(told.contains("no simple quotas"), "{told}");
    stdout(&["tune", "--enable-simple-quota", &image]);
    let (_, told) = failure(&["tune", "--enable-simple-quota", &image]);
    assert!(told.contains("has quotas already"), "{told}");
    write(&image, "counted");
    let counted = stdout(&["qgroup", "show", "--raw", &image]);
    // The file, and the tree block that names it.
    assert!(counted.contains(" 90112 "), "{counted}");
    assert_eq!(traces(&image), (true, 1));
    check(&image);
    linux_uses(&image);
    stdout(&["tune", "--remove-simple-quota", &image]);
    assert_eq!(traces(&image), (false, 0));
    check(&image);
    assert_eq!(stdout(&["cat", &format!("{image}:/counted")]).len(), 78192);
    stdout(&["quota", "enable", &image]);
    let (_, told) = failure(&["tune", "--remove-simple-quota", &image]);
    assert!(told.contains("classic quotas"), "{told}");
}

#[test]
fn simple_quotas_of_btrfstune_are_removed_as_by_btrfstune() {
    if skips(missing(REFERENCE_PROGS)) {
        return;
    }
    let (folder, image) = old();
    let btrfstune = |option: &str, image: &str| {
        let done = Command::new(newest("btrfstune"))
            .args([option, image])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    btrfstune("--enable-simple-quota", &image);
    write(&image, "counted");
    let theirs = folder.path().join("theirs");
    std::fs::copy(&image, &theirs).unwrap();
    let theirs = theirs.to_str().unwrap();
    btrfstune("--remove-simple-quota", theirs);
    stdout(&["tune", "--remove-simple-quota", &image]);
    assert_eq!((traces(&image), traces(theirs)), ((false, 0), (false, 0)));
    let status = |image: &str| stdout(&["quota", "status", image]);
    assert_eq!(
        status(&image).replace(&image, ""),
        status(theirs).replace(theirs, "")
    );
    check(&image);
    linux_uses(&image);
    // Btrfstune removes what this program enabled.
    stdout(&["tune", "--enable-simple-quota", theirs]);
    write(theirs, "again");
    btrfstune("--remove-simple-quota", theirs);
    check(theirs);
}
