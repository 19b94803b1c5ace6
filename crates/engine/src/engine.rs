//! The handle of a volume that is open for writing, the state that all handles share, and its locks.
//!
//! This module holds the state and hands it out. Modules above it act on the state: each extends [`Engine`] by the calls
//! of one job. [`CommitStages`] is defined here since the engine owns its stages, and a stage gets the engine.

use crate::data_table::DataTable;
use crate::environment::Environment;
use crate::inodes::LiveInodes;
use crate::memory::DirtyMemory;
use crate::pins::{Hold, Readers};
use crate::reserved_ahead::ReservedAhead;
use crate::running::Running;
use crate::steps::Steps;
use crate::trees::LiveTrees;
use crate::uncommitted::{Account, DirtySince};
use crate::workers::Workers;
use buttress_format::{ByteCount, Generation, Timestamp, Uuid};
use buttress_fs::error::Result;
use buttress_fs::executor::{Executor, Task};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::notice::Notice;
use buttress_locks::{Mutex, Rank, lock_class};
use buttress_tree::Forest;
use core::fmt;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

lock_class!(pub MembershipLock, "membership", Rank::new(3).over_device());
lock_class!(pub EditLock, "running", Rank::new(40));
lock_class!(pub RelocationLock, "relocating", Rank::new(4).over_device());
lock_class!(pub CommitLock, "committing", Rank::new(20).over_device());
lock_class!(pub SuperblocksLock, "superblocks", Rank::new(22).over_device());
lock_class!(pub TrimmingLock, "trimming", Rank::new(35).over_device());
lock_class!(pub ViewLock, "view", Rank::new(50));
lock_class!(pub DirtySinceLock, "dirty_since", Rank::LEAF);

/// A volume that is open for writing. See the module.
///
/// What is not [committed](Self::commit) when the last handle goes is lost: [close](Self::close) the volume to keep it,
/// [abandon](Self::abandon) it if that is meant. Otherwise [`Environment::lost`] reports it.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    /// Gone with the last handle of a caller; the thread itself has none.
    pub(crate) holders: Option<Arc<Holders>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The volume as it was opened: devices, forest, threads. Its trees are those of that moment.
    pub(crate) base: Filesystem,
    /// The edit lock.
    pub(crate) running: Mutex<Running, EditLock>,
    /// Held for the length of a change of the volume's devices.
    pub(crate) membership: Mutex<(), MembershipLock>,
    /// Held for the length of a commit.
    pub(crate) committing: Mutex<(), CommitLock>,
    /// Held by who decides which superblock comes next: by a commit from freezing on, and for the length of writing logs.
    pub(crate) superblocks: Mutex<(), SuperblocksLock>,
    /// Held for the length of a relocation: there is one at a time.
    pub(crate) relocating: Mutex<(), RelocationLock>,
    /// Held while a trim keeps free space from being allocated.
    pub(crate) trimming: Mutex<(), TrimmingLock>,
    /// The newest view, while nothing was edited since.
    pub(crate) view: Mutex<Option<Filesystem>, ViewLock>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) environment: Arc<dyn Environment>,
    /// Whether devices are told what a commit freed.
    pub(crate) discards: bool,
    pub(crate) dirty_memory: DirtyMemory,
    /// How many commits there were with all content.
    pub(crate) whole_commits: AtomicU64,
    /// The time since which something is dirty, as the background thread saw it.
    pub(crate) dirty_since: Mutex<DirtySince, DirtySinceLock>,
    /// Taken by an operation from its first edit to its end, and shared by live look-ups: they see no operation half done.
    pub(crate) steps: Steps,
    /// Space that is reserved for data ahead of writes.
    pub(crate) ahead: Arc<ReservedAhead>,
    /// The open trees and the inodes in use, for readers.
    pub(crate) trees: Arc<LiveTrees>,
    pub(crate) inodes: Arc<LiveInodes>,
    /// File dirty data to be written back.
    pub(crate) data: DataTable,
    /// What is not committed.
    pub(crate) account: Account,
    /// The parts of a commit that stand above the engine.
    pub(crate) stages: Arc<dyn CommitStages>,
}

/// What all handles of callers have in common, and goes with the last of them.
#[derive(Debug)]
pub struct Holders {
    writer: Arc<Shared>,
    pub(crate) background: Option<Workers>,
}

impl Holders {
    pub(crate) fn new(writer: Arc<Shared>, background: Option<Workers>) -> Self {
        Self { writer, background }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        // It may still be committing.
        drop(self.background.take());
        let account = &self.writer.account;
        let lost = account.since_commit();
        if !lost.is_empty() && !account.is_abandoned() {
            self.writer.environment.lost(&lost);
        }
    }
}

impl Engine {
    /// What the user should know about the volume: what opening noticed, and devices that failed since.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.base.notices()
    }

    /// The generation of the last commit.
    #[must_use]
    pub fn committed_generation(&self) -> Generation {
        self.shared.running.lock().core.durable
    }

    /// Returns the cache of tree blocks.
    pub fn forest(&self) -> &Arc<Forest> {
        self.shared.base.forest()
    }

    /// How much may be dirty until it is committed.
    pub fn waiting_bytes_max(&self) -> ByteCount {
        self.shared.dirty_memory.limit()
    }

    pub(crate) fn stages(&self) -> Arc<dyn CommitStages> {
        Arc::clone(&self.shared.stages)
    }

    /// Returns the lock of superblocks: whoever holds it decides which superblock comes next.
    pub fn superblocks(&self) -> &Mutex<(), SuperblocksLock> {
        &self.shared.superblocks
    }

    /// Returns the open trees, for readers.
    pub fn live_trees(&self) -> &LiveTrees {
        &self.shared.trees
    }

    /// Returns the lock that keeps operations whole for readers.
    pub fn steps(&self) -> &Steps {
        &self.shared.steps
    }

    /// Returns the inodes in use.
    pub fn live_inodes(&self) -> &LiveInodes {
        &self.shared.inodes
    }

    /// Hands a job to the threads that compress content and compute checksums.
    pub fn spawn_job<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        self.executor().spawn(job)
    }

    /// Returns the threads that compute.
    pub fn executor(&self) -> &Executor {
        self.shared.base.executor()
    }

    /// Returns the table of dirty data.
    pub fn data(&self) -> &DataTable {
        &self.shared.data
    }

    /// The volume below, for what needs none of its trees.
    pub fn shared_base(&self) -> &Filesystem {
        &self.shared.base
    }

    /// A hold on what the running transaction leads to, for as long as [`is_running_still`](Self::is_running_still).
    pub fn hold_running(&self) -> Hold {
        self.shared.readers.hold_running()
    }

    /// Whether the transaction still runs that was running when the hold was taken.
    pub fn is_running_still(&self, hold: &Hold) -> bool {
        self.shared.readers.is_running_still(hold)
    }

    /// The time, by the clock that was given.
    pub fn now(&self) -> Timestamp {
        self.shared.environment.now()
    }

    /// The latest time that the volume may get.
    pub fn latest_time(&self) -> Option<Timestamp> {
        self.shared.environment.latest()
    }

    /// A uuid, from the source that was given.
    pub fn new_uuid(&self) -> Uuid {
        self.shared.environment.new_uuid()
    }
}

impl Shared {
    /// An edit begins: the view that is kept at hand is no longer the newest.
    pub(crate) fn forget_view(&self) {
        let older = self.view.lock().take();
        drop(older);
    }
}

/// The calls of a commit to the layer above. See the module.
pub trait CommitStages: fmt::Debug + Send + Sync {
    /// Writes back the dirty data of all files. No lock of the engine is held.
    ///
    /// # Errors
    /// [`Error::OutOfHostSpace`](buttress_fs::Error::OutOfHostSpace) for data that stays dirty; errors of devices and trees.
    fn write_back(self: Arc<Self>, engine: &Engine) -> Result<()>;

    /// Writes back dirty data until little is left, on the engine's own thread.
    ///
    /// # Errors
    /// As for [`write_back`](Self::write_back). Data that could not be written stays dirty.
    fn write_back_in_background(self: Arc<Self>, engine: &Engine) -> Result<()>;
}
