//! Opening a volume: from devices to trees.
//!
//! 1. The volume finds its superblock, matches its devices and knows the system chunks.
//! 2. The chunk tree lies in system chunks. A walk over the chunk tree yields all chunks and
//!    devices, and the volume decides if enough devices are present. If the walk fails and devices
//!    are missing, the error names the missing devices.
//! 3. By default, the root tree is the root tree that the superblock names. With
//!    `rescue=usebackuproot`, the root tree is the newest backup root whose root tree and mandatory
//!    trees can be read.
//! 4. With the raid-stripe-tree feature, the volume maps data addresses through the stripe tree,
//!    which the opening passes to it.
//!
//! Opening does not replay a pending log tree here: the volume has the state of its last commit,
//! and a [`Notice`] reports this. The crate `writer` replays the log: on the volume if it is opened
//! for writing, in memory if it is opened for reading. Unlike in the kernel, an unreadable tree
//! does not prevent opening. A notice names the unreadable tree, and calls that need the tree fail.

use crate::error::{Corruption, Error, Result};
use crate::executor::Executor;
use crate::filesystem::{Filesystem, Parts, root_pointer};
use crate::notice::Notice;
use buttress_device::Device;
use buttress_format::{
    BackupRoot, ByteCount, Chunk, DeviceItem, Incompat, ItemType, Key, Logical, RootItem, TreeId,
};
use buttress_tree::{BlockPointer, Forest, ReadAhead, RootPointer, Tree};
use buttress_volume::{Rescue, Volume, WholeChange};
use std::sync::Arc;

mod stripe_tree;
pub(crate) mod view;

/// The default budget of the node cache.
pub const DEFAULT_CACHE: ByteCount = ByteCount::new(256 << 20);

/// Options for opening a volume.
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    devices: Vec<Device>,
    cache: ByteCount,
    degraded: bool,
    rescue: Rescue,
    for_inspection: bool,
    change: WholeChange,
}

impl OpenOptions {
    /// Opens the volume on `devices`, which may be given in any order.
    pub fn new(devices: Vec<Device>) -> Self {
        Self {
            devices,
            cache: DEFAULT_CACHE,
            degraded: false,
            rescue: Rescue::default(),
            for_inspection: false,
            change: WholeChange::default(),
        }
    }

    /// Returns the devices.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the same options for other devices.
    pub fn on(self, devices: Vec<Device>) -> Self {
        Self { devices, ..self }
    }

    /// Sets the budget of the node cache.
    pub fn cache(mut self, budget: ByteCount) -> Self {
        self.cache = budget;
        self
    }

    /// Sets whether to continue if devices are missing.
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Sets the rescue options for damaged volumes.
    pub fn rescue(mut self, rescue: Rescue) -> Self {
        self.rescue = rescue;
        self
    }

    /// Sets whether to continue if the root tree cannot be read, to inspect the chunk tree and
    /// blocks by address. A notice reports the unreadable root tree, and trees that need it are not
    /// found.
    pub fn for_inspection(mut self, for_inspection: bool) -> Self {
        self.for_inspection = for_inspection;
        self
    }

    /// Sets the change of the whole volume that the caller makes or finishes.
    pub fn change(mut self, change: WholeChange) -> Self {
        self.change = change;
        self
    }

    /// Opens the volume; see the module's documentation.
    ///
    /// # Errors
    /// Fails without a usable superblock, with missing devices, or with unsupported features. Also
    /// fails if the chunk tree or the root tree cannot be read.
    pub fn open(self) -> Result<Filesystem> {
        Filesystem::open(self)
    }
}

impl Filesystem {
    /// Opens a volume; see [`OpenOptions::open`].
    ///
    /// # Errors
    /// Fails as [`OpenOptions::open`] does.
    pub fn open(options: OpenOptions) -> Result<Self> {
        let OpenOptions {
            devices,
            cache,
            degraded,
            rescue,
            for_inspection,
            change,
        } = options;
        let volume = Arc::new(Volume::open(
            devices,
            buttress_volume::OpenOptions {
                degraded,
                rescue,
                change,
            },
        )?);
        let executor = executor_for(&volume);
        let forest = Forest::new(Arc::clone(&volume), cache);
        let mut notices = Vec::new();
        let Roots {
            chunk_tree,
            root_tree,
            failure,
        } = open_roots(&forest, &rescue, &mut notices)?;
        match failure {
            None => {
                attach_stripe_tree(&volume, &forest, &root_tree);
                report_trees(&forest, &root_tree, &mut notices);
            }
            Some(failure) if for_inspection => notices.push(Notice::TreeUnreadable {
                tree: TreeId::ROOT,
                reason: failure.to_string(),
            }),
            Some(failure) => return Err(failure),
        }
        let superblock = volume.superblock();
        if superblock.log_root != Logical::MIN && !rescue.no_log_replay {
            notices.push(Notice::PendingLog {
                logical: superblock.log_root,
                level: superblock.log_root_level,
                generation: superblock.generation,
            });
        }
        if rescue.ignore_data_checksums {
            notices.push(Notice::DataUnverified);
        }
        Ok(Self::from_parts(Parts {
            forest,
            root_tree,
            chunk_tree,
            rescue,
            notices,
            executor,
        }))
    }
}

/// Returns the threads for a volume. On a simulated device, all work runs on the caller's thread, so
/// that runs are deterministic.
fn executor_for(volume: &Volume) -> Executor {
    match volume.virtual_clock() {
        Some(_) => Executor::inline(),
        None => Executor::of_all_cores(),
    }
}

/// The first trees of opening.
struct Roots {
    /// The chunk tree, after the walk over it.
    chunk_tree: Tree,
    /// The root tree.
    root_tree: Tree,
    /// The reason why the root tree cannot be used; `None` if it can.
    failure: Option<Error>,
}

/// Returns the walked chunk tree and the root tree, by the superblock's roots or a backup's.
fn open_roots(forest: &Arc<Forest>, rescue: &Rescue, notices: &mut Vec<Notice>) -> Result<Roots> {
    let superblock = forest.volume().superblock();
    let chunk_tree = forest.tree(RootPointer {
        tree: TreeId::CHUNK,
        logical: superblock.chunk_root,
        generation: superblock.chunk_root_generation,
        level: superblock.chunk_root_level,
    });
    let volume = forest.volume();
    load_chunks(volume, &chunk_tree).map_err(|error| volume.missing_instead().map_or(error, Error::from))?;
    volume.finish_bootstrap()?;
    let root_tree = forest.tree(RootPointer {
        tree: TreeId::ROOT,
        logical: superblock.root,
        generation: superblock.generation,
        level: superblock.root_level,
    });
    let failure = match check_roots(forest, &root_tree, rescue.use_backup_root) {
        Ok(()) => {
            return Ok(Roots {
                chunk_tree,
                root_tree,
                failure: None,
            });
        }
        Err(failure) => failure,
    };
    if rescue.use_backup_root
        && let Some((slot, backup, root_tree)) = usable_backup(forest)
    {
        notices.push(Notice::BackupRootUsed {
            slot,
            generation: backup.tree_root.generation,
            reason: failure.to_string(),
        });
        return Ok(Roots {
            chunk_tree,
            root_tree,
            failure: None,
        });
    }
    Ok(Roots {
        chunk_tree,
        root_tree,
        failure: Some(failure),
    })
}

/// Passes every chunk and device of the chunk tree to the volume.
///
/// # Errors
/// Fails if a block of the tree cannot be read, or if the volume refuses an item.
pub fn load_chunks(volume: &Volume, chunk_tree: &Tree) -> Result<()> {
    let sector_bytes = volume.superblock().sector_bytes;
    let broken = |error| {
        Error::from(Corruption::Item {
            tree: TreeId::CHUNK,
            error,
        })
    };
    for item in chunk_tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
        let item = item?;
        let key = item.key();
        match key.item_type {
            ItemType::CHUNK_ITEM => {
                let chunk = Chunk::parse(&key, item.data(), sector_bytes).map_err(broken)?;
                volume.add_chunk(Logical::new(key.offset), chunk)?;
            }
            ItemType::DEV_ITEM => {
                volume.add_device(DeviceItem::parse(&key, item.data()).map_err(broken)?)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The trees that every volume must have.
const ESSENTIAL_TREES: [TreeId; 4] = [TreeId::EXTENT, TreeId::DEVICE, TreeId::FS, TreeId::CHECKSUM];

/// Reads the root block of the root tree. If `thorough` is set, also reads the root blocks of the
/// trees that every volume has.
fn check_roots(forest: &Arc<Forest>, root_tree: &Tree, thorough: bool) -> Result<()> {
    root_tree.cursor(ReadAhead::None).seek(&Key::MIN)?;
    if thorough {
        for id in ESSENTIAL_TREES {
            check_tree(forest, root_tree, id)?;
        }
    }
    Ok(())
}

/// Returns the root pointer in the root item of one of the volume's own trees.
fn root_of(forest: &Arc<Forest>, root_tree: &Tree, id: TreeId) -> Result<RootPointer> {
    let key = Key::new(id.object_id(), ItemType::ROOT_ITEM, 0);
    let item = root_tree.get(&key)?.ok_or(Corruption::TreeMissing { tree: id })?;
    let root =
        RootItem::parse(&key, item.data(), forest.volume().superblock().sector_bytes).map_err(|error| {
            Corruption::Item {
                tree: TreeId::ROOT,
                error,
            }
        })?;
    Ok(root_pointer(id, &root))
}

/// Reads the root block of a tree.
fn check_tree(forest: &Arc<Forest>, root_tree: &Tree, id: TreeId) -> Result<()> {
    forest.read_block(&BlockPointer::root(&root_of(forest, root_tree, id)?))?;
    Ok(())
}

/// Returns the newest backup root that can be read.
fn usable_backup(forest: &Arc<Forest>) -> Option<(usize, BackupRoot, Tree)> {
    let superblock = forest.volume().superblock();
    let mut backups: Vec<(usize, BackupRoot)> = superblock.backup_roots.iter().cloned().enumerate().collect();
    backups.sort_by_key(|(_, backup)| core::cmp::Reverse(backup.tree_root.generation));
    backups
        .into_iter()
        .filter(|(_, backup)| backup.tree_root.logical != Logical::MIN)
        .find_map(|(slot, backup)| {
            let root_tree = forest.tree(RootPointer {
                tree: TreeId::ROOT,
                logical: backup.tree_root.logical,
                generation: backup.tree_root.generation,
                level: backup.tree_root.level,
            });
            check_roots(forest, &root_tree, true).ok()?;
            Some((slot, backup, root_tree))
        })
}

/// Passes the RAID stripe tree to the volume, if the volume has that feature. If the root of the
/// stripe tree is missing, the volume cannot locate such data; [`report_trees`] then reports the
/// reason.
fn attach_stripe_tree(volume: &Arc<Volume>, forest: &Arc<Forest>, root_tree: &Tree) {
    if volume.superblock().incompat.contains(Incompat::RAID_STRIPE_TREE)
        && let Ok(root) = root_of(forest, root_tree, TreeId::RAID_STRIPE)
    {
        volume.set_stripe_resolver(Arc::new(stripe_tree::StripeTree::new(
            forest.tree(root),
            volume.superblock().sector_bytes,
        )));
    }
}

/// Reports mandatory trees whose roots cannot be read.
fn report_trees(forest: &Arc<Forest>, root_tree: &Tree, notices: &mut Vec<Notice>) {
    let superblock = forest.volume().superblock();
    let stripe_tree = superblock.incompat.contains(Incompat::RAID_STRIPE_TREE);
    let by_feature = stripe_tree.then_some(TreeId::RAID_STRIPE);
    for id in ESSENTIAL_TREES.into_iter().chain(by_feature) {
        if let Err(error) = check_tree(forest, root_tree, id) {
            notices.push(Notice::TreeUnreadable {
                tree: id,
                reason: error.to_string(),
            });
        }
    }
}
