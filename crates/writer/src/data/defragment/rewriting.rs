//! Rewriting of a piece: its content is read and written to a new place without a lock, and its
//! items are replaced if nothing changed meanwhile.
//!
//! The content of an extent changes only with its item, except where writes overwrite extents in
//! place. For such a file, the step starts without dirty data, and the inode's number of writes
//! shows whether a write came in between.

use super::super::allocation::writes_of;
use super::super::compressing::{CompressionPlan, NewExtent};
use super::super::insertion::{Insertion, Placed};
use super::choice::{Piece, Wanted, fragments_of};
use super::job::{CHANGES_MAX, Job, Rewritten, forced};
use crate::data::sums::Sums;
use buttress_engine::dirty_data::DirtyData;
use buttress_exact::Exact as _;
use buttress_format::Compression;
use buttress_format::compression::CompressionMethod;
use buttress_fs::error::Result;
use bytes::Bytes;

/// The rewritten content after which a commit frees the old extents, in bytes.
const COMMIT_BYTES: u64 = 512 << 20;

impl Job<'_> {
    /// Attempts to rewrite a piece.
    pub(super) fn rewrite(&mut self, piece: &Piece) -> Result<Rewritten> {
        let filesystem = self.filesystem;
        let Some(writes) = self.count_of_writes()? else {
            return Ok(Rewritten::Changed);
        };
        let mut content = vec![0; piece.bytes().narrow::<usize>()];
        filesystem
            .live()
            .read_extents(self.location, piece.range.start, &mut content)?;
        let run = [(piece.range.start, Bytes::from(content))];
        let (extents, _) = filesystem
            .writeback()
            .make_extents(&run, self.plan_of(piece).as_ref());
        let charged = self.promise(piece)?;
        let rewritten = self.rewrite_as(piece, &extents, writes);
        self.end_promise(piece, charged, matches!(rewritten, Ok(Rewritten::As(_))));
        if let Ok(Rewritten::As(_)) = rewritten {
            self.commit_after(piece.bytes())?;
        }
        rewritten
    }

    /// Writes new extents for a piece whose space is promised, and replaces the piece's items.
    fn rewrite_as(&self, piece: &Piece, extents: &[NewExtent], writes: u64) -> Result<Rewritten> {
        let filesystem = self.filesystem;
        let placed = filesystem.writeback().place_extents(extents)?;
        if !improves(piece, &placed, self.rule.wanted) {
            filesystem.writeback().give_back_extents(placed);
            return Ok(match piece.joins {
                true => Rewritten::Left,
                false => Rewritten::Kept,
            });
        }
        let written = filesystem
            .writeback()
            .write_extents_out(&writes_of(&placed), self.has_checksums);
        let count = placed.len();
        match written {
            Ok(sums) => match self.replace(piece, placed, sums, writes)? {
                true => Ok(Rewritten::As(count)),
                false => Ok(Rewritten::Changed),
            },
            Err(error) => {
                filesystem.writeback().give_back_extents(placed);
                Err(error)
            }
        }
    }

    /// Returns the number of writes to a file that writes overwrite in place, at a moment without
    /// dirty data. Other files have the number 0. Returns `None` if writers keep the file dirty.
    pub(super) fn count_of_writes(&self) -> Result<Option<u64>> {
        if !self.in_place {
            return Ok(Some(0));
        }
        let filesystem = self.filesystem;
        for _ in 0..CHANGES_MAX {
            let found = filesystem.contents().with(self.location, |content| {
                let is_calm = content.with_dirty(DirtyData::is_empty);
                let (item, _) = filesystem.live().inode(self.location)?;
                Ok(is_calm.then_some(item.sequence))
            })?;
            if found.is_some() {
                return Ok(found);
            }
            filesystem.writeback().write_file(self.location)?;
        }
        Ok(None)
    }

    fn plan_of(&self, piece: &Piece) -> Option<CompressionPlan> {
        if self.rule.wanted == Wanted::Plain || !self.has_checksums {
            return None;
        }
        let kept = || piece.compression().map(CompressionMethod::new).map(forced);
        self.plan.or_else(kept)
    }

    /// Charges a piece to quota limits, as Linux does, and reserves space for its new extents and
    /// their items. If no space is free, a commit first frees the space of replaced extents. Returns
    /// the charged bytes.
    fn promise(&self, piece: &Piece) -> Result<u64> {
        let (filesystem, bytes) = (self.filesystem, piece.bytes());
        let charged = filesystem
            .quotas()
            .charge_new_content(self.location.subvolume, bytes)?;
        let reserved = filesystem.reserve_beside(bytes);
        let tree = self.location.subvolume.tree();
        reserved.inspect_err(|_| filesystem.quota_limits().uncharge(tree, charged))?;
        Ok(charged)
    }

    /// Releases the space of a piece. Old extents may stay in snapshots, so a piece with new extents
    /// stays charged until the stored counters include it.
    fn end_promise(&self, piece: &Piece, charged: u64, is_rewritten: bool) {
        let filesystem = self.filesystem;
        filesystem.release_beside(piece.bytes());
        let tree = self.location.subvolume.tree();
        match is_rewritten {
            true => filesystem.quota_limits().land(tree, charged),
            false => filesystem.quota_limits().uncharge(tree, charged),
        }
    }

    /// Replaces the items of a piece. Returns false, and frees the new extents, if the file changed
    /// since `writes` was counted.
    pub(super) fn replace(
        &self,
        piece: &Piece,
        placed: Vec<Placed>,
        sums: Vec<Sums>,
        writes: u64,
    ) -> Result<bool> {
        let filesystem = self.filesystem;
        let location = self.location;
        let insertions: Vec<Insertion> = placed.into_iter().map(Insertion::New).collect();
        let mut inserted = 0_usize;
        let replaced = filesystem.contents().with(location, |content| {
            content.require_writable()?;
            // An additional item shows a change.
            let most = piece.items.len().exact_add(1);
            let items = filesystem.items_of(location, &piece.range, most)?;
            let is_calm = !self.in_place
                || buttress_faults::on("defragment-overwritten-unseen")
                || (filesystem.live().inode(location)?.0.sequence == writes
                    && content.with_dirty(DirtyData::is_empty));
            let is_unchanged = items == piece.items || buttress_faults::on("defragment-unchecked");
            if !is_unchanged || !is_calm {
                return Ok(false);
            }
            let item = filesystem.read_under_lock(|operation| content.require_still_there(operation))?;
            content.insert(&item, item.size.get(), &insertions, sums, false, &mut inserted)?;
            Ok(true)
        });
        if !matches!(replaced, Ok(true)) {
            filesystem
                .writeback()
                .give_back_insertions(insertions.into_iter().skip(inserted));
        }
        replaced
    }

    fn commit_after(&mut self, bytes: u64) -> Result<()> {
        self.uncommitted_bytes = self.uncommitted_bytes.exact_add(bytes);
        if self.uncommitted_bytes >= COMMIT_BYTES {
            self.uncommitted_bytes = 0;
            self.filesystem.commit_metadata()?;
        }
        Ok(())
    }
}

/// Returns whether new extents are better than the items of a piece: fewer fragments, or as many
/// fragments of fewer extents, or stored as the job wants it.
fn improves(piece: &Piece, placed: &[Placed], wanted: Wanted) -> bool {
    let fragments = fragments_of(placed.iter().map(|placed| {
        let start = placed.range.logical.get();
        (start, start.exact_add(placed.range.length.get()))
    }));
    let before = (piece.fragments(), piece.items.len());
    if piece.joins && (fragments, placed.len()) < before {
        return true;
    }
    let is_plain = placed
        .iter()
        .all(|placed| placed.extent.compression == Compression::None);
    let stays = match wanted {
        Wanted::Any => true,
        Wanted::Plain => false,
        // Content that compression does not shrink would only move.
        Wanted::Compressed(_) => is_plain && piece.compression().is_none(),
    };
    piece.is_wanted && !stays
}
