//! The extent tree: every data extent and every tree block, with its references.

use super::{Finish, Guess, Item, Plan};
use crate::blocks::Listing;
use crate::error::{Error, Result};
use crate::layout::GENERATION;
use buttress_format::{
    ByteCount, CompatRo, ExtentDataReference, ExtentItem, Incompat, InlineReference, InodeNumber, Key,
    Logical, TreeId,
};
use buttress_mkfs::parts::{BlockPlace, block_items, in_order};
use buttress_packing::BlockNote;
use buttress_packing::Record;

/// A data extent, with its references in the order of subvolume, inode and offset.
pub(super) struct DataExtent {
    logical: Logical,
    pub(super) length: ByteCount,
    pub(super) references: Vec<ExtentDataReference>,
}

impl Finish<'_> {
    /// Lists all items of the extent tree in order: blocks of the chunk tree, data, blocks of the
    /// other trees.
    pub(super) fn extent_items(
        &self,
        log: &Listing,
        guess: &Guess,
        plan: &Plan,
        give: &mut dyn FnMut(Key, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let own_tree = self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
        let mut groups = plan.block_group_items();
        if own_tree {
            groups.clear();
        }
        let mut groups = groups.into_iter().peekable();
        let mut ordered = |key: Key, data: Vec<u8>| -> Result<()> {
            while let Some((group, item)) = groups.next_if(|(group, _)| *group < key) {
                give(group, item)?;
            }
            give(key, data)
        };
        let node_bytes = u64::from(self.settings.node_bytes);
        let address = |base: Logical, number: usize| {
            base.saturating_add(ByteCount::new((number as u64).saturating_mul(node_bytes)))
        };
        for (number, (level, first_key)) in guess.chunk.iter().enumerate() {
            let note = BlockNote {
                owner: TreeId::CHUNK,
                level: *level,
                first_key: *first_key,
            };
            self.block(address(self.system.logical, number), &note, &[], &mut ordered)?;
        }
        self.data_extents(&mut |extent| self.data_extent(&extent, &mut ordered))?;
        for (number, note) in log.notes().iter().enumerate() {
            let others = log.shared_with(number);
            self.block(log.address(number), note, others, &mut ordered)?;
        }
        let mut number = log.notes().len();
        for (owner, blocks) in guess.trees() {
            for (level, first_key) in blocks {
                let note = BlockNote {
                    owner,
                    level: *level,
                    first_key: *first_key,
                };
                self.block(log.address(number), &note, &[], &mut ordered)?;
                number = number.saturating_add(1);
            }
        }
        for (key, data) in groups {
            give(key, data)?;
        }
        Ok(())
    }

    /// Lists the items of a tree block to which its owner and other trees refer.
    fn block(
        &self,
        logical: Logical,
        note: &BlockNote,
        others: &[TreeId],
        give: &mut dyn FnMut(Key, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let trees = [&[note.owner][..], others].concat();
        let place = BlockPlace {
            logical,
            generation: GENERATION,
            level: note.level,
            first_key: note.first_key,
            trees: &trees,
        };
        for (key, data) in block_items(self.settings, &place)? {
            give(key, data)?;
        }
        Ok(())
    }

    /// Calls `give` with every data extent, in address order.
    pub(super) fn data_extents(&self, give: &mut dyn FnMut(DataExtent) -> Result<()>) -> Result<()> {
        let mut reader = self.references.reader()?;
        let mut record = Record::default();
        let mut open: Option<DataExtent> = None;
        while reader.next(&mut record)? {
            let mut numbers = record
                .key
                .chunks_exact(8)
                .map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap_or_default()));
            let mut next = || numbers.next().unwrap_or_default();
            let logical = Logical::new(next());
            let reference = ExtentDataReference {
                root: TreeId::new(next()),
                inode: InodeNumber::new(next()),
                offset: next(),
                count: 1,
            };
            let length = record.payload.as_slice().try_into().unwrap_or_default();
            let length = ByteCount::new(u64::from_le_bytes(length));
            match &mut open {
                Some(extent) if extent.logical == logical => extent.references.push(reference),
                _ => {
                    let next = DataExtent {
                        logical,
                        length,
                        references: vec![reference],
                    };
                    if let Some(done) = open.replace(next) {
                        give(done)?;
                    }
                }
            }
        }
        open.map_or(Ok(()), give)
    }

    /// Returns the subvolume that created an extent: the first that is no snapshot.
    pub(super) fn maker(&self, extent: &DataExtent) -> TreeId {
        let mut trees = extent.references.iter().map(|reference| reference.root);
        let first = trees.clone().next().unwrap_or(TreeId::FS);
        let is_snapshot = |tree: &TreeId| self.layout.snapshots.iter().any(|(_, id)| id == tree);
        trees.find(|tree| !is_snapshot(tree)).unwrap_or(first)
    }

    /// Lists the item of a data extent, and separate items for references that do not fit it.
    fn data_extent(
        &self,
        extent: &DataExtent,
        give: &mut dyn FnMut(Key, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut item = ExtentItem::new_data(extent.logical, extent.length, GENERATION);
        if self.settings.incompat.contains(Incompat::SIMPLE_QUOTA) {
            let root = self.maker(extent);
            item.inline_references.push(InlineReference::Owner { root });
        }
        let mut keyed: Vec<Item> = Vec::new();
        for reference in &extent.references {
            let reference = InlineReference::ExtentData(*reference);
            if item.has_space_for(&reference, self.settings.node_bytes) {
                item.add_inline(reference)
                    .map_err(|_| Error::Defect { what: "a reference" })?;
            } else {
                item.references = item.references.saturating_add(1);
                let key = reference.keyed_key(item.start);
                let key = key.ok_or(Error::Defect { what: "a reference" })?;
                keyed.push((key, reference.encode_keyed()));
            }
        }
        give(item.key(), item.encode())?;
        let mut last: Option<Key> = None;
        for (mut key, data) in in_order(keyed) {
            // If an object id is taken, the next free key is used.
            if let Some(last) = last.filter(|last| *last >= key) {
                key = last.successor().ok_or(Error::Defect { what: "a reference" })?;
            }
            last = Some(key);
            give(key, data)?;
        }
        Ok(())
    }
}
