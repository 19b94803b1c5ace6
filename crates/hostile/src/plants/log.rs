//! Damage of the pending log.

use super::Plant;
use crate::editor::Editor;
use buttress_format::{FileExtent, ItemType, Key, TreeId};
use buttress_tree::ReadAhead;

/// Returns the items of the log, with their keys.
fn items(editor: &Editor) -> Vec<(Key, Vec<u8>)> {
    let (_, tree) = editor.log();
    let items = tree.range(.., ReadAhead::None);
    items
        .map(|item| {
            let item = item.expect("the log can be read");
            (item.key(), item.data().to_vec())
        })
        .collect()
}

fn extent(editor: &Editor) -> Key {
    let mut items = items(editor).into_iter();
    let found = items.find(|(key, data)| {
        key.item_type == ItemType::EXTENT_DATA
            && FileExtent::parse(key, data, 4096)
                .is_ok_and(|extent| extent.slice().is_some_and(|slice| !slice.is_hole()))
    });
    found.expect("the log has an extent").0
}

fn change(editor: &mut Editor, key: &Key, change: impl FnOnce(&mut [u8])) {
    let (filesystem, tree) = editor.log();
    editor.leaf_of(&filesystem, &tree, key, |leaf, slot| {
        let slot = slot.expect("the item is there");
        change(leaf.data_mut(slot).expect("the item is there"));
    });
}

fn move_extent(editor: &mut Editor, to: u64) {
    let at = extent(editor);
    change(editor, &at, |data| {
        data[21..29].copy_from_slice(&to.to_le_bytes())
    });
}

pub(super) const PLANTS: &[Plant] = &[
    Plant::new("log", "log", "no damage: a log is pending replay", &[], |_| {}).noting(&["pending-log"]),
    Plant::new(
        "log-outside-block-group",
        "log",
        "an extent of a logged file after all block groups",
        &["log-outside-block-group", "log-checksum-missing"],
        |editor| move_extent(editor, 1 << 40),
    ),
    Plant::new(
        "log-collision",
        "log",
        "an extent of a logged file overlaps a tree block",
        &["log-collision", "log-outside-block-group", "log-checksum-missing"],
        |editor| {
            let (block, _) = editor.find(TreeId::EXTENT, ItemType::METADATA_ITEM, |_, _| true);
            move_extent(editor, block.objectid.get());
        },
    ),
    Plant::new(
        "log-checksum-missing",
        "log",
        "checksums removed from the log",
        &["log-checksum-missing"],
        |editor| {
            let mut found = items(editor).into_iter();
            let sums = found.find(|(key, _)| key.item_type == ItemType::EXTENT_CSUM);
            let (sums, _) = sums.expect("the log has checksums");
            let (filesystem, tree) = editor.log();
            editor.leaf_of(&filesystem, &tree, &sums, |leaf, slot| {
                let slot = slot.expect("the item is there");
                assert!(leaf.remove(slot..slot + 1));
            });
        },
    ),
    Plant::new(
        "log-item-unexpected",
        "log",
        "an item of an unknown type in the log",
        &["item-unexpected"],
        |editor| {
            let (last, _) = items(editor).pop().expect("the log has items");
            let (filesystem, tree) = editor.log();
            let at = Key {
                item_type: ItemType(last.item_type.0 + 5),
                ..last
            };
            editor.leaf_of(&filesystem, &tree, &at, |leaf, slot| {
                let slot = slot.expect_err("the item is not there yet");
                leaf.insert(slot, &at, 4).expect("the item fits").fill(7);
            });
        },
    ),
    Plant::new(
        "log-damaged",
        "log",
        "a leaf of the log overwritten",
        &["tree-block-damaged"],
        |editor| {
            let (filesystem, tree) = editor.log();
            let mut leaves = tree.leaves(.., ReadAhead::None);
            let leaf = leaves.next().expect("the log can be read");
            let logical = leaf.expect("it has a leaf").block.logical();
            editor.write(&filesystem, logical, &[0x5a; 64], None);
        },
    ),
];
