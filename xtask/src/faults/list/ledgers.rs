//! Ledgers: what is free, used, pinned and promised, and the references and blocks that are counted.
//!
//! None of these reaches a volume by itself: the commit ends with what does not come out. So they harm, and lose nothing;
//! those that lose data are of a trail that no ledger follows.

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
];
