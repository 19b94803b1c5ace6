//! Model of a volume: trees of inodes as plain maps.

use super::access_list::AccessList;
use buttress::unstable::fs::acl::{ACCESS_NAME, DEFAULT_NAME};
use buttress::{FileAttributes, InodeNumber, Location, SubvolumeId};
use buttress_oracle::manifest::{DataRange, Entry, Manifest, link_groups};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Type bits of a directory's mode.
pub const DIRECTORY: u32 = 0o040_000;
/// Type bits of a regular file's mode.
pub const REGULAR: u32 = 0o100_000;
/// Mode bit of a directory that passes its group on to new entries.
pub const SET_GROUP_ID: u32 = 0o2000;
const TYPE_MASK: u32 = 0o170_000;

/// Target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An inode of the same subvolume.
    Inode(u64),
    /// A subvolume; in a snapshot, its placeholder.
    Subvolume(SubvolumeId),
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Time of the last change of content, in seconds.
    pub modified: i64,
    /// True if a call set this time explicitly; false if the clock set it.
    pub modified_is_set: bool,
    /// Flags of chattr(1).
    pub flags: FileAttributes,
    /// Access list, if it says more than the mode.
    pub access_list: Option<AccessList>,
    /// Default access list of a directory.
    pub default_list: Option<AccessList>,
    /// Other extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target of a symlink.
    pub target: Vec<u8>,
    /// Names in a directory.
    pub entries: BTreeMap<Vec<u8>, Target>,
    /// Number of names.
    pub links: u32,
    /// Content of a file.
    pub content: Arc<Vec<u8>>,
}

impl Default for Inode {
    fn default() -> Self {
        Self {
            mode: 0,
            uid: 0,
            gid: 0,
            device: (0, 0),
            modified: 0,
            modified_is_set: false,
            flags: FileAttributes::empty(),
            access_list: None,
            default_list: None,
            xattrs: BTreeMap::new(),
            target: Vec::new(),
            entries: BTreeMap::new(),
            links: 0,
            content: Arc::default(),
        }
    }
}

impl Inode {
    /// Sets the times of a change of content or names at this second.
    pub const fn touch(&mut self, now: i64) {
        self.modified = now;
        self.modified_is_set = false;
    }

    /// Returns whether the inode's names and attributes must not change.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        self.flags
            .intersects(FileAttributes::IMMUTABLE.union(FileAttributes::APPEND))
    }

    /// Returns whether the inode is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        self.mode & TYPE_MASK == DIRECTORY
    }

    /// Returns whether the inode is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.mode & TYPE_MASK == REGULAR
    }
}

/// A subvolume.
#[derive(Clone, Debug, Default)]
pub struct Subvolume {
    /// Inodes of the subvolume, by number.
    pub inodes: BTreeMap<u64, Inode>,
    /// True if the subvolume is read-only.
    pub read_only: bool,
    /// Directory and name of the subvolume; `None` for the top level.
    pub place: Option<(Location, Vec<u8>)>,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its subvolumes.
    pub subvolumes: BTreeMap<SubvolumeId, Subvolume>,
    /// Default subvolume.
    pub default: SubvolumeId,
    /// Label of the volume.
    pub label: Vec<u8>,
    /// Inodes that are held open and outlive their names.
    pub held: BTreeSet<Location>,
    /// Held inodes that never had a name and may still get one.
    pub unnamed: BTreeSet<Location>,
    /// Size of the volume's tree blocks in bytes.
    pub node_bytes: u64,
    /// True if the kernel may mark files with incompressible content as incompressible.
    pub may_give_up: bool,
}

impl Model {
    /// Creates the model of a new volume, made at this second.
    #[must_use]
    pub fn new(made: i64) -> Self {
        let top = Subvolume {
            inodes: BTreeMap::from([(256, root_directory(made))]),
            ..Subvolume::default()
        };
        Self {
            subvolumes: BTreeMap::from([(SubvolumeId::TOP_LEVEL, top)]),
            default: SubvolumeId::TOP_LEVEL,
            label: Vec::new(),
            held: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            node_bytes: 16 << 10,
            may_give_up: false,
        }
    }

    /// Returns an inode.
    #[must_use]
    pub fn inode(&self, location: Location) -> Option<&Inode> {
        self.subvolumes
            .get(&location.subvolume)?
            .inodes
            .get(&location.inode.get())
    }

    /// Returns an inode for changes.
    pub fn inode_mut(&mut self, location: Location) -> Option<&mut Inode> {
        self.subvolumes
            .get_mut(&location.subvolume)?
            .inodes
            .get_mut(&location.inode.get())
    }

    /// Returns whether the inode's subvolume is writable.
    #[must_use]
    pub fn is_writable(&self, location: Location) -> bool {
        self.subvolumes
            .get(&location.subvolume)
            .is_some_and(|subvolume| !subvolume.read_only)
    }

    /// Returns the target of a name in a directory.
    #[must_use]
    pub fn target(&self, directory: Location, name: &[u8]) -> Option<Target> {
        self.inode(directory)?.entries.get(name).copied()
    }

    /// Adds a name to a directory.
    pub fn link(&mut self, directory: Location, name: &[u8], target: Target, now: i64) {
        if let Some(inode) = self.inode_mut(directory) {
            inode.entries.insert(name.to_vec(), target);
            inode.touch(now);
        }
    }

    /// Removes a name from a directory. An inode without names is removed, unless it is held.
    pub fn unlink(&mut self, directory: Location, name: &[u8], now: i64) {
        let Some(parent) = self.inode_mut(directory) else {
            return;
        };
        parent.touch(now);
        let Some(Target::Inode(number)) = parent.entries.remove(name) else {
            return;
        };
        let location = Location::new(directory.subvolume, InodeNumber::new(number));
        if let Some(inode) = self.inode_mut(location) {
            inode.links -= 1;
            if inode.links == 0 && !self.held.contains(&location) {
                self.remove_inode(location);
            }
        }
    }

    fn remove_inode(&mut self, location: Location) {
        if let Some(subvolume) = self.subvolumes.get_mut(&location.subvolume) {
            subvolume.inodes.remove(&location.inode.get());
        }
    }

    /// Releases a held inode.
    pub fn release(&mut self, location: Location) {
        self.held.remove(&location);
        self.unnamed.remove(&location);
        if self.inode(location).is_some_and(|inode| inode.links == 0) {
            self.remove_inode(location);
        }
    }

    /// Releases all held inodes, as a crash does.
    pub fn release_all(&mut self) {
        for location in self.held.clone() {
            self.release(location);
        }
    }

    /// Copies a subvolume under another id.
    pub fn snapshot(
        &mut self,
        source: SubvolumeId,
        id: SubvolumeId,
        place: (Location, Vec<u8>),
        read_only: bool,
    ) {
        let mut copied = self.subvolumes.get(&source).cloned().unwrap_or_default();
        // The snapshot's copy of an inode without names is not held open.
        copied.inodes.retain(|_, inode| inode.links > 0);
        let copy = Subvolume {
            place: Some(place),
            read_only,
            ..copied
        };
        self.subvolumes.insert(id, copy);
    }

    /// Returns whether the directory contains a subvolume under this name; a snapshot contains only
    /// its placeholder.
    #[must_use]
    pub fn is_place(&self, id: SubvolumeId, directory: Location, name: &[u8]) -> bool {
        self.subvolumes
            .get(&id)
            .and_then(|subvolume| subvolume.place.as_ref())
            .is_some_and(|(place, own)| *place == directory && own == name)
    }

    /// Returns the manifest of a walk from the top level.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        self.manifest_by(entry_of)
    }

    /// Returns the manifest for a volume with another clock: only explicitly set times are
    /// compared.
    #[must_use]
    pub fn manifest_by_another_clock(&self) -> Manifest {
        self.manifest_by(|inode| Entry {
            made_up: !inode.modified_is_set,
            ..entry_of(inode)
        })
    }

    fn manifest_by(&self, entry_of: impl Fn(&Inode) -> Entry) -> Manifest {
        let mut manifest = Manifest::new();
        let mut groups: HashMap<Location, Vec<Vec<u8>>> = HashMap::new();
        let mut waiting = vec![(Vec::new(), Location::root_of(SubvolumeId::TOP_LEVEL))];
        while let Some((path, location)) = waiting.pop() {
            let Some(inode) = self.inode(location) else {
                continue;
            };
            for (name, target) in &inode.entries {
                let below = joined(&path, name);
                match target {
                    Target::Inode(number) => {
                        waiting.push((
                            below,
                            Location::new(location.subvolume, InodeNumber::new(*number)),
                        ));
                    }
                    Target::Subvolume(id) if self.is_place(*id, location, name) => {
                        waiting.push((below, Location::root_of(*id)));
                    }
                    Target::Subvolume(_) => drop(manifest.insert(below, empty_directory(inode))),
                }
            }
            if !inode.is_directory() && inode.links > 1 {
                groups.entry(location).or_default().push(path.clone());
            }
            manifest.insert(path, entry_of(inode));
        }
        link_groups(&mut manifest, groups.into_values());
        manifest
    }

    /// Returns one of an inode's names, with its directory.
    #[must_use]
    pub fn name_of(&self, location: Location) -> Option<(Location, Vec<u8>)> {
        let target = Target::Inode(location.inode.get());
        let inodes = &self.subvolumes.get(&location.subvolume)?.inodes;
        inodes.iter().find_map(|(number, inode)| {
            let name = inode.entries.iter().find(|(_, found)| **found == target)?.0;
            let directory = Location::new(location.subvolume, InodeNumber::new(*number));
            Some((directory, name.clone()))
        })
    }

    /// Returns a path of an inode from the top level, if it has a name.
    #[must_use]
    pub fn path_of(&self, location: Location) -> Option<Vec<u8>> {
        let mut path = Vec::new();
        let mut current = location;
        while current != Location::root_of(SubvolumeId::TOP_LEVEL) {
            let (directory, name) = if current == Location::root_of(current.subvolume) {
                self.subvolumes.get(&current.subvolume)?.place.clone()?
            } else {
                self.name_of(current)?
            };
            path = if path.is_empty() {
                name
            } else {
                joined(&name, &path)
            };
            current = directory;
        }
        Some(path)
    }
}

/// Appends a name to a path.
fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return name.to_vec();
    }
    [path, name].join(&b'/')
}

/// Creates the root directory of a new volume.
fn root_directory(now: i64) -> Inode {
    Inode {
        mode: DIRECTORY | 0o755,
        modified: now,
        links: 1,
        ..Inode::default()
    }
}

/// Returns the placeholder for a subvolume in a snapshot, which belongs to the owner of its
/// directory.
fn empty_directory(parent: &Inode) -> Entry {
    Entry {
        mode: DIRECTORY | 0o755,
        uid: parent.uid,
        gid: parent.gid,
        made_up: true,
        ..Entry::default()
    }
}

fn entry_of(inode: &Inode) -> Entry {
    let lists = [
        (ACCESS_NAME, &inode.access_list),
        (DEFAULT_NAME, &inode.default_list),
    ];
    Entry {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.content.len() as u64,
        device: inode.device,
        modified: (inode.modified, 0),
        xattrs: inode
            .xattrs
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .chain(
                lists
                    .into_iter()
                    .filter_map(|(name, list)| Some((name.to_vec(), list.as_ref()?.value()))),
            )
            .collect(),
        target: inode.target.clone(),
        data: whole(&inode.content),
        attributes: (inode.is_file() || inode.is_directory()).then_some(inode.flags.bits()),
        ..Entry::default()
    }
}

/// Returns the whole file as one range, because the volume may place holes freely.
#[must_use]
pub fn whole(content: &[u8]) -> Vec<DataRange> {
    if content.is_empty() {
        return Vec::new();
    }
    vec![DataRange {
        start: 0,
        end: content.len() as u64,
        crc32c: crc32c::crc32c(content),
    }]
}
