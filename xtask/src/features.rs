//! Dependencies of a program that uses a part of the library: the features of `buttress` exclude
//! the rest.

use crate::run::{cargo, root};
use std::collections::BTreeSet;

/// Packages that only archives, plans and streams need.
const NOT_FOR_READING: [&str; 9] = [
    "toml",
    "regex",
    "lzma-rust2",
    "bzip2",
    "serde_json",
    "flate2",
    "pulp",
    "buttress-sources",
    "buttress-check",
];

/// The largest number of external packages below a program that reads a file. Two versions of a
/// package count twice.
const READING_MAX: usize = 45;

/// Returns the packages of the library with these features.
fn packages(features: &str) -> BTreeSet<String> {
    let mut command = cargo().unwrap();
    command.current_dir(root().unwrap()).args([
        "tree",
        "--locked",
        "--package",
        "buttress",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--features",
        features,
    ]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text
        .lines()
        .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
    words.filter(|package| !package.is_empty()).collect()
}

#[test]
fn a_program_that_reads_compiles_no_archives() {
    let reading = packages("");
    let names: BTreeSet<&str> = reading
        .iter()
        .filter_map(|package| package.split(' ').next())
        .collect();
    let unwanted: Vec<_> = NOT_FOR_READING
        .iter()
        .filter(|name| names.contains(*name))
        .collect();
    assert!(unwanted.is_empty(), "{unwanted:?}");
    let foreign: Vec<_> = reading
        .iter()
        .filter(|package| !package.starts_with("buttress"))
        .collect();
    assert!(
        foreign.len() <= READING_MAX,
        "{} packages: {foreign:?}",
        foreign.len()
    );
    // Each name in `NOT_FOR_READING` must be a package of the whole library.
    let full = packages("full");
    for name in NOT_FOR_READING {
        let is_there = full.iter().any(|package| package.split(' ').next() == Some(name));
        assert!(is_there, "{name}: {full:?}");
    }
}
