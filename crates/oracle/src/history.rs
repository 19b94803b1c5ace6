//! Histories: chains of read-only snapshots with changes in between, for sends from one snapshot to
//! the next.
//!
//! A [`History`] is data: the changes of a working subvolume before each snapshot ([`Step`]), and
//! the sends between snapshots ([`Transfer`]). A history is written by hand (a named case) or made
//! from a seed by [`random`]. [`Made`] is a history that was executed on a mounted volume.
//!
//! - [`operation`]: the changes, and short functions for writing them down;
//! - [`apply`]: makes a change by system calls, in this process;
//! - [`names`]: a model of the names in the working subvolume, from which random changes choose;
//! - `words`: histories as text, a line for each change;
//! - [`random`]: histories from seeds, and reductions of a history that fails.

pub mod apply;
pub mod names;
pub mod operation;
pub mod random;
mod words;

use crate::tools::{newest, run};
use anyhow::{Context, Result};
use operation::Operation;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The state of the working subvolume at the beginning of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The state after the previous step.
    Continued,
    /// A new, empty subvolume. Its inodes reuse the numbers of earlier inodes, with another
    /// generation.
    Empty,
    /// A writable snapshot of this snapshot, so that the history forks.
    Snapshot(usize),
}

/// Changes, followed by a read-only snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The state that the changes of the step start from.
    pub base: Base,
    /// The changes, in order.
    pub operations: Vec<Operation>,
}

/// A send of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The index of the sent snapshot in the history.
    pub snapshot: usize,
    /// The parent snapshot at the receiver, for an incremental send.
    pub parent: Option<usize>,
    /// Further snapshots at the receiver, as clone sources.
    pub clones: Vec<usize>,
}

/// Changes with snapshots in between, and the sends.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The steps, one for each snapshot.
    pub steps: Vec<Step>,
    /// The sends in order. The parent and the clone sources of each send are sent before it.
    pub transfers: Vec<Transfer>,
}

impl History {
    /// Returns a history of one working subvolume that continues from snapshot to snapshot, sent in
    /// full and then step by step.
    #[must_use]
    pub fn chain(steps: Vec<Vec<Operation>>) -> Self {
        let transfers = (0..steps.len())
            .map(|snapshot| Transfer {
                snapshot,
                parent: snapshot.checked_sub(1),
                clones: Vec::new(),
            })
            .collect();
        let steps = steps
            .into_iter()
            .map(|operations| Step {
                base: Base::Continued,
                operations,
            })
            .collect();
        Self { steps, transfers }
    }

    /// Returns the number of changes.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.steps.iter().map(|step| step.operations.len()).sum()
    }
}

/// The treatment of a change that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// A failed change is an error, because a person wrote the history.
    Strict,
    /// A failed change is left out, because changes that it depended on may have been dropped.
    Lenient,
}

/// A history that was executed in a directory of a mounted volume.
#[derive(Debug)]
pub struct Made {
    /// The directory with the working subvolume and the snapshots.
    pub directory: PathBuf,
    /// The read-only snapshots, `s0`, `s1`, ….
    pub snapshots: Vec<PathBuf>,
    /// The number of changes that were left out.
    pub left_out: usize,
}

impl Made {
    /// Makes the changes and snapshots of `history` in the new directory `directory`.
    pub fn new(history: &History, directory: &Path, strictness: Strictness) -> Result<Self> {
        std::fs::create_dir(directory).with_context(|| format!("making {}", directory.display()))?;
        let mut made = Self {
            directory: directory.to_path_buf(),
            snapshots: Vec::new(),
            left_out: 0,
        };
        let mut work = directory.join("work0");
        subvolume(&["create"], &[&work])?;
        for (number, step) in history.steps.iter().enumerate() {
            let next = directory.join(format!("work{}", number + 1));
            match step.base {
                Base::Continued => {}
                Base::Empty => {
                    subvolume(&["create"], &[&next])?;
                    work = next;
                }
                Base::Snapshot(from) => {
                    let from = made.snapshots.get(from).context("a snapshot that exists")?;
                    subvolume(&["snapshot"], &[from, &next])?;
                    work = next;
                }
            }
            for operation in &step.operations {
                match apply::apply(&work, &made.snapshots, operation) {
                    Ok(()) => {}
                    Err(_) if strictness == Strictness::Lenient => made.left_out += 1,
                    Err(error) => return Err(error.context(format!("step {number}: {operation:?}"))),
                }
            }
            let snapshot = directory.join(format!("s{number}"));
            subvolume(&["snapshot", "-r"], &[&work, &snapshot])?;
            made.snapshots.push(snapshot);
        }
        Ok(made)
    }

    /// Deletes the directory with all subvolumes.
    pub fn remove(self) -> Result<()> {
        remove_subvolumes(&self.directory)
    }
}

/// Deletes `directory` and the subvolumes in it, read-only and nested ones included.
pub fn remove_subvolumes(directory: &Path) -> Result<()> {
    let mut read_only = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"s") {
            read_only.push(entry.path());
        }
    }
    if !read_only.is_empty() {
        let paths: Vec<&Path> = read_only.iter().map(PathBuf::as_path).collect();
        subvolume(&["delete"], &paths)?;
    }
    // rmdir(2) deletes an empty subvolume, and this call empties each subvolume first.
    std::fs::remove_dir_all(directory).with_context(|| format!("removing {}", directory.display()))
}

/// Runs `btrfs subvolume …`.
pub fn subvolume(words: &[&str], paths: &[&Path]) -> Result<()> {
    run(Command::new(newest("btrfs"))
        .arg("subvolume")
        .args(words)
        .args(paths))
    .map(drop)
}
