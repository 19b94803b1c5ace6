//! Histories: chains of read-only snapshots with changes in between, to be sent from one to the next.
//!
//! A [`History`] is data: what to do to a working subvolume before each snapshot ([`Step`]), and which
//! snapshots to send from which ([`Transfer`]). It is either written down by hand (a named case) or made
//! from a seed by [`random`]. [`Made`] is a history that was carried out on a mounted volume.
//!
//! - [`operation`]: the changes, and short names to write them down with;
//! - [`apply`]: carries out one change through system calls, in this process;
//! - [`names`]: a model of the names in the working subvolume, from which random changes choose;
//! - `words`: histories as text, a line for each change;
//! - [`random`]: histories from seeds, and smaller ones from a history that fails.

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

/// The content of the working subvolume when a step of the history begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// What the step before left.
    Continued,
    /// A new, empty subvolume: its inodes have the numbers of others, and another generation.
    Empty,
    /// A writable snapshot of this snapshot: histories fork.
    Snapshot(usize),
}

/// Changes, and then a read-only snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The content that the step changes.
    pub base: Base,
    /// The changes, in order.
    pub operations: Vec<Operation>,
}

/// One send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The snapshot that is sent, by its place in the history.
    pub snapshot: usize,
    /// The one that the receiver has, for an incremental send.
    pub parent: Option<usize>,
    /// Further snapshots that the receiver has, to clone from.
    pub clones: Vec<usize>,
}

/// A random history: changes with snapshots in between, and the snapshots that are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The steps of the history, one for each snapshot.
    pub steps: Vec<Step>,
    /// The transfers in order of execution; each transfer's parent and clone sources have been sent
    /// before.
    pub transfers: Vec<Transfer>,
}

impl History {
    /// A working subvolume that goes on from snapshot to snapshot, sent in full and then step by step.
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

    /// The number of changes in the history.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.steps.iter().map(|step| step.operations.len()).sum()
    }
}

/// The reaction to a change that cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// It is an error: the history was written down by hand.
    Strict,
    /// The step is omitted: earlier changes that it depends on may have been dropped.
    Lenient,
}

/// A history that was executed in a directory of a mounted volume.
#[derive(Debug)]
pub struct Made {
    /// The directory that holds all subvolumes of the history.
    pub directory: PathBuf,
    /// The read-only snapshots, `s0`, `s1`, ….
    pub snapshots: Vec<PathBuf>,
    /// How many changes were left out.
    pub left_out: usize,
}

impl Made {
    /// Carries out `history` in the new directory `directory`.
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

    /// Deletes the subvolumes of the history.
    pub fn remove(self) -> Result<()> {
        remove_subvolumes(&self.directory)
    }
}

/// Deletes `directory` and the subvolumes in it, read-only ones and nested ones too.
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
    // rmdir(2) deletes a subvolume that is empty; removing all empties it first.
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
