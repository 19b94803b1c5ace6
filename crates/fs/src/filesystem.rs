//! A volume that is open as a file system: its trees, by id.
//!
//! A [`Filesystem`] is a cheap handle on shared state, `Send` and `Sync`. All calls of a
//! `Filesystem` take `&self` and may run in parallel. A `Filesystem` is a view of one commit: it
//! looks up roots in the root tree of the moment when it was opened.
//!
//! The neighbouring modules interpret the trees, and add their calls to [`Filesystem`]:
//! [`crate::lookup`], [`crate::directory`], [`crate::inode`], [`crate::file`], and so on.

use crate::error::{Corruption, Error, Result};
use crate::executor::Executor;
use crate::notice::Notice;
use buttress_format::{
    ChecksumType, InodeNumber, ItemType, Key, Logical, RootItem, SubvolumeId, Superblock, TreeId,
};
use buttress_locks::{Rank, RwLock, lock_class};
use buttress_tree::{Forest, ReadAhead, RootPointer, Tree};
use buttress_volume::{Rescue, Volume};
use std::collections::HashMap;
use std::sync::Arc;

lock_class!(KnownTreesLock, "trees", Rank::LEAF);

/// The maximum number of cached trees. If more trees than this are cached, the cache is cleared.
const REMEMBERED_TREES: usize = 4096;

/// The number of parallel jobs that wait for metadata. The number of loaders is chosen to keep a
/// device busy, not the cores.
const LOADERS: usize = 8;

/// A volume that is open as a file system; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Filesystem {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    volume: Arc<Volume>,
    forest: Arc<Forest>,
    root_tree: Tree,
    chunk_tree: Tree,
    rescue: Rescue,
    notices: Arc<[Notice]>,
    trees: RwLock<HashMap<TreeId, Arc<KnownTree>>, KnownTreesLock>,
    /// In a view of a volume that is open for writing: the trees that are newer than the root
    /// tree's items.
    running: HashMap<TreeId, Arc<KnownTree>>,
    /// In a view of a volume with a new label: the last commit's superblock with the current label.
    relabelled: Option<Arc<Superblock>>,
    /// The hold that pins the addresses that the view needs.
    _hold: Option<Box<dyn Hold>>,
    executor: Arc<Executor>,
    loaders: Arc<Executor>,
    sector_bytes: u32,
    checksum_type: ChecksumType,
}

/// A tree and its root item.
#[derive(Debug)]
struct KnownTree {
    item: RootItem,
    tree: Tree,
}

/// A hold on the state of a view: its addresses are not reused until it is dropped.
pub trait Hold: core::fmt::Debug + Send + Sync {}

/// The trees of a running transaction, for a view of it.
#[derive(Debug)]
pub struct RunningTrees {
    /// The tree of tree roots.
    pub root_tree: Tree,
    /// The chunk tree, if it was changed.
    pub chunk_tree: Option<Tree>,
    /// Trees that were opened for writing, with their newest root items.
    pub trees: HashMap<TreeId, (RootItem, Tree)>,
    /// The current label.
    pub label: Vec<u8>,
    /// The hold on the view's state, dropped with the last handle on the view.
    pub hold: Box<dyn Hold>,
}

/// The parts that opening assembles.
pub(crate) struct Parts {
    pub(crate) forest: Arc<Forest>,
    pub(crate) root_tree: Tree,
    pub(crate) chunk_tree: Tree,
    pub(crate) rescue: Rescue,
    pub(crate) notices: Vec<Notice>,
    pub(crate) executor: Executor,
}

impl Filesystem {
    pub(crate) fn from_parts(parts: Parts) -> Self {
        let Parts {
            forest,
            root_tree,
            chunk_tree,
            rescue,
            notices,
            executor,
        } = parts;
        let volume = Arc::clone(forest.volume());
        let sector_bytes = volume.superblock().sector_bytes;
        let checksum_type = volume.superblock().checksum_type;
        Self {
            shared: Arc::new(Shared {
                volume,
                forest,
                root_tree,
                chunk_tree,
                rescue,
                notices: notices.into(),
                trees: RwLock::default(),
                running: HashMap::new(),
                relabelled: None,
                _hold: None,
                loaders: Arc::new(if executor.is_parallel() {
                    Executor::with_workers(LOADERS)
                } else {
                    Executor::inline()
                }),
                executor: Arc::new(executor),
                sector_bytes,
                checksum_type,
            }),
        }
    }

    /// Returns the same volume with the trees of a running transaction.
    pub fn with_running(&self, trees: RunningTrees) -> Self {
        let RunningTrees {
            root_tree,
            chunk_tree,
            trees,
            label,
            hold,
        } = trees;
        let shared = &self.shared;
        let superblock = shared.volume.superblock();
        let relabelled = (superblock.label != label).then(|| {
            let superblock = Superblock::clone(&superblock);
            Arc::new(Superblock { label, ..superblock })
        });
        let running = trees
            .into_iter()
            .map(|(id, (item, tree))| (id, Arc::new(KnownTree { item, tree })))
            .collect();
        Self {
            shared: Arc::new(Shared {
                volume: Arc::clone(&shared.volume),
                forest: Arc::clone(&shared.forest),
                root_tree,
                chunk_tree: chunk_tree.unwrap_or_else(|| shared.chunk_tree.clone()),
                rescue: shared.rescue,
                notices: Arc::clone(&shared.notices),
                trees: RwLock::default(),
                running,
                relabelled,
                _hold: Some(hold),
                executor: Arc::clone(&shared.executor),
                loaders: Arc::clone(&shared.loaders),
                sector_bytes: shared.sector_bytes,
                checksum_type: shared.checksum_type,
            }),
        }
    }

    /// Returns the same state without verification of file data. The result is used no longer than
    /// this handle, which keeps the hold on the state.
    #[must_use]
    pub fn without_data_checksums(&self) -> Self {
        let shared = &self.shared;
        Self {
            shared: Arc::new(Shared {
                volume: Arc::clone(&shared.volume),
                forest: Arc::clone(&shared.forest),
                root_tree: shared.root_tree.clone(),
                chunk_tree: shared.chunk_tree.clone(),
                rescue: Rescue {
                    ignore_data_checksums: true,
                    ..shared.rescue
                },
                notices: Arc::clone(&shared.notices),
                trees: RwLock::default(),
                running: shared.running.clone(),
                relabelled: shared.relabelled.clone(),
                _hold: None,
                executor: Arc::clone(&shared.executor),
                loaders: Arc::clone(&shared.loaders),
                sector_bytes: shared.sector_bytes,
                checksum_type: shared.checksum_type,
            }),
        }
    }

    /// Returns true if both handles are the same view of the same state.
    pub fn is_same_view(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the volume below the file system.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.shared.volume
    }

    /// Returns the forest: the trees and their cache.
    #[must_use]
    pub fn forest(&self) -> &Arc<Forest> {
        &self.shared.forest
    }

    /// Returns the superblock in use: that of opening, or that of the last commit. In a view of a
    /// volume that is open for writing, the superblock has the label of the view's moment.
    #[must_use]
    pub fn superblock(&self) -> Arc<Superblock> {
        let relabelled = self.shared.relabelled.as_ref();
        relabelled.map_or_else(|| self.shared.volume.superblock(), Arc::clone)
    }

    /// Returns the root item of a tree that is newer than the root tree's item, in a view of a
    /// volume that is open for writing.
    pub fn running_root_item(&self, id: TreeId) -> Option<&RootItem> {
        self.shared.running.get(&id).map(|known| &known.item)
    }

    /// Returns the notices about the volume, in the order in which they were found.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> = self.volume().notices().into_iter().map(Notice::from).collect();
        notices.extend(self.shared.notices.iter().cloned());
        notices
    }

    /// Replaces the notices of a volume that was just opened and has no other handle.
    #[must_use]
    pub fn with_notices(mut self, notices: Vec<Notice>) -> Self {
        let of_volume: Vec<Notice> = self.volume().notices().into_iter().map(Notice::from).collect();
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            let others = notices.into_iter().filter(|notice| !of_volume.contains(notice));
            shared.notices = others.collect();
        }
        self
    }

    /// Returns the rescue options of the volume.
    #[must_use]
    pub fn rescue(&self) -> &Rescue {
        &self.shared.rescue
    }

    /// Returns the sector size: the unit of data addresses, lengths and checksums.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.shared.sector_bytes
    }

    /// Returns the checksum type of the volume.
    #[must_use]
    pub fn checksum_type(&self) -> ChecksumType {
        self.shared.checksum_type
    }

    /// Returns the threads for jobs that compute.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.shared.executor
    }

    /// Returns the threads for jobs that mostly wait for metadata.
    #[must_use]
    pub fn loaders(&self) -> &Executor {
        &self.shared.loaders
    }

    /// Returns the root tree.
    #[must_use]
    pub fn root_tree(&self) -> &Tree {
        &self.shared.root_tree
    }

    /// Returns any tree by its id: the root tree, the chunk tree, a pending log tree, or a tree
    /// with a root item.
    ///
    /// # Errors
    /// Returns [`Error::TreeNotFound`]. Also fails if the root tree cannot be read.
    pub fn tree(&self, id: TreeId) -> Result<Tree> {
        match id {
            TreeId::ROOT => Ok(self.shared.root_tree.clone()),
            TreeId::CHUNK => Ok(self.shared.chunk_tree.clone()),
            TreeId::TREE_LOG => self.log_tree(),
            _ => Ok(self.known_tree(id)?.tree.clone()),
        }
    }

    /// Returns the root item of a tree.
    ///
    /// # Errors
    /// Fails with [`Error::TreeNotFound`]; the root and chunk trees have no root item. Also fails
    /// if the root tree cannot be read.
    pub fn root_item(&self, id: TreeId) -> Result<RootItem> {
        Ok(self.known_tree(id)?.item.clone())
    }

    /// Returns the tree of a subvolume.
    ///
    /// # Errors
    /// Returns [`Error::SubvolumeNotFound`]. Also fails if the root tree cannot be read.
    pub fn subvolume_tree(&self, id: SubvolumeId) -> Result<Tree> {
        if id.tree().as_subvolume().is_none() {
            return Err(Error::SubvolumeNotFound { subvolume: id });
        }
        match self.known_tree(id.tree()) {
            Ok(known) => Ok(known.tree.clone()),
            Err(Error::TreeNotFound { .. }) => Err(Error::SubvolumeNotFound { subvolume: id }),
            Err(error) => Err(error),
        }
    }

    /// Returns the log tree that is pending: the root of log roots, as the superblock names it.
    fn log_tree(&self) -> Result<Tree> {
        let superblock = self.superblock();
        if superblock.log_root == Logical::MIN {
            return Err(Error::TreeNotFound {
                tree: TreeId::TREE_LOG,
            });
        }
        // A log follows the commit that the superblock belongs to.
        // Clamp: the generation comes from disk; no log has the last generation.
        let generation = superblock.generation.get().saturating_add(1);
        Ok(self.forest().tree(RootPointer {
            tree: TreeId::TREE_LOG,
            logical: superblock.log_root,
            generation: buttress_format::Generation::new(generation),
            level: superblock.log_root_level,
        }))
    }

    fn known_tree(&self, id: TreeId) -> Result<Arc<KnownTree>> {
        if let Some(known) = self.shared.running.get(&id) {
            return Ok(Arc::clone(known));
        }
        if let Some(known) = self.shared.trees.read().get(&id) {
            return Ok(Arc::clone(known));
        }
        let known = Arc::new(self.find_tree(id)?);
        let mut trees = self.shared.trees.write();
        if trees.len() >= REMEMBERED_TREES {
            trees.clear();
        }
        trees.insert(id, Arc::clone(&known));
        Ok(known)
    }

    /// Returns the newest root item of the tree. Only during a relocation does a tree have several
    /// root items.
    fn find_tree(&self, id: TreeId) -> Result<KnownTree> {
        let wanted = Key::new(id.object_id(), ItemType::ROOT_ITEM, u64::MAX);
        let mut cursor = self.root_tree().cursor(ReadAhead::None);
        cursor.seek_at_or_before(&wanted)?;
        let item = match cursor.current() {
            Some(item)
                if item.key.objectid == id.object_id() && item.key.item_type == ItemType::ROOT_ITEM =>
            {
                RootItem::parse(&item.key, item.data, self.sector_bytes()).map_err(|error| {
                    Corruption::Item {
                        tree: TreeId::ROOT,
                        error,
                    }
                })?
            }
            _ => return Err(Error::TreeNotFound { tree: id }),
        };
        let tree = self.forest().tree(root_pointer(id, &item));
        Ok(KnownTree { item, tree })
    }

    /// Returns the root directory of a subvolume, at which its paths begin.
    #[must_use]
    pub fn root_directory(&self, subvolume: SubvolumeId) -> crate::Location {
        crate::Location::new(subvolume, InodeNumber::ROOT_DIRECTORY)
    }
}

/// Returns the root pointer that a root item names.
pub fn root_pointer(id: TreeId, item: &RootItem) -> RootPointer {
    RootPointer {
        tree: id,
        logical: item.logical,
        generation: item.generation,
        level: item.level,
    }
}
