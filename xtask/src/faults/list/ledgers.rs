//! Faults of ledgers: free, used, pinned and reserved space, and counts of references and blocks.
//!
//! A wrong ledger alone does not change a volume: the commit ends with an error. These faults
//! therefore harm but lose no data, except faults in records that no ledger covers.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
    harms(
        "ledger-allocation-uncounted",
        "Space that is allocated and given back is free twice: two files get it.",
        &[FILES_COME_AND_GO, BYTE_VECTORS],
    ),
    harms(
        "ledger-pinned-never-falls",
        "The volume says that space waits for readers when nobody reads, and in the end that it is full.",
        &[FILES_COME_AND_GO, BYTE_VECTORS],
    ),
    harms(
        "ledger-pin-forgotten",
        "Space that was freed is not used again before the volume is opened anew.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    loses(
        "ledger-used-range-unrecorded",
        "The free-space tree has space as free that is in use: the next mount writes there.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    harms(
        "ledger-volume-bytes-keep-freed",
        "The superblock says that more is used than is: df shows a volume that fills up by itself.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    harms(
        "ledger-superblock-bytes-stale",
        "The superblock says what was used a commit ago, and check finds the volume damaged.",
        &[FILES_COME_AND_GO],
    ),
    harms(
        "ledger-group-item-stale",
        "A block group's item says what was used before, and check finds the volume damaged.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    harms(
        "ledger-device-bytes-never-rise",
        "A device says that less of it is used than is, and check finds the volume damaged.",
        &[writer(
            "transaction_tests::a_full_volume_says_so_and_can_be_emptied",
        )],
    ),
    harms(
        "ledger-promise-released-twice",
        "A full volume promises space that it does not have: content that was accepted cannot be written back.",
        &[BYTE_VECTORS],
    ),
    harms(
        "ledger-promise-kept",
        "A volume that is written for long says that it is full when it is not.",
        &[BYTE_VECTORS],
    ),
    harms(
        "ledger-dirty-memory-kept",
        "Writers are slowed more and more, until each write waits for a commit.",
        &[BYTE_VECTORS],
    ),
    loses(
        "ledger-reference-lost",
        "An extent has a reference less than it should: the next delete frees what is in use.",
        &[FILES_COME_AND_GO, SHARED],
    ),
    loses(
        "ledger-split-block-uncounted",
        "A tree block that was split off has no address when the tree is written: its files are gone.",
        &[EDITS, HIGH_TREES],
    ),
    harms(
        "ledger-inode-bytes-keep-cut",
        "du shows more for a file than it has, and check finds the inode damaged.",
        &[BYTE_VECTORS, TO_THE_KERNEL],
    ),
    harms(
        "dirty-bytes-counted-again",
        "A file that grows counts its dirty data many times: writers wait for write-back that has nothing to do.",
        &[engine("dirty_data::tests::pieces_agree_with_a_list_of_sectors")],
    ),
    harms(
        "dirty-bytes-restored-uncounted",
        "Dirty data whose write-back failed is not counted: memory grows past its budget.",
        &[engine("dirty_data::tests::pieces_agree_with_a_list_of_sectors")],
    ),
    harms(
        "ahead-keeps-all",
        "Space that deleted content releases stays reserved, and the volume says that it is full.",
        &[engine(
            "reserved_ahead::tests::what_is_taken_was_there_and_no_more_than_a_batch_is_kept",
        )],
    ),
    harms(
        "ahead-rest-forgotten",
        "Space that a write releases stays promised for good, and the volume fills up by itself.",
        &[engine(
            "reserved_ahead::tests::what_is_taken_was_there_and_no_more_than_a_batch_is_kept",
        )],
    ),
    harms(
        "free-total-keeps-taken",
        "A block group says that space is free which files took: the last of it is promised twice.",
        &[engine("free_ranges::tests::agrees_with_a_set")],
    ),
    loses(
        "free-rest-from-start",
        "Space that was allocated becomes free again: two files get it.",
        &[
            engine("free_ranges::tests::agrees_with_a_set"),
            engine("block_groups::shares::tests::what_is_taken_or_given_twice_is_told_with_its_numbers"),
        ],
    ),
    loses(
        "pins-second-reader-uncounted",
        "One of two readers of a snapshot ends, and space that the other still reads is written over.",
        &[
            engine("pins::tests::second_reader_of_a_state_keeps_its_ranges"),
            engine("pins::tests::first_reader_of_a_state_outlives_later_ones"),
        ],
    ),
    harms(
        "pins-bytes-keep-released",
        "The next commit ends with a defect, and the volume becomes read-only.",
        &[engine(
            "pins::tests::a_reader_keeps_what_was_freed_after_its_state",
        )],
    ),
    harms(
        "ledger-used-never-falls",
        "Files are deleted, and df shows no more free space.",
        &[engine(
            "block_groups::shares::tests::a_range_goes_from_free_to_free_and_the_shares_add_up",
        )],
    ),
    harms(
        "ledger-trimmed-never-falls",
        "Space that fstrim discarded stays in use until the volume is opened again.",
        &[engine(
            "block_groups::shares::tests::a_range_goes_from_free_to_free_and_the_shares_add_up",
        )],
    ),
];
