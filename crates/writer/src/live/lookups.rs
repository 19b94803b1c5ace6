//! Lookups of current names, inodes, links and attributes, without the edit lock.
//!
//! A view preserves the whole state, so later edits must copy the blocks that they change. Callers
//! that alternate reads and changes, or that need the newest state, should use the live lookups.
//! Each call of this module reads a leaf or two, and preserves no state.

use crate::WritableFilesystem;
use crate::areas::LiveReads;
use crate::operations::entries::place_in;
use buttress_engine::entry::{Target, entry_in};
use buttress_engine::file_content::FileContent;
use buttress_engine::inodes::{InodeState, id_of};
use buttress_engine::trees::LiveTree;
use buttress_format::{
    ByteCount, Compression, DirItem, DirItems, FileExtent, FileExtentBody, FileKind, FileOffset, InodeItem,
    ItemType, Key, RootRef, TreeId,
};
use buttress_fs::directory::{DirEntry, is_valid_name};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::inode::Metadata;
use buttress_fs::location::Location;
use buttress_fs::lookup::{Follow, Names, PATH_LIMIT, resolve};
use buttress_fs::xattrs::{ATTRIBUTES_LIMIT, Xattr, append_xattrs, too_big};
use core::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

impl LiveReads<'_> {
    /// Returns an open tree. If the tree is not open, opening it acquires the edit lock.
    pub(crate) fn tree(&self, id: TreeId) -> Result<LiveTree> {
        if let Some(tree) = self.filesystem.live_trees().get(id) {
            return Ok(tree);
        }
        self.filesystem
            .read_under_lock(|operation| Ok(operation.lookups().open_tree(id)?.tree.clone()))
    }

    /// Returns the newest item of an inode with pending times, and its dirty data.
    pub(crate) fn inode(&self, location: Location) -> Result<(InodeItem, Option<Arc<FileContent>>)> {
        if location.placeholder().is_some() {
            return Err(Error::InodeNotFound { location });
        }
        let id = id_of(location);
        let known = |state: &InodeState| state.newest().map(|item| (item, state.content.clone()));
        let found = self
            .filesystem
            .steps()
            .read_once(|| self.filesystem.live_inodes().with(id, known));
        if let Some(found) = found.flatten() {
            return Ok(found);
        }
        let tree = self.tree(id.0)?;
        let inode = self.filesystem.live_inodes().entry(id);
        let key = InodeItem::key(location.inode);
        let found = self.read_whole(|| {
            tree.require_subvolume(location.subvolume)?;
            let mut state = inode.write();
            if state.item.is_none() {
                let mut item = None;
                tree.with_item(&key, |data| item = Some(InodeItem::parse(&key, data)))?;
                let broken = |error| Corruption::Item { tree: id.0, error };
                state.item = item.transpose().map_err(broken)?;
            }
            Ok(known(&state))
        });
        drop(inode);
        match found {
            Ok(Some(found)) => Ok(found),
            other => {
                self.filesystem.live_inodes().forget_unknown(id);
                other.and(Err(Error::InodeNotFound { location }))
            }
        }
    }

    /// Returns the entry `name` of a directory, or `None`, as
    /// [`Filesystem::lookup`](buttress_fs::Filesystem::lookup) does.
    ///
    /// # Errors
    /// Fails with [`Error::NotADirectory`], [`Error::InodeNotFound`], or with an error of the tree.
    pub fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        if directory.placeholder().is_some() || !is_valid_name(name) {
            return Ok(None);
        }
        self.require_directory(directory)?;
        let names = self.filesystem.live_inodes().names();
        if let Some((inode, kind)) = names.find(directory, name) {
            return Ok(Some(DirEntry {
                name: name.to_vec(),
                kind,
                index: 0,
                target: Location::new(directory.subvolume, inode),
            }));
        }
        let tree = self.tree(directory.subvolume.tree())?;
        let root_tree = self.tree(TreeId::ROOT)?;
        let key = DirItem::key(directory.inode, name);
        self.read_whole(|| {
            tree.require_subvolume(directory.subvolume)?;
            let mut found = tree.waiting_name(directory, &key, name).transpose();
            if found.is_none() {
                tree.with_item(&key, |data| {
                    found = entry_in(directory, &key, data, name).transpose();
                })?;
            }
            let Some(entry) = found.transpose()? else {
                return Ok(None);
            };
            if let Target::Inode(inode) = entry.target {
                names.learn(directory, name, (inode, entry.kind));
            }
            Ok(Some(DirEntry {
                name: name.to_vec(),
                kind: entry.kind,
                index: 0,
                target: live_target(&root_tree, directory, name, entry.target)?,
            }))
        })
    }

    /// Returns at most `count` entries of a directory from `index` on, in the order in which they
    /// were made, without `.` and `..`, as `getdents64(2)` lists them. The next call continues
    /// after the last [`DirEntry::index`].
    ///
    /// # Errors
    /// Fails with [`Error::NotADirectory`], [`Error::InodeNotFound`], or with an error of the tree.
    pub fn list(&self, directory: Location, index: u64, count: usize) -> Result<Vec<DirEntry>> {
        if directory.placeholder().is_some() {
            return Ok(Vec::new());
        }
        self.require_directory(directory)?;
        let tree = self.tree(directory.subvolume.tree())?;
        let root_tree = self.tree(TreeId::ROOT)?;
        let first = DirItem::index_key(directory.inode, index);
        self.read_whole(|| {
            tree.require_subvolume(directory.subvolume)?;
            let mut found = Vec::new();
            let mut broken = Ok(());
            tree.scan(&first, |key, data| {
                let is_entry = key.objectid == first.objectid && key.item_type == first.item_type;
                if !is_entry || found.len() >= count {
                    return ControlFlow::Break(());
                }
                match listed(directory, key, data) {
                    Ok(entries) => found.extend(entries),
                    Err(error) => broken = Err(error),
                }
                match broken {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })?;
            broken?;
            let resolve = |listed: Listed| {
                Ok(DirEntry {
                    target: live_target(&root_tree, directory, &listed.name, listed.target)?,
                    name: listed.name,
                    kind: listed.kind,
                    index: listed.index,
                })
            };
            found.into_iter().map(resolve).collect()
        })
    }

    /// Returns at most `count` hashes of names in a directory from `first` on, in ascending order.
    /// Names with equal hashes have one entry. [Deferred
    /// names](crate::areas::Subvolumes::defer_names) are left out.
    ///
    /// # Errors
    /// Fails with [`Error::NotADirectory`], [`Error::InodeNotFound`], or with an error of the tree.
    pub fn name_hashes(&self, directory: Location, first: u64, count: usize) -> Result<Vec<u64>> {
        if directory.placeholder().is_some() {
            return Ok(Vec::new());
        }
        self.require_directory(directory)?;
        let tree = self.tree(directory.subvolume.tree())?;
        let first = Key::new(directory.inode.object_id(), ItemType::DIR_ITEM, first);
        self.read_whole(|| {
            tree.require_subvolume(directory.subvolume)?;
            let mut hashes = Vec::new();
            tree.scan(&first, |key, _| {
                let is_entry = key.objectid == first.objectid && key.item_type == first.item_type;
                if !is_entry || hashes.len() >= count {
                    return ControlFlow::Break(());
                }
                hashes.push(key.offset);
                ControlFlow::Continue(())
            })?;
            Ok(hashes)
        })
    }

    /// Returns a lower bound for the index of the next new name in a directory. All entries with
    /// smaller indexes existed before this call.
    ///
    /// # Errors
    /// Fails with [`Error::NotADirectory`], [`Error::InodeNotFound`], or with an error of the tree.
    pub fn next_index(&self, directory: Location) -> Result<u64> {
        self.require_directory(directory)?;
        let known = self
            .filesystem
            .live_inodes()
            .with(id_of(directory), |state| state.next_index);
        match known.flatten() {
            Some(next) => Ok(next),
            None => self
                .filesystem
                .read_under_lock(|operation| operation.lookups().next_index_in_tree(directory)),
        }
    }

    fn require_directory(&self, directory: Location) -> Result<()> {
        if self.inode(directory)?.0.kind() == FileKind::Directory {
            return Ok(());
        }
        Err(Error::NotADirectory {
            path: PathBuf::from(directory.to_string()),
        })
    }

    /// Returns the inode as `stat(2)` shows it, as
    /// [`Filesystem::metadata`](buttress_fs::Filesystem::metadata) does. The inode's size, times
    /// and allocated bytes include dirty data. Allocated bytes count dirty data as uncompressed.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], [`Error::SubvolumeNotFound`], or with an error of the
    /// tree.
    pub fn metadata(&self, location: Location) -> Result<Metadata> {
        Ok(self.metadata_and_dirty(location)?.0)
    }

    /// Returns the inode as [`LiveReads::metadata`] does, and whether it has dirty data at
    /// the same moment. While the inode has dirty data, its allocated bytes can change without a
    /// call.
    ///
    /// # Errors
    /// Fails as [`LiveReads::metadata`] does.
    pub fn metadata_and_dirty(&self, location: Location) -> Result<(Metadata, bool)> {
        if let Some(directory) = location.placeholder() {
            let directory = self.metadata(directory)?;
            return Ok((Metadata::placeholder(location, &directory), false));
        }
        let sector_bytes = self.filesystem.forest().block_format().sector_bytes;
        let (item, is_dirty) = loop {
            let (item, content) = self.inode(location)?;
            let Some(content) = content else {
                break (item, false);
            };
            let mut shown = item;
            content.waiting.read().show_in(&mut shown, sector_bytes);
            // Another call may have changed the inode item, and the content after it.
            let is_still = |state: &InodeState| {
                state.newest() == Some(item)
                    && state
                        .content
                        .as_ref()
                        .is_some_and(|now| Arc::ptr_eq(now, &content))
            };
            if self.filesystem.live_inodes().with(id_of(location), is_still) != Some(true)
                && !buttress_faults::on("live-stat-of-two-moments")
            {
                continue;
            }
            break (shown, true);
        };
        Ok((Metadata::from_item(location, &item, sector_bytes), is_dirty))
    }

    /// Returns the stored target of a symlink, as
    /// [`Filesystem::read_link`](buttress_fs::Filesystem::read_link) does.
    ///
    /// # Errors
    /// Fails as [`Filesystem::read_link`](buttress_fs::Filesystem::read_link) does.
    pub fn read_link(&self, location: Location) -> Result<Vec<u8>> {
        let (item, _) = self.inode(location)?;
        if item.kind() != FileKind::Symlink {
            return Err(Error::NotASymlink { location });
        }
        let limit = ByteCount::of(PATH_LIMIT);
        if item.size == ByteCount::ZERO || item.size > limit {
            return Err(Corruption::SymlinkLength {
                location,
                length: item.size,
                limit,
            }
            .into());
        }
        let id = location.subvolume.tree();
        let tree = self.tree(id)?;
        let key = FileExtent::key(location.inode, FileOffset::MIN);
        let sector_bytes = self.filesystem.forest().block_format().sector_bytes;
        let stored = self.read_whole(|| {
            tree.require_subvolume(location.subvolume)?;
            let mut stored = None;
            tree.with_item(&key, |data| stored = plain_inline(&key, data, sector_bytes))?;
            Ok(stored)
        })?;
        match stored {
            Some(mut target) if ByteCount::of(target.len()) >= item.size => {
                target.truncate(item.size.to_usize().unwrap_or(0));
                Ok(target)
            }
            // The symlink's target is stored in another form or is damaged. A read of the symlink's
            // content handles both cases.
            _ => self.filesystem.view().read_link(location),
        }
    }

    /// Resolves `path` from the directory `root`, as
    /// [`Filesystem::resolve`](buttress_fs::Filesystem::resolve) does. Each name on the path is
    /// looked up in the state of its own moment.
    ///
    /// # Errors
    /// Fails as [`Filesystem::resolve`](buttress_fs::Filesystem::resolve) does.
    pub fn resolve(&self, root: Location, path: &[u8], follow: Follow) -> Result<Location> {
        resolve(self.filesystem, root, path, follow)
    }

    /// Returns all extended attributes, as [`Filesystem::xattrs`](buttress_fs::Filesystem::xattrs)
    /// does.
    ///
    /// # Errors
    /// Fails as [`Filesystem::xattrs`](buttress_fs::Filesystem::xattrs) does.
    pub fn xattrs(&self, location: Location) -> Result<Vec<Xattr>> {
        if location.placeholder().is_some() {
            return Ok(Vec::new());
        }
        let id = location.subvolume.tree();
        let tree = self.tree(id)?;
        let first = Key::new(location.inode.object_id(), ItemType::XATTR_ITEM, 0);
        self.read_whole(|| {
            tree.require_subvolume(location.subvolume)?;
            let (mut xattrs, mut total_bytes, mut ended) = (Vec::new(), 0_usize, Ok(()));
            tree.scan(&first, |key, data| {
                if key.objectid != first.objectid || key.item_type != first.item_type {
                    return ControlFlow::Break(());
                }
                total_bytes = total_bytes.saturating_add(data.len());
                ended = if total_bytes > ATTRIBUTES_LIMIT {
                    Err(too_big(location))
                } else {
                    append_xattrs(id, key, data, &mut xattrs)
                };
                match ended {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })?;
            ended.map(|()| xattrs)
        })
    }

    /// Returns the value of one extended attribute, or `None`, as
    /// [`Filesystem::xattr`](buttress_fs::Filesystem::xattr) does.
    ///
    /// # Errors
    /// Fails as [`Filesystem::xattr`](buttress_fs::Filesystem::xattr) does.
    pub fn xattr(&self, location: Location, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if location.placeholder().is_some() {
            return Ok(None);
        }
        let id = location.subvolume.tree();
        let tree = self.tree(id)?;
        let key = DirItem::xattr_key(location.inode, name);
        self.read_whole(|| {
            tree.require_subvolume(location.subvolume)?;
            let (mut xattrs, mut parsed) = (Vec::new(), Ok(()));
            tree.with_item(&key, |data| parsed = append_xattrs(id, &key, data, &mut xattrs))?;
            parsed?;
            let found = xattrs.into_iter().find(|xattr| xattr.name == name);
            Ok(found.map(|xattr| xattr.value))
        })
    }
}

impl Names for WritableFilesystem {
    fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        self.live().lookup(directory, name)
    }

    fn read_link(&self, location: Location) -> Result<Vec<u8>> {
        self.live().read_link(location)
    }

    fn kind_of(&self, location: Location) -> Result<FileKind> {
        match location.placeholder() {
            Some(_) => Ok(FileKind::Directory),
            None => Ok(self.live().inode(location)?.0.kind()),
        }
    }
}

/// An entry as a directory lists it.
struct Listed {
    name: Vec<u8>,
    kind: FileKind,
    index: u64,
    target: Target,
}

fn listed(directory: Location, key: &Key, data: &[u8]) -> Result<Vec<Listed>> {
    let tree = directory.subvolume.tree();
    let entries = DirItems::parse(key, data).map_err(|error| Corruption::Item { tree, error })?;
    let list = |item: DirItem<'_>| {
        Ok(Listed {
            name: item.name.to_vec(),
            kind: item.kind,
            index: key.offset,
            target: Target::of(directory, &item)?,
        })
    };
    entries.map(list).collect()
}

/// Returns the location to which an entry leads. If the subvolume's own record names another entry,
/// the location is the placeholder's.
fn live_target(root_tree: &LiveTree, directory: Location, name: &[u8], target: Target) -> Result<Location> {
    let Target::Subvolume(child) = target else {
        return Ok(target.location(directory));
    };
    let [key, _] = RootRef::keys(directory.subvolume, child);
    let mut place = None;
    root_tree.with_item(&key, |data| place = Some(place_in(directory, &key, data, name)))?;
    Ok(match place.transpose()?.flatten() {
        Some(_) => target.location(directory),
        None => Location::placeholder_in(directory),
    })
}

/// Returns the content of an inline extent that is neither compressed nor otherwise encoded.
fn plain_inline(key: &Key, data: &[u8], sector_bytes: u32) -> Option<Vec<u8>> {
    let extent = FileExtent::parse(key, data, sector_bytes).ok()?;
    match extent.body {
        FileExtentBody::Inline(content) if extent.compression == Compression::None => Some(content.to_vec()),
        _ => None,
    }
}
