//! The log of one subvolume in one transaction: what is in it, and what a sync has to add.

use super::batch::{Batch, InodeBatches};
use super::collecting::{Collected, Collector, Stop};
use super::editor::{Editor, LogContext};
use super::gathering::Gathered;
use super::inode_set::InodeSet;
use super::statistics::CommitCause;
use crate::operations::Access;
use buttress_engine::log_state::Logged;
use buttress_format::{BlockFormat, FileKind, Generation, InodeFlags, InodeItem, InodeNumber};
use buttress_fs::Location;
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::{BlockPointer, EditableTree};
use std::collections::HashMap;

/// The most inodes that the logs of one subvolume and transaction may have.
const INODES_MAX: usize = 1 << 18;

/// The log of one subvolume in one transaction.
#[derive(Debug, Default)]
pub(super) struct SubvolumeLog {
    pub(super) generation: Generation,
    pub(super) tree: Option<EditableTree>,
    /// Blocks that were written, and that the tree has left since it was frozen last.
    pub(super) superseded: Vec<BlockPointer>,
    inodes: InodeSet,
    /// Those that it has as a whole.
    whole: InodeSet,
    names_seen: usize,
    /// Of the directories among those: how many names that went were taken into account.
    names_seen_by: HashMap<InodeNumber, usize>,
    /// Memory for what the next sync collects and reads.
    room: InodeBatches,
    gathered: Gathered,
    /// Whether there is something that was not written.
    pub(super) is_dirty: bool,
    /// An edit failed half-way.
    pub(super) is_broken: bool,
}

impl SubvolumeLog {
    pub(super) fn has(&self, inode: InodeNumber) -> bool {
        self.inodes.has(inode)
    }

    pub(super) fn has_whole(&self, inode: InodeNumber) -> bool {
        self.whole.has(inode)
    }

    pub(super) const fn names_seen(&self) -> usize {
        self.names_seen
    }

    pub(super) fn names_seen_by(&self, directory: InodeNumber) -> usize {
        self.names_seen_by.get(&directory).copied().unwrap_or(0)
    }

    /// Brings the tree up to date with what was collected. After an error the log is not to be written any more.
    pub(super) fn take_in(&mut self, batch: Batch, format: BlockFormat) -> Result<()> {
        let context = LogContext {
            generation: batch.generation,
            superseded: &mut self.superseded,
        };
        let tree = self
            .tree
            .as_mut()
            .ok_or(Error::from(Defect::new("a log without a tree")))?;
        let mut editor = Editor {
            tree,
            context,
            format,
        };
        for inode in batch.removed.iter().copied() {
            editor.remove_inode(inode)?;
            self.inodes.remove(inode);
            self.whole.remove(inode);
            self.names_seen_by.remove(&inode);
        }
        let (mut known, mut new) = (Vec::new(), Vec::with_capacity(batch.inodes.len()));
        for (inode, of_inode) in batch.inodes.iter() {
            match self.inodes.has(inode) {
                true => known.push((inode, of_inode)),
                false => new.push((inode, of_inode)),
            }
        }
        editor.insert_new(&new)?;
        for (inode, of_inode) in &known {
            editor.update(*inode, of_inode)?;
        }
        for (inode, of_inode) in known.into_iter().chain(new) {
            editor.rest(inode, of_inode)?;
            self.inodes.insert(inode);
            if of_inode.whole {
                self.whole.insert(inode);
                let is_directory = |item: &InodeItem| item.kind() == FileKind::Directory;
                if of_inode.item.as_ref().is_some_and(is_directory) {
                    self.names_seen_by.insert(inode, batch.names_seen);
                }
            }
        }
        for (at, sums) in &batch.sums {
            editor.put_sums(*at, sums)?;
        }
        self.names_seen = batch.names_seen;
        self.room = batch.inodes.cleared();
        self.gathered = batch.gathered;
        Ok(())
    }
}

/// What is new of an inode, if anything is. Notes what is going to be logged.
pub(super) fn collect(
    operation: &mut Access<'_>,
    log: &mut SubvolumeLog,
    location: Location,
    only_data: bool,
) -> Result<Collected> {
    let generation = operation.generation();
    let item = operation.inode(location)?;
    if item.nlink == 0 {
        // Nobody could come to have it after a crash.
        return Ok(Collected::Committed);
    }
    if item.transid < generation {
        let is_durable = item.transid <= operation.look().core().durable;
        return Ok(match is_durable {
            true => Collected::Committed,
            false => Collected::Committing,
        });
    }
    if log.generation != generation {
        *log = SubvolumeLog {
            generation,
            tree: Some(operation.look().new_log(generation)),
            ..SubvolumeLog::default()
        };
    }
    if operation.look().core().has_new_chunk {
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

/// The batch in which an inode was logged as it is.
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
        .look()
        .inodes()
        .look_at_log(location, generation, |state| {
            let logged = state.logged.as_deref().cloned();
            logged.filter(|_| state.changed.is_empty())
        });
    let logged = state.flatten()?;
    let mut then = logged.item;
    // What was overwritten in place is to be flushed. Names and attributes change more than times.
    let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
    if only_data && item.kind() != FileKind::Directory && !item.flags.intersects(in_place) {
        then.mtime = item.mtime;
        then.ctime = item.ctime;
        then.atime = item.atime;
    }
    (then == *item).then_some(logged.batch)
}

/// Notes what the log is going to have of the inodes of a batch. Nothing is looked up any more after this, so it is not done
/// twice.
fn mark(operation: &mut Access<'_>, location: Location, batch: &Batch) {
    let generation = batch.generation;
    for (inode, of_inode) in batch.inodes.iter() {
        let at = Location::new(location.subvolume, inode);
        let Some(item) = of_inode.item.filter(|_| of_inode.whole) else {
            continue;
        };
        let last_index = of_inode.entries.last().map(|(key, _)| key.offset);
        operation.look().with_log_state(at, generation, |state| {
            state.changed = Default::default();
            let batch = u64::MAX;
            state.logged = Some(Box::new(Logged { item, batch }));
            if let Some(last) = last_index {
                state.last_logged_index = last;
            }
        });
    }
}
