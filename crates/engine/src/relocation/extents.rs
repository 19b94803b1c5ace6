//! Extents of the running transaction with all of their references, and the extents of a block group in order.
//!
//! Invariant: no delayed reference is pending, so the extent tree has all references.

use crate::core_state::Core;
use buttress_accounts::delayed_references::{ExtentKind, Reference};
use buttress_format::{
    ByteCount, ExtentFlags, ExtentItem, InlineReference, ItemType, Key, Logical, ObjectId, TreeId,
    parse_keyed_references,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_tree::BlockPointer;
use core::ops::ControlFlow;

/// An extent and its references.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) item: ExtentItem,
    /// All references to the extent with their counts; never an owner.
    pub(super) references: Vec<(Reference, i64)>,
    /// The subvolume that made the extent, on volumes with simple quotas.
    pub(super) owner: Option<TreeId>,
}

impl Extent {
    pub(super) fn kind(&self) -> ExtentKind {
        match self.item.level.filter(|_| !self.item.is_data()) {
            Some(level) => ExtentKind::TreeBlock { level },
            None => ExtentKind::Data,
        }
    }

    /// Whether the block refers to the blocks and extents below by its address.
    pub(super) const fn is_full(&self) -> bool {
        self.item.flags.contains(ExtentFlags::FULL_BACKREF)
    }

    /// Returns the pointer to the tree block that the extent holds. For this pointer, blocks of one
    /// subvolume count as blocks of any other.
    pub(super) fn pointer(&self) -> BlockPointer {
        let keyed = self.references.iter().find_map(|(reference, _)| match reference {
            Reference::TreeBlock { root } => Some(*root),
            _ => None,
        });
        pointer_to(&self.item, keyed)
    }

    fn take(&mut self, inline: &InlineReference) {
        let reference = match inline {
            InlineReference::Owner { root } => {
                self.owner = Some(*root);
                return;
            }
            InlineReference::TreeBlock { root } => Reference::TreeBlock { root: *root },
            InlineReference::SharedBlock { parent } => Reference::SharedBlock { parent: *parent },
            InlineReference::ExtentData(data) => Reference::Data {
                root: data.root,
                inode: data.inode,
                offset: data.offset,
            },
            InlineReference::SharedData { parent, .. } => Reference::SharedData { parent: *parent },
        };
        self.references.push((reference, i64::from(inline.count())));
    }
}

/// Returns the pointer to a tree block, of which `tree` is one holder.
fn pointer_to(item: &ExtentItem, tree: Option<TreeId>) -> BlockPointer {
    BlockPointer {
        // Clamp: only blocks of subvolumes are referred to by address alone.
        tree: tree.unwrap_or(TreeId::FS),
        logical: item.start,
        generation: item.generation,
        // Clamp: no caller asks for the pointer to data.
        level: item.level.unwrap_or(0),
        first_key: None,
        end_key: None,
    }
}

/// Returns the pointer to the tree block of an extent item, as [`Extent::pointer`] does. `None` for
/// a block whose references are not in the item.
pub(super) fn pointer_by_item(item: &ExtentItem) -> Option<BlockPointer> {
    let tree = item.inline_references.iter().find_map(|inline| match inline {
        InlineReference::TreeBlock { root } => Some(Some(root)),
        InlineReference::SharedBlock { .. } => Some(None),
        _ => None,
    });
    tree.map(|tree| pointer_to(item, tree.copied()))
}

fn broken(error: buttress_format::ItemError) -> Error {
    Corruption::Item {
        tree: TreeId::EXTENT,
        error,
    }
    .into()
}

const fn is_extent(item_type: ItemType) -> bool {
    matches!(item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
}

impl Core {
    /// Returns the extent that begins at `logical`, with its references.
    ///
    /// # Errors
    /// Fails for items that fail their checks, and for blocks that cannot be read.
    pub(super) fn extent_with_references(&self, logical: Logical) -> Result<Option<Extent>> {
        let mut found: Option<Extent> = None;
        let mut failure = None;
        let object = ObjectId::new(logical.get());
        self.extent
            .tree
            .scan(&Key::new(object, ItemType(0), 0), |key, data| {
                if key.objectid != object {
                    return ControlFlow::Break(());
                }
                let taken = match &mut found {
                    None if is_extent(key.item_type) => {
                        ExtentItem::parse(key, data, &self.format).map(|item| {
                            let inline = item.inline_references.clone();
                            let extent = found.insert(Extent {
                                item,
                                references: Vec::new(),
                                owner: None,
                            });
                            inline.iter().for_each(|reference| extent.take(reference));
                        })
                    }
                    Some(extent)
                        if !is_extent(key.item_type) && key.item_type != ItemType::BLOCK_GROUP_ITEM =>
                    {
                        parse_keyed_references(key, data, self.format.sector_bytes)
                            .map(|references| references.iter().for_each(|reference| extent.take(reference)))
                    }
                    _ => Ok(()),
                };
                match taken {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failure = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })?;
        match failure {
            Some(error) => Err(broken(error)),
            None => Ok(found),
        }
    }

    /// Returns the same as [`extent_with_references`](Self::extent_with_references), for an extent
    /// that must exist.
    ///
    /// # Errors
    /// Fails as [`extent_with_references`](Self::extent_with_references) does, and with
    /// [`Corruption::ExtentMissing`].
    pub(super) fn expect_extent(&self, logical: Logical, length: ByteCount) -> Result<Extent> {
        let missing = || Corruption::ExtentMissing { logical, length };
        Ok(self.extent_with_references(logical)?.ok_or_else(missing)?)
    }

    /// Returns the extents that begin in `[from, end)`, in order, at most `count`.
    ///
    /// # Errors
    /// Fails for items that fail their checks, and for blocks that cannot be read.
    pub(super) fn extents_from(&self, from: u64, end: u64, count: usize) -> Result<Vec<ExtentItem>> {
        let mut found = Vec::new();
        let mut failure = None;
        self.extent
            .tree
            .scan(&Key::new(ObjectId::new(from), ItemType(0), 0), |key, data| {
                if key.objectid.get() >= end || found.len() >= count {
                    return ControlFlow::Break(());
                }
                if is_extent(key.item_type) {
                    match ExtentItem::parse(key, data, &self.format) {
                        Ok(item) => found.push(item),
                        Err(error) => {
                            failure = Some(error);
                            return ControlFlow::Break(());
                        }
                    }
                }
                ControlFlow::Continue(())
            })?;
        match failure {
            Some(error) => Err(broken(error)),
            None => Ok(found),
        }
    }
}
