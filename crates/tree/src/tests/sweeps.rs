//! Tests of sweeps: they read with few requests, in address order, and read no unrequested block.

use super::{Image, collect, key};
use crate::ReadAhead;
use crate::testing::{ImageOptions, Placement, TreeShape};
use buttress_format::ByteCount;

fn requests(image: Image, budget: u64, mode: ReadAhead) -> u64 {
    let sample = image.open(ByteCount::new(budget));
    let devices = sample.forest().volume().devices();
    let device = devices[0].device().unwrap();
    let before = device.statistics();
    assert_eq!(collect(sample.tree.range(.., mode)), sample.pairs());
    device.statistics().since(&before).reads.requests
}

fn in_order() -> Image {
    let items = (0..2000).map(|number| (key(number), vec![1; 10])).collect();
    Image::new(
        ImageOptions::default(),
        TreeShape {
            items_per_leaf: 5,
            children_per_node: 20,
        },
        items,
    )
}

#[test]
fn neighbours_are_merged() {
    assert_eq!(requests(in_order(), 1 << 20, ReadAhead::None), 421);
    let sweep = requests(
        in_order(),
        1 << 20,
        ReadAhead::Sweep {
            window_bytes: ByteCount::new(256 << 10),
        },
    );
    assert!(sweep <= 50, "{sweep} requests for 421 blocks, which lie in a row");
    let starved = requests(in_order(), 0, ReadAhead::sweep());
    assert!(
        (421..460).contains(&starved),
        "{starved} requests without a budget"
    );
}

#[test]
fn neighbours_within_a_sweep_window_are_merged() {
    let items = (0..2000).map(|number| (key(number), vec![1; 10])).collect();
    let options = ImageOptions {
        placement: Placement::Scattered { seed: 9 },
        // The test's chunk has as many blocks as the tree, so the tree fills it.
        chunk_bytes: 421 * 4096,
        ..ImageOptions::default()
    };
    let image = Image::new(
        options,
        TreeShape {
            items_per_leaf: 5,
            children_per_node: 20,
        },
        items,
    );
    let sweep = requests(image, 16 << 20, ReadAhead::sweep());
    // Without the first small windows, the number would be about 211, because half of all
    // neighbours are in one batch.
    assert!(sweep <= 330, "{sweep} requests for 421 blocks");
}

#[test]
fn abandoned_sweep_returns_its_memory() {
    let sample = Image::scattered().open(ByteCount::new(1 << 20));
    let mut cursor = sample.tree.cursor(ReadAhead::sweep());
    cursor.seek(&key(100)).unwrap();
    for number in 100..700 {
        assert_eq!(cursor.key(), Some(key(number)));
        assert!(cursor.next().unwrap());
    }
    assert!(sample.forest().cache_statistics().ahead_bytes > ByteCount::ZERO);
    for number in (0..700).rev() {
        assert!(cursor.previous().unwrap());
        assert_eq!(cursor.key(), Some(key(number)));
    }
    assert_eq!(sample.forest().cache_statistics().ahead_bytes, ByteCount::ZERO);
    for number in 1..2000 {
        assert!(cursor.next().unwrap());
        assert_eq!(cursor.key(), Some(key(number)));
        if number == 1500 {
            assert!(sample.forest().cache_statistics().ahead_bytes > ByteCount::ZERO);
        }
    }
    drop(cursor);
    assert_eq!(sample.forest().cache_statistics().ahead_bytes, ByteCount::ZERO);
}

#[test]
fn a_walk_by_address_visits_what_a_walk_by_key_does() {
    for budget in [0, 5_000, 100_000, 16 << 20] {
        let sample = Image::scattered().open(ByteCount::new(budget));
        let by_key = sample
            .tree
            .blocks(ReadAhead::None)
            .map(|visit| visit.unwrap().pointer);
        let mut by_key: Vec<_> = by_key.collect();
        let by_address: Vec<_> = sample
            .tree
            .blocks_by_address()
            .map(|visit| visit.unwrap().pointer)
            .collect();
        if budget > 1 << 20 {
            let leaves: Vec<_> = by_address.iter().filter(|pointer| pointer.level == 0).collect();
            assert!(leaves.is_sorted_by_key(|pointer| pointer.logical));
        }
        let mut sorted = by_address.clone();
        by_key.sort_by_key(|pointer| pointer.logical);
        sorted.sort_by_key(|pointer| pointer.logical);
        assert_eq!(by_key, sorted, "budget {budget}");
        assert_eq!(sample.forest().cache_statistics().ahead_bytes, ByteCount::ZERO);
    }
    let items = (0..3).map(|number| (key(number), vec![1])).collect();
    let shape = TreeShape {
        items_per_leaf: 5,
        children_per_node: 20,
    };
    let sample = Image::new(ImageOptions::default(), shape, items).open(ByteCount::new(1 << 20));
    assert_eq!(sample.tree.blocks_by_address().count(), 1);
}
