//! Faults of the log tree, which break the durability of a sync.

use super::{Fault, fsync_crash, harms, loses, volume, writer};

pub(super) const FAULTS: &[Fault] = &[
    loses(
        "log-forgets-extents",
        "What was written into a file that was there before is gone after a crash, though it was synced.",
        &[fsync_crash("on_one_device"), fsync_crash("with_small_nodes")],
    ),
    loses(
        "log-without-checksums",
        "What was synced cannot be read after a crash.",
        &[fsync_crash("on_one_device"), fsync_crash("with_small_nodes")],
    ),
    harms(
        "log-without-holes",
        "Content that was cut off or punched out is back after a crash, though the file was synced since.",
        &[writer("log_tree::tests::lasting::what_was_punched_out_stays_out")],
    ),
    harms(
        "log-keeps-old-names",
        "A file that was renamed and synced has both names after a crash.",
        &[fsync_crash("on_one_device")],
    ),
    harms(
        "log-keeps-removed-items",
        "An attribute or a name that was logged and then removed is back after a crash.",
        &[fsync_crash("on_one_device")],
    ),
    loses(
        "log-forgets-successor",
        "A file that was replaced by rename and synced is under neither name after a crash.",
        &[
            writer("log_tree::tests::lasting::a_name_that_was_taken_over_is_always_there"),
            fsync_crash("with_small_nodes"),
        ],
    ),
    harms(
        "log-index-forgotten",
        "Each sync of a directory writes all that was new in it since the last commit.",
        &[writer("log_tree::tests::a_directory_costs_what_is_new")],
    ),
    harms(
        "range-writes-all",
        "A sync of a range writes all that waits of the file.",
        &[writer("log_tree::tests::ranges::a_range_costs_the_range")],
    ),
    loses(
        "log-blocks-unpinned",
        "A log is overwritten before the commit that makes it superfluous: what was synced is gone after a crash.",
        &[fsync_crash("on_one_device"), fsync_crash("with_small_nodes")],
    ),
    loses(
        "log-over-durable-log",
        "A log is written over the one that the superblock still names: cut off in between, all that was synced is gone.",
        &[fsync_crash("on_one_device"), fsync_crash("with_small_nodes")],
    ),
    loses(
        "log-failed-round-joined",
        "Of syncs that wait for one another's log all are told that it is durable, though a device failed while it was written.",
        &[
            writer("log_tree::tests::nobody_is_promised_what_a_failed_flush_wrote"),
            writer("log_tree::tests::nobody_is_promised_what_lies_behind_any_failed_write"),
        ],
    ),
    loses(
        "log-in-new-chunk",
        "What was synced lies where the last commit has no chunk: a volume that neither Linux nor Buttress replays.",
        &[
            writer("log_tree::tests::a_log_refers_to_no_new_chunk"),
            writer("log_tree::tests::a_large_file_is_there_after_a_crash"),
        ],
    ),
    loses(
        "log-unflushed-before-superblocks",
        "A superblock names a log that is not there yet when the power goes.",
        &[fsync_crash("on_one_device"), fsync_crash("with_small_nodes")],
    ),
    loses(
        "volume-log-root-unflushed",
        "A sync returns before the superblock with its log is durable.",
        &[fsync_crash("on_one_device"), fsync_crash("with_small_nodes")],
    ),
    loses(
        "volume-primaries-over-log",
        "A commit that is cut off while it writes superblocks takes what was synced before it.",
        &[
            volume(
                "volume",
                "failing::copies_are_written_before_a_primary_that_names_a_log",
            ),
            writer("log_tree::tests::lasting::commit_that_is_cut_off_in_a_torn_write_keeps_what_was_synced"),
        ],
    ),
    harms(
        "replay-keeps-xattrs",
        "Attributes that were removed and synced are back after a crash.",
        &[writer(
            "log_tree::tests::lasting::a_removed_attribute_is_not_back",
        )],
    ),
    loses(
        "log-failed-freeze-joined",
        "After a log could not be frozen, the next sync returns, though nothing was written.",
        &[
            writer("log_tree::tests::broken::dirty_log_without_tree_fails_fsync"),
            writer("log_tree::tests::broken::dirty_log_without_tree_fails_durable_writes"),
        ],
    ),
    loses(
        "log-without-tree-passed-over",
        "A log that has changes and no tree is skipped, and its sync returns as durable.",
        &[
            writer("log_tree::tests::broken::dirty_log_without_tree_fails_fsync"),
            writer("log_tree::tests::broken::dirty_log_without_tree_fails_durable_writes"),
        ],
    ),
];
