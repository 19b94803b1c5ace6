//! Names that the command and the mount use from `buttress::unstable`: a table holds the count of
//! each part, and a count may only fall.
//!
//! A row is a part, its count and the reason for the use. A part is a folder, or a file without its
//! extension. A file belongs to the longest part that its path begins with.

use crate::run::root;
use std::collections::BTreeMap;
use std::path::Path;

/// The counted folders, from the repository's root.
const FOLDERS: [&str; 2] = ["crates/cli/src", "crates/mount/src"];

/// The path of the table, from the repository's root.
const TABLE: &str = "xtask/src/unstable.txt";

/// The prefix of the counted names.
const UNSTABLE: &str = "buttress::unstable::";

/// Returns the number of names in a use tree, such as `fs::{File, lookup::{self, Follow}}`.
fn names_of(tree: &str) -> usize {
    let Some(braces) = tree.find('{') else {
        return 1;
    };
    let mut depth = 0;
    let mut count = 0;
    let mut begin = braces + 1;
    for (at, letter) in tree.char_indices().skip(braces) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        let ends = (letter == ',' && depth == 1) || (letter == '}' && depth == 0);
        if ends {
            let part = tree[begin..at].trim();
            count += if part.is_empty() { 0 } else { names_of(part) };
            begin = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    count
}

/// Returns the number of names that a file uses from the unstable part: those of its `use` items,
/// and each path in its code.
fn count(code: &str) -> usize {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    code.match_indices(UNSTABLE)
        .map(|(at, found)| {
            let rest = &code[at + found.len()..];
            let is_use = code[..at].trim_end().ends_with("use");
            let end = rest.find(';').filter(|_| is_use);
            end.map_or(1, |end| names_of(&rest[..end]))
        })
        .sum()
}

/// Collects the counts of the files below a folder. A module of tests in a separate file is left
/// out.
fn below(folder: &Path, top: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        if path.is_dir() {
            below(&path, top, found);
        } else if let Some(name) = name.strip_suffix(".rs")
            && !name.ends_with("tests")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let count = count(code);
            if count > 0 {
                found.insert(name.to_owned(), count);
            }
        }
    }
}

/// Returns the rows of the table: a part, its count and its reason.
fn rows(table: &str) -> Vec<(&str, usize, &str)> {
    let rows = table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|row| {
        let mut words = row.splitn(3, ' ');
        let (part, count) = (words.next().unwrap(), words.next().unwrap());
        (part, count.parse().unwrap(), words.next().unwrap_or_default())
    })
    .collect()
}

/// Returns whether a file, without its extension, belongs to a part.
fn is_in(file: &str, part: &str) -> bool {
    file.strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the differences from the table, a line for each part.
fn findings(table: &str, files: &BTreeMap<String, usize>) -> Vec<String> {
    let rows = rows(table);
    let mut counts: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    let mut found = Vec::new();
    for (file, count) in files {
        let parts = rows.iter().map(|row| row.0).filter(|part| is_in(file, part));
        match parts.max_by_key(|part| part.len()) {
            Some(part) => counts.entry(part).or_default().push((file, *count)),
            None => found.push(format!(
                "{file} takes {count} names from {UNSTABLE}: use the facade"
            )),
        }
    }
    for (part, most, reason) in &rows {
        let files = counts.get(part).cloned().unwrap_or_default();
        let count: usize = files.iter().map(|(_, count)| count).sum();
        if reason.is_empty() {
            found.push(format!("{part}: the row has no reason"));
        }
        if count > *most {
            let files: Vec<String> = files
                .iter()
                .map(|(file, count)| format!("{file} {count}"))
                .collect();
            found.push(format!(
                "{part} grew from {most} to {count}: use the facade, or add what it lacks\n{}",
                files.join("\n")
            ));
        } else if count < *most {
            found.push(format!(
                "{part} fell from {most} to {count}: write {count} into {TABLE}"
            ));
        }
    }
    found
}

#[test]
fn unstable_names_only_become_fewer() {
    let top = root().unwrap();
    let mut files = BTreeMap::new();
    for folder in FOLDERS {
        below(&top.join(folder), &top, &mut files);
    }
    let table = std::fs::read_to_string(top.join(TABLE)).unwrap();
    let found = findings(&table, &files);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn names_of_use_items_and_paths_are_counted() {
    let code = "use buttress::unstable::fs::{self, File, lookup::{Follow, display_path},};\n\
                use buttress::unstable::tree::Tree;\n\
                use buttress::{Volume, Subvolume};\n\
                // buttress::unstable::fs::Comment\n\
                let a: buttress::unstable::fs::Error = 1;\n";
    assert_eq!(count(code), 6);
}

#[test]
fn a_file_belongs_to_the_longest_part() {
    let files = BTreeMap::from([
        ("crates/cli/src/a".to_owned(), 2),
        ("crates/cli/src/inspect".to_owned(), 1),
        ("crates/cli/src/inspect/tree".to_owned(), 3),
        ("crates/other".to_owned(), 1),
    ]);
    let table = "# A comment.\n\ncrates/cli/src 2 Pending.\ncrates/cli/src/inspect 4 Raw bytes.\n";
    let found = findings(table, &files);
    assert_eq!(
        found,
        ["crates/other takes 1 names from buttress::unstable::: use the facade"]
    );
    let found = findings("crates 3 Pending.\ncrates/cli/src/inspect 5 \n", &files);
    let [reason, fell] = &found[..] else {
        panic!("two findings: {found:?}");
    };
    assert!(reason.ends_with("the row has no reason"), "{reason}");
    assert!(
        fell.starts_with("crates/cli/src/inspect fell from 5 to 4"),
        "{fell}"
    );
    let found = findings("crates 6 Pending.", &files);
    assert!(found[0].starts_with("crates grew from 6 to 7"), "{found:?}");
}
