//! The states of a file system: the roots of its last commit and of earlier ones.
//!
//! A commit writes exactly one root block of the root tree. A superblock names the root of its
//! commit, and the roots of up to four commits as backups. All other states come from the index: of
//! the root tree's blocks of one generation, a block of the highest level is the root. Two such
//! blocks mean that the transaction replaced a block that it had already written, or that devices
//! diverged. Both are listed, because only the trees below them tell which one was committed.
//!
//! # Left out
//!
//! Whether the trees of a state are whole.

use crate::error::Result;
use crate::index::BlockIndex;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::superblock::{HIGHEST_LEVEL, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use buttress_format::{BackupTree, Generation, Physical, Superblock, TreeId};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The largest number of states.
pub const STATES_MAX: usize = 100_000;

/// The source of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A superblock names the root of its own commit.
    Superblock(Physical),
    /// A superblock names the root as a backup.
    Backup(Physical),
    /// The scan found the root.
    Scan,
}

/// A state of a file system: the roots of one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The root of the root tree.
    pub root: BackupTree,
    /// The root of the chunk tree: the one that a superblock names for this state, else the newest
    /// one that is not newer than the state.
    pub chunk_root: Option<BackupTree>,
    /// The best source that names the root.
    pub origin: Origin,
}

impl State {
    /// Returns the generation of the commit.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.root.generation
    }
}

/// Returns the states of a file system, the newest first. Without an index, returns those that
/// superblocks name.
///
/// # Errors
/// Fails if a device or the index cannot be read, or if the index is damaged.
pub fn states(devices: &[Device], fsid: Uuid, index: Option<&BlockIndex>) -> Result<Vec<State>> {
    let mut found: BTreeMap<(Generation, u64), State> = BTreeMap::new();
    let mut add = |state: State| {
        let key = (state.root.generation, state.root.logical.get());
        let known = found.len() < STATES_MAX || found.contains_key(&key);
        if known && state.root.level <= HIGHEST_LEVEL && state.root.generation != Generation::MIN {
            let place = found.entry(key).or_insert(state);
            if state.origin < place.origin {
                *place = state;
            }
        }
    };
    for (at, superblock) in superblocks(devices, fsid) {
        for state in of_superblock(at, &superblock) {
            add(state);
        }
    }
    if let Some(index) = index {
        let tops = |owner| newest_tops(index, owner);
        let chunk_roots = tops(TreeId::CHUNK)?;
        for (generation, roots) in tops(TreeId::ROOT)? {
            let chunk_root = chunk_roots.range(..=generation).next_back();
            let chunk_root = chunk_root.and_then(|(_, roots)| roots.first().copied());
            for root in roots {
                add(State {
                    root,
                    chunk_root,
                    origin: Origin::Scan,
                });
            }
        }
    }
    Ok(found.into_values().rev().collect())
}

/// Returns the states of the commits that the superblocks at one offset are of, the newest first.
#[must_use]
pub fn states_at(devices: &[Device], fsid: Uuid, at: Physical) -> Vec<State> {
    let copies = superblocks(devices, fsid).into_iter();
    let mut found: Vec<State> = copies
        .filter(|(place, _)| *place == at)
        .filter_map(|(place, superblock)| of_superblock(place, &superblock).next())
        .collect();
    found.sort_by_key(|state| core::cmp::Reverse((state.generation(), state.root.logical)));
    found.dedup();
    found
}

/// Returns the valid superblocks of a file system on all devices.
pub(crate) fn superblocks(devices: &[Device], fsid: Uuid) -> Vec<(Physical, Superblock)> {
    let mut found = Vec::new();
    for device in devices {
        for at in SUPERBLOCK_OFFSETS {
            let end = at.get().exact_add(SUPERBLOCK_BYTES as u64);
            if end > device.size_bytes() {
                continue;
            }
            // A place without a valid superblock names no state.
            let Ok(bytes) = device.read(at.get(), SUPERBLOCK_BYTES) else {
                continue;
            };
            if let Ok(superblock) = Superblock::check(&bytes, at)
                && superblock.fsid == fsid
            {
                found.push((at, superblock));
            }
        }
    }
    found
}

fn of_superblock(at: Physical, superblock: &Superblock) -> impl Iterator<Item = State> + '_ {
    let own = State {
        root: BackupTree {
            logical: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        },
        chunk_root: Some(BackupTree {
            logical: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        }),
        origin: Origin::Superblock(at),
    };
    let backups = superblock.backup_roots.iter().map(move |backup| State {
        root: backup.tree_root,
        chunk_root: Some(backup.chunk_root),
        origin: Origin::Backup(at),
    });
    let backups = backups.filter(|state| state.root.logical.get() != 0);
    core::iter::once(own).chain(backups)
}

/// Returns the blocks of a tree that have the highest level of their generation. Copies of a block
/// count once.
pub(crate) fn newest_tops(
    index: &BlockIndex,
    owner: TreeId,
) -> Result<BTreeMap<Generation, Vec<BackupTree>>> {
    let mut reader = index.reader();
    let mut tops: BTreeMap<Generation, Vec<BackupTree>> = BTreeMap::new();
    for position in reader.of_tree(owner, 0..HIGHEST_LEVEL.exact_add(1))? {
        let record = reader.ordered(position)?;
        if record.owner != owner || !record.is_sound() {
            continue;
        }
        let top = BackupTree {
            logical: record.logical,
            generation: record.generation,
            level: record.level,
        };
        if tops.len() >= STATES_MAX && !tops.contains_key(&record.generation) {
            continue;
        }
        // Positions are in order of level, so the highest level of a generation comes last.
        let known = tops.entry(record.generation).or_default();
        if known.first().is_some_and(|known| known.level < top.level) {
            known.clear();
        }
        if !known.contains(&top) && known.len() < TOPS_MAX {
            known.push(top);
        }
    }
    Ok(tops)
}

/// The largest number of candidates of one generation.
const TOPS_MAX: usize = 64;
