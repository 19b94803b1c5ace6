//! All-or-nothing reads: the verifier decides on the whole extent.

use super::{PendingExtent, PendingSegment};
use crate::Volume;
use crate::error::{Attempt, Error, Unreadable};
use crate::faults::{FaultReason, Rejection};
use crate::fetch::fetch;
use crate::mirror::{Segment, Source, Way};
use crate::parity::Recovery;
use buttress_device::Buffer;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use bytes::Bytes;

/// The maximum number of combinations of ways that are tried for an extent of several segments.
/// Tree blocks rarely cross a stripe's end. Two segments of a four-copy profile have 16
/// combinations.
const MAXIMUM_COMBINATIONS: usize = 64;

type Verify<'a, T> = &'a mut dyn FnMut(Bytes) -> Result<T, Rejection>;

impl PendingExtent {
    /// Waits, and passes the bytes of one copy after another to `verify` until it accepts. Returns
    /// the result of the verifier that accepted a copy.
    ///
    /// # Errors
    /// Fails if planning the read failed. Returns [`Error::Unreadable`] with every attempt if the
    /// verifier accepts no copy.
    pub fn wait_verified<T>(self, volume: &Volume, verify: Verify<'_, T>) -> Result<T, Error> {
        let mut plan = self.plan?;
        match plan.as_mut_slice() {
            [single] => wait_single(volume, single, verify),
            several => {
                let length = ByteCount::of(self.read.length);
                wait_several(
                    volume,
                    several,
                    Unreadable {
                        logical: self.read.logical,
                        length,
                        attempts: Vec::new(),
                    },
                    verify,
                )
            }
        }
    }
}

fn wait_single<T>(volume: &Volume, pending: &mut PendingSegment, verify: Verify<'_, T>) -> Result<T, Error> {
    let mut attempts = Vec::new();
    let locks = volume.row_locks();
    let first = pending.first(locks);
    let segment = &pending.segment;
    let whole = 0..segment.length();
    let rest = segment
        .ways
        .iter()
        .skip(1)
        .map(|way| (*way, fetch(locks, segment, *way, whole.clone())));
    for (way, result) in first.into_iter().chain(rest) {
        let attempt = match result {
            Ok(buffer) => match verify(buffer.into_bytes()) {
                Ok(value) => {
                    if !attempts.is_empty() {
                        record(volume, segment, &attempts, Some(way));
                    }
                    return Ok(value);
                }
                Err(rejection) => {
                    segment.attempt(way, segment.stripe_of(way), FaultReason::Rejected(rejection))
                }
            },
            Err(attempt) => attempt,
        };
        attempts.push(attempt);
    }
    record(volume, segment, &attempts, None);
    Err(segment.unreadable(attempts))
}

/// Records the ways that the read skipped. A rejected rebuild proves that some column is bad, but
/// not which one. The fault is attributed to a device only if a later way without that device was
/// accepted.
fn record(volume: &Volume, segment: &Segment, attempts: &[Attempt], accepted: Option<Way>) {
    let whole = 0..segment.length();
    let is_rebuild = |attempt: &Attempt| segment.place.parity.is_some() && attempt.copy > 1;
    let mut rebuild_rejected = None;
    for attempt in attempts {
        if is_rebuild(attempt) && attempt.reason.is_corruption() {
            rebuild_rejected = Some(attempt);
        } else {
            volume.record_fault(segment, attempt, whole.clone());
        }
    }
    let Some(rejected) = rebuild_rejected else { return };
    let suspect = match accepted.map(|way| way.source) {
        Some(Source::Rebuild(Recovery::WithQ)) => Some(segment.chunk.layout().data_columns()),
        Some(Source::Rebuild(Recovery::WithPAndQ { other })) => Some(other),
        _ => None,
    };
    let stripe = suspect.zip(segment.place.parity);
    let stripe =
        stripe.and_then(|(column, place)| segment.chunk.layout().stripe_of_column(place.row, column));
    if let Some(stripe_index) = stripe {
        let way = Way {
            copy: rejected.copy,
            source: Source::Rebuild(Recovery::WithP),
        };
        volume.record_fault(
            segment,
            &segment.attempt(way, stripe_index, rejected.reason.clone()),
            whole,
        );
    }
}

/// The chosen way of one of several segments.
struct Choice {
    index: usize,
    bytes: Buffer,
}

/// Tries combinations of ways to read several segments, with the last segment changing fastest,
/// like an odometer.
fn wait_several<T>(
    volume: &Volume,
    plan: &mut [PendingSegment],
    mut error: Unreadable,
    verify: Verify<'_, T>,
) -> Result<T, Error> {
    let mut choices = Vec::with_capacity(plan.len());
    for pending in &mut *plan {
        let first = pending.first(volume.row_locks());
        let first = first.map(|(_, result)| result);
        let choice = advance(volume, &pending.segment, 0, first, &mut error.attempts);
        match choice {
            Some(choice) => choices.push(choice),
            None => return Err(pending.segment.unreadable(error.attempts)),
        }
    }
    let tried_first: Vec<usize> = choices.iter().map(|choice| choice.index).collect();
    for _ in 0..MAXIMUM_COMBINATIONS {
        match verify(join(&choices, error.length)) {
            Ok(value) => {
                for ((pending, choice), index) in plan.iter().zip(&choices).zip(&tried_first) {
                    if choice.index != *index
                        && let Some(attempt) = error.attempts.last()
                    {
                        accuse(volume, &pending.segment, *index, attempt.reason.clone());
                    }
                }
                return Ok(value);
            }
            Err(rejection) => {
                let reason = FaultReason::Rejected(rejection);
                for (pending, choice) in plan.iter().zip(&choices) {
                    let segment = &pending.segment;
                    let Some(way) = segment.ways.get(choice.index) else {
                        continue;
                    };
                    error
                        .attempts
                        .push(segment.attempt(*way, segment.stripe_of(*way), reason.clone()));
                }
            }
        }
        if !next_combination(volume, plan, &mut choices, &mut error.attempts) {
            break;
        }
    }
    for (pending, index) in plan.iter().zip(tried_first) {
        if let Some(attempt) = error.attempts.last() {
            accuse(volume, &pending.segment, index, attempt.reason.clone());
        }
    }
    Err(error.into())
}

fn accuse(volume: &Volume, segment: &Segment, index: usize, reason: FaultReason) {
    if let Some(way) = segment.ways.get(index) {
        let attempt = segment.attempt(*way, segment.stripe_of(*way), reason);
        volume.record_fault(segment, &attempt, 0..segment.length());
    }
}

/// Returns the first way, from `from` on, by which the bytes are readable. `started` is the result
/// of the read by the way `from`, if that read was started.
fn advance(
    volume: &Volume,
    segment: &Segment,
    from: usize,
    mut started: Option<Result<Buffer, Attempt>>,
    attempts: &mut Vec<Attempt>,
) -> Option<Choice> {
    for (index, way) in segment.ways.iter().enumerate().skip(from) {
        match started
            .take()
            .unwrap_or_else(|| fetch(volume.row_locks(), segment, *way, 0..segment.length()))
        {
            Ok(bytes) => return Some(Choice { index, bytes }),
            Err(attempt) => {
                volume.record_fault(segment, &attempt, 0..segment.length());
                attempts.push(attempt);
            }
        }
    }
    None
}

fn next_combination(
    volume: &Volume,
    plan: &[PendingSegment],
    choices: &mut [Choice],
    attempts: &mut Vec<Attempt>,
) -> bool {
    for (pending, choice) in plan.iter().zip(choices).rev() {
        let segment = &pending.segment;
        if let Some(next) = advance(volume, segment, choice.index.exact_add(1), None, attempts) {
            *choice = next;
            return true;
        }
        match advance(volume, segment, 0, None, attempts) {
            Some(again) => *choice = again,
            None => return false,
        }
    }
    false
}

fn join(choices: &[Choice], length: ByteCount) -> Bytes {
    let mut joined = Vec::with_capacity(length.exact_usize());
    for choice in choices {
        joined.extend_from_slice(&choice.bytes);
    }
    Bytes::from(joined)
}
