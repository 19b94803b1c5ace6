//! The ways to get a run of bytes, and in which order they are tried.
//!
//! A [`Segment`] is a run that lies contiguously on one stripe (and on the stripes that copy it). Its *ways*
//! are, for mirrored profiles, the copies; for RAID5 and RAID6 the direct read and every rebuild from the rest
//! of the row:
//!
//! | copy | RAID5 | RAID6 |
//! |---|---|---|
//! | 1 | direct | direct |
//! | 2 | other data and `P` | other data and `P` |
//! | 3 | | other data and `Q` |
//! | 4 … | | `P`, `Q` and the data without one other column, in column order |
//!
//! Ways that need a missing device, or one that failed a write and was left out, are not there. Those that read a stale device come last. Among copies on several
//! devices the first choice goes round with the address, a mebibyte at a time: both disks of a mirror work,
//! neighbouring blocks still merge, and two runs do the same. Copies on one device are tried in order.

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

/// Reads of this many neighbouring bytes start at the same copy.
const BALANCE_SHIFT: u32 = 20;

/// How a way gets its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// They are read from one stripe.
    Direct { stripe_index: usize, physical: Physical },
    /// They are rebuilt from the rest of their row.
    Rebuild(Recovery),
}

/// One way to get a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Its number, from 1.
    pub(crate) copy: u32,
    pub(crate) source: Source,
}

/// A contiguous run of an extent, and the ways to get it, best first.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Which bytes of the extent it is.
    pub(crate) range: Range<usize>,
    pub(crate) logical: Logical,
    pub(crate) chunk: Arc<MappedChunk>,
    pub(crate) place: Place,
    pub(crate) ways: SmallVec<[Way; 4]>,
    /// Where the RAID stripe tree puts the run; `None` where the chunk says so itself.
    resolved: Option<ResolvedStripes>,
    /// Why it cannot be said where the run lies; then there are no ways.
    pub(crate) failure: Option<Error>,
}

impl Segment {
    /// Plans the run of at most `range` that starts at `logical`. A run that the RAID stripe tree has no sound
    /// entry for is planned too, without ways: what lies before and after it can be read all the same.
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

    /// Whether `next`, which follows it, is lost for the same reason: the RAID stripe tree has no entry.
    pub(crate) fn is_unmapped_like(&self, next: &Self) -> bool {
        let unmapped = |segment: &Self| match &segment.failure {
            Some(Error::Corrupt(corruption)) => matches!(**corruption, Corruption::NoStripeExtent { .. }),
            _ => false,
        };
        unmapped(self) && unmapped(next) && Arc::ptr_eq(&self.chunk, &next.chunk)
    }

    /// The bytes that it has.
    pub(crate) fn length(&self) -> usize {
        self.range.len()
    }

    /// Copies counted from 0, the preferred one first.
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

    /// Adds the copies that can be reached, and fails with the first whose place cannot be told.
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

    /// Adds the way with number `index`, from 0, unless a device that it needs is missing.
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

    /// Leaves out the ways that read a device which missed commits. Reads of bytes without a checksum use this. A chunk
    /// that needs all of its devices keeps these ways. The volume could not be written without the device, so its bytes
    /// are current.
    pub(crate) fn distrust_stale(&mut self) {
        let may_be_behind = self.chunk.has_stale() && self.chunk.tolerated_stripes() > 0;
        if may_be_behind && !buttress_faults::on("volume-stale-data-served") {
            let mut ways = core::mem::take(&mut self.ways);
            ways.retain(|way| !self.needs_stale(*way));
            self.ways = ways;
        }
    }

    /// Whether a way reads a device that missed commits.
    fn needs_stale(&self, way: Way) -> bool {
        match way.source {
            Source::Direct { stripe_index, .. } => self.chunk.is_stale(stripe_index),
            Source::Rebuild(recovery) => self
                .needed_columns(recovery)
                .any(|(_, stripe_index)| self.chunk.is_stale(stripe_index)),
        }
    }

    /// The columns that a rebuild reads, each with its stripe. Columns past the data ones are `P` and `Q`.
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

    /// The stripe that the way's bytes lie on; for a rebuild, the one that they should lie on.
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

    /// Where the segment's bytes, or the parity over them, lie on a stripe, whether or not its device is there:
    /// the last address where the chunk's numbers, or those of the RAID stripe tree, have no answer.
    pub(crate) fn physical_on(&self, stripe_index: usize) -> Physical {
        // Clamp: numbers from disk, in a message.
        self.place_on(stripe_index).unwrap_or(Physical::MAX)
    }

    /// The failure of a way on a stripe, for error and log.
    pub(crate) fn attempt(&self, way: Way, stripe_index: usize, reason: FaultReason) -> Attempt {
        let device = self.chunk.stripe_device(stripe_index);
        Attempt {
            copy: way.copy,
            device,
            physical: self.physical_on(stripe_index),
            reason,
        }
    }

    /// The error when no way worked: why there was none, or copies out of reach first, then what was tried.
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

    /// One attempt for each copy that is out of reach, for the error when nothing else works.
    fn missing_copies(&self) -> Vec<Attempt> {
        // A stale copy that is verified is tried, and then named by what it failed with.
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
