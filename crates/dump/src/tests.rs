//! Round trips of items, and dumps of any bytes.

mod sanitised;
mod volumes;

use crate::cluster::{INDEX_BYTES, ITEM_BYTES_MAX, ITEMS_MAX};
use crate::reading::{DumpItem, DumpReader};
use crate::writing::ClusterWriter;
use proptest::prelude::*;

fn written(items: &[DumpItem], level: u32, threads: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ClusterWriter::new(&mut bytes, level, threads);
    for item in items {
        writer.push(item.clone()).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), bytes.len() as u64);
    bytes
}

fn read(bytes: &[u8]) -> crate::Result<Vec<DumpItem>> {
    let mut reader = DumpReader::new(bytes);
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    Ok(items)
}

fn item() -> impl Strategy<Value = DumpItem> {
    (any::<u64>(), any::<u8>(), 1_usize..3000).prop_map(|(logical, byte, length)| DumpItem {
        logical,
        bytes: (0..length).map(|at| byte.wrapping_mul(at as u8)).collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn items_survive_a_round_trip(items in proptest::collection::vec(item(), 1..200), level in 0_u32..=9) {
        let one = written(&items, level, 1);
        prop_assert!(one.len().is_multiple_of(INDEX_BYTES));
        prop_assert!(one == written(&items, level, 3), "the bytes depend on the number of threads");
        prop_assert!(read(&one).unwrap() == items);
    }

    #[test]
    fn damaged_dumps_give_bounded_items_or_an_error(
        items in proptest::collection::vec(item(), 1..20),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8),
        level in 0_u32..=1,
        cut in 0_usize..3000,
    ) {
        let mut bytes = written(&items, level, 1);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len() - 1));
        if let Ok(items) = read(&bytes) {
            prop_assert!(items.iter().all(|item| item.bytes.len() <= ITEM_BYTES_MAX));
        }
    }
}

#[test]
fn cluster_holds_as_many_items_as_that_of_btrfs_image() {
    let items: Vec<DumpItem> = (0..=ITEMS_MAX as u64)
        .map(|logical| DumpItem {
            logical,
            bytes: vec![7; 512],
        })
        .collect();
    let bytes = written(&items, 0, 1);
    let second = (INDEX_BYTES + ITEMS_MAX * 512).next_multiple_of(INDEX_BYTES);
    assert_eq!(bytes.len(), second + 2 * INDEX_BYTES);
    assert_eq!(bytes[16..20], 83_u32.to_le_bytes());
    assert_eq!(bytes[second + 8..second + 16], (second as u64).to_le_bytes());
}

#[test]
fn item_that_grows_past_its_bound_is_refused() {
    let bomb = DumpItem {
        logical: 65536,
        bytes: vec![0; ITEM_BYTES_MAX + 1],
    };
    let error = read(&written(&[bomb], 9, 1)).unwrap_err().to_string();
    assert!(error.contains("wrong length"), "{error}");
}
