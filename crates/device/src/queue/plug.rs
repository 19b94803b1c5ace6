//! The plug: a batch of requests is held back, sorted by offset, and neighbours are merged before any goes down.
//!
//! Requests that lie end to end become one [`Dispatch`] of at most `max_bytes` (a single request larger than
//! that stays whole) and at most [`MAX_SEGMENTS`] requests. Requests that overlap are not merged: each has its
//! own buffer to fill, and reading shared bytes twice is rare and harmless.

use std::sync::Arc;
use std::time::Duration;

use crate::error::byte_length;
use crate::queue::request::{Dispatch, ReadRequest};

/// The most requests in one dispatch: each takes one entry of the operating system's vector, which holds 1024.
pub(crate) const MAX_SEGMENTS: usize = 256;

/// A sorted and merged batch.
pub(crate) struct Plug {
    /// What goes down, in ascending order of offset.
    pub(crate) dispatches: Vec<Arc<Dispatch>>,
    /// For each request, in the order asked: its dispatch, and its place in it.
    pub(crate) places: Vec<(usize, usize)>,
}

impl Plug {
    pub(crate) fn new(requests: &[ReadRequest], max_bytes: u64, now: Duration) -> Self {
        let mut order: Vec<(usize, ReadRequest)> = requests.iter().copied().enumerate().collect();
        // Stable: of requests for the same bytes, the one asked first goes first.
        order.sort_by_key(|(_, request)| request.offset_bytes);
        let mut places = vec![(0, 0); requests.len()];
        let mut dispatches = Vec::new();
        let mut rest = order.as_slice();
        while let Some(run) = first_run(rest, max_bytes) {
            for (position, (asked, _)) in run.iter().enumerate() {
                if let Some(place) = places.get_mut(*asked) {
                    *place = (dispatches.len(), position);
                }
            }
            let offset = run.first().map_or(0, |(_, request)| request.offset_bytes);
            let lengths = run.iter().map(|(_, request)| request.length);
            dispatches.push(Arc::new(Dispatch::new(offset, lengths, now)));
            rest = rest.get(run.len()..).unwrap_or_default();
        }
        Self { dispatches, places }
    }
}

/// The longest prefix of `requests` that may be merged; at least one request, unless there are none.
fn first_run(requests: &[(usize, ReadRequest)], max_bytes: u64) -> Option<&[(usize, ReadRequest)]> {
    let (_, first) = requests.first()?;
    let mut end = first.offset_bytes.checked_add(byte_length(first.length));
    let mut count = 1_usize;
    for (_, next) in requests.iter().skip(1).take(MAX_SEGMENTS.saturating_sub(1)) {
        let next_end = next.offset_bytes.checked_add(byte_length(next.length));
        let adjoins = end == Some(next.offset_bytes);
        let fits = next_end.is_some_and(|end| end.saturating_sub(first.offset_bytes) <= max_bytes);
        if !(adjoins && fits) {
            break;
        }
        end = next_end;
        count = count.saturating_add(1);
    }
    requests.get(..count)
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
        let plug = Plug::new(&requests, max_bytes, Duration::ZERO);
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
        // Asked out of order; 0..40 lies end to end, 50 stands apart.
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
