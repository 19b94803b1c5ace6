//! Names: looking up, making, linking, renaming, removing, listing.

use super::handles::OpenDirectory;
use super::placeholders::refuse_placeholder;
use super::{Access, MountedVolume};
use crate::vfs::{
    Caller, Entry, Errno, HandleId, Listed, NewKind, NewNode, NodeId, OpenMode, RenameHow, Result,
};
use buttress::unstable::fs::directory::ReadDir;
use buttress::unstable::writer::operations::OpenInode;
use buttress::{DirEntry, FileKind, Location, Metadata, NewInode, RenameMode};
use parking_lot::Mutex;

const NAME_BYTES_MAX: usize = 255;

/// Positions of a listing: `.`, `..`, then the indexes of entries, which begin behind these.
const DOT: u64 = 0;
const DOT_DOT: u64 = 1;
const FIRST_INDEX: u64 = 2;

/// What makes a new inode, for the writer.
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

/// The type bits of a mode for a kind of file.
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
    /// Where a name leads, if it is there.
    fn find(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        match &self.access {
            Access::Reading(filesystem) => filesystem.lookup(directory, name),
            Access::Writing(writer) => writer.lookup(directory, name),
        }
        .map_err(|error| self.failed(&error))
    }

    fn require(&self, directory: Location, name: &[u8]) -> Result<DirEntry> {
        self.find(directory, name)?.ok_or(Errno::NOENT)
    }

    /// A node, with one more reference to it.
    pub(super) fn entry(&self, location: Location, parent: Option<NodeId>) -> Result<Entry> {
        self.entry_of(self.numbers.of(location)?, location, parent)
    }

    /// [`Self::entry`] of a node whose number is known.
    pub(super) fn entry_of(&self, node: NodeId, location: Location, parent: Option<NodeId>) -> Result<Entry> {
        let metadata = self.metadata(location)?;
        Ok(self.refer(node, metadata, parent))
    }

    fn refer(&self, node: NodeId, metadata: Metadata, parent: Option<NodeId>) -> Entry {
        self.nodes.refer(node, parent.filter(|_| metadata.is_directory()));
        Entry {
            node,
            generation: metadata.generation.get(),
            metadata,
        }
    }

    pub(super) fn look_up(&self, directory: NodeId, name: &[u8]) -> Result<Entry> {
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
        // It was not looked up since the mount: a handle that outlived it.
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

    pub(super) fn make_named(
        &self,
        directory: NodeId,
        name: &[u8],
        new: &NewNode,
        kind: NewKind<'_>,
    ) -> Result<Location> {
        check_name(name)?;
        let (directory, writer, inode) = (self.location(directory)?, self.writer()?, inode_of(new));
        let refused = match kind {
            NewKind::File => Errno::ACCES,
            _ => Errno::PERM,
        };
        refuse_placeholder(directory, refused)?;
        match kind {
            NewKind::File => writer.create(directory, name, &inode),
            NewKind::Directory => writer.make_directory(directory, name, &inode),
            NewKind::Symlink(target) => writer.make_symlink(directory, name, &inode, target),
            NewKind::Node(kind) => writer.make_node(directory, name, &inode, kind),
        }
        .map_err(|error| self.failed(&error))
    }

    pub(super) fn make_without_name(
        &self,
        directory: NodeId,
        new: &NewNode,
        mode: OpenMode,
    ) -> Result<(Entry, HandleId)> {
        let (directory, writer) = (self.location(directory)?, self.writer()?);
        refuse_placeholder(directory, Errno::OPNOTSUPP)?;
        let made = writer.make_unnamed(directory, &inode_of(new));
        let hold = made.map_err(|error| self.failed(&error))?;
        let location = hold.location();
        let mut entry = self.entry(location, None)?;
        self.nodes.keep(entry.node, hold);
        let handle = self.handles.add_file(location, mode);
        self.show_kept_back(&mut entry.metadata);
        Ok((entry, handle))
    }

    pub(super) fn add_name(&self, node: NodeId, directory: NodeId, name: &[u8]) -> Result<Entry> {
        check_name(name)?;
        let (location, into) = (self.location(node)?, self.location(directory)?);
        refuse_placeholder(into, Errno::PERM)?;
        let linked = self.writer()?.link(location, into, name);
        linked.map_err(|error| self.failed(&error))?;
        self.entry(location, Some(directory))
    }

    /// Holds what a name leads to while the name goes, if somebody refers to it.
    fn hold(&self, location: Location) -> Option<(NodeId, OpenInode)> {
        let node = self.numbers.of(location).ok()?;
        if location.placeholder().is_some() || !self.nodes.is_referred_to(node) {
            return None;
        }
        Some((node, self.writer().ok()?.open_inode(location).ok()?))
    }

    /// A name went: keeps what was held, if that was the last one.
    fn keep(&self, held: Option<(NodeId, OpenInode)>) {
        let Some((node, hold)) = held else { return };
        let is_nameless = self
            .metadata(hold.location())
            .is_ok_and(|metadata| metadata.nlink == 0);
        if is_nameless {
            self.nodes.keep(node, hold);
        }
    }

    pub(super) fn take_name(&self, directory: NodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let (directory, writer) = (self.location(directory)?, self.writer()?);
        let target = self.require(directory, name)?.target;
        let held = self.hold(target);
        let taken = writer.unlink(directory, name);
        if taken.is_ok() {
            self.keep(held);
        }
        taken.map_err(|error| self.failed(&error))
    }

    pub(super) fn take_directory(&self, directory: NodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let (directory, writer) = (self.location(directory)?, self.writer()?);
        let target = self.require(directory, name)?.target;
        if target.is_subvolume_root() && target.subvolume != directory.subvolume {
            // The kernel keeps others from making names in it meanwhile.
            let first = writer.list(target, 0, 1).map_err(|error| self.failed(&error))?;
            if !first.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            let deleted = writer.delete_subvolume(target.subvolume);
            deleted.map_err(|error| self.failed(&error))?;
            self.has_deleted();
            return Ok(());
        }
        let held = self.hold(target);
        let removed = writer.remove_directory(directory, name);
        if removed.is_ok() {
            self.keep(held);
        }
        removed.map_err(|error| self.failed(&error))
    }

    pub(super) fn give_name(
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
        let mode = match how {
            RenameHow::Replace => RenameMode::Replace,
            RenameHow::NoReplace => RenameMode::NoReplace,
            RenameHow::Exchange => RenameMode::Exchange,
            RenameHow::Whiteout => RenameMode::Whiteout(NewInode {
                mode: 0,
                umask: 0,
                uid: caller.uid,
                gid: caller.gid,
            }),
        };
        let moved = self.require(old_directory, old_name)?.target;
        let replaced = self.find(new_directory, new_name)?.map(|entry| entry.target);
        let held = replaced
            .filter(|_| how != RenameHow::Exchange)
            .and_then(|replaced| self.hold(replaced));
        let renamed = writer.rename(old_directory, old_name, new_directory, new_name, mode);
        renamed.map_err(|error| self.failed(&error))?;
        self.keep(held);
        // A placeholder never moves.
        if let Ok(node) = self.numbers.of(moved) {
            self.nodes.moved(node, new_node);
        }
        if how == RenameHow::Exchange
            && let Some(Ok(node)) = replaced.map(|replaced| self.numbers.of(replaced))
        {
            self.nodes.moved(node, old_node);
        }
        Ok(())
    }

    pub(super) fn open_listing(&self, node: NodeId) -> Result<HandleId> {
        let location = self.location(node)?;
        if !self.metadata(location)?.is_directory() {
            return Err(Errno::NOTDIR);
        }
        Ok(self.handles.add_directory(OpenDirectory {
            node,
            location,
            end: Mutex::new(self.end_of(location)?),
        }))
    }

    /// The index that the next new name in a directory gets.
    fn end_of(&self, location: Location) -> Result<u64> {
        match &self.access {
            Access::Writing(writer) if location.placeholder().is_none() => {
                let end = writer.next_index(location);
                end.map_err(|error| self.failed(&error))
            }
            _ => Ok(u64::MAX),
        }
    }

    pub(super) fn list_from(&self, handle: HandleId, position: u64, count: usize) -> Result<Vec<Listed>> {
        let directory = self.handles.directory(handle)?;
        let location = directory.location;
        self.note_access(location);
        let mut listed = Vec::new();
        if position == DOT {
            // From the beginning: what came meanwhile belongs to it.
            let end = self.end_of(location)?;
            *directory.end.lock() = end;
            listed.push(self.dot(b".", directory.node, DOT_DOT));
        }
        if position <= DOT_DOT {
            let node = directory.node;
            let above = if location == self.root {
                node
            } else {
                self.nodes.parent(node).unwrap_or(node)
            };
            listed.push(self.dot(b"..", above, FIRST_INDEX));
        }
        let end = *directory.end.lock();
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
            Access::Writing(writer) => writer.list(directory, from, count),
            Access::Reading(filesystem) => filesystem.subvolume_tree(directory.subvolume).and_then(|tree| {
                let metadata = filesystem.metadata_in(&tree, directory)?;
                let listing = ReadDir::new(filesystem, tree, directory, metadata.size, from);
                listing.take(count).collect()
            }),
        }
        .map_err(|error| self.failed(&error))
    }
}
