//! Root items and root references as bytes.

use super::{RawRootItem, RawRootItemExtension, RawRootRef, RootItem, RootRef};
use crate::key::{ItemType, Key, RawKey};
use crate::names::{NameProblem, check_name, length};
use crate::units::{SubvolumeId, TreeId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

/// The length of a root item in its current form.
pub const ROOT_ITEM_BYTES: usize = size_of::<RawRootItem>() + size_of::<RawRootItemExtension>();

impl RootItem {
    /// Returns the key `(tree ROOT_ITEM 0)`. In the key of a snapshot's root item, the creating
    /// transaction replaces the 0.
    #[must_use]
    pub const fn key(tree: TreeId, offset: u64) -> Key {
        Key::new(tree.object_id(), ItemType::ROOT_ITEM, offset)
    }

    /// Returns the item's bytes in their on-disk layout, always in the current form. Readers accept
    /// the fields from `uuid` on only if `generation_v2` equals `generation`, so a writer must
    /// change both together.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ROOT_ITEM_BYTES] {
        let base = RawRootItem {
            inode: self.inode.to_raw(),
            generation: U64::new(self.generation.get()),
            root_directory: U64::new(self.root_directory.get()),
            logical: U64::new(self.logical.get()),
            byte_limit: U64::new(self.byte_limit),
            bytes_used: U64::new(self.bytes_used.get()),
            last_snapshot: U64::new(self.last_snapshot.get()),
            flags: U64::new(self.flags.bits()),
            references: U32::new(self.references),
            drop_progress: RawKey::from(self.drop_progress),
            drop_level: self.drop_level,
            level: self.level,
        };
        let extension = RawRootItemExtension {
            generation_v2: U64::new(self.generation_v2.get()),
            uuid: self.uuid.into_bytes(),
            parent_uuid: self.parent_uuid.into_bytes(),
            received_uuid: self.received_uuid.into_bytes(),
            ctransid: U64::new(self.ctransid.get()),
            otransid: U64::new(self.otransid.get()),
            stransid: U64::new(self.stransid.get()),
            rtransid: U64::new(self.rtransid.get()),
            ctime: self.ctime.into(),
            otime: self.otime.into(),
            stime: self.stime.into(),
            rtime: self.rtime.into(),
            reserved: [U64::ZERO; 8],
        };
        zerocopy::transmute!(Whole { base, extension })
    }
}

#[derive(IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct Whole {
    base: RawRootItem,
    extension: RawRootItemExtension,
}

impl RootRef<'_> {
    /// Returns the two keys of a reference: `(parent ROOT_REF child)` and `(child ROOT_BACKREF
    /// parent)`. The items of both keys hold the same data.
    #[must_use]
    pub const fn keys(parent: SubvolumeId, child: SubvolumeId) -> [Key; 2] {
        let (parent, child) = (parent.tree(), child.tree());
        [
            Key::new(parent.object_id(), ItemType::ROOT_REF, child.get()),
            Key::new(child.object_id(), ItemType::ROOT_BACKREF, parent.get()),
        ]
    }

    /// Returns the item's bytes in their on-disk layout.
    ///
    /// # Errors
    /// Fails if no subvolume can have this name.
    pub fn encode(&self) -> Result<Vec<u8>, NameProblem> {
        check_name(self.name, false)?;
        let raw = RawRootRef {
            directory: U64::new(self.directory.get()),
            sequence: U64::new(self.sequence),
            name_bytes: length(self.name)?,
        };
        Ok([raw.as_bytes(), self.name].concat())
    }
}
