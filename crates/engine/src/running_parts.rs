//! The parts of the running transaction's work: a borrowed handle for each tree or kind of space.
//!
//! A handle borrows [`Running`] for one call and holds no state. The module of a part adds the
//! part's calls to its handle. [`Running`] keeps what all parts need: open trees, edits of items,
//! and the reservation of an edit.

use crate::core_state::Core;
use crate::running::Running;

/// The choice of profile, devices and size of a new chunk. The planner only reads block groups and
/// devices.
///
/// Invariant: a plan names only devices that new chunks may use, and ranges that are unallocated.
#[derive(Debug)]
pub struct ChunkPlanner<'c> {
    pub(crate) core: &'c Core,
}

/// The checksum tree: reads, inserts and removes the checksums of data.
///
/// Invariant: an item's checksums cover consecutive sectors, and no sector has two checksums.
#[derive(Debug)]
pub struct ChecksumTree<'r> {
    pub(crate) running: &'r mut Running,
}

/// The free-space tree: follows the changes of free ranges that a commit makes.
///
/// Invariant: after convergence, the tree records exactly the free ranges of each block group.
#[derive(Debug)]
pub struct FreeSpaceTree<'r> {
    pub(crate) running: &'r mut Running,
}

/// The extent tree: applies delayed references to extent items and keyed references.
///
/// Invariant: an extent without references has no item, and its space is pinned until the commit is
/// durable.
#[derive(Debug)]
pub struct ExtentTree<'r> {
    pub(crate) running: &'r mut Running,
}

/// The chunks of the volume: makes and removes chunks with their block groups and device extents.
///
/// Invariants:
/// - A missing tree block ends a call before the call changes anything.
/// - The chunk tree, the device tree, the chunk map and the block groups name the same chunks.
#[derive(Debug)]
pub struct Chunks<'r> {
    pub(crate) running: &'r mut Running,
}

/// The items of devices: device items, their used bytes, statistics of errors, and the replace
/// item.
///
/// Invariant: the used bytes of a device are the sum of its device extents.
#[derive(Debug)]
pub struct DeviceItems<'r> {
    pub(crate) running: &'r mut Running,
}

/// The convergence of a commit: gives every dirty node an address, and brings the trees that
/// describe each other up to date.
///
/// Invariant: at the end of a convergence, every dirty node has an address, and root items,
/// references, free space and block group items agree with the nodes.
#[derive(Debug)]
pub struct Converging<'r> {
    pub(crate) running: &'r mut Running,
}

/// The last step of a transaction: checks its ledgers, freezes its blocks, and opens the next one.
///
/// Invariant: a frozen block never changes. The next transaction gives a changed copy a new
/// address.
#[derive(Debug)]
pub struct Freezing<'r> {
    pub(crate) running: &'r mut Running,
}

/// The trees of features: the block group tree, the free-space tree, and the v1 cache of free
/// space.
///
/// Invariant: a feature flag is set in the same transaction that completes the feature's tree.
#[derive(Debug)]
pub struct FeatureTrees<'r> {
    pub(crate) running: &'r mut Running,
}

/// Space for file data: reserves, allocates and releases it.
///
/// Invariant: the bytes reserved for dirty data fit into the free bytes of block groups.
#[derive(Debug)]
pub struct DataSpace<'r> {
    pub(crate) running: &'r mut Running,
}

/// Space of the host file system behind the free bytes of metadata block groups.
///
/// Invariant: in a block group with reserved space, each free byte has space on the host.
#[derive(Debug)]
pub struct HostSpace<'r> {
    pub(crate) running: &'r mut Running,
}

/// The inode items: reads and changes them in the table of live inodes, and writes them back into
/// trees.
///
/// Invariant: a live inode's item is never older than the item in its tree.
#[derive(Debug)]
pub struct InodeItems<'r> {
    pub(crate) running: &'r mut Running,
}

/// Space for the blocks of log trees, and for the data that a pending log refers to.
///
/// Invariants:
/// - A log block stays pinned from its allocation until the commit.
/// - No log uses a chunk that the last commit lacks.
#[derive(Debug)]
pub struct LogSpace<'r> {
    pub(crate) running: &'r mut Running,
}

/// The quota tree: its status, and the items of quota groups, relations, limits and counters.
///
/// Invariant: limits that writers are charged against are those of the quota tree.
#[derive(Debug)]
pub struct QuotaTree<'r> {
    pub(crate) running: &'r mut Running,
}

/// A step of a relocation under the edit lock: finds space outside the groups to empty, and moves
/// blocks of the volume's own trees.
///
/// Invariant: a group that is emptied takes no more extents.
#[derive(Debug)]
pub struct RelocationStep<'r> {
    pub(crate) running: &'r mut Running,
}

/// The change of addresses in one transaction: extent items, references, pointers and checksums of
/// a batch get the new addresses.
///
/// Invariant: all items of a batch change in one transaction, or none.
#[derive(Debug)]
pub struct Renamer<'r> {
    pub(crate) running: &'r mut Running,
}

/// The worst case of the next commit: the nodes and bytes that edits and dirty data may still need.
///
/// Invariant: a reservation only reads the transaction. It never understates what a commit
/// allocates.
#[derive(Debug)]
pub struct BlockReserve<'r> {
    pub(crate) running: &'r Running,
}

/// The figures of `statfs`: the size, free and available bytes of the volume.
///
/// Invariant: the figures wait for no commit and read nothing from devices.
#[derive(Debug)]
pub struct SpaceFigures<'r> {
    pub(crate) running: &'r Running,
}

/// A step of a trim under the edit lock: takes unused ranges from the allocator, and gives them
/// back.
///
/// Invariant: a range that is being discarded is in no free range.
#[derive(Debug)]
pub struct TrimStep<'r> {
    pub(crate) running: &'r mut Running,
}

/// A device that missed commits and returns: keeps the blocks of its own state until the device is
/// up to date, and moves its stripes.
///
/// Invariant: the device's own state stays readable until its superblock is written.
#[derive(Debug)]
pub struct ReturningDevice<'r> {
    pub(crate) running: &'r mut Running,
}

impl Core {
    /// Returns the choice of profile, devices and size of new chunks.
    pub const fn chunk_planner(&self) -> ChunkPlanner<'_> {
        ChunkPlanner { core: self }
    }
}

impl Running {
    /// Returns the calls that read and edit the checksum tree.
    pub const fn checksum_tree(&mut self) -> ChecksumTree<'_> {
        ChecksumTree { running: self }
    }

    /// Returns the calls that update the free-space tree.
    pub const fn free_space_tree(&mut self) -> FreeSpaceTree<'_> {
        FreeSpaceTree { running: self }
    }

    /// Returns the calls that apply references to the extent tree.
    pub const fn extent_tree(&mut self) -> ExtentTree<'_> {
        ExtentTree { running: self }
    }

    /// Returns the calls that make and remove chunks.
    pub const fn chunks(&mut self) -> Chunks<'_> {
        Chunks { running: self }
    }

    /// Returns the calls that load and change the items of devices.
    pub const fn device_items(&mut self) -> DeviceItems<'_> {
        DeviceItems { running: self }
    }

    /// Returns the calls that make the transaction converge.
    pub const fn converging(&mut self) -> Converging<'_> {
        Converging { running: self }
    }

    /// Returns the calls that settle and freeze the transaction.
    pub const fn freezing(&mut self) -> Freezing<'_> {
        Freezing { running: self }
    }

    /// Returns the calls that make and remove the trees of features.
    pub const fn feature_trees(&mut self) -> FeatureTrees<'_> {
        FeatureTrees { running: self }
    }

    /// Returns the calls that reserve and allocate space for file data.
    pub const fn data_space(&mut self) -> DataSpace<'_> {
        DataSpace { running: self }
    }

    /// Returns the calls that reserve space of the host.
    pub const fn host_space(&mut self) -> HostSpace<'_> {
        HostSpace { running: self }
    }

    /// Returns the calls that read and change inode items.
    pub const fn inode_items(&mut self) -> InodeItems<'_> {
        InodeItems { running: self }
    }

    /// Returns the calls that allocate space for log trees.
    pub const fn log_space(&mut self) -> LogSpace<'_> {
        LogSpace { running: self }
    }

    /// Returns the calls that edit the quota tree.
    pub const fn quota_tree(&mut self) -> QuotaTree<'_> {
        QuotaTree { running: self }
    }

    /// Returns the calls of a relocation that hold the edit lock.
    pub const fn relocation_step(&mut self) -> RelocationStep<'_> {
        RelocationStep { running: self }
    }

    /// Returns the calls that give a batch its new addresses.
    pub const fn renamer(&mut self) -> Renamer<'_> {
        Renamer { running: self }
    }

    /// Returns the computation of the space that the next commit may need.
    pub const fn block_reserve(&self) -> BlockReserve<'_> {
        BlockReserve { running: self }
    }

    /// Returns the computation of the figures of `statfs`.
    pub const fn space(&self) -> SpaceFigures<'_> {
        SpaceFigures { running: self }
    }

    /// Returns the calls that take unused ranges for a discard.
    pub const fn trim_step(&mut self) -> TrimStep<'_> {
        TrimStep { running: self }
    }

    /// Returns the calls that bring a returning device up to date.
    pub const fn returning_device(&mut self) -> ReturningDevice<'_> {
        ReturningDevice { running: self }
    }
}
