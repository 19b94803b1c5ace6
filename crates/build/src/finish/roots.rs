//! The root tree, and the uuids of subvolumes.

use super::{Finish, Item};
use crate::blocks::tree_of;
use crate::error::{Error, Result};
use crate::layout::{GENERATION, Subvolume};
use buttress_format::{
    CompatRo, Generation, ItemType, RootFlags, RootItem, RootRef, TreeId, Uuid, UuidItem, uuid_key,
};
use buttress_mkfs::parts::{directory_inode, in_order, root_directory, root_item};
use buttress_packing::PackedRoot;

impl Finish<'_> {
    /// Returns all trees with a root item.
    pub(super) fn all_trees(&self) -> Vec<TreeId> {
        let mut ids: Vec<TreeId> = self.roots.iter().map(|root| root.id).collect();
        ids.extend([TreeId::EXTENT, TreeId::DEVICE]);
        if self.settings.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            ids.push(TreeId::FREE_SPACE);
        }
        if self.settings.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            ids.push(TreeId::BLOCK_GROUP);
        }
        ids
    }

    pub(super) fn uuid_items(&self) -> Vec<Item> {
        let subvolumes = self.layout.subvolumes.iter().map(|subvolume| subvolume.id);
        let all = core::iter::once(TreeId::FS).chain(subvolumes);
        let items = all.map(|id| {
            let mut data = Vec::new();
            UuidItem::push(&mut data, id);
            (uuid_key(self.uuid(id), ItemType::UUID_KEY_SUBVOL), data)
        });
        in_order(items.collect())
    }

    /// Returns the uuid of a subvolume, which is equal in every build of the same volume.
    fn uuid(&self, id: TreeId) -> Uuid {
        if id == TreeId::FS {
            return self.identity.top_level;
        }
        derived_uuid(self.identity.fsid, "subvolume", id.get())
    }

    pub(super) fn root_items(&self, roots: &[PackedRoot]) -> Result<Vec<Item>> {
        let inode = directory_inode(self.settings, self.identity.time, GENERATION);
        let mut items = root_directory(&inode, self.layout.default_subvolume, GENERATION)?;
        for root in roots {
            let subvolume = self
                .layout
                .subvolumes
                .iter()
                .find(|subvolume| subvolume.id == root.id);
            let item = self.root_item(root, subvolume);
            items.push((RootItem::key(root.id, 0), item.to_bytes().to_vec()));
        }
        for subvolume in &self.layout.subvolumes {
            let reference = RootRef {
                directory: subvolume.directory,
                sequence: subvolume.index,
                name: &subvolume.name,
            };
            let data = reference.encode().map_err(|_| Error::Defect {
                what: "a subvolume's name",
            })?;
            let ids = subvolume.parent.as_subvolume().zip(subvolume.id.as_subvolume());
            let (parent, child) = ids.ok_or(Error::Defect {
                what: "a subvolume's number",
            })?;
            items.extend(RootRef::keys(parent, child).map(|key| (key, data.clone())));
        }
        Ok(in_order(items))
    }

    fn root_item(&self, root: &PackedRoot, subvolume: Option<&Subvolume>) -> RootItem {
        let is_subvolume = root.id == TreeId::FS || subvolume.is_some();
        let uuid = is_subvolume.then(|| self.uuid(root.id));
        let item = root_item(self.settings, self.identity, &tree_of(root), uuid);
        let shares = |(source, snapshot): &(TreeId, TreeId)| [*source, *snapshot].contains(&root.id);
        let made = subvolume.map_or(Generation::MIN, |_| GENERATION);
        let of = subvolume.and_then(|subvolume| subvolume.snapshot_of);
        let read_only = subvolume.is_some_and(|subvolume| subvolume.mark.read_only);
        RootItem {
            // A snapshot may share blocks up to this generation.
            last_snapshot: if self.layout.snapshots.iter().any(shares) {
                GENERATION
            } else {
                Generation::MIN
            },
            flags: if read_only {
                RootFlags::RDONLY
            } else {
                RootFlags::empty()
            },
            parent_uuid: of.map_or_else(Uuid::nil, |of| self.uuid(of)),
            ctransid: made,
            otransid: made,
            ..item
        }
    }
}

/// Derives a uuid from the volume's uuid, a role and a number.
#[must_use]
pub fn derived_uuid(fsid: Uuid, role: &str, number: u64) -> Uuid {
    let bytes = [fsid.as_bytes().as_slice(), role.as_bytes(), &number.to_le_bytes()].concat();
    let hash = buttress_format::ChecksumType::Sha256.compute(&bytes);
    let first = hash.as_bytes().first_chunk::<16>().copied().unwrap_or_default();
    uuid::Builder::from_random_bytes(first).into_uuid()
}
