//! The computation of the devices after a crash from a recorded order of events.
//!
//! The events before a cut are of two kinds. Events that a flush before the cut covers are present;
//! all other events are in doubt. The state of the present events advances from cut to cut, with
//! checkpoints to return to. Cuts in ascending order therefore cost only the events between them.
//! Events in doubt are applied to a copy of this state.
//!
//! Clamps: of a laboratory for tests, whose images are compared as a whole.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use super::pages::Pages;
use super::recording::{CrashImage, DISCARDED};
use super::{Event, Recorded, SECTOR_BYTES, target};
use buttress_device::Backend;
use buttress_exact::u64_of;

lock_class!(CheckpointsLock, "checkpoints", Rank::LEAF);
lock_class!(LatestLock, "latest", Rank::LEAF);

/// The number of events between two checkpoints.
const CHECKPOINT_EVENTS: usize = 1024;

/// The outcome of the writes in doubt at a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// All writes in doubt are present.
    AllKept,
    /// No write in doubt is present.
    NoneKept,
    /// The seed decides for each image: first the share of lost writes, from almost none to almost
    /// all, then the lost writes. For some of the other writes it also decides the present sectors:
    /// the first ones, or any.
    Drawn {
        /// The seed. Equal seeds give equal images.
        seed: u64,
    },
}

/// The recorded events of a lab's devices.
#[derive(Debug)]
pub struct History {
    bases: Vec<Pages>,
    events: Vec<Recorded>,
    /// The checkpoints in ascending order of their cuts, the first at cut 0.
    checkpoints: Mutex<Vec<State>, CheckpointsLock>,
    latest: Mutex<State, LatestLock>,
}

/// The certain content of the devices at a cut, and the events in doubt.
#[derive(Clone, Debug)]
pub(super) struct State {
    cut: usize,
    durable: Vec<Pages>,
    /// The events that no flush covers, by number, each with its parts in doubt.
    in_doubt: BTreeMap<usize, Doubt>,
}

/// The parts of a change that are in doubt.
#[derive(Clone, Debug)]
enum Doubt {
    Whole,
    /// These parts, in ascending order. A later change replaced all other parts of the change, and
    /// a flush covers the later change.
    Parts(Vec<Range<u64>>),
}

impl Doubt {
    /// Returns the parts of a byte range that no flush covers at the cut.
    fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        match self {
            Self::Whole => vec![range.clone()],
            Self::Parts(parts) => {
                let cut = parts.iter().map(|part| intersection(part, range));
                cut.filter(|part| !part.is_empty()).collect()
            }
        }
    }

    /// Removes `replaced` from the change's `range`. Returns `None` if no part is left.
    fn without(&self, range: &Range<u64>, replaced: &Range<u64>) -> Option<Self> {
        let before = range.start..range.end.min(replaced.start);
        let after = range.start.max(replaced.end)..range.end;
        let parts: Vec<_> = [before, after]
            .iter()
            .flat_map(|side| self.within(side))
            .filter(|part| !part.is_empty())
            .collect();
        (!parts.is_empty()).then_some(Self::Parts(parts))
    }
}

fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

impl State {
    /// Returns the number of events before the power failure.
    pub(super) const fn cut(&self) -> usize {
        self.cut
    }

    /// Returns whether no event is in doubt.
    pub(super) fn is_certain(&self) -> bool {
        self.in_doubt.is_empty()
    }
}

impl History {
    pub(super) fn new(bases: Vec<Pages>, events: Vec<Recorded>) -> Self {
        let start = State {
            cut: 0,
            durable: bases.clone(),
            in_doubt: BTreeMap::new(),
        };
        Self {
            bases,
            events,
            checkpoints: Mutex::new(vec![start.clone()]),
            latest: Mutex::new(start),
        }
    }

    /// Returns the number of events. Cuts range from 0, before the first event, to this number,
    /// after the last event.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the events in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = &Event> {
        self.events.iter().map(|recorded| &recorded.event)
    }

    /// Returns the label of the last mark before a cut.
    #[must_use]
    pub fn last_mark(&self, cut: usize) -> Option<u64> {
        self.marks(cut).next_back()
    }

    /// Returns the labels of all marks before a cut, in order.
    pub fn marks(&self, cut: usize) -> impl DoubleEndedIterator<Item = u64> {
        let before = self.events.get(..cut).unwrap_or(&self.events);
        before.iter().filter_map(|recorded| match recorded.event {
            Event::Mark { label } => Some(label),
            _ => None,
        })
    }

    /// Returns the number of writes, zeroings and discards in doubt at a cut.
    #[must_use]
    pub fn in_doubt(&self, cut: usize) -> usize {
        self.state_at(cut).in_doubt.len()
    }

    /// Returns the devices after a power failure past the first `cut` events, in the order in which
    /// the lab handed them out. A cut past the last event counts as the cut after the last event.
    #[must_use]
    pub fn images_at(&self, cut: usize, outcome: Outcome) -> Vec<Arc<dyn Backend>> {
        self.images_of(self.state_at(cut), outcome)
    }

    /// Returns the devices of a state.
    pub(super) fn images_of(&self, state: State, outcome: Outcome) -> Vec<Arc<dyn Backend>> {
        let mut draw = Draw::new(outcome, state.cut);
        self.images_chosen(state, &mut |event, sector, sectors| {
            draw.keeps(event, sector, sectors)
        })
    }

    /// As [`images_at`](Self::images_at), with the caller's choice. The choice gets, for each write
    /// in doubt, the number of its event, a sector (from 0), and the number of sectors. The choice
    /// returns whether the sector is present. Writes come in the order of their beginnings, their
    /// sectors in ascending order.
    #[must_use]
    pub fn images_with(
        &self,
        cut: usize,
        keeps: &mut dyn FnMut(usize, u64, u64) -> bool,
    ) -> Vec<Arc<dyn Backend>> {
        self.images_chosen(self.state_at(cut), keeps)
    }

    fn images_chosen(
        &self,
        mut state: State,
        keeps: &mut dyn FnMut(usize, u64, u64) -> bool,
    ) -> Vec<Arc<dyn Backend>> {
        for (number, doubt) in &state.in_doubt {
            let Some(recorded) = self.events.get(*number) else {
                continue;
            };
            let Some((device, range)) = target(&recorded.event) else {
                continue;
            };
            let Some(pages) = state.durable.get_mut(device) else {
                continue;
            };
            // These are sectors of the device, not of the request.
            let first = range.start.checked_div(SECTOR_BYTES).unwrap_or(0);
            let end = range.end.div_ceil(SECTOR_BYTES);
            let sectors = end.saturating_sub(first);
            // Neighbouring present sectors are applied at once.
            let mut there: Option<u64> = None;
            for sector in first..=end {
                let kept = sector < end && keeps(*number, sector.saturating_sub(first), sectors);
                if kept {
                    there = there.or(Some(sector));
                } else if let Some(start) = there.take() {
                    let start = start.saturating_mul(SECTOR_BYTES).max(range.start);
                    let stop = sector.saturating_mul(SECTOR_BYTES).min(range.end);
                    for part in doubt.within(&(start..stop)) {
                        apply(pages, &recorded.event, &part);
                    }
                }
            }
        }
        let images = state.durable.into_iter();
        images
            .map(|pages| Arc::new(CrashImage::new(pages)) as Arc<dyn Backend>)
            .collect()
    }

    pub(super) fn state_at(&self, cut: usize) -> State {
        let cut = cut.min(self.events.len());
        let latest = self.latest.lock().clone();
        let mut state = if latest.cut <= cut && cut.saturating_sub(latest.cut) <= CHECKPOINT_EVENTS {
            latest
        } else {
            let checkpoints = self.checkpoints.lock();
            let before = checkpoints.partition_point(|checkpoint| checkpoint.cut <= cut);
            match before.checked_sub(1).and_then(|place| checkpoints.get(place)) {
                Some(checkpoint) => checkpoint.clone(),
                None => State {
                    cut: 0,
                    durable: self.bases.clone(),
                    in_doubt: BTreeMap::new(),
                },
            }
        };
        while state.cut < cut {
            self.step(&mut state);
            if state.cut.checked_rem(CHECKPOINT_EVENTS) == Some(0) {
                let mut checkpoints = self.checkpoints.lock();
                if checkpoints.last().is_none_or(|last| last.cut < state.cut) {
                    checkpoints.push(state.clone());
                }
            }
        }
        *self.latest.lock() = state.clone();
        state
    }

    /// Advances the cut of `state` by one event.
    fn step(&self, state: &mut State) {
        let number = state.cut;
        state.cut = number.saturating_add(1);
        let Some(recorded) = self.events.get(number) else {
            return;
        };
        let Event::Flush { device } = recorded.event else {
            if target(&recorded.event).is_some() {
                state.in_doubt.insert(number, Doubt::Whole);
            }
            return;
        };
        let began = recorded.time.unwrap_or(0);
        let covered = |earlier: &Recorded| {
            target(&earlier.event).is_some_and(|(other, _)| other == device)
                && earlier.time.is_some_and(|returned| returned < began)
        };
        let done: Vec<usize> = state
            .in_doubt
            .keys()
            .copied()
            .filter(|number| self.events.get(*number).is_some_and(covered))
            .collect();
        for number in done {
            let doubt = state.in_doubt.remove(&number);
            let event = self.events.get(number).map(|recorded| &recorded.event);
            if let Some((event, (device, range))) = event.and_then(|event| Some((event, target(event)?)))
                && let Some(pages) = state.durable.get_mut(device)
            {
                for part in doubt.iter().flat_map(|doubt| doubt.within(&range)) {
                    apply(pages, event, &part);
                }
                self.replace_earlier(state, number, device, &range);
            }
        }
    }

    /// Ends the doubt of changes before `number` to the same bytes, because this change came later.
    /// Such changes remain only if threads overlapped; the flush covers all others.
    fn replace_earlier(&self, state: &mut State, number: usize, device: usize, range: &Range<u64>) {
        let earlier: Vec<usize> = state
            .in_doubt
            .range(..number)
            .map(|(earlier, _)| *earlier)
            .collect();
        for earlier in earlier {
            let changed = self
                .events
                .get(earlier)
                .and_then(|recorded| target(&recorded.event));
            let Some((_, changed)) = changed
                .filter(|(other, changed)| *other == device && !intersection(changed, range).is_empty())
            else {
                continue;
            };
            let left = state.in_doubt.remove(&earlier);
            if let Some(left) = left.and_then(|doubt| doubt.without(&changed, range)) {
                state.in_doubt.insert(earlier, left);
            }
        }
    }
}

/// Applies a part of an event's change. A change outside the device failed in the recorded run,
/// too.
fn apply(pages: &mut Pages, event: &Event, part: &Range<u64>) {
    let start = part.start;
    let length = part.end.saturating_sub(start);
    let _outside = match event {
        Event::Write {
            offset_bytes, bytes, ..
        } => {
            let from = usize::try_from(start.saturating_sub(*offset_bytes)).unwrap_or(usize::MAX);
            let count = usize::try_from(length).unwrap_or(usize::MAX);
            let part = bytes.get(from..from.saturating_add(count)).unwrap_or_default();
            debug_assert_eq!(u64_of(part.len()), length, "a part of the write");
            pages.write(start, part)
        }
        Event::Zero { .. } => pages.fill(start, length, 0),
        Event::Discard { .. } => pages.fill(start, length, DISCARDED),
        Event::Flush { .. } | Event::Mark { .. } => Ok(()),
    };
}

/// Draws the surviving writes and sectors.
struct Draw {
    outcome: Outcome,
    state: u64,
    /// The number of lost writes among 256.
    lost: u64,
    current: Option<(usize, Fate)>,
}

/// The fate of a write.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    /// Only this many sectors from the start of the write are present.
    First(u64),
    /// Each sector is drawn separately.
    Any,
}

impl Draw {
    fn new(outcome: Outcome, cut: usize) -> Self {
        let seed = match outcome {
            Outcome::Drawn { seed } => seed,
            Outcome::AllKept | Outcome::NoneKept => 0,
        };
        let mut draw = Self {
            outcome,
            state: seed ^ u64_of(cut).rotate_left(32),
            lost: 0,
            current: None,
        };
        draw.lost = match draw.below(4) {
            0 => 8,
            1 => 64,
            2 => 128,
            _ => 240,
        };
        draw
    }

    /// Returns the next number of SplitMix64 (Steele, Lea and Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = self.state;
        let value = (value ^ value.wrapping_shr(30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value.wrapping_shr(27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value.wrapping_shr(31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }

    fn fate(&mut self, sectors: u64) -> Fate {
        if self.below(256) < self.lost {
            return Fate::Lost;
        }
        match self.below(8) {
            0 if sectors > 1 => Fate::First(self.below(sectors)),
            1 if sectors > 1 => Fate::Any,
            _ => Fate::Kept,
        }
    }

    fn keeps(&mut self, event: usize, sector: u64, sectors: u64) -> bool {
        match self.outcome {
            Outcome::AllKept => return true,
            Outcome::NoneKept => return false,
            Outcome::Drawn { .. } => {}
        }
        let fate = match self.current {
            Some((of, fate)) if of == event => fate,
            _ => {
                let fate = self.fate(sectors);
                self.current = Some((event, fate));
                fate
            }
        };
        match fate {
            Fate::Kept => true,
            Fate::Lost => false,
            Fate::First(count) => sector < count,
            Fate::Any => self.below(2) == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_device::MemoryBackend;
    use bytes::Bytes;

    fn write(offset_bytes: u64, value: u8, returned: u64) -> Recorded {
        Recorded {
            event: Event::Write {
                device: 0,
                offset_bytes,
                bytes: Bytes::from(vec![value; 1024]),
            },
            time: Some(returned),
        }
    }

    fn flush(began: u64) -> Recorded {
        Recorded {
            event: Event::Flush { device: 0 },
            time: Some(began),
        }
    }

    /// The second of two overlapping writes returns first, and a flush covers only the second
    /// write. The first write must not reappear in the overlap.
    #[test]
    fn flushed_write_replaces_earlier_one_that_has_not_returned() {
        let base: Arc<dyn Backend> = Arc::new(MemoryBackend::new("base", vec![0; 4096]));
        let events = vec![write(0, 1, 7), write(512, 2, 3), flush(4), flush(8)];
        let history = History::new(vec![Pages::over(base)], events);
        let sectors = |cut, outcome| {
            let mut bytes = [0; 1536];
            let image = history.images_at(cut, outcome).remove(0);
            image.read_vectored_at(0, &mut [&mut bytes]).unwrap();
            [0, 512, 1024].map(|at: usize| bytes[at])
        };
        assert_eq!(history.in_doubt(3), 1);
        assert_eq!(sectors(3, Outcome::NoneKept), [0, 2, 2]);
        assert_eq!(sectors(3, Outcome::AllKept), [1, 2, 2]);
        assert_eq!(history.in_doubt(4), 0);
        assert_eq!(sectors(4, Outcome::NoneKept), [1, 2, 2]);
    }
}
