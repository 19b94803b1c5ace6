//! `fsync` and `fdatasync`: what is written when, and for whom.
//!
//! 1. The file's dirty data is written back, as extents that nothing committed uses.
//! 2. Under the lock of the subvolume's log: what is new is collected from the trees of the running transaction, in memory,
//!    under the edit lock ([`super::collecting`]), and put into the log's own tree, without it.
//! 3. One of those who wait writes for all: blocks of logs that changed get addresses, under the edit lock; then, without it,
//!    they are written, then the tree of log roots; a flush; the primary superblocks with the new root; a flush. Whoever
//!    comes meanwhile waits for the next round, and one of them leads it.
//!
//! Nothing that happens to the trees afterwards changes what a log says. A commit makes every log of its transaction
//! superfluous: its superblock names none, and then the blocks are free again.
//!
//! # Invariants
//!
//! - A log is of the transaction that follows the commit whose superblock names it. While it is written no commit is frozen
//!   or written: both hold the lock of superblocks. A commit that still settles its trees is not waited for.
//! - A superblock with a log differs from the one before it only within its first 512 bytes. So one that is torn is the old
//!   one or the new one, and its copies, which are those of the commit, are not needed.
//! - A log that could not be brought up to date is not written: until the next commit every sync is one.
//! - A block of a log is pinned when it gets its address, until the commit is durable; before that only a later log may have
//!   the address, once no durable log leads to it. Data that logs refer to is used again only after the commit is durable.

use super::collecting::Collected;
use super::deciding::collect;
use super::logs::SharedLog;
use super::statistics::{CommitCause, LogStatistics, count};
use super::writing::Written;
use crate::WritableFilesystem;
use buttress_exact::u64_of;
use buttress_format::{FileKind, FileOffset, Generation, InodeFlags, InodeNumber};
use buttress_fs::Location;
use buttress_fs::error::Result;
use core::ops::Range;
use std::sync::Arc;

/// What became of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// All of it was durable, or had been logged by another call.
    Unneeded,
    /// It was logged.
    Logged,
    /// It took a commit.
    Committed(CommitCause),
}

/// What is left of a sync when its log has everything.
enum Logging {
    /// Nothing: it is committed.
    Durable,
    /// The commit that is under way.
    Committing,
    /// The batch is to be written, which is this sync's own or an earlier one.
    Batch { number: u64, is_new: bool },
    /// It takes a commit.
    Commit(CommitCause),
}

/// What waiting for a batch came to.
enum Waited {
    /// Another one wrote it.
    Joined,
    /// It was written here.
    Wrote,
    /// It takes a commit.
    Commit(CommitCause),
}

/// A caller writes logs, until this is dropped: others wait for that.
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

impl WritableFilesystem {
    /// Makes a file, directory, symlink or other inode durable as it is now, as `fsync(2)` does: its content, attributes and
    /// names; of a directory, the names in it.
    ///
    /// When this returns, a crash does not take that away.
    ///
    /// # Errors
    /// `Error::InodeNotFound`; `Error::NoSpace` for dirty data; when writing has stopped, or stops now.
    pub fn fsync(&self, location: Location) -> Result<Synced> {
        self.sync_inode(location, false, None)
    }

    /// As [`fsync`](Self::fsync), but times that changed alone need not last.
    ///
    /// # Errors
    /// As there.
    pub fn fdatasync(&self, location: Location) -> Result<Synced> {
        self.sync_inode(location, true, None)
    }

    /// As [`fdatasync`](Self::fdatasync), for a range of a file alone, as `sync_file_range(2)`'s users want it. Where nothing
    /// waits in the range nothing is written; otherwise what waits elsewhere in the file stays in memory, unless the file has
    /// another size than was written.
    ///
    /// # Errors
    /// As for [`fsync`](Self::fsync).
    pub fn sync_range(&self, location: Location, range: Range<FileOffset>) -> Result<Synced> {
        let range = range.start.get()..range.end.get();
        if !self.is_range_durable(location, &range)? {
            return self.sync_inode(location, true, Some(&range));
        }
        self.require_writing()?;
        count(&self.logs().counters.syncs, 1);
        count(&self.logs().counters.unneeded, 1);
        Ok(Synced::Unneeded)
    }

    /// Writes, and returns when that is durable, as `write(2)` does on a file that was opened with `O_DSYNC`.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at) and [`fsync`](Self::fsync).
    pub fn write_durably_at(&self, location: Location, offset: FileOffset, bytes: &[u8]) -> Result<Synced> {
        self.write_at(location, offset, bytes)?;
        let length = u64_of(bytes.len());
        self.sync_range(
            location,
            offset..FileOffset::new(offset.get().saturating_add(length)),
        )
    }

    /// Whether a durable log has a range of a file as it is now. Where that is not known at a look, the answer is no.
    fn is_range_durable(&self, location: Location, range: &Range<u64>) -> Result<bool> {
        if self.has_dirty_in(location, range)? {
            return Ok(false);
        }
        let synced = self.logs().joining.lock().synced;
        let id = (location.subvolume.tree(), location.inode);
        let logged = self.live_inodes().look(id, |state| {
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

    /// What syncs there were since the volume was opened.
    #[must_use]
    pub fn log_statistics(&self) -> LogStatistics {
        self.logs().counters.read()
    }

    fn sync_inode(&self, location: Location, only_data: bool, range: Option<&Range<u64>>) -> Result<Synced> {
        let logs = self.logs();
        count(&logs.counters.syncs, 1);
        self.require_writing()?;
        let (item, _) = self.live_inode(location)?;
        if item.kind() == FileKind::Regular {
            match range {
                None => self.write_back_file(location)?,
                Some(range) => self.write_back_range(location, range)?,
            }
        }
        let (number, is_new) = match self.log(location, only_data)? {
            Logging::Batch { number, is_new } => (number, is_new),
            Logging::Commit(cause) => return self.commit_for(cause),
            waits => {
                if matches!(waits, Logging::Committing) {
                    drop(self.superblocks().lock());
                    self.require_writing()?;
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
        self.logs().counters.count_commit(cause);
        self.commit_metadata()?;
        Ok(Synced::Committed(cause))
    }

    /// Step 2.
    fn log(&self, location: Location, only_data: bool) -> Result<Logging> {
        let tree = location.subvolume.tree();
        let new = || Arc::new(SharedLog::new(tree));
        let shared = Arc::clone(self.logs().subvolumes.lock().entry(tree).or_insert_with(new));
        let mut log = shared.log.lock();
        let collected = self.look(|operation| collect(operation, &mut log, location, only_data))?;
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
        // What the log has of others is not asked for: they are logged anew when they are synced themselves.
        let marks: Vec<InodeNumber> = batch
            .inodes
            .iter()
            .filter(|(inode, of_inode)| of_inode.whole || log.has_whole(*inode))
            .map(|(inode, _)| inode)
            .collect();
        if let Err(error) = log.take_in(*batch, self.forest().block_format().clone()) {
            log.is_broken = true;
            self.forget_marks(location, &marks);
            // A block of the log that cannot be read: the commit needs none.
            return match error.kind() {
                buttress_format::ErrorKind::Io | buttress_format::ErrorKind::Corrupt => {
                    Ok(Logging::Commit(CommitCause::Incomplete))
                }
                _ => Err(error),
            };
        }
        let mut joining = self.logs().joining.lock();
        joining.applied = joining.applied.saturating_add(1);
        let number = joining.applied;
        drop(joining);
        self.mark_batch(location, &marks, log.generation, number);
        log.is_dirty = true;
        let is_new = true;
        Ok(Logging::Batch { number, is_new })
    }

    /// Says of which batch the inodes were that were just logged.
    fn mark_batch(&self, location: Location, inodes: &[InodeNumber], generation: Generation, batch: u64) {
        for inode in inodes {
            let id = (location.subvolume.tree(), *inode);
            self.live_inodes().update(id, |state| {
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
            self.live_inodes().update(id, |state| state.log.logged = None);
        }
    }

    /// Step 3: waits until a batch is durable, and writes for all who wait if nobody does.
    fn wait_for_log(&self, batch: u64) -> Result<Waited> {
        let logs = self.logs();
        let mut joining = logs.joining.lock();
        while joining.is_writing && joining.synced < batch {
            logs.written.wait(&mut joining);
        }
        if joining.synced >= batch {
            return Ok(Waited::Joined);
        }
        self.require_writing()?;
        joining.is_writing = true;
        drop(joining);
        let writing = WritingLogs(self);
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
