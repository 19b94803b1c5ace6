//! The handle of a volume that is open for writing, the state that all handles share, and its
//! locks.
//!
//! The module `engine` holds the state and lends it to modules above, which act on the state. Each
//! of these higher modules adds the calls of one job to [`Engine`]. [`CommitStages`] is defined
//! here because the engine owns its stages, and a stage receives the engine.

use crate::data_table::DataTable;
use crate::environment::Environment;
use crate::inodes::LiveInodes;
use crate::memory::DirtyMemory;
use crate::pins::{Hold, Readers};
use crate::quota_limits::QuotaLimits;
use crate::reclaim_state::ReclaimState;
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
lock_class!(pub ExclusiveLock, "exclusive", Rank::LEAF);
lock_class!(pub EditLock, "running", Rank::new(40));
lock_class!(pub RelocationLock, "relocating", Rank::new(4).over_device());
lock_class!(pub CommitLock, "committing", Rank::new(20).over_device());
lock_class!(pub SuperblocksLock, "superblocks", Rank::new(22).over_device());
lock_class!(pub TrimmingLock, "trimming", Rank::new(35).over_device());
lock_class!(pub ViewLock, "view", Rank::new(50));
lock_class!(pub DirtySinceLock, "dirty_since", Rank::LEAF);

/// A volume that is open for writing. See the module's documentation.
///
/// Changes without a [commit](Self::commit) are lost when the last handle is dropped.
/// [`close`](Self::close) commits uncommitted changes, and [`abandon`](Self::abandon) discards them
/// on purpose. If the last handle is dropped without a call of `close` or `abandon`,
/// [`Environment::lost`] reports the loss.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    /// The state of all caller-owned handles, dropped with the last of them. The background
    /// thread's handle has `None`.
    pub(crate) holders: Option<Arc<Holders>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The volume as it was at the opening: devices, forest, threads. The base view has the trees
    /// of the moment of opening.
    pub(crate) base: Filesystem,
    /// The edit lock.
    pub(crate) running: Mutex<Running, EditLock>,
    /// A call that changes the volume's devices holds this lock for its whole length.
    pub(crate) membership: Mutex<(), MembershipLock>,
    /// The name of the change that holds the membership lock.
    pub(crate) exclusive: Mutex<Option<&'static str>, ExclusiveLock>,
    /// This lock is held for the whole length of a commit.
    pub(crate) committing: Mutex<(), CommitLock>,
    /// A commit, from freezing on, and the log writer hold this lock while they choose and write a
    /// superblock.
    pub(crate) superblocks: Mutex<(), SuperblocksLock>,
    /// This lock is held for the length of a relocation, so only one relocation runs at a time.
    pub(crate) relocating: Mutex<(), RelocationLock>,
    /// This lock is held while a trim keeps free space from being allocated.
    pub(crate) trimming: Mutex<(), TrimmingLock>,
    /// Stops the automatic reclaim in favour of other jobs.
    pub(crate) reclaim: ReclaimState,
    /// The newest view; `None` after an edit.
    pub(crate) view: Mutex<Option<Filesystem>, ViewLock>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) environment: Arc<dyn Environment>,
    /// Whether devices discard the ranges that a commit freed.
    pub(crate) discards: bool,
    pub(crate) dirty_memory: DirtyMemory,
    /// The number of commits that included all dirty data.
    pub(crate) whole_commits: AtomicU64,
    /// The moment since which changes are dirty, as the background thread observed it.
    pub(crate) dirty_since: Mutex<DirtySince, DirtySinceLock>,
    /// Held exclusively by an operation from its first edit to its end. Live lookups share the
    /// steps lock, so they see all edits of an operation or none.
    pub(crate) steps: Steps,
    /// Space reserved for data before writes need it.
    pub(crate) ahead: Arc<ReservedAhead>,
    /// The limits of quota groups, readable without the edit lock.
    pub(crate) quota_limits: Arc<QuotaLimits>,
    /// The table of open trees and live inodes, for readers.
    pub(crate) trees: Arc<LiveTrees>,
    pub(crate) inodes: Arc<LiveInodes>,
    /// The dirty data of all files.
    pub(crate) data: DataTable,
    /// Counts of uncommitted changes.
    pub(crate) account: Account,
    /// The commit stages that the writer implements.
    pub(crate) stages: Arc<dyn CommitStages>,
}

/// The state that the handles of callers share. Dropping the last handle of a caller drops this
/// state.
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
        self.writer.reclaim.end();
        // Dropping the background threads waits until their commit in progress ends.
        drop(self.background.take());
        let account = &self.writer.account;
        let lost = account.since_commit();
        if !lost.is_empty() && !account.is_abandoned() {
            self.writer.environment.lost(&lost);
        }
    }
}

impl Engine {
    /// Returns notices about the volume for the user: notices of opening, and devices that failed
    /// since.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.base.notices()
    }

    /// Returns the generation of the last commit.
    #[must_use]
    pub fn committed_generation(&self) -> Generation {
        self.shared.running.lock().core.durable
    }

    /// Returns the cache of tree blocks.
    pub fn forest(&self) -> &Arc<Forest> {
        self.shared.base.forest()
    }

    /// Returns the limit of dirty memory before a commit.
    pub fn waiting_bytes_max(&self) -> ByteCount {
        self.shared.dirty_memory.limit()
    }

    pub(crate) fn stages(&self) -> Arc<dyn CommitStages> {
        Arc::clone(&self.shared.stages)
    }

    /// Returns the superblock lock. The holder of this lock decides which superblock is written
    /// next.
    pub fn superblocks(&self) -> &Mutex<(), SuperblocksLock> {
        &self.shared.superblocks
    }

    /// Returns the open trees, for readers.
    pub fn live_trees(&self) -> &LiveTrees {
        &self.shared.trees
    }

    /// Returns the lock that makes an operation's edits appear together to readers.
    pub fn steps(&self) -> &Steps {
        &self.shared.steps
    }

    /// Returns the table of live inodes.
    pub fn live_inodes(&self) -> &LiveInodes {
        &self.shared.inodes
    }

    /// Starts a job on the threads that compress content and compute checksums.
    pub fn spawn_job<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        self.executor().spawn(job)
    }

    /// Returns the executor of the threads that compress and compute checksums.
    pub fn executor(&self) -> &Executor {
        self.shared.base.executor()
    }

    /// Returns the table of dirty data.
    pub fn data(&self) -> &DataTable {
        &self.shared.data
    }

    /// Returns the limits of quota groups.
    #[must_use]
    pub fn quota_limits(&self) -> &QuotaLimits {
        &self.shared.quota_limits
    }

    /// Returns the file system as it was opened, for callers that use none of its trees.
    pub fn shared_base(&self) -> &Filesystem {
        &self.shared.base
    }

    /// Returns a hold on the running transaction's state, valid while
    /// [`is_running_still`](Self::is_running_still).
    pub fn hold_running(&self) -> Hold {
        self.shared.readers.hold_running()
    }

    /// Returns whether the transaction that the hold protects is still running.
    pub fn is_running_still(&self, hold: &Hold) -> bool {
        self.shared.readers.is_running_still(hold)
    }

    /// Returns the time of the environment's clock.
    pub fn now(&self) -> Timestamp {
        self.shared.environment.now()
    }

    /// Returns the latest time that the volume may record; `None` if any time is allowed.
    pub fn latest_time(&self) -> Option<Timestamp> {
        self.shared.environment.latest()
    }

    /// Returns a uuid from the environment.
    pub fn new_uuid(&self) -> Uuid {
        self.shared.environment.new_uuid()
    }
}

impl Shared {
    /// Drops the cached view when an edit begins: the view is no longer the newest state.
    pub(crate) fn forget_view(&self) {
        let older = self.view.lock().take();
        drop(older);
    }
}

/// The calls that a commit makes to the layer above the engine. See the module's documentation.
pub trait CommitStages: fmt::Debug + Send + Sync {
    /// Writes back the dirty data of all files. The caller holds no lock of the engine.
    ///
    /// # Errors
    /// Fails with [`Error::OutOfHostSpace`](buttress_fs::Error::OutOfHostSpace) for data that stays
    /// dirty, or with errors of devices and trees.
    fn write_back(self: Arc<Self>, engine: &Engine) -> Result<()>;

    /// Writes back dirty data on the engine's own thread, until little is left.
    ///
    /// # Errors
    /// Fails as [`write_back`](Self::write_back) does. Data that could not be written stays dirty.
    fn write_back_in_background(self: Arc<Self>, engine: &Engine) -> Result<()>;
}
