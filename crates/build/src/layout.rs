//! The layout: inodes get their numbers, and everything except content becomes items.
//!
//! A pass over the tree in the order of a walk determines the order of inode numbers in each
//! subvolume, of names in each directory, and later of contents on the devices. The layout sorts
//! items by subvolume and key. The layout makes a directory's own item when it knows all names in
//! it.

use crate::entry::{Attributes, Compress, Entry, EntryKind, EntryPath, FileContent, SubvolumeMark};
use crate::error::{Error, Result, shown};
use crate::nested::OpenPath;
use crate::record::{Decoder, Encoder};
use crate::tree::{Name, Tree};
use buttress_format::node::edit::leaf_data_bytes_max;
use buttress_format::{
    ByteCount, Compression, DirItem, FileExtent, FileExtentBody, FileKind, FileOffset, Generation,
    InodeFlags, InodeItem, InodeNumber, InodeRefs, ItemType, Key, ObjectId, Timestamp, TreeId,
};
use buttress_fs::NodeKind;
use buttress_fs::Progress;
use buttress_packing::SpoolFolder;
use buttress_packing::{Sorted, Sorter};
use std::collections::HashMap;

/// The generation of all built blocks.
pub(crate) const GENERATION: Generation = Generation::new(8);

/// The maximum number of names of an inode.
const NAMES_MAX: u64 = 65_535;

/// The first inode number after the root directory's.
const FIRST_INODE: u64 = 257;

/// The index of the first name in a directory.
const FIRST_INDEX: u64 = 2;

/// The maximum length of a symbolic link's target.
const SYMLINK_BYTES_MAX: usize = 4095;

/// The size of an inode item in bytes.
pub(crate) const INODE_ITEM_BYTES: usize = 160;

/// A subvolume to be made.
#[derive(Clone, Debug)]
pub(crate) struct Subvolume {
    pub(crate) id: TreeId,
    pub(crate) mark: SubvolumeMark,
    pub(crate) parent: TreeId,
    /// The directory that holds the subvolume's name.
    pub(crate) directory: InodeNumber,
    pub(crate) index: u64,
    pub(crate) name: Vec<u8>,
    /// The subvolume of which this subvolume is a snapshot, if any.
    pub(crate) snapshot_of: Option<TreeId>,
}

/// The totals of a layout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// The total size of all contents, including holes.
    pub(crate) content_bytes: u64,
    /// An upper bound on the bytes of data extents.
    pub(crate) data_bytes: u64,
    /// The bytes of the files' items, including heads, without file extents.
    pub(crate) item_bytes: u64,
    /// The number of regular files.
    pub(crate) files: u64,
    /// The number of entries of all kinds.
    pub(crate) names: u64,
}

/// A tree whose items are all known, except those of contents.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Items sorted by (subvolume, key).
    pub(crate) items: Sorted,
    pub(crate) subvolumes: Vec<Subvolume>,
    /// Snapshots with the subvolume whose tree they share, directly or through other snapshots.
    pub(crate) snapshots: Vec<(TreeId, TreeId)>,
    pub(crate) default_subvolume: TreeId,
    pub(crate) totals: Totals,
}

/// The facts that a worker needs to read the content of a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileInfo {
    pub(crate) source: u16,
    pub(crate) path: EntryPath,
    pub(crate) content: FileContent,
    pub(crate) compress: Option<Compress>,
}

impl FileInfo {
    fn encode(&self, to: &mut Encoder) {
        to.number(u64::from(self.source)).bytes(self.path.as_bytes());
        to.content(&self.content);
        to.compress(self.compress);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut decoder = Decoder(bytes);
        Some(Self {
            source: u16::try_from(decoder.number()?).ok()?,
            path: decoder.path()?,
            content: decoder.content()?,
            compress: decoder.compress()?,
        })
    }
}

/// Returns a subvolume and a key in the form by which items are sorted.
pub(crate) fn item_key(tree: TreeId, key: &Key) -> [u8; 25] {
    let mut bytes = [0; 25];
    let parts = [
        (0, tree.get().to_be_bytes()),
        (8, key.objectid.get().to_be_bytes()),
        (17, key.offset.to_be_bytes()),
    ];
    for (at, part) in parts {
        if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>()) {
            *place = part;
        }
    }
    if let Some(place) = bytes.get_mut(16) {
        *place = key.item_type.0;
    }
    bytes
}

pub(crate) fn item_place(bytes: &[u8]) -> Option<(TreeId, Key)> {
    let (tree, rest) = bytes.split_first_chunk::<8>()?;
    let (objectid, rest) = rest.split_first_chunk::<8>()?;
    let (item_type, rest) = rest.split_first()?;
    let (offset, _) = rest.split_first_chunk::<8>()?;
    let key = Key::new(
        ObjectId::new(u64::from_be_bytes(*objectid)),
        ItemType(*item_type),
        u64::from_be_bytes(*offset),
    );
    Some((TreeId::new(u64::from_be_bytes(*tree)), key))
}

/// The inputs of the layout besides the tree of entries.
pub(crate) struct Rules<'a> {
    pub(crate) inode_flags: &'a [(EntryPath, InodeFlags)],
    pub(crate) node_bytes: u32,
    pub(crate) sector_bytes: u32,
    pub(crate) folder: &'a SpoolFolder,
    pub(crate) memory: usize,
}

pub(crate) fn lay_out(tree: &Tree, rules: &Rules<'_>, progress: &Progress) -> Result<Layout> {
    let mut pass = Pass {
        items: Sorter::new(rules.folder, rules.memory),
        flags: rules
            .inode_flags
            .iter()
            .map(|(path, flags)| (path.as_bytes(), *flags))
            .collect(),
        rules,
        frames: Vec::new(),
        path: OpenPath::default(),
        flags_of_links: HashMap::new(),
        holders: HashMap::new(),
        next_inodes: HashMap::new(),
        subvolumes: Vec::new(),
        paths: HashMap::from([(Vec::new(), TreeId::FS)]),
        snapshots: Vec::new(),
        default_subvolume: None,
        totals: Totals::default(),
    };
    pass.find_flags_of_links(tree, progress)?;
    let mut reader = tree.reader()?;
    while let Some((number, name)) = reader.next()? {
        progress.check()?;
        pass.name(number, name)?;
    }
    while pass.close()? {}
    if let Some((path, _)) = pass.flags.iter().min_by_key(|(path, _)| **path) {
        return Err(Error::Option {
            option: "inode flags",
            path: shown(path),
            problem: "is not in the tree",
        });
    }
    let snapshots = settle_snapshots(&mut pass.subvolumes, &pass.snapshots, &pass.paths)?;
    Ok(Layout {
        items: pass.items.finish()?,
        subvolumes: pass.subvolumes,
        snapshots,
        default_subvolume: pass.default_subvolume.unwrap_or(TreeId::FS),
        totals: pass.totals,
    })
}

/// A directory that contains the current position.
struct Frame {
    path_bytes: usize,
    tree: TreeId,
    inode: InodeNumber,
    item: InodeItem,
    next_index: u64,
    /// The flags that options set for all inodes below.
    flags: InodeFlags,
}

struct Pass<'a> {
    items: Sorter,
    /// Inode flags for named paths that the pass has not reached.
    flags: HashMap<&'a [u8], InodeFlags>,
    rules: &'a Rules<'a>,
    frames: Vec<Frame>,
    /// The path of the innermost frame.
    path: OpenPath,
    /// Flags for inodes with several names, by the number of the first name.
    flags_of_links: HashMap<u64, InodeFlags>,
    /// The inodes, by the name that holds them.
    holders: HashMap<u64, Holder>,
    next_inodes: HashMap<TreeId, u64>,
    subvolumes: Vec<Subvolume>,
    /// Subvolumes by their paths.
    paths: HashMap<Vec<u8>, TreeId>,
    /// Snapshots, with the path of their source.
    snapshots: Vec<(TreeId, EntryPath)>,
    default_subvolume: Option<TreeId>,
    totals: Totals,
}

/// An inode with several names, some of which the layout has not reached.
struct Holder {
    inode: InodeNumber,
    names_left: u64,
    kind: FileKind,
}

impl Pass<'_> {
    /// Finds the flags that later names of an inode require, because the inode is made at its first
    /// name.
    fn find_flags_of_links(&mut self, tree: &Tree, progress: &Progress) -> Result<()> {
        if self.flags.is_empty() {
            return Ok(());
        }
        let mut reader = tree.reader()?;
        while let Some((_, name)) = reader.next()? {
            progress.check()?;
            let flags = self.flags.get(name.entry.path.as_bytes());
            if let (Some(link), Some(flags)) = (&name.link, flags) {
                *self.flags_of_links.entry(link.holder).or_default() |= *flags;
            }
        }
        Ok(())
    }

    fn name(&mut self, number: u64, name: Name) -> Result<()> {
        let path = name.entry.path.as_bytes().to_vec();
        while self
            .frames
            .last()
            .is_some_and(|frame| !self.path.contains(frame.path_bytes, &path))
        {
            self.close()?;
        }
        self.totals.names = self.totals.names.saturating_add(1);
        if let EntryKind::Snapshot { of, mark } = &name.entry.kind {
            let id = name.subvolume.ok_or(Error::Defect {
                what: "a snapshot without a number",
            })?;
            self.snapshots.push((id, of.clone()));
            // A snapshot has a root of its own, and references to all blocks and extents that the
            // root refers to.
            let bytes = u64::from(self.rules.node_bytes).saturating_mul(2);
            self.totals.item_bytes = self.totals.item_bytes.saturating_add(bytes);
            return self.subvolume(id, *mark, name.entry.path.name(), &path);
        }
        let inherited = self
            .frames
            .last()
            .map_or(InodeFlags::empty(), |frame| frame.flags);
        let own_flags = self.flags.remove(path.as_slice()).unwrap_or_default();
        let flags = inherited | own_flags;
        if let EntryKind::Directory(mark) = name.entry.kind {
            return self.directory(&path, &name, mark, flags);
        }
        let Some(parent) = self.frames.last() else {
            return Err(Error::Defect {
                what: "a name without a directory",
            });
        };
        let (tree, component) = (parent.tree, name.entry.path.name().to_vec());
        if let Some(link) = &name.link
            && let Some(holder) = self.holders.get_mut(&link.holder)
        {
            let (inode, kind) = (holder.inode, holder.kind);
            holder.names_left = holder.names_left.saturating_sub(1);
            if holder.names_left == 0 {
                self.holders.remove(&link.holder);
            }
            return self.link(inode, kind, &component);
        }
        let inode = self.next_inode(tree);
        let (source, held, names) = match name.link {
            Some(link) => {
                let (source, held) = link.inode.ok_or(Error::Defect {
                    what: "links without an inode",
                })?;
                (source, held, link.names)
            }
            None => (name.source, name.entry, 1),
        };
        if names > NAMES_MAX {
            return Err(Error::Entry {
                path: shown(&path),
                problem: format!("too many hard links (found {names}, expected at most {NAMES_MAX})"),
            });
        }
        let flags = flags | self.flags_of_links.remove(&number).unwrap_or_default();
        let kind = self.inode(tree, inode, source, held, names, flags)?;
        if names > 1 {
            let holder = Holder {
                inode,
                names_left: names.saturating_sub(1),
                kind,
            };
            self.holders.insert(number, holder);
        }
        self.link(inode, kind, &component)
    }

    fn next_inode(&mut self, tree: TreeId) -> InodeNumber {
        let next = self.next_inodes.entry(tree).or_insert(FIRST_INODE);
        let inode = InodeNumber::new(*next);
        *next = next.saturating_add(1);
        inode
    }

    fn push(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        // Each item in a leaf has a header.
        let taken = (data.len() as u64).saturating_add(25);
        self.totals.item_bytes = self.totals.item_bytes.saturating_add(taken);
        Ok(self.items.push(&item_key(tree, key), data)?)
    }

    /// Adds a directory and makes it the innermost one.
    fn directory(
        &mut self,
        path: &[u8],
        name: &Name,
        mark: Option<SubvolumeMark>,
        flags: InodeFlags,
    ) -> Result<()> {
        let component = name.entry.path.name();
        let (tree, inode) = match (self.frames.last().map(|parent| parent.tree), name.subvolume) {
            (None, _) => {
                if mark.is_some_and(|mark| mark.default) {
                    self.set_default(TreeId::FS, path)?;
                }
                (TreeId::FS, InodeNumber::ROOT_DIRECTORY)
            }
            (Some(_), Some(id)) => {
                self.subvolume(id, mark.unwrap_or_default(), component, path)?;
                (id, InodeNumber::ROOT_DIRECTORY)
            }
            (Some(tree), None) => {
                let inode = self.next_inode(tree);
                self.link(inode, FileKind::Directory, component)?;
                (tree, inode)
            }
        };
        if inode == InodeNumber::ROOT_DIRECTORY {
            // The parent of a subvolume's root directory is this directory itself.
            let mut data = Vec::new();
            let pushed = InodeRefs::push(&mut data, 0, b"..");
            pushed.map_err(|_| Error::Defect {
                what: "a root's name",
            })?;
            self.push(tree, &InodeRefs::key(inode, inode), &data)?;
        }
        let attributes = &name.entry.attributes;
        self.xattrs(tree, inode, path, attributes)?;
        let mut item = inode_item(attributes, 0o040_000, flags, false);
        item.nlink = 1;
        self.path.set(path);
        self.frames.push(Frame {
            path_bytes: path.len(),
            tree,
            inode,
            item,
            next_index: FIRST_INDEX,
            flags,
        });
        Ok(())
    }

    /// Closes the innermost directory. Returns false if no directory is open.
    fn close(&mut self) -> Result<bool> {
        let Some(frame) = self.frames.pop() else {
            return Ok(false);
        };
        let key = InodeItem::key(frame.inode);
        self.push(frame.tree, &key, &frame.item.to_bytes())?;
        Ok(true)
    }

    fn set_default(&mut self, tree: TreeId, path: &[u8]) -> Result<()> {
        if self.default_subvolume.replace(tree).is_some() {
            return Err(Error::Option {
                option: "default subvolume",
                path: shown(path),
                problem: "another subvolume is already the default",
            });
        }
        Ok(())
    }

    /// Adds the name of a subvolume to the innermost directory.
    fn subvolume(&mut self, id: TreeId, mark: SubvolumeMark, name: &[u8], path: &[u8]) -> Result<()> {
        if mark.default {
            self.set_default(id, path)?;
        }
        let Some(parent) = self.frames.last() else {
            return Err(Error::Defect {
                what: "a subvolume without a directory",
            });
        };
        self.subvolumes.push(Subvolume {
            id,
            mark,
            parent: parent.tree,
            directory: parent.inode,
            index: parent.next_index,
            name: name.to_vec(),
            snapshot_of: None,
        });
        self.paths.insert(path.to_vec(), id);
        let location = Key::new(id.object_id(), ItemType::ROOT_ITEM, u64::MAX);
        self.entry_in_directory(location, FileKind::Directory, name)
    }

    /// Adds a name of an inode to the innermost directory.
    fn link(&mut self, inode: InodeNumber, kind: FileKind, name: &[u8]) -> Result<()> {
        let Some(parent) = self.frames.last() else {
            return Err(Error::Defect {
                what: "a name without a directory",
            });
        };
        let (tree, directory, index) = (parent.tree, parent.inode, parent.next_index);
        let mut data = Vec::new();
        InodeRefs::push(&mut data, index, name).map_err(|problem| Error::Entry {
            path: shown(name),
            problem: problem.to_string(),
        })?;
        self.push(tree, &InodeRefs::key(inode, directory), &data)?;
        self.entry_in_directory(InodeItem::key(inode), kind, name)
    }

    /// Adds the two directory items of a name, by hash and by index, in the innermost directory.
    fn entry_in_directory(&mut self, location: Key, kind: FileKind, name: &[u8]) -> Result<()> {
        let Some(parent) = self.frames.last_mut() else {
            return Err(Error::Defect {
                what: "a name without a directory",
            });
        };
        let (tree, directory, index) = (parent.tree, parent.inode, parent.next_index);
        parent.next_index = index.saturating_add(1);
        let added = (name.len() as u64).saturating_mul(2);
        parent.item.size = parent.item.size.saturating_add(ByteCount::new(added));
        let entry = DirItem {
            location,
            transid: GENERATION,
            kind,
            name,
            data: &[],
        };
        let data = entry.encode().map_err(|problem| Error::of_item(name, &problem))?;
        self.push(tree, &DirItem::key(directory, name), &data)?;
        self.push(tree, &DirItem::index_key(directory, index), &data)
    }

    fn xattrs(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        path: &[u8],
        attributes: &Attributes,
    ) -> Result<()> {
        let mut names: Vec<&[u8]> = Vec::with_capacity(attributes.xattrs.len());
        for xattr in &attributes.xattrs {
            names.push(&xattr.name);
            let item = DirItem {
                location: Key::MIN,
                transid: GENERATION,
                kind: FileKind::Xattr,
                name: &xattr.name,
                data: &xattr.value,
            };
            let data = item.encode().map_err(|problem| Error::of_item(path, &problem))?;
            let most = leaf_data_bytes_max(self.rules.node_bytes);
            if data.len() > most {
                return Err(Error::Entry {
                    path: shown(path),
                    problem: format!(
                        "its extended attribute {:?} is too long (found {} bytes, expected at most {most})",
                        String::from_utf8_lossy(&xattr.name),
                        data.len()
                    ),
                });
            }
            self.push(tree, &DirItem::xattr_key(inode, &xattr.name), &data)?;
        }
        names.sort_unstable();
        if names.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Error::Entry {
                path: shown(path),
                problem: "it has the same extended attribute twice".to_owned(),
            });
        }
        Ok(())
    }

    /// Adds the items of an inode that is no directory, except its names.
    fn inode(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        source: u16,
        entry: Entry,
        names: u64,
        flags: InodeFlags,
    ) -> Result<FileKind> {
        let Entry {
            path,
            kind,
            attributes,
            ..
        } = entry;
        let is_file = matches!(kind, EntryKind::File(_));
        let type_bits = match &kind {
            EntryKind::File(_) => 0o100_000,
            EntryKind::Symlink(_) => 0o120_000,
            EntryKind::Node(NodeKind::Fifo) => 0o010_000,
            EntryKind::Node(NodeKind::Socket) => 0o140_000,
            EntryKind::Node(NodeKind::CharacterDevice(_)) => 0o020_000,
            EntryKind::Node(NodeKind::BlockDevice(_)) => 0o060_000,
            _ => {
                return Err(Error::Defect {
                    what: "an inode without a file type",
                });
            }
        };
        self.xattrs(tree, inode, path.as_bytes(), &attributes)?;
        let mut item = inode_item(&attributes, type_bits, flags, is_file);
        item.nlink = u32::try_from(names).unwrap_or(u32::MAX);
        let mut payload = Encoder::default();
        match kind {
            EntryKind::File(content) => {
                item.size = content.size;
                self.count_file(&path, &content)?;
                payload.0.extend_from_slice(&item.to_bytes());
                let info = FileInfo {
                    source,
                    path,
                    content,
                    compress: attributes.compression,
                };
                info.encode(&mut payload);
            }
            EntryKind::Symlink(target) => {
                self.symlink(tree, inode, &path, &target, &mut item)?;
                payload.0.extend_from_slice(&item.to_bytes());
            }
            EntryKind::Node(NodeKind::CharacterDevice(number) | NodeKind::BlockDevice(number)) => {
                item.rdev = number.to_raw().ok_or_else(|| Error::Entry {
                    path: shown(path.as_bytes()),
                    problem: format!(
                        "its device number {}:{} is too large for a volume",
                        number.major, number.minor
                    ),
                })?;
                payload.0.extend_from_slice(&item.to_bytes());
            }
            _ => payload.0.extend_from_slice(&item.to_bytes()),
        }
        self.push(tree, &InodeItem::key(inode), &payload.0)?;
        Ok(FileKind::from_mode(item.mode).unwrap_or(FileKind::Unknown))
    }

    fn count_file(&mut self, path: &EntryPath, content: &FileContent) -> Result<()> {
        let whole = content.size.checked_align_up(u64::from(self.rules.sector_bytes));
        let whole = whole.filter(|size| i64::try_from(size.get()).is_ok());
        let whole = whole.ok_or_else(|| Error::Entry {
            path: shown(path.as_bytes()),
            problem: format!("its size of {} bytes is too large for a file", content.size),
        })?;
        let totals = &mut self.totals;
        totals.files = totals.files.saturating_add(1);
        totals.content_bytes = totals.content_bytes.saturating_add(content.size.get());
        let data = content.data.map_or(whole.get(), |data| {
            data.bytes_in_sectors(self.rules.sector_bytes).min(whole.get())
        });
        totals.data_bytes = totals.data_bytes.saturating_add(data);
        Ok(())
    }

    fn symlink(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        path: &EntryPath,
        target: &[u8],
        item: &mut InodeItem,
    ) -> Result<()> {
        let most = SYMLINK_BYTES_MAX
            .min(leaf_data_bytes_max(self.rules.node_bytes).saturating_sub(FileExtent::INLINE_HEAD_BYTES));
        if target.is_empty() || target.len() > most || target.contains(&0) {
            return Err(Error::Entry {
                path: shown(path.as_bytes()),
                problem: format!(
                    "its target is invalid (found {} bytes, expected 1 to {most}, without zero bytes)",
                    target.len()
                ),
            });
        }
        item.size = ByteCount::of(target.len());
        item.nbytes = item.size;
        let extent = FileExtent {
            generation: GENERATION,
            ram_bytes: item.size,
            compression: Compression::None,
            other_encoding: 0,
            body: FileExtentBody::Inline(target),
        };
        let key = FileExtent::key(inode, FileOffset::MIN);
        self.push(tree, &key, &extent.encode())
    }
}

/// Determines the source of each snapshot, and the subvolume whose tree it shares.
fn settle_snapshots(
    subvolumes: &mut [Subvolume],
    snapshots: &[(TreeId, EntryPath)],
    paths: &HashMap<Vec<u8>, TreeId>,
) -> Result<Vec<(TreeId, TreeId)>> {
    let problem = |of: &EntryPath, problem| Error::Option {
        option: "a snapshot of",
        path: shown(of.as_bytes()),
        problem,
    };
    let mut direct: HashMap<TreeId, TreeId> = HashMap::new();
    for (id, of) in snapshots {
        let source = paths.get(of.as_bytes()).copied();
        let source = source.ok_or_else(|| problem(of, "it is not a subvolume of the image"))?;
        direct.insert(*id, source);
    }
    for subvolume in subvolumes {
        subvolume.snapshot_of = direct.get(&subvolume.id).copied();
    }
    let mut settled = Vec::with_capacity(snapshots.len());
    for (id, of) in snapshots {
        let mut source = *id;
        let mut steps = 0_usize;
        while let Some(next) = direct.get(&source) {
            source = *next;
            steps = steps.saturating_add(1);
            if steps > snapshots.len() {
                return Err(problem(of, "it is directly or indirectly a snapshot of itself"));
            }
        }
        settled.push((source, *id));
    }
    settled.sort_unstable();
    Ok(settled)
}

/// Returns the item of an inode with these attributes.
fn inode_item(attributes: &Attributes, type_bits: u32, flags: InodeFlags, is_file: bool) -> InodeItem {
    let Attributes {
        permissions,
        uid,
        gid,
        mtime,
        atime,
        ctime,
        otime,
        ..
    } = *attributes;
    let mut flags = flags | attributes.flags;
    if is_file && flags.contains(InodeFlags::NODATACOW) {
        flags |= InodeFlags::NODATASUM;
    }
    let or_mtime = |time: Option<Timestamp>| time.unwrap_or(mtime);
    InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        uid,
        gid,
        mode: type_bits | (permissions & 0o7777),
        flags,
        atime: or_mtime(atime),
        ctime: or_mtime(ctime),
        otime: or_mtime(otime),
        ..InodeItem::empty(mtime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_items_sort_as_keys_do() {
        let keys = [
            (256, 1, 0),
            (256, 12, 256),
            (256, 84, u64::MAX),
            (257, 1, 0),
            (257, 108, 1 << 40),
        ];
        let key = |(objectid, item_type, offset): (u64, u8, u64)| {
            Key::new(ObjectId::new(objectid), ItemType(item_type), offset)
        };
        let trees = [5, 256, 300].map(TreeId::new);
        let encoded = trees
            .iter()
            .flat_map(|tree| keys.iter().map(|parts| item_key(*tree, &key(*parts))));
        let encoded: Vec<_> = encoded.collect();
        assert!(encoded.is_sorted());
        assert_eq!(item_place(&encoded[9]), Some((trees[1], key(keys[4]))));
    }
}
