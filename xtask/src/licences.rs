//! `cargo xtask licences [--advisories]`: checks every dependency against the lists in `deny.toml`,
//! and against published advisories ([`crate::advisories`]).
//!
//! The file `deny.toml` is cargo-deny's, which checks more if it is installed. This chore needs
//! only cargo, so it runs everywhere.

use crate::run::{cargo, root};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeSet;

const USAGE: &str = "usage: cargo xtask licences [--advisories]";

/// Checks all dependencies. Returns an error with all findings: a licence that is not allowed, a
/// banned name, a source other than the registry, or an advisory. With `--advisories`, an
/// impossible check of advisories is an error, too.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let must = words.iter().any(|word| word == "--advisories");
    ensure!(words.len() == usize::from(must), USAGE);
    let rules: toml::Table = toml::from_str(&std::fs::read_to_string(root()?.join("deny.toml"))?)?;
    let list = |table: &str, key: &str| -> Vec<toml::Value> {
        let found = rules
            .get(table)
            .and_then(|table| table.get(key))
            .and_then(toml::Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let allowed: BTreeSet<String> = list("licenses", "allow")
        .iter()
        .filter_map(|value| value.as_str().map(str::to_owned))
        .collect();
    let banned: BTreeSet<String> = list("bans", "deny")
        .iter()
        .filter_map(|value| {
            value
                .get("crate")
                .and_then(toml::Value::as_str)
                .map(str::to_owned)
        })
        .collect();
    let ignored = list("advisories", "ignore").iter().filter_map(id_of).collect();
    let output = cargo()?
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let what = format!("{name} {}", package["version"].as_str().unwrap_or_default());
        if banned.contains(name) {
            findings.push(format!("{what} is banned"));
        }
        match package["source"].as_str() {
            Some(source) if !source.starts_with("registry+") && !source.starts_with("sparse+") => {
                findings.push(format!("{what} comes from {source}"));
            }
            _ => {}
        }
        match package["license"].as_str() {
            Some(licence) => check(&what, licence, &allowed, &mut findings),
            None => findings.push(format!("{what} names no licence")),
        }
    }
    if !findings.is_empty() {
        bail!("{} findings:\n  {}", findings.len(), findings.join("\n  "));
    }
    println!("{} packages, every licence is allowed", packages.len());
    crate::advisories::check(&ignored, must)
}

/// Returns the id of an ignored advisory: a text, or a table with the reason.
fn id_of(value: &toml::Value) -> Option<String> {
    let id = value.get("id").unwrap_or(value);
    id.as_str().map(str::to_owned)
}

fn check(what: &str, licence: &str, allowed: &BTreeSet<String>, findings: &mut Vec<String>) {
    // "MIT/Apache-2.0" is the old spelling of OR.
    match spdx::Expression::parse(&licence.replace('/', " OR ")) {
        Ok(expression) => {
            if !expression.evaluate(|requirement| allowed.contains(&requirement.to_string())) {
                findings.push(format!("{what}: {licence} is not allowed"));
            }
        }
        Err(error) => findings.push(format!("{what}: {licence}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_needs_an_allowed_way_out() {
        let allowed = BTreeSet::from(["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()]);
        for (licence, findings) in [
            ("MIT", 0),
            ("MIT/Apache-2.0", 0),
            ("GPL-2.0-only OR MIT", 0),
            ("GPL-2.0-only", 1),
            ("MIT AND GPL-3.0-or-later", 1),
            ("Apache-2.0 WITH LLVM-exception", 0),
            ("no such licence", 1),
        ] {
            let mut found = Vec::new();
            check("x", licence, &allowed, &mut found);
            assert_eq!(found.len(), findings, "{licence}: {found:?}");
        }
    }
}
