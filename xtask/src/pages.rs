//! Tests of the pages: every link has a target, every named module exists, and no page uses a
//! rejected word.

use crate::run::root;
use std::path::{Path, PathBuf};

/// Rejected words and phrases of pages, each with its replacement. In lower case.
///
/// `docs/internals/glossary.md` has the terms; this list only excludes former terms.
const GIVEN_UP: &[(&str, &str)] = &[
    ("content that waits", "dirty data"),
    ("data that waits", "dirty data"),
    ("references that wait", "delayed references"),
    ("waits in memory", "is dirty"),
    ("begins again", "is retried"),
    ("begin again", "retry"),
    ("lets go of the lock", "releases the lock"),
    ("new rooms", "new modules"),
    ("| room |", "| module |"),
    ("its rooms", "its modules"),
    ("asks for room", "reserves space"),
    ("finds the room", "finds the space"),
    ("finds no room", "finds no space"),
    ("room is short", "space is short"),
    ("takes no room", "takes no space"),
    ("no room", "no space"),
    ("as much room", "as much space"),
];

/// Pages that cite other projects' words.
const FREE: &[&str] = &["docs/internals/glossary.md"];

/// Returns all Markdown files of the repository.
fn pages() -> Vec<PathBuf> {
    let root = root().unwrap();
    let mut found = Vec::new();
    let folders = ["", "docs", "docs/decisions", "docs/internals"];
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the targets of a page's links, outside of code.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (number, block) in text.split("\n```").enumerate() {
        if number % 2 == 1 {
            continue;
        }
        let ends = block.match_indices("](").map(|(at, mark)| at + mark.len());
        found.extend(ends.filter_map(|start| block[start..].split(')').next()));
    }
    found
}

/// Returns the anchors of a page's headings, as forges make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || std::fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).iter().any(|found| found == anchor)));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
}

/// Each row of `docs/internals/where.md` names a function that one of its files defines.
#[test]
fn functions_are_where_the_page_says() {
    let docs = root().unwrap().join("docs/internals");
    let text = std::fs::read_to_string(docs.join("where.md")).unwrap();
    let mut missing = Vec::new();
    let mut count = 0;
    for row in text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains("]("))
    {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [question, files, function] = cells[..] else {
            panic!("a row of another form: {row}");
        };
        let definition = format!("fn {}", function.trim_matches('`'));
        let is_defined = |file: &str| {
            let text = std::fs::read_to_string(docs.join(file)).unwrap_or_default();
            text.match_indices(&definition)
                .any(|(at, found)| text[at + found.len()..].starts_with(['(', '<']))
        };
        count += 1;
        if !links(files).into_iter().any(is_defined) {
            missing.push(format!("{question} {function}"));
        }
    }
    assert!(count > 20, "rows are found: {count}");
    assert_eq!(missing, [""; 0]);
}

/// Returns whether a path of modules, such as `engine::pins`, names a file.
fn module_exists(root: &Path, module: &str) -> bool {
    let mut parts = module.split("::");
    let source = root
        .join("crates")
        .join(parts.next().unwrap_or_default())
        .join("src");
    let inner: PathBuf = parts.collect();
    source.join(&inner).with_extension("rs").is_file()
}

#[test]
fn modules_of_the_glossary_are_there() {
    let root = root().unwrap();
    let text = std::fs::read_to_string(root.join("docs/internals/glossary.md")).unwrap();
    let mut count = 0;
    let mut missing = Vec::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [term, _, module] = cells[..] else { continue };
        if term == "term" {
            continue;
        }
        count += 1;
        let module = module.trim_matches('`');
        if !module_exists(&root, module) {
            missing.push(format!("{term}: {module}"));
        }
    }
    assert!(count > 80, "rows are found: {count}");
    assert_eq!(
        missing, [""; 0],
        "docs/internals/glossary.md names modules that are not there"
    );
}

/// Returns the modules in the tables of a file's head that are not beside the file. Names of types
/// are left out.
fn missing_modules(file: &Path, text: &str) -> Vec<String> {
    let is_root = file.ends_with("lib.rs") || file.ends_with("main.rs");
    let folder = if is_root {
        file.parent().unwrap().to_owned()
    } else {
        file.with_extension("")
    };
    let mut missing = Vec::new();
    let mut is_table = false;
    for line in text.lines() {
        let Some(row) = line.strip_prefix("//! | ") else {
            is_table &= line.starts_with("//! |");
            continue;
        };
        if row.starts_with("module") {
            is_table = true;
            continue;
        }
        let first = row.split('|').next().unwrap_or_default();
        for name in first.split('`').skip(1).step_by(2).filter(|_| is_table) {
            let name = name.trim_start_matches("mod@").trim_end_matches('/');
            let is_module = name.starts_with(|first: char| first.is_ascii_lowercase());
            let path = folder.join(name);
            if is_module && !path.is_dir() && !path.with_extension("rs").is_file() {
                missing.push(format!("{}: {name}", file.display()));
            }
        }
    }
    missing
}

#[test]
fn modules_of_tables_are_there() {
    let root = root().unwrap();
    let (mut missing, mut tables) = (Vec::new(), 0);
    for path in crate::faults::tests::sources(&root.join("crates")) {
        let text = std::fs::read_to_string(&path).unwrap();
        tables += usize::from(text.contains("//! | module"));
        missing.extend(missing_modules(&path, &text));
    }
    assert!(tables > 10, "tables are found: {tables}");
    assert_eq!(missing, [""; 0], "headers name modules that are not there");
    let text = "//! | module | holds |\n//! |---|---|\n//! | `run`, `gone` | x |\n//! | [`Type`] | y |";
    let found = missing_modules(&root.join("xtask/src/main.rs"), text);
    assert!(
        matches!(&found[..], [gone] if gone.ends_with("main.rs: gone")),
        "{found:?}"
    );
}

/// Returns the rejected words of a text. A phrase may continue on the next line.
fn given_up(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = GIVEN_UP.iter().filter(|(old, _)| text.contains(old));
    found
        .map(|(old, new)| format!("\"{old}\"; say \"{new}\""))
        .collect()
}

/// Returns the comments of a source, as one text.
fn comments(source: &str) -> String {
    let lines = source.lines().map(str::trim_start);
    let marked = lines.filter_map(|line| line.strip_prefix("//"));
    marked
        .map(|line| line.trim_start_matches(['/', '!']))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn words_that_were_given_up_stay_away() {
    let root = root().unwrap();
    let mut found = Vec::new();
    let sources = ["crates", "bench", "xtask"]
        .iter()
        .flat_map(|folder| crate::faults::tests::sources(&root.join(folder)));
    for path in pages().into_iter().chain(sources) {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if FREE.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let text = match name.ends_with(".rs") {
            true => comments(&text),
            false => text,
        };
        found.extend(given_up(&text).iter().map(|words| format!("{name}: {words}")));
    }
    assert_eq!(found, [""; 0], "docs/internals/glossary.md has the words to use");
    let source = "//! What\n    /// waits in\n    // memory\nlet x = \"no room\";";
    assert_eq!(
        given_up(&comments(source)),
        ["\"waits in memory\"; say \"is dirty\""]
    );
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# One, two\n[a](b.md#c) and [d](e)\n```\n[not](this)\n```\n## Three: `four`\n[f](#g)";
    assert_eq!(links(text), ["b.md#c", "e", "#g"]);
    assert_eq!(anchors(text), ["one-two", "three-four"]);
    assert!(!module_exists(&root().unwrap(), "fs::no_such_module"));
    assert!(module_exists(&root().unwrap(), "tree::edit::freeze"));
}
