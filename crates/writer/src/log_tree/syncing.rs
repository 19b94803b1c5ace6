//! `fsync` and `fdatasync`: what a sync writes, when, and for which other calls.
//!
//! 1. The sync writes the file's dirty data back, into extents that no commit uses.
//! 2. Under the lock of the subvolume's log, it collects new changes from the trees of the running
//!    transaction. The collection runs in memory, under the edit lock ([`super::collecting`]). The
//!    sync then adds the collected changes to the log's own tree, without the edit lock.
//! 3. Of all waiting sync calls, one writes the log for all. Under the edit lock, changed log
//!    blocks get addresses. After releasing the lock, that call writes the blocks, writes the tree of
//!    log roots, and flushes. The leading call then writes the primary superblocks with the new root
//!    of the log, and flushes. Calls that arrive during the round wait for the next round, and one of
//!    them leads it.
//!
//! Changes of the trees after a log was written never change the meaning of the log. A commit makes
//! every log of its transaction obsolete: the commit's superblock names no log, and the log blocks
//! are then free.
//!
//! # Invariants
//!
//! - A log belongs to the transaction after the commit whose superblock names it. During the write
//!   of a log, no commit is frozen or written: log writers and commits hold the superblock lock. A
//!   log writer does not wait for a commit that still converges.
//! - A superblock with a log differs from the superblock before only in its first 512 bytes. A torn
//!   superblock therefore equals the old or the new superblock. Such a write leaves out the
//!   superblock copies, which keep the state of the commit.
//! - The writer never writes an incomplete log. Until the next commit, every sync then makes a
//!   commit.
//! - A log block stays pinned from its allocation until the commit is durable. Only a later log may
//!   reuse the block's address before the commit, once no durable log leads to the block. The space
//!   of data that logs refer to is reused only after the commit is durable.

use super::collecting::Collected;
use super::deciding::collect;
use super::logs::SharedLog;
use super::statistics::{CommitCause, LogStatistics, count};
use super::writing::Written;
use crate::WritableFilesystem;
use crate::areas::LogTree;
use buttress_exact::u64_of;
use buttress_format::{FileKind, FileOffset, Generation, InodeFlags, InodeNumber};
use buttress_fs::Location;
use buttress_fs::error::Result;
use core::ops::Range;
use std::sync::Arc;

/// The outcome of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// The inode's state was durable already, or another call had logged it.
    Unneeded,
    /// The sync wrote a log.
    Logged,
    /// The sync needed a commit.
    Committed(CommitCause),
}

/// The remaining work of a sync once its changes are in the log.
enum Logging {
    /// Nothing is left to do: the changes are committed.
    Durable,
    /// The sync must wait for the commit in progress.
    Committing,
    /// Write the batch of the log: this sync's own batch, or an earlier one.
    Batch { number: u64, is_new: bool },
    /// Commit.
    Commit(CommitCause),
}

/// The result of a sync's wait for a batch.
enum Waited {
    /// Another sync's call wrote the batch.
    Joined,
    /// This call wrote the batch of the log.
    Wrote,
    /// The sync needs a commit.
    Commit(CommitCause),
}

/// A guard of the call that writes logs. Other calls that write logs wait until this guard is
/// dropped.
struct WritingLogs<'a>(&'a WritableFilesystem);

impl Drop for WritingLogs<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .forest()
                .volume()
                .stop_writing(&"a thread panicked while it wrote a log");
        }
        self.0.logs().joining.lock().is_writing = false;
        self.0.logs().written.notify_all();
    }
}

impl LogTree<'_> {
    /// Makes the current state of an inode durable, as `fsync(2)` does: its content, attributes and
    /// names. If the inode is a directory, its entries become durable too.
    ///
    /// After this call returns, the synced state survives a crash.
    ///
    /// # Errors
    /// Fails with `Error::InodeNotFound`; `Error::NoSpace` for dirty data, or with an error that
    /// stopped writing, or stops it now.
    pub fn fsync(&self, location: Location) -> Result<Synced> {
        self.sync_inode(location, false, None)
    }

    /// Makes an inode durable as [`fsync`](Self::fsync) does, except for changes of times alone.
    ///
    /// # Errors
    /// Fails as [`fsync`](Self::fsync) does.
    pub fn fdatasync(&self, location: Location) -> Result<Synced> {
        self.sync_inode(location, true, None)
    }

    /// Makes a range of a file durable as [`fdatasync`](Self::fdatasync) does, for users of
    /// `sync_file_range(2)`. Writes nothing if the range holds no dirty data. Dirty data outside
    /// the range stays in memory, unless the file's size differs from the size in its inode item.
    ///
    /// # Errors
    /// Fails as [`fsync`](Self::fsync) does.
    pub fn sync_range(&self, location: Location, range: Range<FileOffset>) -> Result<Synced> {
        let range = range.start.get()..range.end.get();
        if !self.is_range_durable(location, &range)? {
            return self.sync_inode(location, true, Some(&range));
        }
        self.filesystem.require_writing()?;
        count(&self.filesystem.logs().counters.syncs, 1);
        count(&self.filesystem.logs().counters.unneeded, 1);
        Ok(Synced::Unneeded)
    }

    /// Writes, and returns once the data is durable, as `write(2)` does on a file opened with
    /// `O_DSYNC`.
    ///
    /// # Errors
    /// Fails as [`write_at`](WritableFilesystem::write_at) and [`fsync`](Self::fsync) do.
    pub fn write_durably_at(&self, location: Location, offset: FileOffset, bytes: &[u8]) -> Result<Synced> {
        self.filesystem.write_at(location, offset, bytes)?;
        let length = u64_of(bytes.len());
        self.sync_range(
            location,
            offset..FileOffset::new(offset.get().saturating_add(length)),
        )
    }

    /// Returns whether a durable log has the current state of a range. Returns false if finding out
    /// would need a read.
    fn is_range_durable(&self, location: Location, range: &Range<u64>) -> Result<bool> {
        if self.filesystem.contents().has_dirty_in(location, range)? {
            return Ok(false);
        }
        let synced = self.filesystem.logs().joining.lock().synced;
        let id = (location.subvolume.tree(), location.inode);
        let logged = self.filesystem.live_inodes().with(id, |state| {
            let (item, log) = (state.item?, &state.log);
            let logged = log.logged.as_deref()?;
            let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
            let end = range.end.min(item.size.get());
            Some(
                logged.batch <= synced
                    && log.generation == item.transid
                    && logged.item.size.get() >= end
                    && !item.flags.intersects(in_place)
                    && !log.changed.meets(range),
            )
        });
        Ok(logged.flatten().unwrap_or(false))
    }

    /// Returns counts of syncs since the volume was opened.
    #[must_use]
    pub fn statistics(&self) -> LogStatistics {
        self.filesystem.logs().counters.read()
    }

    fn sync_inode(&self, location: Location, only_data: bool, range: Option<&Range<u64>>) -> Result<Synced> {
        let logs = self.filesystem.logs();
        count(&logs.counters.syncs, 1);
        self.filesystem.require_writing()?;
        let (item, _) = self.filesystem.live().inode(location)?;
        if item.kind() == FileKind::Regular {
            match range {
                None => self.filesystem.writeback().write_file(location)?,
                Some(range) => self.filesystem.writeback().write_range(location, range)?,
            }
        }
        let (number, is_new) = match self.log(location, only_data)? {
            Logging::Batch { number, is_new } => (number, is_new),
            Logging::Commit(cause) => return self.commit_for(cause),
            waits => {
                if matches!(waits, Logging::Committing) {
                    drop(self.filesystem.superblocks().lock());
                    self.filesystem.require_writing()?;
                }
                count(&logs.counters.unneeded, 1);
                return Ok(Synced::Unneeded);
            }
        };
        match self.wait_for_log(number)? {
            Waited::Joined if !is_new => {
                count(&logs.counters.unneeded, 1);
                Ok(Synced::Unneeded)
            }
            Waited::Joined => {
                count(&logs.counters.joined, 1);
                Ok(Synced::Logged)
            }
            Waited::Wrote => Ok(Synced::Logged),
            Waited::Commit(cause) => self.commit_for(cause),
        }
    }

    fn commit_for(&self, cause: CommitCause) -> Result<Synced> {
        self.filesystem.logs().counters.count_commit(cause);
        self.filesystem.commit_metadata()?;
        Ok(Synced::Committed(cause))
    }

    /// Performs step 2 of a sync: adds the changes to the log.
    fn log(&self, location: Location, only_data: bool) -> Result<Logging> {
        let tree = location.subvolume.tree();
        let new = || Arc::new(SharedLog::new(tree));
        let shared = Arc::clone(
            self.filesystem
                .logs()
                .subvolumes
                .lock()
                .entry(tree)
                .or_insert_with(new),
        );
        let mut log = shared.log.lock();
        let collected = self
            .filesystem
            .read_under_lock(|operation| collect(operation, &mut log, location, only_data))?;
        let batch = match collected {
            Collected::Batch(batch) => batch,
            Collected::Committed => return Ok(Logging::Durable),
            Collected::Committing => return Ok(Logging::Committing),
            Collected::Logged(number) => {
                let is_new = false;
                return Ok(Logging::Batch { number, is_new });
            }
            Collected::Commit(cause) => return Ok(Logging::Commit(cause)),
        };
        // The log states of other inodes need no update: a sync of such an inode logs the inode
        // again.
        let marks: Vec<InodeNumber> = batch
            .inodes
            .iter()
            .filter(|(inode, of_inode)| of_inode.whole || log.has_whole(*inode))
            .map(|(inode, _)| inode)
            .collect();
        if let Err(error) = log.take_in(*batch, self.filesystem.forest().block_format().clone()) {
            log.is_broken = true;
            self.forget_marks(location, &marks);
            // A block of the log cannot be read, so the sync commits: a commit needs no log.
            return match error.kind() {
                buttress_format::ErrorKind::Io | buttress_format::ErrorKind::Corrupt => {
                    Ok(Logging::Commit(CommitCause::Incomplete))
                }
                _ => Err(error),
            };
        }
        let mut joining = self.filesystem.logs().joining.lock();
        joining.applied = joining.applied.saturating_add(1);
        let number = joining.applied;
        drop(joining);
        self.mark_batch(location, &marks, log.generation, number);
        log.is_dirty = true;
        let is_new = true;
        Ok(Logging::Batch { number, is_new })
    }

    /// Records the number of the batch that logged these inodes.
    fn mark_batch(&self, location: Location, inodes: &[InodeNumber], generation: Generation, batch: u64) {
        for inode in inodes {
            let id = (location.subvolume.tree(), *inode);
            self.filesystem.live_inodes().update(id, |state| {
                if state.log.generation == generation
                    && let Some(logged) = &mut state.log.logged
                {
                    logged.batch = batch;
                }
            });
        }
    }

    fn forget_marks(&self, location: Location, inodes: &[InodeNumber]) {
        for inode in inodes {
            let id = (location.subvolume.tree(), *inode);
            self.filesystem
                .live_inodes()
                .update(id, |state| state.log.logged = None);
        }
    }

    /// Does step 3 of a sync: waits until a batch is durable. If no other call writes logs, this
    /// call writes for all waiting calls.
    fn wait_for_log(&self, batch: u64) -> Result<Waited> {
        let logs = self.filesystem.logs();
        let mut joining = logs.joining.lock();
        while joining.is_writing && joining.synced < batch {
            logs.written.wait(&mut joining);
        }
        if joining.synced >= batch {
            return Ok(Waited::Joined);
        }
        self.filesystem.require_writing()?;
        joining.is_writing = true;
        drop(joining);
        let writing = WritingLogs(self.filesystem);
        let written = self.write_logs();
        let mut joining = logs.joining.lock();
        if let Ok(Written::UpTo(synced)) = &written {
            joining.synced = joining.synced.max(*synced);
        } else if buttress_faults::on("log-failed-round-joined") {
            joining.synced = joining.applied;
        }
        drop(joining);
        drop(writing);
        match written? {
            Written::UpTo(_) => Ok(Waited::Wrote),
            Written::Commit(cause) => Ok(Waited::Commit(cause)),
        }
    }
}
