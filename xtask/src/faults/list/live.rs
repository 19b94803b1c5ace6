//! Faults of live reads: the newest state, as readers see it beside writers.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    loses(
        "live-in-flight-unseen",
        "While a file is written back, a read gives what it had before.",
        &[
            schedules("content_is_seen_through_a_write_back"),
            live("live::write_back::reads_wait_for_no_write_back"),
            live("live::write_back::a_new_file_is_read_while_it_is_written_back"),
        ],
    ),
    harms(
        "live-inode-forgotten-in-use",
        "Beside a call that ends, what another one writes to the same file is not seen until it is written back.",
        &[engine("inodes::tests::an_object_in_use_is_not_forgotten")],
    ),
    loses(
        "live-hold-untaken",
        "A read beside a program that deletes the file gives another file's content.",
        &[
            live("live::used_space::what_is_being_read_is_not_used_again"),
            live("live::used_space::what_is_being_read_is_not_used_again_when_it_is_cut_off"),
        ],
    ),
    harms(
        "live-look-of-half-an-operation",
        "stat of a directory gives a size that it never had, while another program renames a file over one in it.",
        &[engine(
            "steps::tests::lookup_runs_again_if_it_overlaps_an_operation",
        )],
    ),
    harms(
        "live-operation-half-seen",
        "A file that another program renames over is not there for a moment, or two looks do not fit together.",
        &[
            writer("live::tests::reader_waits_for_an_operation_in_progress"),
            schedules("operations_are_seen_whole"),
        ],
    ),
    harms(
        "live-name-known-for-ever",
        "A file that was removed or renamed is still found under its name.",
        &[
            writer("live::tests::a_name_that_was_looked_up_leads_to_no_file_of_before"),
            concurrent("one_order_explains_all::plain"),
        ],
    ),
    harms(
        "live-deleted-subvolume-seen",
        "Programs go on to read a subvolume that was deleted, and find its files until they are dropped, or half of them.",
        &[
            whole_calls("whole_calls::what_lies_in_a_deleted_subvolume_is_found_by_no_read"),
            schedules("subvolumes_come_and_go_at_one_moment"),
            concurrent("one_order_explains_all::plain"),
        ],
    ),
    loses(
        "in-flight-sector-unread",
        "A few bytes written beside a write-back make zeros of the rest of their sector.",
        &[
            whole_calls("whole_calls::a_write_of_part_of_a_sector_has_the_rest_of_what_is_in_flight"),
            concurrent("one_order_explains_all::plain"),
        ],
    ),
    harms(
        "live-zero-range-half-seen",
        "A read beside fallocate sees zeros in a file of the old size.",
        &[
            whole_calls("whole_calls::a_range_of_zeros_past_the_end_is_seen_whole"),
            schedules("changes_of_extents_are_seen_whole"),
        ],
    ),
    harms(
        "truncate-fails-when-file-goes",
        "A file is cut, seen so, and removed, and who cut it is told that there is no such file.",
        &[whole_calls(
            "whole_calls::a_file_that_goes_while_it_is_cut_was_cut_before",
        )],
    ),
    harms(
        "snapshot-between-steps",
        "A snapshot has a hole, and not the zeros beside it: neither the file before the call nor after it.",
        &[whole_calls(
            "whole_calls::a_hole_is_in_a_snapshot_as_a_whole_or_not_at_all",
        )],
    ),
    loses(
        "clone-forgets-dirty-data",
        "A clone that fails takes what was last written to its target with it: older content is back.",
        &[
            whole_calls("whole_calls::a_clone_that_finds_no_source_leaves_the_target_as_it_was"),
            whole_calls("whole_calls::a_clone_out_of_a_deleted_subvolume_leaves_the_target_as_it_was"),
        ],
    ),
    harms(
        "live-stat-of-two-moments",
        "stat shows a size together with a mode or a count of names that was never there with it.",
        &[schedules("a_stat_is_of_one_moment")],
    ),
    harms(
        "live-write-half-seen",
        "A read beside a write across the end of a file sees the first part of it only.",
        &[schedules("a_write_across_the_end_is_seen_whole")],
    ),
    harms(
        "live-calls-uncounted",
        "A read beside the first write after a while gives the content of one moment with the size of another.",
        &[schedules("a_call_that_came_and_went_is_noticed")],
    ),
    harms(
        "live-content-hidden-late",
        "What was just written is not seen by reads until it is written back.",
        &[writer(
            "data::tests::leaving::content_is_hidden_before_it_leaves_the_table",
        )],
    ),
    harms(
        "live-layout-untaken",
        "A read beside fallocate or a clone sees half of what it does.",
        &[schedules("changes_of_extents_are_seen_whole")],
    ),
    harms(
        "view-outlives-an-edit",
        "A backup begins with a state from before changes that had ended.",
        &[schedules("a_view_is_the_newest")],
    ),
];
