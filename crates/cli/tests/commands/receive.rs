//! Tests of `receive --dump` on the golden streams of `buttress-stream`: text, JSON, several
//! streams, and damage.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use support::{failure, json, stdout};

fn golden(name: &str) -> String {
    format!("{}/../stream/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn file_of(bytes: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stream");
    fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn the_dump_is_what_btrfs_progs_prints() {
    for name in [
        "kernel-full-v1",
        "kernel-full-v2",
        "kernel-incremental-v2",
        "kernel-no-data-v1",
    ] {
        let expected = fs::read_to_string(golden(&format!("{name}.txt"))).unwrap();
        let stream = golden(&format!("{name}.stream"));
        assert_eq!(stdout(&["receive", "--dump", "-f", &stream]), expected);
        let piped = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(["receive", "--dump"])
            .env("TZ", "UTC")
            .stdin(File::open(stream).unwrap())
            .output()
            .unwrap();
        assert!(piped.status.success());
        assert_eq!(String::from_utf8(piped.stdout).unwrap(), expected);
    }
}

#[test]
fn json_has_all_attributes_by_their_documented_names() {
    let dump = json(
        &["receive", "--dump", "-f", &golden("rename.stream")],
        "receive-dump",
    );
    assert_eq!(dump[1]["command"], "rename");
    assert_eq!(dump[1]["path"], "o257-7-0");
    assert_eq!(dump[1]["path_to_b64"], "ZC9hIG5hbWUJb2Ygw6kgYW5kIP8=");
    let dump = json(
        &["receive", "--dump", "-f", &golden("encoded_write.stream")],
        "receive-dump",
    );
    let write = dump[1].as_object().unwrap();
    let keys: Vec<_> = write.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "command",
            "stream",
            "version",
            "offset",
            "path",
            "file_offset",
            "unencoded_file_len",
            "unencoded_len",
            "unencoded_offset",
            "compression",
            "encryption",
            "data_length"
        ]
    );
    assert_eq!(
        (&write["version"], &write["data_length"]),
        (&2.into(), &13.into())
    );
    assert_eq!(dump[2]["command"], "end");
}

#[test]
fn all_streams_of_an_input_are_dumped_and_with_e_the_first() {
    let (one, two) = (golden("chmod.stream"), golden("chown.stream"));
    let both = [fs::read(&one).unwrap(), fs::read(&two).unwrap()].concat();
    let (_folder, path) = file_of(&both);
    let first = stdout(&["receive", "--dump", "-f", &one]);
    let second = stdout(&["receive", "--dump", "-f", &two]);
    assert_eq!(
        stdout(&["receive", "--dump", "-f", &path]),
        format!("{first}{second}")
    );
    assert_eq!(stdout(&["receive", "-e", "--dump", "-f", &path]), first);

    // The next reader of the input gets the bytes after the first stream.
    let mut input = File::open(&path).unwrap();
    let dump = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["receive", "-e", "--dump"])
        .stdin(input.try_clone().unwrap())
        .output()
        .unwrap();
    assert!(dump.status.success());
    let mut rest = Vec::new();
    input.read_to_end(&mut rest).unwrap();
    assert!(rest == fs::read(&two).unwrap());
}

#[test]
fn a_damaged_stream_is_dumped_as_far_as_it_goes_and_is_an_error() {
    let whole = fs::read(golden("chmod.stream")).unwrap();
    let (_folder, cut) = file_of(&whole[..whole.len() - 1]);
    let output = support::buttress(&["receive", "--dump", "-f", &cut]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("command 3 at byte") && message.contains("9 of 10 bytes of the command's header"),
        "{message}"
    );

    let mut flipped = whole.clone();
    flipped[60] ^= 1;
    let (_folder, flipped) = file_of(&flipped);
    let output = support::buttress(&["receive", "--dump", "-f", &flipped, "--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["receive-dump"].is_array());
    assert!(String::from_utf8_lossy(&output.stderr).contains("checksum"));
}

/// Creates an empty volume.
fn volume() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image").to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "128M", &image]);
    (folder, image)
}

#[test]
fn a_chain_is_received_in_order_and_found_by_its_uuids() {
    let (_folder, image) = volume();
    let (full, more) = (
        golden("kernel-full-v2.stream"),
        golden("kernel-incremental-v2.stream"),
    );
    let output = support::buttress(&["receive", "-f", &full, "-f", &more, &format!("{image}:/")]);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "At subvol r1\nAt snapshot r2\n"
    );
    assert!(output.status.success() && output.stdout.is_empty());
    let list = json(&["subvolume", "list", "-R", "-q", &image], "subvolume-list");
    assert_eq!(list.as_array().unwrap().len(), 2, "{list}");
    let shown = json(&["subvolume", "show", &format!("{image}:/r2")], "subvolume-show");
    let text = shown.to_string();
    assert!(text.contains("add02162-b6d6-fd4e-88ff-e990b3b01d46"), "{text}");
    // The received subvolumes equal the streams' snapshots.
    let ours = stdout(&["ls", "-R", &format!("{image}:/r2")]);
    let theirs = stdout(&["stream", "ls", "-R", &full, &more]);
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{ours}\n{theirs}");
    stdout(&["check", "--check-data-csum", &image]);
}

#[test]
fn a_stream_that_fails_leaves_the_image_as_it_was() {
    let (_folder, image) = volume();
    let target = format!("{image}:/");
    // The command may have written data to free space, so compare the state to which the superblock
    // refers.
    let state = || stdout(&["inspect-internal", "dump-super", "-f", &image]);
    let before = state();
    let whole = fs::read(golden("kernel-full-v2.stream")).unwrap();
    let (_streams, cut) = file_of(&whole[..whole.len() - 20]);
    let (code, message) = failure(&["receive", "-f", &cut, &target]);
    assert_eq!(code, 1);
    assert!(
        message.contains("the stream is truncated")
            && message.contains("nothing of this stream was received"),
        "{message}"
    );
    assert_eq!(state(), before);
    // The volume lacks the parent snapshot of this stream.
    let (code, message) = failure(&["receive", "-f", &golden("kernel-incremental-v2.stream"), &target]);
    assert_eq!(code, 1);
    assert!(message.contains("cannot find parent subvolume"), "{message}");
    assert_eq!(state(), before);
    // If the second stream fails, the received first stream stays. An existing subvolume is not
    // replaced.
    let full = golden("kernel-full-v2.stream");
    let (code, message) = failure(&["receive", "-f", &full, "-f", &full, &target]);
    assert_eq!(code, 1);
    assert!(message.contains("r1 already exists"), "{message}");
    assert_eq!(stdout(&["ls", &target]), "r1\n");
    stdout(&["check", &image]);
}

#[test]
fn unsupported_streams_are_refused_by_name() {
    let (_folder, image) = volume();
    let target = format!("{image}:/");
    for (stream, reason) in [
        ("kernel-no-data-v1.stream", "--no-data"),
        ("enable_verity.stream", "version 3"),
    ] {
        let (code, message) = failure(&["receive", "-f", &golden(stream), &target]);
        assert_eq!(code, 1);
        assert!(message.contains(reason), "{message}");
    }
    assert_eq!(failure(&["receive", "--dump", "image:/"]).0, 2);
    assert_eq!(failure(&["receive"]).0, 2);
}

/// Returns a stream with an additional command after the first, with an unknown number.
fn with_unknown_command(stream: &[u8]) -> Vec<u8> {
    let first = u32::from_le_bytes(stream[17..21].try_into().unwrap()) as usize;
    let (before, after) = stream.split_at(17 + 10 + first);
    let mut unknown = vec![0_u8; 10];
    unknown[4] = 99;
    let sum = buttress::unstable::format::crc32c(0, &unknown);
    unknown[6..].copy_from_slice(&sum.to_le_bytes());
    [before, &unknown, after].concat()
}

#[test]
fn unknown_commands_are_skipped_with_the_option_only() {
    let (_folder, image) = volume();
    let target = format!("{image}:/");
    let whole = fs::read(golden("kernel-full-v2.stream")).unwrap();
    let (_streams, stream) = file_of(&with_unknown_command(&whole));
    let (code, message) = failure(&["receive", "-f", &stream, &target]);
    assert_eq!(code, 1);
    assert!(
        message.contains("command number 99") && message.contains("--skip-unknown"),
        "{message}"
    );
    assert_eq!(stdout(&["ls", &target]), "");
    for other in ["--keep-partial", "--resume", "--token", "--dump"] {
        let (code, message) = failure(&["receive", "--skip-unknown", other, "-f", &stream, &target]);
        assert_eq!(code, 2, "{other}: {message}");
    }
    let output = support::buttress(&["receive", "--skip-unknown", "-f", &stream, &target]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(told.matches("command number 99").count(), 1, "{told}");
    assert_eq!(stdout(&["ls", &target]), "r1\n");
    stdout(&["check", &image]);
}

#[test]
fn as_many_errors_are_let_pass_as_the_user_allows() {
    let (_folder, image) = volume();
    let target = format!("{image}:/");
    // The stream in this test renames a missing file.
    let stream = golden("rename.stream");
    assert_eq!(failure(&["receive", "-f", &stream, &target]).0, 1);
    assert_eq!(stdout(&["ls", &target]), "");
    let output = support::buttress(&["receive", "-E", "0", "-f", &stream, &target]);
    assert_eq!(output.status.code(), Some(1), "something was left out");
    assert!(!stdout(&["ls", &target]).is_empty());
    stdout(&["check", &image]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["receive", "--dump"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let stream = fs::read(golden("kernel-full-v1.stream")).unwrap();
    let mut input = child.stdin.take().unwrap();
    for _ in 0..100 {
        // The receiver may have ended before it read the whole stream.
        if input.write_all(&stream).is_err() {
            break;
        }
    }
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
