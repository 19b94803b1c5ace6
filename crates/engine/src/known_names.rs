//! Names that were looked up, and the inodes they lead to: who resolves paths looks the same names up again and again, and
//! each would go down a tree.
//!
//! Only a look-up puts a name in, between two operations; an operation that takes a name out of its directory takes it out
//! here in the same step. What an operation makes is not put in: a name is found here only in a state in which nobody can
//! have seen anything newer of its directory. Names of subvolumes are left out, since what they lead to depends on more than
//! their directory.
//!
//! Invariant: between two operations, a name that is here is in its directory, and leads there.
//!
//! Memory is bounded; names that were asked for once go first.

use buttress_exact::{Exact as _, u64_of};
use buttress_format::{FileKind, InodeNumber, TreeId};
use buttress_fs::location::Location;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, Weighter};
use std::collections::hash_map::DefaultHasher;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What all names may take.
const CAPACITY_BYTES: u64 = 4 << 20;

/// What a name takes beside its bytes: where it is and leads, and the cache's own records.
const NAME_OVERHEAD_BYTES: u64 = 96;

/// How long names are, on the average, that fill the cache: it plans for as many as that makes.
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

/// The same, to ask for it.
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

/// An inode of the directory's subvolume, as its name says what it is.
type Found = (InodeNumber, FileKind);

#[derive(Clone, Copy, Debug)]
struct NameWeight;

impl Weighter<KnownName, Found> for NameWeight {
    fn weight(&self, known: &KnownName, _: &Found) -> u64 {
        u64_of(known.name.len()).saturating_add(NAME_OVERHEAD_BYTES)
    }
}

/// See the module.
#[derive(Debug)]
pub struct KnownNames(
    // Fixed keys, so that a run on a simulated device can be repeated.
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
    /// Where the name leads, if that is known.
    pub fn find(&self, directory: Location, name: &[u8]) -> Option<Found> {
        self.0.get(&Asked::of(directory, name))
    }

    /// A look-up found this, and no operation can have begun since.
    pub fn learn(&self, directory: Location, name: &[u8], found: Found) {
        let known = KnownName {
            tree: directory.subvolume.tree(),
            directory: directory.inode,
            name: name.into(),
        };
        self.0.insert(known, found);
    }

    /// The name is being taken out of its directory.
    pub fn forget(&self, directory: Location, name: &[u8]) {
        if !buttress_faults::on("live-name-known-for-ever") {
            self.0.remove(&Asked::of(directory, name));
        }
    }

    /// The tree is no longer anybody's.
    pub fn forget_tree(&self, tree: TreeId) {
        self.0.retain(|known, _| known.tree != tree);
    }
}
