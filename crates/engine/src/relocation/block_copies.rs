//! The copies of a renaming's tree blocks: the same items with the new addresses, sealed.
//!
//! A copy keeps its owner and its content. Making copies needs no lock.

use super::renaming::{Renaming, no_such_block, parse};
use buttress_format::file_extent::set_disk;
use buttress_format::{BlockFormat, ItemType, KeyPointer, Logical, TreeBlock, TreeId};
use buttress_fs::error::{Defect, Result};

impl Renaming {
    /// The sealed copies in order of their addresses, each with the tree that made the block. Needs
    /// no lock.
    pub(super) fn copies(&self, format: &BlockFormat) -> Result<Vec<(TreeId, TreeBlock)>> {
        let copies = self
            .blocks
            .iter()
            .map(|(old, new)| self.copy_of(*old, *new, format));
        let mut copies = copies.collect::<Result<Vec<_>>>()?;
        copies.sort_unstable_by_key(|(_, copy)| copy.logical());
        Ok(copies)
    }

    fn copy_of(&self, old: Logical, new: Logical, format: &BlockFormat) -> Result<(TreeId, TreeBlock)> {
        let found = self.closure.blocks.get(&old);
        let block = &found.ok_or_else(|| no_such_block(old))?.block;
        let generation = self.generation;
        let mut copy = block.copy_to_relocate(new, generation);
        let is_changed = if block.is_leaf() {
            let items = self.items_of(block, format.sector_bytes)?;
            copy.edit_leaf(|leaf| {
                let mut set = items.iter().map(|(slot, disk)| {
                    let data = leaf.data_mut(*slot);
                    data.is_some_and(|data| set_disk(data, *disk))
                });
                set.all(|is_set| is_set)
            })
        } else {
            let renamed: Vec<(usize, KeyPointer)> = block
                .pointers()
                .enumerate()
                .filter_map(|(slot, pointer)| {
                    let logical = *self.blocks.get(&pointer.logical)?;
                    Some((
                        slot,
                        KeyPointer {
                            logical,
                            generation,
                            ..pointer
                        },
                    ))
                })
                .collect();
            copy.edit_node(|node| renamed.iter().all(|(slot, pointer)| node.set(*slot, pointer)))
        };
        if !is_changed {
            return Err(
                Defect::new("a copy of a tree block has not the items of the block")
                    .with("block", old.get())
                    .into(),
            );
        }
        Ok((
            block.header().owner,
            copy.seal(new, format.checksum_type, |_| None),
        ))
    }

    /// Items of a leaf whose extents move: slots and new addresses.
    fn items_of(&self, leaf: &TreeBlock, sector_bytes: u32) -> Result<Vec<(usize, Logical)>> {
        let mut items = Vec::new();
        for (slot, item) in leaf.items().enumerate() {
            if item.key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = parse(leaf, &item.key, item.data, sector_bytes)?;
            let data = extent
                .slice()
                .and_then(|slice| self.closure.data.get(&slice.disk));
            items.extend(data.map(|data| (slot, data.moved.to)));
        }
        Ok(items)
    }
}
