//! Commits and write-back that no call makes: when much waits, and when it has waited for long.
//!
//! One thread for each volume that is open for writing. Edits wake it at half of the limit of dirty memory
//! ([`super::memory`]): it commits while edits continue. Once a second it also inspects how long changes have been dirty. After
//! the environment's interval ([`crate::Environment::commit_interval`]) it writes content back and commits. A caller that
//! never commits loses no more than the changes of that interval.
//!
//! A second thread writes back content once half of what may be dirty is ([`crate::data_table`]), until a quarter is left:
//! callers who write go on meanwhile, and are slowed to the pace of the devices only when all of it is dirty.
//!
//! There are no threads where the environment gives no interval, or where everything is to run on the caller's thread:
//! deterministic runs commit when calls make them. The last handle waits for a commit under way before it is gone, so that
//! nothing is written to the devices after that.
//!
//! A failure here is told to the next edit, because it stopped writing.

use crate::engine::{Engine, Shared};
use crate::memory::Pressure;
use crate::uncommitted::DirtySince;
use crate::workers::{Worker, Workers};
use buttress_fs::error::Result;
use core::sync::atomic::Ordering;
use core::time::Duration;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};

/// How often the thread looks whether something has waited for too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the threads; `None` where there are to be none, or none can be had: then calls commit.
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

/// A handle for a thread of the volume's own; `None` once nobody else has one, or nothing is to be written any more.
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
            // What cannot be written back stays dirty, and whoever wants it durable is told.
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
        // What stopped writing is kept by the volume; what did not is tried again.
        drop(done);
    }
}

impl Engine {
    /// Commits what edits changed, if there is still reason to: they ask again until a commit has begun.
    fn commit_if_much_waits(&self) -> Result<()> {
        match self.shared.dirty_memory.pressure(self.data().delalloc_bytes()) {
            Pressure::None => Ok(()),
            Pressure::Background | Pressure::Hard => self.commit_metadata().map(drop),
        }
    }

    /// Commits when something has waited for `interval`, as far as earlier calls saw; says whether it did.
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
