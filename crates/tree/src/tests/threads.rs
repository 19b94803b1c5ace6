//! Tests of many concurrent readers.

use super::{Image, MODES, collect, key};
use crate::testing::Random;
use buttress_format::ByteCount;
use std::thread;

#[test]
fn readers_on_many_threads_see_the_same() {
    let first = buttress_oracle::seeds::seed("tree::threads", "BUTTRESS_SEED", 0);
    for budget in [0, 200_000, 8 << 20] {
        let sample = Image::scattered().open(ByteCount::new(budget));
        let pairs = sample.pairs();
        thread::scope(|scope| {
            for number in 0..8_u64 {
                let (sample, pairs) = (&sample, &pairs);
                scope.spawn(move || {
                    let mut random = Random::new(first + number);
                    for mode in MODES {
                        assert_eq!(&collect(sample.tree.range(.., mode)), pairs);
                        for _ in 0..200 {
                            let wanted = random.below(2000);
                            let item = sample.tree.get(&key(wanted)).unwrap().unwrap();
                            assert_eq!(item.data(), pairs[wanted as usize].1);
                        }
                    }
                });
            }
        });
        let after = sample.forest().cache_statistics();
        assert_eq!(after.ahead_bytes, ByteCount::ZERO);
        assert!(after.block_bytes.get() <= budget);
    }
}

#[test]
fn a_block_that_many_miss_at_once_is_read_once() {
    let sample = Image::scattered().open(ByteCount::new(8 << 20));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(sample.tree.get(&key(1234)).unwrap().is_some()));
        }
    });
    assert_eq!(sample.forest().cache_statistics().misses, 3);
}

#[test]
fn an_item_outlives_cursor_tree_and_cache() {
    let sample = Image::scattered().open(ByteCount::ZERO);
    let item = sample.tree.get(&key(77)).unwrap().unwrap();
    drop(sample);
    assert_eq!((item.key(), item.data()), (key(77), &[77; 10][..]));
}
