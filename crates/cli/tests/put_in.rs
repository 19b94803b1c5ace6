//! `cp` into a volume as a user runs it: every kind of file, there and back, from the host and from volumes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use support::{Volume, buttress, failure, inside, json, stdout};

/// Files of every kind that an ordinary user can make.
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
    // Where the file system has none, there is nothing to keep.
    let _ = rustix::fs::setxattr(
        top.join("a/small"),
        "user.name",
        b"value\0",
        rustix::fs::XattrFlags::empty(),
    );
    fs::set_permissions(top.join("a/small"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(top.join("a/b"), fs::Permissions::from_mode(0o711)).unwrap();
}

/// `diff` of a directory of the volume with one of the host must find nothing.
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

    // Once more over it: what is in the way is made anew.
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
        1
    );
}

#[test]
fn what_cannot_be_copied() {
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
