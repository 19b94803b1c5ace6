//! The ways to read a run of bytes, and the order in which reads try them.
//!
//! A [`Segment`] is a run that is contiguous on one stripe and on the stripes that copy it. For
//! mirrored profiles, its *ways* are the copies. For RAID5 and RAID6, a segment's ways are the
//! direct read and every rebuild from the rest of the row:
//!
//! | copy | RAID5 | RAID6 |
//! |---|---|---|
//! | 1 | direct | direct |
//! | 2 | other data and `P` | other data and `P` |
//! | 3 | | other data and `Q` |
//! | 4 … | | `P`, `Q` and the data without one other column, in column order |
//!
//! Ways that need a missing device, or a device that was left out, do not exist. The ways that read
//! a stale device come last. If a chunk has copies on several devices, the first choice alternates
//! with the address, every mebibyte. Thus both disks of a mirror serve reads, neighbouring blocks
//! still merge, and two runs behave alike. The reader tries several copies on one device in order.

use crate::chunk_map::MappedChunk;
use crate::error::{Attempt, Corruption, Error, Unreadable};
use crate::faults::FaultReason;
use crate::layout::Place;
use crate::parity::Recovery;
use crate::stripe_tree::{ResolvedStripes, StripeResolver, needs_resolver};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::block_group::Profile;
use buttress_format::{ByteCount, Logical, Physical};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// The binary logarithm of the number of neighbouring bytes whose reads start at the same copy.
const BALANCE_SHIFT: u32 = 20;

/// The source of a way's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The bytes are read from one stripe.
    Direct { stripe_index: usize, physical: Physical },
    /// The bytes are rebuilt from the rest of their row.
    Rebuild(Recovery),
}

/// A way to read a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The number of the way, from 1.
    pub(crate) copy: u32,
    pub(crate) source: Source,
}

/// A contiguous run of an extent, and the ways to read it, best first.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The part of the extent's bytes that the segment covers.
    pub(crate) range: Range<usize>,
    pub(crate) logical: Logical,
    pub(crate) chunk: Arc<MappedChunk>,
    pub(crate) place: Place,
    pub(crate) ways: SmallVec<[Way; 4]>,
    /// The location of the run according to the RAID stripe tree; `None` if the chunk itself
    /// locates the run.
    resolved: Option<ResolvedStripes>,
    /// The reason why the location of the run is unknown. If the location of the run is unknown,
    /// the segment has no ways.
    pub(crate) failure: Option<Error>,
}

impl Segment {
    /// Plans a read of at most `range` that starts at `logical`. A run without a valid entry in the
    /// RAID stripe tree is planned without ways, so that the bytes before and after it stay
    /// readable.
    pub(crate) fn plan(
        chunk: &Arc<MappedChunk>,
        logical: Logical,
        range: Range<usize>,
        resolver: Option<&dyn StripeResolver>,
    ) -> Result<Self, Error> {
        let wanted = range.len();
        let unmapped = || Corruption::Unmapped {
            logical,
            length: ByteCount::of(wanted),
        };
        let place = chunk
            .offset_of(logical)
            .and_then(|offset| chunk.layout().place(offset));
        let place = place.ok_or_else(unmapped)?;
        let mut length = place.length.at_most(wanted);
        let resolved = resolver
            .filter(|_| needs_resolver(chunk.flags()))
            .map(|resolver| resolver.resolve_from(logical, &mut length))
            .transpose();
        let end = range.start.checked_add(length).ok_or_else(unmapped)?;
        let mut segment = Self {
            range: range.start..end,
            logical,
            chunk: Arc::clone(chunk),
            place,
            ways: SmallVec::new(),
            resolved: None,
            failure: None,
        };
        let failure = resolved.and_then(|resolved| {
            segment.resolved = resolved;
            segment.add_copies()
        });
        segment.add_rebuilds();
        if chunk.has_stale() {
            let mut ways = core::mem::take(&mut segment.ways);
            ways.sort_by_cached_key(|way| segment.needs_stale(*way));
            segment.ways = ways;
        }
        if buttress_faults::on("volume-one-way-tried") {
            segment.ways.truncate(1);
        }
        segment.failure = failure.err().filter(|_| segment.ways.is_empty());
        Ok(segment)
    }

    /// Returns true if `next`, the following segment, also has no entry in the RAID stripe tree and
    /// hence no location.
    pub(crate) fn is_unmapped_like(&self, next: &Self) -> bool {
        let unmapped = |segment: &Self| match &segment.failure {
            Some(Error::Corrupt(corruption)) => matches!(**corruption, Corruption::NoStripeExtent { .. }),
            _ => false,
        };
        unmapped(self) && unmapped(next) && Arc::ptr_eq(&self.chunk, &next.chunk)
    }

    /// Returns the segment's length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.range.len()
    }

    /// Returns the copies, counted from 0, the preferred copy first.
    fn copies_in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let copies = self.place.copies;
        let spread = copies > 1 && self.chunk.layout().profile() != Profile::Dup;
        let turn = self.logical.get() >> BALANCE_SHIFT;
        let first = match spread {
            true => turn.remainder(u64_of(copies)).narrow(),
            false => 0,
        };
        (first..copies).chain(0..first)
    }

    /// Adds the available copies of the run to its plan. Fails at the first copy whose location in
    /// the stripe tree is unknown.
    fn add_copies(&mut self) -> Result<(), Error> {
        let mut failure = None;
        for copy in self.copies_in_order() {
            let stripe_index = self.place.stripe_index.exact_add(copy);
            match self.place_on(stripe_index) {
                Ok(physical) => self.add_way(
                    copy,
                    Source::Direct {
                        stripe_index,
                        physical,
                    },
                ),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Adds the way with the number `index`, counted from 0, unless the way needs a missing device.
    fn add_way(&mut self, index: usize, source: Source) {
        let present = match source {
            Source::Direct { stripe_index, .. } => self.chunk.is_present(stripe_index),
            Source::Rebuild(recovery) => self
                .needed_columns(recovery)
                .all(|(_, stripe_index)| self.chunk.is_present(stripe_index)),
        };
        if present {
            let copy = index.exact_add(1).narrow();
            self.ways.push(Way { copy, source });
        }
    }

    fn add_rebuilds(&mut self) {
        let Some(place) = self.place.parity else { return };
        self.add_way(1, Source::Rebuild(Recovery::WithP));
        if self.chunk.layout().profile() == Profile::Raid6 {
            self.add_way(2, Source::Rebuild(Recovery::WithQ));
            let columns = self.chunk.layout().data_columns();
            let others = (0..columns).filter(|other| *other != place.column);
            for (index, other) in others.enumerate() {
                self.add_way(index.exact_add(3), Source::Rebuild(Recovery::WithPAndQ { other }));
            }
        }
    }

    /// Leaves out the ways that read a device with missed commits. Reads of bytes without a
    /// checksum leave out these ways. If a chunk needs all of its devices, the plan keeps the stale
    /// devices too. The volume could not be written without the device, so its bytes are current.
    pub(crate) fn distrust_stale(&mut self) {
        let may_be_behind = self.chunk.has_stale() && self.chunk.tolerated_stripes() > 0;
        if may_be_behind && !buttress_faults::on("volume-stale-data-served") {
            let mut ways = core::mem::take(&mut self.ways);
            ways.retain(|way| !self.needs_stale(*way));
            self.ways = ways;
        }
    }

    /// Returns true if a way reads a device that missed commits.
    fn needs_stale(&self, way: Way) -> bool {
        match way.source {
            Source::Direct { stripe_index, .. } => self.chunk.is_stale(stripe_index),
            Source::Rebuild(recovery) => self
                .needed_columns(recovery)
                .any(|(_, stripe_index)| self.chunk.is_stale(stripe_index)),
        }
    }

    /// Returns the columns that a rebuild reads, each with its stripe. The columns after a row's
    /// data columns are `P` and `Q`.
    pub(crate) fn needed_columns(&self, recovery: Recovery) -> impl Iterator<Item = (usize, usize)> + '_ {
        let layout = self.chunk.layout();
        let columns = layout.data_columns();
        let target = self.place.parity;
        let data = (0..columns).filter(move |column| {
            Some(*column) != target.map(|place| place.column)
                && recovery != (Recovery::WithPAndQ { other: *column })
        });
        let p = (recovery != Recovery::WithQ).then_some(columns);
        let q = (recovery != Recovery::WithP).then_some(columns.exact_add(1));
        data.chain(p)
            .chain(q)
            .filter_map(move |column| Some((column, layout.stripe_of_column(target?.row, column)?)))
    }

    /// Returns the stripe that holds the bytes of a way to read; for a rebuild, the stripe that
    /// should hold them.
    pub(crate) fn stripe_of(&self, way: Way) -> usize {
        match way.source {
            Source::Direct { stripe_index, .. } => stripe_index,
            Source::Rebuild(_) => self.place.stripe_index,
        }
    }

    fn place_on(&self, stripe_index: usize) -> Result<Physical, Error> {
        match &self.resolved {
            Some(stripes) => stripes.physical(&self.chunk, stripe_index, self.logical),
            None => self.chunk.physical(stripe_index, self.place.stripe_offset),
        }
    }

    /// Returns the physical address of the segment's bytes, or of their parity, on a stripe, even
    /// if its device is missing. If the chunk or the RAID stripe tree gives no address, returns the
    /// last address.
    pub(crate) fn physical_on(&self, stripe_index: usize) -> Physical {
        // Clamp: the numbers come from disk, and the address only appears in a message.
        self.place_on(stripe_index).unwrap_or(Physical::MAX)
    }

    /// Returns the failure of a way on a stripe, for the error and the log.
    pub(crate) fn attempt(&self, way: Way, stripe_index: usize, reason: FaultReason) -> Attempt {
        let device = self.chunk.stripe_device(stripe_index);
        Attempt {
            copy: way.copy,
            device,
            physical: self.physical_on(stripe_index),
            reason,
        }
    }

    /// Returns the error if no way worked: the reason why no way exists, or first the unavailable
    /// copies, then the attempts.
    pub(crate) fn unreadable(&self, attempts: Vec<Attempt>) -> Error {
        if let Some(failure) = &self.failure {
            return failure.clone();
        }
        let mut all = self.missing_copies();
        all.extend(attempts);
        Error::from(Unreadable {
            logical: self.logical,
            length: ByteCount::of(self.length()),
            attempts: all,
        })
    }

    /// Returns one failed attempt for each unavailable copy, for the error if no way works.
    fn missing_copies(&self) -> Vec<Attempt> {
        // A stale copy with a verifier is tried, so the error names that copy's own failure.
        let is_tried = |stripe_index| {
            let is_way = |way: &Way| matches!(way.source, Source::Direct { stripe_index: own, .. } if own == stripe_index);
            self.ways.iter().any(is_way)
        };
        (0..self.place.copies)
            .map(|copy| (copy, self.place.stripe_index.exact_add(copy)))
            .filter(|(_, stripe_index)| {
                let is_left_out = self.chunk.is_stale(*stripe_index) && !is_tried(*stripe_index);
                !self.chunk.is_present(*stripe_index) || is_left_out
            })
            .map(|(copy, stripe_index)| {
                let copy = copy.exact_add(1).narrow();
                let slot = self.chunk.devices().get(stripe_index);
                Attempt {
                    copy,
                    device: self.chunk.stripe_device(stripe_index),
                    physical: self.physical_on(stripe_index),
                    reason: slot.map_or(FaultReason::Missing, |slot| FaultReason::of_absence(slot)),
                }
            })
            .collect()
    }
}
