//! Names: lookup, creation, links, renames, removal, listing.

use super::placeholders::refuse_placeholder;
use super::{Access, MountedVolume};
use crate::vfs::{
    Caller, Entry, Errno, HandleId, Listed, NewKind, NewNode, NodeId, OpenMode, Opened, RenameHow, Result,
    Shown,
};
use buttress::unstable::fs::ReadDir;
use buttress::unstable::writer::operations;
use buttress::unstable::writer::operations::OpenInode;
use buttress::{DirEntry, FileKind, Location, NewInode, RenameMode};
use core::sync::atomic::Ordering;

const NAME_BYTES_MAX: usize = 255;

/// Positions in a listing: `.`, `..`, then the indexes of entries, which begin after these two.
const DOT: u64 = 0;
const DOT_DOT: u64 = 1;
const FIRST_INDEX: u64 = 2;

/// Converts the properties of a new node to those of a new inode for the writer.
fn inode_of(new: &NewNode) -> NewInode {
    NewInode {
        mode: new.mode & 0o7777,
        umask: new.umask & 0o777,
        uid: new.uid,
        gid: new.gid,
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    Ok(())
}

/// Builds an entry for a node; the caller has counted its reference.
fn entry(node: NodeId, shown: Shown) -> Entry {
    let Shown { metadata, lasts_s } = shown;
    Entry {
        node,
        generation: metadata.generation.get(),
        metadata,
        lasts_s,
    }
}

/// Refuses a placeholder, which cannot have entries.
fn require_names(directory: Location) -> Result<()> {
    match directory.placeholder() {
        Some(_) => Err(Errno::NOENT),
        None => Ok(()),
    }
}

/// Converts a file kind to the type bits of a mode.
fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Unknown | FileKind::Xattr => 0,
    }
}

impl MountedVolume {
    /// Looks up a name in a directory.
    fn find(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        match &self.access {
            Access::Reading(filesystem) => filesystem.lookup(directory, name),
            Access::Writing(writer) => writer.live().lookup(directory, name),
        }
        .map_err(|error| self.failed(&error))
    }

    fn require(&self, directory: Location, name: &[u8]) -> Result<DirEntry> {
        self.find(directory, name)?.ok_or(Errno::NOENT)
    }

    /// Returns the entry of a node, and counts a reference to it.
    pub(super) fn entry(&self, location: Location, parent: Option<NodeId>) -> Result<Entry> {
        self.entry_of(self.numbers.of(location)?, location, parent)
    }

    /// Returns the entry of a node with a known number, and counts a reference to it.
    pub(super) fn entry_of(&self, node: NodeId, location: Location, parent: Option<NodeId>) -> Result<Entry> {
        Ok(self.refer(node, self.shown(location)?, parent))
    }

    fn refer(&self, node: NodeId, shown: Shown, parent: Option<NodeId>) -> Entry {
        self.nodes
            .refer(node, parent.filter(|_| shown.metadata.is_directory()));
        entry(node, shown)
    }

    pub(super) fn lookup_at(&self, directory: NodeId, name: &[u8]) -> Result<Entry> {
        check_name(name)?;
        let found = self.require(self.location(directory)?, name)?;
        let node = self.numbers.of_name(found.target, name)?;
        self.entry_of(node, found.target, Some(directory))
    }

    pub(super) fn parent_of(&self, directory: NodeId) -> Result<Entry> {
        let location = self.location(directory)?;
        if location == self.root {
            return self.entry(location, None);
        }
        if let Some(parent) = self.nodes.parent(directory) {
            return self.entry(self.location(parent)?, None);
        }
        // No caller has looked up the node since the mount: its file handle is from an earlier
        // mount.
        let view = self.access.view();
        let parent = if location.is_subvolume_root() {
            let place = view
                .subvolume_place(location.subvolume)
                .map_err(|_| Errno::STALE)?;
            place.map(|place| Location::new(place.parent, place.directory))
        } else {
            let record = view.inode_record(location).map_err(|_| Errno::STALE)?;
            let link = record.links.first();
            link.map(|link| Location::new(location.subvolume, link.directory))
        };
        self.entry(parent.ok_or(Errno::STALE)?, None)
    }

    /// Creates a file, directory or other node. The answer has the initial inode, because another
    /// thread can remove its name at once.
    pub(super) fn make_at(
        &self,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        kind: NewKind<'_>,
    ) -> Result<Entry> {
        check_name(name)?;
        let (directory, writer, inode) = (self.location(parent)?, self.writer()?, inode_of(new));
        let refused = match kind {
            NewKind::File => Errno::ACCES,
            _ => Errno::PERM,
        };
        refuse_placeholder(directory, refused)?;
        let kind = match kind {
            NewKind::File => operations::NewKind::File,
            NewKind::Directory => operations::NewKind::Directory,
            NewKind::Symlink(target) => operations::NewKind::Symlink(target),
            NewKind::Node(kind) => operations::NewKind::Node(kind),
        };
        let above = Some(parent).filter(|_| kind == operations::NewKind::Directory);
        // A new inode has no attribute that is a capability.
        let capabilities = self.capabilities.load(Ordering::SeqCst);
        // The edit that creates the name itself counts the kernel's reference, so that a concurrent
        // unlink sees it.
        let refer = |location| {
            if let Ok(node) = self.numbers.of(location) {
                self.nodes.refer_to_new(node, above, capabilities);
            }
        };
        let made = writer.make(directory, name, &inode, kind, &refer);
        let made = made.map_err(|error| self.failed(&error))?;
        let node = self.numbers.of(made.location)?;
        // A new inode has no dirty data.
        Ok(entry(node, self.shown_as_mounted(made, false)))
    }

    /// Creates a file and opens it. A new file has no capability.
    pub(super) fn create_at(
        &self,
        directory: NodeId,
        name: &[u8],
        new: &NewNode,
        mode: OpenMode,
    ) -> Result<(Entry, HandleId)> {
        let capabilities = self.capabilities.load(Ordering::SeqCst);
        let mut entry = self.make_at(directory, name, new, NewKind::File)?;
        let handle = self.handles.add_file(entry.metadata.location, mode, capabilities);
        self.show_kept_back(&mut entry.metadata);
        Ok((entry, handle))
    }

    pub(super) fn create_unnamed_at(
        &self,
        directory: NodeId,
        new: &NewNode,
        mode: OpenMode,
    ) -> Result<(Entry, HandleId)> {
        let (directory, writer) = (self.location(directory)?, self.writer()?);
        refuse_placeholder(directory, Errno::OPNOTSUPP)?;
        let capabilities = self.capabilities.load(Ordering::SeqCst);
        let made = writer.create_unnamed(directory, &inode_of(new));
        let (hold, made) = made.map_err(|error| self.failed(&error))?;
        let node = self.numbers.of(made.location)?;
        let mut entry = self.refer(node, self.shown_as_mounted(made, false), None);
        self.nodes.keep(entry.node, hold);
        let handle = self.handles.add_file(entry.metadata.location, mode, capabilities);
        self.show_kept_back(&mut entry.metadata);
        Ok((entry, handle))
    }

    pub(super) fn link_at(&self, node: NodeId, directory: NodeId, name: &[u8]) -> Result<Entry> {
        check_name(name)?;
        let (location, into) = (self.location(node)?, self.location(directory)?);
        refuse_placeholder(into, Errno::PERM)?;
        let linked = self.writer()?.link_and_stat(location, into, name);
        let (metadata, is_dirty) = linked.map_err(|error| self.failed(&error))?;
        Ok(self.refer(node, self.shown_as_mounted(metadata, is_dirty), Some(directory)))
    }

    /// Returns whether the kernel refers to an inode, which then stays usable without a name.
    fn is_referred_to(&self, location: Location) -> bool {
        let node = self.numbers.of(location);
        location.placeholder().is_none() && node.is_ok_and(|node| self.nodes.is_referred_to(node))
    }

    /// Keeps an inode open after it lost its last name.
    fn keep(&self, held: Option<OpenInode>) {
        if let Some(hold) = held
            && let Ok(node) = self.numbers.of(hold.location())
        {
            self.nodes.keep(node, hold);
        }
    }

    pub(super) fn unlink_at(&self, directory: NodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let (directory, writer) = (self.location(directory)?, self.writer()?);
        require_names(directory)?;
        let unlinked = writer.unlink_keeping(directory, name, &|inode| self.is_referred_to(inode));
        self.keep(unlinked.map_err(|error| self.failed(&error))?);
        Ok(())
    }

    pub(super) fn remove_directory_at(&self, directory: NodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let (directory, writer) = (self.location(directory)?, self.writer()?);
        let target = self.require(directory, name)?.target;
        if target.is_subvolume_root() && target.subvolume != directory.subvolume {
            // The kernel's lock keeps other callers from creating names in the directory.
            let first = writer
                .live()
                .list(target, 0, 1)
                .map_err(|error| self.failed(&error))?;
            if !first.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            let deleted = writer.subvolumes().delete(target.subvolume);
            deleted.map_err(|error| self.failed(&error))?;
            self.has_deleted();
            return Ok(());
        }
        let keeps = |inode| self.is_referred_to(inode);
        let removed = writer.remove_directory_keeping(directory, name, &keeps);
        self.keep(removed.map_err(|error| self.failed(&error))?);
        Ok(())
    }

    pub(super) fn rename_at(
        &self,
        (old_node, old_name): (NodeId, &[u8]),
        (new_node, new_name): (NodeId, &[u8]),
        how: RenameHow,
        caller: Caller,
    ) -> Result<()> {
        check_name(old_name)?;
        check_name(new_name)?;
        let writer = self.writer()?;
        let (old_directory, new_directory) = (self.location(old_node)?, self.location(new_node)?);
        let whiteout = NewInode {
            mode: 0,
            umask: 0,
            uid: caller.uid,
            gid: caller.gid,
        };
        let mode = match how {
            RenameHow::Replace => RenameMode::Replace,
            RenameHow::NoReplace => RenameMode::NoReplace,
            RenameHow::Exchange => RenameMode::Exchange,
            RenameHow::Whiteout => RenameMode::Whiteout(whiteout),
            RenameHow::WhiteoutNoReplace => RenameMode::WhiteoutNoReplace(whiteout),
        };
        require_names(old_directory)?;
        let keeps = |inode| self.is_referred_to(inode);
        let renamed = writer.rename_keeping(old_directory, old_name, new_directory, new_name, mode, &keeps);
        let renamed = renamed.map_err(|error| self.failed(&error))?;
        self.keep(renamed.kept);
        // A placeholder never moves.
        if let Ok(node) = self.numbers.of(renamed.moved) {
            self.nodes.moved(node, new_node);
        }
        if how == RenameHow::Exchange
            && let Some(Ok(node)) = renamed.present.map(|present| self.numbers.of(present))
        {
            self.nodes.moved(node, old_node);
        }
        Ok(())
    }

    /// Returns the index that the next new name in a directory gets.
    fn end_of(&self, location: Location) -> Result<u64> {
        match &self.access {
            Access::Writing(writer) if location.placeholder().is_none() => {
                let end = writer.live().next_index(location);
                end.map_err(|error| self.failed(&error))
            }
            _ => Ok(u64::MAX),
        }
    }

    /// Lists a directory that was not opened. A listing ends before names created after its start.
    /// Otherwise a process that renames the listed files would never reach the end. All listings of
    /// one directory share the end up to which they list.
    pub(super) fn list_at(&self, directory: Opened, position: u64, count: usize) -> Result<Vec<Listed>> {
        let Opened::Node(node) = directory else {
            return Err(Errno::BADF);
        };
        let location = self.location(node)?;
        self.note_access(location);
        let mut listed = Vec::new();
        if position == DOT {
            listed.push(self.dot(b".", node, DOT_DOT));
        }
        if position <= DOT_DOT {
            let above = if location == self.root {
                node
            } else {
                self.nodes.parent(node).unwrap_or(node)
            };
            listed.push(self.dot(b"..", above, FIRST_INDEX));
        }
        let end = match self.nodes.listed_to(node).filter(|_| position != DOT) {
            Some(end) => end,
            None => {
                let end = self.end_of(location)?;
                self.nodes.lists_to(node, end);
                end
            }
        };
        let from = position.max(FIRST_INDEX);
        for entry in self.entries(location, from, count)? {
            if entry.index >= end {
                break;
            }
            listed.push(Listed {
                node: self.numbers.of_name(entry.target, &entry.name)?,
                type_bits: type_bits(entry.kind),
                next: entry.index.saturating_add(1),
                name: entry.name,
                is_dot: false,
            });
        }
        Ok(listed)
    }

    #[allow(clippy::unused_self, reason = "one of the ways to an entry of a listing")]
    fn dot(&self, name: &[u8], node: NodeId, next: u64) -> Listed {
        Listed {
            name: name.to_vec(),
            node,
            type_bits: libc::S_IFDIR,
            next,
            is_dot: true,
        }
    }

    fn entries(&self, directory: Location, from: u64, count: usize) -> Result<Vec<DirEntry>> {
        if directory.placeholder().is_some() {
            return Ok(Vec::new());
        }
        match &self.access {
            Access::Writing(writer) => writer.live().list(directory, from, count),
            Access::Reading(filesystem) => filesystem.subvolume_tree(directory.subvolume).and_then(|tree| {
                let metadata = filesystem.metadata_in(&tree, directory)?;
                let listing = ReadDir::new(filesystem, tree, directory, metadata.size, from);
                listing.take(count).collect()
            }),
        }
        .map_err(|error| self.failed(&error))
    }
}
