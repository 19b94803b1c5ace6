//! The plug: a batch of requests is held back, sorted by offset, and merged before it is submitted.
//!
//! Adjacent requests become one [`Dispatch`] of at most `max_bytes` and at most [`MAX_SEGMENTS`]
//! requests. A single larger request stays whole. Overlapping requests are not merged: each has its
//! own buffer to fill, and reading shared bytes twice is rare and harmless. The order of
//! overlapping writes is unspecified.

use buttress_exact::Exact as _;
use std::sync::Arc;
use std::time::Duration;

use crate::error::byte_length;
use crate::queue::request::{Dispatch, ReadRequest, WriteRequest};

/// The maximum number of requests in one dispatch. Each request uses an entry of the operating
/// system's vector, which holds 1024.
pub(crate) const MAX_SEGMENTS: usize = 256;

/// A sorted and merged batch.
pub(crate) struct Plug {
    /// The dispatches in ascending order of offset.
    pub(crate) dispatches: Vec<Arc<Dispatch>>,
    /// For each request of the batch, in the caller's order: the index of its dispatch, and its
    /// index in the dispatch.
    pub(crate) places: Vec<(usize, usize)>,
}

impl Plug {
    /// Makes a plug of a batch of reads.
    pub(crate) fn reads(requests: &[ReadRequest], max_bytes: u64, now: Duration) -> Self {
        let ranges = requests
            .iter()
            .map(|request| (request.offset_bytes, request.length));
        Self::new(ranges, max_bytes, |offset, run| {
            Dispatch::read(offset, run.iter().map(|item| item.length), now)
        })
    }

    /// Makes a plug of a batch of writes.
    pub(crate) fn writes(requests: &[WriteRequest], max_bytes: u64, now: Duration) -> Self {
        let ranges = requests
            .iter()
            .map(|request| (request.offset_bytes, request.bytes.len()));
        Self::new(ranges, max_bytes, |offset, run| {
            let payloads = run.iter().filter_map(|item| requests.get(item.asked));
            Dispatch::write(offset, payloads.map(|request| request.bytes.clone()), now)
        })
    }

    fn new(
        ranges: impl ExactSizeIterator<Item = (u64, usize)>,
        max_bytes: u64,
        dispatch: impl Fn(u64, &[Item]) -> Dispatch,
    ) -> Self {
        let mut places = vec![(0, 0); ranges.len()];
        let order = in_order(ranges);
        let mut dispatches = Vec::new();
        for run in runs(&order, max_bytes) {
            for (position, item) in run.iter().enumerate() {
                if let Some(place) = places.get_mut(item.asked) {
                    *place = (dispatches.len(), position);
                }
            }
            let offset = run.first().map_or(0, |item| item.offset_bytes);
            dispatches.push(Arc::new(dispatch(offset, run)));
        }
        Self { dispatches, places }
    }
}

/// A request in the plug.
pub(crate) struct Item {
    /// The index of the request in the caller's order.
    pub(crate) asked: usize,
    pub(crate) offset_bytes: u64,
    pub(crate) length: usize,
}

/// Returns the requests ordered by offset. Requests for the same bytes keep the caller's order.
pub(crate) fn in_order(ranges: impl Iterator<Item = (u64, usize)>) -> Vec<Item> {
    let mut order: Vec<Item> = ranges
        .enumerate()
        .map(|(asked, (offset_bytes, length))| Item {
            asked,
            offset_bytes,
            length,
        })
        .collect();
    order.sort_by_key(|item| item.offset_bytes);
    order
}

/// Splits ordered requests into runs that are merged.
pub(crate) fn runs(order: &[Item], max_bytes: u64) -> impl Iterator<Item = &[Item]> {
    let mut rest = order;
    core::iter::from_fn(move || {
        let run = first_run(rest, max_bytes)?;
        // Clamp: a run is the beginning of the rest.
        rest = rest.get(run.len()..).unwrap_or_default();
        Some(run)
    })
}

/// Returns the longest prefix of `items` that may be merged: at least one item, unless `items` is
/// empty.
fn first_run(items: &[Item], max_bytes: u64) -> Option<&[Item]> {
    let first = items.first()?;
    let mut end = first.offset_bytes.checked_add(byte_length(first.length));
    let mut count = 1_usize;
    for next in items.iter().skip(1).take(MAX_SEGMENTS - 1) {
        let next_end = next.offset_bytes.checked_add(byte_length(next.length));
        let adjoins = end == Some(next.offset_bytes);
        let fits = next_end.is_some_and(|end| end.exact_sub(first.offset_bytes) <= max_bytes);
        if !(adjoins && fits) {
            break;
        }
        end = next_end;
        count = count.exact_add(1);
    }
    items.get(..count)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Runs = Vec<(u64, u64)>;
    type Places = Vec<(usize, usize)>;

    fn plug(requests: &[(u64, usize)], max_bytes: u64) -> (Runs, Places) {
        let requests: Vec<_> = requests
            .iter()
            .map(|&(offset_bytes, length)| ReadRequest { offset_bytes, length })
            .collect();
        let plug = Plug::reads(&requests, max_bytes, Duration::ZERO);
        (
            plug.dispatches
                .iter()
                .map(|d| (d.offset_bytes, d.length_bytes))
                .collect(),
            plug.places,
        )
    }

    #[test]
    fn neighbours_are_sorted_and_merged_up_to_the_limit() {
        // The five requests are not in the order of their offsets. Four of the requests are
        // adjacent, from byte 0 to 40, and the request at byte 50 is separate.
        let asked = [(30, 10), (50, 5), (0, 10), (20, 10), (10, 10)];
        assert_eq!(
            plug(&asked, 100),
            (
                vec![(0, 40), (50, 5)],
                vec![(0, 3), (1, 0), (0, 0), (0, 2), (0, 1)]
            )
        );
        assert_eq!(plug(&asked, 25).0, [(0, 20), (20, 20), (50, 5)]);
        assert_eq!(
            plug(&asked, 1).0.len(),
            5,
            "larger than the limit: each stays whole"
        );
    }

    #[test]
    fn overlaps_and_repeats_are_not_merged() {
        assert_eq!(
            plug(&[(0, 10), (5, 10), (0, 10)], 100).0,
            [(0, 10), (0, 10), (5, 10)]
        );
    }

    #[test]
    fn the_number_of_requests_in_one_is_limited() {
        let asked: Vec<_> = (0..MAX_SEGMENTS as u64 + 1).map(|i| (i * 8, 8)).collect();
        assert_eq!(plug(&asked, 1 << 20).0.len(), 2);
    }

    #[test]
    fn offsets_at_the_end_of_the_address_space_do_not_overflow() {
        assert_eq!(plug(&[(u64::MAX, 8), (u64::MAX - 8, 8)], 1 << 20).0.len(), 2);
        assert_eq!(plug(&[], 1 << 20), (vec![], vec![]));
    }
}
