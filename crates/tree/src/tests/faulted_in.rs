//! Tests that blocks loaded for a lookup are still cached when the lookup is retried.

use super::{Image, Sample};
use crate::{BlockPointer, NonBlocking};
use buttress_format::{ByteCount, Key};

/// Returns the blocks that are missing for lookups of these keys, one block for each.
fn missing(sample: &Sample, keys: &[Key]) -> Vec<BlockPointer> {
    let _resident_only = NonBlocking::hold();
    let look = |key: &Key| sample.tree.get(key).err();
    let errors = keys.iter().filter_map(look);
    errors.filter_map(|error| error.would_block().cloned()).collect()
}

/// In this test, all blocks of the cache are in use, and an eighth of its leaves would fill it.
/// Blocks that were faulted in must stay until they are used, even if other blocks are evicted for
/// them.
#[test]
fn blocks_that_are_faulted_in_stay_beside_those_in_use() {
    let sample = Image::scattered().open(ByteCount::new(1 << 20));
    let keys: Vec<Key> = sample.items.keys().copied().collect();
    let (used, wanted) = keys.split_at(keys.len() / 2);
    for _ in 0..3 {
        for key in used {
            sample.tree.get(key).unwrap();
        }
    }
    // The test wants one key in each of 40 leaves.
    let wanted: Vec<Key> = wanted.iter().step_by(5).take(40).copied().collect();
    for _ in 0..3 {
        let pointers = missing(&sample, &wanted);
        sample.forest().fault_in(&pointers);
    }
    assert_eq!(missing(&sample, &wanted), []);
}
