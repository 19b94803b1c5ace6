//! Opening a volume for writing: loads its state, and refuses volumes that must not be written.
//!
//! Opening refuses states that a writer would break or does not support yet, and the errors name
//! these states. Refused states are a replacement without its target, an interrupted change by
//! btrfstune, and metadata images. Opening for writing also refuses
//! unsupported features: zoned, RAID stripe tree, extent tree v2, remap tree, unknown compat_ro
//! bits, seeds. Opening does not refuse a bad primary superblock, because the next commit rewrites
//! it. Opening for writing reads all block group items at once. The free space of a group is read
//! when an allocation needs it.

use super::balance::{balance_item, targets};
use super::balancing::Balancing;
use super::block_groups::BlockGroups;
use super::core_state::Core;
use super::loading::load_block_groups;
use super::memory::DirtyMemory;
use super::pins::{Pins, Readers};
use super::quotas::Quotas;
use super::replacement;
use super::running::Running;
use super::trees::OpenTree;
use super::uncommitted::Account;
use crate::background;
use crate::clearing::require_clearable;
use crate::data_options::DataOptions;
use crate::data_table::DataTable;
use crate::device_space::Devices;
use crate::engine::{CommitStages, Engine, Holders, Shared};
use crate::environment::{Environment, SystemEnvironment};
use crate::inode_table::InodeTable;
use crate::membership::fixes_of_devices;
use crate::pending_log::PendingLog;
use crate::reclaim_state::ReclaimState;
use crate::removed_names::NameChanges;
use crate::steps::Steps;
use crate::trees::{LiveTree, OpenTrees};
use crate::tuning::Tuning;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_format::superblock::SuperblockFlags;
use buttress_format::{ByteCount, CompatRo, Generation, Incompat, ItemType, Key, Logical, TreeId, Uuid};
use buttress_fs::error::{Error, Result, WritingRefusal};
use buttress_fs::filesystem::Filesystem;
use buttress_locks::{Excused, Mutex};
use buttress_tree::{EditableTree, ReadAhead};
use buttress_volume::{Notice, Volume};
use core::sync::atomic::AtomicU64;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Options for writing to a volume.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The source of times and uuids.
    pub environment: Arc<dyn Environment>,
    /// The limit of dirty memory before a commit: changed tree blocks, file content, and records
    /// about both. This limit is part of the cache's budget. `None` means ten sixteenths of the
    /// cache's budget, and at least 8 MiB.
    pub memory: Option<ByteCount>,
    /// Options for writing file content.
    pub data: DataOptions,
    /// Whether the caller opens the volume to cancel an unfinished device replacement. The target
    /// of the replacement may then be missing, and gets no writes.
    pub gives_up_replacement: bool,
    /// Whether devices discard the ranges that a commit freed.
    pub discard: bool,
    /// Whether the caller finishes an interrupted change of the whole volume, as btrfstune makes
    /// them.
    pub finishes_change: bool,
    /// Whether a device may be shorter than its item says. The caller repairs the item
    /// ([`fix_sizes`](crate::areas::MemberDevices::fix_sizes)) before any other change. Opening
    /// fails before any write if the repair would fail.
    pub fixes_sizes: bool,
    /// Whether the caller opens the volume to remove the free-space tree
    /// ([`clear_free_space_tree`](crate::areas::Conversions::clear_free_space_tree)). The engine then
    /// treats the tree as invalid from the start, and its first commit records this.
    pub clears_free_space_tree: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            environment: Arc::new(SystemEnvironment),
            memory: None,
            data: DataOptions::default(),
            gives_up_replacement: false,
            discard: false,
            finishes_change: false,
            fixes_sizes: false,
            clears_free_space_tree: false,
        }
    }
}

/// A volume that was just opened, before its pending log is replayed.
#[derive(Debug)]
pub struct Opening {
    /// The handle of the volume.
    pub engine: Engine,
    /// The log that the caller must replay first, if there is one.
    pub log: Option<PendingLog>,
}

impl Opening {
    /// Ends the opening: its changes do not count as a caller's changes, and the background threads
    /// start.
    #[must_use]
    pub fn end(self) -> Engine {
        let mut engine = self.engine;
        engine.shared.account.forget();
        let background = background::start(&engine.shared);
        engine.holders = Some(Arc::new(Holders::new(Arc::clone(&engine.shared), background)));
        engine
    }
}

impl Engine {
    /// Makes a volume that was opened from writable devices ready for writing. The caller replays
    /// the log, cleans up, and [ends](Opening::end) the opening.
    ///
    /// # Errors
    /// Fails with [`Error::WritingRefused`] for a refused state or feature, with
    /// [`Error::DamagedLog`], or with a device's or tree's error. Also fails with
    /// [`Error::Invalid`] if the volume needs the free-space tree that the caller removes.
    pub fn open(
        filesystem: Filesystem,
        options: WriteOptions,
        stages: Arc<dyn CommitStages>,
    ) -> Result<Opening> {
        let exceptions = Exceptions {
            image: false,
            change: options.finishes_change,
            cut_short: options.fixes_sizes,
        };
        refuse_except(&filesystem, exceptions)?;
        Self::begin(filesystem, options, stages)
    }

    /// Opens a volume as [`open`](Self::open) does, on devices whose changes stay in memory. A
    /// metadata image can be opened in this way too, because nothing is written to the image.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does.
    pub fn open_in_memory(
        filesystem: Filesystem,
        options: WriteOptions,
        stages: Arc<dyn CommitStages>,
    ) -> Result<Opening> {
        let exceptions = Exceptions {
            image: true,
            change: false,
            cut_short: false,
        };
        refuse_except(&filesystem, exceptions)?;
        Self::begin(filesystem, options, stages)
    }

    fn begin(
        filesystem: Filesystem,
        options: WriteOptions,
        stages: Arc<dyn CommitStages>,
    ) -> Result<Opening> {
        if options.fixes_sizes {
            let sector_bytes = filesystem.volume().block_format().sector_bytes;
            fixes_of_devices(filesystem.volume(), sector_bytes)?;
        }
        if options.clears_free_space_tree {
            require_clearable(filesystem.superblock().compat_ro)?;
        }
        let replacing = replacement::take_up(&filesystem, options.gives_up_replacement)?;
        let log = PendingLog::read(&filesystem)?;
        let mut running = load(&filesystem)?;
        if options.clears_free_space_tree {
            // No group is loaded yet, so all groups load from the extent tree.
            running.core.compat_ro.remove(CompatRo::FREE_SPACE_TREE_VALID);
        }
        running.core.replacing = replacing;
        running.core.balancing = balance_item(&filesystem)?.map(Balancing::recorded);
        if let Some(log) = &log {
            running.log_space().keep_blocks(log)?;
        }
        let committed = running.core.durable;
        let readers = Arc::new(Readers::default());
        readers.set_running(running.core.generation);
        let dirty_memory = DirtyMemory::new(
            filesystem.forest().cache_statistics().budget_bytes,
            options.memory,
        );
        filesystem.forest().hold_outside(dirty_memory.limit());
        let data = DataTable::new(options.data, dirty_memory.content_limit());
        let engine = Self {
            shared: Arc::new(Shared {
                base: filesystem,
                steps: Steps::default(),
                trees: running.trees.live(),
                inodes: running.inodes.live(),
                ahead: Arc::clone(&running.core.ahead),
                quota_limits: Arc::clone(&running.core.quota_limits),
                running: Mutex::new(running),
                committing: Mutex::new(()),
                membership: Mutex::new(()),
                exclusive: Mutex::new(None),
                superblocks: Mutex::new(()),
                relocating: Mutex::new(()),
                trimming: Mutex::new(()),
                reclaim: ReclaimState::default(),
                view: Mutex::new(None),
                readers,
                environment: options.environment,
                discards: options.discard,
                dirty_memory,
                whole_commits: AtomicU64::new(0),
                dirty_since: Mutex::default(),
                data,
                account: Account::new(committed),
                stages,
            }),
            holders: None,
        };
        if let Some(item) = engine.balances().current() {
            engine.relocations().set_target_profiles(targets(&item));
        }
        Ok(Opening { engine, log })
    }
}

/// Returns an error if the volume must not be written.
pub fn refuse(filesystem: &Filesystem) -> Result<()> {
    refuse_except(filesystem, Exceptions::default())
}

/// Returns an error if the volume must not be written, even by a caller that finishes an
/// interrupted change of the whole volume, or if relocation trees of Linux remain.
pub fn refuse_to_finish(filesystem: &Filesystem) -> Result<()> {
    let exceptions = Exceptions {
        image: false,
        change: true,
        ..Exceptions::default()
    };
    refuse_except(filesystem, exceptions)?;
    let first = Key::new(TreeId::TREE_RELOCATION.object_id(), ItemType::ROOT_ITEM, 0);
    let last = Key {
        offset: u64::MAX,
        ..first
    };
    let mut found = filesystem.root_tree().range(first..=last, ReadAhead::None);
    match found.next().transpose()? {
        None => Ok(()),
        Some(_) => Err(Error::WritingRefused(WritingRefusal::State {
            name: "relocation trees of an interrupted balance",
            remedy: "end them with `buttress filesystem sync`",
        })),
    }
}

/// States that do not forbid writing to a certain caller.
#[derive(Clone, Copy, Debug, Default)]
struct Exceptions {
    /// A metadata image.
    image: bool,
    /// An interrupted change of the whole volume.
    change: bool,
    /// A device that is shorter than its item says.
    cut_short: bool,
}

fn refuse_except(filesystem: &Filesystem, exceptions: Exceptions) -> Result<()> {
    let refusal = find_refusal(filesystem, exceptions)?;
    refusal.map_or(Ok(()), |refusal| Err(Error::WritingRefused(refusal)))
}

fn find_refusal(filesystem: &Filesystem, exceptions: Exceptions) -> Result<Option<WritingRefusal>> {
    let superblock = filesystem.superblock();
    if let Some(refusal) = noticed(filesystem, exceptions)? {
        return Ok(Some(refusal));
    }
    for (feature, name) in [
        (Incompat::ZONED, "zoned"),
        (Incompat::RAID_STRIPE_TREE, "raid-stripe-tree"),
        (Incompat::EXTENT_TREE_V2, "extent-tree-v2"),
        (Incompat::REMAP_TREE, "remap-tree"),
    ] {
        if superblock.incompat.contains(feature) {
            return Ok(Some(WritingRefusal::Feature { name }));
        }
    }
    if superblock.log_root != Logical::MIN && filesystem.rescue().no_log_replay {
        return Ok(Some(WritingRefusal::State {
            name: "a pending log tree and rescue=nologreplay",
            remedy: "open it without rescue=nologreplay, or delete the log with `buttress rescue zero-log`",
        }));
    }
    Ok(None)
}

/// Returns the reason against writing that opening noticed, if there is one.
fn noticed(filesystem: &Filesystem, exceptions: Exceptions) -> Result<Option<WritingRefusal>> {
    let notices = filesystem.volume().notices();
    let is_excepted = |notice: &Notice| match notice {
        Notice::MetadataImage => exceptions.image,
        Notice::Unfinished(_) => exceptions.change,
        Notice::DeviceCutShort { .. } => exceptions.cut_short,
        _ => false,
    };
    let forbids = |notice: &&Notice| notice.forbids_writing() && !is_excepted(notice);
    if let Some(notice) = notices.iter().find(forbids) {
        return Ok(Some(match notice {
            Notice::UnknownCompatRo { names } => WritingRefusal::CompatRo { names: names.clone() },
            Notice::Seed => WritingRefusal::Seed,
            Notice::MetadataImage => WritingRefusal::MetadataImage,
            Notice::Unfinished(change) => WritingRefusal::Unfinished {
                what: change.what,
                remedy: change.remedy,
            },
            other => WritingRefusal::Devices {
                notice: Box::new(other.clone()),
            },
        }));
    }
    overwritten(filesystem, &notices)
}

/// Returns the refusal for a device whose superblock was read from a copy and whose content another
/// format has overwritten.
fn overwritten(filesystem: &Filesystem, notices: &[Notice]) -> Result<Option<WritingRefusal>> {
    let slots = filesystem.volume().devices();
    for notice in notices {
        let Notice::SuperblockCopyUsed { device: name, .. } = notice else {
            continue;
        };
        let slot = slots.iter().find(|slot| **slot.name() == *name.as_str());
        let Some(device) = slot.and_then(|slot| slot.device()) else {
            continue;
        };
        if let Some(found) = buttress_volume::signatures::other_filesystem(device)? {
            return Ok(Some(WritingRefusal::Overwritten {
                device: name.clone(),
                found,
            }));
        }
    }
    Ok(None)
}

fn load(filesystem: &Filesystem) -> Result<Running> {
    // No other thread can access these new trees yet.
    let _excused = Excused::from_device_rule();
    let superblock = filesystem.superblock();
    let volume = filesystem.volume();
    let generation = Generation::new(superblock.generation.get().saturating_add(1));
    let format = volume.block_format().clone();
    let unnamed = |tree: &buttress_tree::Tree| OpenTree {
        tree: LiveTree::new(EditableTree::open(tree)),
        item: None,
        item_offset: 0,
        item_changed: false,
    };
    let extent = OpenTree {
        tree: LiveTree::new(EditableTree::open(&filesystem.tree(TreeId::EXTENT)?)),
        item: Some(filesystem.root_item(TreeId::EXTENT)?),
        item_offset: 0,
        item_changed: false,
    };
    let mut trees = OpenTrees::default();
    trees.insert(TreeId::ROOT, unnamed(filesystem.root_tree()));
    trees.insert(TreeId::CHUNK, unnamed(&filesystem.tree(TreeId::CHUNK)?));
    let mut running = Running {
        core: Core {
            forest: Arc::clone(filesystem.forest()),
            format,
            compat_ro: superblock.compat_ro,
            chunk_tree_uuid: chunk_tree_uuid(filesystem)?,
            generation,
            durable: superblock.generation,
            extent,
            references: DelayedReferences::default(),
            groups: BlockGroups::default(),
            devices: Devices::default(),
            pins: Pins::default(),
            quotas: Quotas::default(),
            quota_limits: Arc::default(),
            bytes_used: superblock.bytes_used.get(),
            system_chunks: superblock.system_chunks.clone(),
            label: superblock.label.clone(),
            superblock_changed: needs_mending(volume),
            reserved_data_bytes: 0,
            ahead: Arc::default(),
            unrecorded_ranges: 0,
            nodes_addressed: 0,
            replacing: None,
            balancing: None,
            left_groups: Vec::new(),
            host_failure: None,
            asked_host_at: 0,
            tuning: Tuning::default(),
            has_new_chunk: false,
            relocated_blocks: BTreeSet::new(),
        },
        trees,
        inodes: InodeTable::default(),
        names: NameChanges::default(),
        holders: crate::holders::Holders::default(),
    };
    let first = running.core.block_group_tree();
    let mut trees = vec![(first, running.view(first)?)];
    if superblock.flags.contains(SuperblockFlags::CHANGING_BG_TREE) {
        let other = match first {
            TreeId::EXTENT => TreeId::BLOCK_GROUP,
            _ => TreeId::EXTENT,
        };
        if running.feature_trees().has_tree(other)? {
            trees.push((other, running.view(other)?));
        }
    }
    running.core.groups = load_block_groups(&trees, volume)?;
    // The superblock's count of used bytes may be wrong, and allocation relies on the counts of
    // block groups.
    let used = running.core.groups.iter().map(|group| group.used);
    running.core.bytes_used = used.fold(0, u64::saturating_add);
    running.device_items().load()?;
    running.quota_tree().load()?;
    running.quota_tree().load_limits()?;
    Ok(running)
}

/// Returns whether the next commit must rewrite the superblock even without changes. The next
/// commit must rewrite the superblock if a device was opened from a superblock copy, or if the
/// superblock's used bytes are wrong.
fn needs_mending(volume: &Volume) -> bool {
    let is_wrong =
        |notice: &Notice| matches!(notice, Notice::SuperblockCopyUsed { .. } | Notice::UsedBytes(_));
    volume.notices().iter().any(is_wrong)
}

/// Returns the uuid of the chunk tree, which its root block carries.
fn chunk_tree_uuid(filesystem: &Filesystem) -> Result<Uuid> {
    let root = *filesystem.tree(TreeId::CHUNK)?.root();
    let block = filesystem
        .forest()
        .read_block(&buttress_tree::BlockPointer::root(&root))?;
    Ok(block.header().chunk_tree_uuid)
}
