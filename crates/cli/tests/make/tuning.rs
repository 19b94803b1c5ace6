//! `tune`: features and the uuid of a volume, read by the kernel and by btrfs-progs.

use super::support::{failure, stdout};
use super::{check, fresh, made};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;

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
fn tune_refuses_changes_that_it_cannot_make() {
    let (_folder, image) = made();
    let before = std::fs::read(&image).unwrap();
    for words in [
        &["tune", &image][..],
        &["tune", "-S", "0", &image],
        &["tune", "-S", "2", &image],
        &["tune", "-m", "-M", FSID, &image],
        &["tune", "-M", "00000000-0000-0000-0000-000000000000", &image],
        &["tune", "-M", "no-uuid", &image],
    ] {
        failure(words);
    }
    assert!(std::fs::read(&image).unwrap() == before, "a refused change wrote");
}
