//! A defragmentation of one file: its rule, and the file's items.

use super::choice::{Rule, Wanted};
use super::options::{DefragmentCompression, DefragmentOptions, DefragmentSummary, PIECE_BYTES_MAX};
use crate::WritableFilesystem;
use crate::data::compressing::CompressionPlan;
use crate::data::content::Content;
use crate::data::stored::Stored;
use crate::operations::Access;
use buttress_exact::Exact as _;
use buttress_format::InodeFlags;
use buttress_format::compression::CompressionMethod;
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use core::ops::Range;

/// The most items that are listed at a time, except one more that shows the neighbour of the last. An
/// edit replaces no more items than a list has.
pub(super) const ITEMS_MAX: usize = 2048;

/// The number of items that are looked up under one hold of the edit lock.
const ITEMS_LOOKED_UP: usize = 64;

/// How often a piece may change under the job before the job leaves the piece alone.
pub(super) const CHANGES_MAX: usize = 4;

/// The outcome of one attempt to rewrite a piece.
pub(super) enum Rewritten {
    /// The piece has this many extents now.
    As(usize),
    /// The piece stays, since the free space would not join its fragments.
    Left,
    /// The piece stays, since compression would not shrink it.
    Kept,
    /// The file changed meanwhile, and the piece stays.
    Changed,
}

/// A defragmentation of one file.
pub(super) struct Job<'a> {
    pub(super) filesystem: &'a WritableFilesystem,
    pub(super) location: Location,
    pub(super) progress: &'a Progress,
    pub(super) rule: Rule,
    /// Whether only the pieces of extents that belong to the file alone are rewritten.
    pub(super) keeps_sharing: bool,
    /// How content is compressed; `None` for content whose compression the choice of a piece gives.
    pub(super) plan: Option<CompressionPlan>,
    /// Whether extents of the file may be overwritten in place.
    pub(super) in_place: bool,
    pub(super) has_checksums: bool,
    pub(super) uncommitted_bytes: u64,
    pub(super) summary: DefragmentSummary,
}

impl WritableFilesystem {
    /// Returns the file's items from the start of a range on, at most `most` of them.
    pub(super) fn items_of(
        &self,
        location: Location,
        range: &Range<u64>,
        most: usize,
    ) -> Result<Vec<Stored>> {
        let items = self.items_with(location, range, most, |_, _| Ok(()))?;
        Ok(items.into_iter().map(|(item, ())| item).collect())
    }

    /// Returns items as [`items_of`](Self::items_of) does, each with what `of` found at the same
    /// moment.
    pub(super) fn items_with<T>(
        &self,
        location: Location,
        range: &Range<u64>,
        most: usize,
        of: impl Fn(&mut Access<'_>, &Stored) -> Result<T>,
    ) -> Result<Vec<(Stored, T)>> {
        let mut items: Vec<(Stored, T)> = Vec::new();
        let mut from = range.start;
        while from < range.end && items.len() < most {
            let count = most.exact_sub(items.len()).min(ITEMS_LOOKED_UP);
            let found = self.read_under_lock(|access| {
                let mut found = Vec::with_capacity(count);
                let mut at = from;
                while found.len() < count
                    && let Some(stored) = access.extent_from(location, at)?
                    && stored.start < range.end
                {
                    at = stored.end;
                    let with = of(access, &stored)?;
                    found.push((stored, with));
                }
                Ok(found)
            })?;
            let Some((last, _)) = found.last() else {
                break;
            };
            from = last.end;
            items.extend(found);
        }
        Ok(items)
    }
}

/// The file's properties on which a defragmentation depends.
pub(super) struct Described {
    flags: InodeFlags,
    /// The size of the file, in bytes.
    size: u64,
    sector_bytes: u64,
    /// How writes to the file are compressed.
    plan: Option<CompressionPlan>,
}

impl Content<'_> {
    /// Returns the properties of the file, which must be writable.
    pub(super) fn describe(&mut self) -> Result<Described> {
        let item = self.require_writable()?;
        Ok(Described {
            flags: item.flags,
            size: self.size()?,
            sector_bytes: self.sector_bytes,
            plan: self.compression_plan(&item)?,
        })
    }
}

impl Described {
    /// Returns the whole sectors of the range to defragment.
    pub(super) fn range_of(&self, options: &DefragmentOptions) -> Result<Range<u64>> {
        let start = options.start.get();
        if self.size > 0 && start >= self.size {
            return Err(Error::Invalid {
                what: "the range to defragment begins past the end of the file",
            });
        }
        // Clamp: a range without an end.
        let end = start.saturating_add(options.length.get()).min(self.size);
        let start = start.exact_sub(start.remainder(self.sector_bytes));
        Ok(start..end.next_multiple_of(self.sector_bytes))
    }

    pub(super) fn job<'a>(
        self,
        filesystem: &'a WritableFilesystem,
        location: Location,
        options: &DefragmentOptions,
        progress: &'a Progress,
    ) -> Job<'a> {
        let can_compress = !self
            .flags
            .intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
        let (wanted, plan) = match options.compression {
            DefragmentCompression::With(method) if can_compress => {
                (Wanted::Compressed(method.compression()), Some(forced(method)))
            }
            DefragmentCompression::Never => (Wanted::Plain, None),
            DefragmentCompression::Keep | DefragmentCompression::With(_) => (Wanted::Any, self.plan),
        };
        let step = options.step.get().min(PIECE_BYTES_MAX);
        let step = step.exact_sub(step.remainder(self.sector_bytes));
        Job {
            filesystem,
            location,
            progress,
            rule: Rule {
                target: options.target.get(),
                piece: step.max(self.sector_bytes),
                wanted,
            },
            keeps_sharing: options.keeps_sharing,
            plan,
            in_place: self.flags.contains(InodeFlags::NODATACOW),
            has_checksums: !self.flags.contains(InodeFlags::NODATASUM),
            uncommitted_bytes: 0,
            summary: DefragmentSummary::default(),
        }
    }
}

/// Returns the plan that compresses all content by this method.
pub(super) const fn forced(method: CompressionMethod) -> CompressionPlan {
    CompressionPlan {
        method,
        is_forced: true,
        gives_up: false,
    }
}
