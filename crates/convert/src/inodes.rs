//! The items of the old file system's inodes, except their extents.
//!
//! An inode keeps its number, moved by [`INODE_OFFSET`]: the root directory becomes inode 256.
//! Small files and link targets are inline.

use crate::GENERATION;
use crate::INODE_OFFSET;
use crate::error::{Error, Result};

use crate::options::Without;
use crate::records::Items;
use buttress_exact::{Exact as _, u64_of};
use buttress_extfs::{
    Ext, ExtInode, ExtTime, FileKind as ExtKind, InodeFlags as ExtFlags, InodeNumber as ExtNumber,
};
use buttress_format::limits::{inline_content_bytes_max, item_bytes_max};
use buttress_format::{
    ByteCount, Compression, DirItem, FileExtent, FileExtentBody, FileKind, FileOffset, InodeFlags, InodeItem,
    InodeNumber, InodeRefs, Key, Timestamp, TreeId,
};

/// The largest content that is kept in a tree, if the node size allows it.
const INLINE_BYTES_MAX: u64 = 2048;

/// The index of the first name in a directory.
const FIRST_INDEX: u64 = 2;

/// The name of the subvolume with the saved image.
pub(crate) const SAVED: &[u8] = b"ext2_saved";

/// Returns the number of an inode in the new volume.
pub(crate) fn new_number(old: ExtNumber) -> InodeNumber {
    InodeNumber::new(u64::from(old.get()).exact_add(INODE_OFFSET))
}

/// The translation of inodes.
pub(crate) struct Translation<'a> {
    pub(crate) old: &'a Ext,
    pub(crate) node_bytes: u32,
    pub(crate) without: Without,
}

impl Translation<'_> {
    /// Adds all items of an inode except its extents. `content_bytes` is the sum of the lengths of
    /// these extents.
    pub(crate) fn inode(&self, items: &mut Items, inode: &ExtInode, content_bytes: u64) -> Result<()> {
        let number = new_number(inode.number);
        let mut item = item(inode);
        item.nbytes = ByteCount::new(content_bytes);
        match inode.kind {
            ExtKind::Directory => self.directory(items, inode, &mut item)?,
            ExtKind::Symlink => inline(
                items,
                TreeId::FS,
                number,
                &self.old.link_target(inode)?,
                &mut item,
            )?,
            ExtKind::Regular => {
                item.size = ByteCount::new(inode.size_bytes);
                item.flags |= content_flags(self.without);
                if self.is_inline(inode) && inode.size_bytes > 0 {
                    let content = self
                        .old
                        .content(inode, u64::from(self.old.superblock().block_bytes))?;
                    inline(items, TreeId::FS, number, &content, &mut item)?;
                }
            }
            _ => {}
        }
        if !self.without.attributes {
            self.attributes(items, inode)?;
        }
        items.push(TreeId::FS, &InodeItem::key(number), &item.to_bytes())
    }

    /// Returns true if the content of a file becomes a part of the tree. Content in the old inode
    /// always does, because it has no blocks.
    pub(crate) fn is_inline(&self, inode: &ExtInode) -> bool {
        let most = INLINE_BYTES_MAX.min(u64_of(inline_content_bytes_max(self.node_bytes)));
        inode.is_inline() || inode.size_bytes <= most && !self.without.inline
    }

    fn attributes(&self, items: &mut Items, inode: &ExtInode) -> Result<()> {
        for attribute in self.old.attributes(inode)? {
            let entry = DirItem {
                location: Key::MIN,
                transid: GENERATION,
                kind: FileKind::Xattr,
                name: &attribute.name,
                data: &attribute.value,
            };
            let old = inode.number.get();
            let data = entry.encode().map_err(|problem| Error::of_item(old, problem))?;
            let most = item_bytes_max(self.node_bytes);
            if data.len() > most {
                let name = attribute.name.escape_ascii();
                let found = attribute.value.len();
                let problem =
                    format!("the attribute {name} has {found} bytes, and an item has {most} at most");
                return Err(Error::Object { inode: old, problem });
            }
            items.push(
                TreeId::FS,
                &DirItem::xattr_key(new_number(inode.number), &attribute.name),
                &data,
            )?;
        }
        Ok(())
    }

    fn directory(&self, items: &mut Items, inode: &ExtInode, item: &mut InodeItem) -> Result<()> {
        let directory = new_number(inode.number);
        item.nlink = 1;
        if inode.number == ExtNumber::ROOT {
            let mut data = Vec::new();
            let added = InodeRefs::push(&mut data, 0, b"..");
            added.map_err(|problem| Error::of_item(inode.number.get(), problem))?;
            items.push(TreeId::FS, &InodeRefs::key(directory, directory), &data)?;
        }
        let mut names = Names::new(directory);
        for entry in self.old.entries(inode)? {
            let entry = entry?;
            if inode.number == ExtNumber::ROOT && entry.name == SAVED {
                let name = String::from_utf8_lossy(SAVED).into_owned();
                return Err(Error::NameTaken { name });
            }
            let kind = match entry.kind {
                Some(kind) => kind,
                None => self.kind(inode, entry.inode)?,
            };
            let child = new_number(entry.inode);
            let index = names.push(items, InodeItem::key(child), kind_of(kind), &entry.name)?;
            let mut data = Vec::new();
            let added = InodeRefs::push(&mut data, index, &entry.name);
            added.map_err(|problem| Error::of_item(entry.inode.get(), problem))?;
            items.push(TreeId::FS, &InodeRefs::key(child, directory), &data)?;
        }
        if inode.number == ExtNumber::ROOT {
            let location = Key::new(
                crate::SAVED_TREE.object_id(),
                buttress_format::ItemType::ROOT_ITEM,
                u64::MAX,
            );
            names.push(items, location, FileKind::Directory, SAVED)?;
        }
        item.size = ByteCount::new(names.size_bytes);
        Ok(())
    }

    /// Returns the type of a directory's child, of a volume that does not record types in entries.
    fn kind(&self, directory: &ExtInode, child: ExtNumber) -> Result<ExtKind> {
        let inode = self.old.inode(child)?;
        inode.map(|inode| inode.kind).ok_or_else(|| Error::Object {
            inode: directory.number.get(),
            problem: format!("an entry names inode {child}, which is not in use"),
        })
    }
}

/// The names of a directory.
pub(crate) struct Names {
    directory: InodeNumber,
    next_index: u64,
    size_bytes: u64,
}

impl Names {
    const fn new(directory: InodeNumber) -> Self {
        Self {
            directory,
            next_index: FIRST_INDEX,
            size_bytes: 0,
        }
    }

    /// Adds the two entries of a name, and returns its index.
    fn push(&mut self, items: &mut Items, location: Key, kind: FileKind, name: &[u8]) -> Result<u64> {
        let index = self.next_index;
        self.next_index = index.exact_add(1);
        self.size_bytes = self.size_bytes.exact_add(u64_of(name.len()).exact_mul(2));
        let entry = DirItem {
            location,
            transid: GENERATION,
            kind,
            name,
            data: &[],
        };
        let data = entry.encode().map_err(|problem| Error::of_item(0, problem))?;
        items.push(TreeId::FS, &DirItem::key(self.directory, name), &data)?;
        items.push(TreeId::FS, &DirItem::index_key(self.directory, index), &data)?;
        Ok(index)
    }
}

/// Returns the index of the saved image's subvolume in the root directory, after all other names.
pub(crate) fn index_of_saved(old: &Ext) -> Result<u64> {
    let Some(root) = old.inode(ExtNumber::ROOT)? else {
        let problem = "the root directory is not in use".to_owned();
        return Err(Error::Object { inode: 2, problem });
    };
    let mut index = FIRST_INDEX;
    for entry in old.entries(&root)? {
        entry?;
        index = index.exact_add(1);
    }
    Ok(index)
}

/// Adds inline content at the start of a file or link.
pub(crate) fn inline(
    items: &mut Items,
    tree: TreeId,
    number: InodeNumber,
    content: &[u8],
    item: &mut InodeItem,
) -> Result<()> {
    let length = ByteCount::of(content.len());
    (item.size, item.nbytes) = (length, length);
    let extent = FileExtent {
        generation: GENERATION,
        ram_bytes: length,
        compression: Compression::None,
        other_encoding: 0,
        body: FileExtentBody::Inline(content),
    };
    items.push(tree, &FileExtent::key(number, FileOffset::MIN), &extent.encode())
}

fn item(inode: &ExtInode) -> InodeItem {
    let changed = time(inode.changed);
    InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        nlink: u32::from(inode.links),
        uid: inode.uid,
        gid: inode.gid,
        mode: u32::from(inode.mode),
        rdev: device_number(inode.device),
        flags: flags(inode.flags),
        atime: time(inode.accessed),
        ctime: changed,
        mtime: time(inode.modified),
        otime: inode.created.map_or(changed, time),
        ..InodeItem::empty(changed)
    }
}

const fn time(time: ExtTime) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

/// Returns a device number in the form of inode items. Numbers of ext4 have 12 and 20 bits.
fn device_number((major, minor): (u32, u32)) -> u64 {
    u64::from(major) << 20 | u64::from(minor)
}

/// Returns the flags of a file by the parts that the volume leaves out.
pub(crate) fn content_flags(without: Without) -> InodeFlags {
    match without.checksums {
        true => InodeFlags::NODATASUM,
        false => InodeFlags::empty(),
    }
}

/// Returns the flags that both file systems have.
fn flags(old: ExtFlags) -> InodeFlags {
    let pairs = [
        (ExtFlags::SYNC, InodeFlags::SYNC),
        (ExtFlags::IMMUTABLE, InodeFlags::IMMUTABLE),
        (ExtFlags::APPEND, InodeFlags::APPEND),
        (ExtFlags::NODUMP, InodeFlags::NODUMP),
        (ExtFlags::NOATIME, InodeFlags::NOATIME),
        (ExtFlags::DIRSYNC, InodeFlags::DIRSYNC),
    ];
    let kept = pairs.into_iter().filter(|(old_flag, _)| old.contains(*old_flag));
    kept.fold(InodeFlags::empty(), |flags, (_, flag)| flags | flag)
}

const fn kind_of(kind: ExtKind) -> FileKind {
    match kind {
        ExtKind::Regular => FileKind::Regular,
        ExtKind::Directory => FileKind::Directory,
        ExtKind::Symlink => FileKind::Symlink,
        ExtKind::CharacterDevice => FileKind::CharacterDevice,
        ExtKind::BlockDevice => FileKind::BlockDevice,
        ExtKind::Fifo => FileKind::Fifo,
        ExtKind::Socket => FileKind::Socket,
    }
}
