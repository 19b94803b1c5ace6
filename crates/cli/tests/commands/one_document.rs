//! With `--format json` standard output is one document, of the result, of the error, or of both.
//! This also applies to paths below a mount.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use buttress_cli::table;
use buttress_oracle::skip::skips;
use serde_json::Value;
use std::fs;
use std::process::Output;

use crate::mounting;
use crate::support::in_folder;

use in_folder::buttress;
use mounting::{Mounted, no_fuse, sound, text};

/// Parses the single document of a command.
fn document(output: &Output, words: &[&str]) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&output.stdout)))
}

/// Commands without results that succeed, or run long, without operands.
const ALWAYS_SUCCEED: [&str; 1] = ["tour"];

#[test]
fn every_command_that_fails_prints_one_document() {
    let folder = tempfile::tempdir().unwrap();
    // The command cannot create a file below a missing directory.
    let operand = "missing/a.img:/a";
    for command in table::commands() {
        let mut failures = 0;
        for operands in 0..4 {
            for option in [&[][..], &["--no-such-option"], &["--degraded"]] {
                let mut words: Vec<&str> = command.split(' ').collect();
                words.extend(["--format", "json"]);
                words.extend(option);
                words.extend(vec![operand; operands]);
                if ALWAYS_SUCCEED.contains(&command.as_str())
                    && operands == 0
                    && option != ["--no-such-option"]
                {
                    continue;
                }
                let output = buttress(folder.path(), &words);
                if output.status.success() {
                    continue;
                }
                failures += 1;
                let document = document(&output, &words);
                assert_eq!(document["__header"]["version"], "1", "{words:?}");
                let error = &document["error"];
                if !error.is_null() {
                    assert!(!error["message"].as_str().unwrap().is_empty(), "{words:?}");
                    assert_eq!(
                        error["exit_code"].as_i64(),
                        output.status.code().map(i64::from),
                        "{words:?}"
                    );
                }
                assert!(!output.stderr.is_empty(), "{words:?}: no error on stderr");
            }
        }
        assert!(failures >= 4, "{command}: {failures} failures");
    }
}

#[test]
fn paths_below_a_mount_print_one_document_and_one_header() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    fs::create_dir(mounted.path("d")).unwrap();
    fs::write(mounted.path("d/file"), vec![7; 10_000]).unwrap();
    let above = mounted.at.parent().unwrap();
    for (words, count) in [
        (&["ls", "at"][..], 1),
        (&["ls", "at/d", "at"], 2),
        (&["stat", "at/d/file", "at/d"], 2),
        (&["fiemap", "at/d/file"], 1),
        (&["filesystem", "du", "at/d/file"], 1),
        (&["tree", "at"], 2),
    ] {
        let mut as_json = words.to_vec();
        as_json.extend(["--format", "json"]);
        let output = buttress(above, &as_json);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        let document = document(&output, words);
        let name = document
            .as_object()
            .unwrap()
            .keys()
            .find(|key| *key != "__header")
            .unwrap();
        assert_eq!(document[name].as_array().unwrap().len(), count, "{words:?}");
    }
    let output = buttress(above, &["filesystem", "du", "--raw", "at/d"]);
    let lines = text(&output.stdout);
    assert_eq!(lines.matches("Filename").count(), 1, "{lines}");
    assert!(
        lines.contains("  at/d/file\n") && lines.ends_with("  at/d\n"),
        "{lines}"
    );

    // Commands that fail on a mount, and commands with one operand in an image.
    let image = mounted.image.with_file_name("other.img");
    sound(&["mkfs", "-q", "-b", "256M", image.to_str().unwrap()]);
    for words in [
        &["stat", "at/missing", "--format", "json"][..],
        &["tree", "at/missing", "--format", "json"],
        &["ls", "other.img", "at/d", "--format", "json"],
        &["ls", "at/d", "other.img", "--format", "json"],
        &["check", "at", "--format", "json"],
    ] {
        let output = buttress(above, words);
        assert!(!output.status.success(), "{words:?}");
        document(&output, words);
    }
    mounted.umount();
}
