//! Holes, preallocation, and sizes that shrink and grow.

use super::{Named, named, with_history};
use buttress_oracle::history::operation::{
    Operation, Span, fill, preallocate, preallocate_keeping_size, punch, reflink, touch, truncate, write,
};

use buttress_oracle::history::{Base, History, Step, Transfer};

const KIB: u64 = 1024;
const GIB: u64 = 1 << 30;

pub fn situations() -> Vec<Named> {
    let mut situations = punched();
    situations.extend(sizes());
    situations.extend(preallocated());
    situations
}

fn punched() -> Vec<Named> {
    vec![
        named(
            "punched_in_the_middle",
            "No item says the hole where the no-holes feature is on: the old data stays.",
            vec![write("f", 0, 256 * KIB)],
            vec![punch("f", 64 * KIB, 64 * KIB)],
        ),
        named(
            "punched_at_the_start",
            "There is no item before the hole to notice it by.",
            vec![write("f", 0, 256 * KIB)],
            vec![punch("f", 0, 100 * KIB)],
        ),
        named(
            "punched_up_to_the_end",
            "There is no item behind the hole to notice it by: the end of the file has to be.",
            vec![write("f", 0, 256 * KIB)],
            vec![punch("f", 128 * KIB, 128 * KIB)],
        ),
        named(
            "punched_unaligned",
            "The partial blocks at both ends are zeroed as data, the whole ones between are a hole.",
            vec![write("f", 0, 100_000)],
            vec![punch("f", 10_001, 50_001)],
        ),
        named(
            "punched_and_then_extended",
            "The hole at the old end and the new hole behind it are one; only what lay in the old size must be zeroed.",
            vec![write("f", 0, 128 * KIB)],
            vec![
                punch("f", 96 * KIB, 32 * KIB),
                truncate("f", 512 * KIB),
                write("f", 400 * KIB, 4 * KIB),
            ],
        ),
        named(
            "punched_over_a_hole_that_was_there",
            "Zeros are sent for what was a hole before, and it is one no more.",
            vec![write("f", 0, 64 * KIB), write("f", 192 * KIB, 64 * KIB)],
            vec![punch("f", 32 * KIB, 192 * KIB)],
        ),
        named(
            "hole_at_a_boundary_between_leaves",
            "The next item lies in the next leaf: the hole between them belongs to neither.",
            (0..400).map(|n| write("f", n * 8 * KIB, 4 * KIB)).collect(),
            (0..100).map(|n| punch("f", n * 32 * KIB, 4 * KIB)).collect(),
        ),
        named(
            "hole_filled_with_data",
            "The old hole has no item: new data in it has nothing to be compared with.",
            vec![write("f", 0, 16 * KIB), truncate("f", 256 * KIB)],
            vec![write("f", 64 * KIB, 16 * KIB), fill("f", 128 * KIB, 16 * KIB, 0)],
        ),
        named(
            "hole_between_clones",
            "Two clones with a gap: the gap keeps the old data if the clones are all that is sent.",
            vec![write("a", 0, 128 * KIB), write("b", 0, 128 * KIB)],
            vec![
                reflink("a", 0, 32 * KIB, "b", 0),
                punch("b", 32 * KIB, 32 * KIB),
                reflink("a", 64 * KIB, 64 * KIB, "b", 64 * KIB),
            ],
        ),
        named(
            "the_whole_file_becomes_a_hole",
            "A file without any item is skipped as a file without change.",
            vec![write("f", 0, 200_001)],
            vec![punch("f", 0, 204_800)],
        ),
        named(
            "zero_range",
            "The range is preallocated afterwards, neither data nor hole: it reads as zeros all the same.",
            vec![write("f", 0, 256 * KIB)],
            vec![Operation::ZeroRange(
                b"f".to_vec(),
                Span {
                    offset: 50 * KIB,
                    length: 100 * KIB,
                },
            )],
        ),
    ]
}

fn sizes() -> Vec<Named> {
    vec![
        named(
            "shrunk_and_grown_again",
            "The size is the same as before: what was cut off comes back.",
            vec![write("f", 0, 256 * KIB)],
            vec![truncate("f", 64 * KIB), truncate("f", 256 * KIB)],
        ),
        named(
            "shrunk_unaligned_and_grown_again",
            "The block at the cut has zeros behind it, on disk and in what is sent.",
            vec![write("f", 0, 100_000)],
            vec![truncate("f", 50_001), truncate("f", 100_000)],
        ),
        named(
            "only_shrunk",
            "No item behind the new end: the size alone says it.",
            vec![write("f", 0, 256 * KIB)],
            vec![truncate("f", 100_001)],
        ),
        named(
            "only_grown",
            "No item has changed: the size alone says it.",
            vec![write("f", 0, 10_000)],
            vec![truncate("f", 1 << 50)],
        ),
        named(
            "inline_grown_by_a_hole",
            "Inline data ends before its block does: the rest of the block is zeros, not a part of the item.",
            vec![write("f", 0, 100)],
            vec![truncate("f", 100_000)],
        ),
        named(
            "inline_becomes_regular_and_regular_inline",
            "The kind of the item at offset 0 changes: what is compared is not alike.",
            vec![write("a", 0, 100), write("b", 0, 100_000)],
            vec![write("a", 100, 100_000), truncate("b", 0), write("b", 0, 100)],
        ),
        named(
            "emptied",
            "Nothing is left to send but a size of zero.",
            vec![write("a", 0, 100), write("b", 0, 100_000)],
            vec![truncate("a", 0), truncate("b", 0)],
        ),
        named(
            "sparse_beyond_four_gib",
            "Offsets of 32 bits wrap around.",
            vec![write("f", 5 * GIB + 1, 10_000), touch("g")],
            vec![
                write("f", 4 * GIB - 4096, 8192),
                write("g", 0, 10),
                write("g", 100 * GIB, 10),
                truncate("f", 7 * GIB),
            ],
        ),
        named(
            "nothing_but_a_hole",
            "A full send of a file without items says its size or it is empty.",
            vec![touch("f"), truncate("f", 10 * GIB + 3)],
            vec![truncate("f", GIB)],
        ),
    ]
}

fn preallocated() -> Vec<Named> {
    vec![
        named(
            "preallocated_beyond_the_end",
            "The extents lie behind the size: sent as data they make the file longer.",
            vec![write("f", 0, 10_000), preallocate_keeping_size("f", 0, 256 * KIB)],
            vec![
                preallocate_keeping_size("f", 256 * KIB, 256 * KIB),
                write("f", 10_000, 100),
            ],
        ),
        named(
            "preallocated_and_partly_written",
            "One extent, written in the middle: three items of which one has data.",
            vec![touch("f"), preallocate("f", 0, 256 * KIB)],
            vec![write("f", 100 * KIB, 16 * KIB)],
        ),
        named(
            "data_replaced_by_preallocation",
            "Preallocation over what was data is zeros now; taking it for unwritten space leaves the data.",
            vec![write("f", 0, 128 * KIB)],
            vec![punch("f", 0, 128 * KIB), preallocate("f", 0, 128 * KIB)],
        ),
        named(
            "size_grows_into_preallocation",
            "What lay beyond the end is now inside, without any item having changed.",
            vec![write("f", 0, 5000), preallocate_keeping_size("f", 0, 128 * KIB)],
            vec![truncate("f", 100_000)],
        ),
        named(
            "grown_in_steps_over_a_hole_beyond_preallocation",
            "The hole begins where preallocation ends, behind the old size.",
            vec![write("f", 0, 4096), preallocate_keeping_size("f", 4096, 64 * KIB)],
            vec![write("f", 200 * KIB, 4096), truncate("f", 300_001)],
        ),
        named(
            "several_preallocated_ranges_up_to_the_end",
            "Each is a range of its own: taken for a hole inside the file, zeros are sent for what could be cut off.",
            vec![write("f", 0, 256 * KIB)],
            std::iter::once(punch("f", 64 * KIB, 192 * KIB))
                .chain((0..6).map(|n| preallocate("f", (64 + n * 32) * KIB, 16 * KIB)))
                .collect(),
        ),
        named(
            "more_preallocated_ranges_than_are_looked_at",
            "The row of zeros is longer than the search for its end: it is zeros then, and must not be lost.",
            vec![write("f", 0, 1024 * KIB)],
            std::iter::once(punch("f", 64 * KIB, 960 * KIB))
                .chain((0..100).map(|n| preallocate("f", (64 + n * 8) * KIB, 4 * KIB)))
                .collect(),
        ),
        with_history(
            "back_to_before_it_was_cut",
            "Only the size seems to differ: the kernel's stream grows the file with zeros where it had data.",
            in_the_other_direction(vec![write("f", 0, 4096)], vec![truncate("f", 92)]),
        ),
        with_history(
            "back_to_before_it_was_cut_with_a_clone_source",
            "The block of the end could be cloned whole; it goes out as data and is shared no more.",
            {
                let mut history =
                    in_the_other_direction(vec![write("f", 0, 176 * KIB)], vec![truncate("f", 999)]);
                history.steps.push(Step {
                    base: Base::Snapshot(0),
                    operations: Vec::new(),
                });
                history.transfers = vec![
                    transfer(1, None, &[]),
                    transfer(2, Some(1), &[]),
                    transfer(0, Some(1), &[2]),
                ];
                history
            },
        ),
        named(
            "grown_from_inside_a_block_of_preallocation",
            "A receiver that has a hole there makes a block of zeros of it, unless it is cut off before.",
            vec![touch("f"), preallocate("f", 32 * KIB, 629), touch("a")],
            vec![
                truncate("f", 22_930),
                write("a", 0, 64 * KIB),
                reflink("a", 0, 16 * KIB, "f", 44 * KIB),
            ],
        ),
        with_history(
            "back_to_zeros_before_it_was_cut",
            "The receiver has zeros behind the end already: a block of them more than the kernel sends.",
            in_the_other_direction(vec![fill("f", 0, 16 * KIB, 0)], vec![truncate("f", 14_977)]),
        ),
        named(
            "overwritten_in_place",
            "Without copy-on-write the extent stays where it is: its address does not tell that it has changed.",
            vec![Operation::NoCopyOnWrite(b"f".to_vec()), write("f", 0, 64 * KIB)],
            vec![write("f", 16 * KIB, 16 * KIB)],
        ),
    ]
}

/// Sends in the opposite direction: the initial state follows the changed one.
fn in_the_other_direction(first: Vec<Operation>, second: Vec<Operation>) -> History {
    let mut history = History::chain(vec![first, second]);
    history.transfers = vec![transfer(1, None, &[]), transfer(0, Some(1), &[])];
    history
}

fn transfer(snapshot: usize, parent: Option<usize>, clones: &[usize]) -> Transfer {
    Transfer {
        snapshot,
        parent,
        clones: clones.to_vec(),
    }
}
