//! Items of file trees in any order, sorted by tree and key, with the items of equal keys joined.
//!
//! Names, directory entries and attributes whose hashes are equal share one item: their data follow
//! each other. Names that no longer fit their item go to items of extended references.

use crate::error::{Error, Result};
use buttress_exact::{Defect, Exact as _};
use buttress_format::limits::item_bytes_max;
use buttress_format::{InodeExtrefs, InodeNumber, InodeRefs, ItemType, Key, ObjectId, TreeId};
use buttress_packing::{Record, Sorted, SortedReader, Sorter, SpoolFolder};
use std::collections::BTreeMap;

const KEY_BYTES: usize = 25;
/// The memory of a sorter.
const MEMORY_BYTES: usize = 64 << 20;

/// A receiver of items in any order.
pub(crate) struct Items {
    sorter: Sorter,
}

impl Items {
    pub(crate) fn new(folder: &SpoolFolder) -> Self {
        Self {
            sorter: Sorter::new(folder, MEMORY_BYTES),
        }
    }

    /// Adds an item of a tree.
    pub(crate) fn push(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.sorter.push(&encode(tree, key), data)?;
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<SortedItems> {
        Ok(SortedItems(self.sorter.finish()?))
    }
}

/// Items in order.
pub(crate) struct SortedItems(Sorted);

impl SortedItems {
    /// Returns the records without joining equal keys.
    pub(crate) fn into_sorted(self) -> Sorted {
        self.0
    }

    pub(crate) fn reader(&self, node_bytes: u32) -> Result<Reader<'_>> {
        Ok(Reader {
            records: self.0.reader()?,
            next: None,
            is_begun: false,
            overflow: BTreeMap::new(),
            most: item_bytes_max(node_bytes),
        })
    }
}

/// An item with its tree.
pub(crate) type TreeItem = (TreeId, Key, Vec<u8>);

/// A reader of joined items.
pub(crate) struct Reader<'a> {
    records: SortedReader<'a>,
    next: Option<TreeItem>,
    is_begun: bool,
    /// Items of extended references, by tree and key, that were not returned yet.
    overflow: BTreeMap<(TreeId, Key), Vec<u8>>,
    most: usize,
}

impl Reader<'_> {
    /// Returns the next item.
    pub(crate) fn next(&mut self) -> Result<Option<TreeItem>> {
        if !self.is_begun {
            self.is_begun = true;
            self.next = self.record()?;
        }
        let first = self.overflow.keys().next().copied();
        let is_before = |(tree, key): (TreeId, Key)| {
            let next = self.next.as_ref().map(|(tree, key, _)| (*tree, *key));
            next.is_none_or(|next| (tree, key) < next)
        };
        if let Some(first) = first.filter(|first| is_before(*first)) {
            let data = self.overflow.remove(&first);
            return Ok(data.map(|data| (first.0, first.1, data)));
        }
        let Some((tree, key, mut data)) = self.next.take() else {
            return Ok(None);
        };
        loop {
            self.next = self.record()?;
            match self.next.take() {
                Some((other_tree, other, more)) if other_tree == tree && other == key => {
                    self.join(tree, &key, &mut data, &more)?;
                }
                other => {
                    self.next = other;
                    return Ok(Some((tree, key, data)));
                }
            }
        }
    }

    fn join(&mut self, tree: TreeId, key: &Key, data: &mut Vec<u8>, more: &[u8]) -> Result<()> {
        if data.len().exact_add(more.len()) <= self.most {
            data.extend_from_slice(more);
            return Ok(());
        }
        let inode = old_inode(key);
        if key.item_type != ItemType::INODE_REF {
            let problem = "too many names or attributes have the same hash".to_owned();
            return Err(Error::Object { inode, problem });
        }
        let parent = InodeNumber::new(key.offset);
        let names = InodeRefs::parse(key, more).map_err(|error| Error::of_item(inode, error.problem))?;
        for name in names {
            let own = InodeExtrefs::key(InodeNumber::new(key.objectid.get()), parent, name.name);
            let data = self.overflow.entry((tree, own)).or_default();
            InodeExtrefs::push(data, parent, name.index, name.name)
                .map_err(|problem| Error::of_item(inode, problem))?;
        }
        Ok(())
    }

    fn record(&mut self) -> Result<Option<TreeItem>> {
        let mut record = Record::default();
        if !self.records.next(&mut record)? {
            return Ok(None);
        }
        let (tree, key) = decode(&record.key)?;
        Ok(Some((tree, key, record.payload)))
    }
}

/// Returns the inode in the old file system of an item's inode, for messages.
fn old_inode(key: &Key) -> u32 {
    let number = key.objectid.get().checked_sub(crate::INODE_OFFSET);
    number.map_or(0, |number| number.narrow())
}

fn encode(tree: TreeId, key: &Key) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    let parts = [
        &tree.get().to_be_bytes()[..],
        &key.objectid.get().to_be_bytes(),
        &[key.item_type.0],
        &key.offset.to_be_bytes(),
    ];
    for (place, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
        *place = *byte;
    }
    bytes
}

/// Returns the tree and key of a record.
pub(crate) fn decode(bytes: &[u8]) -> Result<(TreeId, Key)> {
    let number = |at: usize| {
        let part = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
        part.map(|part| u64::from_be_bytes(*part))
            .ok_or(Defect::new("a record's key is short"))
    };
    let item_type = bytes
        .get(16)
        .copied()
        .ok_or(Defect::new("a record's key is short"))?;
    let key = Key::new(ObjectId::new(number(8)?), ItemType(item_type), number(17)?);
    Ok((TreeId::new(number(0)?), key))
}
