//! Faults of space and commits.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    // Space.
    loses(
        "pins-freed-space-reused",
        "What the last commit still needs is overwritten before the next is whole: a power cut takes the volume.",
        &[crash("on_a_full_volume"), commits("live::before_the_commit")],
    ),
    loses(
        "pins-ignore-readers",
        "A backup that reads an old state while others write reads what they wrote.",
        &[
            engine("pins::tests::a_reader_keeps_what_was_freed_after_its_state"),
            commits("leftovers::what_a_view_sees"),
        ],
    ),
    harms(
        "block-group-used-never-falls",
        "The volume is full although files were removed, and check finds it damaged.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    loses(
        "free-space-tree-misses-freed",
        "The free-space tree and the extent tree disagree: the kernel refuses to write, or writes where it must not.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    harms(
        "space-unreserved",
        "A commit on a full volume finds no space, and all that waited is lost with an error.",
        &[writer(
            "transaction_tests::a_full_volume_says_so_and_can_be_emptied",
        )],
    ),
    // Commits.
    loses(
        "commit-unflushed-before-superblocks",
        "A power cut leaves a superblock that leads to blocks which never reached the disk.",
        &[
            THREADS,
            TWO_DEVICES,
            RING,
            crash("with_small_nodes_and_single_metadata"),
        ],
    ),
    loses(
        "commit-leaves-content",
        "Content that was written before a commit is gone after a power cut that follows it.",
        &[BYTE_VECTORS, TO_THE_KERNEL],
    ),
    loses(
        "backup-roots-in-one-slot",
        "When the last commit is damaged there is no earlier root to open.",
        &[
            commits("backup_roots::take_turns"),
            commits("backup_roots::without_the_last_2"),
        ],
    ),
];
