//! Requirements of a registry on a package, and the dependencies that a published package may have.

use crate::run::cargo;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns the workspace's packages by name.
fn packages() -> BTreeMap<String, Value> {
    let words = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = cargo().unwrap().args(words).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().clone();
    let named = packages.into_iter();
    named
        .map(|package| (package["name"].as_str().unwrap().to_owned(), package))
        .collect()
}

/// Returns whether a package is published. `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    !package["publish"].as_array().is_some_and(Vec::is_empty)
}

/// Returns the problems of packages to be published.
fn findings(packages: &BTreeMap<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, package) in packages.iter().filter(|(_, package)| is_published(package)) {
        for field in ["description", "license", "readme", "rust_version"] {
            if package[field].as_str().is_none_or(str::is_empty) {
                found.push(format!("{name} has no {field}"));
            }
        }
        for list in ["keywords", "categories"] {
            let count = package[list].as_array().map_or(0, Vec::len);
            if !(1..=5).contains(&count) {
                found.push(format!("{name} has {count} {list}; a registry takes 1 to 5"));
            }
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap();
            if packages.get(other).is_none_or(is_published) {
                continue;
            }
            let is_test = dependency["kind"].as_str() == Some("dev");
            let has_version = dependency["req"].as_str() != Some("*");
            if !is_test {
                found.push(format!("{name} depends on {other}, which is not published"));
            } else if has_version {
                found.push(format!(
                    "tests of {name} use {other} with a version: it must be without one to be left out"
                ));
            }
        }
    }
    found
}

#[test]
fn packages_that_are_published_have_what_a_registry_wants() {
    assert_eq!(findings(&packages()), [""; 0]);
}

#[test]
fn only_crates_for_users_are_published() {
    let packages = packages();
    for (name, published) in [
        ("buttress", true),
        ("buttress-cli", true),
        ("buttress-format", true),
        ("buttress-lab", true),
        ("buttress-oracle", false),
        ("buttress-proof", false),
        ("buttress-hostile", false),
        ("buttress-bench", false),
        ("xtask", false),
    ] {
        assert_eq!(is_published(&packages[name]), published, "{name}");
    }
}

#[test]
fn what_is_missing_is_found() {
    let mut packages = packages();
    let format = packages.get_mut("buttress-format").unwrap();
    format["description"] = Value::Null;
    format["keywords"] = Value::Array(Vec::new());
    format["dependencies"] = serde_json::json!([{ "name": "buttress-oracle", "kind": null, "req": "*" }]);
    assert_eq!(
        findings(&packages),
        [
            "buttress-format has no description",
            "buttress-format has 0 keywords; a registry takes 1 to 5",
            "buttress-format depends on buttress-oracle, which is not published"
        ]
    );
}

#[test]
fn the_pinned_toolchain_is_what_manifests_ask_for() {
    let root = crate::run::root().unwrap();
    let read = |name: &str| -> toml::Table {
        toml::from_str(&std::fs::read_to_string(root.join(name)).unwrap()).unwrap()
    };
    let pinned = read("rust-toolchain.toml")["toolchain"]["channel"]
        .as_str()
        .unwrap()
        .to_owned();
    let least = read("Cargo.toml")["workspace"]["package"]["rust-version"]
        .as_str()
        .unwrap()
        .to_owned();
    let parts: Vec<_> = pinned.split('.').collect();
    assert_eq!(parts.len(), 3, "an exact version: {pinned}");
    assert_eq!(parts[..2].join("."), least);
}

/// The forge's workflow runs `.ci/run`, and installs the programs that tests need.
#[test]
fn the_workflow_brings_what_tests_need() {
    let root = crate::run::root().unwrap();
    let workflow = std::fs::read_to_string(root.join(".github/workflows/ci.yml")).unwrap();
    let words: Vec<_> = workflow.split_whitespace().collect();
    for (program, package) in buttress_oracle::needs::PROGRAMS {
        assert!(words.contains(&package), "{program} comes with {package}");
    }
    assert!(workflow.contains("- run: .ci/run"));
}
