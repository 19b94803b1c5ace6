//! Random tests take their seeds from `buttress_oracle::seeds`: no test starts a generator with its
//! own number.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests state what must hold")]

use std::fs;
use std::path::{Path, PathBuf};

/// Files whose numbers are not seeds of random tests.
const FIXED: [&str; 4] = [
    // This file has a covering array with fixed rows.
    "cli/tests/building/matrix.rs",
    // The tests of this file compare draws of one seed.
    "hostile/src/damage.rs",
    // This test covers every subset of the writes in doubt.
    "lab/tests/crash.rs",
    // This file is the generator of histories.
    "oracle/src/history/random.rs",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns whether a line starts random numbers from a number in the line. Contents that tests
/// compare are constants.
fn has_own_seed(line: &str) -> bool {
    let begins_with_digit = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
    let is_after = |words: &str| line.split(words).nth(1).is_some_and(begins_with_digit);
    let is_text = line.contains(".bytes(") || line.trim_start().starts_with("//");
    !is_text && (is_after("Random::new(") || is_after("for seed in "))
}

#[test]
fn random_tests_take_seeds_from_one_place() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(crates, &mut files);
    let mut own = Vec::new();
    for file in files {
        let name = file.strip_prefix(crates).unwrap().display().to_string();
        if FIXED.contains(&name.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let lines = (1..).zip(text.lines()).filter(|(_, line)| has_own_seed(line));
        own.extend(lines.map(|(number, line): (u32, &str)| format!("{name}:{number}: {}", line.trim())));
    }
    assert!(own.is_empty(), "seeds of their own:\n{}", own.join("\n"));
}
