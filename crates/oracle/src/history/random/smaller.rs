//! Finds a small history that still fails.

use crate::history::{Base, History};
use std::time::{Duration, Instant};

/// Drops the parts of a history that `fails` does not need, for at most `time`. It drops whole
/// steps from the end first, then runs of changes, half as long in each round, down to single
/// changes.
pub fn smaller(history: &History, time: Duration, mut fails: impl FnMut(&History) -> bool) -> History {
    let end = Instant::now() + time;
    let mut best = history.clone();
    while let Some(shorter) = without_last_transfer(&best) {
        if Instant::now() > end || !fails(&shorter) {
            break;
        }
        best = shorter;
    }
    let mut run = best.operations().div_ceil(2);
    while run > 0 {
        let mut start = 0;
        while start < best.operations() {
            if Instant::now() > end {
                return best;
            }
            let candidate = without_operations(&best, start, run);
            if fails(&candidate) {
                best = candidate;
            } else {
                start += run;
            }
        }
        run = if run == 1 { 0 } else { run.div_ceil(2) };
    }
    best
}

/// Returns the history without its last transfer, and without the last snapshots that no transfer
/// then sends.
fn without_last_transfer(history: &History) -> Option<History> {
    let mut shorter = history.clone();
    shorter.transfers.pop();
    let used = shorter.transfers.iter().map(|transfer| transfer.snapshot).max()?;
    let based = |history: &History| {
        history
            .steps
            .iter()
            .filter_map(|step| match step.base {
                Base::Snapshot(number) => Some(number),
                _ => None,
            })
            .max()
    };
    shorter.steps.truncate(used + 1);
    (based(&shorter) < Some(shorter.steps.len())).then_some(shorter)
}

/// Returns the history without the changes `[start, start + run)`, counted over all steps.
fn without_operations(history: &History, start: usize, run: usize) -> History {
    let mut smaller = history.clone();
    let mut number = 0;
    for step in &mut smaller.steps {
        step.operations.retain(|_| {
            let kept = number < start || number >= start + run;
            number += 1;
            kept
        });
    }
    smaller
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::operation::{mkdir, mv, touch};

    #[test]
    fn what_is_needed_stays_and_the_rest_goes() {
        let noise = || (0..30).map(|number| touch(&format!("noise-{number}")));
        let mut first: Vec<_> = noise().collect();
        first.push(mkdir("a"));
        let mut second: Vec<_> = noise().collect();
        second.insert(11, mv("a", "b"));
        let history = History::chain(vec![first, second, noise().collect()]);
        let fails = |history: &History| {
            history.steps.len() > 1
                && history.steps[0].operations.contains(&mkdir("a"))
                && history.steps[1].operations.contains(&mv("a", "b"))
        };
        let small = smaller(&history, Duration::from_secs(60), fails);
        assert_eq!(small, History::chain(vec![vec![mkdir("a")], vec![mv("a", "b")]]));
    }
}
