//! Transactions: one running transaction of a volume, its commits, and the state that edits work on.
//!
//! The engine allocates, counts references, commits and keeps views. It knows no file operation: the writer above it
//! edits trees through [`Running`], and takes part in commits as [`CommitStages`].
//!
//! [`Engine`] is a cheap handle, `Send` and `Sync`. Edits are serialised by one short lock; readers take
//! views ([`Engine::view`]), which never change and never wait for the writer.
//!
//! The state:
//!
//! | module | holds |
//! |---|---|
//! | `running` | the running transaction: trees, and what edits of any tree need |
//! | `trees`, `steps` | open trees, for the writer and for readers; operations are seen whole |
//! | `inodes`, `inode_table` | one object for each inode in use; the writer's way to them |
//! | `pending_times`, `inherited`, `known_names`, `entry` | what such an object holds; names that were looked up |
//! | `waiting_names` | names of unfinished subvolumes that are not in their directories yet |
//! | `data_table`, `file_content`, `dirty_data`, `data_options` | dirty data of files |
//! | `log_state`, `removed_names` | what a log has of an inode; names that went |
//!
//! The machinery:
//!
//! | module | holds |
//! |---|---|
//! | `stages` | what the writer does in a commit |
//! | `retry`, `look` | look-ups that wait for no device; look-ups without edits |
//! | `look_ups` | counts of look-ups, for tests |
//! | `pending_log`, `log_blocks` | the log that waits at opening; where blocks of logs lie |
//! | `opening` | what may be written and what is refused by name |
//! | `reservation`, `reserved_ahead` | an edit's lock, and the promise of space; space for data ahead of writes |
//! | `need`, `worst_case`, `allowance` | an edit's need; the most nodes of an edit; the nodes it took, compared with its need |
//! | `cow` | what copying a tree block means for references |
//! | `extent_tree`, `quotas` | reference counts are applied; quotas are kept right, or marked |
//! | `backing` | space of the host for metadata, reserved ahead |
//! | `block_groups`, `free_ranges`, `chunks`, `loading` | space: what is free, where chunks come from |
//! | `free_space_tree`, `checksums` | the trees that follow the extent tree |
//! | `data_extents` | extents of file data: allocated, referred to, let go |
//! | `converging`, `freezing`, `committing`, `slice` | a commit: addresses, the frozen state, the writes; how long it holds the lock |
//! | `fault_in` | tree blocks come into memory before the lock is held for long |
//! | `device_errors` | what devices failed with, in their statistics |
//! | `pins` | freed space that must wait |
//! | `trimming` | devices are told of what nothing uses |
//! | `replacement` | a device that takes another's place: its item, the commit that ends it |
//! | `returning` | a device that missed commits: its own state is kept until it has the volume's |
//! | `recount` | ledgers against trees, in builds with debug assertions |
//! | `quiesce` | a view together with the delayed references |
//! | `memory` | what waits for a commit, as a part of the cache's budget |
//! | `background` | the thread that commits when much waits, or for long |
//! | `uncommitted` | what would be lost now; letting go of the volume |
//!
//! # Invariants
//!
//! - Nothing that the last durable superblock leads to is overwritten, except as the format allows for data without
//!   copy-on-write.
//! - A dirty node has no address until the commit, so nodes that come and go within a transaction cost nothing on disk.
//! - What was not committed never goes without a word: it is committed, abandoned, or reported.
//! - After a failed commit nothing is written any more: the volume says why, and reading goes on.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

mod allowance;
mod background;
pub mod backing;
pub mod block_groups;
pub mod checksums;
mod chunks;
mod committing;
mod converging;
pub mod cow;
pub mod data_extents;
pub mod data_options;
pub mod data_table;
pub mod device_errors;
pub mod dirty_data;
pub mod entry;
pub mod extent_tree;
pub mod fault_in;
pub mod file_content;
mod free_ranges;
mod free_space_tree;
pub mod freezing;
pub mod inherited;
pub mod inode_table;
pub mod inodes;
pub mod known_names;
mod loading;
pub mod log_blocks;
pub mod log_state;
pub mod look;
pub mod look_ups;
mod memory;
mod need;
pub mod opening;
pub mod pending_log;
pub mod pending_times;
pub mod pins;
mod quiesce;
mod quotas;
mod recount;
pub mod removed_names;
pub mod replacement;
pub mod reservation;
pub mod reserved_ahead;
pub mod retry;
pub mod returning;
pub mod running;
pub mod slice;
pub mod space;
pub mod stages;
pub mod steps;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trees;
pub mod trimming;
pub mod uncommitted;
pub mod waiting_names;
mod worst_case;

pub use data_options::DataOptions;
pub use opening::{Environment, SystemEnvironment, WriteOptions};
pub use replacement::{replacement_item, wipe_superblocks};
pub use returning::Return;
pub use space::SpaceNow;
pub use trimming::Trimmed;
pub use uncommitted::Uncommitted;

use crate::data_table::DataTable;
use crate::inodes::LiveInodes;
use crate::stages::CommitStages;
use crate::steps::Steps;
use crate::trees::LiveTrees;
use background::Waiting;
use buttress_format::{ByteCount, Generation, Timestamp, Uuid};
use buttress_fs::executor::{Executor, Task};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::notice::Notice;
use buttress_locks::{Mutex, MutexGuard, Rank, lock_class};
use buttress_tree::Forest;
use core::sync::atomic::AtomicU64;
use core::time::Duration;
use fault_in::FaultIn;
use memory::DirtyMemory;
use pins::{Hold, Readers};
use reserved_ahead::ReservedAhead;
use running::Running;
use std::sync::Arc;
use uncommitted::{Account, Holders};

lock_class!(pub EditLock, "running", Rank::new(40));
lock_class!(pub CommitLock, "committing", Rank::new(20).over_device());
lock_class!(pub SuperblocksLock, "superblocks", Rank::new(22).over_device());
lock_class!(pub TrimmingLock, "trimming", Rank::new(35).over_device());
lock_class!(ViewLock, "view", Rank::new(50));
lock_class!(WaitingLock, "waiting", Rank::LEAF);

/// How often a reader that waits for the edit lock looks whether there is a view meanwhile.
const VIEW_LOOK_EVERY: Duration = Duration::from_millis(1);

/// A volume that is open for writing. See the module.
///
/// What is not [committed](Self::commit) when the last handle goes is lost: [close](Self::close) the volume to keep it,
/// [abandon](Self::abandon) it if that is meant. Otherwise [`Environment::lost`] reports it.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Gone with the last handle of a caller; the thread itself has none.
    holders: Option<Arc<Holders>>,
}

#[derive(Debug)]
struct Shared {
    /// The volume as it was opened: devices, forest, threads. Its trees are those of that moment.
    base: Filesystem,
    /// The edit lock.
    running: Mutex<Running, EditLock>,
    /// Held for the length of a commit.
    committing: Mutex<(), CommitLock>,
    /// Held by who decides which superblock comes next: by a commit from freezing on, and for the length of writing logs.
    superblocks: Mutex<(), SuperblocksLock>,
    /// Held while a trim keeps free space from being allocated.
    trimming: Mutex<(), TrimmingLock>,
    /// The newest view, while nothing was edited since.
    view: Mutex<Option<Filesystem>, ViewLock>,
    readers: Arc<Readers>,
    environment: Arc<dyn Environment>,
    /// Whether devices are told what a commit freed.
    discards: bool,
    dirty_memory: DirtyMemory,
    /// How many commits there were with all content.
    whole_commits: AtomicU64,
    /// Since when something waits to be committed, as the background thread saw it.
    waiting: Mutex<Waiting, WaitingLock>,
    /// Taken by an operation from its first edit to its end, and shared by live look-ups: they see no operation half done.
    steps: Steps,
    /// Space that is reserved for data ahead of writes.
    ahead: Arc<ReservedAhead>,
    /// The open trees and the inodes in use, for readers.
    trees: Arc<LiveTrees>,
    inodes: Arc<LiveInodes>,
    /// File dirty data to be written back.
    data: DataTable,
    /// What is not committed.
    account: Account,
    /// The parts of a commit that stand above the engine.
    stages: Arc<dyn CommitStages>,
}

impl Engine {
    /// The volume as it is now, the running transaction included: a state that never changes, for as long as it is held.
    /// It waits for no commit, and for a device only to read in where inodes lie that changed; the space that it still needs is not used again before it is dropped.
    #[must_use]
    pub fn view(&self) -> Filesystem {
        let mut reads = FaultIn::default();
        loop {
            if let Some(view) = self.shared.view.lock().as_ref() {
                return view.clone();
            }
            // A commit that holds the lock gives a view before it begins with what takes long.
            let Some(running) = self.shared.running.try_lock_for(VIEW_LOOK_EVERY) else {
                continue;
            };
            if let Some(mut running) = self.with_inodes_written_back(running, &mut reads) {
                return self.shared.give_view(&mut running);
            }
        }
    }

    /// Puts inodes that changed in memory back into their leaves. `None`, and the lock is let go of, when something had to
    /// be read for that.
    fn with_inodes_written_back<'a>(
        &self,
        mut running: MutexGuard<'a, Running, EditLock>,
        reads: &mut FaultIn,
    ) -> Option<MutexGuard<'a, Running, EditLock>> {
        let written = match reads.missing_for(|| running.missing_for_inodes()) {
            Ok(missing) if !missing.is_empty() => {
                drop(running);
                reads.read(self, missing);
                return None;
            }
            Ok(_) => running.write_back_inodes(),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // The next commit cannot succeed either; the view shows what could be written back.
            self.forest().volume().stop_writing(&error);
        }
        Some(running)
    }

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

    fn stages(&self) -> Arc<dyn CommitStages> {
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
    /// Makes a view of what is, and keeps it at hand until something is edited.
    fn give_view(&self, running: &mut Running) -> Filesystem {
        let hold = running.core.hold(&self.readers);
        let view = running.make_view(&self.base, hold);
        let older = self.view.lock().replace(view.clone());
        // It lets go of its hold, which has a lock of its own.
        drop(older);
        view
    }

    /// An edit begins: the view that is kept at hand is no longer the newest.
    fn forget_view(&self) {
        let older = self.view.lock().take();
        drop(older);
    }
}
