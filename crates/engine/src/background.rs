//! Background threads that commit and write back without a call: if much memory is dirty, or
//! changes stay dirty for long.
//!
//! Each volume that is open for writing has one commit thread. Edits wake this thread at half of
//! the limit of dirty memory ([`super::memory`]). The commit thread commits while edits continue.
//! Once a second the background thread also inspects how long changes have been dirty. After the
//! environment's interval ([`crate::Environment::commit_interval`]), the thread writes content back
//! and commits. A caller that never commits therefore loses at most the changes of one interval.
//!
//! When dirty content reaches half of its limit ([`crate::data_table`]), a second thread writes
//! content back until a quarter is left. Callers continue to write meanwhile. Writers are throttled
//! to the pace of the devices only when dirty content reaches its full limit.
//!
//! The background threads do not exist if the environment gives no interval, or if all work runs on
//! the caller's thread. In deterministic runs, therefore, only explicit calls commit. Dropping the
//! last handle waits for a commit in progress, so nothing is written to the devices after the drop.
//!
//! If a background commit fails, writing stops, and the next edit returns the error.

use crate::engine::{Engine, Shared};
use crate::memory::Pressure;
use crate::uncommitted::DirtySince;
use crate::workers::{Worker, Workers};
use buttress_fs::error::Result;
use core::sync::atomic::Ordering;
use core::time::Duration;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};

/// How often the thread inspects whether changes have been dirty for too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the threads. Returns `None` if the environment wants no threads or none can be started;
/// calls then commit themselves.
pub(crate) fn start(writer: &Arc<Shared>) -> Option<Workers> {
    let interval = writer.environment.commit_interval()?;
    if !writer.base.executor().is_parallel() {
        return None;
    }
    let weak = Arc::downgrade(writer);
    let commits = Worker::start("buttress-commit", move |woken| run(&weak, woken, interval))?;
    let weak = Arc::downgrade(writer);
    let write_back = Worker::start("buttress-write-back", move |woken| write_back(&weak, woken))?;
    Some(Workers { commits, write_back })
}

/// Returns a handle for one of the volume's own threads. Returns `None` if no other handle exists
/// or writing has stopped.
fn handle(writer: &Weak<Shared>) -> Option<Engine> {
    let shared = writer.upgrade()?;
    Some(Engine {
        shared,
        holders: None,
    })
}

fn write_back(writer: &Weak<Shared>, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        let Some(filesystem) = handle(writer) else {
            return;
        };
        if !filesystem.shared.account.is_abandoned() {
            // Data that cannot be written back stays dirty, so this error is ignored. If the data
            // cannot be written back, it stays dirty and the next `fsync` or commit returns the
            // error.
            drop(filesystem.stages().write_back_in_background(&filesystem));
        }
    }
}

fn run(writer: &Weak<Shared>, woken: &Receiver<()>, interval: Duration) {
    loop {
        let is_woken = match woken.recv_timeout(LOOK_EVERY) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(filesystem) = handle(writer) else {
            return;
        };
        if filesystem.shared.account.is_abandoned() {
            continue;
        }
        let done = if is_woken {
            filesystem.commit_if_much_waits()
        } else {
            filesystem.commit_if_due(interval).map(drop)
        };
        // The volume records an error that stopped writing. After an error that did not stop
        // writing, the thread retries.
        drop(done);
        drop(filesystem.relocations().remove_left());
    }
}

impl Engine {
    /// Commits the changes of edits if dirty memory is still over its limit: edits request a commit
    /// until one has begun.
    fn commit_if_much_waits(&self) -> Result<()> {
        match self.shared.dirty_memory.pressure(self.data().delalloc_bytes()) {
            Pressure::None => Ok(()),
            Pressure::Background | Pressure::Hard => self.commit_metadata().map(drop),
        }
    }

    /// Commits if changes have been dirty for `interval`, as earlier calls observed. Returns
    /// whether the call committed.
    pub fn commit_if_due(&self, interval: Duration) -> Result<bool> {
        if !self.has_uncommitted() || self.require_writing().is_err() {
            *self.shared.dirty_since.lock() = DirtySince::default();
            return Ok(false);
        }
        let now = self.now();
        let whole_commits = self.shared.whole_commits.load(Ordering::Relaxed);
        {
            let mut dirty_since = self.shared.dirty_since.lock();
            let since = dirty_since
                .since
                .filter(|since| dirty_since.whole_commits == whole_commits && *since <= now);
            let Some(since) = since else {
                *dirty_since = DirtySince {
                    since: Some(now),
                    whole_commits,
                };
                return Ok(false);
            };
            if now.seconds.abs_diff(since.seconds) < interval.as_secs() {
                return Ok(false);
            }
            *dirty_since = DirtySince::default();
        }
        self.commit()?;
        Ok(true)
    }

    fn has_uncommitted(&self) -> bool {
        self.data().has_dirty() || self.shared.running.lock().is_dirty()
    }
}
