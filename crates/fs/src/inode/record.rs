//! Records: all items of one inode, read in one pass.
//!
//! The pass over an inode's items starts at the inode item. The pass over an inode's items ends
//! with its last item, or at the first directory entry, which a record does not hold. Two kinds of
//! content of an inode record have no natural bound. Reading a record fails if its attributes
//! exceed [`ATTRIBUTES_LIMIT`]. More than [`EXTENTS_LIMIT`] extents end the pass over the items:
//! [`InodeRecord::extents`] is then `None`, and a reader walks the extents itself.

use crate::error::{Corruption, Error, Result};
use crate::extents::{FileRange, FileRangeBuilder};
use crate::filesystem::Filesystem;
use crate::inode::Metadata;
use crate::location::Location;
use crate::xattrs::{ATTRIBUTES_LIMIT, Xattr, append_xattrs};
use buttress_exact::Exact as _;
use buttress_format::{
    FileKind, InodeExtrefs, InodeItem, InodeNumber, InodeRefs, Item, ItemError, ItemType, Key,
};
use buttress_tree::Cursor;

/// The maximum number of extent items in a record.
const EXTENTS_LIMIT: usize = 256;

/// The maximum number of names in a record. Names beyond this limit are only counted.
const LINKS_LIMIT: usize = 16;

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeLink {
    /// The directory that holds the entry.
    pub directory: InodeNumber,
    /// The index of the entry in the directory.
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// All items of one inode.
#[derive(Clone, Debug)]
pub struct InodeRecord {
    /// The attributes that `stat(2)` shows.
    pub metadata: Metadata,
    /// The inode's first names.
    pub links: Vec<InodeLink>,
    /// The number of names found for the inode. If `links` cannot hold all names, the number may be
    /// only one more than `links` holds.
    pub link_count: u64,
    /// The extended attributes, in the order of their items and of `listxattr(2)`.
    pub xattrs: Vec<Xattr>,
    /// The ranges of a regular file or symlink, in order, without holes that have no item. `None`
    /// if the file has too many ranges to hold.
    pub extents: Option<Vec<FileRange>>,
}

impl InodeRecord {
    /// Returns the record of the placeholder for an absent subvolume.
    pub fn of_placeholder(metadata: Metadata) -> Self {
        Self {
            metadata,
            links: Vec::new(),
            link_count: 1,
            xattrs: Vec::new(),
            extents: None,
        }
    }

    /// Returns the approximate memory of the record.
    pub fn memory_bytes(&self) -> usize {
        let links: usize = self.links.iter().map(|link| link.name.len()).sum();
        let xattrs: usize = self
            .xattrs
            .iter()
            .map(|xattr| xattr.name.len().exact_add(xattr.value.len()))
            .sum();
        let extents: usize = self.extents.iter().flatten().map(FileRange::memory_bytes).sum();
        size_of::<Self>()
            .exact_add(links)
            .exact_add(xattrs)
            .exact_add(extents)
    }

    /// Reads the items of `location` with `cursor`, and leaves the cursor at some position after
    /// the inode item.
    pub fn load(filesystem: &Filesystem, cursor: &mut Cursor, location: Location) -> Result<Self> {
        let key = Key::new(location.inode.object_id(), ItemType::INODE_ITEM, 0);
        if !cursor.seek(&key)? {
            return Err(Error::InodeNotFound { location });
        }
        let mut record = {
            let item = cursor.current().ok_or(Error::InodeNotFound { location })?;
            let inode = InodeItem::parse(&key, item.data).map_err(|error| Corruption::Item {
                tree: location.subvolume.tree(),
                error,
            })?;
            let metadata = Metadata::from_item(location, &inode, filesystem.sector_bytes());
            let holds_extents = matches!(metadata.kind, FileKind::Regular | FileKind::Symlink);
            Self {
                metadata,
                links: Vec::new(),
                link_count: 0,
                xattrs: Vec::new(),
                extents: holds_extents.then(Vec::new),
            }
        };
        let mut builder = FileRangeBuilder::new(location, filesystem.sector_bytes());
        let mut attribute_bytes = 0_usize;
        let mut more = cursor.next()?;
        while more {
            let Some(item) = cursor.current() else { break };
            if item.key.objectid == key.objectid && record.has_names_enough(item.key.item_type) {
                // An inode can have 65,536 names in as many items, and a walk meets it once for
                // each of them.
                cursor.seek(&Key::new(key.objectid, ItemType::XATTR_ITEM, 0))?;
                more = cursor.current().is_some();
                continue;
            }
            if item.key.objectid != key.objectid
                || !record.take(&item, location, &mut builder, &mut attribute_bytes)?
            {
                break;
            }
            more = cursor.next()?;
        }
        Ok(record)
    }

    /// Returns true if an item of this type would only add names beyond the limit.
    fn has_names_enough(&self, item_type: ItemType) -> bool {
        self.links.len() >= LINKS_LIMIT && matches!(item_type, ItemType::INODE_REF | ItemType::INODE_EXTREF)
    }

    /// Adds the content of one item to the record. Returns true if the pass over the inode's items
    /// continues.
    fn take(
        &mut self,
        item: &Item<'_>,
        location: Location,
        builder: &mut FileRangeBuilder,
        attribute_bytes: &mut usize,
    ) -> Result<bool> {
        let tree = location.subvolume.tree();
        let broken = |error| Error::from(Corruption::Item { tree, error });
        match item.key.item_type {
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                self.take_names(&item.key, item.data).map_err(broken)?;
            }
            ItemType::XATTR_ITEM => {
                *attribute_bytes = attribute_bytes.exact_add(item.data.len());
                if *attribute_bytes > ATTRIBUTES_LIMIT {
                    return Err(crate::xattrs::too_big(location));
                }
                append_xattrs(tree, &item.key, item.data, &mut self.xattrs)?;
            }
            ItemType::EXTENT_DATA => {
                let Some(extents) = &mut self.extents else {
                    return Ok(false);
                };
                if extents.len() >= EXTENTS_LIMIT {
                    self.extents = None;
                    return Ok(false);
                }
                extents.push(builder.range(&item.key, item.data)?);
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => return Ok(false),
            _ => {}
        }
        Ok(true)
    }

    /// Adds the names of an `INODE_REF` or `INODE_EXTREF`. Ignores items of other types.
    ///
    /// # Errors
    /// Fails if the item is invalid; the record is then unchanged.
    pub(super) fn take_names(&mut self, key: &Key, data: &[u8]) -> Result<(), ItemError> {
        match key.item_type {
            ItemType::INODE_REF => {
                for link in InodeRefs::parse(key, data)? {
                    self.add_link(link.parent, link.index, link.name);
                }
            }
            ItemType::INODE_EXTREF => {
                for link in InodeExtrefs::parse(key, data)? {
                    self.add_link(link.parent, link.index, link.name);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_link(&mut self, directory: InodeNumber, index: u64, name: &[u8]) {
        self.link_count = self.link_count.exact_add(1);
        if self.links.len() < LINKS_LIMIT {
            self.links.push(InodeLink {
                directory,
                index,
                name: name.to_vec(),
            });
        }
    }
}
