//! The root tree: the trees of the volume, and the check that required trees exist.

use crate::context::Check;
use crate::finding::Finding;
use crate::report::Note;
use buttress_format::{
    CompatRo, Generation, Incompat, InodeNumber, ItemType, Key, Logical, RootFlags, RootItem, TreeId,
};
use buttress_fs::Result;
use buttress_tree::{ReadAhead, RootPointer, Tree};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The drop progress of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Keys of the tree below this key are dropped.
    progress: Key,
    /// The level at which the drop continues; everything below a remaining block is complete.
    level: u8,
}

impl Dropped {
    /// Returns whether a key is dropped.
    pub(crate) fn has_key(&self, key: &Key) -> bool {
        *key < self.progress
    }

    /// Returns whether the drop of a subvolume has already dropped a child that ends below
    /// `end_key`, under a parent of `parent_level`. This rule does not apply to blocks that other
    /// trees share: a drop releases such blocks as a whole.
    pub(crate) fn has_child_of(&self, parent_level: u8, end_key: Option<Key>) -> bool {
        parent_level >= self.level && end_key.is_some_and(|end| end <= self.progress)
    }
}

/// A tree of the volume.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// The address, level and generation of the root block.
    pub(crate) pointer: RootPointer,
    /// The offset in the root item's key; for a relocation tree, the mirrored tree.
    pub(crate) key_offset: u64,
    /// The drop progress, if a part of the tree is dropped.
    pub(crate) dropped: Option<Dropped>,
    /// Whether the tree is being dropped.
    pub(crate) dead: bool,
    /// Whether the root item of the tree has no references.
    pub(crate) unreferenced: bool,
    /// The last transaction that made a snapshot of the tree.
    pub(crate) last_snapshot: Generation,
    /// The uuid of the subvolume.
    pub(crate) uuid: Uuid,
    /// The received uuid of the subvolume.
    pub(crate) received_uuid: Uuid,
}

impl Root {
    pub(crate) const fn id(&self) -> TreeId {
        self.pointer.tree
    }

    /// Returns whether the tree is a subvolume that can be mounted.
    pub(crate) fn is_live_subvolume(&self) -> bool {
        self.id().as_subvolume().is_some() && !self.dead
    }

    pub(crate) fn is_relocation(&self) -> bool {
        self.id() == TreeId::TREE_RELOCATION
    }

    /// Returns a tree to which the superblock points.
    const fn of_superblock(pointer: RootPointer) -> Self {
        Self {
            pointer,
            key_offset: 0,
            dropped: None,
            dead: false,
            unreferenced: false,
            last_snapshot: Generation::MIN,
            uuid: Uuid::nil(),
            received_uuid: Uuid::nil(),
        }
    }

    fn of_item(key: &Key, item: &RootItem) -> Self {
        // A relocation tree with references stores its merge progress in the drop progress; all of
        // that tree still exists.
        let merges = key.objectid == TreeId::TREE_RELOCATION.object_id() && item.references > 0;
        let has_progress = item.drop_progress.objectid.get() != 0 && !merges;
        Self {
            pointer: RootPointer {
                tree: TreeId::new(key.objectid.get()),
                logical: item.logical,
                generation: item.generation,
                level: item.level,
            },
            key_offset: key.offset,
            dropped: has_progress.then_some(Dropped {
                progress: item.drop_progress,
                level: item.drop_level,
            }),
            unreferenced: item.references == 0,
            last_snapshot: item.last_snapshot,
            dead: item.flags.contains(RootFlags::DEAD) || item.references == 0,
            uuid: item.uuid,
            received_uuid: item.received_uuid,
        }
    }
}

/// Returns all trees: the root and chunk trees, then those with root items, in order of keys.
pub(crate) fn gather(check: &Check<'_>) -> Result<Vec<Root>> {
    let mut orphans = BTreeSet::new();
    let mut complete = true;
    let mut roots = vec![
        Root::of_superblock(root_of_roots(check)),
        Root::of_superblock(chunk_root(check)),
    ];
    let root_tree = check.tree(TreeId::ROOT, &roots);
    let Some(root_tree) = root_tree else {
        return Ok(roots);
    };
    for item in root_tree.range(.., ReadAhead::sweep()) {
        check.progress.check()?;
        // The scan of all blocks reports unreadable blocks.
        let Ok(item) = item else {
            complete = false;
            continue;
        };
        let key = item.key();
        match key.item_type {
            ItemType::ROOT_ITEM => {
                let Ok(item) = RootItem::parse(&key, item.data(), check.sector_bytes) else {
                    continue;
                };
                // A balance that has finished leaves a root item without a block.
                if item.logical == Logical::MIN {
                    continue;
                }
                let root = Root::of_item(&key, &item);
                look_at(check, &root, &item);
                roots.push(root);
            }
            ItemType::ORPHAN_ITEM => drop(orphans.insert(key.offset)),
            ItemType::TEMPORARY_ITEM if key.objectid == buttress_format::ObjectId::BALANCE => {
                check.note(Note::BalanceInterrupted);
            }
            _ => {}
        }
    }
    require(check, &roots);
    if complete {
        check_orphans(check, &root_tree, &roots, &orphans);
    }
    Ok(roots)
}

/// Checks that each subvolume without references has an orphan item, which marks it to be dropped.
/// A crash leaves the orphan item of a dropped subvolume. An orphan item of an inode in the root
/// tree belongs to a v1 cache.
fn check_orphans(check: &Check<'_>, root_tree: &Tree, roots: &[Root], orphans: &BTreeSet<u64>) {
    for root in roots.iter().filter(|root| root.unreferenced) {
        if root.id().as_subvolume().is_some() && !orphans.contains(&root.id().get()) {
            check.find(Finding::RootOrphanItemMissing { subvolume: root.id() });
        }
    }
    for orphan in orphans {
        let subvolume = TreeId::new(*orphan);
        let inode = Key::new(subvolume.object_id(), ItemType::INODE_ITEM, 0);
        let is_known = roots.iter().any(|root| root.id() == subvolume);
        if !is_known && matches!(root_tree.get(&inode), Ok(None)) {
            check.note(Note::RootOrphanItemLeftOver { subvolume });
        }
    }
}

/// Returns the root block of the root tree on disk: the one used at opening, which may be a backup
/// root. If a transaction holds the tree in memory, the function returns the superblock's root.
fn root_of_roots(check: &Check<'_>) -> RootPointer {
    let tree = check.filesystem.root_tree();
    if !tree.is_in_memory() {
        return *tree.root();
    }
    let superblock = check.superblock();
    RootPointer {
        tree: TreeId::ROOT,
        logical: superblock.root,
        generation: superblock.generation,
        level: superblock.root_level,
    }
}

/// Returns the root block of the chunk tree.
pub(crate) fn chunk_root(check: &Check<'_>) -> RootPointer {
    let superblock = check.superblock();
    RootPointer {
        tree: TreeId::CHUNK,
        logical: superblock.chunk_root,
        generation: superblock.chunk_root_generation,
        level: superblock.chunk_root_level,
    }
}

fn look_at(check: &Check<'_>, root: &Root, item: &RootItem) {
    if root.is_relocation() {
        check.note(Note::RelocationTree {
            tree: root.key_offset,
        });
    }
    let Some(subvolume) = root.id().as_subvolume() else {
        return;
    };
    if root.dead {
        check.note(Note::BeingDeleted {
            subvolume: root.id(),
            half: root.dropped.is_some(),
        });
    } else if item.root_directory != InodeNumber::ROOT_DIRECTORY {
        check.find(Finding::RootDirectory {
            subvolume,
            directory: item.root_directory,
        });
    }
}

/// Checks that the trees that the volume's features require exist.
fn require(check: &Check<'_>, roots: &[Root]) {
    let superblock = check.superblock();
    let compat = |feature| superblock.compat_ro.contains(feature);
    let needed = [
        (TreeId::EXTENT, true),
        (TreeId::DEVICE, true),
        (TreeId::FS, true),
        (TreeId::CHECKSUM, true),
        (
            TreeId::FREE_SPACE,
            compat(CompatRo::FREE_SPACE_TREE) && compat(CompatRo::FREE_SPACE_TREE_VALID),
        ),
        (TreeId::BLOCK_GROUP, compat(CompatRo::BLOCK_GROUP_TREE)),
        (
            TreeId::RAID_STRIPE,
            superblock.incompat.contains(Incompat::RAID_STRIPE_TREE),
        ),
    ];
    for (tree, _) in needed.into_iter().filter(|(_, needed)| *needed) {
        if !roots.iter().any(|root| root.id() == tree) {
            check.find(Finding::TreeMissing { tree });
        }
    }
}
