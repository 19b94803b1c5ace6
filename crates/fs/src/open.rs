//! Opening: from devices to trees.
//!
//! 1. The volume finds its superblock, matches its devices and knows the system chunks.
//! 2. The chunk tree lies in system chunks; walking it gives all chunks and devices, and the volume decides
//!    whether enough devices are there. Where it cannot be walked and devices are missing, that is the error.
//! 3. The root tree: the superblock's, or with `rescue=usebackuproot` the newest of its backup roots from
//!    which the root tree and the trees in it that every volume has can be read.
//! 4. With the raid-stripe-tree feature, data addresses go through that tree: it is handed down to the volume.
//!
//! A pending log tree is not replayed here: the volume is as of its last commit, and a [`Notice`] says so. The crate `writer`
//! replays it: on the volume where that is opened for writing, in memory where it is opened for reading.
//! A tree that cannot be read does not stop opening, as it does in the kernel: a notice names it, and calls
//! that need it fail.

use crate::error::{Corruption, Error, Result};
use crate::executor::Executor;
use crate::filesystem::{Filesystem, Parts, root_pointer};
use crate::notice::Notice;
use buttress_device::Device;
use buttress_format::{
    BackupRoot, ByteCount, Chunk, DeviceItem, Incompat, ItemType, Key, Logical, RootItem, TreeId,
};
use buttress_tree::{BlockPointer, Forest, ReadAhead, RootPointer, Tree};
use buttress_volume::{Rescue, Volume};
use std::sync::Arc;

mod stripe_tree;

/// The node cache's budget where none is given.
pub const DEFAULT_CACHE: ByteCount = ByteCount::new(256 << 20);

/// How to open a volume.
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    devices: Vec<Device>,
    cache: ByteCount,
    degraded: bool,
    rescue: Rescue,
    for_inspection: bool,
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
        }
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The same on other devices.
    pub fn on(self, devices: Vec<Device>) -> Self {
        Self { devices, ..self }
    }

    /// The budget of the node cache.
    pub fn cache(mut self, budget: ByteCount) -> Self {
        self.cache = budget;
        self
    }

    /// Whether to go on when devices are missing.
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Exceptions for damaged volumes.
    pub fn rescue(mut self, rescue: Rescue) -> Self {
        self.rescue = rescue;
        self
    }

    /// Whether to go on when the root tree cannot be read, for looking at what is left: the chunk tree, and
    /// blocks by their addresses. A notice says so, and trees that need it are not found.
    pub fn for_inspection(mut self, for_inspection: bool) -> Self {
        self.for_inspection = for_inspection;
        self
    }

    /// Opens the volume. See the module.
    ///
    /// # Errors
    /// No usable superblock, missing devices, unsupported features, or that the chunk tree or the root tree
    /// cannot be read.
    pub fn open(self) -> Result<Filesystem> {
        Filesystem::open(self)
    }
}

impl Filesystem {
    /// Opens a volume. See [`OpenOptions::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(options: OpenOptions) -> Result<Self> {
        let OpenOptions {
            devices,
            cache,
            degraded,
            rescue,
            for_inspection,
        } = options;
        // On a simulated device everything happens on the caller's thread, so that runs can be repeated.
        let executor = if devices.iter().any(|device| device.virtual_clock().is_some()) {
            Executor::inline()
        } else {
            Executor::of_all_cores()
        };
        let volume = Arc::new(Volume::open(
            devices,
            buttress_volume::OpenOptions { degraded, rescue },
        )?);
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

/// The trees that opening begins with.
struct Roots {
    /// The chunk tree, which has been walked.
    chunk_tree: Tree,
    /// The root tree.
    root_tree: Tree,
    /// Why the root tree cannot be used, if it cannot.
    failure: Option<Error>,
}

/// The chunk tree, walked, and the root tree, by the superblock's roots or a backup's.
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

/// Hands every chunk and device of the chunk tree to the volume.
fn load_chunks(volume: &Volume, chunk_tree: &Tree) -> Result<()> {
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

/// The trees that every volume has.
const ESSENTIAL_TREES: [TreeId; 4] = [TreeId::EXTENT, TreeId::DEVICE, TreeId::FS, TreeId::CHECKSUM];

/// Reads the root tree's root and, where `thorough`, those of the trees that every volume has.
fn check_roots(forest: &Arc<Forest>, root_tree: &Tree, thorough: bool) -> Result<()> {
    root_tree.cursor(ReadAhead::None).seek(&Key::MIN)?;
    if thorough {
        for id in ESSENTIAL_TREES {
            check_tree(forest, root_tree, id)?;
        }
    }
    Ok(())
}

/// Where the root item of one of the volume's own trees says that it begins.
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

/// The newest backup root that can be read.
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

/// With the raid-stripe-tree feature, gives the volume the tree that knows where data lies. Without its root the
/// volume has no answer for such data; [`report_trees`] then says why.
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

/// Says which of the trees that the volume must have cannot be read.
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
