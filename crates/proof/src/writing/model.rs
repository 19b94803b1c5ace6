//! The model: trees of inodes as plain maps.

use super::access_list::AccessList;
use buttress::unstable::fs::acl::{ACCESS_NAME, DEFAULT_NAME};
use buttress::{FileAttributes, InodeNumber, Location, SubvolumeId};
use buttress_oracle::manifest::{DataRange, Entry, Manifest, link_groups};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Type bits of modes.
pub const DIRECTORY: u32 = 0o040_000;
/// Those of regular files.
pub const REGULAR: u32 = 0o100_000;
/// The bit of a mode that gives a directory's group to what is made in it.
pub const SET_GROUP_ID: u32 = 0o2000;
const TYPE_MASK: u32 = 0o170_000;

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To an inode of the same subvolume.
    Inode(u64),
    /// To a subvolume; in a snapshot, to the empty directory that stands for it.
    Subvolume(SubvolumeId),
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Time of the last change of content, in seconds.
    pub modified: i64,
    /// Whether that time was set, not taken from the clock.
    pub modified_is_set: bool,
    /// Flags as chattr(1) knows them.
    pub flags: FileAttributes,
    /// The list that governs access, if it says more than the mode.
    pub access_list: Option<AccessList>,
    /// The list for what is made in a directory.
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
    /// Its content, or its names, changed at this second.
    pub const fn touch(&mut self, now: i64) {
        self.modified = now;
        self.modified_is_set = false;
    }

    /// Whether its names and attributes must stay.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        self.flags
            .intersects(FileAttributes::IMMUTABLE.union(FileAttributes::APPEND))
    }

    /// Whether it is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        self.mode & TYPE_MASK == DIRECTORY
    }

    /// Whether it is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.mode & TYPE_MASK == REGULAR
    }
}

/// A subvolume.
#[derive(Clone, Debug, Default)]
pub struct Subvolume {
    /// Its inodes by number.
    pub inodes: BTreeMap<u64, Inode>,
    /// Whether nothing in it may change.
    pub read_only: bool,
    /// Directory and name of its place; `None` for the top level.
    pub place: Option<(Location, Vec<u8>)>,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its subvolumes.
    pub subvolumes: BTreeMap<SubvolumeId, Subvolume>,
    /// The one that is mounted where none is named.
    pub default: SubvolumeId,
    /// Its label.
    pub label: Vec<u8>,
    /// Inodes that are held open: they outlive their names.
    pub held: BTreeSet<Location>,
    /// Those of them that never had a name, and can be given one.
    pub unnamed: BTreeSet<Location>,
    /// Size of its tree blocks.
    pub node_bytes: u64,
    /// Whether files whose content did not compress may be marked so.
    pub may_give_up: bool,
}

impl Model {
    /// A new volume, made at this second.
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

    /// An inode.
    #[must_use]
    pub fn inode(&self, location: Location) -> Option<&Inode> {
        self.subvolumes
            .get(&location.subvolume)?
            .inodes
            .get(&location.inode.get())
    }

    /// An inode, to be changed.
    pub fn inode_mut(&mut self, location: Location) -> Option<&mut Inode> {
        self.subvolumes
            .get_mut(&location.subvolume)?
            .inodes
            .get_mut(&location.inode.get())
    }

    /// Whether the inode's subvolume may be changed.
    #[must_use]
    pub fn is_writable(&self, location: Location) -> bool {
        self.subvolumes
            .get(&location.subvolume)
            .is_some_and(|subvolume| !subvolume.read_only)
    }

    /// Where a name in a directory leads.
    #[must_use]
    pub fn target(&self, directory: Location, name: &[u8]) -> Option<Target> {
        self.inode(directory)?.entries.get(name).copied()
    }

    /// Puts a name into a directory.
    pub fn link(&mut self, directory: Location, name: &[u8], target: Target, now: i64) {
        if let Some(inode) = self.inode_mut(directory) {
            inode.entries.insert(name.to_vec(), target);
            inode.touch(now);
        }
    }

    /// Takes a name out of a directory. An inode that loses its last name goes, unless it is held.
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

    /// Lets go of an inode that was held.
    pub fn release(&mut self, location: Location) {
        self.held.remove(&location);
        self.unnamed.remove(&location);
        if self.inode(location).is_some_and(|inode| inode.links == 0) {
            self.remove_inode(location);
        }
    }

    /// Lets go of all, as a crash does.
    pub fn release_all(&mut self) {
        for location in self.held.clone() {
            self.release(location);
        }
    }

    /// A copy of a subvolume under another id.
    pub fn snapshot(
        &mut self,
        source: SubvolumeId,
        id: SubvolumeId,
        place: (Location, Vec<u8>),
        read_only: bool,
    ) {
        let mut copied = self.subvolumes.get(&source).cloned().unwrap_or_default();
        // Nobody holds the copy of an inode without names.
        copied.inodes.retain(|_, inode| inode.links > 0);
        let copy = Subvolume {
            place: Some(place),
            read_only,
            ..copied
        };
        self.subvolumes.insert(id, copy);
    }

    /// Whether a subvolume lies in the directory by this name: in a snapshot of its parent it does not.
    #[must_use]
    pub fn is_place(&self, id: SubvolumeId, directory: Location, name: &[u8]) -> bool {
        self.subvolumes
            .get(&id)
            .and_then(|subvolume| subvolume.place.as_ref())
            .is_some_and(|(place, own)| *place == directory && own == name)
    }

    /// What a walk from the top level shows.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        self.manifest_by(entry_of)
    }

    /// The same, of a volume whose clock was another: only times that were set are compared.
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

    /// One of an inode's names: its directory, and the name in it.
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

    /// A path of an inode from the top level, if it has a name.
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

/// A path with a name below it.
fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return name.to_vec();
    }
    [path, name].join(&b'/')
}

/// The root directory of a new volume.
fn root_directory(now: i64) -> Inode {
    Inode {
        mode: DIRECTORY | 0o755,
        modified: now,
        links: 1,
        ..Inode::default()
    }
}

/// What stands in a snapshot for a subvolume that lies elsewhere: it belongs to the owner of the directory.
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

/// All of a file as one range, holes and all: where holes lie is the volume's affair.
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
