//! Faults of content, names and subvolumes.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    // Content.
    loses(
        "checksums-uninserted",
        "Files cannot be read back: their sectors have no checksums.",
        &[BYTE_VECTORS, TO_THE_KERNEL],
    ),
    harms(
        "checksums-unremoved",
        "Checksums of what is gone stay, and reject what takes its place.",
        &[BYTE_VECTORS],
    ),
    loses(
        "in-place-unlocked",
        "A snapshot taken while a file without copy-on-write is written changes afterwards.",
        &[
            in_place("in_place::a_snapshot_waits_for_content_that_is_overwritten"),
            in_place("in_place::a_snapshot_waits_for_content_that_goes_into_preallocated_room"),
        ],
    ),
    loses(
        "in-place-into-shared",
        "Writing a file without copy-on-write changes its snapshots and reflinks.",
        &[
            writer("data::tests::extents::snapshots_keep_their_content_without_copy_on_write"),
            writer("data::tests::extents::preallocated_room_is_written_where_it_lies"),
        ],
    ),
    loses(
        "truncate-keeps-tail",
        "A file that is cut and grows again shows what had been cut off.",
        &[BYTE_VECTORS, TO_THE_KERNEL],
    ),
    loses(
        "dedupe-compares-nothing",
        "Deduplication makes one file of two that differ.",
        &[BYTE_VECTORS, SHARED],
    ),
    loses(
        "defragment-unchecked",
        "A write beside a defragmentation is lost: the older content replaces it.",
        &[
            PIECE_CHANGED,
            in_flight("defragmenting::write_beside_a_defragmentation_stays"),
        ],
    ),
    loses(
        "defragment-overwritten-unseen",
        "A write in place beside a defragmentation is lost.",
        &[
            PIECE_CHANGED,
            in_flight("defragmenting::overwrite_in_place_beside_a_defragmentation_stays"),
        ],
    ),
    harms(
        "holes-without-items",
        "On volumes that want items for holes, the kernel and check find files damaged.",
        &[writer(
            "data::tests::model::files_of_volumes_with_items_for_holes_agree",
        )],
    ),
    harms(
        "inline-limit-ignored",
        "Small files fill the trees although max_inline says otherwise.",
        &[writer(
            "data::tests::extents::small_files_lie_in_the_tree_and_leave_it",
        )],
    ),
    harms(
        "compression-feature-unmarked",
        "An older reader opens the volume and cannot read its files.",
        &[commits("leftovers::the_mark_of_compressed_content")],
    ),
    // Faults in the handling of names and inodes.
    loses(
        "link-count-never-falls",
        "Removing the last name of a file leaves it as lost space, found by no path.",
        &[STEPS_OF_FILES, RANDOM_OPERATIONS],
    ),
    harms(
        "orphan-item-stays",
        "Each file that was removed while open leaves an item that every mount looks at, for ever.",
        &[commits("leftovers::of_a_file_removed_while_open")],
    ),
    harms(
        "orphans-never-cleaned",
        "What a crash left of removed files takes space for ever.",
        &[commits("leftovers::of_a_crash_with_a_file_removed_while_open")],
    ),
    harms(
        "directory-index-given-twice",
        "A program that reads a directory while others change it sees a name twice, or misses one.",
        &[STEPS_OF_FILES],
    ),
    loses(
        "directory-index-of-removed-name",
        "After a power cut Linux does not mount the volume: its log gives a new name the index of one that is still there.",
        &[
            writer("log_tree::tests::lasting::the_index_of_a_name_that_was_removed_is_not_given_again"),
            log_tree(
                "logged_by_us_opened_anew::a_new_name_does_not_get_the_place_of_the_last_one_that_was_removed",
            ),
        ],
    ),
    harms(
        "xattr-keeps-old-value",
        "An attribute that was changed has two values, and check finds the item damaged.",
        &[
            writer("operations::tests::every_operation::attributes_with_names"),
            STEPS_OF_FILES,
        ],
    ),
    loses(
        "inode-transid-kept",
        "An incremental send, or find-new, passes over files that were changed.",
        &[STEPS_OF_FILES, STEPS_OF_SUBVOLUMES],
    ),
    harms(
        "inode-change-counter-kept",
        "NFS clients go on showing attributes of long ago.",
        &[STEPS_OF_FILES],
    ),
    harms(
        "quota-limit-ignored",
        "A subvolume grows beyond its quota limit and fills the volume.",
        &[test(
            "buttress-writer",
            "writer",
            "quotas::limits_of_simple_quotas_refuse_writes",
        )],
    ),
    harms(
        "quota-charges-allocation-twice",
        "A program cannot allocate the second half of the space below a quota limit.",
        &[test(
            "buttress-writer",
            "writer",
            "quota_charges::allocation_takes_its_space_once",
        )],
    ),
    harms(
        "quota-limit-refuses-in-place",
        "A database whose file was allocated before fails at the limit of its subvolume.",
        &[test(
            "buttress-writer",
            "writer",
            "quota_charges::limit_allows_writes_in_place",
        )],
    ),
    harms(
        "quota-diamond-counts-twice",
        "A quota group refuses writes since it counts a subvolume twice.",
        &[test(
            "buttress-writer",
            "writer",
            "quotas::relation_counts_a_group_once_by_two_ways",
        )],
    ),
    harms(
        "checksum-change-cleans-orphans",
        "A change of the checksums that was cut off can no longer be finished.",
        &[test(
            "buttress-proof",
            "whole_changes",
            "orphans_wait_for_the_end_of_a_change_of_the_checksums",
        )],
    ),
    // Subvolumes.
    harms(
        "snapshot-without-parent",
        "Backup programs do not find which snapshot another was made of, and send all of it again.",
        &[STEPS_OF_SUBVOLUMES],
    ),
    harms(
        "snapshot-born-with-its-source",
        "Programs that list by age see new snapshots as old ones, and delete the wrong ones.",
        &[STEPS_OF_SUBVOLUMES],
    ),
    loses(
        "snapshot-keeps-received-uuid",
        "A changed copy of a received snapshot passes for the original: the next incremental receive builds on it.",
        &[
            STEPS_OF_SUBVOLUMES,
            writer("subvolume::making::tests::only_a_read_only_snapshot_passes_for_what_was_received"),
        ],
    ),
    harms(
        "root-change-unnoted",
        "A subvolume looks unchanged to backup programs although it was written to.",
        &[STEPS_OF_FILES, STEPS_OF_SUBVOLUMES],
    ),
    loses(
        "file-misfit-content-dropped",
        "Content that does not fit the buffer of its read is dropped: the reader gets zeros.",
        &[
            test(
                "buttress-fs",
                "lib",
                "file::tests::content_past_the_end_of_its_buffer_is_a_defect",
            ),
            test(
                "buttress-fs",
                "lib",
                "file::tests::content_longer_than_its_buffer_is_a_defect",
            ),
        ],
    ),
    loses(
        "job-result-lost-silently",
        "A commit lacks the tree blocks that a thread sealed, and a file the checksums that a thread computed.",
        &[
            test(
                "buttress-fs",
                "lib",
                "executor::tests::a_result_that_is_gone_is_a_defect",
            ),
            test(
                "buttress-fs",
                "lib",
                "executor::tests::a_missing_result_among_others_is_a_defect",
            ),
        ],
    ),
];
