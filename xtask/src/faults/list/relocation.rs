//! Faults of relocations, balances, and changes of a volume's devices.

use super::*;

const fn in_memory(name: &'static str) -> Test {
    test("buttress-writer", "writer", name)
}

pub(super) const FAULTS: &[Fault] = &[
    loses(
        "relocation-snapshot-unmarked",
        "After a relocation a subvolume frees blocks that its snapshots share: they are overwritten.",
        &[
            writing("relocated::single_dup"),
            writer("relocation_tests::sharing::snapshots_diverge_after_a_relocation"),
        ],
    ),
    loses(
        "relocation-foreign-items-counted",
        "A balance leaves the old address in a snapshot's leaf, and another file overwrites the content.",
        &[
            writer("relocation_tests::sharing::extent_in_leaves_of_the_original_and_the_snapshot_moves"),
            writer("relocation_tests::sharing::extent_in_leaves_with_full_references_and_own_leaves_moves"),
        ],
    ),
    loses(
        "relocation-copies-unverified",
        "A balance copies rotten content and drops the intact copy.",
        &[
            writer("relocation_tests::beside::corrupt_extent_without_a_copy_is_named"),
            in_memory("balance_corners::corrupt_copies_are_healed_by_a_balance"),
        ],
    ),
    harms(
        "relocation-checksums-left",
        "Files that a balance moved cannot be read, because their checksums stayed at the old place.",
        &[writer("relocation_tests::sharing::groups_with_snapshots_move")],
    ),
    harms(
        "relocation-limit-forgets",
        "A balance with a limit is slower than its limit.",
        &[engine(
            "relocation::pace::tests::job_catches_up_after_each_slow_batch",
        )],
    ),
    harms(
        "relocation-old-places-kept",
        "A balance of a nearly full volume ends early for lack of space that a commit would free.",
        &[writer(
            "relocation_tests::commits::job_on_a_nearly_full_volume_ends",
        )],
    ),
    harms(
        "relocation-commits-each-batch",
        "A balance flushes the devices after each batch, and takes twice as long.",
        &[writer(
            "relocation_tests::commits::job_with_space_commits_less_often_than_its_batches",
        )],
    ),
    harms(
        "balance-item-late",
        "A crash early in a balance leaves moved block groups and no balance to resume.",
        &[in_memory("balance::item_lasts_from_start_to_end")],
    ),
    harms(
        "balance-resumed-from-the-beginning",
        "A resumed balance moves everything again that it had moved before.",
        &[engine(
            "balance::choice::tests::resumed_balance_skips_what_was_moved",
        )],
    ),
    harms(
        "chunk-converted-system-late",
        "A conversion leaves the system block group, because data and metadata took its space.",
        &[in_memory(
            "balance_corners::system_chunk_gets_space_beside_a_large_data_chunk",
        )],
    ),
    harms(
        "exclusive-paused-balance-ignored",
        "A device leaves in the middle of a paused conversion, whose profile then has too few devices.",
        &[in_memory(
            "balance_corners::exclusive_operations_refuse_each_other",
        )],
    ),
    harms(
        "membership-emptied-part-allocated",
        "New content lands on the device that is being removed, and the removal never ends.",
        &[device_changes("device_that_is_emptied_gets_no_new_chunks")],
    ),
    harms(
        "shrink-cut-chunk-past-end",
        "A shrink ends with an error: while it cuts the volume, a new chunk takes a place past the new end.",
        &[in_memory(
            "shrink::edits_during_the_cut_make_no_chunk_past_the_new_end",
        )],
    ),
    harms(
        "membership-cuts-outdated-device",
        "After the loss of the other device, the older state on a device that missed commits is cut off.",
        &[in_memory(
            "balance_corners::device_that_missed_commits_keeps_its_size",
        )],
    ),
    loses(
        "membership-used-device-joins",
        "`device add` without -f takes a disk that another copy of the volume uses, and wipes its content.",
        &[
            device_changes("device_with_content_of_a_copy_is_refused"),
            in_memory("balance_corners::device_that_a_copy_uses_does_not_join"),
        ],
    ),
];
