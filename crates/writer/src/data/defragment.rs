//! Defragmentation: rewrites small extents of a file as large ones, or compressed. Readers see the
//! same content throughout, and the file's times stay.
//!
//! `options` has the options and the summary, `job` the state of a job.
//!
//! | step | module | holds |
//! |---|---|---|
//! | 1. items are listed, and pieces are chosen | `choice` | the edit lock, a few items at a time |
//! | 2. a piece is read, compressed, and written to a new place | `rewriting` | no lock |
//! | 3. if the piece is unchanged, its items are replaced | `rewriting` | the file lock, and the edit lock |
//! | 4. to keep sharing, extents of several users move together | `moving` | the locks of a relocation |
//!
//! # Invariants
//!
//! - The items are replaced only if the file's content on disk is what the step read. Otherwise the
//!   piece is chosen and read again.
//! - Newer dirty data covers the replaced extents, so a defragmentation discards no write.
//! - A piece is left alone if the free space is too fragmented to improve it.
//! - Memory holds the content of one piece, at most 32 MiB, and its compressed form.
//! - Snapshots and clones keep the old extents, unless extents move to keep sharing.
//!
//! Left out: inline extents stay inline; trees are not defragmented.

mod choice;
mod job;
mod moving;
mod options;
mod rewriting;
#[cfg(test)]
mod tests;

use super::stored::Stored;
use crate::WritableFilesystem;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::ByteCount;
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use choice::Piece;
use core::ops::Range;
use job::{CHANGES_MAX, ITEMS_MAX, Job, Rewritten};

pub use options::{DefragmentCompression, DefragmentOptions, DefragmentSummary};

impl WritableFilesystem {
    /// Rewrites small extents of a regular file as large ones. The file's content and times stay.
    /// The job runs beside readers and writers of the file. After an error, the file is whole, and
    /// the part before the error is defragmented.
    ///
    /// # Errors
    /// - The job was cancelled; the current piece is complete.
    /// - The location is no regular file, its subvolume is read-only, or it is immutable.
    /// - No space is free, or the content cannot be read.
    /// - The range begins past the end of the file.
    pub fn defragment(
        &self,
        location: Location,
        options: &DefragmentOptions,
        progress: &Progress,
    ) -> Result<DefragmentSummary> {
        progress.check()?;
        let file = self.contents().with(location, |content| content.describe())?;
        let range = file.range_of(options)?;
        let mut job = file.job(self, location, options, progress);
        // Only content with extents is fragmented.
        self.writeback().write_file(location)?;
        let mut at = range.start;
        let mut changes = 0_usize;
        while at < range.end {
            let before = at;
            at = job.next_window(at..range.end, &mut changes)?;
            progress.advance(0, ByteCount::new(at.exact_sub(before)));
            if at < range.end && at == before {
                changes = changes.exact_add(1);
            }
        }
        if options.keeps_sharing {
            job.move_shared(&range)?;
        }
        Ok(job.summary)
    }
}

impl Job<'_> {
    /// Defragments the pieces among the next items of a range. Returns the offset at which the next
    /// items begin: the same offset if a piece changed meanwhile.
    fn next_window(&mut self, range: Range<u64>, changes: &mut usize) -> Result<u64> {
        // An additional item shows whether the last one has a neighbour.
        let most = ITEMS_MAX.exact_add(1);
        let all = range.start..u64::MAX;
        let (items, shared): (Vec<Stored>, Vec<bool>) = match self.keeps_sharing {
            true => self.items_with_users(&all, most)?.into_iter().unzip(),
            false => (self.filesystem.items_of(self.location, &all, most)?, Vec::new()),
        };
        let is_cut = items.len() > ITEMS_MAX;
        let (pieces, resume) = self
            .rule
            .choose(&items, is_cut, &|index| shared.get(index) == Some(&true));
        let mut done = range.start;
        for piece in &pieces {
            let Some(piece) = piece.within(&(done.max(range.start)..range.end)) else {
                continue;
            };
            self.progress.check()?;
            match self.rewrite(&piece)? {
                Rewritten::Changed if *changes < CHANGES_MAX => {
                    return Ok(piece.range.start.max(range.start));
                }
                rewritten => self.count(&piece, rewritten),
            }
            *changes = 0;
            done = piece.range.end;
        }
        Ok(resume.map_or(range.end, |resume| resume.max(done).min(range.end)))
    }

    fn count(&mut self, piece: &Piece, rewritten: Rewritten) {
        let bytes = ByteCount::new(piece.bytes());
        let summary = &mut self.summary;
        match rewritten {
            Rewritten::As(extents) => {
                summary.old_extents = summary.old_extents.exact_add(u64_of(piece.items.len()));
                summary.new_extents = summary.new_extents.exact_add(u64_of(extents));
                summary.rewritten = summary.rewritten.exact_add(bytes);
            }
            Rewritten::Kept => {}
            Rewritten::Left => summary.left = summary.left.exact_add(bytes),
            Rewritten::Changed => summary.busy = summary.busy.exact_add(bytes),
        }
    }
}
