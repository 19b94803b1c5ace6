//! Tests of `cp` into a volume: every kind of file, in both directions, from the host and from
//! volumes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use buttress_oracle::needs::Missing;
use buttress_oracle::skip::skip;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use support::{Volume, buttress, failure, inside, json, stdout};

/// Creates files of every kind that an ordinary user can create.
fn plant(top: &Path) {
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/small"), b"inline").unwrap();
    fs::write(top.join("a/empty"), b"").unwrap();
    fs::write(top.join("a/large"), vec![b'x'; 3 << 20]).unwrap();
    fs::hard_link(top.join("a/large"), top.join("a/b/other-name")).unwrap();
    symlink("../large", top.join("a/b/link")).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.write_at(b"begin", 0).unwrap();
    sparse.write_at(b"middle", 10 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        top.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    let set = rustix::fs::setxattr(
        top.join("a/small"),
        "user.name",
        b"value\0",
        rustix::fs::XattrFlags::empty(),
    );
    if set == Err(rustix::io::Errno::OPNOTSUPP) {
        skip(&Missing::new(
            "user-xattrs",
            "the file system of temporary files has no user attributes",
        ));
    } else {
        set.unwrap();
    }
    fs::set_permissions(top.join("a/small"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(top.join("a/b"), fs::Permissions::from_mode(0o711)).unwrap();
}

/// Asserts that `diff` finds no difference between a directory of the volume and one of the host.
fn same(volume: &Volume, path: &str, host: &Path, ignored: &str) {
    let inside = volume.inside(path);
    let mut words = vec!["diff", "--holes", &inside, host.to_str().unwrap()];
    if !ignored.is_empty() {
        words.extend(["--ignore", ignored]);
    }
    let output = buttress(&words);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
}

#[test]
fn a_directory_goes_in_and_comes_out_the_same() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    plant(&source);
    stdout(&["cp", "-a", source.to_str().unwrap(), &volume.inside("/copy")]);
    volume.check();
    same(&volume, "/copy", &source, "");

    let back = folder.path().join("back");
    stdout(&["cp", "-a", &volume.inside("/copy"), back.to_str().unwrap()]);
    same(&volume, "/copy", &back, "");
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&back.join("a/large")), inode(&back.join("a/b/other-name")));

    // A second copy over the first one replaces existing files.
    fs::write(source.join("a/large"), b"changed").unwrap();
    stdout(&[
        "cp",
        "-a",
        "-T",
        source.to_str().unwrap(),
        &volume.inside("/copy"),
    ]);
    volume.check();
    same(&volume, "/copy", &source, "");
}

#[test]
fn without_a_the_caller_owns_what_is_made() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("file");
    fs::write(&source, b"x").unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o4777)).unwrap();
    let made = json(&["cp", source.to_str().unwrap(), &volume.inside("/")], "cp");
    assert_eq!(made[0]["files"], 1);
    assert_eq!(made[0]["bytes"], 1);
    let text = volume.stdout("stat", &[], "/file");
    let caller = rustix::process::geteuid().as_raw();
    assert!(text.contains(&format!("Uid: {caller:>5}")), "{text}");
    assert!(!text.contains("rws"), "{text}");
}

#[test]
fn between_volumes_and_within_one() {
    let volume = Volume::copy();
    stdout(&[
        "cp",
        "-a",
        "--one-file-system",
        &inside("/"),
        &volume.inside("/other"),
    ]);
    volume.check();
    let output = buttress(&[
        "diff",
        "--one-file-system",
        &inside("/"),
        &volume.inside("/other"),
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");

    stdout(&["cp", "-a", &volume.inside("/other"), &volume.inside("/again")]);
    volume.check();
    let output = buttress(&["diff", &volume.inside("/other"), &volume.inside("/again")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
}

#[test]
fn content_is_compressed_on_request() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("zeros-and-ones");
    fs::write(&source, b"01".repeat(1 << 20)).unwrap();
    let source = source.to_str().unwrap();
    stdout(&["cp", "--compress", "zstd:9", source, &volume.inside("/packed")]);
    volume.check();
    assert!(volume.cat("/packed") == fs::read(source).unwrap());
    let dump = stdout(&["inspect-internal", "dump-tree", "-t", "fs", volume.path()]);
    assert!(dump.contains("(zstd)"), "no extent is compressed");
    assert_eq!(
        failure(&["cp", "--compress", "gzip", source, &volume.inside("/x")]).0,
        2
    );
    assert_eq!(
        failure(&["cp", "--compress", "zstd", &volume.inside("/packed"), "/nowhere"]).0,
        2
    );
}

#[test]
fn impossible_copies_are_refused() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().to_str().unwrap();
    let before = fs::read(volume.path()).unwrap();
    for (words, expected) in [
        (vec!["cp", host, &volume.inside("/d")], "give -r"),
        (vec!["cp", "/nonsense", &volume.inside("/d")], "/nonsense"),
        (vec!["cp", "-r", host, &volume.inside("/no/such/place")], "no"),
    ] {
        let (code, message) = failure(&words);
        assert_eq!(code, 1, "{words:?}");
        assert!(message.contains(expected), "{words:?}: {message}");
    }
    assert!(
        fs::read(volume.path()).unwrap() == before,
        "the volume was changed"
    );
}

#[test]
fn changes_can_be_kept_beside_the_volume() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let overlay = folder.path().join("side");
    let overlay = overlay.to_str().unwrap();
    let source = folder.path().join("new");
    fs::write(&source, b"tried").unwrap();
    let before = fs::read(volume.path()).unwrap();
    stdout(&[
        "cp",
        "--overlay",
        overlay,
        source.to_str().unwrap(),
        &volume.inside("/new"),
    ]);
    assert!(
        fs::read(volume.path()).unwrap() == before,
        "the volume was changed"
    );
    assert_eq!(
        stdout(&["cat", "--overlay", overlay, &volume.inside("/new")]),
        "tried"
    );
    assert_eq!(failure(&["cat", &volume.inside("/new")]).0, 1);
    stdout(&["check", "--overlay", overlay, volume.path()]);
}

#[test]
fn a_copy_that_fills_the_volume_says_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..60 {
        let content = vec![u8::try_from(number).unwrap(); 1 << 20];
        fs::write(source.join(format!("{number:02}")), content).unwrap();
    }
    let image = folder.path().join("small.img");
    let image = image.to_str().unwrap();
    stdout(&["mkfs", "-M", "--size", "40M", image]);
    let inside = format!("{image}:/");
    let (code, message) = failure(&["cp", "-r", source.to_str().unwrap(), &inside]);
    assert_eq!(code, 1);
    let errors: Vec<&str> = message
        .lines()
        .filter(|line| line.starts_with("error:"))
        .collect();
    assert_eq!(errors.len(), 1, "one line says that it is full: {message}");
    let names = stdout(&["ls", &format!("{image}:/source")]);
    let count = names.lines().count();
    assert!((1..60).contains(&count), "{names}");
    assert!(
        message.contains(&format!("committed: {count} files")),
        "{message}"
    );
    assert!(message.contains("the volume is full"), "{message}");
    for (number, name) in names.lines().enumerate() {
        assert_eq!(name, format!("{number:02}"));
        let output = buttress(&["cat", &format!("{image}:/source/{name}")]);
        let expected = vec![u8::try_from(number).unwrap(); 1 << 20];
        assert!(output.stdout == expected, "{name} is not whole");
    }
    stdout(&["check", "--check-data-csum", image]);
}

#[test]
fn a_copy_that_misses_a_source_says_what_was_committed() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    fs::write(&good, b"x").unwrap();
    let missing = folder.path().join("missing");
    let (good, missing) = (good.to_str().unwrap(), missing.to_str().unwrap());
    let (code, message) = failure(&["cp", missing, good, &volume.inside("/")]);
    assert_eq!(code, 1);
    assert!(message.contains("committed: 1 files"), "{message}");
    assert_eq!(volume.cat("/good"), b"x");
}

#[test]
fn the_image_is_not_copied_into_itself() {
    let volume = Volume::copy();
    let folder = Path::new(volume.path()).parent().unwrap();
    fs::write(folder.join("other"), b"x").unwrap();
    fs::hard_link(volume.path(), folder.join("hard")).unwrap();
    let before = fs::read(volume.path()).unwrap();
    for words in [
        vec!["cp", volume.path(), &volume.inside("/")],
        vec!["cp", folder.join("hard").to_str().unwrap(), &volume.inside("/")],
        vec![
            "shell",
            "-w",
            volume.path(),
            "-c",
            &format!("put {} /x", volume.path()),
        ],
        vec![
            "shell",
            "-w",
            volume.path(),
            "-c",
            &format!("pwrite -i {} 0 1M /x", volume.path()),
        ],
    ] {
        let (code, message) = failure(&words);
        assert_eq!(code, 1, "{words:?}");
        assert!(
            message.contains("cannot be copied into itself"),
            "{words:?}: {message}"
        );
        assert!(fs::read(volume.path()).unwrap().len() == before.len());
    }
    // If a file of the directory cannot be copied, the rest of the directory is copied.
    let (code, message) = failure(&["cp", "-r", folder.to_str().unwrap(), &volume.inside("/all")]);
    assert_eq!(code, 1);
    assert!(message.contains("cannot be copied into itself"), "{message}");
    assert_eq!(stdout(&["ls", &volume.inside("/all")]), "other\n");
    volume.check();
}

#[test]
fn other_names_of_the_image_are_the_same_volume() {
    let volume = Volume::copy();
    let folder = Path::new(volume.path()).parent().unwrap();
    symlink("volume.img", folder.join("link")).unwrap();
    fs::hard_link(volume.path(), folder.join("hard")).unwrap();
    fs::write(folder.join("file"), vec![b'x'; 100_000]).unwrap();
    stdout(&["cp", folder.join("file").to_str().unwrap(), &volume.inside("/a")]);
    for name in ["link", "hard"] {
        let other = folder.join(name);
        let other = other.to_str().unwrap();
        let (code, message) = failure(&["cp", &format!("{other}:/a"), &volume.inside("/a")]);
        assert_eq!(code, 1);
        assert!(message.contains("are the same file"), "{message}");
        let (_, message) = failure(&["cp", "-r", &format!("{other}:/home"), &volume.inside("/home/new")]);
        assert!(message.contains("into itself"), "{message}");
        stdout(&["cp", &format!("{other}:/a"), &volume.inside("/b")]);
        stdout(&[
            "subvolume",
            "snapshot",
            &format!("{other}:/home"),
            &volume.inside(&format!("/{name}")),
        ]);
    }
    assert_eq!(volume.cat("/a"), vec![b'x'; 100_000]);
    assert_eq!(volume.cat("/b"), vec![b'x'; 100_000]);
    volume.check();
}

#[test]
fn shared_ranges_of_one_file_must_not_overlap() {
    let volume = Volume::copy();
    let shell = |line: &str| failure(&["shell", "-w", volume.path(), "-c", line]);
    stdout(&[
        "shell",
        "-w",
        volume.path(),
        "-c",
        "pwrite -q -S 1 0 64K /a",
        "-c",
        "ln /a /h",
    ]);
    for line in [
        "reflink /a /a",
        "reflink /a /h",
        "reflink /a 0 4K 8K /a",
        "dedupe /a /a",
        "copy_range /a /h",
    ] {
        let (code, message) = shell(line);
        assert_eq!(code, 1, "{line}");
        assert!(message.contains("are the same file"), "{line}: {message}");
    }
    stdout(&["shell", "-w", volume.path(), "-c", "reflink -q /a 0 64K 64K /a"]);
    // If `reflink` fails, the file that was created for the copy is removed.
    assert_eq!(shell("reflink /a 0 0 1G /new").0, 1);
    assert_eq!(shell("reflink /a 1 0 4K /new").0, 1);
    assert_eq!(failure(&["stat", &volume.inside("/new")]).0, 1);
    assert_eq!(volume.cat("/a"), vec![1; 128 << 10]);
    volume.check();
}

#[test]
fn a_name_that_cannot_be_linked_keeps_its_file() {
    let volume = Volume::copy();
    let make = [
        "pwrite -q 0 4K /a",
        "subvolume create /sub",
        "pwrite -q 0 4K /sub/b",
        "mkdir /d",
    ];
    let words: Vec<&str> = make.iter().flat_map(|line| ["-c", line]).collect();
    stdout(&[&["shell", "-w", volume.path()], &words[..]].concat());
    for line in ["ln -f /sub/b /a", "ln -f /d /a", "ln -f /missing /a"] {
        assert_eq!(
            failure(&["shell", "-w", volume.path(), "-c", line]).0,
            1,
            "{line}"
        );
        assert_eq!(volume.cat("/a").len(), 4096, "{line}");
    }
    stdout(&["shell", "-w", volume.path(), "-c", "ln -sf sub /a"]);
    assert!(stdout(&["ls", "-l", volume.path()]).contains("a -> sub"));
    assert!(!stdout(&["ls", "-a", volume.path()]).contains(".ln-"));
    volume.check();
}
