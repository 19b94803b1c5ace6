//! Records of inodes that have lost items, for the restoration of damaged volumes.
//!
//! A lost inode item is replaced: its owner is root, its mode 0600 or 0700, and its size is the end of
//! the last extent. The record does not hold the extents, so that a reader finds the lost ones.

use crate::error::{Error, Result};
use crate::extents::FileRangeBuilder;
use crate::filesystem::Filesystem;
use crate::inode::{InodeRecord, Metadata};
use crate::location::Location;
use crate::xattrs::{ATTRIBUTES_LIMIT, append_xattrs};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, FileKind, InodeItem, ItemType, Key, SubvolumeId, Timestamp};
use buttress_tree::ReadAhead;

impl Filesystem {
    /// Returns all items of the inode. If items are lost, returns those that can be read, with the
    /// reason. `kind` is the kind of file that the inode has if its item is lost.
    ///
    /// # Errors
    /// Fails if nothing of the inode can be read.
    pub fn salvaged_record(
        &self,
        location: Location,
        kind: FileKind,
    ) -> Result<(InodeRecord, Option<Error>)> {
        match self.inode_record(location) {
            Ok(record) => Ok((record, None)),
            // The first error names the lost block.
            Err(error) => match InodeRecord::salvage(self, location, kind) {
                Ok(record) => Ok((record, Some(error))),
                Err(_) => Err(error),
            },
        }
    }
}

impl InodeRecord {
    /// Returns a record in place of a directory that cannot be read.
    #[must_use]
    pub fn lost_directory(filesystem: &Filesystem) -> Self {
        let item = replacement(FileKind::Directory, ByteCount::ZERO);
        let location = Location::root_of(SubvolumeId::TOP_LEVEL);
        Self::of_placeholder(Metadata::from_item(location, &item, filesystem.sector_bytes()))
    }

    /// Returns a record of the items that can be read. `kind` is the kind in the directory entry.
    ///
    /// # Errors
    /// Fails if no item of a file can be read, or if the subvolume cannot be found.
    pub(crate) fn salvage(filesystem: &Filesystem, location: Location, kind: FileKind) -> Result<Self> {
        let tree = filesystem.subvolume_tree(location.subvolume)?;
        let object = location.inode.object_id();
        let key = |item_type, offset| Key::new(object, item_type, offset);
        let mut inode = None;
        let mut record = Self {
            // The metadata is replaced when the inode item and the size are known.
            metadata: Metadata::from_item(
                location,
                &replacement(kind, ByteCount::ZERO),
                filesystem.sector_bytes(),
            ),
            links: Vec::new(),
            link_count: 0,
            xattrs: Vec::new(),
            extents: None,
        };
        let (mut found, mut attribute_bytes) = (false, 0_usize);
        let heads = key(ItemType::INODE_ITEM, 0)..=key(ItemType::XATTR_ITEM, u64::MAX);
        for item in tree.range(heads, ReadAhead::None).flatten() {
            found = true;
            let (at, data) = (item.key(), item.data());
            if at.item_type == ItemType::INODE_ITEM {
                inode = InodeItem::parse(&at, data).ok();
            } else if at.item_type == ItemType::XATTR_ITEM {
                attribute_bytes = attribute_bytes.exact_add(data.len());
                if attribute_bytes <= ATTRIBUTES_LIMIT {
                    // An invalid attribute is left out.
                    let _ = append_xattrs(location.subvolume.tree(), &at, data, &mut record.xattrs);
                }
            } else {
                // An item with an invalid name is left out.
                let _ = record.take_names(&at, data);
            }
        }
        let mut size = ByteCount::ZERO;
        if inode.is_none() && matches!(kind, FileKind::Regular | FileKind::Symlink) {
            let mut builder = FileRangeBuilder::new(location, filesystem.sector_bytes());
            let extents = key(ItemType::EXTENT_DATA, 0)..=key(ItemType::EXTENT_DATA, u64::MAX);
            for item in tree.range(extents, ReadAhead::None).flatten() {
                found = true;
                if let Ok(range) = builder.range(&item.key(), item.data()) {
                    let length = match &range.kind {
                        crate::extents::RangeKind::Inline(inline) => inline.ram_bytes,
                        _ => range.length,
                    };
                    // Clamp: offsets from disk; a file ends at the last offset at most.
                    let end = range.offset.get().saturating_add(length.get());
                    size = size.max(ByteCount::new(end));
                }
            }
        }
        if !found && kind != FileKind::Directory {
            return Err(Error::InodeNotFound { location });
        }
        let inode = inode.unwrap_or_else(|| replacement(kind, size));
        record.metadata = Metadata::from_item(location, &inode, filesystem.sector_bytes());
        Ok(record)
    }
}

/// Returns an inode item in place of a lost one.
fn replacement(kind: FileKind, size: ByteCount) -> InodeItem {
    let mode = match kind {
        FileKind::Directory => 0o040_700,
        FileKind::Symlink => 0o120_777,
        _ => 0o100_600,
    };
    InodeItem {
        mode,
        nlink: 1,
        size,
        ..InodeItem::empty(Timestamp::default())
    }
}
