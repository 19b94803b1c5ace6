//! Methods of types: a table holds the types with more than [`MOST`] methods, and a count may only
//! fall.
//!
//! A type with many methods has several jobs. The storage crates give each job a type of its own: a
//! state with its invariants, or a borrowed handle.
//!
//! A method is a function in an `impl` of the type, in any file of the type's crate. Functions of
//! traits and of test modules are left out.

use crate::modules::tokens;
use crate::run::root;
use std::collections::BTreeMap;
use std::path::Path;

/// The crates whose types are counted.
const CRATES: [&str; 19] = [
    "accounts", "build", "buttress", "check", "cli", "device", "engine", "format", "fs", "lab", "mkfs",
    "mount", "packing", "salvage", "scrub", "stream", "tree", "volume", "writer",
];

/// The largest number of methods of a type that is not in the table.
const MOST: usize = 60;

/// Path of the table, below the workspace root.
const TABLE: &str = "xtask/src/methods.txt";

/// The number of methods of each type, by `crate Type`.
type Counts = BTreeMap<String, usize>;

/// Counts the methods in the code of one file.
fn count(code: &str, name: &str, counts: &mut Counts) {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let tokens = tokens(code);
    let (mut at, mut depth) = (0, 0_usize);
    // The type of the `impl` around `at`, and the depth of its functions.
    let mut inside: Option<(String, usize)> = None;
    while let Some(&token) = tokens.get(at) {
        match token {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inside = inside.filter(|(_, of)| depth >= *of);
            }
            "impl" if depth == 0 && begins_item(&tokens[..at]) => {
                let (of, after) = implemented(&tokens, at + 1);
                inside = of.map(|of| (format!("{name} {of}"), 1));
                at = after;
                continue;
            }
            "fn" => {
                if let Some((of, _)) = inside.as_ref().filter(|(_, of)| depth == *of) {
                    *counts.entry(of.clone()).or_default() += 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Returns whether an item begins after `before`, so that an `impl` here is no type of an argument.
fn begins_item(before: &[&str]) -> bool {
    before
        .last()
        .is_none_or(|last| ["}", ";", "]", "unsafe"].contains(last))
}

/// Returns the type of an `impl` whose header begins at `at`, and the place of its `{`. Returns no
/// type for the `impl` of a trait.
fn implemented(tokens: &[&str], mut at: usize) -> (Option<String>, usize) {
    let (mut angles, mut of, mut is_whole) = (0_usize, None, false);
    while let Some(&token) = tokens.get(at) {
        match token {
            "{" => break,
            "<" => angles += 1,
            // The arrow of a function type closes nothing.
            ">" if tokens[at - 1] != "-" => angles -= 1,
            "for" if angles == 0 => return (None, brace(tokens, at)),
            "where" if angles == 0 => is_whole = true,
            _ if angles == 0 && !is_whole && token.starts_with(char::is_alphabetic) => {
                of = Some(token.to_owned());
            }
            _ => {}
        }
        at += 1;
    }
    (of, at)
}

/// Returns the place of the next `{`.
fn brace(tokens: &[&str], at: usize) -> usize {
    let found = tokens[at..].iter().position(|token| *token == "{");
    found.map_or(tokens.len(), |found| at + found)
}

/// Counts the methods in the files below a folder. Test modules are left out.
fn below(folder: &Path, name: &str, counts: &mut Counts) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().contains("test") {
            continue;
        }
        if path.is_dir() {
            below(&path, name, counts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            count(&std::fs::read_to_string(&path).unwrap(), name, counts);
        }
    }
}

/// Returns the differences from the table.
fn findings(table: &str, counts: &Counts) -> Vec<String> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let listed: Counts = rows
        .map(|row| {
            let (of, count) = row.rsplit_once(' ').unwrap();
            (of.to_owned(), count.parse().unwrap())
        })
        .collect();
    let mut found = Vec::new();
    for (of, count) in counts {
        match listed.get(of) {
            Some(most) if count > most => {
                found.push(format!(
                    "{of} has {count} methods, more than the {most} of {TABLE}"
                ));
            }
            Some(most) if count < most && *count > MOST => {
                found.push(format!(
                    "{of} has fewer methods: write `{of} {count}` into {TABLE}"
                ));
            }
            None if *count > MOST => found.push(format!(
                "{of} has {count} methods, more than {MOST}: give a job of it a type of its own"
            )),
            _ => {}
        }
    }
    for of in listed.keys() {
        if counts.get(of).is_none_or(|count| *count <= MOST) {
            found.push(format!(
                "{of} has at most {MOST} methods: delete its row from {TABLE}"
            ));
        }
    }
    found
}

#[test]
fn types_gain_no_methods_past_the_table() {
    let top = root().unwrap();
    let mut counts = Counts::new();
    for name in CRATES {
        below(&top.join("crates").join(name).join("src"), name, &mut counts);
    }
    let table = std::fs::read_to_string(top.join(TABLE)).unwrap();
    let found = findings(&table, &counts);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn methods_are_counted_by_type() {
    let code = "impl<T: Fn() -> u8> Many<'_, T> where T: Copy { fn one() { fn inner() {} } fn two() {} }\n\
        impl fmt::Debug for Many<'_> { fn fmt() {} }\nimpl crate::low::Few { const fn one() {} }\n\
        impl Few { pub(crate) fn two(self) { let f = || { 1 }; } }\nfn free(_: impl Fn() -> Few) {}\n\
        #[cfg(test)]\nmod tests {\n impl Few { fn three() {} } }";
    let mut counts = Counts::new();
    count(code, "x", &mut counts);
    let expected = [("x Few", 2), ("x Many", 2)];
    assert_eq!(counts, expected.map(|(of, count)| (of.to_owned(), count)).into());
}

#[test]
fn counts_of_the_table_only_fall() {
    let counts = [
        ("x More", MOST + 9),
        ("x Same", MOST + 2),
        ("x Less", MOST + 1),
        ("x New", MOST + 1),
    ];
    let counts: Counts = counts.map(|(of, count)| (of.to_owned(), count)).into();
    let table = format!(
        "# A comment.\nx More {}\nx Same {}\nx Less 99\nx Gone 99",
        MOST + 8,
        MOST + 2
    );
    let found = findings(&table, &counts);
    let [less, more, new, gone] = &found[..] else {
        panic!("four findings: {found:?}");
    };
    assert!(
        less.contains("fewer") && more.contains("x More has"),
        "{less} {more}"
    );
    assert!(
        new.contains("x New has") && gone.contains("x Gone"),
        "{new} {gone}"
    );
}
