//! Extents with several users: they move together, so that they are consecutive on disk for all of
//! their users, and stay shared.
//!
//! An extent moves as a whole, with all references ([`relocation`](buttress_engine::relocation)).
//! Extents are never joined, since another user may use a part of each. The order on disk is the
//! order in the file that is defragmented first; files with the same order gain as well.
//!
//! Left out: extents without checksums, which writes may overwrite in place meanwhile; extents of
//! the target size and above.

use super::choice::{Rule, Wanted, fragments_of, place_of};
use super::job::{ITEMS_MAX, Job};
use super::options::PIECE_BYTES_MAX;
use crate::data::stored::Stored;
use buttress_engine::data_extents::DataRange;
use buttress_engine::relocation::RelocationOptions;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, Logical};
use buttress_fs::error::Result;
use core::ops::Range;
use std::collections::BTreeMap;

/// The most extents that move at a time.
const EXTENTS_MAX: usize = 256;

impl Job<'_> {
    /// Returns items as [`items_of`](crate::WritableFilesystem::items_of) does, each with whether
    /// its extent has other users.
    pub(super) fn items_with_users(&self, range: &Range<u64>, most: usize) -> Result<Vec<(Stored, bool)>> {
        let location = self.location;
        self.filesystem
            .items_with(location, range, most, |access, item| match item.disk() {
                Some(_) => Ok(!access.is_exclusive(location, item)?),
                None => Ok(false),
            })
    }

    /// Moves runs of small extents together, if some of them have other users.
    pub(super) fn move_shared(&mut self, range: &Range<u64>) -> Result<()> {
        if !self.has_checksums {
            return Ok(());
        }
        // The extent tree lists the extents that were just rewritten.
        self.filesystem.commit_metadata()?;
        let rule = Rule {
            piece: PIECE_BYTES_MAX,
            wanted: Wanted::Any,
            ..self.rule
        };
        let mut at = range.start;
        while at < range.end {
            let count = ITEMS_MAX.exact_add(1);
            let items = self.filesystem.items_of(self.location, &(at..range.end), count)?;
            let (pieces, resume) = rule.choose(&items, items.len() > ITEMS_MAX, &|_| false);
            for piece in &pieces {
                self.progress.check()?;
                // An earlier move may have changed the address of an extent that is used here, too.
                let items = self.items_with_users(&piece.range, ITEMS_MAX)?;
                if items.iter().any(|(_, is_shared)| *is_shared) {
                    let items: Vec<Stored> = items.into_iter().map(|(item, _)| item).collect();
                    self.move_items(&items)?;
                }
            }
            let done = pieces.last().map_or(at, |piece| piece.range.end);
            at = resume.map_or(range.end, |resume| resume.max(done));
        }
        Ok(())
    }

    fn move_items(&mut self, items: &[Stored]) -> Result<()> {
        let is_small = |item: &Stored| {
            item.disk()
                .is_some_and(|disk| disk.length.get() < self.rule.target)
        };
        let runs = items.chunk_by(|one, next| is_small(one) && is_small(next));
        let parts = runs.flat_map(|run| run.chunks(EXTENTS_MAX));
        let moves: Vec<Vec<DataRange>> = parts.filter_map(moves_of).collect();
        for extents in moves {
            let options = RelocationOptions {
                progress: self.progress.clone(),
                bytes_per_second: None,
                ..RelocationOptions::default()
            };
            let moved = self.filesystem.relocations().move_together(&extents, &options)?;
            self.summary.moved = self.summary.moved.exact_add(ByteCount::new(moved.data_bytes));
            if moved.data_extents == 0 {
                let bytes = extents.iter().map(|extent| extent.length.get());
                let bytes = bytes.fold(0_u64, |sum: u64, bytes| sum.exact_add(bytes));
                self.summary.left = self.summary.left.exact_add(ByteCount::new(bytes));
            }
        }
        Ok(())
    }
}

/// Returns the extents of items in the order of the file, if the items have fewer fragments once
/// these extents are consecutive.
fn moves_of(items: &[Stored]) -> Option<Vec<DataRange>> {
    let mut places: BTreeMap<Logical, u64> = BTreeMap::new();
    let mut extents = Vec::new();
    let mut end = 0_u64;
    for disk in items.iter().filter_map(Stored::disk) {
        places.entry(disk.logical).or_insert_with(|| {
            let start = end;
            end = end.exact_add(disk.length.get());
            extents.push(disk);
            start
        });
    }
    let is_whole = u64_of(extents.len()) > 1 && end <= PIECE_BYTES_MAX.exact_mul(2);
    let moved = |item: &Stored| {
        let (start, next) = place_of(item);
        let disk = item.disk()?;
        let to = places.get(&disk.logical)?;
        let inside = start.exact_sub(disk.logical.get());
        let length = next.exact_sub(start);
        let start = to.exact_add(inside);
        Some((start, start.exact_add(length)))
    };
    let after = fragments_of(items.iter().filter_map(moved));
    (is_whole && after < fragments_of(items.iter().map(place_of))).then_some(extents)
}
