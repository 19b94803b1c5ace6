//! Opening a volume for writing: what is refused, and what is loaded.
//!
//! Refused by name: states that a writer would break or that it does not keep yet (an interrupted
//! balance, a replacement without its target, relocation trees, a change by btrfstune that was cut off), images of metadata, and features that are
//! not written (zoned, RAID stripe tree, extent tree v2, remap tree, unknown compat_ro bits, seeds). A bad primary
//! superblock is not refused: the next commit writes it anew. Everything else is loaded lazily: block group items at once, the free
//! space of a group when it is needed.

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
use crate::data_options::DataOptions;
use crate::data_table::DataTable;
use crate::device_space::Devices;
use crate::engine::{CommitStages, Engine, Holders, Shared};
use crate::environment::{Environment, SystemEnvironment};
use crate::inode_table::InodeTable;
use crate::pending_log::PendingLog;
use crate::removed_names::NameChanges;
use crate::steps::Steps;
use crate::trees::{LiveTree, OpenTrees};
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_format::{ByteCount, Generation, Incompat, ItemType, Key, Logical, ObjectId, TreeId, Uuid};
use buttress_fs::error::{Error, Result, WritingRefusal};
use buttress_fs::filesystem::Filesystem;
use buttress_locks::{Excused, Mutex};
use buttress_tree::EditableTree;
use buttress_volume::{Notice, Volume};
use core::sync::atomic::AtomicU64;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How to write.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Where times and uuids come from.
    pub environment: Arc<dyn Environment>,
    /// How much may be dirty until it is committed: changed tree blocks, file content, what is noted about both. It
    /// comes out of the cache's budget. `None`: ten sixteenths of that; at least 8 MiB.
    pub memory: Option<ByteCount>,
    /// How file content is written.
    pub data: DataOptions,
    /// The volume is opened to give up a replacement of a device that has not come to its end: its target need not be there,
    /// and is not written.
    pub gives_up_replacement: bool,
    /// Devices are told what a commit freed.
    pub discard: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            environment: Arc::new(SystemEnvironment),
            memory: None,
            data: DataOptions::default(),
            gives_up_replacement: false,
            discard: false,
        }
    }
}

/// A volume that was just opened, before its pending log is replayed.
#[derive(Debug)]
pub struct Opening {
    /// The volume.
    pub engine: Engine,
    /// The log that must be replayed first.
    pub log: Option<PendingLog>,
}

impl Opening {
    /// Ends the opening: what was changed so far is no caller's work, and the volume's own threads start.
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
    /// Makes a volume that was opened from writable devices ready for writing. The caller replays the log, cleans up, and
    /// [ends](Opening::end) the opening.
    ///
    /// # Errors
    /// [`Error::WritingRefused`] for a state or a feature that is not written; [`Error::DamagedLog`]; an error of a device or
    /// a tree.
    pub fn open(
        filesystem: Filesystem,
        options: WriteOptions,
        stages: Arc<dyn CommitStages>,
    ) -> Result<Opening> {
        refuse(&filesystem)?;
        Self::begin(filesystem, options, stages)
    }

    /// As [`open`](Self::open), on devices whose changes stay in memory. A metadata image may be opened so: nothing is
    /// written to it.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_in_memory(
        filesystem: Filesystem,
        options: WriteOptions,
        stages: Arc<dyn CommitStages>,
    ) -> Result<Opening> {
        match find_refusal(&filesystem, true)? {
            None => Self::begin(filesystem, options, stages),
            Some(refusal) => Err(Error::WritingRefused(refusal)),
        }
    }

    fn begin(
        filesystem: Filesystem,
        options: WriteOptions,
        stages: Arc<dyn CommitStages>,
    ) -> Result<Opening> {
        let replacing = replacement::take_up(&filesystem, options.gives_up_replacement)?;
        let log = PendingLog::read(&filesystem)?;
        let mut running = load(&filesystem)?;
        running.core.replacing = replacing;
        if let Some(log) = &log {
            running.keep_log_blocks(log)?;
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
                running: Mutex::new(running),
                committing: Mutex::new(()),
                superblocks: Mutex::new(()),
                relocating: Mutex::new(()),
                trimming: Mutex::new(()),
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
        Ok(Opening { engine, log })
    }
}

/// Refuses what must not be written.
pub fn refuse(filesystem: &Filesystem) -> Result<()> {
    let refusal = find_refusal(filesystem, false)?;
    refusal.map_or(Ok(()), |refusal| Err(Error::WritingRefused(refusal)))
}

/// Where the kernel's own mount goes on with what was interrupted.
const MOUNT: &str = "mount it with the kernel, which goes on with that";

fn find_refusal(filesystem: &Filesystem, in_memory: bool) -> Result<Option<WritingRefusal>> {
    let superblock = filesystem.superblock();
    if let Some(refusal) = noticed(filesystem, in_memory)? {
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
            name: "a pending log tree that is not to be replayed",
            remedy: "open it without rescue=nologreplay, or drop what was synced last: `buttress rescue zero-log`",
        }));
    }
    let root_tree = filesystem.root_tree();
    let balance = Key::new(ObjectId::BALANCE, ItemType::TEMPORARY_ITEM, 0);
    if root_tree.get(&balance)?.is_some() {
        return Ok(Some(WritingRefusal::State {
            name: "an interrupted balance",
            remedy: MOUNT,
        }));
    }
    let relocation = Key::new(TreeId::TREE_RELOCATION.object_id(), ItemType::ROOT_ITEM, 0);
    let mut cursor = root_tree.cursor(buttress_tree::ReadAhead::None);
    cursor.seek(&relocation)?;
    if cursor
        .key()
        .is_some_and(|key| key.objectid == relocation.objectid && key.item_type == ItemType::ROOT_ITEM)
    {
        return Ok(Some(WritingRefusal::State {
            name: "relocation trees of an interrupted balance",
            remedy: MOUNT,
        }));
    }
    Ok(None)
}

/// What opening noticed that forbids writing.
fn noticed(filesystem: &Filesystem, in_memory: bool) -> Result<Option<WritingRefusal>> {
    let notices = filesystem.volume().notices();
    let may_be_image = |notice: &Notice| in_memory && matches!(notice, Notice::MetadataImage);
    let forbids = |notice: &&Notice| notice.forbids_writing() && !may_be_image(notice);
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

/// A device that is opened from a copy of its superblock, and holds something else by now.
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
    // Nobody else has these trees yet.
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
            bytes_used: superblock.bytes_used.get(),
            system_chunks: superblock.system_chunks.clone(),
            label: superblock.label.clone(),
            superblock_changed: needs_mending(volume),
            reserved_data_bytes: 0,
            ahead: Arc::default(),
            unrecorded_ranges: 0,
            nodes_addressed: 0,
            replacing: None,
            host_failure: None,
            asked_host_at: 0,
            has_new_chunk: false,
            relocated_blocks: BTreeSet::new(),
        },
        trees,
        inodes: InodeTable::default(),
        names: NameChanges::default(),
    };
    let groups = running.block_group_tree();
    let tree = running.view(groups)?;
    running.core.groups = load_block_groups(groups, &tree, volume)?;
    // The superblock's own count may be wrong; what block groups say is what allocation goes by.
    let used = running.core.groups.iter().map(|group| group.used);
    running.core.bytes_used = used.fold(0, u64::saturating_add);
    running.load_devices()?;
    running.load_quotas()?;
    Ok(running)
}

/// Whether the superblock has to be written anew: a device was opened from a copy of it, or its count of bytes in use is
/// wrong. Then the next commit is one even if nothing else changed.
fn needs_mending(volume: &Volume) -> bool {
    let is_wrong =
        |notice: &Notice| matches!(notice, Notice::SuperblockCopyUsed { .. } | Notice::UsedBytes(_));
    volume.notices().iter().any(is_wrong)
}

/// The uuid that blocks carry of the chunk tree, taken from its root.
fn chunk_tree_uuid(filesystem: &Filesystem) -> Result<Uuid> {
    let root = *filesystem.tree(TreeId::CHUNK)?.root();
    let block = filesystem
        .forest()
        .read_block(&buttress_tree::BlockPointer::root(&root))?;
    Ok(block.header().chunk_tree_uuid)
}
