//! Tests of the extent map against a vector of bytes, and of clones of clones.

use super::*;
use proptest::prelude::*;

const SIZE: u64 = 64;

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Extent whose byte at `position + n` has that number as value.
fn stored(position: u64, length: u64) -> Extent {
    Extent {
        length,
        skip: 0,
        source: Source::Stored { file: 0, position },
    }
}

/// Returns the source position of each byte of the file; `None` in holes. Asserts that the pieces
/// cover the file up to the size.
fn bytes(map: &ExtentMap, size: u64) -> Vec<Option<u64>> {
    let mut found = Vec::new();
    for piece in Pieces::new(map, size) {
        assert_eq!(piece.offset, found.len() as u64);
        assert_ne!(piece.length, 0);
        for n in 0..piece.length {
            found.push(piece.data.as_ref().map(|(skip, source)| match source {
                Source::Stored { position, .. } => position + skip + n,
                _ => panic!("only stored data was put in"),
            }));
        }
    }
    assert_eq!(found.len() as u64, size);
    found
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Write { offset: u64, length: u64 },
    Remove { offset: u64, length: u64 },
    Clone { from: u64, to: u64, length: u64 },
}

fn change() -> impl Strategy<Value = Change> {
    let range = (0..SIZE).prop_flat_map(|offset| (Just(offset), 1..=SIZE - offset));
    prop_oneof![
        range
            .clone()
            .prop_map(|(offset, length)| Change::Write { offset, length }),
        range
            .clone()
            .prop_map(|(offset, length)| Change::Remove { offset, length }),
        (range, 0..SIZE).prop_map(|((from, length), to)| Change::Clone {
            from,
            to,
            length: length.min(SIZE - to),
        }),
    ]
}

proptest! {
    /// Many small writes come first, so that clones are shared and not copied.
    #[test]
    fn any_changes_do_what_they_do_to_bytes(
        pieces in 0..SIZE,
        changes in proptest::collection::vec(change(), 0..60),
    ) {
        let mut map = ExtentMap::default();
        let mut model = vec![None; at(SIZE)];
        for n in 0..pieces {
            map.insert(n, stored(n * 3, 1));
            model[at(n)] = Some(n * 3);
        }
        let mut budget = CopyBudget::default();
        for (number, change) in (1u64..).zip(changes) {
            match change {
                Change::Write { offset, length } => {
                    map.insert(offset, stored(number * 1000, length));
                    for n in 0..length {
                        model[at(offset + n)] = Some(number * 1000 + n);
                    }
                }
                Change::Remove { offset, length } => {
                    map.remove(offset, offset + length);
                    model[at(offset)..at(offset + length)].fill(None);
                }
                Change::Clone { from, to, length } => {
                    let source = map.clone();
                    map.clone_range(to, &source, from, length, &mut budget).unwrap();
                    let part = model[at(from)..at(from + length)].to_vec();
                    model[at(to)..at(to + length)].copy_from_slice(&part);
                }
            }
            prop_assert!(map.depth <= DEPTH_MAX);
        }
        prop_assert_eq!(bytes(&map, SIZE), model);
    }
}

#[test]
fn a_file_that_doubles_itself_by_clones_stays_small() {
    let mut map = ExtentMap::default();
    for n in 0..40 {
        map.insert(n * 2, stored(n, 1));
    }
    let mut budget = CopyBudget::default();
    let mut size = 80;
    // In this test, each clone takes the whole file: a copy of the pieces would have 2^40 pieces.
    for _ in 0..40 {
        let source = map.clone();
        map.clone_range(size, &source, 0, size, &mut budget).unwrap();
        size *= 2;
        assert!(map.extents.size() <= 40 + 40 * 17, "{}", map.extents.size());
    }
    let mut last = 0;
    for piece in Pieces::new(&map, size).take(1000) {
        assert!(piece.data.is_none() || piece.offset % 2 == 0);
        last = piece.offset;
    }
    assert!(last >= 999, "{last}");
}

#[test]
fn clones_that_nest_too_deeply_in_too_many_pieces_are_refused() {
    // Each nesting level writes between the pieces of the level below, so that no pieces are
    // adjacent.
    let mut map = ExtentMap::default();
    let mut budget = CopyBudget(1000);
    let mut refused = false;
    for level in 0..200 {
        let mut next = ExtentMap::default();
        let cloned = next.clone_range(0, &map, 0, 1 << 20, &mut budget);
        refused |= cloned.is_err();
        for n in 0..40 {
            next.insert((level * 40 + n) * 7 % (1 << 20), stored(n, 1));
        }
        assert!(next.depth <= DEPTH_MAX);
        map = next;
    }
    assert!(refused);
}
