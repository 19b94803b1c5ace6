//! The subvolumes of a send: the one to send, its parent, and its clone sources.

use crate::send::error::{Error, NamesProblem, Result};
use buttress_format::{
    Generation, InodeExtrefs, InodeItem, InodeNumber, InodeRefs, ItemType, Key, ObjectId, SubvolumeId, Uuid,
    name_hash,
};
use buttress_fs::{Corruption, Filesystem, Location, SubvolumeInfo};
use buttress_tree::{ReadAhead, Tree};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

/// A read-only subvolume of an open volume, as the source of a send.
#[derive(Clone, Debug)]
pub struct Snapshot {
    filesystem: Filesystem,
    info: SubvolumeInfo,
    tree: Tree,
}

/// A name of an inode, with the directory that holds the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Link {
    pub(crate) parent: InodeNumber,
    pub(crate) name: Arc<[u8]>,
}

impl Link {
    pub(crate) fn new(parent: InodeNumber, name: &[u8]) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }
}

impl Snapshot {
    /// Opens the subvolume `id`, which must be read-only: a subvolume that could change during the
    /// send is refused.
    ///
    /// # Errors
    /// [`Error::NotReadOnly`], [`Error::Deleted`], [`Error::NoUuid`], or an error of the volume.
    pub fn open(filesystem: &Filesystem, id: SubvolumeId) -> Result<Self> {
        let info = filesystem.subvolume(id)?;
        if info.is_deleted() || info.is_half_dropped() {
            return Err(Error::Deleted { subvolume: id });
        }
        if !info.is_read_only() {
            let path = info.path.clone().unwrap_or_default();
            return Err(Error::NotReadOnly {
                subvolume: id,
                path: std::ffi::OsString::from_vec(path).into(),
            });
        }
        if info.uuid().is_none() {
            return Err(Error::NoUuid { subvolume: id });
        }
        let tree = filesystem.subvolume_tree(id)?;
        Ok(Self {
            filesystem: filesystem.clone(),
            info,
            tree,
        })
    }

    /// Returns the volume of the snapshot.
    #[must_use]
    pub const fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Returns the subvolume's properties.
    #[must_use]
    pub const fn info(&self) -> &SubvolumeInfo {
        &self.info
    }

    /// Returns the subvolume's tree.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the subvolume's id.
    #[must_use]
    pub const fn id(&self) -> SubvolumeId {
        self.info.id
    }

    /// Returns the UUID by which receivers know the subvolume: its received UUID if it has one,
    /// else its own.
    #[must_use]
    pub fn stream_uuid(&self) -> Uuid {
        self.info
            .received_uuid()
            .or_else(|| self.info.uuid())
            .map_or(Uuid::from_bytes([0; 16]), |uuid| {
                Uuid::from_bytes(uuid.into_bytes())
            })
    }

    /// Returns the generation that last changed the subvolume, as streams state it.
    #[must_use]
    pub const fn stream_transid(&self) -> Generation {
        self.info.root_item.ctransid
    }

    /// Returns the last component of the subvolume's path, which is its name at the receiver; empty
    /// for the top level.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.info.place.as_ref().map_or(&[], |place| &place.name)
    }

    /// Returns whether `other` is in the same volume, so that extent addresses are comparable.
    pub(crate) fn shares_volume_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.filesystem.volume(), other.filesystem.volume())
    }

    pub(crate) const fn location(&self, inode: InodeNumber) -> Location {
        Location::new(self.info.id, inode)
    }

    pub(crate) fn corrupt(&self, error: buttress_format::ItemError) -> Error {
        buttress_fs::Error::from(Corruption::Item {
            tree: self.info.id.tree(),
            error,
        })
        .into()
    }

    pub(crate) const fn names_error(&self, inode: InodeNumber, problem: NamesProblem) -> Error {
        Error::Names {
            subvolume: self.info.id,
            inode,
            problem,
        }
    }

    /// Returns an inode item, if it exists.
    pub(crate) fn inode(&self, inode: InodeNumber) -> Result<Option<InodeItem>> {
        let key = Key::new(inode.object_id(), ItemType::INODE_ITEM, 0);
        let Some(item) = self.tree.get(&key).map_err(buttress_fs::Error::from)? else {
            return Ok(None);
        };
        InodeItem::parse(&key, item.data())
            .map(Some)
            .map_err(|error| self.corrupt(error))
    }

    /// Returns the highest inode number in use; inodes created later have higher numbers.
    pub(crate) fn last_inode(&self) -> Result<InodeNumber> {
        let end = Key::new(ObjectId::LAST_FREE, ItemType(u8::MAX), u64::MAX);
        let mut cursor = self.tree.cursor(ReadAhead::None);
        cursor.seek_at_or_before(&end).map_err(buttress_fs::Error::from)?;
        Ok(cursor
            .key()
            .map_or(InodeNumber::MIN, |key| InodeNumber::new(key.objectid.get())))
    }

    /// Lists all names of an inode, in the order of its items.
    pub(crate) fn links(&self, inode: InodeNumber) -> Result<Vec<Link>> {
        let first = Key::new(inode.object_id(), ItemType::INODE_REF, 0);
        let last = Key::new(inode.object_id(), ItemType::INODE_EXTREF, u64::MAX);
        let mut links = Vec::new();
        for item in self.tree.range(first..=last, ReadAhead::None) {
            let item = item.map_err(buttress_fs::Error::from)?;
            self.parse_links(&item.key(), item.data(), &mut links)?;
        }
        Ok(links)
    }

    /// Returns the first name of an inode, in the order of its items.
    pub(crate) fn first_link(&self, inode: InodeNumber) -> Result<Link> {
        let first = Key::new(inode.object_id(), ItemType::INODE_REF, 0);
        let last = Key::new(inode.object_id(), ItemType::INODE_EXTREF, u64::MAX);
        let mut links = Vec::new();
        if let Some(item) = self.tree.range(first..=last, ReadAhead::None).next() {
            let item = item.map_err(buttress_fs::Error::from)?;
            self.parse_links(&item.key(), item.data(), &mut links)?;
        }
        links
            .into_iter()
            .next()
            .ok_or_else(|| self.names_error(inode, NamesProblem::None))
    }

    /// Appends the names in an `INODE_REF` or `INODE_EXTREF` item.
    pub(crate) fn parse_links(&self, key: &Key, data: &[u8], links: &mut Vec<Link>) -> Result<()> {
        let mut push = |name: buttress_format::InodeName<'_>| links.push(Link::new(name.parent, name.name));
        if key.item_type == ItemType::INODE_REF {
            InodeRefs::parse(key, data)
                .map_err(|error| self.corrupt(error))?
                .for_each(&mut push);
        } else {
            InodeExtrefs::parse(key, data)
                .map_err(|error| self.corrupt(error))?
                .for_each(&mut push);
        }
        Ok(())
    }

    /// Returns whether a directory may hold this name. True may be another name with the same hash.
    pub(crate) fn may_hold(&self, directory: InodeNumber, name: &[u8]) -> Result<bool> {
        let key = Key::new(directory.object_id(), ItemType::DIR_ITEM, name_hash(name));
        Ok(self.tree.get(&key).map_err(buttress_fs::Error::from)?.is_some())
    }
}
