//! Faults of devices, formats and volumes.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    // Devices.
    loses(
        "device-no-fdatasync",
        "A power cut after a commit that had returned takes any part of it.",
        &[THREADS, TWO_DEVICES, RING],
    ),
    loses(
        "device-merged-write-cut",
        "Of neighbouring writes that were merged, the last never reaches the file.",
        &[
            device(
                "queue_model",
                "blocks_reach_the_file_whole_and_nothing_beside_them_changes",
            ),
            device(
                "queue_model",
                "every_engine_gives_the_bytes_of_neighbouring_writes",
            ),
        ],
    ),
    loses(
        "device-widened-write-clears",
        "A small write with O_DIRECT makes zeros of what lies beside it in its sector.",
        &[
            device("queue_model", "every_engine_gives_the_bytes_of_the_model"),
            device(
                "queue_model",
                "blocks_reach_the_file_whole_and_nothing_beside_them_changes",
            ),
        ],
    ),
    // Formats.
    loses(
        "format-block-checksum-unchecked",
        "A tree block that rotted is taken for good, though its other copy is.",
        &[
            format("node::tests::bytes_and_header_are_checked"),
            tree("tests::corruption::each_broken_promise_gives_its_own_error"),
        ],
    ),
    loses(
        "format-superblock-checksum-unchecked",
        "A superblock that rotted is taken for good, though it has copies that are.",
        &[
            format("superblock::tests::identity_is_checked"),
            volume(
                "volume",
                "opening::every_flipped_bit_of_a_lone_superblock_is_noticed",
            ),
        ],
    ),
    harms(
        "format-key-order-unchecked",
        "Files of a damaged or hostile volume seem not to be there, instead of an error.",
        &[
            format("node::tests::nodes_are_checked"),
            format("node::tests::leaf_layout_is_checked"),
        ],
    ),
    harms(
        "format-item-bounds-unchecked",
        "Items of a hostile volume overlap, and are read as what they are not.",
        &[format("node::tests::leaf_layout_is_checked")],
    ),
    // Scans.
    harms(
        "salvage-index-page-unchecked",
        "An index that rotted sends a rescue to blocks that do not exist, and hides those that do.",
        &[
            salvage("scan", "damaged_index_gives_no_wrong_record"),
            salvage("lib", "index::tests::pages_know_their_kind_and_place"),
        ],
    ),
    // Volumes.
    loses(
        "volume-one-copy-written",
        "Only one of the copies is written: the first disk that fails takes all with it.",
        &[
            volume(
                "volume",
                "writing::what_is_written_at_once_lies_as_an_independent_writer_would_put_it",
            ),
            volume(
                "volume",
                "writing::random_writes_read_back_whichever_devices_are_missing_then",
            ),
        ],
    ),
    loses(
        "volume-one-way-tried",
        "A file cannot be read although another disk has a good copy.",
        &[
            volume(
                "volume",
                "profiles::noise_in_as_many_stripes_as_the_profile_tolerates_is_passed_over_and_reported",
            ),
            volume(
                "volume",
                "profiles::sectors_are_taken_from_wherever_they_are_good",
            ),
        ],
    ),
    loses(
        "volume-parity-p-unwritten",
        "A disk of a RAID5 fails, and what is rebuilt from the others is noise.",
        &[
            volume(
                "volume",
                "writing::what_is_written_at_once_lies_as_an_independent_writer_would_put_it",
            ),
            volume(
                "volume",
                "writing::random_writes_read_back_whichever_devices_are_missing_then",
            ),
        ],
    ),
    loses(
        "volume-parity-q-unwritten",
        "Two disks of a RAID6 fail, and what is rebuilt from the others is noise.",
        &[
            volume(
                "volume",
                "writing::what_is_written_at_once_lies_as_an_independent_writer_would_put_it",
            ),
            volume(
                "volume",
                "writing::random_writes_read_back_whichever_devices_are_missing_then",
            ),
        ],
    ),
    loses(
        "volume-row-unlocked",
        "Two writes to one row of a RAID5 at once leave parity of neither: the disk that fails next takes both.",
        &[
            volume("volume", "row_locks::two_writers_of_one_row_of_raid5"),
            volume("volume", "row_locks::two_writers_of_one_row_of_raid6"),
        ],
    ),
    loses(
        "volume-rebuild-unsteady",
        "A reader of a RAID5 without one of its disks gets bytes that nobody wrote, while others write beside them.",
        &[
            volume(
                "volume",
                "row_locks::a_reader_of_a_row_of_raid5_that_is_being_written",
            ),
            volume(
                "volume",
                "row_locks::a_reader_of_a_row_of_raid6_that_is_being_written",
            ),
        ],
    ),
    harms(
        "volume-restored-column-unwritten",
        "What is written beside damage on a RAID5 cannot be rebuilt when its disk fails, until the damage is repaired.",
        &[volume(
            "volume",
            "rows::a_damaged_tree_block_beside_a_write_is_restored",
        )],
    ),
    loses(
        "volume-stale-device-trusted",
        "A disk that was away for some commits is read as if it had them.",
        &[
            volume(
                "volume",
                "opening::the_newest_device_leads_and_a_stale_one_is_read_last",
            ),
            volume("volume", "writing::a_device_that_missed_commits_is_left_alone"),
        ],
    ),
    loses(
        "volume-superblocks-on-failed-device",
        "A disk that refused a write still gets superblocks: the next time it is taken for one that holds everything.",
        &[
            volume(
                "volume",
                "failing::a_device_that_fails_from_any_write_on_is_done_without",
            ),
            volume(
                "volume",
                "failing::a_device_that_fails_a_flush_gets_no_superblock",
            ),
            writing("devices::raid1"),
        ],
    ),
    loses(
        "volume-failed-device-read",
        "A disk that refused a write is still read: what was overwritten comes back.",
        &[
            volume("volume", "failing::what_a_device_missed_never_comes_back_from_it"),
            volume(
                "volume",
                "failing::a_device_that_fails_from_any_write_on_is_done_without",
            ),
        ],
    ),
    loses(
        "volume-one-failure-too-many-tolerated",
        "One disk more than the profile can lose refuses writes, and commits go on as if the data were somewhere.",
        &[
            volume(
                "volume",
                "failing::one_failure_more_than_is_tolerated_stops_writing_and_says_which_chunk_needs_the_device",
            ),
            volume(
                "volume",
                "failing::a_device_that_another_chunk_needs_stops_writing_and_is_still_read",
            ),
            writing("faults::single_data_beside_raid1_metadata"),
        ],
    ),
    loses(
        "volume-failed-flush-forgotten",
        "A disk that could not make its cache durable counts as one that did.",
        &[
            volume(
                "volume",
                "failing::a_device_that_fails_a_flush_gets_no_superblock",
            ),
            volume(
                "volume",
                "writing::a_failed_write_or_flush_stops_writing_for_good_and_says_why",
            ),
            writing("devices::raid1"),
        ],
    ),
    harms(
        "device-errors-unrecorded",
        "A disk that fails again and again has clean statistics.",
        &[writing("devices::raid1"), writing("devices::raid5")],
    ),
    harms(
        "chunk-on-failed-device",
        "New chunks are put on a disk that takes no writes: they have no redundancy from the start.",
        &[writer(
            "transaction_tests::failing::no_chunk_is_made_on_a_device_that_was_left_out",
        )],
    ),
    harms(
        "chunk-on-emptied-device",
        "The removal of a disk never ends: new chunks are put on it while its content moves.",
        &[device_changes("device_that_is_emptied_gets_no_new_chunks")],
    ),
    harms(
        "shrink-over-superblocks",
        "A shrink plans chunks over superblock copies, and fails half done: the content does not fit into them.",
        &[engine(
            "shrinking::plan::tests::random_volumes_get_places_that_never_overlap",
        )],
    ),
    harms(
        "volume-idle-device-first",
        "A power cut while a small disk joins leaves the newest superblock on that disk alone, and the others count as behind.",
        &[device_changes(
            "crash_while_a_device_joins_a_small_volume_keeps_it",
        )],
    ),
    loses(
        "volume-writes-after-failure",
        "After a disk refused a write that the volume needs, later commits are built on what it does not hold.",
        &[
            volume(
                "volume",
                "writing::a_failed_write_or_flush_stops_writing_for_good_and_says_why",
            ),
            writing("faults::one_device"),
        ],
    ),
    loses(
        "volume-primaries-unflushed",
        "A power cut between superblocks and their copies may leave neither whole.",
        &[
            THREADS,
            TWO_DEVICES,
            RING,
            volume(
                "volume",
                "writing::copies_are_written_after_the_primaries_are_durable",
            ),
        ],
    ),
    loses(
        "volume-superblock-copies-unflushed",
        "The copies of the superblock are behind when the primary is lost after a power cut.",
        &[THREADS, TWO_DEVICES, RING],
    ),
    loses(
        "volume-superblock-copies-unwritten",
        "When the primary superblock is lost, the copy leads to a state of long ago.",
        &[
            THREADS,
            TWO_DEVICES,
            RING,
            volume("volume", "writing::superblocks_go_to_all_devices_and_open_there"),
        ],
    ),
    // Faults in the handling of bytes without a valid place.
    loses(
        "volume-misfit-part-dropped",
        "A part of an extent that does not fit its place is dropped: the reader gets zeros.",
        &[
            volume("lib", "read::data::tests::a_part_of_another_length_is_a_defect"),
            volume(
                "lib",
                "read::data::tests::a_part_past_the_end_of_its_extent_is_a_defect",
            ),
        ],
    ),
    loses(
        "volume-misfit-column-dropped",
        "Parity is computed over zeros in place of data: a lost device cannot be rebuilt.",
        &[
            volume(
                "lib",
                "write::rows::tests::bytes_of_another_length_are_no_part_of_a_row",
            ),
            volume(
                "lib",
                "write::rows::tests::bytes_past_the_end_are_no_part_of_a_row",
            ),
        ],
    ),
    loses(
        "scrub-data-without-sums-clean",
        "A scrub reports data as good whose checksums it lost.",
        &[
            test(
                "buttress-scrub",
                "lib",
                "verify::tests::sectors_without_their_checksums_are_bad",
            ),
            test(
                "buttress-scrub",
                "lib",
                "verify::tests::data_without_any_checksum_is_bad",
            ),
        ],
    ),
];
