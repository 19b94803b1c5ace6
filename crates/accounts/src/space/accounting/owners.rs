//! Who can own something: every tree that keeps data or tree blocks of files alive.
//!
//! Those are the subvolumes and snapshots, also deleted ones that are not yet dropped; the root tree, whose inodes hold
//! the free space cache of old volumes; and the trees of an interrupted balance. Of a deleted subvolume that is half
//! dropped only what is still there counts.
//!
//! A subvolume is one owner, or several: inodes without a name are an owner of their own, so that what only they hold
//! can be told apart, and a caller can have some of its files counted apart ([`super::Parts`]).

use buttress_exact::Exact as _;
use buttress_format::{
    InodeNumber, ItemType, Key, Logical, ObjectId, RootFlags, RootItem, SubvolumeId, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::{Filesystem, root_pointer};
use buttress_fs::progress::Progress;
use buttress_tree::{ReadAhead, RootPointer, Tree};
use std::collections::HashMap;

/// How many owners there may be.
const OWNERS_MAX: u32 = 1 << 17;

/// How many files without a name there may be, in all subvolumes.
const UNLINKED_MAX: u64 = 1 << 20;

/// The number of an owner in [`super::Accounting::owners`].
pub type OwnerIndex = u32;

/// Who owns something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The tree.
    pub tree: TreeId,
    /// Which files of it.
    pub share: Share,
    /// Whether it was deleted and only waits to be dropped.
    pub deleted: bool,
}

/// Which files of a subvolume an owner stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All that no other owner of the subvolume stands for.
    Rest,
    /// Inodes without a name: files that were deleted while they were open.
    Unlinked,
    /// A part that was asked for, by its number.
    Part(u32),
}

impl Owner {
    /// The subvolume, where it is one.
    #[must_use]
    pub const fn subvolume(&self) -> Option<SubvolumeId> {
        self.tree.as_subvolume()
    }
}

/// A tree to be walked.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) pointer: RootPointer,
    pub(super) owner: OwnerIndex,
    /// Keys below this one are gone, and the level at which the deletion goes on.
    pub(super) dropped: Option<(Key, u8)>,
}

/// All owners, as far as they are known before anything is walked.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) list: Vec<Owner>,
    pub(super) roots: Vec<Root>,
    /// Inodes without a name, with the owners of the subvolumes and of their unlinked files.
    pub(super) unlinked: HashMap<InodeNumber, Vec<(OwnerIndex, OwnerIndex)>>,
    /// The owners of the parts that were asked for, by their numbers.
    pub(super) parts: Vec<OwnerIndex>,
}

impl Owners {
    /// Gathers them as of the last commit.
    pub(super) fn gather(filesystem: &Filesystem, progress: &Progress) -> Result<Self> {
        let superblock = filesystem.superblock();
        let root_tree = filesystem.forest().tree(RootPointer {
            tree: TreeId::ROOT,
            logical: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        });
        // A volume that is only read may have been opened by an older root.
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
            // A tree that has no block is one that a balance has done with.
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

    /// The owner that stands for a whole subvolume.
    pub(super) fn whole(&self, subvolume: SubvolumeId) -> Option<&Root> {
        let tree = subvolume.tree();
        self.roots.iter().find(|root| root.pointer.tree == tree)
    }

    /// Finds the inodes without a name: those with an orphan item and no links. An orphan item lies behind all files
    /// of its tree, so this takes one way down a tree.
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
                // What cannot be read is found and told where all blocks are read.
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

/// Whether an inode with an orphan item has no name. One that has is only to be truncated.
fn is_unlinked(tree: &Tree, inode: InodeNumber) -> bool {
    let key = Key::new(inode.object_id(), ItemType::INODE_ITEM, 0);
    let Ok(Some(item)) = tree.get(&key) else {
        return false;
    };
    buttress_format::InodeItem::parse(&key, item.data()).is_ok_and(|item| item.nlink == 0)
}
