//! Tests of `diff` on snapshots and volumes: moves, and correctness of skipping shared parts.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use crate::support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Volume, buttress, stdout};

/// Executes these lines in a session.
fn session(image: &str, lines: &[String]) {
    let mut words = vec!["shell", "-w", image];
    for line in lines {
        words.extend(["-c", line]);
    }
    stdout(&words);
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Returns the document of a comparison, and the exit code.
fn differences(old: &str, new: &str, options: &[&str]) -> (Vec<Value>, i32) {
    let words = [&["diff", "--format", "json"], options, &[old, new]].concat();
    let output = buttress(&words);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{message}"));
    let Value::Array(found) = document["diff"].take() else {
        panic!("no array")
    };
    assert_eq!(message, "", "{words:?}");
    (found, output.status.code().unwrap())
}

fn text(old: &str, new: &str, options: &[&str]) -> String {
    let output = buttress(&[&["diff"], options, &[old, new]].concat());
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn moves_between_snapshots_are_told_as_moves() {
    let volume = Volume::copy();
    session(
        volume.path(),
        &lines(
            "subvolume create /live
             mkdir -p /live/dir/deep /live/other
             pwrite -S 1 0 8K /live/dir/deep/file
             pwrite -S 2 0 8K /live/dir/stays
             pwrite -S 3 0 8K /live/alone
             pwrite -S 4 0 8K /live/gone
             pwrite -S 5 0 100 /live/linked
             ln /live/linked /live/other/second
             snapshot -r /live /before
             mv /live/dir /live/other/moved
             pwrite -S 7 4K 1 /live/other/moved/stays
             mv /live/alone /live/renamed
             chmod 0600 /live/renamed
             rm /live/gone
             pwrite -S 4 0 8K /live/gone-again
             mv /live/other/second /live/third
             snapshot -r /live /after",
        ),
    );
    let (old, new) = (volume.inside("/before"), volume.inside("/after"));
    let ignore = ["--ignore", "mtime"];
    assert_eq!(
        text(&old, &new, &ignore),
        "removed         gone\n\
         added           gone-again\n\
         moved           dir -> other/moved\n\
         modified        other/moved/stays (content)\n\
         moved           alone -> renamed (mode)\n\
         moved           other/second -> third\n"
    );
    assert_eq!(
        text(&old, &new, &["--ignore", "mtime", "--name-only"]),
        "gone\ngone-again\nother/moved\nother/moved/stays\nrenamed\nthird\n"
    );
    let (found, code) = differences(&old, &new, &ignore);
    assert_eq!(code, 1);
    let moved = found.iter().find(|found| found["path"] == "renamed").unwrap();
    assert_eq!(
        *moved,
        serde_json::json!({
            "path": "renamed", "change": "moved", "old_path": "alone", "type": "file", "aspects": ["mode"],
        })
    );
    // Compare in the opposite direction, too.
    assert!(text(&new, &old, &ignore).contains("moved           other/moved -> dir\n"));
}

#[test]
fn moves_between_volumes_are_told_by_content() {
    let (one, other) = (Volume::copy(), Volume::copy());
    session(
        one.path(),
        &lines(
            "mkdir -p /t/a\npwrite -S 1 0 300K /t/a/large\npwrite -S 2 0 5 /t/small\npwrite -S 3 0 5 /t/other\ntouch /t/empty",
        ),
    );
    session(
        other.path(),
        &lines(
            "mkdir -p /t/b\npwrite -S 1 0 300K /t/b/large\npwrite -S 2 0 5 /t/little\npwrite -S 4 0 5 /t/another\ntouch /t/none",
        ),
    );
    let ignore = ["--ignore", "mtime"];
    let expected = "removed         a\n\
                    added           another\n\
                    added           b\n\
                    moved           a/large -> b/large\n\
                    removed         empty\n\
                    moved           small -> little\n\
                    added           none\n\
                    removed         other\n";
    assert_eq!(text(&one.inside("/t"), &other.inside("/t"), &ignore), expected);
    // The comparison treats a directory of the host as another volume.
    let copy = tempfile::tempdir().unwrap();
    let copied = copy.path().join("t");
    stdout(&["cp", "-a", &other.inside("/t"), copied.to_str().unwrap()]);
    let ignore = ["--ignore", "mtime,owner,xattrs"];
    assert_eq!(
        text(&one.inside("/t"), copied.to_str().unwrap(), &ignore),
        expected
    );
}

/// Deterministic pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// Model of a randomly changed tree: its existing names.
struct Model {
    random: Random,
    directories: Vec<String>,
    files: Vec<String>,
    count: usize,
}

impl Model {
    fn new_name(&mut self) -> String {
        self.count += 1;
        let index = self.random.below(self.directories.len());
        // Random letters make new names sort before old names, too.
        let letter = char::from(b'a' + self.random.below(26) as u8);
        format!("{}/{letter}{}", self.directories[index], self.count)
    }

    fn any_file(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.random.below(self.files.len()))
    }

    /// Returns a random directory other than the root.
    fn any_directory(&mut self) -> Option<usize> {
        (self.directories.len() > 1).then(|| 1 + self.random.below(self.directories.len() - 1))
    }

    fn rename(&mut self, from: &str, to: &str) {
        for path in self.directories.iter_mut().chain(&mut self.files) {
            if path == from || path.starts_with(&format!("{from}/")) {
                *path = format!("{to}{}", &path[from.len()..]);
            }
        }
    }

    fn forget(&mut self, gone: &str) {
        let below = format!("{gone}/");
        for paths in [&mut self.directories, &mut self.files] {
            paths.retain(|path| path != gone && !path.starts_with(&below));
        }
    }

    /// Returns a random line for the session, or `None` if no file can be changed.
    fn line(&mut self) -> Option<String> {
        let name = self.new_name();
        Some(match self.random.below(16) {
            0 | 1 => {
                self.directories.push(name.clone());
                format!("mkdir {name}")
            }
            2..=4 => {
                self.files.push(name.clone());
                let (byte, size) = (self.random.below(4), [5, 3000, 9000][self.random.below(3)]);
                format!("pwrite -S {byte} 0 {size} {name}")
            }
            5 => {
                let index = self.any_file()?;
                format!("pwrite -S {} 2 3 {}", self.random.below(250), self.files[index])
            }
            6 | 7 => {
                let index = self.any_file()?;
                let from = self.files[index].clone();
                self.files[index].clone_from(&name);
                format!("mv -T {from} {name}")
            }
            8 | 9 => {
                let index = self.any_directory()?;
                let from = self.directories[index].clone();
                if name.starts_with(&format!("{from}/")) {
                    return None;
                }
                self.rename(&from, &name);
                format!("mv -T {from} {name}")
            }
            10 => {
                let index = self.any_file()?;
                let from = self.files[index].clone();
                self.files.push(name.clone());
                format!("ln {from} {name}")
            }
            11 => {
                let index = self.any_file()?;
                let gone = self.files.swap_remove(index);
                format!("rm {gone}")
            }
            12 => {
                let index = self.any_directory()?;
                let gone = self.directories[index].clone();
                self.forget(&gone);
                format!("rm -r {gone}")
            }
            13 => {
                let index = self.any_file()?;
                format!("chmod 0{}00 {}", 4 + self.random.below(4), self.files[index])
            }
            14 => {
                // One file replaces another.
                let (from, to) = (self.any_file()?, self.any_file()?);
                if from == to {
                    return None;
                }
                let (from, to) = (self.files[from].clone(), self.files[to].clone());
                self.files.retain(|path| *path != from);
                // Remove the target first, because mv refuses two names of one file.
                format!("rm {to}\nmv -T {from} {to}")
            }
            _ => {
                // This change exchanges two directories, or a directory and a file.
                let (one, other) = (self.any_directory()?, self.any_file()?);
                let (one, other) = (self.directories[one].clone(), self.files[other].clone());
                if other.starts_with(&format!("{one}/")) {
                    return None;
                }
                self.rename(&one, "/aside");
                self.rename(&other, &one);
                self.rename("/aside", &other);
                format!("mv --exchange {one} {other}")
            }
        })
    }
}

/// Returns all paths below a directory of a volume.
fn paths(root: &str) -> BTreeSet<String> {
    let document: Value = serde_json::from_str(&stdout(&["tree", "--format", "json", root])).unwrap();
    let entries = document["tree"].as_array().unwrap();
    entries
        .iter()
        .map(|entry| entry["path"].as_str().unwrap().to_owned())
        .collect()
}

/// Applies the found differences to the names of the old side, which must give the names of the new
/// side.
fn apply(old: &BTreeSet<String>, found: &[Value]) -> BTreeSet<String> {
    let of = |found: &Value, key: &str| found[key].as_str().unwrap().to_owned();
    let is = |found: &&Value, change: &str| found["change"] == change;
    let moved: Vec<(String, String)> = found
        .iter()
        .filter(|found| is(found, "moved"))
        .map(|found| (of(found, "old_path"), of(found, "path")))
        .collect();
    let removed: BTreeSet<String> = found
        .iter()
        .filter(|found| is(found, "removed"))
        .map(|found| of(found, "path"))
        .collect();
    let mut new: BTreeSet<String> = old
        .iter()
        .filter(|path| !removed.contains(*path))
        .map(|path| {
            // On a path, the deepest moved directory decides.
            let way = moved
                .iter()
                .filter(|(from, _)| *path == *from || path.starts_with(&format!("{from}/")));
            match way.max_by_key(|(from, _)| from.len()) {
                Some((from, to)) => format!("{to}{}", &path[from.len()..]),
                None => path.clone(),
            }
        })
        .collect();
    new.extend(
        found
            .iter()
            .filter(|found| is(found, "added"))
            .map(|found| of(found, "path")),
    );
    new
}

/// Random changes with snapshots between them: the comparison that skips shared parts must equal
/// the full comparison, and must explain every name.
#[test]
fn skipping_shared_parts_gives_the_full_comparison() {
    const SNAPSHOTS: usize = 4;
    for seed in buttress_oracle::seeds::seeds("cli::diff", "BUTTRESS_SEED", &Vec::from_iter(1..=6)) {
        let volume = Volume::copy();
        let mut model = Model {
            random: Random(seed),
            directories: vec!["/live".into()],
            files: Vec::new(),
            count: 0,
        };
        let mut script = lines(
            "subvolume create /live
             subvolume create /live/nested
             pwrite 0 10 /live/nested/inside",
        );
        for snapshot in 0..SNAPSHOTS {
            let changes = if snapshot == 0 { 60 } else { 14 };
            for _ in 0..changes {
                script.extend(model.line().iter().flat_map(|line| lines(line)));
            }
            script.push(format!("snapshot -r /live /s{snapshot}"));
        }
        session(volume.path(), &script);
        for old in 0..SNAPSHOTS {
            for new in 0..SNAPSHOTS {
                let new = if old == new {
                    "/live".to_owned()
                } else {
                    format!("/s{new}")
                };
                let (old, new) = (volume.inside(&format!("/s{old}")), volume.inside(&new));
                let context = format!("seed {seed}: {old} {new}\n{}", script.join("\n"));
                let sharing = differences(&old, &new, &[]);
                let everything = differences(&old, &new, &["--no-sharing"]);
                assert_eq!(sharing, everything, "{context}");
                let explained = apply(&paths(&old), &sharing.0);
                assert_eq!(explained, paths(&new), "{context}");
            }
        }
    }
}
