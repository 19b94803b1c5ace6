//! Commands that make and change volumes: mkfs, subvolume, property, label, and overlays over all of them.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{failure, json, stdout};

/// A folder, and the path of an image in it that is not there yet.
fn fresh() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("new.img").to_str().unwrap().to_owned();
    (folder, image)
}

fn made() -> (tempfile::TempDir, String) {
    let (folder, image) = fresh();
    stdout(&["mkfs", "-q", "-b", "256M", "-L", "new", &image]);
    (folder, image)
}

fn check(image: &str) {
    let text = stdout(&["check", image]);
    assert!(text.contains("no error found"), "{text}");
}

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
    // What is there is not overwritten unasked.
    let (code, error) = failure(&["mkfs", &image]);
    assert!(
        code == 1 && error.contains("seems to hold btrfs") && error.contains("-f"),
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
        (&["mkfs", "-b", "256M", "-n", "12K"], "node size of 12288"),
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
    let output = support::buttress(&["mkfs", &image]);
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
        (at("link"), "is a symbolic link that leads nowhere"),
        (at("pipe"), "is a named pipe"),
        (at("socket"), "is a socket"),
        ("/dev/null".to_owned(), "is a character device"),
        (at("file/below"), "Not a directory"),
        (at("missing/new.img"), "No such file or directory"),
        (at("file"), ""),
    ] {
        // What was made before the refusal goes again, in both orders.
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
    // A file system that takes no such size: it goes, too.
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
fn the_same_epoch_gives_the_same_bytes() {
    let make = |image: &str| {
        let words = ["mkfs", "-q", "-b", "128M", image];
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        let output = command
            .args(words)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .output()
            .unwrap();
        assert!(output.status.success());
        std::fs::read(image).unwrap()
    };
    let (_folder, image) = fresh();
    assert!(make(&image) == make(&format!("{image}.2")));
}

/// Times of everything that a volume holds, in seconds, by what they are.
/// A directory goes into the smallest image that holds it, and again into the same bytes, whatever the workers; also under
/// the name of mkfs.btrfs.
#[test]
fn mkfs_builds_a_directory_into_the_same_image_each_time() {
    let (folder, image) = fresh();
    let source = folder.path().join("source");
    make_source(&source);
    std::fs::create_dir(source.join("home")).unwrap();
    std::fs::write(source.join("home/large"), vec![b'x'; 3_000_000]).unwrap();
    std::fs::hard_link(source.join("home/large"), source.join("linked")).unwrap();
    let link = folder.path().join("mkfs.btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &link).unwrap();
    let make = |program: &Path, words: &[&str], image: &str| {
        let output = Command::new(program)
            .args(words)
            .args(["-q", "-U", "12345678-1234-1234-1234-123456789abc", "-r"])
            .arg(&source)
            .args([
                "--subvol",
                "ro:home",
                "-u",
                "new:default",
                "--compress",
                "zstd:5",
                image,
            ])
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("DETERMINISTIC_SEED", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::read(image).unwrap()
    };
    let program = Path::new(env!("CARGO_BIN_EXE_buttress"));
    let one = make(program, &["mkfs", "--workers", "1"], &image);
    let again = folder.path().join("again.img");
    let two = make(&link, &["--workers", "5"], again.to_str().unwrap());
    assert!(one == two);
    assert!(one.len() < 16 << 20, "{} bytes", one.len());
    check(&image);
    let list = stdout(&["subvolume", "list", &image]);
    assert!(list.contains("path home") && list.contains("path new"), "{list}");
    assert_eq!(
        stdout(&["cat", &format!("{image}:/home/large")]),
        "x".repeat(3_000_000)
    );
    // A seed without the uuid that all others follow from.
    let output = Command::new(program)
        .args(["mkfs", "-f", &image])
        .env("DETERMINISTIC_SEED", "1")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no uuid is given"));
    // A source that is not there leaves no image behind.
    let none = folder.path().join("none.img");
    let (code, error) = failure(&["mkfs", "-r", "/nowhere/at/all", none.to_str().unwrap()]);
    assert!(code == 1 && error.contains("/nowhere/at/all"), "{error}");
    assert!(!none.exists());
    let (_, error) = failure(&["mkfs", "--compress", "zstd", none.to_str().unwrap()]);
    assert!(
        error.contains("needs something to put into the volume"),
        "{error}"
    );
}

fn times(image: &str) -> Vec<(String, i64)> {
    let dump = stdout(&["inspect-internal", "dump-tree", image]);
    let words: Vec<&str> = dump.split_whitespace().collect();
    let is_time = |word: &str| ["atime", "mtime", "ctime", "otime", "stime", "rtime"].contains(&word);
    let pairs = words.windows(2).filter(|pair| is_time(pair[0]));
    pairs
        .filter_map(|pair| Some((pair[0].to_owned(), pair[1].split('.').next()?.parse().ok()?)))
        .collect()
}

/// The time of everything, and one before it.
const EPOCH: i64 = 1_700_000_000;
const EARLIER: u64 = 1_600_000_000;

/// Files with times before and after the epoch.
fn make_source(source: &Path) {
    std::fs::create_dir_all(source.join("directory")).unwrap();
    let moment = |seconds: u64| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    for number in 0..40_u64 {
        let path = source.join(format!("directory/file_{number}"));
        std::fs::write(&path, vec![b'x'; usize::try_from(number * 5000).unwrap()]).unwrap();
        let modified = if number % 2 == 0 { EARLIER } else { 2_000_000_000 };
        let times = std::fs::FileTimes::new()
            .set_accessed(moment(modified + number))
            .set_modified(moment(modified));
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(times)
            .unwrap();
    }
    std::os::unix::fs::symlink("directory", source.join("link")).unwrap();
}

#[test]
fn no_time_is_later_than_the_epoch_and_the_same_commands_give_the_same_bytes() {
    let (folder, image) = fresh();
    let source = folder.path().join("source");
    make_source(&source);
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(words)
            .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {errors}");
    };
    let uuids = [
        "5ae6ac0e-6d4c-4b5d-9b1a-6a5a0a6f8a01",
        "5ae6ac0e-6d4c-4b5d-9b1a-6a5a0a6f8a02",
    ];
    let build = |image: &str| {
        let at = |path: &str| format!("{image}:{path}");
        run(&[
            "mkfs",
            "-q",
            "-b",
            "256M",
            "-U",
            uuids[0],
            "--device-uuid",
            uuids[1],
            image,
        ]);
        run(&["cp", "-a", source.to_str().unwrap(), &at("/copy")]);
        run(&[
            "cp",
            "-r",
            "--compress",
            "zstd",
            source.to_str().unwrap(),
            &at("/plain"),
        ]);
        run(&["subvolume", "create", &at("/subvolume")]);
        run(&["subvolume", "snapshot", "-r", &at("/"), &at("/snapshot")]);
        let lines = [
            "touch /now",
            "touch -d 2040-01-01T00:00:00Z /later",
            "touch -d @1600000000 /earlier",
            "put -a source /put",
            "cp -a /copy /again",
            "mv /now /moved",
            "setfattr -n user.a -v b /moved",
            "snapshot / /second",
            "subvolume delete /subvolume",
            "pwrite -q 0 1M /moved",
        ];
        let mut words = vec!["shell", "-w", image];
        for line in lines {
            words.extend(["-c", line]);
        }
        let status = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(words)
            .current_dir(folder.path())
            .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
            .status();
        assert!(status.unwrap().success());
        std::fs::read(image).unwrap()
    };
    let first = build(&image);
    assert!(first == build(&format!("{image}.2")), "the bytes differ");
    let times = times(&image);
    assert!(times.len() > 400, "{}", times.len());
    for (what, seconds) in &times {
        assert!(*seconds <= EPOCH, "{what} {seconds}");
    }
    let earlier = |wanted: &str| {
        times
            .iter()
            .any(|(what, at)| what == wanted && at.unsigned_abs() == EARLIER)
    };
    assert!(earlier("mtime") && earlier("atime"), "earlier times stay");
    check(&image);
}

#[test]
fn subvolumes_are_made_snapshotted_made_default_and_deleted() {
    let (_folder, image) = made();
    let at = |path: &str| format!("{image}:{path}");
    assert_eq!(
        stdout(&["subvolume", "create", &at("/a")]),
        format!("Create subvolume '{}'\n", at("/a"))
    );
    stdout(&["subvolume", "create", "-p", &at("/deep/er/b")]);
    let text = stdout(&["subvolume", "snapshot", "-r", &at("/a"), &at("/deep")]);
    assert!(text.starts_with("Create readonly snapshot of "), "{text}");
    let list = stdout(&["subvolume", "list", &image]);
    assert!(
        list.contains("path a\n") && list.contains("path deep/er/b\n") && list.contains("path deep/a\n"),
        "{list}"
    );
    stdout(&["subvolume", "set-default", &at("/a")]);
    assert!(stdout(&["subvolume", "get-default", &image]).contains("path a"));
    assert!(failure(&["subvolume", "delete", &at("/a")]).1.contains("default"));
    stdout(&["subvolume", "set-default", "5", &image]);
    stdout(&["subvolume", "delete", &at("/a"), &at("/deep/a")]);
    assert_eq!(stdout(&["subvolume", "list", &image]).lines().count(), 1);
    assert!(
        failure(&["subvolume", "delete", &at("/deep")])
            .1
            .contains("is not a subvolume")
    );
    assert!(
        failure(&["subvolume", "create", &at("/deep")])
            .1
            .contains("exists")
    );
    stdout(&["filesystem", "sync", &image]);
    check(&image);
}

#[test]
fn properties_and_the_label_are_set_and_shown() {
    let (_folder, image) = made();
    let at = |path: &str| format!("{image}:{path}");
    stdout(&["subvolume", "create", &at("/a")]);
    assert_eq!(stdout(&["property", "get", &at("/a")]), "ro=false\n");
    stdout(&["property", "set", "-t", "subvol", &at("/a"), "ro", "true"]);
    assert_eq!(stdout(&["property", "get", &at("/a"), "ro"]), "ro=true\n");
    stdout(&["property", "set", &at("/"), "compression", "zstd"]);
    assert_eq!(
        stdout(&["property", "get", "-t", "inode", &at("/")]),
        "compression=zstd\n"
    );
    stdout(&["property", "set", &at("/"), "compression", ""]);
    assert_eq!(stdout(&["property", "get", "-t", "inode", &at("/")]), "");
    stdout(&["filesystem", "label", &image, "other"]);
    assert_eq!(stdout(&["property", "get", &image, "label"]), "label=other\n");
    assert!(
        failure(&["property", "set", &at("/a"), "ro", "maybe"])
            .1
            .contains("true or false")
    );
    assert!(
        failure(&["property", "set", "-t", "inode", &at("/a"), "ro", "true"])
            .1
            .contains("not one of that type")
    );
    check(&image);
}

#[test]
fn an_overlay_takes_changes_until_they_are_committed_or_thrown_away() {
    let (folder, image) = made();
    let before = std::fs::read(&image).unwrap();
    let side = folder.path().join("side").to_str().unwrap().to_owned();
    let with = |words: &[&str]| stdout(&[words, &["--overlay", &side]].concat());
    with(&["filesystem", "label", &image, "tried"]);
    with(&["subvolume", "create", &format!("{image}:/a")]);
    assert!(
        std::fs::read(&image).unwrap() == before,
        "the image stays as it is"
    );
    assert_eq!(stdout(&["filesystem", "label", &image]), "new\n");
    assert_eq!(with(&["filesystem", "label", &image]), "tried\n");
    assert!(with(&["check", &image]).contains("no error found"));
    // Thrown away, and begun anew.
    std::fs::remove_file(&side).unwrap();
    with(&["filesystem", "label", &image, "kept"]);
    stdout(&["overlay", "commit", &side, &image]);
    assert_eq!(stdout(&["filesystem", "label", &image]), "kept\n");
    assert!(!PathBuf::from(&side).exists());
    assert!(
        failure(&["filesystem", "label", &image, "--overlay", &side])
            .1
            .contains("overlay"),
        "there is none any more"
    );
    check(&image);
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
fn mkfs_without_root_gives_the_root_directory_to_the_caller() {
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

#[test]
fn a_nested_subvolume_that_keeps_its_parent_is_named() {
    let (_folder, image) = made();
    for path in ["a", "a/d", "a/d/inner"] {
        let target = format!("{image}:/{path}");
        let command = if path == "a/d" { "shell" } else { "subvolume" };
        if command == "shell" {
            stdout(&["shell", "-w", &image, "-c", "mkdir /a/d"]);
        } else {
            stdout(&["subvolume", "create", &target]);
        }
    }
    let (code, error) = failure(&["subvolume", "delete", &format!("{image}:/a")]);
    assert_eq!(code, 1);
    assert!(error.contains("holds subvolume 257, \"inner\""), "{error}");
    assert!(
        error.contains(&format!("help: first delete {image}:/a/d/inner")),
        "{error}"
    );
    assert_eq!(error.matches("257").count(), 1, "{error}");
}

#[test]
fn a_full_target_is_not_said_to_fail_at_reading() {
    let (folder, image) = fresh();
    stdout(&["mkfs", "-q", "--size", "120M", &image]);
    let source = folder.path().join("source");
    let noise: Vec<u8> = (0_u64..150 << 17)
        .flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    std::fs::write(&source, noise).unwrap();
    let (code, error) = failure(&["cp", source.to_str().unwrap(), &format!("{image}:/")]);
    assert_eq!(code, 1);
    assert!(
        error.contains("no space") && !error.contains("reading it"),
        "{error}"
    );
    assert_eq!(error.to_lowercase().matches("no space").count(), 1, "{error}");
}

#[test]
fn commands_of_btrfs_progs_that_are_not_here_say_so() {
    for (words, name, instead) in [
        (&["restore", "x.img", "/tmp"][..], "restore", "buttress cp -r"),
        (
            &["balance", "start", "-dusage=5", "/mnt"],
            "balance start",
            "btrfs balance start",
        ),
        (
            &["filesystem", "resize", "max", "/mnt"],
            "filesystem resize",
            "btrfs filesystem resize",
        ),
        (&["quota", "enable", "/mnt"], "quota enable", "btrfs quota enable"),
    ] {
        let (code, error) = failure(words);
        assert_eq!(code, 2, "{error}");
        assert!(
            error.starts_with(&format!("error: {name}: not in this version of Buttress\nhelp: ")),
            "{error}"
        );
        assert!(error.contains(instead), "{error}");
        assert!(!error.contains("tip") && !error.contains("similar"), "{error}");
    }
}

#[test]
fn version_and_help_are_commands_too() {
    let version = stdout(&["version"]);
    assert_eq!(version, stdout(&["--version"]));
    assert_eq!(
        stdout(&["mkfs", "-V"]).split(' ').next_back(),
        version.split(' ').next_back()
    );
    assert_eq!(stdout(&["help"]), stdout(&["--help"]));
    assert_eq!(
        stdout(&["help", "sub", "list"]),
        stdout(&["subvolume", "list", "--help"])
    );
    assert_eq!(failure(&["help", "nonsense"]).0, 2);
}
