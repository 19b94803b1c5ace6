//! Faults in the order of locks and flushes, and of pins.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    // Locks: without its test, each fault could first show as a deadlock months later.
    harms(
        "lock-commit-before-files",
        "A commit that writes back and a write that commits for want of space wait for each other for ever.",
        &[BYTE_VECTORS, SHARED],
    ),
    harms(
        "lock-in-place-after-edit",
        "A commit and a write in place wait for each other for ever.",
        &[FILES_COME_AND_GO, BYTE_VECTORS],
    ),
    harms(
        "lock-file-under-its-table",
        "While one file is written back, no other can be opened; two calls wait for each other for ever.",
        &[BYTE_VECTORS],
    ),
    harms(
        "lock-two-files-unordered",
        "Two reflinks between two files, one each way, wait for each other for ever.",
        &[BYTE_VECTORS],
    ),
    harms(
        "lock-rows-unordered",
        "Two writes over the same rows of a RAID5 wait for each other for ever.",
        &[volume(
            "volume",
            "writing::random_writes_read_back_whichever_devices_are_missing_then",
        )],
    ),
    harms(
        "lock-edit-held-over-data",
        "Whoever changes a name waits for as long as another's content takes to the disk.",
        &[BYTE_VECTORS],
    ),
    harms(
        "lock-edit-held-over-free-space",
        "Whoever changes a name waits for the disk whenever a block group is used for the first time.",
        &[writer(
            "transaction_tests::devices::no_change_reads_under_the_edit_lock",
        )],
    ),
    // Flushes.
    loses(
        "flush-of-one-device",
        "A power cut after a commit on two disks takes what one of them still had in its cache.",
        &[MIRROR_IN_ORDER, STRIPES_IN_ORDER],
    ),
    loses(
        "flush-before-tree-blocks",
        "A power cut leaves a superblock that leads to tree blocks which never reached the disk.",
        &[MIRROR_IN_ORDER, STRIPES_IN_ORDER],
    ),
    // Pins.
    loses(
        "pins-released-at-freeze",
        "What the last commit still needs is overwritten while the next is on its way: a power cut takes the volume.",
        &[
            in_order("commit_order::the_space_of_a_removed_file_waits_for_the_commit"),
            in_order("commit_order::the_space_of_a_file_that_is_cut_waits_for_the_commit"),
        ],
    ),
    loses(
        "pins-view-of-running-forgotten",
        "A backup that began while a commit was under way reads what others wrote.",
        &[
            engine("pins::tests::what_came_and_went_after_a_reader_is_not_kept"),
            in_flight("commit_in_flight::a_view_keeps_what_came_while_a_commit_was_under_way"),
        ],
    ),
    harms(
        "pins-departure-unnoticed",
        "When a backup ends, the space that it held stays taken until the next commit, and a full volume has none.",
        &[engine(
            "pins::tests::a_reader_keeps_what_was_freed_after_its_state",
        )],
    ),
];
