//! Licences of all crates that are linked into the program: for each crate its name, version,
//! licence and texts, each text once.

use crate::run::cargo;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Prefixes of the names of licence files, in lower case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "copyright"];

/// Returns the notices for a package that is built for `triple`.
pub(super) fn of(package: &str, triple: &str) -> Result<String> {
    let output = cargo()?
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            triple,
        ])
        .output()?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let first = packages
        .iter()
        .find(|(_, found)| found["name"].as_str() == Some(package))
        .with_context(|| format!("the package {package}"))?;
    let mut linked = BTreeSet::new();
    let mut next = vec![*first.0];
    while let Some(id) = next.pop() {
        if linked.insert(id) {
            next.extend(nodes.get(id).into_iter().flat_map(|node| normal(node)));
        }
    }
    let mut crates: Vec<&Value> = linked.iter().filter_map(|id| packages.get(id).copied()).collect();
    crates.retain(|package| !package["source"].is_null());
    crates.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    let mut text = format!("{package} is linked with these libraries:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in crates {
        let name = format!(
            "{} {}",
            package["name"].as_str().unwrap_or_default(),
            package["version"].as_str().unwrap_or_default()
        );
        let licence = package["license"].as_str().unwrap_or("see below");
        text.push_str(&format!("{name}: {licence}\n"));
        let manifest = package["manifest_path"].as_str().context("a manifest's path")?;
        let folder = Path::new(manifest)
            .parent()
            .context("a manifest lies in a folder")?;
        for licence in texts_in(folder)? {
            texts.entry(licence).or_default().push(name.clone());
        }
    }
    for (licence, names) in texts {
        text.push_str(&format!(
            "\n{}\n{}:\n\n{licence}\n",
            "-".repeat(80),
            names.join(", ")
        ));
    }
    Ok(text)
}

fn by_id(list: &Value) -> BTreeMap<&str, &Value> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|one| Some((one["id"].as_str()?, one))).collect()
}

/// Returns the packages that a package links, without those that build or test it.
fn normal(node: &Value) -> impl Iterator<Item = &str> {
    let all = node["deps"].as_array().into_iter().flatten();
    all.filter(|dependency| {
        let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
        kinds.any(|kind| kind["kind"].is_null())
    })
    .filter_map(|dependency| dependency["pkg"].as_str())
}

/// Returns the texts of the licence files in a package's folder.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            let bytes = std::fs::read(entry.path())?;
            found.push(
                String::from_utf8_lossy(&bytes)
                    .replace("\r\n", "\n")
                    .trim_end()
                    .to_owned(),
            );
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #[test]
    fn libraries_that_are_linked_are_named_with_their_licences() {
        let text = super::of("buttress-cli", "x86_64-unknown-linux-gnu").unwrap();
        assert!(
            text.lines()
                .any(|line| line.starts_with("clap ") && line.contains("MIT")),
            "{text}"
        );
        assert!(text.contains("Permission is hereby granted"));
        for other in ["proptest ", "insta ", "buttress-oracle "] {
            let is_named = text.lines().any(|line| line.starts_with(other));
            assert!(!is_named, "{other}is not linked");
        }
    }
}
