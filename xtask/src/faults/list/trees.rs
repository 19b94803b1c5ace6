//! Faults of trees and references.

use super::*;

pub(super) const FAULTS: &[Fault] = &[
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
        &[DROPPING, commits("dropping::the_source_first")],
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
    loses(
        "tree-merge-overfull",
        "A leaf is merged with a neighbour that has no space for it: its items would be gone.",
        &[EDITS, HIGH_TREES],
    ),
    loses(
        "tree-push-overfull",
        "Items are pushed to a leaf that has no space for the new one: the order of keys would be wrong.",
        &[EDITS, HIGH_TREES],
    ),
];
