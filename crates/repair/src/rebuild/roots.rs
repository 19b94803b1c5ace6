//! The trees that a survey walks.

use buttress_format::{Generation, ItemType, Key, Logical, ObjectId, RootItem, TreeId};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::{Filesystem, Progress};
use buttress_tree::{BlockPointer, ReadAhead, RootPointer};
use std::collections::BTreeSet;

/// The progress of a tree's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    progress: Key,
    level: u8,
}

impl Dropped {
    /// Returns whether the deletion has dropped a child of a block that no other tree shares.
    pub(super) fn has_child(&self, parent: &BlockPointer, child: &BlockPointer) -> bool {
        parent.level >= self.level && child.end_key.is_some_and(|end| end <= self.progress)
    }
}

/// A tree of the volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub(super) pointer: RootPointer,
    /// The progress of the deletion; `None` if all of the tree exists.
    pub(super) dropped: Option<Dropped>,
    /// The last transaction that made a snapshot of the tree.
    pub(super) last_snapshot: Generation,
}

impl Root {
    pub(super) const fn id(&self) -> TreeId {
        self.pointer.tree
    }

    /// Returns whether the tree mirrors a subvolume during a balance of Linux.
    pub(super) fn is_relocation(&self) -> bool {
        self.id() == TreeId::TREE_RELOCATION
    }

    fn of_item(key: &Key, item: &RootItem) -> Self {
        let id = TreeId::new(key.objectid.get());
        // A relocation tree with references stores its merge progress in the drop progress.
        let merges = id == TreeId::TREE_RELOCATION && item.references > 0;
        let has_progress = item.drop_progress.objectid != ObjectId::MIN && !merges;
        Self {
            pointer: buttress_fs::filesystem::root_pointer(id, item),
            dropped: has_progress.then_some(Dropped {
                progress: item.drop_progress,
                level: item.drop_level,
            }),
            last_snapshot: item.last_snapshot,
        }
    }
}

/// The reason against a rebuild that frees the blocks of a subvolume without a root item.
pub(super) const FORSAKEN: &str = "a subvolume has no root item, and its blocks and data would become free: `buttress restore` may find its files, `--yes-to subvolume-missing` gives them up";

/// Returns all trees except the log: root tree, chunk tree, and the trees with a root item.
///
/// # Errors
/// Fails unless `gives_up` if a reference names a subvolume without a root item.
pub(super) fn all(filesystem: &Filesystem, gives_up: bool, progress: &Progress) -> Result<Vec<Root>> {
    let alone = |pointer| Root {
        pointer,
        dropped: None,
        last_snapshot: Generation::MIN,
    };
    let root_tree = filesystem.root_tree();
    let mut roots = vec![
        alone(*root_tree.root()),
        alone(*filesystem.tree(TreeId::CHUNK)?.root()),
    ];
    let (mut placed, mut known) = (BTreeSet::new(), BTreeSet::new());
    for item in root_tree.range(.., ReadAhead::Forward) {
        progress.check()?;
        let item = item?;
        let key = item.key();
        match key.item_type {
            ItemType::ROOT_ITEM => drop(known.insert(key.objectid.get())),
            ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
                placed.extend([key.objectid.get(), key.offset]);
            }
            _ => {}
        }
        if key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        let parsed = RootItem::parse(&key, item.data(), filesystem.sector_bytes());
        let parsed = parsed.map_err(|error| Corruption::Item {
            tree: TreeId::ROOT,
            error,
        })?;
        // A balance that has finished leaves a root item without a block.
        if parsed.logical != Logical::MIN {
            roots.push(Root::of_item(&key, &parsed));
        }
    }
    match gives_up || placed.is_subset(&known) {
        true => Ok(roots),
        false => Err(buttress_fs::Error::Invalid { what: FORSAKEN }),
    }
}
