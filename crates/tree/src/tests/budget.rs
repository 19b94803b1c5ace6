//! Tests that memory stays within the budget, for every order of reads and every read-ahead.

use super::{Image, MODES, collect};
use crate::ReadAhead;
use buttress_format::ByteCount;

#[test]
fn cache_and_read_ahead_together_stay_within_the_budget() {
    for budget in [0, 5_000, 50_000, 300_000, 4 << 20] {
        let sample = Image::scattered().open(ByteCount::new(budget));
        for mode in MODES {
            for visit in sample.tree.blocks(mode) {
                visit.unwrap();
                let now = sample.forest().cache_statistics();
                let held = now.block_bytes.get() + now.ahead_bytes.get();
                assert!(held <= budget, "{mode:?}: {held} of {budget}");
                assert_eq!(now.budget_bytes, ByteCount::new(budget));
            }
            let after = sample.forest().cache_statistics();
            assert_eq!(after.ahead_bytes, ByteCount::ZERO, "{mode:?}");
        }
        for visit in sample.tree.blocks_by_address() {
            visit.unwrap();
            let now = sample.forest().cache_statistics();
            let held = now.block_bytes.get() + now.ahead_bytes.get();
            assert!(held <= budget, "by address: {held} of {budget}");
        }
    }
}

#[test]
fn several_sweeps_share_the_budget_and_all_arrive() {
    let sample = Image::scattered().open(ByteCount::new(100_000));
    let mut sweeps: Vec<_> = (0..8)
        .map(|_| sample.tree.range(.., ReadAhead::sweep()))
        .collect();
    for expected in sample.pairs() {
        for sweep in &mut sweeps {
            let item = sweep.next().unwrap().unwrap();
            assert_eq!((item.key(), item.data().to_vec()), expected);
        }
        assert!(sample.forest().cache_statistics().ahead_bytes.get() <= 25_000);
    }
    drop(sweeps);
    assert_eq!(sample.forest().cache_statistics().ahead_bytes, ByteCount::ZERO);
}

#[test]
fn blocks_in_use_survive_a_sweep_larger_than_the_cache() {
    // The budget holds some 35 of 421 blocks.
    let sample = Image::scattered().open(ByteCount::new(200_000));
    let hot: Vec<_> = sample.items.keys().copied().take(20).collect();
    for _ in 0..4 {
        for key in &hot {
            assert!(sample.tree.get(key).unwrap().is_some());
        }
    }
    assert_eq!(collect(sample.tree.range(.., ReadAhead::sweep())).len(), 2000);
    let before = sample.forest().cache_statistics();
    for key in &hot {
        assert!(sample.tree.get(key).unwrap().is_some());
    }
    let after = sample.forest().cache_statistics();
    let missed = after.misses - before.misses;
    assert!(missed <= 2, "{missed} blocks in constant use were pushed out");
}

#[test]
fn a_walk_that_fits_is_read_once() {
    let sample = Image::scattered().open(ByteCount::new(16 << 20));
    for mode in MODES {
        assert_eq!(collect(sample.tree.range(.., mode)).len(), 2000);
        assert_eq!(sample.forest().cache_statistics().misses, 421, "{mode:?}");
    }
}

#[test]
fn sweep_reads_nothing_beyond_its_range() {
    let sample = Image::scattered().open(ByteCount::new(16 << 20));
    let range = super::key(500)..super::key(510);
    assert_eq!(collect(sample.tree.range(range, ReadAhead::sweep())).len(), 10);
    let misses = sample.forest().cache_statistics().misses;
    assert!(
        misses <= 5,
        "{misses} blocks read for two or three leaves, their node and the root"
    );
}
