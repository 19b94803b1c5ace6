//! Checks published advisories on dependencies: a part of `cargo xtask licences`.
//!
//! The database is RustSec's: a repository with a file for each advisory and its affected versions.
//! Getting the advisory database needs a network or an earlier clone. Without a clone of the
//! database, the chore reports that advisories were not checked, and passes. `cargo xtask licences
//! --advisories` fetches the database and fails if that is impossible; the forge's workflow runs
//! this.
//!
//! Vulnerabilities and unsound code are findings. Notices and unmaintained crates are printed.
//! `deny.toml` lists exceptions, each with its reason.

use crate::run::{root, target};
use anyhow::{Context, Result, bail, ensure};
use semver::{Version, VersionReq};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The address of the database.
const URL: &str = "https://github.com/rustsec/advisory-db";
/// The variable that names a clone of the database.
const VARIABLE: &str = "BUTTRESS_ADVISORY_DB";
/// The lock files with the versions of all dependencies.
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// An advisory on a crate.
#[derive(Debug)]
struct Advisory {
    id: String,
    package: String,
    /// The first heading of the advisory's text.
    title: String,
    /// `unmaintained`, `unsound` or `notice`; none for a vulnerability.
    informational: Option<String>,
    /// The versions of the crate that the advisory does not affect.
    safe: Vec<VersionReq>,
}

impl Advisory {
    fn concerns(&self, version: &Version) -> bool {
        !self.safe.iter().any(|safe| safe.matches(version))
    }

    /// Returns whether the advisory is printed without being a finding.
    fn is_note(&self) -> bool {
        self.informational
            .as_deref()
            .is_some_and(|kind| kind != "unsound")
    }
}

/// Compares all dependencies with the database, if there is one. `ignored` holds the ids of
/// exceptions.
///
/// # Errors
/// Returns the findings; with `must`, also an unavailable database.
pub(crate) fn check(ignored: &BTreeSet<String>, must: bool) -> Result<()> {
    let found = match must {
        true => Some(fetched()?),
        false => on_this_machine()?,
    };
    let Some(folder) = found else {
        println!(
            "advisories: NOT CHECKED, no database on this machine; `cargo xtask licences --advisories` fetches it"
        );
        return Ok(());
    };
    let mut packages = BTreeSet::new();
    for lock in LOCKS {
        packages.extend(locked(&std::fs::read_to_string(root()?.join(lock))?)?);
    }
    let advisories = read(&folder)?;
    ensure!(!advisories.is_empty(), "{} has no advisories", folder.display());
    let (findings, notes) = compare(&packages, &advisories, ignored);
    for note in notes {
        println!("advisories: note: {note}");
    }
    if !findings.is_empty() {
        bail!("{} advisories:\n  {}", findings.len(), findings.join("\n  "));
    }
    let count: usize = advisories.values().map(Vec::len).sum();
    println!(
        "{} packages, none concerned by {count} advisories of {}",
        packages.len(),
        date(&folder)
    );
    Ok(())
}

/// Returns this machine's clone of the database: another tool's, or the chore's.
fn on_this_machine() -> Result<Option<PathBuf>> {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Ok(Some(folder.into()));
    }
    let mut folders = vec![own()?];
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    if let Some(home) = home {
        folders.push(home.join("advisory-db"));
        let others = std::fs::read_dir(home.join("advisory-dbs"));
        folders.extend(others.into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    Ok(folders.into_iter().find(|folder| folder.join("crates").is_dir()))
}

/// Returns the path of the chore's own clone.
fn own() -> Result<PathBuf> {
    Ok(target()?.join("advisory-db"))
}

/// Fetches the current database, or returns the clone that `BUTTRESS_ADVISORY_DB` names.
fn fetched() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Ok(folder.into());
    }
    let folder = own()?;
    let mut git = Command::new("git");
    // The fetch ends if no data arrives, and asks for no password.
    git.args(["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null());
    match folder.join("crates").is_dir() {
        true => git
            .arg("-C")
            .arg(&folder)
            .args(["pull", "--quiet", "--depth", "1", "--rebase"]),
        false => git.args(["clone", "--quiet", "--depth", "1", URL]).arg(&folder),
    };
    let output = git.output().context("starting git")?;
    ensure!(
        output.status.success(),
        "advisories: the database cannot be had from {URL} ({}); with a clone of it, set {VARIABLE} to its folder",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(folder)
}

/// Returns the date of the clone's newest commit, or a note if git does not know the date.
fn date(folder: &Path) -> String {
    let words = ["log", "-1", "--format=%cs"];
    let output = Command::new("git").arg("-C").arg(folder).args(words).output();
    let text = output.ok().filter(|output| output.status.success());
    text.map_or_else(
        || "an unknown day".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Returns the packages of a lock file that come from a registry.
fn locked(text: &str) -> Result<BTreeSet<(String, Version)>> {
    let lock: toml::Table = toml::from_str(text)?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let mut found = BTreeSet::new();
    for package in packages.context("a lock file lists packages")? {
        let text = |key: &str| package.get(key).and_then(toml::Value::as_str);
        if text("source").is_some() {
            let name = text("name").context("a package has a name")?;
            let version = text("version").context("a package has a version")?;
            found.insert((name.to_owned(), Version::parse(version)?));
        }
    }
    Ok(found)
}

/// Reads all advisories of a database, by package.
fn read(folder: &Path) -> Result<BTreeMap<String, Vec<Advisory>>> {
    let mut found: BTreeMap<String, Vec<Advisory>> = BTreeMap::new();
    let crates = folder.join("crates");
    let entries = std::fs::read_dir(&crates).with_context(|| format!("{}", crates.display()))?;
    for package in entries {
        for file in std::fs::read_dir(package?.path())? {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            if let Some(advisory) = parse(&text).with_context(|| format!("{}", path.display()))? {
                found.entry(advisory.package.clone()).or_default().push(advisory);
            }
        }
    }
    Ok(found)
}

/// Parses an advisory. Returns `None` for a withdrawn advisory.
fn parse(text: &str) -> Result<Option<Advisory>> {
    let (head, body) = text
        .trim_start()
        .strip_prefix("```toml")
        .and_then(|text| text.split_once("\n```"))
        .context("a block of TOML comes first")?;
    let head: toml::Table = toml::from_str(head)?;
    let advisory = head.get("advisory").context("a table `advisory`")?;
    let field = |key: &str| advisory.get(key).and_then(toml::Value::as_str);
    if advisory.get("withdrawn").is_some() {
        return Ok(None);
    }
    let mut safe = Vec::new();
    for key in ["patched", "unaffected"] {
        let versions = head.get("versions").and_then(|versions| versions.get(key));
        for requirement in versions.and_then(toml::Value::as_array).into_iter().flatten() {
            let requirement = requirement.as_str().context("a requirement is text")?;
            safe.push(VersionReq::parse(requirement)?);
        }
    }
    let title = body.lines().find_map(|line| line.strip_prefix("# "));
    Ok(Some(Advisory {
        id: field("id").context("an id")?.to_owned(),
        package: field("package").context("a package")?.to_owned(),
        title: title.unwrap_or("without a title").trim().to_owned(),
        informational: field("informational").map(str::to_owned),
        safe,
    }))
}

/// Returns the advisories' findings and notes, a line for each.
fn compare(
    packages: &BTreeSet<(String, Version)>,
    advisories: &BTreeMap<String, Vec<Advisory>>,
    ignored: &BTreeSet<String>,
) -> (Vec<String>, Vec<String>) {
    let (mut findings, mut notes) = (Vec::new(), Vec::new());
    for (name, version) in packages {
        for advisory in advisories.get(name).into_iter().flatten() {
            if ignored.contains(&advisory.id) || !advisory.concerns(version) {
                continue;
            }
            let kind = advisory.informational.as_deref().unwrap_or("vulnerable");
            let line = format!("{name} {version}: {kind}: {} ({})", advisory.title, advisory.id);
            match advisory.is_note() {
                true => notes.push(line),
                false => findings.push(line),
            }
        }
    }
    (findings, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advisory(kind: &str, versions: &str) -> String {
        format!(
            "```toml\n[advisory]\nid = \"RUSTSEC-2018-0002\"\npackage = \"tar\"\n{kind}\n[versions]\n{versions}\n```\n\n# Links\n\nText.\n"
        )
    }

    fn lines(text: &str, version: &str, ignored: &[&str]) -> (Vec<String>, Vec<String>) {
        let advisory = parse(text).unwrap().unwrap();
        let packages = BTreeSet::from([("tar".to_owned(), Version::parse(version).unwrap())]);
        let ignored = ignored.iter().map(|id| (*id).to_owned()).collect();
        compare(
            &packages,
            &BTreeMap::from([("tar".to_owned(), vec![advisory])]),
            &ignored,
        )
    }

    #[test]
    fn affected_versions_are_findings() {
        let text = advisory("", "patched = [\">= 0.4.16\"]\nunaffected = [\"< 0.3\"]");
        for (version, findings) in [("0.4.15", 1), ("0.4.16", 0), ("0.2.9", 0), ("0.3.0", 1)] {
            assert_eq!(lines(&text, version, &[]).0.len(), findings, "{version}");
        }
        assert_eq!(
            lines(&text, "0.4.1", &[]).0,
            ["tar 0.4.1: vulnerable: Links (RUSTSEC-2018-0002)"]
        );
        assert!(lines(&text, "0.4.1", &["RUSTSEC-2018-0002"]).0.is_empty());
    }

    #[test]
    fn unmaintained_crates_are_notes_and_unsound_ones_findings() {
        let of = |kind: &str| {
            let text = advisory(&format!("informational = \"{kind}\""), "patched = []");
            let (findings, notes) = lines(&text, "1.0.0", &[]);
            (findings.len(), notes.len())
        };
        assert_eq!(
            [of("unmaintained"), of("notice"), of("unsound")],
            [(0, 1), (0, 1), (1, 0)]
        );
    }

    #[test]
    fn withdrawn_advisories_concern_nobody() {
        let text = advisory("withdrawn = \"2020-01-01\"", "patched = []");
        assert!(parse(&text).unwrap().is_none());
        assert!(parse("no block").is_err());
    }

    #[test]
    fn lock_files_name_registry_packages() {
        let text = std::fs::read_to_string(root().unwrap().join(LOCKS[0])).unwrap();
        let packages = locked(&text).unwrap();
        assert!(packages.iter().any(|(name, _)| name == "tar"));
        assert!(!packages.iter().any(|(name, _)| name == "xtask"));
    }
}
