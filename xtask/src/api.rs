//! `cargo xtask api [--write]`: compares the library's public interface with the list in the
//! repository.
//!
//! rustdoc describes the crate `buttress` with the feature `full` and without `unstable`. The list
//! has a line for each public item, including items of types that the crate re-exports from the
//! layers below. A change of the interface changes this file in the same commit: `--write` updates
//! the file.
//!
//! rustdoc's JSON is an unstable option, so the chore runs the pinned toolchain as a nightly one
//! ([`BOOTSTRAP`]). The crate `public-api` reads one version of that format, so the crate and the
//! toolchain are updated together.
//!
//! Left out: methods of blanket and derived implementations, and items below re-exports of another
//! library.

use crate::run::{cargo, root, run as run_command, target};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const USAGE: &str = "usage: cargo xtask api [--write]";

/// The path of the recorded list of public items.
const LIST: &str = "crates/buttress/api.txt";

/// The variable that permits unstable options of the pinned toolchain.
const BOOTSTRAP: &str = "RUSTC_BOOTSTRAP";

/// The number of lines of a difference that the chore prints.
const LINES_SHOWN_MAX: usize = 40;

pub(crate) fn run(words: &[String]) -> Result<()> {
    let writes = match words {
        [] => false,
        [word] if word == "--write" => true,
        _ => bail!(USAGE),
    };
    let now = interface()?;
    let path = root()?.join(LIST);
    if writes {
        return std::fs::write(&path, now).with_context(|| format!("writing {LIST}"));
    }
    let kept = std::fs::read_to_string(&path).with_context(|| format!("reading {LIST}"))?;
    let changes = difference(&kept, &now);
    println!("{} public items, {} changed", now.lines().count(), changes.len());
    for line in changes.iter().take(LINES_SHOWN_MAX) {
        println!("{line}");
    }
    ensure!(
        changes.is_empty(),
        "the public interface differs from {LIST}: `cargo xtask api --write` records it"
    );
    Ok(())
}

/// An item of a lower layer that the library re-exports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reexport {
    /// The crate that defines the item.
    library: String,
    /// The item's name in the lower crate. `None` means that the whole crate is re-exported.
    name: Option<String>,
    /// The name under which the library re-exports the item.
    alias: String,
}

impl Reexport {
    /// Returns the rest of a path after this item, if the path leads to or through the item.
    fn rest_of<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.library.as_str())?;
        let Some(name) = &self.name else {
            return Some(rest).filter(|rest| rest.is_empty() || rest.starts_with("::"));
        };
        let mut rest = rest;
        loop {
            rest = rest.strip_prefix("::")?;
            let end = rest.find("::").unwrap_or(rest.len());
            let (word, behind) = rest.split_at_checked(end)?;
            if word == name {
                return Some(behind);
            }
            rest = behind;
        }
    }
}

/// Returns the list of all public items, one per line.
fn interface() -> Result<String> {
    document(&["--package", "buttress", "--features", "full"])?;
    let folder = folder()?.join("doc");
    let mut lines: BTreeSet<String> = items(&folder, "buttress")?.into_iter().collect();
    let reexports = reexports(&std::fs::read_to_string(folder.join("buttress.json"))?)?;
    let libraries: BTreeSet<&str> = reexports.iter().map(|one| one.library.as_str()).collect();
    let packages: Vec<String> = libraries.iter().map(|name| name.replace('_', "-")).collect();
    let choice = packages.iter().flat_map(|name| ["--package", name.as_str()]);
    document(&choice.collect::<Vec<_>>())?;
    for library in libraries {
        let all = items(&folder, library)?;
        lines.extend(all.into_iter().filter(|line| {
            let path = path_of(line);
            reexports.iter().any(|one| one.rest_of(path).is_some())
        }));
    }
    let lines: BTreeSet<String> = lines.iter().map(|line| with_aliases(line, &reexports)).collect();
    Ok(lines
        .into_iter()
        .fold(String::new(), |text, line| text + &line + "\n"))
}

/// Returns a line with the library's names for re-exported items.
fn with_aliases(line: &str, reexports: &BTreeSet<Reexport>) -> String {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let mut text = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_path) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|letter| !is_path(letter)).unwrap_or(from.len());
        let (path, behind) = from.split_at(end);
        let known = reexports.iter().find_map(|one| Some((one, one.rest_of(path)?)));
        text += before;
        match known {
            Some((one, below)) => {
                text += "buttress::";
                text += &one.alias;
                text += below;
            }
            None => text += path,
        }
        rest = behind;
    }
    text + rest
}

/// Makes rustdoc's JSON of the packages that `choice` selects.
fn document(choice: &[&str]) -> Result<()> {
    let mut command = cargo()?;
    command.args(["doc", "--quiet", "--lib", "--no-deps", "--locked"]);
    command.args(choice);
    // Build scripts of dependencies watch this variable. A separate target folder keeps other
    // builds fresh.
    command.env("CARGO_TARGET_DIR", folder()?).env(BOOTSTRAP, "1");
    command.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    run_command(&mut command)
}

fn folder() -> Result<PathBuf> {
    Ok(target()?.join("api"))
}

fn items(folder: &Path, library: &str) -> Result<Vec<String>> {
    let api = public_api::Builder::from_rustdoc_json(folder.join(format!("{library}.json")))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("reading rustdoc's JSON of {library}"))?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// Returns the project's items that a crate re-exports, from rustdoc's JSON.
fn reexports(json: &str) -> Result<BTreeSet<Reexport>> {
    let json: Value = serde_json::from_str(json).context("rustdoc's JSON")?;
    let paths = json
        .get("paths")
        .and_then(Value::as_object)
        .context("no `paths`")?;
    let index = json
        .get("index")
        .and_then(Value::as_object)
        .context("no `index`")?;
    let uses = index.values().filter_map(|item| item.pointer("/inner/use"));
    Ok(uses.filter_map(|one| reexport(one, paths)).collect())
}

fn reexport(item: &Value, paths: &Map<String, Value>) -> Option<Reexport> {
    let id = item.get("id")?.as_u64()?;
    let path = paths.get(&id.to_string())?.get("path")?.as_array()?;
    let mut words = path.iter().filter_map(Value::as_str);
    let library = words.next().filter(|library| library.starts_with("buttress_"))?;
    Some(Reexport {
        library: library.to_owned(),
        name: words.next_back().map(str::to_owned),
        alias: item.get("name")?.as_str()?.to_owned(),
    })
}

/// Returns the path of the item on a line of the list.
fn path_of(line: &str) -> &str {
    let name = match line.strip_prefix("impl") {
        // The path covers `impl Trait for Type` and `impl Type`.
        Some(rest) => match rest.rsplit_once(" for ") {
            Some((_, of)) => of,
            None => rest.trim_start(),
        },
        None => line
            .split([' ', '(', '<'])
            .find(|word| word.contains("::") && !word.starts_with("#["))
            .unwrap_or(line),
    };
    let end = name.find(['(', '<', ' ']).unwrap_or(name.len());
    name.get(..end).unwrap_or(name).trim_end_matches(':')
}

/// Returns the removed lines (`-`) and the added lines (`+`) of the list, in order.
fn difference(kept: &str, now: &str) -> Vec<String> {
    let (kept, now): (BTreeSet<&str>, BTreeSet<&str>) = (kept.lines().collect(), now.lines().collect());
    let mut changes: Vec<(&str, char)> = kept.difference(&now).map(|line| (*line, '-')).collect();
    changes.extend(now.difference(&kept).map(|line| (*line, '+')));
    changes.sort_unstable();
    changes
        .iter()
        .map(|(line, sign)| format!("{sign} {line}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_path_of_its_item() {
        for (line, path) in [
            ("pub fn a::B::c(&self) -> d::E", "a::B::c"),
            ("pub const fn a::B::c<T>(self, e: f::G) -> d::E", "a::B::c"),
            ("pub a::B::c: d::E", "a::B::c"),
            ("#[non_exhaustive] pub enum a::B", "a::B"),
            ("impl a::B", "a::B"),
            ("impl core::fmt::Display for a::B<'_>", "a::B"),
        ] {
            assert_eq!(path_of(line), path, "{line}");
        }
    }

    fn of(library: &str, name: Option<&str>, alias: &str) -> Reexport {
        let (library, alias) = (library.to_owned(), alias.to_owned());
        let name = name.map(str::to_owned);
        Reexport { library, name, alias }
    }

    #[test]
    fn a_path_leads_through_an_item_by_any_module() {
        let name = of("buttress_fs", Some("Name"), "Name");
        assert_eq!(name.rest_of("buttress_fs::Name::new"), Some("::new"));
        assert_eq!(name.rest_of("buttress_fs::names::Name"), Some(""));
        assert_eq!(name.rest_of("buttress_fs::Names::new"), None);
        assert_eq!(name.rest_of("buttress_tree::Name"), None);
        let whole = of("buttress_fs", None, "fs");
        assert_eq!(whole.rest_of("buttress_fs::Name"), Some("::Name"));
        assert_eq!(whole.rest_of("buttress_fsx::Name"), None);
    }

    #[test]
    fn lines_have_the_librarys_names() {
        let reexports = BTreeSet::from([
            of("buttress_check", Some("Report"), "CheckReport"),
            of("buttress_format", Some("ByteCount"), "ByteCount"),
        ]);
        assert_eq!(
            with_aliases(
                "pub fn buttress_check::report::Report::bytes(&self) -> buttress_format::ByteCount",
                &reexports
            ),
            "pub fn buttress::CheckReport::bytes(&self) -> buttress::ByteCount"
        );
    }

    #[test]
    fn reexports_have_their_origin_and_their_name() {
        let json = r#"{
            "index": {"1": {"inner": {"use": {"name": "Label", "id": 7}}}, "2": {"inner": {"use": {"id": 8}}},
                      "3": {"inner": {"struct": {}}}, "4": {"inner": {"use": {"name": "scrub", "id": 9}}}},
            "paths": {"7": {"path": ["buttress_fs", "names", "Name"]}, "8": {"path": ["uuid", "Uuid"]},
                      "9": {"path": ["buttress_scrub"]}}
        }"#;
        let expected = [
            of("buttress_fs", Some("Name"), "Label"),
            of("buttress_scrub", None, "scrub"),
        ];
        assert_eq!(reexports(json).unwrap().into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_difference_names_lines_that_went_and_came() {
        assert_eq!(difference("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
        assert!(difference("a\n", "a\n").is_empty());
    }
}
