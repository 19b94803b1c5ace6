//! The logs of a volume since its last commit, and their locks.

use super::statistics::Counters;
use super::subvolume_log::SubvolumeLog;
use buttress_engine::log_blocks::Spare;
use buttress_format::{Generation, TreeId};
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_tree::{BlockPointer, EditableTree};
use std::collections::BTreeMap;
use std::sync::Arc;

lock_class!(pub(super) LogLock, "log", Rank::new(25).over_device().several());
lock_class!(pub(super) RootsLock, "roots", Rank::new(41));
lock_class!(pub(super) JoiningLock, "joining", Rank::LEAF);
lock_class!(pub(super) SubvolumesLock, "subvolumes", Rank::LEAF);

/// The numbers of batches that syncs wait for.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// The last batch that was added to a log.
    pub(super) applied: u64,
    /// The last log batch that is durable.
    pub(super) synced: u64,
    /// Whether a call is writing logs.
    pub(super) is_writing: bool,
}

/// The log of one subvolume, shared between threads.
#[derive(Debug)]
pub(super) struct SharedLog {
    pub(super) log: Mutex<SubvolumeLog, LogLock>,
}

impl SharedLog {
    pub(super) fn new(tree: TreeId) -> Self {
        Self {
            log: Mutex::with_place(SubvolumeLog::default(), tree.get().into()),
        }
    }
}

/// The logs of a volume that is open for writing.
#[derive(Debug, Default)]
pub(crate) struct LogTrees {
    pub(super) subvolumes: Mutex<BTreeMap<TreeId, Arc<SharedLog>>, SubvolumesLock>,
    /// The tree of log roots. Only the log writer uses the tree of log roots.
    pub(super) roots: Mutex<Option<LogRoots>, RootsLock>,
    pub(super) joining: Mutex<Joining, JoiningLock>,
    pub(super) written: Condvar,
    pub(super) counters: Counters,
}

/// The tree of log roots of a transaction, and addresses that its logs no longer use.
#[derive(Debug)]
pub(crate) struct LogRoots {
    pub(super) generation: Generation,
    pub(super) tree: EditableTree,
    pub(super) superseded: Vec<BlockPointer>,
    pub(super) spare: Spare,
}
