//! Shared extents: within a file, between files, with earlier snapshots.

use super::{Named, named, with_history};
use buttress_oracle::history::operation::{
    Operation, Origin, Span, fill, mv, preallocate, punch, reflink, reflink_all, rm, touch, truncate, write,
    write_text,
};
use buttress_oracle::history::{Base, History};

const KIB: u64 = 1024;

pub fn situations() -> Vec<Named> {
    let mut situations = sources_that_change();
    situations.extend(ends());
    situations.extend(patterns());
    situations.extend(other_snapshots());
    situations.extend(preallocated());
    situations.extend(compressed());
    situations
}

fn sources_that_change() -> Vec<Named> {
    vec![
        named(
            "source_truncated_in_the_same_send",
            "The source is older and is cut first: cloning from it then takes what is no more.",
            vec![write("a", 0, 256 * KIB)],
            vec![reflink("a", 0, 128 * KIB, "b", 0), truncate("a", 4 * KIB)],
        ),
        named(
            "source_overwritten_in_the_same_send",
            "The source's new data is cloned in place of the old.",
            vec![write("a", 0, 256 * KIB)],
            vec![reflink_all("a", "b"), write("a", 64 * KIB, 64 * KIB)],
        ),
        named(
            "source_deleted_in_the_same_send",
            "It is deleted before the clone is made, or the clone is sent as data although the receiver has it.",
            vec![write("a", 0, 256 * KIB)],
            vec![reflink_all("a", "b"), rm("a")],
        ),
        named(
            "source_renamed_in_the_same_send",
            "The clone names the source by the path that it no longer has.",
            vec![write("a", 0, 128 * KIB)],
            vec![reflink_all("a", "b"), mv("a", "c")],
        ),
        named(
            "source_grows_in_the_same_send",
            "The end of the source is unaligned before and not after; the clone's length fits one of them.",
            vec![write("a", 0, 100_001)],
            vec![reflink_all("a", "b"), write("a", 100_001, 50_000)],
        ),
        named(
            "source_punched_in_the_same_send",
            "The hole of the source is cloned instead of the data that it had.",
            vec![write("a", 0, 256 * KIB)],
            vec![reflink_all("a", "b"), punch("a", 64 * KIB, 64 * KIB)],
        ),
        named(
            "clone_from_a_younger_file",
            "The younger file is not there yet when the older one is sent.",
            vec![touch("old")],
            vec![
                write("young", 0, 128 * KIB),
                reflink("young", 0, 128 * KIB, "old", 0),
            ],
        ),
        named(
            "ranges_of_one_file_exchanged",
            "Both ranges are cloned from the same file: the second takes what the first already replaced.",
            vec![write("a", 0, 128 * KIB)],
            vec![
                reflink("a", 0, 64 * KIB, "t", 0),
                reflink("a", 64 * KIB, 64 * KIB, "a", 0),
                reflink("t", 0, 64 * KIB, "a", 64 * KIB),
                rm("t"),
            ],
        ),
        named(
            "ranges_of_two_files_exchanged",
            "The second file is cloned from the first, which by then has the second's old data.",
            vec![write("a", 0, 64 * KIB), write("b", 0, 64 * KIB)],
            vec![
                reflink_all("a", "t"),
                reflink_all("b", "a"),
                reflink_all("t", "b"),
                rm("t"),
            ],
        ),
    ]
}

/// The later snapshot is sent first: its files are shorter, and the incremental stream restores the
/// longer ones.
fn sent_backwards(before: Vec<Operation>, after: Vec<Operation>) -> History {
    let mut history = History::chain(vec![before, after]);
    history.transfers.reverse();
    history.transfers[0].parent = None;
    history.transfers[1].parent = Some(1);
    history
}

fn ends() -> Vec<Named> {
    vec![
        with_history(
            "sector_at_the_old_end_of_a_source",
            "It goes out as the half behind the old end; the sector, whole again, is then cloned from nowhere.",
            sent_backwards(
                vec![write("a", 0, 19_470), reflink_all("a", "b")],
                vec![truncate("a", 10_357), truncate("b", 1664)],
            ),
        ),
        named(
            "whole_file_with_an_unaligned_end",
            "Cloning up to the size is allowed only where it becomes the end of the target too.",
            vec![write("a", 0, 100_001)],
            vec![reflink_all("a", "b")],
        ),
        named(
            "unaligned_end_in_a_longer_target",
            "The last block cannot be cloned without cutting the target: it must be written, or cloned aligned.",
            vec![write("a", 0, 100_001), write("b", 0, 300_000)],
            vec![reflink_all("a", "c"), truncate("c", 300_000)],
        ),
        named(
            "unaligned_end_then_more_data",
            "The block at the old end has zeros behind the data in the target; cloned too long it has the source's.",
            vec![write("a", 0, 70_001)],
            vec![reflink_all("a", "b"), write("b", 90_000, 10)],
        ),
        named(
            "target_shorter_than_the_shared_extent",
            "The clone is as long as the extent, and the target gets longer than it is.",
            vec![write("a", 0, 128 * KIB)],
            vec![reflink_all("a", "b"), truncate("b", 50_001)],
        ),
        named(
            "beyond_the_end_of_the_target",
            "Between the target's old end and the clone is a hole that nobody sends.",
            vec![write("a", 0, 64 * KIB), write("b", 0, 1000)],
            vec![reflink("a", 0, 64 * KIB, "b", 128 * KIB)],
        ),
        named(
            "inline_file_cloned",
            "Its data lies in the tree and has no address: asking who shares it finds everything or nothing.",
            vec![write("a", 0, 500)],
            vec![reflink_all("a", "b"), write("c", 0, 2000), reflink_all("c", "d")],
        ),
    ]
}

fn patterns() -> Vec<Named> {
    let hundred = |n: u64| format!("f{n}");
    vec![
        named(
            "extent_shared_with_itself",
            "A file is its own source, at an offset that is not there yet or already is.",
            vec![write("a", 0, 64 * KIB)],
            vec![
                reflink("a", 0, 64 * KIB, "a", 64 * KIB),
                reflink("a", 16 * KIB, 32 * KIB, "a", 256 * KIB),
            ],
        ),
        named(
            "one_extent_a_hundred_times_in_one_file",
            "Looking through all who share it, for each of them, takes the square of their number.",
            vec![write("a", 0, 16 * KIB)],
            (1..100)
                .map(|n| reflink("a", 0, 16 * KIB, "a", n * 16 * KIB))
                .collect(),
        ),
        named(
            "one_extent_in_a_hundred_files",
            "Too many share it to ask for all: it is still cloned from one that is there.",
            vec![write("f0", 0, 64 * KIB)],
            (1..100).map(|n| reflink_all("f0", &hundred(n))).collect(),
        ),
        named(
            "middle_of_an_extent",
            "The offset in the extent is forgotten: the clone begins where the extent does.",
            vec![write("a", 0, 256 * KIB)],
            vec![reflink("a", 100 * KIB, 60 * KIB, "b", 20 * KIB), rm("a")],
        ),
        named(
            "pieces_of_many_extents_in_another_order",
            "Each piece is another extent; merging them by their addresses joins what does not belong together.",
            (0..16).map(|n| write("a", n * 16 * KIB, 16 * KIB)).collect(),
            (0..16)
                .map(|n| reflink("a", n * 16 * KIB, 16 * KIB, "b", (15 - n) * 16 * KIB))
                .collect(),
        ),
        named(
            "shared_extent_partly_overwritten",
            "What is left of the extent on both sides is shared, the middle is not.",
            vec![write("a", 0, 256 * KIB)],
            vec![reflink_all("a", "b"), write("b", 100 * KIB, 20 * KIB)],
        ),
        named(
            "shared_range_with_a_hole_and_preallocation",
            "The source's hole is part of the range: cloned or left out, the target must have zeros there.",
            vec![
                write("a", 0, 64 * KIB),
                preallocate("a", 64 * KIB, 64 * KIB),
                truncate("a", 256 * KIB),
            ],
            vec![
                write("b", 0, 256 * KIB),
                Operation::Sync,
                reflink("a", 0, 256 * KIB, "b", 0),
            ],
        ),
        named(
            "compressed_extents_cloned_from_their_middle",
            "Offsets in a compressed extent count decompressed bytes, addresses do not.",
            vec![write_text("a", 0, 512 * KIB)],
            vec![
                reflink("a", 96 * KIB, 200 * KIB, "b", 0),
                write_text("a", 128 * KIB, 64 * KIB),
            ],
        ),
        named(
            "zeros_that_are_data_are_shared",
            "Zeros that lie on disk look like a hole to who only looks at the bytes.",
            vec![fill("a", 0, 128 * KIB, 0)],
            vec![reflink_all("a", "b")],
        ),
    ]
}

/// Builds a clone of a file in an earlier snapshot.
fn from_snapshot(snapshot: usize, path: &str, length: u64, to: &str) -> Operation {
    let origin = Origin {
        snapshot: Some(snapshot),
        path: path.into(),
        span: Span { offset: 0, length },
    };
    Operation::Reflink(origin, to.into(), 0)
}

fn other_snapshots() -> Vec<Named> {
    let mut several = History::chain(vec![
        vec![write("a", 0, 128 * KIB)],
        vec![rm("a"), write("b", 0, 128 * KIB)],
        vec![rm("b"), write("c", 0, 100)],
        vec![
            from_snapshot(0, "a", 128 * KIB, "a2"),
            from_snapshot(1, "b", 64 * KIB, "b2"),
        ],
    ]);
    several.transfers[3].clones = vec![0, 1];
    let mut only = History::chain(vec![
        vec![write("a", 0, 128 * KIB)],
        vec![reflink_all("a", "b"), write("c", 0, 20_000)],
    ]);
    only.transfers[1].parent = None;
    only.transfers[1].clones = vec![0];
    let mut fork = History::chain(vec![
        vec![write("a", 0, 128 * KIB), write("b", 0, 128 * KIB)],
        vec![write("a", 0, 64 * KIB)],
        vec![write("b", 64 * KIB, 64 * KIB), reflink_all("a", "c")],
    ]);
    fork.steps[2].base = Base::Snapshot(0);
    fork.transfers[2].clones = vec![0];
    vec![
        with_history(
            "restored_from_an_earlier_snapshot",
            "The parent does not have it any more; with the earlier snapshots as clone sources nothing is sent again.",
            several,
        ),
        with_history(
            "a_clone_source_without_a_parent",
            "btrfs-progs chooses the parent among the clone sources; without that, everything is sent anew.",
            only,
        ),
        with_history(
            "fork_of_an_older_snapshot",
            "Parent and clone source are siblings: an extent may be newer in the one than in the other.",
            fork,
        ),
        named(
            "same_extent_as_in_the_parent_at_another_offset",
            "It looks unchanged by its address, and is not by its offset.",
            vec![write("a", 0, 128 * KIB)],
            vec![
                reflink("a", 0, 128 * KIB, "t", 0),
                truncate("a", 0),
                reflink("t", 64 * KIB, 64 * KIB, "a", 0),
                rm("t"),
            ],
        ),
    ]
}

/// Returns cases of preallocated ranges that several files share. In version 1, only zeros or a
/// clone can express that such a range no longer has data.
fn preallocated() -> Vec<Named> {
    let room = || vec![preallocate("a", 0, 96 * KIB), write("f", 0, 128 * KIB)];
    let mut from_a_clone_source = History::chain(vec![room(), vec![rm("a")], vec![]]);
    from_a_clone_source.steps[2].base = Base::Snapshot(0);
    from_a_clone_source.steps[2].operations = vec![reflink("a", 0, 96 * KIB, "f", 0), rm("a")];
    from_a_clone_source.transfers[2].clones = vec![0];
    vec![
        named(
            "preallocated_range_over_data",
            "The receiver has the range as a hole in another file; without cloning that, zeros are sent.",
            room(),
            vec![reflink("a", 0, 96 * KIB, "f", 0)],
        ),
        named(
            "preallocated_range_of_a_file_of_the_same_send",
            "The file with the range is new, and sends nothing of it that could be noted for later ones.",
            vec![touch("a"), write("f", 0, 128 * KIB)],
            vec![
                rm("a"),
                preallocate("b", 0, 96 * KIB),
                mv("f", "g"),
                reflink("b", 0, 96 * KIB, "g", 0),
                reflink("b", 0, 96 * KIB, "h", 4 * KIB),
            ],
        ),
        named(
            "preallocated_range_partly_written",
            "One extent is data in one part and zeros in the other: a clone of the wrong part brings the wrong one.",
            vec![
                preallocate("a", 0, 128 * KIB),
                write("a", 32 * KIB, 32 * KIB),
                write("f", 0, 160 * KIB),
            ],
            vec![reflink("a", 0, 128 * KIB, "f", 16 * KIB)],
        ),
        with_history(
            "preallocated_range_of_a_clone_source",
            "Only the clone source has the range; it is looked for in the parent alone.",
            from_a_clone_source,
        ),
    ]
}

/// Returns cases of extents sent in stored form, on compressed volumes.
fn compressed() -> Vec<Named> {
    vec![
        named(
            "middle_of_a_stored_extent_cloned_before",
            "The extent goes out twice, before and behind the part that was cloned, each time as a whole.",
            vec![write_text("a", 0, 128 * KIB), touch("b"), touch("c")],
            vec![
                reflink("a", 48 * KIB, 32 * KIB, "b", 0),
                reflink_all("a", "c"),
                rm("a"),
            ],
        ),
        named(
            "stored_extent_longer_than_the_file",
            "The file was cut: a few bytes are left of an extent that goes out whole.",
            vec![],
            vec![write_text("f", 0, 128 * KIB), Operation::Sync, truncate("f", 700)],
        ),
    ]
}
