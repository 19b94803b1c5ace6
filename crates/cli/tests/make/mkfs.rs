//! Tests of `mkfs`: results, refusals, and the owner of the root directory.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{buttress, failure, json, stdout};
use super::{check, fresh};

#[test]
fn mkfs_makes_a_missing_image_and_says_what_it_made() {
    let (_folder, image) = fresh();
    let text = stdout(&[
        "mkfs", "--size", "300M", "-L", "new", "-m", "single", "--csum", "xxhash", &image,
    ]);
    for line in [
        "Label:              new",
        "Filesystem size:    300.00MiB",
        "  Data:             single            8.00MiB",
        "  System:           single            4.00MiB",
        "Features:           extref, skinny-metadata, no-holes, free-space-tree, block-group-tree",
        "Checksum:           xxhash64",
        &format!("    1   300.00MiB  {image}"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} in {text}");
    }
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 300 << 20);
    check(&image);
    let show = stdout(&["filesystem", "show", &image]);
    assert!(show.starts_with("Label: 'new' "), "{show}");
    // Existing content is overwritten only with `-f`.
    let (code, error) = failure(&["mkfs", &image]);
    assert!(
        code == 1 && error.contains("seems to contain btrfs") && error.contains("-f"),
        "{error}"
    );
    stdout(&["mkfs", "-f", "-q", "-L", "again", &image]);
    assert_eq!(stdout(&["filesystem", "label", &image]), "again\n");
}

#[test]
fn mkfs_refuses_and_leaves_nothing_behind() {
    let (_folder, image) = fresh();
    for (words, what) in [
        (&["mkfs", "-b", "64M"][..], "at least 105906176"),
        (&["mkfs", "--overlay", "side"], "does not exist"),
        (
            &["mkfs", "-b", "256M", "-d", "raid1"],
            "RAID1 needs at least 2 devices",
        ),
        (&["mkfs", "-b", "256M", "-O", "nonsense"], "unknown feature"),
        (&["mkfs", "-b", "256M", "-O", "zoned"], "not supported yet"),
        (&["mkfs", "-b", "256M", "-n", "12K"], "node size (found 12288"),
    ] {
        let words: Vec<&str> = words.iter().copied().chain([image.as_str()]).collect();
        let (code, error) = failure(&words);
        assert!(code == 1 && error.contains(what), "{words:?}: {error}");
        assert!(!PathBuf::from(&image).exists(), "{words:?}");
    }
    assert_eq!(failure(&["mkfs", "-d", "raid7", &image]).0, 2);
    let list = stdout(&["mkfs", "-O", "list-all"]);
    assert!(list.contains("block-group-tree    - default"), "{list}");
}

#[test]
fn mkfs_makes_an_image_of_a_usual_size_where_none_is_given() {
    let (_folder, image) = fresh();
    let output = buttress(&["mkfs", &image]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && errors.contains("sparse file of 16.00GiB"),
        "{errors}"
    );
    let metadata = std::fs::metadata(&image).unwrap();
    assert_eq!(metadata.len(), 16 << 30);
    assert!(metadata.blocks() * 512 < 64 << 20, "{} blocks", metadata.blocks());
    check(&image);
}

#[test]
fn mkfs_refuses_what_can_hold_no_volume() {
    let (folder, image) = fresh();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("directory")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
    std::fs::write(at("file"), "content").unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let _listening = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for (path, what) in [
        (at("directory"), "is a directory"),
        (at("link"), "is a symbolic link to a missing file"),
        (at("pipe"), "is a named pipe"),
        (at("socket"), "is a socket"),
        ("/dev/null".to_owned(), "is a character device"),
        (at("file/below"), "Not a directory"),
        (at("missing/new.img"), "No such file or directory"),
        (at("file"), ""),
    ] {
        // The refusal removes the image that was already made, in both orders.
        for words in [[&image, &path], [&path, &image]] {
            let (code, error) = failure(&["mkfs", "-b", "256M", words[0], words[1]]);
            assert!(
                code == 1 && error.contains(what) && error.contains(&path),
                "{path}: {error}"
            );
            assert!(!PathBuf::from(&image).exists(), "{path}");
        }
    }
    assert!(!PathBuf::from(at("nowhere")).exists());
    assert_eq!(std::fs::read(at("file")).unwrap(), b"content");
    // No file system accepts this image size; the file is removed, too.
    let (code, error) = failure(&["mkfs", "-b", "15E", &image]);
    assert!(code == 1 && error.contains("--size"), "{error}");
    assert!(!PathBuf::from(&image).exists());
}

#[test]
fn mkfs_on_several_devices() {
    let (_folder, image) = fresh();
    let second = format!("{image}.second");
    let third = format!("{image}.third");
    stdout(&[
        "mkfs", "-q", "-b", "300M", "-d", "raid5", "-m", "raid1c3", &image, &second, &third,
    ]);
    let text = stdout(&[
        "--device",
        &second,
        "--device",
        &third,
        "filesystem",
        "df",
        &image,
    ]);
    assert!(
        text.contains("Data, RAID5") && text.contains("Metadata, RAID1C3"),
        "{text}"
    );
    let text = stdout(&["check", "--device", &second, "--device", &third, &image]);
    assert!(text.contains("no error found"), "{text}");
}

#[test]
fn owners_hold_without_a_source() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (option, owner, mode)) in [
        ("--root-owner=1000:1001", (1000, 1001), None),
        ("--root-owner=7:8:1777", (7, 8), Some("41777")),
        ("--force-uid=5", (5, 0), None),
        ("--force-gid=6", (0, 6), None),
    ]
    .into_iter()
    .enumerate()
    {
        let image = folder.path().join(format!("{number}.img"));
        let image = image.to_str().unwrap();
        stdout(&["mkfs", "-q", "-b", "256M", option, image]);
        let files = json(&["stat", &format!("{image}:/")], "stat");
        let root = &files[0];
        let found = (root["uid"].as_u64(), root["gid"].as_u64());
        assert_eq!(found, (Some(owner.0), Some(owner.1)), "{option}: {root}");
        if let Some(mode) = mode {
            assert_eq!(root["mode"], mode);
        }
        assert_eq!(std::fs::metadata(image).unwrap().len(), 256 << 20, "{option}");
    }
}

/// Runs the command as a user who is not root, in a folder of that user.
fn as_user(folder: &Path, words: &[&str]) -> std::process::Output {
    use std::os::unix::process::CommandExt as _;
    /// The id of the user `nobody`.
    const USER: u32 = 65_534;
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.args(words).current_dir(folder);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder, Some(USER), Some(USER)).unwrap();
        command.uid(USER).gid(USER);
    }
    command.output().unwrap()
}

#[test]
fn mkfs_without_root_makes_the_caller_owner_of_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let owner = |options: &[&str]| {
        let words = [&["mkfs", "-q", "-f", "--size", "200M"], options, &["own.img"]].concat();
        let made = as_user(folder.path(), &words);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let image = folder.path().join("own.img");
        let root = json(&["stat", &format!("{}:/", image.display())], "stat");
        let metadata = std::fs::metadata(&image).unwrap();
        check(image.to_str().unwrap());
        std::fs::remove_file(&image).unwrap();
        (root, metadata.uid(), metadata.gid())
    };
    let (root, uid, gid) = owner(&[]);
    assert_ne!(uid, 0);
    assert_eq!(
        (&root[0]["uid"], &root[0]["gid"]),
        (&uid.into(), &gid.into()),
        "{root}"
    );
    let (root, ..) = owner(&["--root-owner", "7:8:1777"]);
    assert_eq!(
        (&root[0]["uid"], &root[0]["gid"]),
        (&7.into(), &8.into()),
        "{root}"
    );
    assert!(root[0]["mode"].to_string().contains("1777"), "{root}");
}
