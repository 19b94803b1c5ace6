//! Faults of streams, of jobs beside a commit, of check and scrub, and of the command.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    // Streams.
    loses(
        "send-holes-unsent",
        "The receiver keeps what was punched out of a file.",
        &[
            send("holes::punched_in_the_middle"),
            send("holes::punched_at_the_start"),
        ],
    ),
    loses(
        "send-clones-from-start",
        "The receiver clones from the wrong place of a file.",
        &[
            send("clones::middle_of_an_extent"),
            send("clones::same_extent_as_in_the_parent_at_another_offset"),
        ],
    ),
    loses(
        "send-forgets-moved-aside",
        "Renames that depend on each other fail, or end under the wrong name.",
        &[
            send("renames::two_directories_swap_names"),
            send("renames::parents_swap_and_children_change_sides"),
        ],
    ),
    harms(
        "drop-reads-unwritten",
        "Deleting a subvolume while a commit is under way ends with an error of a block that is not there yet.",
        &[in_flight(
            "commit_in_flight::a_subvolume_is_dropped_when_its_blocks_are_on_the_device",
        )],
    ),
    harms(
        "snapshot-reads-unwritten",
        "A snapshot that is taken while a commit is under way ends with an error of a block that is not there yet.",
        &[in_flight(
            "commit_in_flight::a_snapshot_is_made_of_what_is_on_its_way_to_the_device",
        )],
    ),
    harms(
        "trees-forgotten-unwritten",
        "With hundreds of subvolumes in use, a call while a commit is under way ends with an error of a block that is not there yet.",
        &[in_flight(
            "commit_in_flight::a_tree_stays_open_until_its_blocks_are_on_the_device",
        )],
    ),
    harms(
        "view-holds-durable",
        "What a long job reads from its view is overwritten, where it came while a commit was under way.",
        &[in_flight(
            "commit_in_flight::a_view_keeps_what_came_while_a_commit_was_under_way",
        )],
    ),
    // Faults of the check and of the command.
    harms(
        "check-references-uncompared",
        "check says that a volume is good whose next delete frees what is in use.",
        &[planted("every_plant_gives_its_codes")],
    ),
    loses(
        "check-data-unverified",
        "check says that all data is good although files rotted.",
        &[
            planted("every_plant_gives_its_codes"),
            planted("fields::what_is_damaged_is_told_with_its_place_and_its_files"),
        ],
    ),
    loses(
        "scrub-data-unverified",
        "A scrub says that all data is good although a copy rotted; when the other goes, the data is lost.",
        &[
            scrub("damage::each_block_of_each_copy_is_mended_and_nothing_else_is_touched"),
            scrub("damage::what_is_beyond_repair_is_named_with_every_place_tried"),
        ],
    ),
    harms(
        "scrub-lost-write-accepted",
        "A copy of a tree block that is a transaction behind stays, and is found when the good one is gone.",
        &[scrub(
            "damage::lost_and_misdirected_writes_are_told_from_rot_and_mended",
        )],
    ),
    harms(
        "scrub-misdirected-write-accepted",
        "A tree block that was written over another stays there.",
        &[scrub(
            "damage::lost_and_misdirected_writes_are_told_from_rot_and_mended",
        )],
    ),
    loses(
        "scrub-mends-nothing",
        "What a scrub says that it corrects is not written.",
        &[
            scrub("damage::each_block_of_each_copy_is_mended_and_nothing_else_is_touched"),
            scrub("damage::superblocks_are_mended_from_each_other"),
        ],
    ),
    harms(
        "scrub-mended-unread",
        "A device that loses writes is said to be mended.",
        &[scrub(
            "damage::what_is_beyond_repair_is_named_with_every_place_tried",
        )],
    ),
    harms(
        "scrub-mends-from-bad-copy",
        "A copy that could be saved by hand is overwritten with another that is no better.",
        &[scrub(
            "damage::what_is_beyond_repair_is_named_with_every_place_tried",
        )],
    ),
    harms(
        "heal-nothing",
        "A copy that a reader passed over stays bad until the next scrub.",
        &[beside("beside::what_readers_pass_over_is_mended_behind_them")],
    ),
    loses(
        "replace-target-unwritten",
        "What is written while a device is replaced is not on the one that takes its place.",
        &[
            replace("replace::a_device_of_each_profile_is_replaced"),
            replace("replace::a_device_is_replaced_beside_a_writer"),
        ],
    ),
    loses(
        "replace-row-gaps-unwritten",
        "Parity that is written while a device is replaced counts on what the new one does not have.",
        &[
            replace("replace::parity_that_is_written_behind_the_copy_fits_what_the_target_holds"),
            replace("replace::what_is_written_behind_the_copy_outlives_the_loss_of_other_devices"),
        ],
    ),
    loses(
        "replace-target-unflushed",
        "A replacement goes on after a crash above what never reached the new device.",
        &[
            crash_of_scrub("crash::a_replacement_that_is_cut_off_goes_on_or_is_given_up"),
            crash_of_scrub("crash::a_replacement_of_a_missing_device_that_is_cut_off_goes_on_or_is_given_up"),
        ],
    ),
    loses(
        "replace-cursor-ahead",
        "A replacement goes on after a crash above what was not copied yet.",
        &[
            crash_of_scrub("crash::a_replacement_that_is_cut_off_goes_on_or_is_given_up"),
            crash_of_scrub("crash::a_replacement_of_a_missing_device_that_is_cut_off_goes_on_or_is_given_up"),
        ],
    ),
    loses(
        "replace-lost-metadata-copied",
        "A device is replaced by one that lacks a part of the metadata, and wiped.",
        &[
            lost_by_replace("replace_lost::lost_metadata_stops_the_replacement_before_the_exchange"),
            test(
                "buttress-cli",
                "commands",
                "replace_lost::lost_metadata_ends_the_replacement_as_in_the_kernel",
            ),
        ],
    ),
    loses(
        "replace-target-unchecked",
        "A device is replaced by one that lost what was written to it, and wiped.",
        &[
            lost_by_replace("replace_lost::target_that_loses_writes_does_not_take_the_place"),
            lost_by_replace("replace_lost::target_that_loses_half_a_volume_does_not_take_the_place"),
        ],
    ),
    harms(
        "replace-lost-data-is-zeros",
        "Data that no device gave reads as zeros after a replacement.",
        &[lost_by_replace(
            "replace_lost::lost_data_without_checksums_reads_as_filler",
        )],
    ),
    harms(
        "scrub-parity-over-unknown",
        "A scrub overwrites the parity that restores a file, because the extent tree does not name the file's extent.",
        &[unwalked(
            "unwalked::parity_of_raid6_beside_an_unknown_extent_stays",
        )],
    ),
    loses(
        "trim-free-space-trusted",
        "A trim discards files that a damaged free-space tree lists as free space.",
        &[
            unwalked("unwalked::trim_stops_where_the_extent_tree_has_an_extent"),
            unwalked("unwalked::trim_stops_where_a_mirror_has_an_extent"),
        ],
    ),
    harms(
        "edit-asks-for-nothing",
        "On a full volume an edit goes on without space for its tree blocks, and writing stops at the commit.",
        &[in_flight(
            "space_needs::no_operation_takes_more_nodes_than_it_asked_for",
        )],
    ),
    harms(
        "commit-expects-only-edits",
        "On a full volume a commit finds no space for the records of its blocks, and writing stops.",
        &[in_flight(
            "space_needs::no_operation_takes_more_nodes_than_it_asked_for",
        )],
    ),
    harms(
        "dirty-data-takes-chunks",
        "Metadata chunks take the space of a small volume while data is dirty, and files find no space.",
        &[writer(
            "transaction_tests::dirty_data_space::dirty_data_takes_no_metadata_chunk_of_a_small_volume",
        )],
    ),
    harms(
        "space-of-trim-unawaited",
        "A write fails for want of space while a trim runs, although the volume has space.",
        &[in_flight("trimming::a_trim_causes_no_want_of_space")],
    ),
    harms(
        "return-own-state-unkept",
        "A disk that comes back cannot be read alone after a power cut, though it could before.",
        &[resync_cuts(
            "resync_cuts::a_device_is_never_less_readable_alone_wherever_its_return_is_cut",
        )],
    ),
    harms(
        "scrub-mends-stale-device",
        "A scrub overwrites blocks that the superblock of a disk that was away needs. The disk alone becomes unreadable.",
        &[resync(
            "resync::a_scrub_counts_what_a_device_missed_and_leaves_it",
        )],
    ),
    loses(
        "volume-stale-data-served",
        "A disk that was away serves old data without checksums in place of new data.",
        &[
            resync_reads("resync_reads::a_stale_copy_serves_no_data_without_checksums"),
            resync_reads("resync_reads::a_stale_column_rebuilds_no_data_without_checksums"),
        ],
    ),
    loses(
        "return-reserved-data-left",
        "A disk that came back lacks what was written into space that was reserved before it left: the other disk is the only one that has it.",
        &[
            resync("resync::data_in_space_reserved_before_comes_with_the_return"),
            resync_kernel("resync_kernel::the_kernel_finds_nothing_where_devices_were_brought_up_to_date"),
        ],
    ),
    loses(
        "scrub-reads-failed-device",
        "A scrub takes old data without checksums from a disk that failed a write, and puts it in the place of new data.",
        &[
            resync_reads("resync_reads::scrub_uses_no_copy_of_a_device_that_failed_a_write"),
            resync_reads("resync_reads::scrub_uses_no_column_of_a_device_that_failed_a_write"),
        ],
    ),
    loses(
        "volume-damage-beside-written-over",
        "A file that rotted on a RAID5 could be repaired, until another file was written beside it.",
        &[
            damage_beside_writes("damage_beside_writes::writes_beside_damaged_data_keep_raid5_parity"),
            damage_beside_writes("damage_beside_writes::writes_beside_damaged_data_keep_raid6_parity"),
        ],
    ),
    harms(
        "volume-doubts-unsettled",
        "A disk that was away for one commit, which a power cut ended, counts as up to date: later it cannot be read alone.",
        &[resync_cuts(
            "resync_cuts::the_first_degraded_commit_that_is_cut_off_leaves_devices_behind",
        )],
    ),
    harms(
        "volume-diverged-devices-accepted",
        "Two disks that were each written without the other are opened as one volume.",
        &[resync("resync::devices_that_were_written_apart_are_refused")],
    ),
    harms(
        "scrub-rows-unlocked",
        "A scrub beside a writer takes what is being written for damage.",
        &[beside("beside::copies_that_are_being_written_are_waited_for")],
    ),
    harms(
        "scrub-one-recovery-tried",
        "RAID6 with a bad block and a bad P is given up though Q would do.",
        &[scrub(
            "damage::raid6_with_two_wrong_in_a_row_is_mended_and_with_three_is_told",
        )],
    ),
    loses(
        "scrub-parity-unmended",
        "Parity that rotted stays: the next device that fails takes data with it.",
        &[
            scrub("damage::each_block_of_each_copy_is_mended_and_nothing_else_is_touched"),
            scrub("damage::a_device_of_noise_is_written_anew"),
        ],
    ),
    harms(
        "scrub-old-superblock-accepted",
        "A copy of the superblock that missed commits leads back to an old state when the primary is lost.",
        &[scrub("damage::superblocks_are_mended_from_each_other")],
    ),
    loses(
        "repair-guard-off",
        "A repair that lost a file is kept, and the owner commits it.",
        &[
            repair("guard::tests::inode_that_is_gone_is_lost"),
            repair("guard::tests::name_that_is_gone_is_lost"),
        ],
    ),
    harms(
        "repair-keeps-worse",
        "A repair that made the volume worse is called better.",
        &[repair("rounds::tests::verdict_keeps_only_a_better_volume")],
    ),
    loses(
        "repair-rebuild-unflushed",
        "A power cut during a repair leaves superblocks that name blocks which the device never wrote.",
        &[
            rebuild("cuts::power_cut_of_a_rebuild_leaves_either_state"),
            rebuild("cuts::power_cut_of_a_small_rebuild_leaves_either_state"),
        ],
    ),
    loses(
        "repair-rebuild-overwrites",
        "A rebuild puts its blocks over the blocks of files.",
        &[
            rebuild("lost::lost_block_of_a_large_extent_tree_is_rebuilt"),
            rebuild("cuts::power_cut_of_a_rebuild_leaves_either_state"),
        ],
    ),
    harms(
        "command-forgets-losses",
        "A script takes a copy for whole in which files are missing.",
        &[
            cli("command_line::what_is_lost_is_reported_and_the_rest_is_read"),
            cli("command_line::a_copy_that_lacks_a_file_ends_with_1"),
        ],
    ),
];
