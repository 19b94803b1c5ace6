//! The pieces of a file that a defragmentation rewrites, by Linux's rules.
//!
//! A *fragment* is content at consecutive offsets that is also consecutive on disk: several plain
//! extents, or a compressed one. A fragment is *small* below the target size, and below the length
//! that one extent can have: 128 KiB for a compressed one. A small fragment is rewritten together
//! with a small neighbour. A fragment without a small neighbour stays as it is, since rewriting it
//! joins nothing. Holes, preallocated and inline extents part neighbours and stay.
//!
//! With a wanted compression, a fragment that is stored differently is rewritten even without a
//! neighbour, whatever its length.
//!
//! Left out: whether free space is good enough, which `rewriting` decides after it has a place.

use super::super::compressing::{COMPRESSED_BYTES_MAX, EXTENT_BYTES_MAX};
use super::super::stored::Stored;
use buttress_exact::Exact as _;
use buttress_format::{Compression, FileExtentBody};
use core::ops::Range;

/// How content should be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Any,
    Compressed(Compression),
    Plain,
}

/// The rule by which pieces are chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Fragments of this length are not small, in bytes.
    pub(super) target: u64,
    /// The most content of a piece, in bytes.
    pub(super) piece: u64,
    pub(super) wanted: Wanted,
}

/// Content that is rewritten at once.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    /// The file's items in the range; the first and the last may extend past it.
    pub(super) items: Vec<Stored>,
    /// Whether the piece is rewritten for its compression.
    pub(super) is_wanted: bool,
    /// Whether the piece is rewritten to join small fragments.
    pub(super) joins: bool,
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        self.range.end.exact_sub(self.range.start)
    }

    /// Returns the part of the piece within a range, if there is one.
    pub(super) fn within(&self, range: &Range<u64>) -> Option<Self> {
        let part = self.range.start.max(range.start)..self.range.end.min(range.end);
        let is_inside = |item: &&Stored| item.start < part.end && item.end > part.start;
        (part.start < part.end).then(|| Self {
            items: self.items.iter().filter(is_inside).copied().collect(),
            range: part.clone(),
            is_wanted: self.is_wanted,
            joins: self.joins,
        })
    }

    /// The number of fragments of the piece.
    pub(super) fn fragments(&self) -> usize {
        fragments_of(self.items.iter().map(place_of))
    }

    /// The compression of the first compressed item.
    pub(super) fn compression(&self) -> Option<Compression> {
        let mut compressions = self.items.iter().map(|item| item.extent.compression);
        compressions.find(|compression| *compression != Compression::None)
    }
}

/// The address at which an item's content begins, and the address after it. A compressed item
/// counts with its whole extent.
pub(super) fn place_of(item: &Stored) -> (u64, u64) {
    let Some(slice) = item.slice() else {
        return (0, 0);
    };
    match item.extent.compression {
        Compression::None => {
            // Clamp: the checks of items bound addresses on disk.
            let start = slice.disk.get().saturating_add(slice.offset.get());
            // Clamp: as above.
            (start, start.saturating_add(slice.num_bytes.get()))
        }
        _ => {
            let start = slice.disk.get();
            // Clamp: as above.
            (start, start.saturating_add(slice.disk_bytes.get()))
        }
    }
}

/// Counts the places that do not begin where the place before ends.
pub(super) fn fragments_of(places: impl Iterator<Item = (u64, u64)>) -> usize {
    let mut count = 0_usize;
    let mut end = None;
    for (start, next) in places {
        if end != Some(start) {
            count = count.exact_add(1);
        }
        end = Some(next);
    }
    count
}

/// A fragment: the indexes of its items.
#[derive(Clone, Debug)]
struct Fragment {
    items: Range<usize>,
    bytes: u64,
    is_small: bool,
    is_wanted: bool,
}

impl Rule {
    /// Returns the pieces to rewrite among consecutive items of a file, and the offset at which the
    /// next items begin; `None` if no more follow. If more items follow (`is_cut`), the last run is
    /// left to the next call, unless it is the only one.
    pub(super) fn choose(
        &self,
        items: &[Stored],
        is_cut: bool,
        is_left_out: &dyn Fn(usize) -> bool,
    ) -> (Vec<Piece>, Option<u64>) {
        let runs = self.runs(items, is_left_out);
        let mut pieces = Vec::new();
        let mut resume = match is_cut {
            true => items.last().map(|item| item.start),
            false => None,
        };
        for run in &runs {
            let first = run.first().map_or(0, |fragment| fragment.items.start);
            let is_last = run
                .last()
                .is_some_and(|fragment| fragment.items.end == items.len());
            if is_cut && is_last && first > 0 {
                resume = items.get(first).map(|item| item.start);
                break;
            }
            if run.len() > 1 || run.iter().any(|fragment| fragment.is_wanted) {
                self.cut(items, run, &mut pieces);
            }
        }
        (pieces, resume)
    }

    /// Returns runs of fragments that are neighbours and may be rewritten.
    fn runs(&self, items: &[Stored], is_left_out: &dyn Fn(usize) -> bool) -> Vec<Vec<Fragment>> {
        let mut runs: Vec<Vec<Fragment>> = Vec::new();
        let mut last_end = None;
        for fragment in self.fragments(items, is_left_out) {
            if !fragment.is_small && !fragment.is_wanted {
                last_end = None;
                continue;
            }
            let start = items.get(fragment.items.start).map(|item| item.start);
            let end = items.get(fragment.items.end.exact_sub(1)).map(|item| item.end);
            match runs
                .last_mut()
                .filter(|_| last_end.is_some() && start == last_end)
            {
                Some(run) => run.push(fragment),
                None => runs.push(vec![fragment]),
            }
            last_end = end;
        }
        runs
    }

    fn fragments(&self, items: &[Stored], is_left_out: &dyn Fn(usize) -> bool) -> Vec<Fragment> {
        let mut fragments: Vec<Fragment> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if !is_regular(item) || is_left_out(index) {
                continue;
            }
            let before = index.checked_sub(1).and_then(|before| items.get(before));
            let continues = before.is_some_and(|before| {
                let is_plain = |item: &Stored| item.extent.compression == Compression::None;
                before.end == item.start
                    && is_plain(before)
                    && is_plain(item)
                    && place_of(before).1 == place_of(item).0
            });
            let bytes = item.end.exact_sub(item.start);
            match fragments.last_mut() {
                Some(last) if continues && last.items.end == index => {
                    last.items.end = index.exact_add(1);
                    last.bytes = last.bytes.exact_add(bytes);
                }
                _ => fragments.push(Fragment {
                    items: index..index.exact_add(1),
                    bytes,
                    is_small: false,
                    is_wanted: self.wants(item.extent.compression),
                }),
            }
        }
        for fragment in &mut fragments {
            let compression = items
                .get(fragment.items.start)
                .map_or(Compression::None, |item| item.extent.compression);
            let most = match compression {
                Compression::None => EXTENT_BYTES_MAX,
                _ => COMPRESSED_BYTES_MAX,
            };
            fragment.is_small = fragment.bytes < self.target && fragment.bytes < most;
        }
        fragments
    }

    fn wants(&self, compression: Compression) -> bool {
        match self.wanted {
            Wanted::Any => false,
            Wanted::Plain => compression != Compression::None,
            Wanted::Compressed(wanted) => compression != wanted,
        }
    }

    /// Cuts a run into pieces.
    fn cut(&self, items: &[Stored], run: &[Fragment], pieces: &mut Vec<Piece>) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return;
        };
        let Some(items) = items.get(first.items.start..last.items.end) else {
            return;
        };
        let is_wanted = run.iter().any(|fragment| fragment.is_wanted);
        let (Some(start), Some(end)) = (items.first(), items.last()) else {
            return;
        };
        let whole = Piece {
            range: start.start..end.end,
            items: items.to_vec(),
            is_wanted,
            joins: run.len() > 1 && run.iter().all(|fragment| fragment.is_small),
        };
        let mut at = whole.range.start;
        while at < whole.range.end {
            let next = at.exact_add(self.piece).min(whole.range.end);
            pieces.extend(whole.within(&(at..next)));
            at = next;
        }
    }
}

/// Returns whether an item has written content on disk.
fn is_regular(item: &Stored) -> bool {
    let is_written = matches!(item.extent.body, FileExtentBody::Regular(_));
    is_written && item.slice().is_some() && item.extent.other_encoding == 0
}
