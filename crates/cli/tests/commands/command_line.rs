//! Tests of the command line: flags, prefixes, help, exit codes, and files that are no volume.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use crate::support;

use std::fs;
use std::os::unix::fs::FileExt;

use support::{buttress, failure, image, inside, stdout};

#[test]
fn global_flags_stand_before_and_after_the_command() {
    let image = image().to_str().unwrap();
    let expected = stdout(&["--format", "json", "subvolume", "list", image]);
    assert_eq!(stdout(&["subvolume", "--format=json", "list", image]), expected);
    assert_eq!(
        stdout(&["subvolume", "list", image, "--format", "json"]),
        expected
    );
    // The last value counts.
    assert_eq!(
        stdout(&["--format", "text", "subvolume", "list", "--format", "json", image]),
        expected
    );
}

#[test]
fn prefixes_work_while_they_are_unambiguous() {
    let image = image().to_str().unwrap();
    assert_eq!(
        stdout(&["sub", "l", image]),
        stdout(&["subvolume", "list", image])
    );
    assert_eq!(
        stdout(&["fi", "us", image]),
        stdout(&["filesystem", "usage", image])
    );
    assert_eq!(failure(&["s", image]).0, 2);
    assert_eq!(failure(&["filesystem", "d", image]).0, 2);
}

#[test]
fn help_and_version_are_no_errors() {
    for words in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["ls", "--help"],
        &["filesystem", "df", "--help"],
    ] {
        assert!(!stdout(words).is_empty(), "{words:?}");
    }
    for words in [
        &[][..],
        &["ls"],
        &["nonsense"],
        &["ls", "--nonsense", "x"],
        &["subvolume"],
    ] {
        assert_eq!(failure(words).0, 2, "{words:?}");
    }
}

#[test]
fn man_pages_and_completions_know_every_command() {
    let directory = tempfile::tempdir().unwrap();
    stdout(&["man", directory.path().to_str().unwrap()]);
    for page in [
        "buttress.1",
        "buttress-tar.1",
        "buttress-subvolume-list.1",
        "buttress-inspect-internal-dump-tree.1",
    ] {
        assert!(
            fs::read_to_string(directory.path().join(page))
                .unwrap()
                .contains(".TH"),
            "{page}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&["completions", shell]);
        for word in ["dump-tree", "get-default", "one-file-system"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn files_without_a_volume_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let noise: Vec<u8> = (0..1u32 << 20)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let whole = fs::read(image()).unwrap();
    for path in [
        file("empty", b""),
        file("short", b"_BHRfS_M"),
        file("zeros", &vec![0; 1 << 20]),
        file("noise", &noise),
        file("cut", &whole[..1 << 20]),
    ] {
        for words in [&["ls", &path][..], &["tar", &path], &["subvolume", "list", &path]] {
            let (code, error) = failure(words);
            assert_eq!(code, 1, "{words:?}");
            assert!(
                error.starts_with("error: ") || error.contains("\nerror: "),
                "{words:?}: {error}"
            );
        }
    }
    let (code, error) = failure(&["ls", directory.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(
        error.contains("is a directory") && error.contains("help:"),
        "{error}"
    );
    assert_eq!(failure(&["ls", "/nowhere/at/all.img"]).0, 1);
}

/// Returns the offsets of the bytes `needle` in the image.
fn places_of(needle: &[u8]) -> Vec<u64> {
    let whole = fs::read(image()).unwrap();
    let mut places = Vec::new();
    for (block, bytes) in whole.chunks(4096).enumerate() {
        if bytes.starts_with(needle) {
            places.push(block as u64 * 4096);
        }
    }
    places
}

#[test]
fn what_is_lost_is_reported_and_the_rest_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.img");
    fs::copy(image(), &path).unwrap();
    let text = buttress(&["cat", &inside("/home/plain/text")]).stdout;
    let places = places_of(&text[4096..8192]);
    assert!(!places.is_empty());
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for place in places {
        file.write_all_at(b"rot", place + 100).unwrap();
    }
    let damaged = format!("{}:/home/plain/text", path.display());
    let output = buttress(&["cat", &damaged]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout.len(), text.len());
    assert_eq!(&output.stdout[..4096], &text[..4096]);
    assert!(output.stdout[4096..8192].iter().all(|byte| *byte == 0));
    assert_eq!(&output.stdout[8192..], &text[8192..]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("/home/plain/text") && error.contains("4096"),
        "{error}"
    );
    // The archive is complete, and the command reports what it could not read.
    let output = buttress(&["tar", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        output.stdout.len(),
        buttress(&["tar", image().to_str().unwrap()]).stdout.len()
    );
    // With rescue=ignoredatacsums, the command prints the damaged bytes.
    let output = buttress(&["cat", "--rescue", "ignoredatacsums", &damaged]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(&output.stdout[4096 + 100..4096 + 103], b"rot");
}

#[test]
fn a_copy_that_lacks_a_file_ends_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.img");
    fs::copy(image(), &path).unwrap();
    let text = buttress(&["cat", &inside("/home/plain/text")]).stdout;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for place in places_of(&text[4096..8192]) {
        file.write_all_at(b"rot", place + 100).unwrap();
    }
    let target = directory.path().join("copy");
    let source = format!("{}:/home/plain", path.display());
    let output = buttress(&["cp", "-r", &source, target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("text"), "{error}");
}

#[test]
fn partitions_and_offsets_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shifted.img");
    let mut bytes = vec![0; 1 << 20];
    bytes.extend_from_slice(&fs::read(image()).unwrap());
    fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(failure(&["ls", path]).0, 1);
    assert_eq!(
        stdout(&["ls", "--offset", "1M", path]),
        "home\nhome-monday\nhome-tuesday\n"
    );
    assert_eq!(failure(&["ls", "--offset", "part=1", path]).0, 1);
}

#[test]
fn missing_command_of_btrfs_progs_names_its_replacement() {
    for (words, name, instead) in [
        (
            &["device", "scan", "-u", "/dev/sda"][..],
            "device scan",
            "buttress filesystem show",
        ),
        (
            &["filesystem", "mkswapfile", "/mnt"],
            "filesystem mkswapfile",
            "btrfs filesystem mkswapfile",
        ),
        (
            &["device", "ready", "/dev/sda"],
            "device ready",
            "buttress filesystem show",
        ),
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
