//! New inodes: files, directories, device nodes, pipes, sockets, symlinks, files without a name.
//!
//! The items of a new inode are adjacent at the end of its tree and are inserted together. The
//! inode number is one more than any number that the tree has had since the volume was opened.
//!
//! Source: on-disk format documentation, section "INODE_ITEM"; limits of symlinks: symlink(2),
//! btrfs(5).

use super::Access;
use super::attributes::AttributeChanges;
use super::entries::check_name;
use super::inherit::NewInodeAttributes;
use super::orphan::OpenInode;
use super::{NewInode, NewKind};
use super::{Operation, entries};
use crate::WritableFilesystem;
use buttress_engine::entry::{Entry, Target};
use buttress_engine::reservation::Need;
use buttress_format::limits::inline_content_bytes_max;
use buttress_format::{
    ByteCount, Compression, DirItem, FileExtent, FileExtentBody, FileKind, FileOffset, InodeItem,
    InodeNumber, InodeRefs, ItemType, Key, ObjectId, OrphanItem, TreeId,
};
use buttress_fs::NodeKind;
use buttress_fs::error::{Error, Name, Result};
use buttress_fs::inode::Metadata;
use buttress_fs::location::Location;
use buttress_fs::lookup::PATH_LIMIT;

/// The type bits of modes.
pub(super) const DIRECTORY: u32 = 0o040_000;
pub(super) const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// The maximum number of places that a new inode needs. Two places are for the inode's own adjacent
/// items, as three attributes and a symlink's target may be large. The other places of a creation
/// are two entries, the directory, and an orphan item.
const CREATE_PLACES: u64 = 6;

/// Returns the device field of an inode item.
fn raw_device(kind: NodeKind) -> Result<u64> {
    match kind {
        NodeKind::Fifo | NodeKind::Socket => Ok(0),
        NodeKind::CharacterDevice(number) | NodeKind::BlockDevice(number) => {
            number.to_raw().ok_or(Error::Invalid {
                what: "the device number is too large (expected a major up to 4095 and a minor up to 1048575)",
            })
        }
    }
}

/// The content of a new file, given at its creation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole<'a> {
    pub(super) attributes: &'a AttributeChanges,
    /// Content to be stored inline.
    pub(super) content: &'a [u8],
    /// Whether the file has content, inline or in extents.
    pub(super) has_content: bool,
}

/// The properties in which the creating calls' inodes differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    /// The file type bits of the mode.
    pub(super) type_bits: u32,
    pub(super) rdev: u64,
    /// The target of a symlink.
    pub(super) target: Option<&'a [u8]>,
    /// The content of a file that is made together with it.
    pub(super) whole: Option<Whole<'a>>,
}

impl Plan<'_> {
    pub(super) const fn of_type(type_bits: u32) -> Self {
        Self {
            type_bits,
            rdev: 0,
            target: None,
            whole: None,
        }
    }

    pub(super) fn of_node(kind: NodeKind) -> Result<Self> {
        Ok(Self {
            rdev: raw_device(kind)?,
            ..Self::of_type(kind.type_bits())
        })
    }
}

impl<'a> Plan<'a> {
    pub(super) const fn of_symlink(target: &'a [u8]) -> Self {
        Self {
            target: Some(target),
            ..Self::of_type(SYMLINK)
        }
    }
}

/// `mkdir(2)` ignores both set-id bits.
pub(super) const fn of_directory(new: &NewInode) -> NewInode {
    NewInode {
        mode: new.mode & 0o1777,
        ..*new
    }
}

/// A symlink has all permissions.
pub(super) const fn of_symlink(new: &NewInode) -> NewInode {
    NewInode {
        mode: 0o777,
        umask: 0,
        ..*new
    }
}

impl WritableFilesystem {
    /// Makes an empty regular file.
    ///
    /// # Errors
    /// Fails with [`Error::Exists`], [`Error::HashCollision`], [`Error::NoSpace`], or an error of
    /// an invalid name. For the parent directory, fails with [`Error::NotADirectory`],
    /// [`Error::InodeNotFound`], [`Error::ReadOnlySubvolume`] or [`Error::NotPermitted`].
    pub fn create(&self, directory: Location, name: &[u8], new: &NewInode) -> Result<Location> {
        self.make_location(directory, name, new, NewKind::File)
    }

    /// Makes an empty directory.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`] does.
    pub fn make_directory(&self, directory: Location, name: &[u8], new: &NewInode) -> Result<Location> {
        self.make_location(directory, name, new, NewKind::Directory)
    }

    /// Makes a pipe, a socket or a device node.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`] does, or with [`Error::Invalid`] for a device number
    /// that the format cannot hold.
    pub fn make_node(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        kind: NodeKind,
    ) -> Result<Location> {
        self.make_location(directory, name, new, NewKind::Node(kind))
    }

    /// Makes a symlink to `target`, which must not be empty.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`] does, or with [`Error::NameTooLong`] for a target
    /// that is longer than any path, or that does not fit into the inode's items.
    pub fn make_symlink(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        target: &[u8],
    ) -> Result<Location> {
        self.make_location(directory, name, new, NewKind::Symlink(target))
    }

    /// Makes an inode with a name, and returns its attributes as of the same edit. Another thread
    /// can remove the name at once, so a later lookup can fail. `made` runs once, in the edit that
    /// makes the inode. If `made` registers the inode with the caller,
    /// [`unlink_keeping`](Self::unlink_keeping) can later ask the caller whether to keep the inode.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`], [`WritableFilesystem::make_node`] and
    /// [`WritableFilesystem::make_symlink`] do.
    pub fn make(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        kind: NewKind<'_>,
        made: &dyn Fn(Location),
    ) -> Result<Metadata> {
        let (new, plan) = self.plan_of(new, kind)?;
        let (location, item) = self.make_planned(directory, name, &new, plan, made)?;
        Ok(self.metadata_of(location, &item))
    }

    fn make_location(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        kind: NewKind<'_>,
    ) -> Result<Location> {
        let (new, plan) = self.plan_of(new, kind)?;
        Ok(self.make_planned(directory, name, &new, plan, &|_| ())?.0)
    }

    /// Returns the part of `new` that applies to an inode of this kind, and the plan for making it.
    pub(super) fn plan_of<'a>(&self, new: &NewInode, kind: NewKind<'a>) -> Result<(NewInode, Plan<'a>)> {
        Ok(match kind {
            NewKind::File => (*new, Plan::of_type(REGULAR)),
            NewKind::Directory => (of_directory(new), Plan::of_type(DIRECTORY)),
            NewKind::Node(kind) => (*new, Plan::of_node(kind)?),
            NewKind::Symlink(target) => {
                self.check_target(target)?;
                (of_symlink(new), Plan::of_symlink(target))
            }
        })
    }

    /// Returns the attributes of an inode without dirty data, as `stat(2)` shows them.
    pub(super) fn metadata_of(&self, location: Location, item: &InodeItem) -> Metadata {
        Metadata::from_item(location, item, self.forest().block_format().sector_bytes)
    }

    /// Returns an error for a target that no symlink can have.
    pub(super) fn check_target(&self, target: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Err(entries::not_found(target));
        }
        if target.contains(&0) {
            return Err(Error::Invalid {
                what: "the target of the symlink contains a zero byte",
            });
        }
        let sector_limit = usize::try_from(self.forest().block_format().sector_bytes)
            .unwrap_or(PATH_LIMIT)
            .saturating_sub(1);
        let limit_bytes = inline_content_bytes_max(self.forest().block_format().node_bytes)
            .min(sector_limit)
            .min(PATH_LIMIT);
        if target.len() > limit_bytes {
            return Err(Error::NameTooLong {
                length_bytes: target.len(),
                limit_bytes,
            });
        }
        Ok(())
    }

    /// Makes a regular file without a name, in the subvolume of `directory`, from which it
    /// inherits. The file lives as long as it is held open, or until [`WritableFilesystem::link`]
    /// gives it a name.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`] does.
    pub fn make_unnamed(&self, directory: Location, new: &NewInode) -> Result<OpenInode> {
        Ok(self.create_unnamed(directory, new)?.0)
    }

    /// Makes a file as [`WritableFilesystem::make_unnamed`] does, and returns its attributes.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`] does.
    pub fn create_unnamed(&self, directory: Location, new: &NewInode) -> Result<(OpenInode, Metadata)> {
        let (location, item) = self.operate_beside_data(Need::places(CREATE_PLACES), |operation| {
            let parent = operation.require_directory(directory)?;
            operation.require_adding(directory, &parent)?;
            let inherited_attributes = operation.inherited_attributes(directory, &parent, REGULAR, new)?;
            let tree = directory.subvolume.tree();
            operation.reach_new_inode(tree)?;
            operation.reach(tree, &[OrphanItem::key(ObjectId::MAX)])?;
            let made =
                operation.insert_inode(directory, None, &inherited_attributes, Plan::of_type(REGULAR))?;
            operation.lookups().inodes().hold(made.0);
            Ok(made)
        })?;
        let metadata = self.metadata_of(location, &item);
        Ok((OpenInode::held(self.clone(), location), metadata))
    }

    /// Makes an inode with a name. Returns the location and the item of the new inode. `made` runs
    /// once, in the edit that makes the inode.
    pub(super) fn make_planned(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        plan: Plan<'_>,
        made: &dyn Fn(Location),
    ) -> Result<(Location, InodeItem)> {
        check_name(name)?;
        self.quotas().know_use(directory.subvolume)?;
        self.operate_beside_data(Need::places(CREATE_PLACES), |operation| {
            let parent = operation.require_new_entry(directory, name)?;
            let inherited_attributes =
                operation.inherited_attributes(directory, &parent, plan.type_bits, new)?;
            let (location, item) = operation.make_named(directory, name, &inherited_attributes, plan)?;
            made(location);
            Ok((location, item))
        })
    }
}

impl Access<'_> {
    /// Reads the tree blocks at which a new inode's items will be inserted.
    pub(super) fn reach_new_inode(&mut self, tree: TreeId) -> Result<()> {
        let node_bytes = u64::from(self.node_bytes());
        self.lookups().core().quota_limits.allow(tree, node_bytes)?;
        let number = self.lookups().next_inode_number(tree)?;
        self.reach(tree, &[InodeItem::key(InodeNumber::new(number))])
    }
}

impl Operation<'_> {
    /// Returns the inode item of a directory to which this name can be added.
    pub(super) fn require_new_entry(&mut self, directory: Location, name: &[u8]) -> Result<InodeItem> {
        let parent = self.require_directory(directory)?;
        let (present, item_bytes) = match self.defers_names(directory.subvolume)? {
            // A later insertion of the deferred name detects whether the tree has the name.
            true => (self.waiting_entry(directory, name)?, 0),
            false => self.find_entry_beside(directory, name)?,
        };
        if present.is_some() {
            return Err(Error::Exists {
                name: Name::from(name),
            });
        }
        self.require_adding(directory, &parent)?;
        self.check_collision(name, item_bytes)?;
        Ok(parent)
    }

    /// Makes an inode under an unused name.
    pub(super) fn make_named(
        &mut self,
        directory: Location,
        name: &[u8],
        inherited_attributes: &NewInodeAttributes,
        plan: Plan<'_>,
    ) -> Result<(Location, InodeItem)> {
        self.reach_new_entry(directory, name)?;
        self.reach_new_inode(directory.subvolume.tree())?;
        let index = self.begin().inode_items().free_index(directory)?;
        let (location, item) =
            self.insert_inode(directory, Some((name, index)), inherited_attributes, plan)?;
        let entry = Entry {
            target: Target::Inode(location.inode),
            kind: FileKind::from_mode(inherited_attributes.mode).unwrap_or(FileKind::Unknown),
        };
        self.insert_entry(directory, name, entry, index)?;
        self.grow_directory(directory, name)?;
        Ok((location, item))
    }

    /// Inserts the items of a new inode: with a name and its index in the directory, or as an
    /// orphan.
    fn insert_inode(
        &mut self,
        directory: Location,
        name: Option<(&[u8], u64)>,
        inherited_attributes: &NewInodeAttributes,
        plan: Plan<'_>,
    ) -> Result<(Location, InodeItem)> {
        let tree = directory.subvolume.tree();
        let inode = self.begin().inode_items().free_number(tree)?;
        let location = Location::new(directory.subvolume, inode);
        let item = self.new_item(inherited_attributes, plan, u32::from(name.is_some()));
        let mut items: Vec<(Key, Vec<u8>)> = vec![(InodeItem::key(inode), item.to_bytes().to_vec())];
        if let Some((name, index)) = name {
            let mut data = Vec::with_capacity(InodeRefs::entry_bytes(name));
            InodeRefs::push(&mut data, index, name)?;
            items.push((InodeRefs::key(inode, directory.inode), data));
        }
        for (name, value) in &inherited_attributes.xattrs {
            let entry = self.xattr_entry(name, value);
            let data = entry.encode().map_err(|_| Error::AttributeTooLarge {
                name: Name::from(*name),
            })?;
            items.push((DirItem::xattr_key(inode, name), data));
        }
        if let Some(target) = plan.target {
            items.push(self.inline_item(inode, target));
        }
        if let Some(whole) = plan.whole.filter(|whole| !whole.content.is_empty()) {
            items.push(self.inline_item(inode, whole.content));
        }
        self.insert_items(tree, items)?;
        self.edit().inode_items().know(location, item);
        if name.is_none() {
            let orphan = OrphanItem::key(ObjectId::new(inode.get()));
            self.edit().insert(tree, &orphan, &[])?;
        }
        if FileKind::from_mode(inherited_attributes.mode) == Some(FileKind::Directory) {
            self.edit().inode_items().know_empty_directory(location);
        }
        for (name, value) in &inherited_attributes.xattrs {
            self.xattrs().require_feature_of(name, value);
        }
        Ok((location, item))
    }

    /// Inserts items into one tree.
    pub(super) fn insert_items(&mut self, tree: TreeId, mut items: Vec<(Key, Vec<u8>)>) -> Result<()> {
        items.sort_unstable_by_key(|(key, _)| *key);
        let borrowed: Vec<(Key, &[u8])> = items.iter().map(|(key, data)| (*key, data.as_slice())).collect();
        self.edit()
            .edit(tree, |tree, context| tree.insert_many(context, &borrowed))
    }

    pub(super) fn new_item(
        &self,
        inherited_attributes: &NewInodeAttributes,
        plan: Plan<'_>,
        nlink: u32,
    ) -> InodeItem {
        let (generation, now) = (self.generation(), self.now());
        let content = plan.target.or(plan.whole.map(|whole| whole.content));
        let content_bytes = content.map_or(ByteCount::ZERO, |content| ByteCount::of(content.len()));
        let mut item = InodeItem {
            generation,
            transid: generation,
            size: content_bytes,
            nbytes: content_bytes,
            block_group: 0,
            nlink,
            uid: inherited_attributes.uid,
            gid: inherited_attributes.gid,
            mode: inherited_attributes.mode,
            rdev: plan.rdev,
            flags: inherited_attributes.flags,
            sequence: 0,
            atime: now,
            ctime: now,
            mtime: now,
            otime: now,
        };
        if let Some(whole) = plan.whole {
            item.sequence = u64::from(whole.has_content);
            whole.attributes.apply_to(&mut item);
            item.ctime = whole.attributes.changed.unwrap_or(now);
        }
        item
    }

    /// Returns the item of inline content.
    pub(super) fn inline_item(&self, inode: InodeNumber, content: &[u8]) -> (Key, Vec<u8>) {
        let extent = FileExtent {
            generation: self.generation(),
            ram_bytes: ByteCount::of(content.len()),
            compression: Compression::None,
            other_encoding: 0,
            body: FileExtentBody::Inline(content),
        };
        (FileExtent::key(inode, FileOffset::MIN), extent.encode())
    }

    /// Returns an extended attribute as an entry of its item.
    pub(super) fn xattr_entry<'a>(&self, name: &'a [u8], value: &'a [u8]) -> DirItem<'a> {
        DirItem {
            location: Key::new(ObjectId::MIN, ItemType(0), 0),
            transid: self.generation(),
            kind: FileKind::Xattr,
            name,
            data: value,
        }
    }
}

/// Returns the location of an inode in the directory's subvolume.
pub(super) const fn beside(directory: Location, inode: InodeNumber) -> Location {
    Location::new(directory.subvolume, inode)
}
