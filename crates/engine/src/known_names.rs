//! A cache of names that were looked up, with the inodes they lead to. Path resolution repeats the
//! same names, and each lookup would otherwise descend a tree.
//!
//! Only a lookup between two operations adds a name. If an operation removes a name from its
//! directory, it removes the cached name in the same step. New names of operations are not added. A
//! lookup therefore finds a name here only if no reader can have seen a newer state of its
//! directory. Names of subvolumes are not cached, since their targets depend on more than the
//! directory.
//!
//! Invariant: between two operations, each cached name is in its directory and leads to the
//! recorded inode.
//!
//! Memory is bounded: names that were looked up only once are evicted first.

use buttress_exact::{Exact as _, u64_of};
use buttress_format::{FileKind, InodeNumber, TreeId};
use buttress_fs::location::Location;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, Weighter};
use std::collections::hash_map::DefaultHasher;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The memory limit of all names.
const CAPACITY_BYTES: u64 = 4 << 20;

/// The memory of a name beside its bytes: its directory, its inode, and the cache's own records.
const NAME_OVERHEAD_BYTES: u64 = 96;

/// The expected average length of names, from which the cache computes how many names it plans for.
const USUAL_NAME_BYTES: u64 = 16;

/// A name in its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownName {
    tree: TreeId,
    directory: InodeNumber,
    name: Box<[u8]>,
}

impl Hash for KnownName {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.tree, self.directory, &self.name[..]).hash(hasher);
    }
}

/// A borrowed key for lookups of a [`KnownName`].
#[derive(Hash)]
struct Asked<'a>(TreeId, InodeNumber, &'a [u8]);

impl<'a> Asked<'a> {
    const fn of(directory: Location, name: &'a [u8]) -> Self {
        Self(directory.subvolume.tree(), directory.inode, name)
    }
}

impl Equivalent<KnownName> for Asked<'_> {
    fn equivalent(&self, known: &KnownName) -> bool {
        let Self(tree, directory, name) = self;
        known.tree == *tree && known.directory == *directory && *known.name == **name
    }
}

/// The inode of the directory's subvolume to which a name leads, and its file type.
type Found = (InodeNumber, FileKind);

#[derive(Clone, Copy, Debug)]
struct NameWeight;

impl Weighter<KnownName, Found> for NameWeight {
    fn weight(&self, known: &KnownName, _: &Found) -> u64 {
        u64_of(known.name.len()).saturating_add(NAME_OVERHEAD_BYTES)
    }
}

/// The cache of looked-up names. See the module's documentation.
#[derive(Debug)]
pub struct KnownNames(
    // The hash keys are fixed, so that a run on a simulated device can be repeated.
    Cache<KnownName, Found, NameWeight, BuildHasherDefault<DefaultHasher>>,
);

impl Default for KnownNames {
    fn default() -> Self {
        let usual_bytes = NAME_OVERHEAD_BYTES.saturating_add(USUAL_NAME_BYTES);
        let names = CAPACITY_BYTES.checked_div(usual_bytes).unwrap_or(1);
        Self(Cache::with(
            names.narrow::<usize>(),
            CAPACITY_BYTES,
            NameWeight,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        ))
    }
}

impl KnownNames {
    /// Returns the inode to which a name leads, if it is cached.
    pub fn find(&self, directory: Location, name: &[u8]) -> Option<Found> {
        self.0.get(&Asked::of(directory, name))
    }

    /// Adds the result of a lookup. The caller makes sure that no operation began since the lookup.
    pub fn learn(&self, directory: Location, name: &[u8], found: Found) {
        let known = KnownName {
            tree: directory.subvolume.tree(),
            directory: directory.inode,
            name: name.into(),
        };
        self.0.insert(known, found);
    }

    /// Removes a name that an operation removes from its directory.
    pub fn forget(&self, directory: Location, name: &[u8]) {
        if !buttress_faults::on("live-name-known-for-ever") {
            self.0.remove(&Asked::of(directory, name));
        }
    }

    /// Removes all names of a tree that no longer exists.
    pub fn forget_tree(&self, tree: TreeId) {
        self.0.retain(|known, _| known.tree != tree);
    }
}
