//! Candidates for the root of one tree, as `btrfs-find-root` lists them.
//!
//! Of a tree's blocks, those with the highest level of their generation may be its roots.
//!
//! The search reads the whole devices. If the chunk tree can be read, only blocks at the places of
//! their addresses count. Otherwise, every block counts once for each address and generation.

use crate::error::Result;
use crate::identity::Identity;
use crate::record::Record;
use crate::scan::{ScanSink, Scanned, scan};
use buttress_device::Device;
use buttress_format::{Generation, Logical, TreeId};
use buttress_fs::Progress;
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of candidates.
pub const ROOTS_MAX: usize = 1_000_000;

/// The wanted tree, and the bounds of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootQuery {
    /// The tree.
    pub tree: TreeId,
    /// The lowest level of a candidate.
    pub level_min: u8,
    /// The lowest generation of a candidate.
    pub generation_min: Generation,
}

/// The candidates for a tree's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundRoots {
    /// The highest level of each generation, and the addresses of its blocks.
    pub generations: BTreeMap<Generation, (u8, BTreeSet<Logical>)>,
    /// The counts of the search.
    pub scanned: Scanned,
    /// True if candidates were left out, because there are more than [`ROOTS_MAX`].
    pub is_cut: bool,
}

/// Searches the devices for blocks of a tree. `is_mapped` tells whether a block is at a place of
/// its address.
///
/// # Errors
/// Fails as [`scan`] does.
pub fn find_roots(
    devices: &[Device],
    identity: &Identity,
    query: RootQuery,
    is_mapped: &dyn Fn(&Record) -> bool,
    progress: &Progress,
) -> Result<FoundRoots> {
    let mut search = Search {
        query,
        is_mapped,
        found: FoundRoots::default(),
        blocks: 0,
    };
    scan(devices, identity, &mut search, progress)?;
    Ok(search.found)
}

struct Search<'a> {
    query: RootQuery,
    is_mapped: &'a dyn Fn(&Record) -> bool,
    found: FoundRoots,
    blocks: usize,
}

impl ScanSink for Search<'_> {
    fn start(&self, _: usize) -> u64 {
        0
    }

    fn take(&mut self, _: usize, _: u64, records: &[Record], found: &Scanned) -> Result<()> {
        self.found.scanned.add(found);
        for record in records {
            let query = &self.query;
            let is_wanted = record.owner == query.tree
                && record.level >= query.level_min
                && record.generation >= query.generation_min
                && record.has_checksum();
            if !is_wanted || !(self.is_mapped)(record) {
                continue;
            }
            if self.blocks >= ROOTS_MAX {
                self.found.is_cut = true;
                continue;
            }
            let (level, blocks) = self.found.generations.entry(record.generation).or_default();
            if *level < record.level {
                self.blocks = self.blocks.saturating_sub(blocks.len()); // Clamp: the sum counts these blocks.
                blocks.clear();
                *level = record.level;
            }
            if *level == record.level && blocks.insert(record.logical) {
                self.blocks = self.blocks.saturating_add(1); // Clamp: at most `ROOTS_MAX`.
            }
        }
        Ok(())
    }
}
