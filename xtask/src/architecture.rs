//! Compares the table and the picture of crates in ARCHITECTURE.md with Cargo's metadata.
//!
//! The table must name every dependency between crates of the workspace, with dependencies of tests
//! apart, and no other. The picture must name every crate that users run, and every crate that a
//! named crate uses. In the picture, each crate must be on a line above the crates that it uses.

use crate::run::{cargo, root};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The crates of the workspace that one crate uses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Uses {
    /// Dependencies of the crate itself.
    normal: BTreeSet<String>,
    /// Further dependencies of its tests and examples.
    tests: BTreeSet<String>,
}

/// The columns of the picture that hold names. The crates' descriptions are on the right of the
/// names.
const NAMES_WIDTH: usize = 34;

type Crates = BTreeMap<String, Uses>;

/// Returns a crate's name without the prefix: `tree` for `buttress-tree`.
fn short(name: &str) -> String {
    name.strip_prefix("buttress-").unwrap_or(name).to_owned()
}

/// Returns the dependencies between the workspace's crates, from `cargo metadata`.
fn of_cargo() -> Result<Crates> {
    let words = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = cargo()?.args(words).output()?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("a list of packages")?;
    let mut crates = Crates::new();
    for package in packages {
        let name = package["name"].as_str().context("a package's name")?;
        let uses = crates.entry(short(name)).or_default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Only crates of the workspace have a path.
            if dependency["path"].is_null() {
                continue;
            }
            // A crate's tests may depend on the crate with more of its features.
            if dependency["name"] == package["name"] {
                continue;
            }
            let name = short(dependency["name"].as_str().context("a dependency's name")?);
            if dependency["kind"].as_str() == Some("dev") {
                uses.tests.insert(name);
            } else {
                uses.normal.insert(name);
            }
        }
        uses.tests = uses.tests.difference(&uses.normal).cloned().collect();
    }
    Ok(crates)
}

/// Returns the names in backquotes in a table cell.
fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the table: each crate with its dependencies and those of its tests.
fn of_table(page: &str) -> Result<Crates> {
    let lines = page
        .lines()
        .skip_while(|line| !line.starts_with("| crate | uses |"));
    let mut crates = Crates::new();
    for line in lines.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = line.trim_matches('|').split('|').collect();
        ensure!(cells.len() == 3, "a row of three cells: {line}");
        let name = quoted(cells[0])
            .pop_first()
            .with_context(|| format!("the name of a crate: {line}"))?;
        let uses = Uses {
            normal: quoted(cells[1]),
            tests: quoted(cells[2]),
        };
        ensure!(
            crates.insert(name, uses).is_none(),
            "one row for each crate: {line}"
        );
    }
    ensure!(!crates.is_empty(), "a table of crates");
    Ok(crates)
}

/// Returns the crates of the picture, each with its line.
fn of_picture(page: &str, crates: &Crates) -> Result<BTreeMap<String, usize>> {
    let picture = page.split("```").nth(1).context("a picture")?;
    let mut lines = BTreeMap::new();
    for (number, line) in picture.lines().enumerate() {
        let names: String = line.chars().take(NAMES_WIDTH).collect();
        for word in names.split_whitespace().filter(|word| crates.contains_key(*word)) {
            ensure!(
                lines.insert(word.to_owned(), number).is_none(),
                "{word} stands twice in the picture"
            );
        }
    }
    Ok(lines)
}

/// Returns the differences between the table and Cargo, a line for each.
fn differences(table: &Crates, cargo: &Crates) -> Vec<String> {
    let none = Uses::default();
    let names: BTreeSet<_> = table.keys().chain(cargo.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        if !table.contains_key(name) || !cargo.contains_key(name) {
            let place = if cargo.contains_key(name) {
                "in the table"
            } else {
                "in the workspace"
            };
            found.push(format!("{name} is not {place}"));
            continue;
        }
        let (drawn, real) = (table.get(name).unwrap_or(&none), cargo.get(name).unwrap_or(&none));
        for (what, drawn, real) in [
            ("uses", &drawn.normal, &real.normal),
            ("uses in tests", &drawn.tests, &real.tests),
        ] {
            found.extend(
                real.difference(drawn)
                    .map(|other| format!("{name} {what} {other}: not in the table")),
            );
            found.extend(
                drawn
                    .difference(real)
                    .map(|other| format!("{name} {what} {other}: only in the table")),
            );
        }
    }
    found
}

/// Returns dependencies that do not lead down in the picture, and dependencies that the picture
/// lacks.
fn upward(picture: &BTreeMap<String, usize>, cargo: &Crates) -> Vec<String> {
    let mut found = Vec::new();
    for (name, line) in picture {
        for other in cargo.get(name).into_iter().flat_map(|uses| &uses.normal) {
            match picture.get(other) {
                None => found.push(format!("{name} uses {other}, which the picture lacks")),
                Some(below) if below <= line => {
                    found.push(format!("{name} uses {other}, which is not below it"))
                }
                Some(_) => {}
            }
        }
    }
    found
}

fn page() -> String {
    std::fs::read_to_string(root().unwrap().join("ARCHITECTURE.md")).unwrap()
}

#[test]
fn the_table_of_crates_is_what_cargo_has() {
    let found = differences(&of_table(&page()).unwrap(), &of_cargo().unwrap());
    assert_eq!(found, [""; 0], "ARCHITECTURE.md, \"Which crate uses which\"");
}

#[test]
fn in_the_picture_every_dependency_leads_down() {
    let cargo = of_cargo().unwrap();
    let picture = of_picture(&page(), &cargo).unwrap();
    assert_eq!(
        upward(&picture, &cargo),
        [""; 0],
        "the picture in ARCHITECTURE.md"
    );
    for run_by_users in ["cli", "buttress"] {
        assert!(
            picture.contains_key(run_by_users),
            "{run_by_users} is in the picture"
        );
    }
}

#[test]
fn an_edge_that_is_added_is_found() {
    let mut cargo = of_cargo().unwrap();
    let table = of_table(&page()).unwrap();
    let picture = of_picture(&page(), &cargo).unwrap();
    cargo.get_mut("format").unwrap().normal.insert("tree".to_owned());
    cargo.get_mut("tree").unwrap().tests.insert("check".to_owned());
    assert_eq!(
        differences(&table, &cargo),
        [
            "format uses tree: not in the table",
            "tree uses in tests check: not in the table"
        ]
    );
    assert_eq!(
        upward(&picture, &cargo),
        ["format uses tree, which is not below it"]
    );
    cargo.remove("tree");
    cargo.insert("newcomer".to_owned(), Uses::default());
    let found = differences(&table, &cargo);
    assert!(
        found.contains(&"newcomer is not in the table".to_owned()),
        "{found:?}"
    );
    assert!(
        found.contains(&"tree is not in the workspace".to_owned()),
        "{found:?}"
    );
}
