//! Tests of the number of blocks that the kernel's modes fetch, derived from the kernel's code.

use super::{Image, key};
use crate::ReadAhead;
use crate::testing::{ImageOptions, Placement, TreeShape};
use buttress_format::ByteCount;

/// Returns the numbers of 16 KiB blocks read after the visits of the first three leaves. Beside the
/// leaves, these are the root and the node of the first 200 leaves. If the mode also reads nodes
/// ahead, they include two more of the four nodes.
fn fetched(placement: Placement, mode: ReadAhead) -> [u64; 3] {
    let items = (0..3200).map(|number| (key(number), vec![1; 3000])).collect();
    let options = ImageOptions {
        node_bytes: 16384,
        chunk_bytes: 64 << 20,
        placement,
        ..ImageOptions::default()
    };
    let shape = TreeShape {
        items_per_leaf: 4,
        children_per_node: 200,
    };
    let sample = Image::new(options, shape, items).open(ByteCount::new(64 << 20));
    let devices = sample.forest().volume().devices();
    let read = || devices[0].device().unwrap().statistics().reads.bytes;
    let before = read();
    let mut leaves = sample.tree.leaves(.., mode);
    [(); 3].map(|()| {
        leaves.next().unwrap().unwrap();
        (read() - before) / 16384
    })
}

#[test]
fn as_many_blocks_are_fetched_as_the_kernel_would() {
    let in_order = |mode| fetched(Placement::InOrder, mode);
    let anywhere = |mode| fetched(Placement::Scattered { seed: 3 }, mode);
    assert_eq!(in_order(ReadAhead::None), [3, 4, 5]);
    // The next four leaves are located within 64 KiB. The sixth leaf of the test is the next one
    // that is not in memory.
    assert_eq!(in_order(ReadAhead::Forward), [7, 7, 7]);
    // The mode fetches nine leaves, until they exceed 128 KiB, and two nodes.
    assert_eq!(anywhere(ReadAhead::ForwardOnMiss), [14, 14, 14]);
    assert_eq!(in_order(ReadAhead::ForwardOnMiss), [14, 14, 14]);
    // Each further visit of a leaf fetches one more leaf.
    assert_eq!(anywhere(ReadAhead::ForwardAlways), [14, 15, 16]);
    assert_eq!(in_order(ReadAhead::ForwardAlways), [14, 15, 16]);
}
