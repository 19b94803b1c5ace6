//! Extents in the extent tree, and their references.

use buttress_format::{
    ExtentItem, InlineReference, ItemType, Key, Logical, ObjectId, TreeBlock, TreeId, parse_keyed_references,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::{BlockPointer, Items, ReadAhead, Tree};
use smallvec::SmallVec;

/// An extent in use.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The extent item.
    pub item: ExtentItem,
}

/// The references to an extent: those in its item, then those that are items of their own.
#[derive(Debug)]
pub struct References {
    inline: smallvec::IntoIter<[InlineReference; 2]>,
    keyed: Items,
    ready: SmallVec<[InlineReference; 1]>,
    sector_bytes: u32,
}

impl Iterator for References {
    type Item = Result<InlineReference>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(reference) = self.inline.next() {
            return Some(Ok(reference));
        }
        loop {
            if let Some(reference) = self.ready.pop() {
                return Some(Ok(reference));
            }
            let item = match self.keyed.next()? {
                Ok(item) => item,
                Err(error) => return Some(Err(error.into())),
            };
            match parse_keyed_references(&item.key(), item.data(), self.sector_bytes) {
                Ok(references) => self.ready = references,
                Err(error) => return Some(Err(broken(error))),
            }
        }
    }
}

pub(super) fn broken(error: buttress_format::ItemError) -> Error {
    Corruption::Item {
        tree: TreeId::EXTENT,
        error,
    }
    .into()
}

/// Returns whether items of this type are extent items.
fn is_extent(item_type: ItemType) -> bool {
    matches!(item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
}

/// Returns the extent that covers `logical`.
///
/// # Errors
/// Fails with [`Error::ExtentNotFound`], or with an error of reading the extent tree.
pub(crate) fn extent_at(filesystem: &Filesystem, logical: Logical) -> Result<Extent> {
    let tree = filesystem.tree(TreeId::EXTENT)?;
    let extent = extent_at_or_before(filesystem, &tree, logical)?;
    match extent {
        Some(extent) if logical < extent.item.end() => Ok(extent),
        _ => Err(Error::ExtentNotFound { logical }),
    }
}

/// Returns the extent that begins at `logical`, or the last extent before it.
///
/// The first extent's references and block group items may lie between two extents. Each search
/// below skips all items of one address, so few searches are needed.
fn extent_at_or_before(filesystem: &Filesystem, tree: &Tree, logical: Logical) -> Result<Option<Extent>> {
    let mut cursor = tree.cursor(ReadAhead::None);
    let mut wanted = Key::new(ObjectId::new(logical.get()), ItemType::METADATA_ITEM, u64::MAX);
    loop {
        cursor.seek_at_or_before(&wanted)?;
        let Some(item) = cursor.current() else {
            return Ok(None);
        };
        if is_extent(item.key.item_type) {
            let item = ExtentItem::parse(&item.key, item.data, filesystem.volume().block_format())
                .map_err(broken)?;
            return Ok(Some(Extent { item }));
        }
        let before = Key::new(item.key.objectid, ItemType::METADATA_ITEM, u64::MAX);
        if before >= wanted {
            // The searched address has only items of other types: continue below it.
            match item.key.objectid.get().checked_sub(1) {
                Some(below) => {
                    wanted = Key::new(ObjectId::new(below), ItemType::METADATA_ITEM, u64::MAX);
                }
                None => return Ok(None),
            }
        } else {
            wanted = before;
        }
    }
}

/// Returns all references to an extent.
///
/// # Errors
/// Fails if the volume has no extent tree. Later errors are items of the returned iterator.
pub(crate) fn extent_references(filesystem: &Filesystem, extent: &Extent) -> Result<References> {
    let object_id = ObjectId::new(extent.item.start.get());
    let first = Key::new(object_id, ItemType::TREE_BLOCK_REF, 0);
    let last = Key::new(object_id, ItemType::SHARED_DATA_REF, u64::MAX);
    Ok(References {
        inline: extent.item.inline_references.clone().into_iter(),
        keyed: filesystem
            .tree(TreeId::EXTENT)?
            .range(first..=last, ReadAhead::None),
        ready: SmallVec::new(),
        sector_bytes: filesystem.sector_bytes(),
    })
}

/// Reads a tree block of which only the address is known. The extent item of a tree block records
/// the block's level and generation.
pub(crate) fn block_by_address(filesystem: &Filesystem, logical: Logical) -> Result<TreeBlock> {
    let extent = extent_at(filesystem, logical)?;
    block_of_extent(filesystem, &extent)
}

/// Reads the tree block of an extent.
pub(crate) fn block_of_extent(filesystem: &Filesystem, extent: &Extent) -> Result<TreeBlock> {
    let logical = extent.item.start;
    let Some(level) = extent.item.level else {
        return Err(Error::ExtentNotFound { logical });
    };
    // The pointer assumes the tree of this subvolume; a block of another tree names that tree
    // itself.
    let mut pointer = BlockPointer {
        tree: TreeId::FS,
        logical,
        generation: extent.item.generation,
        level,
        first_key: None,
        end_key: None,
    };
    let owner = extent
        .item
        .inline_references
        .iter()
        .find_map(|reference| match reference {
            InlineReference::TreeBlock { root } => Some(*root),
            _ => None,
        });
    if let Some(owner) = owner {
        pointer.tree = owner;
    }
    Ok(filesystem.forest().read_block(&pointer)?)
}
