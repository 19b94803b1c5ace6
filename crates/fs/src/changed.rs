//! The inodes that can differ between two subvolumes, found by the blocks that their trees do not
//! share.
//!
//! Snapshots of one history share most of their blocks, and shared blocks are equal
//! ([`mod@buttress_tree::changes`]). The cost of finding the inodes with a differing item grows
//! with the changes, not with the size. All directories on the path from a changed inode to the
//! root also count as changed, in both subvolumes. The comparison reads no other inode: each is
//! equal in both subvolumes, with everything below it.
//!
//! A directory that holds another subvolume also counts as changed. The nested subvolume may exist
//! in only one of the two compared subvolumes, with a placeholder in the other. No item of the two
//! trees shows this difference.
//!
//! Memory: one number for each changed inode and each directory above such an inode, up to a limit.

use crate::error::{Corruption, Error, Result};
use crate::filesystem::Filesystem;
use crate::location::Location;
use crate::progress::Progress;
use buttress_format::{InodeExtrefs, InodeNumber, InodeRefs, ItemType, Key, RootRef, SubvolumeId};
use buttress_tree::{ReadAhead, Tree, changes};
use std::collections::HashSet;

/// The maximum number of changed inodes that the comparison stores.
const INODES_MAX: usize = 1 << 22;

/// The maximum number of names that are returned for one inode.
const NAMES_MAX: usize = 1 << 20;

/// The inodes that can differ between two subvolumes; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct ChangedInodes {
    inodes: HashSet<InodeNumber>,
}

impl ChangedInodes {
    /// Returns true if this inode, or an inode below it, can differ between the two subvolumes.
    #[must_use]
    pub fn contains(&self, inode: InodeNumber) -> bool {
        self.inodes.contains(&inode)
    }

    /// Returns the number of inodes that can differ.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Returns true if no inode can differ.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}

impl Filesystem {
    /// Returns the inodes that can differ between two subvolumes of this volume, with the
    /// directories above them. Returns `None` if more than four million inodes can differ.
    /// Comparing all inodes is then as cheap.
    ///
    /// # Errors
    /// Fails if a tree cannot be read, or if the job was cancelled.
    pub fn changed_inodes(
        &self,
        old: SubvolumeId,
        new: SubvolumeId,
        progress: &Progress,
    ) -> Result<Option<ChangedInodes>> {
        let (old_tree, new_tree) = (self.subvolume_tree(old)?, self.subvolume_tree(new)?);
        let mut changed = HashSet::new();
        let mut walk = changes(&old_tree, &new_tree, ReadAhead::sweep());
        let mut count = 0_u32;
        while let Some(change) = walk.next()? {
            count = count.wrapping_add(1);
            if count.is_multiple_of(1024) {
                progress.check()?;
            }
            changed.insert(InodeNumber::new(change.key.objectid.get()));
            if changed.len() > INODES_MAX {
                return Ok(None);
            }
        }
        let mut inodes = changed.clone();
        for (tree, subvolume) in [(&old_tree, old), (&new_tree, new)] {
            let mut ways = Ways {
                tree,
                subvolume,
                seen: HashSet::new(),
            };
            let nested = self.directories_of_subvolumes(subvolume)?;
            for inode in changed.iter().copied().chain(nested.iter().copied()) {
                progress.check()?;
                ways.add_above(inode, &mut inodes)?;
            }
            inodes.extend(nested);
            if inodes.len() > INODES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(ChangedInodes { inodes }))
    }

    /// Returns the directories of a subvolume that hold subvolumes.
    fn directories_of_subvolumes(&self, subvolume: SubvolumeId) -> Result<Vec<InodeNumber>> {
        let tree = self.root_tree();
        let object_id = buttress_format::ObjectId::new(subvolume.get());
        let first = Key::new(object_id, ItemType::ROOT_REF, 0);
        let last = Key::new(object_id, ItemType::ROOT_REF, u64::MAX);
        let mut directories = Vec::new();
        for item in tree.range(first..=last, ReadAhead::None) {
            let item = item?;
            let reference = RootRef::parse(&item.key(), item.data()).map_err(|error| Corruption::Item {
                tree: tree.root().tree,
                error,
            })?;
            directories.push(reference.directory);
        }
        Ok(directories)
    }

    /// Returns the names of an inode, each with the directory that holds it. Returns no names for
    /// the root of a subvolume, and for an inode that does not exist.
    ///
    /// # Errors
    /// Returns [`Error::TooBig`] for more than a million names. Also fails if the names cannot be
    /// read.
    pub fn inode_names(&self, location: Location) -> Result<Vec<(InodeNumber, Vec<u8>)>> {
        let tree = self.subvolume_tree(location.subvolume)?;
        names(&tree, location)
    }
}

/// The paths from changed inodes up to the root of one subvolume.
struct Ways<'a> {
    tree: &'a Tree,
    subvolume: SubvolumeId,
    /// The inodes whose parent directories were added to the result.
    seen: HashSet<InodeNumber>,
}

impl Ways<'_> {
    /// Adds all directories above an inode.
    fn add_above(&mut self, inode: InodeNumber, inodes: &mut HashSet<InodeNumber>) -> Result<()> {
        let mut waiting = vec![inode];
        while let Some(inode) = waiting.pop() {
            if !self.seen.insert(inode) {
                continue;
            }
            for (directory, _) in names(self.tree, Location::new(self.subvolume, inode))? {
                inodes.insert(directory);
                waiting.push(directory);
            }
        }
        Ok(())
    }
}

fn names(tree: &Tree, location: Location) -> Result<Vec<(InodeNumber, Vec<u8>)>> {
    let mut found = Vec::new();
    if location.is_subvolume_root() {
        return Ok(found);
    }
    let object_id = location.inode.object_id();
    let first = Key::new(object_id, ItemType::INODE_REF, 0);
    let last = Key::new(object_id, ItemType::INODE_EXTREF, u64::MAX);
    let broken = |error| {
        Error::from(Corruption::Item {
            tree: location.subvolume.tree(),
            error,
        })
    };
    for item in tree.range(first..=last, ReadAhead::None) {
        let item = item?;
        let key = item.key();
        if key.item_type == ItemType::INODE_REF {
            let links = InodeRefs::parse(&key, item.data()).map_err(broken)?;
            found.extend(links.map(|link| (link.parent, link.name.to_vec())));
        } else {
            let links = InodeExtrefs::parse(&key, item.data()).map_err(broken)?;
            found.extend(links.map(|link| (link.parent, link.name.to_vec())));
        }
        if found.len() > NAMES_MAX {
            return Err(Error::TooBig {
                what: "the names",
                location,
                limit: buttress_format::ByteCount::of(NAMES_MAX),
            });
        }
    }
    Ok(found)
}
