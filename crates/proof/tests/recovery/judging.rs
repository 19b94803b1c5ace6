//! Comparison of recovered files with those of the sound volume.

use crate::base::{Base, Files};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

/// The unit in which bytes of a file count as recovered.
const BLOCK: usize = 4096;

/// Recovered files and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub files: u64,
    pub bytes: u64,
}

impl AddAssign for Share {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

/// Counts equal blocks. Blocks of zeros do not count, because nothing had to come back for them.
fn equal_bytes(sound: &[u8], found: &[u8]) -> u64 {
    let blocks = sound.chunks(BLOCK).zip(found.chunks(BLOCK));
    let equal = blocks.filter(|(sound, found)| sound == found && sound.iter().any(|byte| *byte != 0));
    equal.map(|(sound, _)| sound.len() as u64).sum()
}

/// Returns the share of all files of a base.
pub fn whole(base: &Base) -> Share {
    share(base, &base.files)
}

/// Returns the share that files are of the sound volume.
pub fn share(base: &Base, found: &Files) -> Share {
    let mut share = Share::default();
    for (path, sound) in &base.files {
        if let Some(found) = found.get(path) {
            share.files += u64::from(sound == found);
            share.bytes += equal_bytes(sound, found);
        }
    }
    share
}

/// Returns the paths of whole files.
pub fn whole_files(base: &Base, found: &Files) -> BTreeSet<PathBuf> {
    let is_whole = |(path, sound): &(&PathBuf, &Vec<u8>)| found.get(*path) == Some(*sound);
    let whole = base.files.iter().filter(is_whole);
    whole.map(|(path, _)| path.clone()).collect()
}

/// Reads the report of a restoration. Returns the paths that it calls verified, and whether it
/// restored the last commit.
fn verified(report: &Path) -> Result<(Vec<PathBuf>, bool)> {
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report)?)?;
    let state = &report["state"];
    let is_last = state["generation"] == state["newest-generation"];
    let files = report["files"].as_array().context("a list of files")?;
    let is_verified = |file: &&serde_json::Value| file["verdict"] == "verified";
    let name = |file: &serde_json::Value| Some(PathBuf::from(file["path"].as_str()?));
    Ok((
        files.iter().filter(is_verified).filter_map(name).collect(),
        is_last,
    ))
}

/// Returns the number of files with content that no commit held.
pub fn wrong_files(base: &Base, found: &Files) -> u64 {
    let is_wrong = |(path, content): &(&PathBuf, &Vec<u8>)| !base.held(path, content, true);
    found.iter().filter(is_wrong).count() as u64
}

/// Returns the number of files that a report calls verified although no commit held their content.
pub fn wrong_of_verified(base: &Base, found: &Files, report: &Path) -> Result<u64> {
    if !report.exists() {
        return Ok(0);
    }
    let (paths, is_last) = verified(report)?;
    let mut wrong = 0;
    for path in paths {
        let relative = path.strip_prefix("/").unwrap_or(&path);
        // Other kinds of entries have no content.
        if let Some(content) = found.get(relative)
            && !base.held(relative, content, is_last)
        {
            println!("{} is called verified, but is wrong", relative.display());
            wrong += 1;
        }
    }
    Ok(wrong)
}
