//! Lists of ranges in order with gaps between, and the differences of two lists.

/// A range `[start, end)`.
pub(crate) type Run = (u64, u64);

/// Appends a range after the last range, joined to it if both touch.
pub(crate) fn push(runs: &mut Vec<Run>, start: u64, end: u64) {
    if start >= end {
        return;
    }
    match runs.last_mut() {
        Some((_, last)) if *last >= start => *last = end.max(*last),
        _ => runs.push((start, end)),
    }
}

/// Cuts each range to its part in `[start, end)`.
pub(crate) fn clip(runs: &mut Vec<Run>, start: u64, end: u64) {
    for run in runs.iter_mut() {
        *run = (run.0.max(start), run.1.min(end));
    }
    runs.retain(|(start, end)| start < end);
}

/// Calls `only_left` and `only_right` for the ranges that only one of the lists has, in order.
pub(crate) fn compare(
    left: &[Run],
    right: &[Run],
    only_left: &mut dyn FnMut(u64, u64),
    only_right: &mut dyn FnMut(u64, u64),
) {
    let (mut lefts, mut rights) = (left.iter().copied(), right.iter().copied());
    let (mut one, mut other) = (lefts.next(), rights.next());
    loop {
        match (one, other) {
            (None, None) => return,
            (Some((start, end)), None) => {
                only_left(start, end);
                one = lefts.next();
            }
            (None, Some((start, end))) => {
                only_right(start, end);
                other = rights.next();
            }
            (Some(a), Some(b)) if a.0 < b.0 => {
                let end = a.1.min(b.0);
                only_left(a.0, end);
                one = if end == a.1 {
                    lefts.next()
                } else {
                    Some((end, a.1))
                };
            }
            (Some(a), Some(b)) if b.0 < a.0 => {
                let end = b.1.min(a.0);
                only_right(b.0, end);
                other = if end == b.1 {
                    rights.next()
                } else {
                    Some((end, b.1))
                };
            }
            (Some(a), Some(b)) => {
                let end = a.1.min(b.1);
                one = if end == a.1 {
                    lefts.next()
                } else {
                    Some((end, a.1))
                };
                other = if end == b.1 {
                    rights.next()
                } else {
                    Some((end, b.1))
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ranges of a set of numbers given as bits.
    fn of_bits(bits: u32) -> Vec<Run> {
        let mut runs = Vec::new();
        for bit in 0..16_u64 {
            if bits >> bit & 1 == 1 {
                push(&mut runs, bit, bit + 1);
            }
        }
        runs
    }

    #[test]
    fn differences_equal_those_of_sets() {
        let mut state = 1_u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (a, b) = (state & 0xffff, state >> 16);
            let (mut left, mut right) = (0_u32, 0_u32);
            let mark = |set: &mut u32, start: u64, end: u64| (start..end).for_each(|bit| *set |= 1 << bit);
            compare(
                &of_bits(a),
                &of_bits(b),
                &mut |start, end| mark(&mut left, start, end),
                &mut |start, end| mark(&mut right, start, end),
            );
            assert_eq!((left, right), (a & !b, b & !a), "{a:b} {b:b}");
        }
    }

    #[test]
    fn clipping_cuts_both_ends() {
        let mut runs = vec![(0, 4), (6, 8), (10, 12)];
        clip(&mut runs, 2, 11);
        assert_eq!(runs, [(2, 4), (6, 8), (10, 11)]);
    }
}
