//! Subvolumes and snapshots: their place, their origin, and their state.
//!
//! A subvolume is a tree of files with a root item in the root tree. The subvolume's place is a
//! directory of another subvolume. The root tree records the place, with the directory and the
//! name, from both sides: `ROOT_REF` under the parent and `ROOT_BACKREF` under the child. A deleted
//! subvolume has no place. The tree of a deleted subvolume is dropped in the background. Until
//! then, its root item counts no references, and may hold the progress of the deletion.
//!
//! Source: on-disk format documentation, sections "ROOT_ITEM", "ROOT_REF" and "ROOT_BACKREF".

use crate::error::{Corruption, Error, Name, Result};
use crate::filesystem::Filesystem;
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::{
    DirItems, Generation, InodeNumber, ItemType, Key, ObjectId, RootItem, RootRef, SubvolumeId, TreeId,
    name_hash,
};
use buttress_tree::{OwnedItem, ReadAhead};
use std::collections::HashMap;
use uuid::Uuid;

/// The maximum nesting depth of subvolumes whose paths are determined.
const NESTING_LIMIT: usize = 4096;

/// The maximum length of a subvolume's path that the lookup determines.
const PATH_LIMIT: usize = 64 << 10;

/// The place of a subvolume in its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumePlace {
    /// The subvolume that contains the place.
    pub parent: SubvolumeId,
    /// The directory in the parent.
    pub directory: InodeNumber,
    /// The index of the entry in the directory.
    pub index: u64,
    /// The name of the entry.
    pub name: Vec<u8>,
}

/// The properties of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// The subvolume's id.
    pub id: SubvolumeId,
    /// The place of the subvolume; `None` for the top level and for deleted subvolumes.
    pub place: Option<SubvolumePlace>,
    /// The path from the top level, without a slash at its start; empty for the top level. `None`
    /// if the subvolume or one of its parents has no place.
    pub path: Option<Vec<u8>>,
    /// The root item.
    pub root_item: RootItem,
}

impl SubvolumeInfo {
    /// Returns the transaction that last changed the subvolume.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.root_item.generation
    }

    /// Returns the transaction that created the subvolume.
    #[must_use]
    pub fn created_generation(&self) -> Generation {
        self.root_item.otransid
    }

    /// Returns true if the subvolume is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.root_item.is_read_only()
    }

    /// Returns true if the subvolume is deleted and not dropped yet.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.root_item.references == 0
    }

    /// Returns true if dropping has begun: a part of the tree is gone.
    #[must_use]
    pub fn is_half_dropped(&self) -> bool {
        self.root_item.drop_progress.objectid != ObjectId::MIN
    }

    /// Returns the uuid, if the subvolume has one. The top-level subvolume of old volumes has no
    /// uuid.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        some_uuid(self.root_item.uuid)
    }

    /// Returns the uuid of a snapshot's source.
    #[must_use]
    pub fn parent_uuid(&self) -> Option<Uuid> {
        some_uuid(self.root_item.parent_uuid)
    }

    /// Returns the uuid that a received subvolume has at its sender.
    #[must_use]
    pub fn received_uuid(&self) -> Option<Uuid> {
        some_uuid(self.root_item.received_uuid)
    }

    /// Returns the snapshots of this subvolume in `all`.
    pub fn snapshots<'a>(&self, all: &'a [Self]) -> impl Iterator<Item = &'a Self> + use<'a> {
        let uuid = self.uuid();
        all.iter()
            .filter(move |other| uuid.is_some() && other.parent_uuid() == uuid)
    }
}

fn some_uuid(uuid: Uuid) -> Option<Uuid> {
    (!uuid.is_nil()).then_some(uuid)
}

impl Filesystem {
    /// Returns all subvolumes in the order of their ids, the top level first. The result includes
    /// deleted subvolumes that are not fully dropped yet.
    ///
    /// The call makes one pass over the root tree, then reads the directories on the path to each
    /// subvolume.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read. A path that cannot be determined is `None`.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let mut found = Vec::new();
        let first = Key::new(TreeId::FS.object_id(), ItemType::ROOT_ITEM, 0);
        let last = Key::new(ObjectId::LAST_FREE, ItemType::ROOT_BACKREF, u64::MAX);
        for item in self.root_tree().range(first..=last, ReadAhead::Forward) {
            let item = item?;
            let key = item.key();
            let Some(id) = TreeId::new(key.objectid.get()).as_subvolume() else {
                continue;
            };
            match key.item_type {
                ItemType::ROOT_ITEM => {
                    let root_item = match self.running_root_item(id.tree()) {
                        Some(newer) => newer.clone(),
                        None => parse_root_item(&key, item.data(), self.sector_bytes())?,
                    };
                    found.push(SubvolumeInfo {
                        id,
                        place: None,
                        path: None,
                        root_item,
                    });
                }
                ItemType::ROOT_BACKREF => {
                    if let Some(info) = found.last_mut().filter(|info| info.id == id) {
                        info.place = Some(parse_place(&key, item.data())?);
                    }
                }
                _ => {}
            }
        }
        self.find_paths(&mut found);
        Ok(found)
    }

    /// Returns one subvolume, without reading the others.
    ///
    /// # Errors
    /// Returns [`Error::SubvolumeNotFound`]. Also fails if the root tree cannot be read.
    pub fn subvolume(&self, id: SubvolumeId) -> Result<SubvolumeInfo> {
        self.subvolume_tree(id)?;
        let root_item = self.root_item(id.tree())?;
        let place = self.subvolume_place(id)?;
        let path = self.subvolume_path(id).ok();
        Ok(SubvolumeInfo {
            id,
            place,
            path,
            root_item,
        })
    }

    /// Returns the place of a subvolume, or `None` for the top level and for deleted subvolumes.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read.
    pub fn subvolume_place(&self, id: SubvolumeId) -> Result<Option<SubvolumePlace>> {
        let first = Key::new(id.tree().object_id(), ItemType::ROOT_BACKREF, 0);
        let last = Key::new(id.tree().object_id(), ItemType::ROOT_BACKREF, u64::MAX);
        match self.root_tree().range(first..=last, ReadAhead::None).next() {
            Some(item) => {
                let item = item?;
                parse_place(&item.key(), item.data()).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Returns the path of a subvolume from the top level, without a slash at its start.
    ///
    /// # Errors
    /// Returns [`Error::SubvolumeNotFound`] if it or one of its parents has no place, or
    /// [`Corruption::ParentLoop`]. Also fails if a tree cannot be read.
    pub fn subvolume_path(&self, id: SubvolumeId) -> Result<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut length = 0_usize;
        let mut current = id;
        while current != SubvolumeId::TOP_LEVEL {
            let Some(place) = self.subvolume_place(current)? else {
                return Err(Error::SubvolumeNotFound { subvolume: current });
            };
            let part = self.place_path(&place)?;
            length = length.exact_add(part.len()).exact_add(1);
            if parts.len() >= NESTING_LIMIT || length > PATH_LIMIT {
                let location = Location::root_of(id);
                return Err(Corruption::ParentLoop {
                    location,
                    limit: NESTING_LIMIT,
                }
                .into());
            }
            parts.push(part);
            current = place.parent;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// Returns the path of a subvolume's place in its parent subvolume.
    fn place_path(&self, place: &SubvolumePlace) -> Result<Vec<u8>> {
        let mut path = self.directory_path(Location::new(place.parent, place.directory))?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&place.name);
        Ok(path)
    }

    /// Sets the path of each subvolume. Determines the path of each place once.
    fn find_paths(&self, infos: &mut [SubvolumeInfo]) {
        let inside: Vec<Option<Vec<u8>>> = infos
            .iter()
            .map(|info| info.place.as_ref().and_then(|place| self.place_path(place).ok()))
            .collect();
        let numbers: HashMap<SubvolumeId, usize> = infos
            .iter()
            .enumerate()
            .map(|(number, info)| (info.id, number))
            .collect();
        let parents: Vec<Option<usize>> = infos
            .iter()
            .map(|info| {
                info.place
                    .as_ref()
                    .and_then(|place| numbers.get(&place.parent).copied())
            })
            .collect();
        for info in infos.iter_mut() {
            let Some(number) = numbers.get(&info.id) else {
                continue;
            };
            info.path = path_through_parents(*number, info.id, &inside, &parents, &numbers);
        }
    }

    /// Returns the default subvolume, which a mount without options shows. The root tree's
    /// directory names it; otherwise it is the top level.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read.
    pub fn default_subvolume(&self) -> Result<SubvolumeId> {
        let directory = self.superblock().root_dir_objectid;
        let key = Key::new(directory, ItemType::DIR_ITEM, name_hash(DEFAULT_NAME));
        let item = self.root_tree().get(&key)?;
        default_in(&key, item.as_ref().map(OwnedItem::data))
    }

    /// Returns the target of the entry `name` of `directory`, which points at subvolume `child`.
    /// The target is the root of the subvolume if the entry is its place, otherwise the
    /// placeholder.
    pub(crate) fn nested_subvolume(
        &self,
        directory: Location,
        name: &[u8],
        child: SubvolumeId,
    ) -> Result<Location> {
        let key = Key::new(
            directory.subvolume.tree().object_id(),
            ItemType::ROOT_REF,
            child.get(),
        );
        let placeholder = Location::placeholder_in(directory);
        let Some(item) = self.root_tree().get(&key)? else {
            return Ok(placeholder);
        };
        let place = RootRef::parse(&key, item.data()).map_err(|error| Corruption::Item {
            tree: TreeId::ROOT,
            error,
        })?;
        if place.directory != directory.inode || place.name != name {
            return Ok(placeholder);
        }
        match self.root_item(child.tree()) {
            Ok(root) if root.references > 0 => Ok(Location::root_of(child)),
            Ok(_) | Err(Error::TreeNotFound { .. }) => Ok(placeholder),
            Err(error) => Err(error),
        }
    }
}

/// Joins the paths of the places from `number` up to the top level.
fn path_through_parents(
    number: usize,
    id: SubvolumeId,
    inside: &[Option<Vec<u8>>],
    parents: &[Option<usize>],
    numbers: &HashMap<SubvolumeId, usize>,
) -> Option<Vec<u8>> {
    if id == SubvolumeId::TOP_LEVEL {
        return Some(Vec::new());
    }
    let top = numbers.get(&SubvolumeId::TOP_LEVEL)?;
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut length = 0_usize;
    let mut current = number;
    while current != *top {
        let part = inside.get(current)?.as_deref()?;
        length = length.exact_add(part.len()).exact_add(1);
        if parts.len() >= NESTING_LIMIT || length > PATH_LIMIT {
            return None;
        }
        parts.push(part);
        current = (*parents.get(current)?)?;
    }
    parts.reverse();
    Some(parts.join(&b'/'))
}

fn parse_root_item(key: &Key, data: &[u8], sector_bytes: u32) -> Result<RootItem> {
    RootItem::parse(key, data, sector_bytes).map_err(|error| {
        Corruption::Item {
            tree: TreeId::ROOT,
            error,
        }
        .into()
    })
}

/// The name of the entry that identifies the default subvolume.
pub const DEFAULT_NAME: &[u8] = b"default";

/// Returns the default subvolume from the item of the root tree's directory that names it.
///
/// # Errors
/// Fails if the item is invalid.
pub fn default_in(key: &Key, data: Option<&[u8]>) -> Result<SubvolumeId> {
    let broken = |error| Corruption::Item {
        tree: TreeId::ROOT,
        error,
    };
    let Some(data) = data else {
        return Ok(SubvolumeId::TOP_LEVEL);
    };
    for entry in DirItems::parse(key, data).map_err(broken)? {
        if entry.name == DEFAULT_NAME {
            let id = TreeId::new(entry.location.objectid.get());
            return id.as_subvolume().ok_or_else(|| {
                let tree = SubvolumeId::new(TreeId::ROOT.get());
                Corruption::EntryTargetInvalid {
                    directory: Location::new(tree, InodeNumber::new(key.objectid.get())),
                    name: Name::from(DEFAULT_NAME),
                    target: entry.location,
                }
                .into()
            });
        }
    }
    Ok(SubvolumeId::TOP_LEVEL)
}

/// Returns the place in a root reference of either direction.
///
/// # Errors
/// Fails if the item is invalid.
pub fn parse_place(key: &Key, data: &[u8]) -> Result<SubvolumePlace> {
    let reference = RootRef::parse(key, data).map_err(|error| Corruption::Item {
        tree: TreeId::ROOT,
        error,
    })?;
    Ok(SubvolumePlace {
        parent: SubvolumeId::new(key.offset),
        directory: reference.directory,
        index: reference.sequence,
        name: reference.name.to_vec(),
    })
}
