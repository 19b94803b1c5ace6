//! Packing of sorted items: items of one key merge, names that do not fit their item get another
//! one, and snapshots get a root when their source is complete.

use super::Emitter;
use crate::data::{Extent, Owner};
use crate::error::{Error, Result};
use buttress_format::node::edit::leaf_data_bytes_max;
use buttress_format::{
    ByteCount, FileExtent, FileExtentBody, InodeExtrefs, InodeNumber, InodeRefs, ItemType, Key, TreeId,
};
use buttress_packing::{Packer, Top};

impl Emitter<'_> {
    /// Processes the next item. The data of entries with one key forms one item.
    pub(super) fn item(&mut self, tree: TreeId, key: Key, data: Vec<u8>) -> Result<()> {
        if let Some((open_tree, open_key, open)) = &mut self.merging
            && (*open_tree, *open_key) == (tree, key)
        {
            let most = leaf_data_bytes_max(self.log.format.node_bytes);
            if open.len().saturating_add(data.len()) <= most {
                open.extend_from_slice(&data);
                return Ok(());
            }
            return self.overflows(&key, &data);
        }
        self.merged()?;
        self.merging = Some((tree, key, data));
        Ok(())
    }

    /// Splits off the names that do not fit one item of a directory.
    fn overflows(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        let refused = |problem: &str| Error::Entry {
            path: format!("inode {}", key.objectid),
            problem: problem.to_owned(),
        };
        if key.item_type != ItemType::INODE_REF {
            return Err(refused("more names or attributes of one hash than fit an item"));
        }
        let names = InodeRefs::parse(key, data).map_err(|_| Error::Defect { what: "a name" })?;
        let inode = InodeNumber::new(key.objectid.get());
        for name in names {
            let key = InodeExtrefs::key(inode, name.parent, name.name);
            let item = self.overflow.entry(key).or_default();
            InodeExtrefs::push(item, name.parent, name.index, name.name)
                .map_err(|_| Error::Defect { what: "a name" })?;
        }
        Ok(())
    }

    /// Packs the items gathered under one key.
    pub(super) fn merged(&mut self) -> Result<()> {
        let Some((tree, key, data)) = self.merging.take() else {
            return Ok(());
        };
        self.pack(tree, &key, &data)
    }

    fn pack(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.pack_overflow(Some((tree, key)))?;
        self.push(tree, key, data)
    }

    /// Packs the overflowing names whose keys precede this key of this tree.
    pub(super) fn pack_overflow(&mut self, before: Option<(TreeId, &Key)>) -> Result<()> {
        let Some(open) = self.packer.as_ref().map(|(open, _)| *open) else {
            return Ok(());
        };
        while let Some(first) = self.overflow.first_entry() {
            if before.is_some_and(|(tree, key)| tree == open && *key < *first.key()) {
                break;
            }
            let (key, data) = first.remove_entry();
            self.push(open, &key, &data)?;
        }
        Ok(())
    }

    fn push(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        if self.packer.as_ref().is_some_and(|(open, _)| *open != tree) {
            self.finish_tree()?;
        }
        let (_, packer) = self
            .packer
            .get_or_insert_with(|| (tree, Packer::new(tree, self.log.format)));
        Ok(packer.push(self.log, key, data)?)
    }

    /// Finishes the current tree, and makes the snapshots of its subvolume.
    pub(super) fn finish_tree(&mut self) -> Result<()> {
        let Some((tree, packer)) = self.packer.take() else {
            return Ok(());
        };
        let (root, top) = packer.finish(self.log)?;
        self.roots.push(root);
        for (source, snapshot) in self.rules.snapshots {
            if *source == tree {
                self.roots.push(self.log.copy_root(&root, &top, *snapshot)?);
                self.refer_from_root(*snapshot, &top)?;
            }
        }
        Ok(())
    }

    /// If a root is a leaf, it refers to extents itself, and so does its copy.
    fn refer_from_root(&mut self, snapshot: TreeId, top: &Top) -> Result<()> {
        let files = top
            .items()
            .filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA);
        for (key, data) in files {
            let extent = FileExtent::parse(&key, data, self.rules.sector_bytes);
            let extent = extent.map_err(|_| Error::Defect {
                what: "an extent of a file",
            })?;
            let FileExtentBody::Regular(slice) = extent.body else {
                continue;
            };
            if slice.disk_bytes == ByteCount::ZERO {
                continue;
            }
            let owner = Owner {
                tree: snapshot,
                inode: InodeNumber::new(key.objectid.get()),
            };
            let extent = Extent {
                at: key.offset,
                logical: slice.disk,
                stored_bytes: slice.disk_bytes.get(),
                content_bytes: slice.num_bytes.get(),
                compression: extent.compression,
            };
            self.data.refer(owner, &extent)?;
        }
        Ok(())
    }
}
