//! The faults: what each does to a user, and the tests that must catch it.
//!
//! Where a fault loses data, two tests must. `docs/faults.md` says how to add one. Below the crates of the list, from the
//! devices up.

use std::fmt;

/// A deliberate fault. Its point in the code is `buttress_faults::on("name")`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Whether something that was stored can be gone, or other than it was, without a word.
    pub(crate) loses_data: bool,
    /// What it would do to a user.
    pub(crate) harm: &'static str,
    pub(crate) tests: &'static [Test],
}

/// A test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: &'static str,
    /// `lib` for unit tests, else the name of a test target.
    pub(crate) target: &'static str,
    pub(crate) name: &'static str,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = self.package.trim_start_matches("buttress-");
        write!(f, "{package} {} {}", self.target, self.name)
    }
}

const fn loses(name: &'static str, harm: &'static str, tests: &'static [Test]) -> Fault {
    Fault {
        name,
        loses_data: true,
        harm,
        tests,
    }
}

const fn harms(name: &'static str, harm: &'static str, tests: &'static [Test]) -> Fault {
    Fault {
        name,
        loses_data: false,
        harm,
        tests,
    }
}

const fn test(package: &'static str, target: &'static str, name: &'static str) -> Test {
    Test {
        package,
        target,
        name,
    }
}

const fn device(target: &'static str, name: &'static str) -> Test {
    test("buttress-device", target, name)
}

const fn format(name: &'static str) -> Test {
    test("buttress-format", "lib", name)
}

const fn volume(target: &'static str, name: &'static str) -> Test {
    test("buttress-volume", target, name)
}

const fn tree(name: &'static str) -> Test {
    test("buttress-tree", "lib", name)
}

const fn writer(name: &'static str) -> Test {
    test("buttress-writer", "lib", name)
}

const fn in_place(name: &'static str) -> Test {
    test("buttress-writer", "in_place", name)
}

const fn in_flight(name: &'static str) -> Test {
    test("buttress-writer", "commit_in_flight", name)
}

const fn live(name: &'static str) -> Test {
    test("buttress-writer", "live", name)
}

const fn whole_calls(name: &'static str) -> Test {
    test("buttress-writer", "whole_calls", name)
}

const fn concurrent(name: &'static str) -> Test {
    test("buttress-proof", "concurrent", name)
}

const fn crash(name: &'static str) -> Test {
    test("buttress-proof", "crash", name)
}

const fn commits(name: &'static str) -> Test {
    test("buttress-proof", "commits", name)
}

const fn writing(name: &'static str) -> Test {
    test("buttress-proof", "writing", name)
}

const fn send(name: &'static str) -> Test {
    test("buttress-proof", "send", name)
}

const fn planted(name: &'static str) -> Test {
    test("buttress-check", "planted", name)
}

const fn scrub(name: &'static str) -> Test {
    test("buttress-scrub", "damage", name)
}

const fn cli(name: &'static str) -> Test {
    test("buttress-cli", "command_line", name)
}

const THREADS: Test = commits("order::by_threads");
const TWO_DEVICES: Test = commits("order::by_threads_on_two_devices");
const RING: Test = commits("order::by_io_uring");
const STEPS_OF_FILES: Test = commits("steps::of_files");
const STEPS_OF_SUBVOLUMES: Test = commits("steps::of_subvolumes");
const BYTE_VECTORS: Test = writer("data::tests::model::files_agree_with_byte_vectors");
const TO_THE_KERNEL: Test = writer("data::tests::model::files_go_to_the_kernel_and_come_back");
const EDITS: Test = tree("edit::tests::model::random_edits_agree_with_a_map_for_every_node_size");
const HIGH_TREES: Test = tree("edit::tests::model::high_trees_agree_with_a_map");
const FILES_COME_AND_GO: Test = writer("transaction::tests::files_come_and_go");
const DROPPING: Test = writer("operations::tests::subvolumes::dropping_goes_on_where_it_was_cancelled");
const SUBVOLUMES: Test = writer("operations::tests::subvolumes::subvolumes_live_and_die");
const RANDOM_OPERATIONS: Test =
    writer("operations::tests::against_kernel::random_operations_end_as_the_kernels_do");
const SHARED: Test = writer("data::tests::extents::what_is_shared_takes_no_room_and_stays_apart");

pub(crate) const FAULTS: &[Fault] = &[
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
            device("queue_model", "every_engine_gives_the_bytes_of_the_model"),
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
            volume("opening", "every_flipped_bit_of_a_lone_superblock_is_noticed"),
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
    // Volumes.
    loses(
        "volume-one-copy-written",
        "Only one of the copies is written: the first disk that fails takes all with it.",
        &[
            volume(
                "writing",
                "what_is_written_at_once_lies_as_an_independent_writer_would_put_it",
            ),
            volume(
                "writing",
                "random_writes_read_back_whichever_devices_are_missing_then",
            ),
        ],
    ),
    loses(
        "volume-one-way-tried",
        "A file cannot be read although another disk has a good copy.",
        &[
            volume(
                "profiles",
                "noise_in_as_many_stripes_as_the_profile_tolerates_is_passed_over_and_reported",
            ),
            volume("profiles", "sectors_are_taken_from_wherever_they_are_good"),
        ],
    ),
    loses(
        "volume-parity-p-unwritten",
        "A disk of a RAID5 fails, and what is rebuilt from the others is noise.",
        &[
            volume(
                "writing",
                "what_is_written_at_once_lies_as_an_independent_writer_would_put_it",
            ),
            volume(
                "writing",
                "random_writes_read_back_whichever_devices_are_missing_then",
            ),
        ],
    ),
    loses(
        "volume-parity-q-unwritten",
        "Two disks of a RAID6 fail, and what is rebuilt from the others is noise.",
        &[
            volume(
                "writing",
                "what_is_written_at_once_lies_as_an_independent_writer_would_put_it",
            ),
            volume(
                "writing",
                "random_writes_read_back_whichever_devices_are_missing_then",
            ),
        ],
    ),
    loses(
        "volume-row-unlocked",
        "Two writes to one row of a RAID5 at once leave parity of neither: the disk that fails next takes both.",
        &[
            volume("row_locks", "two_writers_of_one_row_of_raid5"),
            volume("row_locks", "two_writers_of_one_row_of_raid6"),
        ],
    ),
    loses(
        "volume-stale-device-trusted",
        "A disk that was away for some commits is read as if it had them.",
        &[
            volume("opening", "the_newest_device_leads_and_a_stale_one_is_read_last"),
            volume("writing", "a_device_that_missed_commits_is_left_alone"),
        ],
    ),
    loses(
        "volume-superblocks-on-failed-device",
        "A disk that refused a write still gets superblocks: the next time it is taken for one that holds everything.",
        &[
            volume("failing", "a_device_that_fails_from_any_write_on_is_done_without"),
            volume("failing", "a_device_that_fails_a_flush_gets_no_superblock"),
            writing("devices::raid1"),
        ],
    ),
    loses(
        "volume-failed-device-read",
        "A disk that refused a write is still read: what was overwritten comes back.",
        &[
            volume("failing", "what_a_device_missed_never_comes_back_from_it"),
            volume("failing", "a_device_that_fails_from_any_write_on_is_done_without"),
        ],
    ),
    loses(
        "volume-one-failure-too-many-tolerated",
        "One disk more than the profile can lose refuses writes, and commits go on as if the data were somewhere.",
        &[
            volume(
                "failing",
                "one_failure_more_than_is_tolerated_stops_writing_and_says_which_chunk_needs_the_device",
            ),
            volume(
                "failing",
                "a_device_that_another_chunk_needs_stops_writing_and_is_still_read",
            ),
            writing("faults::single_data_beside_raid1_metadata"),
        ],
    ),
    loses(
        "volume-failed-flush-forgotten",
        "A disk that could not make its cache durable counts as one that did.",
        &[
            volume("failing", "a_device_that_fails_a_flush_gets_no_superblock"),
            volume(
                "writing",
                "a_failed_write_or_flush_stops_writing_for_good_and_says_why",
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
            "transaction::tests::failing::no_chunk_is_made_on_a_device_that_was_left_out",
        )],
    ),
    loses(
        "volume-writes-after-failure",
        "After a disk refused a write that the volume needs, later commits are built on what it does not hold.",
        &[
            volume(
                "writing",
                "a_failed_write_or_flush_stops_writing_for_good_and_says_why",
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
            volume("writing", "copies_are_written_after_the_primaries_are_durable"),
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
            volume("writing", "superblocks_go_to_all_devices_and_open_there"),
        ],
    ),
    // Trees.
    loses(
        "tree-split-leaves-one-behind",
        "When a leaf is split, an item stays where nobody looks for it: a file is gone.",
        &[EDITS, HIGH_TREES],
    ),
    loses(
        "tree-parent-key-kept",
        "When items move between leaves, ways to them lead elsewhere: files are gone.",
        &[EDITS, HIGH_TREES],
    ),
    loses(
        "tree-frozen-node-changed",
        "Changes that follow a commit are made in what it froze, and are never written.",
        &[
            crash("on_one_device_with_duplicated_metadata"),
            crash("with_small_nodes_and_single_metadata"),
        ],
    ),
    loses(
        "tree-range-removes-one-more",
        "Cutting a file takes the next item along: the beginning of another file.",
        &[EDITS, HIGH_TREES],
    ),
    harms(
        "tree-merged-block-kept",
        "Blocks that were merged away take space for ever.",
        &[EDITS, FILES_COME_AND_GO],
    ),
    // References.
    loses(
        "copy-forgets-a-child",
        "Deleting a snapshot frees blocks that another still has: they are overwritten.",
        &[SUBVOLUMES, writing("model::small_nodes_0")],
    ),
    loses(
        "copy-forgets-data",
        "Deleting a snapshot frees content that the subvolume still has: it is overwritten.",
        &[
            writer("data::tests::extents::snapshots_keep_their_content_without_copy_on_write"),
            commits("dropping::the_snapshot_between_first"),
        ],
    ),
    loses(
        "copy-takes-all-for-own",
        "Writing after a snapshot frees blocks that the snapshot has: they are overwritten.",
        &[
            crash("on_one_device_with_duplicated_metadata"),
            commits("dropping::the_snapshot_between_first"),
        ],
    ),
    harms(
        "drop-keeps-data",
        "Deleting a snapshot never gives its content's space back.",
        &[
            commits("dropping::the_source_first"),
            writing("model::small_nodes_0"),
        ],
    ),
    loses(
        "drop-progress-unkept",
        "Dropping that was interrupted drops the same again: references of others go.",
        &[
            DROPPING,
            commits("dropping::the_source_first"),
            crash("on_one_device_with_duplicated_metadata"),
        ],
    ),
    loses(
        "drop-converts-nothing",
        "Deleting a subvolume whose snapshots live leaves their blocks counted for nobody: the next delete frees too much.",
        &[SUBVOLUMES, commits("dropping::the_source_first")],
    ),
    loses(
        "drop-turn-keeps-old-references",
        "Blocks that a snapshot keeps are counted twice, and by a subvolume that is gone.",
        &[
            commits("dropping::the_source_first"),
            commits("dropping::the_snapshot_between_first"),
        ],
    ),
    loses(
        "data-reference-offset",
        "References of cut extents are counted at the wrong place: content is freed while in use.",
        &[BYTE_VECTORS, TO_THE_KERNEL],
    ),
    loses(
        "clone-adds-no-reference",
        "After a reflink, removing one file frees the content of both.",
        &[BYTE_VECTORS, SHARED],
    ),
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
            writer("transaction::pins::tests::a_reader_keeps_what_was_freed_after_its_state"),
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
            "transaction::tests::a_full_volume_says_so_and_can_be_emptied",
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
            in_place("a_snapshot_waits_for_content_that_is_overwritten"),
            in_place("a_snapshot_waits_for_content_that_goes_into_preallocated_room"),
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
    // Names and inodes.
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
            "a_subvolume_is_dropped_when_its_blocks_are_on_the_device",
        )],
    ),
    harms(
        "snapshot-reads-unwritten",
        "A snapshot that is taken while a commit is under way ends with an error of a block that is not there yet.",
        &[in_flight(
            "a_snapshot_is_made_of_what_is_on_its_way_to_the_device",
        )],
    ),
    harms(
        "trees-forgotten-unwritten",
        "With hundreds of subvolumes in use, a call while a commit is under way ends with an error of a block that is not there yet.",
        &[in_flight("a_tree_stays_open_until_its_blocks_are_on_the_device")],
    ),
    harms(
        "view-holds-durable",
        "What a long job reads from its view is overwritten, where it came while a commit was under way.",
        &[in_flight("a_view_keeps_what_came_while_a_commit_was_under_way")],
    ),
    loses(
        "live-in-flight-unseen",
        "While a file is written back, a read gives what it had before.",
        &[
            live("reads_wait_for_no_write_back"),
            live("a_new_file_is_read_while_it_is_written_back"),
        ],
    ),
    loses(
        "live-hold-untaken",
        "A read beside a program that deletes the file gives another file's content.",
        &[
            live("what_is_being_read_is_not_used_again"),
            live("what_is_being_read_is_not_used_again_when_it_is_cut_off"),
        ],
    ),
    harms(
        "live-operation-half-seen",
        "A file that another program renames over is not there for a moment, or two looks do not fit together.",
        &[
            live("a_name_that_is_renamed_over_is_always_found"),
            concurrent("one_order_explains_all::plain"),
            concurrent("one_order_explains_all::small_cache"),
        ],
    ),
    harms(
        "live-deleted-subvolume-seen",
        "Programs go on to read a subvolume that was deleted, and find its files until they are dropped, or half of them.",
        &[
            whole_calls("what_lies_in_a_deleted_subvolume_is_found_by_no_read"),
            concurrent("one_order_explains_all::plain"),
        ],
    ),
    harms(
        "live-zero-range-half-seen",
        "A read beside fallocate sees zeros in a file of the old size.",
        &[whole_calls("a_range_of_zeros_past_the_end_is_seen_whole")],
    ),
    loses(
        "clone-forgets-dirty-data",
        "A clone that fails takes what was last written to its target with it: older content is back.",
        &[
            whole_calls("a_clone_that_finds_no_source_leaves_the_target_as_it_was"),
            whole_calls("a_clone_out_of_a_deleted_subvolume_leaves_the_target_as_it_was"),
        ],
    ),
    // Checking, and the command.
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
            scrub("each_block_of_each_copy_is_mended_and_nothing_else_is_touched"),
            scrub("what_is_beyond_repair_is_named_with_every_place_tried"),
        ],
    ),
    harms(
        "scrub-lost-write-accepted",
        "A copy of a tree block that is a transaction behind stays, and is found when the good one is gone.",
        &[scrub("lost_and_misdirected_writes_are_told_from_rot_and_mended")],
    ),
    harms(
        "scrub-misdirected-write-accepted",
        "A tree block that was written over another stays there.",
        &[scrub("lost_and_misdirected_writes_are_told_from_rot_and_mended")],
    ),
    loses(
        "scrub-mends-nothing",
        "What a scrub says that it corrects is not written.",
        &[
            scrub("each_block_of_each_copy_is_mended_and_nothing_else_is_touched"),
            scrub("superblocks_are_mended_from_each_other"),
        ],
    ),
    harms(
        "scrub-mended-unread",
        "A device that loses writes is said to be mended.",
        &[scrub("what_is_beyond_repair_is_named_with_every_place_tried")],
    ),
    harms(
        "scrub-mends-from-bad-copy",
        "A copy that could be saved by hand is overwritten with another that is no better.",
        &[scrub("what_is_beyond_repair_is_named_with_every_place_tried")],
    ),
    harms(
        "scrub-one-recovery-tried",
        "RAID6 with a bad block and a bad P is given up though Q would do.",
        &[scrub(
            "raid6_with_two_wrong_in_a_row_is_mended_and_with_three_is_told",
        )],
    ),
    loses(
        "scrub-parity-unmended",
        "Parity that rotted stays: the next device that fails takes data with it.",
        &[
            scrub("each_block_of_each_copy_is_mended_and_nothing_else_is_touched"),
            scrub("a_device_of_noise_is_written_anew"),
        ],
    ),
    harms(
        "scrub-old-superblock-accepted",
        "A copy of the superblock that missed commits leads back to an old state when the primary is lost.",
        &[scrub("superblocks_are_mended_from_each_other")],
    ),
    harms(
        "command-forgets-losses",
        "A script takes a copy for whole in which files are missing.",
        &[
            cli("what_is_lost_is_reported_and_the_rest_is_read"),
            cli("a_copy_that_lacks_a_file_ends_with_1"),
        ],
    ),
];
