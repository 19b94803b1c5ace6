//! Circles of modules: a table holds the files that import each other in a circle, and a circle may
//! only lose files.
//!
//! A file is a module. These are its arrows:
//!
//! - A `use`, or a path in the code, points to the file that defines the name. A re-exported name
//!   points to its origin.
//! - `mod child;` and `pub use child::Name` are no arrows, unless the file itself uses the name.
//! - A child that uses its parent, and a parent that uses its child, form a circle as any two files
//!   do. A parent module that only declares its children is above them. A parent module that its
//!   children extend is below them.
//! - Test modules have no arrows.
//!
//! Limit: calls of methods are invisible, because an `impl` of a type may be in a higher module
//! than the type.

use crate::run::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The crates whose circles the table holds.
const CRATES: [&str; 11] = [
    "accounts", "check", "engine", "extfs", "format", "fs", "repair", "salvage", "tree", "volume", "writer",
];

/// Path of the table of module circles, below the workspace root.
const TABLE: &str = "xtask/src/modules.txt";

/// Segments of a path.
type Segments = Vec<String>;

/// A name that a `use` brings into a module.
struct Binding {
    name: String,
    path: Segments,
    is_public: bool,
}

/// A file of a crate.
#[derive(Default)]
struct Module {
    /// Path of the module's file below `src`.
    file: String,
    children: BTreeSet<String>,
    bindings: Vec<Binding>,
    /// Returns the module paths in the code of a file, outside `use`.
    paths: Vec<Segments>,
    /// All names of the code, outside `use`.
    names: BTreeSet<String>,
}

/// The modules of a crate by their paths; the root's is empty.
type Modules = BTreeMap<Segments, Module>;

/// Arrows between files, each with the names that the first file uses.
type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

/// Returns the tokens of code: names, `::`, and single characters. Comments and literals are left out.
pub fn tokens(code: &str) -> Vec<&str> {
    let (bytes, mut at, mut found) = (code.as_bytes(), 0, Vec::new());
    while let Some(&byte) = bytes.get(at) {
        let rest = &code[at..];
        let length = match byte {
            b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            b'"' => string_length(rest),
            b'r' if rest.starts_with("r\"") || rest.starts_with("r#\"") => {
                let end = if rest.starts_with("r\"") { "\"" } else { "\"#" };
                3 + rest[3..].find(end).unwrap() + end.len()
            }
            b'\'' => char_length(rest),
            b':' if rest.starts_with("::") => {
                found.push("::");
                2
            }
            _ if byte.is_ascii_alphanumeric() || byte == b'_' => {
                let is_part = |c: char| c.is_alphanumeric() || c == '_';
                let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                found.push(&rest[..length]);
                length
            }
            _ if byte.is_ascii_whitespace() || !byte.is_ascii() => rest.chars().next().unwrap().len_utf8(),
            _ => {
                found.push(&rest[..1]);
                1
            }
        };
        at += length;
    }
    found
}

/// Returns the length of the string literal at the beginning of `code`.
fn string_length(code: &str) -> usize {
    let mut is_escaped = true;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns the length of the character literal or of the lifetime's tick at the beginning of `code`.
fn char_length(code: &str) -> usize {
    let mut chars = code.char_indices().skip(1);
    let first = chars.next();
    match (first, chars.next()) {
        (Some((_, '\\')), Some(_)) => chars
            .find(|(_, c)| *c == '\'')
            .map_or(code.len(), |(at, _)| at + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Reads one tree of a `use` from `at` on, and returns the place after it.
fn read_use(
    tokens: &[&str],
    mut at: usize,
    before: &[String],
    public: bool,
    found: &mut Vec<Binding>,
) -> usize {
    let mut path = before.to_vec();
    let mut name = None;
    while let Some(&token) = tokens.get(at) {
        match token {
            "{" => {
                at += 1;
                while tokens[at] != "}" {
                    at = read_use(tokens, at, &path, public, found);
                    at += usize::from(tokens[at] == ",");
                }
                return at + 1;
            }
            "," | "}" | ";" => break,
            "::" => {}
            "as" => {
                at += 1;
                name = Some(tokens[at].to_owned());
            }
            // `use a::{self}` imports `a`.
            "self" if !path.is_empty() => {}
            _ => path.push(token.to_owned()),
        }
        at += 1;
    }
    let name = name.or_else(|| path.last().cloned());
    found.extend(name.map(|name| Binding {
        name,
        path,
        is_public: public,
    }));
    at
}

/// Reads a file. Children compiled only for tests are left out.
fn read(file: &str, code: &str) -> Module {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let tokens = tokens(code);
    let mut module = Module::default();
    file.clone_into(&mut module.file);
    let mut at = 0;
    while let Some(&token) = tokens.get(at) {
        let before = at.checked_sub(1).map(|before| tokens[before]);
        let is_public = before == Some("pub") || before == Some(")");
        if token == "use" && tokens.get(at + 1) != Some(&"<") {
            at = read_use(&tokens, at + 1, &[], is_public, &mut module.bindings);
        } else if token == "mod" && tokens.get(at + 2) == Some(&";") {
            if !is_of_tests(&tokens[..at]) {
                module.children.insert(tokens[at + 1].to_owned());
            }
            at += 2;
        } else if is_name(token) && before != Some("::") {
            let mut path = vec![token.to_owned()];
            while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|next| is_name(next)) {
                path.push(tokens[at + 2].to_owned());
                at += 2;
            }
            // A field or method of this name is another name.
            if before != Some(".") {
                module.names.insert(path[0].clone());
            }
            // The form `pub(in super::a)` uses no name.
            if path.len() > 1 && !(before == Some("in") && path[0] == "super") {
                module.paths.push(path);
            }
        }
        at += 1;
    }
    module
}

/// Returns whether tokens end with `#[cfg(test)]`, optionally followed by a visibility.
fn is_of_tests(before: &[&str]) -> bool {
    let attribute = before
        .iter()
        .rev()
        .skip_while(|token| ["pub", "(", "crate", ")"].contains(token));
    attribute.take(5).eq(&["]", ")", "test", "(", "cfg"])
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Reads a module and the modules below it, from files below `src`.
fn read_below(src: &Path, path: Segments, file: &str, modules: &mut Modules) {
    let code = std::fs::read_to_string(src.join(file)).unwrap();
    let module = read(file, &code);
    for child in &module.children {
        let below = path.iter().chain([child]).cloned().collect::<Segments>();
        let name = format!("{}.rs", below.join("/"));
        read_below(src, below, &name, modules);
    }
    modules.insert(path, module);
}

/// Returns the module that defines the name of `path` in the module `from`. Returns `None` for
/// another crate's names.
fn origin(modules: &Modules, from: &Segments, path: &[String], depth: usize) -> Option<Segments> {
    let (mut here, mut rest) = (from.clone(), path);
    match rest.first().map(String::as_str) {
        Some("crate") => (here, rest) = (Segments::new(), &rest[1..]),
        Some("self") => rest = &rest[1..],
        Some("super") => {
            while rest.first().is_some_and(|segment| segment == "super") {
                here.pop();
                rest = &rest[1..];
            }
        }
        Some(child) if modules[from].children.contains(child) => {}
        _ => return None,
    }
    while let Some((segment, after)) = rest.split_first() {
        let module = &modules[&here];
        if module.children.contains(segment) {
            here.push(segment.clone());
            rest = after;
            continue;
        }
        let Some(binding) = module.bindings.iter().find(|binding| binding.name == *segment) else {
            break;
        };
        assert!(depth < 9, "{path:?} of {from:?} leads to itself");
        let further = binding.path.iter().chain(after).cloned().collect::<Segments>();
        return origin(modules, &here, &further, depth + 1);
    }
    Some(here)
}

/// Returns the imports between the files of a crate.
fn arrows(modules: &Modules) -> Arrows {
    let mut arrows = Arrows::new();
    for (from, module) in modules {
        let used = module
            .bindings
            .iter()
            .filter(|binding| !binding.is_public || module.names.contains(&binding.name))
            .map(|binding| &binding.path);
        for path in used.chain(&module.paths) {
            if let Some(to) = origin(modules, from, path, 0)
                && to != *from
            {
                let names = arrows
                    .entry((module.file.clone(), modules[&to].file.clone()))
                    .or_default();
                names.insert(path.last().unwrap().clone());
            }
        }
    }
    arrows
}

/// Returns the circles: sets of files that reach each other.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, _) in arrows.keys() {
        let (mut found, mut open) = (BTreeSet::new(), vec![from.as_str()]);
        while let Some(here) = open.pop() {
            let next = arrows.keys().filter(|(from, _)| from == here);
            open.extend(next.map(|(_, to)| to.as_str()).filter(|to| found.insert(*to)));
        }
        reached.insert(from, found);
    }
    let mutual = |file: &str| -> BTreeSet<String> {
        let both = reached[file].iter();
        both.filter(|other| reached.get(**other).is_some_and(|back| back.contains(file)))
            .map(|other| (*other).to_owned())
            .collect()
    };
    let circles: BTreeSet<_> = reached.keys().map(|file| mutual(file)).collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// Returns the arrows inside a circle, a line for each.
fn ties(circle: &BTreeSet<String>, arrows: &Arrows) -> String {
    arrows
        .iter()
        .filter(|((from, to), _)| circle.contains(from) && circle.contains(to))
        .map(|((from, to), names)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!("  {from} -> {to}: {}", names.join(", "))
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns the circles of the table: each row is a crate and its files.
fn rows(table: &str) -> Vec<(&str, BTreeSet<String>)> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let (name, files) = row.split_once(' ').unwrap();
        (name, files.split(' ').map(str::to_owned).collect())
    })
    .collect()
}

/// Returns the differences from the table for a crate.
fn findings(table: &str, name: &str, arrows: &Arrows) -> Vec<String> {
    let circles = circles(arrows);
    let row = |circle: &BTreeSet<String>| {
        let files: Vec<_> = circle.iter().map(String::as_str).collect();
        format!("{name} {}", files.join(" "))
    };
    let listed: Vec<_> = rows(table)
        .into_iter()
        .filter(|row| row.0 == name)
        .map(|row| row.1)
        .collect();
    let mut found = Vec::new();
    for circle in circles.iter().filter(|circle| !listed.contains(circle)) {
        let verdict = if listed.iter().any(|listed| listed.is_superset(circle)) {
            format!("a circle became smaller: write into {TABLE}\n{}", row(circle))
        } else {
            format!(
                "{} files form a circle that {TABLE} does not permit:\n{}\n{}",
                circle.len(),
                row(circle),
                ties(circle, arrows)
            )
        };
        found.push(format!("{name}: {verdict}"));
    }
    for circle in listed.iter().filter(|circle| !circles.contains(circle)) {
        if !circles.iter().any(|found| circle.is_superset(found)) {
            found.push(format!(
                "{name}: a circle is gone: delete from {TABLE}\n{}",
                row(circle)
            ));
        }
    }
    found
}

/// Returns the arrows of a crate of the workspace.
fn arrows_of(name: &str) -> Arrows {
    let src = root().unwrap().join("crates").join(name).join("src");
    let mut modules = Modules::new();
    read_below(&src, Segments::new(), "lib.rs", &mut modules);
    arrows(&modules)
}

#[test]
fn circles_of_modules_only_lose_files() {
    let table = std::fs::read_to_string(root().unwrap().join(TABLE)).unwrap();
    let mut found = Vec::new();
    for name in CRATES {
        found.extend(findings(&table, name, &arrows_of(name)));
    }
    found.extend(
        rows(&table)
            .iter()
            .filter(|row| !CRATES.contains(&row.0))
            .map(|row| format!("{TABLE} names {}, which is not measured", row.0)),
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn paths_lead_to_the_module_that_defines_the_name() {
    let files = [
        (
            "",
            "lib.rs",
            "mod low;\npub mod high;\npub use high::High;\nuse low::{Low as Lower, parts::*};\n",
        ),
        (
            "low",
            "low.rs",
            "#[cfg(test)]\nmod tests;\nmod parts;\nuse other::Name;\nfn f(c: char) -> bool { c == '\"' || parts::f() }",
        ),
        (
            "low::parts",
            "low/parts.rs",
            "use super::{self, Name};\nuse crate::High; // use crate::high::Comment;\n",
        ),
        (
            "high",
            "high.rs",
            "use super::Lower;\npub(in super::low) fn f() -> impl Iterator + use<'static> { \"super::low::parts::g\" }\n",
        ),
    ];
    let modules: Modules = files
        .into_iter()
        .map(|(path, file, code)| {
            let path = path
                .split("::")
                .filter(|segment| !segment.is_empty())
                .map(str::to_owned);
            (path.collect(), read(file, code))
        })
        .collect();
    let arrows = arrows(&modules);
    let arrows: Vec<_> = arrows
        .keys()
        .map(|(from, to)| format!("{from} -> {to}"))
        .collect();
    assert_eq!(
        arrows,
        [
            "high.rs -> low.rs",
            "lib.rs -> low.rs",
            "lib.rs -> low/parts.rs",
            "low.rs -> low/parts.rs",
            "low/parts.rs -> high.rs",
            "low/parts.rs -> low.rs",
        ]
    );
}

#[test]
fn table_is_held_to_the_circles_found() {
    let arrow = |from: &str, to: &str| {
        (
            (from.to_owned(), to.to_owned()),
            BTreeSet::from(["Name".to_owned()]),
        )
    };
    let arrows = Arrows::from([
        arrow("a", "b"),
        arrow("b", "a"),
        arrow("b", "c"),
        arrow("c", "d"),
        arrow("d", "c"),
    ]);
    assert_eq!(
        findings("# A comment.\nx a b\nx c d\ny e f", "x", &arrows),
        [""; 0]
    );
    let found = findings("x a b c\nx e f", "x", &arrows);
    let [smaller, new, gone] = &found[..] else {
        panic!("three findings: {found:?}");
    };
    assert!(
        smaller.contains("became smaller") && smaller.ends_with("x a b"),
        "{smaller}"
    );
    assert!(
        new.contains("2 files form a circle") && new.contains("  c -> d: Name"),
        "{new}"
    );
    assert!(gone.contains("is gone") && gone.ends_with("x e f"), "{gone}");
}
