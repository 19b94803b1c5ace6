//! Tests of `buttress shell` on a copy of the tour's volume, which is checked after every session.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use support::{Volume, failure, image, stdout};

/// Returns the standard output of a session of these lines, which must all succeed.
fn shell(volume: &Volume, lines: &[&str]) -> String {
    let mut words = vec!["shell", "-w", volume.path()];
    for line in lines {
        words.extend(["-c", line]);
    }
    let printed = stdout(&words);
    volume.check();
    printed
}

/// Runs a session with lines from standard input.
fn script(words: &[&str], lines: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(words)
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn words_that_look_are_the_commands() {
    let path = image().to_str().unwrap();
    let cases: [(&str, &[&str]); 4] = [
        ("ls", &["ls", path]),
        ("ls -la /", &["ls", "-la", path]),
        ("subvolume list", &["subvolume", "list", path]),
        ("df", &["filesystem", "df", path]),
    ];
    for (line, command) in cases {
        assert_eq!(stdout(&["shell", path, "-c", line]), stdout(command), "{line}");
    }
}

#[test]
fn names_are_made_moved_and_removed() {
    let volume = Volume::copy();
    shell(
        &volume,
        &[
            "mkdir -p /new/a/b",
            "cd /new",
            "mkdir -m 700 'a dir'",
            "touch a/file",
            "ln a/file second",
            "ln -s a/file link",
            "mknod pipe p",
            "mknod null c 1 3",
        ],
    );
    let names = volume.stdout("ls", &["-R"], "/new");
    for name in ["a dir", "second", "link", "pipe", "null", "file"] {
        assert!(names.contains(name), "{name}: {names}");
    }
    let long = volume.stdout("ls", &["-l"], "/new");
    assert!(long.contains("drwx------"), "{long}");
    assert!(long.contains("link -> a/file"), "{long}");
    assert!(long.contains("1,   3") || long.contains("1, 3"), "{long}");

    let printed = shell(
        &volume,
        &[
            "cd /new/a",
            "mv file /new/moved",
            "rmdir b",
            "cd ..",
            "rm second",
            "rm -f second",
            "mv moved link a",
            "pwd",
            "ls a",
            "rm -r /new",
            "ls /",
        ],
    );
    let (in_new, in_root) = printed.split_once("moved\n").unwrap();
    assert_eq!(in_new, "/new\nlink\n");
    assert!(!in_root.lines().any(|line| line == "new"), "{in_root}");
}

#[test]
fn attributes_are_changed() {
    let volume = Volume::copy();
    let printed = shell(
        &volume,
        &[
            "touch -d @1700000000.5 /f",
            "chmod u=rw,go= /f",
            "chmod a+x /f",
            "chown 1000:1001 /f",
            "setfattr -n user.text -v hello /f",
            "setfattr -n user.bytes -v 0x00ff /f",
            "setfattr -n user.gone -v 1 /f",
            "setfattr -x user.gone /f",
            "getfattr -d /f",
            "chattr +d /f",
            "lsattr /f",
            "stat /f",
        ],
    );
    assert!(printed.contains("# file: /f\n"), "{printed}");
    assert!(printed.contains("user.text=\"hello\"\n"), "{printed}");
    assert!(printed.contains("user.bytes=0sAP8=\n"), "{printed}");
    assert!(!printed.contains("user.gone"), "{printed}");
    assert!(printed.contains("------d--------------- /f\n"), "{printed}");
    assert!(
        printed.contains("(0711/-rwx--x--x)  Uid:  1000   Gid:  1001"),
        "{printed}"
    );
    assert!(
        printed.contains("Modify: 2023-11-14 22:13:20.500000000"),
        "{printed}"
    );
}

#[test]
fn a_failing_line_stops_and_what_was_done_is_committed() {
    let volume = Volume::copy();
    let (code, message) = failure(&[
        "shell",
        "-w",
        volume.path(),
        "-c",
        "mkdir /one",
        "-c",
        "rmdir /nonsense",
        "-c",
        "mkdir /two",
    ]);
    assert_eq!(code, 1);
    assert!(
        message.contains("rmdir") && message.contains("/nonsense"),
        "{message}"
    );
    let names = volume.stdout("ls", &[], "/");
    assert!(names.lines().any(|name| name == "one"), "{names}");
    assert!(!names.lines().any(|name| name == "two"), "{names}");
    volume.check();

    let output = script(
        &["shell", "-w", volume.path()],
        "# a script\n\nmkdir /three # and a comment\nnonsense\nmkdir /four\n",
    );
    assert_eq!(output.status.code(), Some(1));
    let names = volume.stdout("ls", &[], "/");
    assert!(names.contains("three") && !names.contains("four"), "{names}");
}

#[test]
fn leaving_without_a_commit() {
    let volume = Volume::copy();
    let output = script(
        &["shell", "-w", volume.path()],
        "mkdir /kept\nsync\nmkdir /forgotten\nabort\nmkdir /never\n",
    );
    assert_eq!(output.status.code(), Some(0));
    let names = volume.stdout("ls", &[], "/");
    assert!(
        names.contains("kept") && !names.contains("forgotten") && !names.contains("never"),
        "{names}"
    );
    volume.check();
}

#[test]
fn a_session_for_reading_writes_nothing() {
    let volume = Volume::copy();
    let (code, message) = failure(&["shell", volume.path(), "-c", "mkdir /new"]);
    assert_eq!(code, 1);
    assert!(
        message.contains("open read-only") && message.contains("shell -w"),
        "{message}"
    );
}

#[test]
fn the_words_are_listed_and_explained() {
    let path = image().to_str().unwrap();
    let help = stdout(&["shell", path, "-c", "help"]);
    for word in ["ls ", "mkdir ", "subvolume list", "quit, q, exit"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(stdout(&["shell", path, "-c", "help mv"]).contains("--exchange"));
    assert!(stdout(&["shell", path, "-c", "mv --help"]).contains("--exchange"));
    assert_eq!(failure(&["shell", path, "-c", "nonsense"]).0, 1);
}

#[test]
fn content_is_written_cut_and_shared() {
    let volume = Volume::copy();
    let printed = shell(
        &volume,
        &[
            "pwrite -S 0xab 0 256K /foo",
            "pread -v 0 20 /foo",
            "pwrite -q -S 0x01 300K 10 /foo",
            "fsync /foo",
            "reflink /foo 0 256K 64K /bar",
            "reflink /foo /whole",
            "dedupe /foo /whole",
            "truncate 1M /new",
            "fallocate -k 0 64K /new",
            "fpunch 16K 16K /foo",
            "fzero 32K 4K /foo",
            "copy_range /foo 0 0 8K /copied",
            "cp /foo /same",
            "snapshot -r / /snap",
            "pwrite 0 4K /foo",
            "pread -q -v 0 16 /snap/foo",
        ],
    );
    let expected = "\
wrote 262144/262144 bytes at offset 0
00000000:  ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab  ................
00000010:  ab ab ab ab                                      ....
read 20/20 bytes at offset 0
linked 65536/65536 bytes at offset 262144
linked 307210/307210 bytes at offset 0
deduped 307210/307210 bytes at offset 0
copied 8192/8192 bytes at offset 0
wrote 4096/4096 bytes at offset 0
00000000:  ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab  ................
";
    assert_eq!(printed, expected);

    let foo = volume.cat("/snap/foo");
    let mut model = vec![0xab; 256 << 10];
    model.resize(300 << 10, 0);
    model.extend([1; 10]);
    assert_eq!(volume.cat("/whole"), model);
    let mut punched = model;
    punched[16 << 10..32 << 10].fill(0);
    punched[32 << 10..36 << 10].fill(0);
    assert!(foo == punched);
    assert!(volume.cat("/same") == punched);
    assert_eq!(volume.cat("/copied"), vec![0xab; 8192]);
    punched[..4096].fill(0xcd);
    assert!(volume.cat("/foo") == punched);
    let bar = volume.cat("/bar");
    assert!(bar.len() == 320 << 10 && bar[..256 << 10].iter().all(|byte| *byte == 0));
    assert!(bar[256 << 10..].iter().all(|byte| *byte == 0xab));
    assert_eq!(volume.cat("/new"), vec![0; 1 << 20]);
}

#[test]
fn subvolumes_come_and_go() {
    let volume = Volume::copy();
    let printed = shell(
        &volume,
        &[
            "subvolume create /sub",
            "pwrite -q 0 1M /sub/file",
            "subvolume create -p /deep/er/sub",
            "snapshot /sub /deep",
            "snapshot -r /sub /deep/read-only",
            "subvolume set-default /sub",
            "subvolume get-default",
            "label changed",
            "label",
            "rm /sub/file",
            "ls /deep/sub",
            "subvolume delete /deep/er/sub /deep/sub",
            "ls /deep",
        ],
    );
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].ends_with(" path sub"), "{printed}");
    assert_eq!(lines[1..], ["changed", "file", "er", "read-only"]);
    let (code, message) = failure(&[
        "shell",
        "-w",
        volume.path(),
        "-c",
        "pwrite 0 1 /deep/read-only/file",
    ]);
    assert_eq!(code, 1);
    assert!(message.contains("read-only"), "{message}");
    assert_eq!(failure(&["shell", "-w", volume.path(), "-c", "rm -r /deep"]).0, 1);
    volume.check();
}

#[test]
fn files_go_in_and_out() {
    let volume = Volume::copy();
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().to_str().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/f"), b"content").unwrap();
    let lines = [
        format!("put -a {host}/d /in"),
        "cd /in".to_owned(),
        format!("put {host}/d/f"),
        format!("get f {host}/out"),
        "cat f".to_owned(),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(shell(&volume, &lines), "content");
    assert_eq!(std::fs::read(folder.path().join("out")).unwrap(), b"content");
    assert_eq!(volume.cat("/in/f"), b"content");
}
