//! Counts of a run's events: made and refused changes by kind, and reached limits.

use super::model::{Model, Target};
use super::operation::drawing::is_of_one_hash;
use super::operation::{Made, Operation};
use anyhow::{Result, ensure};
use buttress::unstable::fs::Filesystem;
use std::collections::BTreeMap;
use std::fmt;

/// Overhead of a name in an item of an inode's names; the next constant is the overhead of the item
/// and a block's header.
const NAME_BYTES: u64 = 10;
const ITEM_BYTES: u64 = 25 + 101;

/// The number of changes from which a run must have met every event.
const WHOLE_RUN: u64 = 8000;

/// Returns the number of levels of the deepest subvolume tree.
///
/// # Errors
/// A tree is unreadable.
pub fn deepest(filesystem: &Filesystem) -> Result<u8> {
    let subvolumes = filesystem.subvolumes()?;
    let levels = subvolumes.iter().map(|info| info.root_item.level + 1);
    Ok(levels.max().unwrap_or(0))
}

/// Counts of a run's events.
#[derive(Debug, Default)]
pub struct Account {
    /// Numbers of made and of refused changes, by kind.
    changes: BTreeMap<&'static str, (u64, u64)>,
    /// Number of commits with names of one hash in a shared item.
    shared_hashes: u64,
    /// Number of names refused because the item of their hash was full.
    full_hashes: u64,
    /// Number of commits with an inode whose names in one directory exceeded one item.
    extended_names: u64,
    /// Largest number of levels of a subvolume's tree at a commit.
    levels: u8,
}

impl Account {
    /// Counts a change.
    pub(super) fn count(&mut self, operation: &Operation, made: &Made) {
        let (made_count, refused) = self.changes.entry(operation.word()).or_default();
        match made {
            Made::Refused => *refused += 1,
            _ => *made_count += 1,
        }
    }

    /// Counts a refused name whose item is full.
    pub(super) fn count_full(&mut self, model: &Model, operation: &Operation) {
        if let Operation::Create(directory, name, _) | Operation::Link(_, directory, name) = operation {
            self.full_hashes += u64::from(!model.has_space_for(*directory, name));
        }
    }

    /// Counts the events visible in the committed model.
    pub(super) fn look_at(&mut self, model: &Model) {
        let directories = || {
            model
                .subvolumes
                .values()
                .flat_map(|subvolume| subvolume.inodes.values())
        };
        let shares_hash = directories().any(|inode| {
            let names = inode.entries.keys().filter(|name| is_of_one_hash(name));
            names.count() > 1
        });
        let has_extended = directories().any(|directory| {
            let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
            for (name, target) in &directory.entries {
                if let Target::Inode(number) = target {
                    *bytes.entry(*number).or_default() += name.len() as u64 + NAME_BYTES;
                }
            }
            bytes.values().any(|bytes| bytes + ITEM_BYTES > model.node_bytes)
        });
        self.shared_hashes += u64::from(shares_hash);
        self.extended_names += u64::from(has_extended);
    }

    /// Records the levels of the trees.
    ///
    /// # Errors
    /// A tree is unreadable.
    pub(super) fn look_at_levels(&mut self, filesystem: &Filesystem) -> Result<()> {
        self.levels = self.levels.max(deepest(filesystem)?);
        Ok(())
    }

    /// Fails if no tree had at least this number of levels.
    ///
    /// # Errors
    /// Fails with the largest number of levels.
    pub fn expect_levels(&self, least: u8) -> Result<()> {
        ensure!(
            self.levels >= least,
            "the deepest tree had {} levels, {least} are wanted",
            self.levels
        );
        Ok(())
    }

    /// Fails if a run of this number of changes missed an event that it must have.
    ///
    /// # Errors
    /// The missed event.
    pub fn expect_everything(&self, operations: u64) -> Result<()> {
        if operations < WHOLE_RUN {
            return Ok(());
        }
        let never: Vec<_> = WORDS
            .iter()
            .filter(|word| self.changes.get(**word).is_none_or(|(made, _)| *made == 0))
            .collect();
        ensure!(never.is_empty(), "never made: {never:?}");
        ensure!(
            self.shared_hashes > 0 && self.extended_names > 0,
            "no commit with names of one hash, or none with extended names: {self}"
        );
        Ok(())
    }
}

/// Kinds of changes that every run must make.
const WORDS: [&str; 41] = [
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "rename without replacing",
    "exchange",
    "rename with whiteout",
    "setxattr",
    "removexattr",
    "set access list",
    "set default list",
    "set compression",
    "chattr",
    "chmod",
    "chown",
    "touch",
    "make unnamed",
    "hold",
    "release",
    "subvolume",
    "snapshot",
    "delete subvolume",
    "drop deleted subvolumes",
    "set read-only",
    "set default subvolume",
    "set label",
    "write",
    "append",
    "truncate",
    "allocate",
    "allocate keeping the size",
    "punch",
    "zero",
    "zero keeping the size",
    "clone",
    "copy",
    "dedupe",
];

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (word, (made, refused)) in &self.changes {
            write!(f, "{word} {made}+{refused}, ")?;
        }
        write!(
            f,
            "shared hashes at {} commits, {} names beyond them, extended names at {} commits, {} levels",
            self.shared_hashes, self.full_hashes, self.extended_names, self.levels
        )
    }
}
