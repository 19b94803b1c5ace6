//! The current state of an extent: its item in the extent tree, with delayed references applied.

use crate::core_state::Core;
use buttress_accounts::delayed_references::{ExtentKind, Pending, Reference};
use buttress_format::{
    ByteCount, ExtentDataReference, ExtentFlags, ExtentItem, Incompat, InlineReference, ItemType, Key,
    Logical, ObjectId, TreeId,
};
use buttress_fs::error::{Corruption, Result};
use smallvec::SmallVec;

/// The references of an extent, including delayed references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentState {
    /// The number of references of the extent.
    pub references: u64,
    /// Whether references to the block's children name the block's address.
    pub full_backref: bool,
}

/// Returns the key of the extent item for an extent of this kind and length.
pub fn extent_key(logical: Logical, kind: ExtentKind, length: ByteCount, skinny: bool) -> Key {
    let object = ObjectId::new(logical.get());
    match kind {
        ExtentKind::TreeBlock { level } if skinny => {
            Key::new(object, ItemType::METADATA_ITEM, u64::from(level))
        }
        ExtentKind::TreeBlock { .. } | ExtentKind::Data => {
            Key::new(object, ItemType::EXTENT_ITEM, length.get())
        }
    }
}

/// Returns, in order, the keys that applying an extent's delayed references reads and edits: its
/// item in any form, and its keyed references.
pub fn keys_of(logical: Logical, pending: &Pending, skinny: bool) -> SmallVec<[Key; 4]> {
    let form = |skinny| extent_key(logical, pending.kind, pending.length, skinny);
    let mut keys: SmallVec<[Key; 4]> = SmallVec::new();
    if pending.created.is_none() {
        keys.push(form(false));
    }
    keys.push(form(skinny));
    keys.extend(
        pending
            .changes
            .iter()
            .map(|(reference, _)| keyed_key(logical, reference)),
    );
    keys.sort_unstable();
    keys
}

impl Core {
    /// Returns the item of an extent, which must exist.
    pub(crate) fn extent_item(
        &self,
        logical: Logical,
        kind: ExtentKind,
        length: ByteCount,
    ) -> Result<(Key, ExtentItem)> {
        let skinny = self.has(Incompat::SKINNY_METADATA);
        let tree = &self.extent.tree;
        for form in [skinny, false] {
            let key = extent_key(logical, kind, length, form);
            if let Some(found) = tree.get(&key)? {
                let item = ExtentItem::parse(&key, found.data(), &self.format).map_err(|error| {
                    Corruption::Item {
                        tree: TreeId::EXTENT,
                        error,
                    }
                })?;
                return Ok((key, item));
            }
        }
        Err(Corruption::ExtentMissing { logical, length }.into())
    }

    /// Returns the references of an extent, including delayed references.
    pub fn extent_state(&self, logical: Logical, kind: ExtentKind, length: ByteCount) -> Result<ExtentState> {
        let pending = self.references.get(logical);
        let waiting = pending.map_or(0, Pending::sum);
        let flagged = pending.is_some_and(|pending| pending.full_backref);
        let (references, full_backref) = if pending.is_some_and(|pending| pending.created.is_some()) {
            (0, false)
        } else {
            let (_, item) = self.extent_item(logical, kind, length)?;
            (item.references, item.flags.contains(ExtentFlags::FULL_BACKREF))
        };
        Ok(ExtentState {
            references: counted(logical, references, waiting)?,
            full_backref: full_backref || flagged,
        })
    }
}

pub(crate) fn inline_form(reference: &Reference, count: u32) -> InlineReference {
    match *reference {
        Reference::TreeBlock { root } => InlineReference::TreeBlock { root },
        Reference::SharedBlock { parent } => InlineReference::SharedBlock { parent },
        Reference::Data { root, inode, offset } => InlineReference::ExtentData(ExtentDataReference {
            root,
            inode,
            offset,
            count,
        }),
        Reference::SharedData { parent } => InlineReference::SharedData { parent, count },
    }
}

pub(crate) fn keyed_key(logical: Logical, reference: &Reference) -> Key {
    let inline = inline_form(reference, 1);
    Key::new(
        ObjectId::new(logical.get()),
        inline.item_type(),
        inline.sort_value(),
    )
}

/// Returns an extent's number of references after a change. A negative number of references is a
/// [`Corruption`].
pub(crate) fn counted(logical: Logical, references: u64, change: i64) -> Result<u64, Corruption> {
    let counted = references.checked_add_signed(change);
    counted.ok_or(Corruption::ReferencesTooFew {
        logical,
        references,
        change,
    })
}
