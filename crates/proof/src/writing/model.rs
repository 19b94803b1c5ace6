//! The model: trees of inodes as plain maps.

use buttress::{InodeNumber, Location, SubvolumeId};
use buttress_oracle::manifest::{DataRange, Entry, Manifest, link_groups};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Type bits of modes.
pub const DIRECTORY: u32 = 0o040_000;
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
#[derive(Clone, Debug, Default)]
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
    /// Extended attributes.
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

impl Inode {
    /// Whether it is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        self.mode & TYPE_MASK == DIRECTORY
    }

    /// Whether it is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.mode & TYPE_MASK == 0o100_000
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
            inode.modified = now;
        }
    }

    /// Takes a name out of a directory. An inode that loses its last name goes.
    pub fn unlink(&mut self, directory: Location, name: &[u8], now: i64) {
        let Some(parent) = self.inode_mut(directory) else {
            return;
        };
        parent.modified = now;
        let Some(Target::Inode(number)) = parent.entries.remove(name) else {
            return;
        };
        let location = Location::new(directory.subvolume, InodeNumber::new(number));
        if let Some(inode) = self.inode_mut(location) {
            inode.links -= 1;
            if inode.links == 0 {
                self.subvolumes
                    .get_mut(&directory.subvolume)
                    .map(|subvolume| subvolume.inodes.remove(&number));
            }
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
        let copied = self.subvolumes.get(&source).cloned().unwrap_or_default();
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
        let mut manifest = Manifest::new();
        let mut groups: HashMap<Location, Vec<Vec<u8>>> = HashMap::new();
        let mut waiting = vec![(Vec::new(), Location::root_of(SubvolumeId::TOP_LEVEL))];
        while let Some((path, location)) = waiting.pop() {
            let Some(inode) = self.inode(location) else {
                continue;
            };
            for (name, target) in &inode.entries {
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(name);
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
}

/// The root directory of a new subvolume.
#[must_use]
pub fn root_directory(now: i64) -> Inode {
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
    Entry {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.content.len() as u64,
        device: inode.device,
        modified: (inode.modified, 0),
        xattrs: inode.xattrs.clone(),
        target: inode.target.clone(),
        data: whole(&inode.content),
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
