//! A file system in memory behind the FUSE server of volumes: the cost of a mount without a volume.
//!
//! The server in memory keeps names, attributes and content in simple maps. A file larger than
//! [`KEPT_BYTES_MAX`] has only a length and reads as zeros, so a large file costs only what FUSE
//! costs, and no memory.

use anyhow::Result;
use buttress::{
    AllocateMode, ByteCount, Environment as _, FileKind, Generation, InodeFlags, InodeNumber, Location,
    Metadata, NodeKind, SubvolumeId, SystemEnvironment, Timestamp,
};
use buttress_mount::fuse::{MountOptions, Session};
use buttress_mount::vfs::{
    Answered, Caller, Changes, Control, Copied, Entry, Errno, HandleId, Listed, NewKind, NewNode, NewTime,
    NodeId, OpenMode, Opened, ReadHow, RenameHow, Result as Answer, SeekTo, SetHow, Shown, Statistics, Vfs,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The largest file with content, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 20;

const ROOT: NodeId = NodeId(256);

/// The index of the first entry after `.` and `..` in a listing.
const FIRST_INDEX: u64 = 2;

struct Names {
    parent: NodeId,
    by_name: HashMap<Vec<u8>, (u64, NodeId, u32)>,
    by_index: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

enum Body {
    Content(Vec<u8>),
    Names(Names),
    Target(Vec<u8>),
    Nothing,
}

struct Inode {
    metadata: Metadata,
    body: Body,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Shared = Arc<Mutex<Inode>>;

/// The file system that the server keeps in memory. See the module.
struct Memory {
    inodes: RwLock<HashMap<NodeId, Shared>>,
    last: AtomicU64,
}

/// Mounts the file system on `directory`, and serves it until the unmount.
pub(super) fn serve(directory: &Path) -> Result<()> {
    let memory = Memory {
        inodes: RwLock::default(),
        last: AtomicU64::new(ROOT.0),
    };
    let root = NewNode {
        mode: 0o755,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    memory.add(ROOT, &root, NewKind::Directory, ROOT);
    let options = MountOptions {
        source: "memory".into(),
        ..MountOptions::default()
    };
    Ok(Session::mount(Arc::new(memory), directory, &options, None)?.serve()?)
}

fn locked(inode: &Shared) -> MutexGuard<'_, Inode> {
    inode.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Timestamp {
    SystemEnvironment.now()
}

fn entry_of(node: NodeId, inode: &Inode) -> Entry {
    Entry {
        node,
        generation: 1,
        metadata: inode.metadata.clone(),
        lasts_s: lasts_s(&inode.metadata),
    }
}

/// Returns the lifetime of attributes in seconds, equal to that of a volume's dirty file.
fn lasts_s(metadata: &Metadata) -> u64 {
    match metadata.kind {
        FileKind::Regular => 1,
        _ => 3600,
    }
}

fn shown(metadata: &Metadata) -> Shown {
    Shown {
        metadata: metadata.clone(),
        lasts_s: lasts_s(metadata),
    }
}

fn names(inode: &mut Inode) -> Answer<&mut Names> {
    match &mut inode.body {
        Body::Names(names) => Ok(names),
        _ => Err(Errno::NOTDIR),
    }
}

impl Names {
    fn put(&mut self, name: &[u8], node: NodeId, kind: u32) {
        self.by_name.insert(name.to_vec(), (self.next, node, kind));
        self.by_index.insert(self.next, name.to_vec());
        self.next += 1;
    }

    fn take(&mut self, name: &[u8]) -> Answer<(NodeId, u32)> {
        let (index, node, kind) = self.by_name.remove(name).ok_or(Errno::NOENT)?;
        self.by_index.remove(&index);
        Ok((node, kind))
    }
}

impl Inode {
    fn resize(&mut self, size: u64) {
        if let Body::Content(content) = &mut self.body {
            if size > KEPT_BYTES_MAX as u64 {
                *content = Vec::new();
            } else {
                content.resize(size as usize, 0);
            }
        }
        self.metadata.size = ByteCount::new(size);
        self.metadata.allocated = self.metadata.size;
    }
}

impl Memory {
    fn get(&self, node: NodeId) -> Answer<Shared> {
        let inodes = self.inodes.read().unwrap_or_else(PoisonError::into_inner);
        inodes.get(&node).cloned().ok_or(Errno::STALE)
    }

    fn add(&self, node: NodeId, new: &NewNode, kind: NewKind<'_>, parent: NodeId) -> (Shared, Entry) {
        let (kind, bits, body) = match kind {
            NewKind::File => (FileKind::Regular, 0o100_000, Body::Content(Vec::new())),
            NewKind::Directory => {
                let names = Names {
                    parent,
                    by_name: HashMap::new(),
                    by_index: BTreeMap::new(),
                    next: FIRST_INDEX,
                };
                (FileKind::Directory, 0o040_000, Body::Names(names))
            }
            NewKind::Symlink(target) => (FileKind::Symlink, 0o120_000, Body::Target(target.to_vec())),
            NewKind::Node(NodeKind::Socket) => (FileKind::Socket, 0o140_000, Body::Nothing),
            NewKind::Node(_) => (FileKind::Fifo, 0o010_000, Body::Nothing),
        };
        let inode = InodeNumber::new(node.0);
        let metadata = Metadata {
            location: Location::new(SubvolumeId::TOP_LEVEL, inode),
            kind,
            mode: bits | (new.mode & 0o7777 & !new.umask),
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            device: None,
            size: ByteCount::ZERO,
            allocated: ByteCount::ZERO,
            block_bytes: 4096,
            accessed: now(),
            modified: now(),
            changed: now(),
            created: Some(now()),
            flags: InodeFlags::empty(),
            generation: Generation::new(1),
            transid: Generation::new(1),
            sequence: 0,
        };
        let mut inode = Inode {
            metadata,
            body,
            xattrs: BTreeMap::new(),
        };
        if let Body::Target(target) = &inode.body {
            inode.metadata.size = ByteCount::new(target.len() as u64);
        }
        let entry = entry_of(node, &inode);
        let shared = Arc::new(Mutex::new(inode));
        let mut inodes = self.inodes.write().unwrap_or_else(PoisonError::into_inner);
        inodes.insert(node, Arc::clone(&shared));
        (shared, entry)
    }

    fn drop_node(&self, node: NodeId) {
        let gone = match self.get(node) {
            Ok(inode) => {
                let mut inode = locked(&inode);
                inode.metadata.nlink = inode.metadata.nlink.saturating_sub(1);
                inode.metadata.nlink == 0
            }
            Err(_) => false,
        };
        // No benchmark uses a file after removing it.
        if gone {
            let mut inodes = self.inodes.write().unwrap_or_else(PoisonError::into_inner);
            inodes.remove(&node);
        }
    }

    fn next(&self) -> NodeId {
        NodeId(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A handle has the number of its node.
const fn node_of(file: Opened) -> NodeId {
    match file {
        Opened::Handle(handle) => NodeId(handle.0),
        Opened::Node(node) => node,
    }
}

impl Vfs for Memory {
    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, directory: NodeId, name: &[u8]) -> Answer<Entry> {
        let directory = self.get(directory)?;
        let found = names(&mut locked(&directory))?.by_name.get(name).copied();
        let (_, node, _) = found.ok_or(Errno::NOENT)?;
        self.revive(node, None)
    }

    fn parent(&self, directory: NodeId) -> Answer<Entry> {
        let directory = self.get(directory)?;
        let parent = names(&mut locked(&directory))?.parent;
        self.revive(parent, None)
    }

    fn revive(&self, node: NodeId, _: Option<NodeId>) -> Answer<Entry> {
        Ok(entry_of(node, &locked(&self.get(node)?)))
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn caches(&self, _: NodeId) {}

    fn is_cached(&self, _: NodeId) -> bool {
        false
    }

    fn attributes(&self, node: NodeId) -> Answer<Shown> {
        Ok(shown(&locked(&self.get(node)?).metadata))
    }

    fn change(&self, node: NodeId, changes: &Changes) -> Answer<Shown> {
        let inode = self.get(node)?;
        let mut inode = locked(&inode);
        if let Some(size) = changes.size {
            inode.resize(size);
        }
        let time = |time| match time {
            NewTime::Now => now(),
            NewTime::At(time) => time,
        };
        let metadata = &mut inode.metadata;
        if let Some(mode) = changes.mode {
            metadata.mode = metadata.mode & !0o7777 | mode & 0o7777;
        }
        metadata.uid = changes.uid.unwrap_or(metadata.uid);
        metadata.gid = changes.gid.unwrap_or(metadata.gid);
        metadata.accessed = changes.accessed.map_or(metadata.accessed, time);
        metadata.modified = changes.modified.map_or(metadata.modified, time);
        metadata.changed = now();
        Ok(shown(metadata))
    }

    fn read_link(&self, node: NodeId) -> Answer<Vec<u8>> {
        match &locked(&self.get(node)?).body {
            Body::Target(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn make(&self, directory: NodeId, name: &[u8], new: &NewNode, kind: NewKind<'_>) -> Answer<Entry> {
        let inside = self.get(directory)?;
        let mut inside = locked(&inside);
        let names = names(&mut inside)?;
        if names.by_name.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let (_, entry) = self.add(self.next(), new, kind, directory);
        names.put(name, entry.node, entry.metadata.mode & 0o170_000);
        inside.metadata.modified = now();
        Ok(entry)
    }

    fn create(
        &self,
        directory: NodeId,
        name: &[u8],
        new: &NewNode,
        mode: OpenMode,
    ) -> Answer<(Entry, HandleId)> {
        let entry = self.make(directory, name, new, NewKind::File)?;
        let handle = self.open(entry.node, mode)?;
        Ok((entry, handle))
    }

    fn create_unnamed(&self, _: NodeId, _: &NewNode, _: OpenMode) -> Answer<(Entry, HandleId)> {
        Err(Errno::OPNOTSUPP)
    }

    fn link(&self, node: NodeId, directory: NodeId, name: &[u8]) -> Answer<Entry> {
        let inode = self.get(node)?;
        let kind = {
            let mut inode = locked(&inode);
            inode.metadata.nlink += 1;
            inode.metadata.mode & 0o170_000
        };
        names(&mut locked(&self.get(directory)?))?.put(name, node, kind);
        self.revive(node, None)
    }

    fn unlink(&self, directory: NodeId, name: &[u8]) -> Answer<()> {
        let (node, _) = names(&mut locked(&self.get(directory)?))?.take(name)?;
        self.drop_node(node);
        Ok(())
    }

    fn remove_directory(&self, directory: NodeId, name: &[u8]) -> Answer<()> {
        let node = self.lookup(directory, name)?.node;
        if !names(&mut locked(&self.get(node)?))?.by_name.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.unlink(directory, name)
    }

    fn rename(
        &self,
        (from, old_name): (NodeId, &[u8]),
        (to, new_name): (NodeId, &[u8]),
        how: RenameHow,
        _: Caller,
    ) -> Answer<()> {
        if !matches!(how, RenameHow::Replace | RenameHow::NoReplace) {
            return Err(Errno::INVAL);
        }
        let (node, kind) = names(&mut locked(&self.get(from)?))?.take(old_name)?;
        let replaced = {
            let to = self.get(to)?;
            let mut to = locked(&to);
            let names = names(&mut to)?;
            let replaced = names.take(new_name).ok();
            names.put(new_name, node, kind);
            replaced
        };
        if let Some((replaced, _)) = replaced {
            self.drop_node(replaced);
        }
        Ok(())
    }

    fn open(&self, node: NodeId, mode: OpenMode) -> Answer<HandleId> {
        if mode.truncate {
            locked(&self.get(node)?).resize(0);
        }
        Ok(HandleId(node.0))
    }

    fn read(&self, file: Opened, offset: u64, buffer: &mut [u8], _: ReadHow) -> Answer<usize> {
        let inode = self.get(node_of(file))?;
        let inode = locked(&inode);
        let left = inode.metadata.size.get().saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if let Body::Content(content) = &inode.body
            && let Some(kept) = content.get(offset as usize..offset as usize + length)
        {
            buffer[..length].copy_from_slice(kept);
        } else {
            buffer[..length].fill(0);
        }
        Ok(length)
    }

    fn write(&self, handle: HandleId, offset: u64, bytes: &[u8], _: bool, _: bool) -> Answer<()> {
        let inode = self.get(NodeId(handle.0))?;
        let mut inode = locked(&inode);
        let end = offset + bytes.len() as u64;
        if end > inode.metadata.size.get() {
            inode.resize(end);
        }
        if let Body::Content(content) = &mut inode.body
            && let Some(kept) = content.get_mut(offset as usize..end as usize)
        {
            kept.copy_from_slice(bytes);
        }
        inode.metadata.modified = now();
        Ok(())
    }

    fn sync(&self, _: NodeId, _: bool) -> Answer<()> {
        Ok(())
    }

    fn sync_all(&self) -> Answer<()> {
        Ok(())
    }

    fn end(&self) {}

    fn release(&self, _: HandleId) {}

    fn allocate(&self, handle: HandleId, range: Range<u64>, mode: AllocateMode) -> Answer<()> {
        let inode = self.get(NodeId(handle.0))?;
        let mut inode = locked(&inode);
        if mode == AllocateMode::Allocate && range.end > inode.metadata.size.get() {
            inode.resize(range.end);
        }
        Ok(())
    }

    fn seek(&self, file: Opened, offset: u64, to: SeekTo) -> Answer<u64> {
        let size = self.attributes(node_of(file))?.metadata.size.get();
        match to {
            _ if offset >= size => Err(Errno::NXIO),
            SeekTo::Data => Ok(offset),
            SeekTo::Hole => Ok(size),
        }
    }

    fn copy(&self, (from, at): (HandleId, u64), (to, place): (HandleId, u64), bytes: u64) -> Answer<Copied> {
        let left = self
            .attributes(NodeId(from.0))?
            .metadata
            .size
            .get()
            .saturating_sub(at);
        let mut content = vec![0; left.min(bytes).min(KEPT_BYTES_MAX as u64) as usize];
        let copied = self.read(Opened::Handle(from), at, &mut content, ReadHow::Cached)?;
        self.write(to, place, &content[..copied], false, false)?;
        Ok(Copied {
            bytes: copied as u64,
            is_accessed: false,
        })
    }

    fn open_directory(&self, node: NodeId) -> Answer<HandleId> {
        Ok(HandleId(node.0))
    }

    fn list(&self, directory: Opened, position: u64, count: usize) -> Answer<Vec<Listed>> {
        let node = node_of(directory);
        let directory = self.get(node)?;
        let mut directory = locked(&directory);
        let names = names(&mut directory)?;
        let dots = [(&b"."[..], node), (&b".."[..], names.parent)];
        let dots = (0..).zip(dots).skip(position as usize);
        let mut listed: Vec<Listed> = dots
            .map(|(at, (name, node))| Listed {
                name: name.to_vec(),
                node,
                type_bits: 0o040_000,
                next: at + 1,
                is_dot: true,
            })
            .collect();
        for (index, name) in names.by_index.range(position.max(FIRST_INDEX)..).take(count) {
            let (_, node, type_bits) = names.by_name[name];
            listed.push(Listed {
                name: name.clone(),
                node,
                type_bits,
                next: index + 1,
                is_dot: false,
            });
        }
        Ok(listed)
    }

    fn statistics(&self) -> Answer<Statistics> {
        const BLOCKS: u64 = 1 << 24;
        Ok(Statistics {
            block_bytes: 4096,
            blocks: BLOCKS,
            free: BLOCKS,
            available: BLOCKS,
            name_bytes_max: 255,
        })
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Answer<Vec<u8>> {
        let inode = self.get(node)?;
        let inode = locked(&inode);
        inode.xattrs.get(name).cloned().ok_or(Errno::NODATA)
    }

    fn xattr_names(&self, node: NodeId) -> Answer<Vec<Vec<u8>>> {
        Ok(locked(&self.get(node)?).xattrs.keys().cloned().collect())
    }

    fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], _: SetHow, _: bool) -> Answer<()> {
        let inode = self.get(node)?;
        locked(&inode).xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Answer<()> {
        let inode = self.get(node)?;
        let removed = locked(&inode).xattrs.remove(name);
        removed.map(drop).ok_or(Errno::NODATA)
    }

    fn control(&self, _: NodeId, _: &Control<'_>) -> Answer<Answered> {
        Err(Errno::NOTTY)
    }

    fn broke(&self) {}
}
