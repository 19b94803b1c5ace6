//! The owners of an account: every tree that keeps data or tree blocks of files alive.
//!
//! The owners are the subvolumes and snapshots, including deleted ones that are not yet dropped.
//! The root tree is an owner too, since its inodes hold the free space cache of old volumes. The
//! trees of an interrupted balance are also owners. Of a half-dropped subvolume only the remaining
//! part counts.
//!
//! A subvolume is one owner or several. Inodes without a name are an owner of their own, so that
//! space which only they hold is distinguishable. A caller can also have some files counted
//! separately ([`super::Parts`]).

use buttress_exact::Exact as _;
use buttress_format::{
    InodeNumber, ItemType, Key, Logical, ObjectId, RootFlags, RootItem, SubvolumeId, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::{Filesystem, root_pointer};
use buttress_fs::progress::Progress;
use buttress_tree::{ReadAhead, RootPointer, Tree};
use std::collections::HashMap;

/// The largest number of owners.
const OWNERS_MAX: u32 = 1 << 17;

/// The most files without a name in all subvolumes.
const UNLINKED_MAX: u64 = 1 << 20;

/// The index of an owner in [`super::Accounting::owners`].
pub type OwnerIndex = u32;

/// An owner of space: a subvolume, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The tree of the owner.
    pub tree: TreeId,
    /// The files that the owner has in its subvolume's tree.
    pub share: Share,
    /// Whether the tree was deleted and is not yet dropped.
    pub deleted: bool,
}

/// The files of a subvolume that an owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All files that no other owner of the subvolume has.
    Rest,
    /// Inodes without a name: files that were deleted while open.
    Unlinked,
    /// A requested part of a subvolume, by its number.
    Part(u32),
}

impl Owner {
    /// Returns the subvolume, if the tree is one.
    #[must_use]
    pub const fn subvolume(&self) -> Option<SubvolumeId> {
        self.tree.as_subvolume()
    }
}

/// A tree that the account must read.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) pointer: RootPointer,
    pub(super) owner: OwnerIndex,
    /// The first key that still exists, and the level at which dropping continues.
    pub(super) dropped: Option<(Key, u8)>,
}

/// All owners that are known before any tree is read.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) list: Vec<Owner>,
    pub(super) roots: Vec<Root>,
    /// Inodes without a name, with the owners of their subvolumes and of unlinked files.
    pub(super) unlinked: HashMap<InodeNumber, Vec<(OwnerIndex, OwnerIndex)>>,
    /// The owners of the requested parts of subvolumes, by the parts' numbers.
    pub(super) parts: Vec<OwnerIndex>,
}

impl Owners {
    /// Gathers the owners as of the last commit.
    pub(super) fn gather(filesystem: &Filesystem, progress: &Progress) -> Result<Self> {
        let superblock = filesystem.superblock();
        let root_tree = filesystem.forest().tree(RootPointer {
            tree: TreeId::ROOT,
            logical: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        });
        // A read-only volume may have been opened at an older root tree.
        let held = filesystem.root_tree();
        let root_tree = if held.is_in_memory() {
            root_tree
        } else {
            held.clone()
        };
        let mut owners = Self {
            list: Vec::new(),
            roots: Vec::new(),
            unlinked: HashMap::new(),
            parts: Vec::new(),
        };
        let root = *root_tree.root();
        owners.push(root, false, None)?;
        for item in root_tree.range(.., ReadAhead::Forward) {
            progress.check()?;
            let item = item?;
            let key = item.key();
            let id = TreeId::new(key.objectid.get());
            let is_wanted = id.holds_files() || id == TreeId::TREE_RELOCATION;
            if key.item_type != ItemType::ROOT_ITEM || !is_wanted {
                continue;
            }
            let parsed = RootItem::parse(&key, item.data(), filesystem.sector_bytes());
            let item = parsed.map_err(|error| Corruption::Item {
                tree: TreeId::ROOT,
                error,
            })?;
            // A balance that has finished leaves a root item without a block.
            if item.logical != Logical::MIN {
                let deleted = item.flags.contains(RootFlags::DEAD) || item.references == 0;
                let half = item.drop_progress.objectid != ObjectId::MIN;
                let dropped = half.then_some((item.drop_progress, item.drop_level));
                owners.push(
                    root_pointer(id, &item),
                    deleted && id.as_subvolume().is_some(),
                    dropped,
                )?;
            }
        }
        Ok(owners)
    }

    fn push(&mut self, pointer: RootPointer, deleted: bool, dropped: Option<(Key, u8)>) -> Result<()> {
        let owner = self.add(Owner {
            tree: pointer.tree,
            share: Share::Rest,
            deleted,
        })?;
        self.roots.push(Root {
            pointer,
            owner,
            dropped,
        });
        Ok(())
    }

    /// Adds an owner.
    pub(super) fn add(&mut self, owner: Owner) -> Result<OwnerIndex> {
        let index = self.list.len().narrow::<u32>();
        if index >= OWNERS_MAX {
            return Err(Error::AccountingTooBig {
                what: "subvolumes and directory entries",
                limit: OWNERS_MAX.into(),
            });
        }
        self.list.push(owner);
        Ok(index)
    }

    /// Returns the owner of a whole subvolume.
    pub(super) fn whole(&self, subvolume: SubvolumeId) -> Option<&Root> {
        let tree = subvolume.tree();
        self.roots.iter().find(|root| root.pointer.tree == tree)
    }

    /// Finds the inodes without a name: inodes with an orphan item and no links. Orphan items
    /// follow all files of their tree, so the search costs one descent for each tree.
    pub(super) fn find_unlinked(&mut self, filesystem: &Filesystem, progress: &Progress) -> Result<()> {
        let mut count = 0_u64;
        let first = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, 0);
        let last = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, u64::MAX);
        let roots: Vec<(OwnerIndex, RootPointer)> = self
            .roots
            .iter()
            .filter(|root| root.pointer.tree.as_subvolume().is_some())
            .map(|root| (root.owner, root.pointer))
            .collect();
        for (owner, pointer) in roots {
            let tree = filesystem.forest().tree(pointer);
            let mut share = None;
            progress.check()?;
            for item in tree.range(first..=last, ReadAhead::None) {
                progress.check()?;
                // The descent that reads all blocks reports this error.
                let Ok(item) = item else { break };
                let inode = InodeNumber::new(item.key().offset);
                if !is_unlinked(&tree, inode) {
                    continue;
                }
                count = count.exact_add(1);
                if count > UNLINKED_MAX {
                    return Err(Error::AccountingTooBig {
                        what: "files without a name",
                        limit: UNLINKED_MAX,
                    });
                }
                let unlinked = match share {
                    Some(known) => known,
                    None => *share.insert(self.add(Owner {
                        tree: pointer.tree,
                        share: Share::Unlinked,
                        deleted: self.is_deleted(owner),
                    })?),
                };
                self.unlinked.entry(inode).or_default().push((owner, unlinked));
            }
        }
        Ok(())
    }

    fn is_deleted(&self, owner: OwnerIndex) -> bool {
        let index = owner.narrow::<usize>();
        self.list.get(index).is_some_and(|owner| owner.deleted)
    }
}

/// Returns whether an inode with an orphan item has no name. An orphan item of a named inode marks
/// a truncation.
fn is_unlinked(tree: &Tree, inode: InodeNumber) -> bool {
    let key = Key::new(inode.object_id(), ItemType::INODE_ITEM, 0);
    let Ok(Some(item)) = tree.get(&key) else {
        return false;
    };
    buttress_format::InodeItem::parse(&key, item.data()).is_ok_and(|item| item.nlink == 0)
}
