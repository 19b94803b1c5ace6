//! Decides what a sync of an inode does: nothing, a batch for the log of its subvolume, or a
//! commit.

use super::batch::Batch;
use super::collecting::{Collected, Collector, Stop};
use super::statistics::CommitCause;
use super::subvolume_log::SubvolumeLog;
use crate::operations::Access;
use buttress_engine::log_state::Logged;
use buttress_format::{FileKind, InodeFlags, InodeItem};
use buttress_fs::Location;
use buttress_fs::error::Result;

/// The maximum number of inodes that the logs of one subvolume may have in one transaction.
const INODES_MAX: usize = 1 << 18;

/// Returns the new changes of an inode, if there are any. Records which changes of an inode will be
/// logged.
pub(super) fn collect(
    operation: &mut Access<'_>,
    log: &mut SubvolumeLog,
    location: Location,
    only_data: bool,
) -> Result<Collected> {
    let generation = operation.generation();
    let item = operation.inode(location)?;
    if item.nlink == 0 {
        // After a crash, no name would lead to this inode.
        return Ok(Collected::Committed);
    }
    if item.transid < generation {
        let is_durable = item.transid <= operation.lookups().core().durable;
        return Ok(match is_durable {
            true => Collected::Committed,
            false => Collected::Committing,
        });
    }
    if log.generation != generation {
        *log = SubvolumeLog {
            generation,
            tree: Some(operation.lookups().new_log(generation)),
            ..SubvolumeLog::default()
        };
    }
    if operation.lookups().core().has_new_chunk {
        return Ok(Collected::Commit(CommitCause::NewChunk));
    }
    if log.is_broken {
        return Ok(Collected::Commit(CommitCause::Incomplete));
    }
    if log.inodes.len() > INODES_MAX {
        return Ok(Collected::Commit(CommitCause::Much));
    }
    if let Some(batch) = logged_already(operation, log, location, &item, only_data) {
        return Ok(Collected::Logged(batch));
    }
    let (room, gathered) = (core::mem::take(&mut log.room), core::mem::take(&mut log.gathered));
    let collector = Collector::new(operation, log, location.subvolume, generation, room, gathered);
    match collector.collect(location.inode) {
        Ok(batch) => {
            mark(operation, location, &batch);
            Ok(Collected::Batch(Box::new(batch)))
        }
        Err(Stop::Commit(cause)) => Ok(Collected::Commit(cause)),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// Returns the batch that logged an inode in its current state.
fn logged_already(
    operation: &mut Access<'_>,
    log: &SubvolumeLog,
    location: Location,
    item: &InodeItem,
    only_data: bool,
) -> Option<u64> {
    if !log.has_whole(location.inode) {
        return None;
    }
    let generation = operation.generation();
    let state = operation
        .lookups()
        .inodes()
        .with_log(location, generation, |state| {
            let logged = state.logged.as_deref().cloned();
            logged.filter(|_| state.changed.is_empty())
        });
    let logged = state.flatten()?;
    let mut then = logged.item;
    // Data of this inode that was overwritten in place needs a flush. Changes of names and
    // attributes change more of an inode than its times.
    let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
    if only_data && item.kind() != FileKind::Directory && !item.flags.intersects(in_place) {
        then.mtime = item.mtime;
        then.ctime = item.ctime;
        then.atime = item.atime;
    }
    (then == *item).then_some(logged.batch)
}

/// Records the logged state of the inodes of a batch. No lookup that could miss a block follows
/// this call, so a retry never repeats this call.
fn mark(operation: &mut Access<'_>, location: Location, batch: &Batch) {
    let generation = batch.generation;
    for (inode, of_inode) in batch.inodes.iter() {
        let at = Location::new(location.subvolume, inode);
        let Some(item) = of_inode.item.filter(|_| of_inode.whole) else {
            continue;
        };
        let last_index = of_inode.entries.last().map(|(key, _)| key.offset);
        operation.lookups().with_log_state(at, generation, |state| {
            state.changed = Default::default();
            let batch = u64::MAX;
            state.logged = Some(Box::new(Logged { item, batch }));
            if let Some(last) = last_index {
                state.last_logged_index = last;
            }
        });
    }
}
