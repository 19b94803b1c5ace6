//! Clamps on the program's own numbers: a table holds each crate's count, and the count may only
//! fall.
//!
//! A clamp turns an impossible state into a plausible number. The operations of `exact` assert
//! instead. A clamp may stay if a sum validly ends at a bound. A comment then gives the reason:
//!
//! - `// Clamp: …` on the clamp's line or at most six lines above, without a blank line between;
//! - `//! Clamps: …` at the head of a file, for the whole file.

use crate::run::root;
use std::collections::BTreeMap;
use std::path::Path;

/// Calls that count as clamps.
const CLAMPS: [&str; 4] = [
    ".saturating_",
    "::saturating_",
    ".unwrap_or(",
    ".unwrap_or_default(",
];

/// The largest distance, in lines, from a clamp up to its reason.
const REASON_LINES: usize = 6;

/// Crates that no program for users depends on.
const OF_TESTS: [&str; 3] = ["hostile", "oracle", "proof"];

/// The path of the table of clamps, from the repository's root.
const TABLE: &str = "xtask/src/clamps.txt";

/// Returns the numbers of lines that clamp without a reason, from 1.
fn unexplained(code: &str) -> Vec<usize> {
    if code
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .any(|line| line.contains("Clamps:"))
    {
        return Vec::new();
    }
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let is_explained = |number: usize| {
        let above = lines[..=number].iter().rev();
        above
            .take(REASON_LINES + 1)
            .take_while(|line| !line.is_empty())
            .any(|line| line.contains("// Clamp:"))
    };
    let clamps = |line: &str| !line.starts_with("//") && CLAMPS.iter().any(|clamp| line.contains(clamp));
    (0..lines.len())
        .filter(|number| clamps(lines[*number]) && !is_explained(*number))
        .map(|number| number + 1)
        .collect()
}

/// Collects the unexplained clamps below a folder, as `file:line`. Tests are left out.
fn below(folder: &Path, top: &Path, found: &mut Vec<String>) {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(top).unwrap().display().to_string();
        if path.file_name().unwrap().to_string_lossy().contains("test") {
            continue;
        }
        if path.is_dir() {
            below(&path, top, found);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            found.extend(unexplained(code).iter().map(|line| format!("{name}:{line}")));
        }
    }
}

/// Returns the unexplained clamps of each crate.
fn of_crates() -> BTreeMap<String, Vec<String>> {
    let top = root().unwrap();
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(top.join("crates")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if !OF_TESTS.contains(&name.as_str()) {
            let mut found = Vec::new();
            below(&entry.path().join("src"), &top, &mut found);
            all.insert(name, found);
        }
    }
    all
}

/// Returns the rows of the table: a crate with its count.
fn rows(table: &str) -> BTreeMap<&str, usize> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let (name, count) = row.split_once(' ').unwrap();
        (name, count.parse().unwrap())
    })
    .collect()
}

/// Returns the differences from the table of clamps, a line for each crate.
fn findings(table: &str, crates: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let rows = rows(table);
    let mut found = Vec::new();
    for (name, lines) in crates {
        let (count, most) = (lines.len(), rows.get(name.as_str()).copied().unwrap_or(0));
        if count > most {
            found.push(format!(
                "{name} grew from {most} to {count}: use the operations of `exact`, or give the reason in a comment `// Clamp: …`; \
                 unexplained are\n{}",
                lines.join("\n")
            ));
        } else if count < most {
            found.push(format!(
                "{name} fell from {most} to {count}: write {count} into {TABLE}"
            ));
        }
    }
    found.extend(
        rows.keys()
            .filter(|name| !crates.contains_key(**name))
            .map(|name| format!("{name} is no crate: take it out of {TABLE}")),
    );
    found
}

#[test]
fn unexplained_clamps_only_become_fewer() {
    let table = std::fs::read_to_string(root().unwrap().join(TABLE)).unwrap();
    let found = findings(&table, &of_crates());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_clamp_needs_a_reason_near_it() {
    let code = "//! A file.\n\
                let a = b.saturating_sub(c);\n\
                // Clamp: a statistic.\n\
                let a = b.saturating_add(c);\n\
                \n\
                let a = b.min(c).unwrap_or(0);\n\
                // let a = b.unwrap_or_default();\n\
                let a = b.unwrap_or_default(); // Clamp: nothing is there.\n";
    assert_eq!(unexplained(code), [2, 6]);
    assert_eq!(
        unexplained(&format!("//! Clamps: statistics.\n{code}")),
        [0_usize; 0]
    );
}

#[test]
fn growth_and_unrecorded_falls_are_findings() {
    let lines = |count: usize| (1..=count).map(|line| format!("a.rs:{line}")).collect();
    let crates = BTreeMap::from([
        ("fell".to_owned(), lines(1)),
        ("grew".to_owned(), lines(3)),
        ("new".to_owned(), lines(1)),
        ("same".to_owned(), lines(2)),
    ]);
    let found = findings("# A comment.\nfell 2\ngrew 2\nsame 2\ngone 1", &crates);
    let [fell, grew, new, gone] = &found[..] else {
        panic!("four findings: {found:?}");
    };
    assert!(fell.starts_with("fell fell from 2 to 1"), "{fell}");
    assert!(
        grew.starts_with("grew grew from 2 to 3") && grew.ends_with("a.rs:2\na.rs:3"),
        "{grew}"
    );
    assert!(new.starts_with("new grew from 0 to 1"), "{new}");
    assert!(gone.starts_with("gone is no crate"), "{gone}");
}
