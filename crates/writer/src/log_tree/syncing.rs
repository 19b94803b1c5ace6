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
//! - A log is of the transaction that follows the commit whose superblock names it. While it is written no commit is under
//!   way: both hold the lock of commits.
//! - A superblock with a log differs from the one before it only within its first 512 bytes. So one that is torn is the old
//!   one or the new one, and its copies, which are those of the commit, are not needed.
//! - A log that could not be brought up to date is not written: until the next commit every sync is one.
//! - A block of a log is pinned when it gets its address. What was written, of logs and of data that they refer to, is used
//!   again only after the commit is durable.

use super::collecting::{Batch, Collected, Collector, Stop};
use super::editor::{Editor, LogContext};
use super::state::Logged;
use super::statistics::{CommitCause, Counters, LogStatistics, count};
use crate::operations::Operation;
use crate::transaction::WritableFilesystem;
use crate::transaction::block_groups::{Found, Purpose, Share};
use crate::transaction::reservation::Need;
use crate::transaction::running::Running;
use buttress_format::{
    ByteCount, FileKind, Generation, InodeFlags, InodeItem, InodeNumber, ItemType, Key, Logical, RootFlags,
    RootItem, Timestamp, TreeId, Uuid,
};
use buttress_fs::Location;
use buttress_fs::error::{Defect, Error, Result};
use buttress_locks::{Condvar, Mutex, MutexGuard, Rank, lock_class};
use buttress_tree::{EditableTree, Frozen};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

lock_class!(LogLock, "log", Rank::new(25).over_device().several());
lock_class!(RootsLock, "roots", Rank::new(41));
lock_class!(JoiningLock, "joining", Rank::LEAF);
lock_class!(SubvolumesLock, "subvolumes", Rank::LEAF);

/// The most inodes that the logs of one subvolume and transaction may have.
const INODES_MAX: usize = 1 << 18;

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

/// What a log has of an inode.
#[derive(Clone, Copy, Debug)]
struct InLog {
    whole: bool,
    /// Of a directory that was logged as a whole: how many names that went were taken into account.
    names_seen: usize,
}

/// The log of one subvolume in one transaction.
#[derive(Debug, Default)]
pub(super) struct SubvolumeLog {
    generation: Generation,
    tree: Option<EditableTree>,
    inodes: HashMap<InodeNumber, InLog>,
    names_seen: usize,
    /// Whether there is something that was not written.
    is_dirty: bool,
    /// An edit failed half-way.
    is_broken: bool,
}

impl SubvolumeLog {
    pub(super) fn has(&self, inode: InodeNumber) -> bool {
        self.inodes.contains_key(&inode)
    }

    pub(super) fn has_whole(&self, inode: InodeNumber) -> bool {
        self.inodes.get(&inode).is_some_and(|inode| inode.whole)
    }

    pub(super) const fn names_seen(&self) -> usize {
        self.names_seen
    }

    pub(super) fn names_seen_by(&self, directory: InodeNumber) -> usize {
        self.inodes.get(&directory).map_or(0, |inode| inode.names_seen)
    }
}

/// The logs of all subvolumes, locked.
type Guards<'a> = Vec<(TreeId, &'a Arc<SharedLog>, MutexGuard<'a, SubvolumeLog, LogLock>)>;

/// Who waits for what.
#[derive(Debug, Default)]
struct Joining {
    /// The last batch that was put into a log.
    applied: u64,
    /// The last batch that is durable.
    synced: u64,
    /// Whether somebody writes.
    is_writing: bool,
}

/// The log of one subvolume, whoever has it.
#[derive(Debug)]
struct SharedLog {
    log: Mutex<SubvolumeLog, LogLock>,
}

impl SharedLog {
    fn new(tree: TreeId) -> Self {
        Self {
            log: Mutex::with_place(SubvolumeLog::default(), tree.get().into()),
        }
    }
}

/// The logs of a volume that is open for writing.
#[derive(Debug, Default)]
pub(crate) struct LogTrees {
    subvolumes: Mutex<BTreeMap<TreeId, Arc<SharedLog>>, SubvolumesLock>,
    /// The tree of log roots. Only who writes logs has it.
    roots: Mutex<Option<EditableTree>, RootsLock>,
    joining: Mutex<Joining, JoiningLock>,
    written: Condvar,
    counters: Counters,
}

/// What is to be written of logs.
struct LogWrite {
    /// Of each log the blocks that changed.
    frozen: Vec<Frozen>,
    /// Whose they are, in the same order.
    logs: Vec<Arc<SharedLog>>,
    /// The tree of log roots: the last of what is written.
    roots: Frozen,
    root: Logical,
    level: u8,
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

/// How writing logs ended.
enum Written {
    /// Everything up to here is durable.
    UpTo(u64),
    /// It takes a commit.
    Commit(CommitCause),
}

impl WritableFilesystem {
    /// Makes a file, directory, symlink or other inode durable as it is now, as `fsync(2)` does: its content, attributes and
    /// names; of a directory, the names in it.
    ///
    /// When this returns, a crash does not take that away.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`]; [`Error::NoSpace`] for content that waits; when writing has stopped, or stops now.
    pub fn fsync(&self, location: Location) -> Result<Synced> {
        self.sync_inode(location, false)
    }

    /// As [`fsync`](Self::fsync), but times that changed alone need not last.
    ///
    /// # Errors
    /// As there.
    pub fn fdatasync(&self, location: Location) -> Result<Synced> {
        self.sync_inode(location, true)
    }

    /// What syncs there were since the volume was opened.
    #[must_use]
    pub fn log_statistics(&self) -> LogStatistics {
        self.logs().counters.read()
    }

    fn sync_inode(&self, location: Location, only_data: bool) -> Result<Synced> {
        let logs = self.logs();
        count(&logs.counters.syncs, 1);
        self.require_writing()?;
        let (item, _) = self.live_inode(location)?;
        if item.kind() == FileKind::Regular {
            self.write_back_file(location)?;
        }
        let (number, is_new) = match self.log(location, only_data)? {
            Logging::Batch { number, is_new } => (number, is_new),
            Logging::Commit(cause) => return self.commit_for(cause),
            waits => {
                if matches!(waits, Logging::Committing) {
                    drop(self.committing().lock());
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
        let marks: Vec<InodeNumber> = batch.inodes.keys().copied().collect();
        if let Err(error) = self.put_into_log(&mut log, *batch) {
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

    fn put_into_log(&self, log: &mut SubvolumeLog, batch: Batch) -> Result<()> {
        let format = self.forest().block_format().clone();
        let context = LogContext(batch.generation);
        let tree = log
            .tree
            .as_mut()
            .ok_or(Error::from(Defect::new("a log without a tree")))?;
        let mut editor = Editor {
            tree,
            context,
            format,
        };
        for inode in batch.removed {
            editor.remove_inode(inode)?;
            log.inodes.remove(&inode);
        }
        let (known, new): (Vec<_>, Vec<_>) = batch
            .inodes
            .into_iter()
            .partition(|(inode, _)| log.inodes.contains_key(inode));
        editor.insert_new(&new)?;
        for (inode, of_inode) in &known {
            editor.update(*inode, of_inode)?;
        }
        for (inode, of_inode) in known.iter().chain(&new) {
            editor.rest(*inode, of_inode)?;
            let entry = log.inodes.entry(*inode).or_insert(InLog {
                whole: false,
                names_seen: 0,
            });
            entry.whole |= of_inode.whole;
            if of_inode.whole {
                entry.names_seen = batch.names_seen;
            }
        }
        for (at, sums) in &batch.sums {
            editor.put_sums(*at, sums)?;
        }
        log.names_seen = batch.names_seen;
        Ok(())
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
        let written = self.write_logs();
        let mut joining = logs.joining.lock();
        joining.is_writing = false;
        if let Ok(Written::UpTo(synced)) = &written {
            joining.synced = joining.synced.max(*synced);
        }
        drop(joining);
        logs.written.notify_all();
        match written? {
            Written::UpTo(_) => Ok(Waited::Wrote),
            Written::Commit(cause) => Ok(Waited::Commit(cause)),
        }
    }

    fn write_logs(&self) -> Result<Written> {
        let _no_commit = self.committing().lock();
        self.require_writing()?;
        let devices_before = self.forest().volume().written_devices();
        let node_bytes = u64::from(self.forest().block_format().node_bytes);
        self.fault_in_free_space(Purpose::Metadata, node_bytes)?;
        let applied = self.logs().joining.lock().applied;
        let logs: Vec<(TreeId, Arc<SharedLog>)> = {
            let subvolumes = self.logs().subvolumes.lock();
            subvolumes
                .iter()
                .map(|(tree, log)| (*tree, Arc::clone(log)))
                .collect()
        };
        let mut guards: Guards<'_> = logs
            .iter()
            .map(|(tree, shared)| (*tree, shared, shared.log.lock()))
            .collect();
        let write = match self.freeze_logs(&mut guards)? {
            Ok(write) => write,
            Err(cause) => {
                // Whoever waits, too, must not take the log for written.
                guards.iter_mut().for_each(|(_, _, log)| log.is_broken = true);
                return Ok(Written::Commit(cause));
            }
        };
        drop(guards);
        let Some(write) = write else {
            // The commit that came in between has all of it.
            return Ok(Written::UpTo(applied));
        };
        if let Err(error) = self.write_out_logs(&write) {
            self.forest().volume().stop_writing(&error);
            return Err(error);
        }
        for (log, frozen) in write.logs.iter().zip(&write.frozen) {
            if let Some(tree) = &mut log.log.lock().tree {
                tree.forget_written(frozen);
            }
        }
        if let Some(roots) = self.logs().roots.lock().as_mut() {
            roots.forget_written(&write.roots);
        }
        if self.forest().volume().written_devices() != devices_before {
            // A device that was left out has the same generation as those that have the log: only a commit tells them apart.
            logs.iter()
                .for_each(|(_, shared)| shared.log.lock().is_broken = true);
            return Ok(Written::Commit(CommitCause::DeviceLost));
        }
        Ok(Written::UpTo(applied))
    }

    /// Gives the blocks of all logs that changed addresses, and freezes them. `None` when nothing is left to be written.
    fn freeze_logs(
        &self,
        guards: &mut Guards<'_>,
    ) -> Result<core::result::Result<Option<LogWrite>, CommitCause>> {
        // Blocks for the logs, and for the way to each of their roots.
        let of_logs = guards.iter().filter(|(_, _, log)| log.is_dirty);
        let count = of_logs.fold(4_u64, |sum, (_, _, log)| {
            let blocks = log.tree.as_ref().map_or(0, EditableTree::unassigned_nodes);
            sum.saturating_add(blocks).saturating_add(2)
        });
        let handle = self.start_to_look();
        let (mut handle, places) = self.retry(handle, |handle| handle.take_log_blocks(count))?;
        let Some(places) = places else {
            return Ok(Err(CommitCause::Space));
        };
        let mut places = places.into_iter();
        let frozen = self.freeze_into(&mut handle, guards, &mut places);
        handle.give_back_log_blocks(places);
        frozen
    }

    fn freeze_into(
        &self,
        running: &mut Running,
        guards: &mut Guards<'_>,
        places: &mut impl Iterator<Item = Logical>,
    ) -> Result<core::result::Result<Option<LogWrite>, CommitCause>> {
        let generation = running.core.generation;
        for (_, _, log) in guards
            .iter_mut()
            .filter(|(_, _, log)| log.generation != generation)
        {
            // Its transaction is committed.
            **log = SubvolumeLog::default();
        }
        if running.core.has_new_chunk && guards.iter().any(|(_, _, log)| log.is_dirty) {
            return Ok(Err(CommitCause::NewChunk));
        }
        if guards.iter().any(|(_, _, log)| log.is_broken) {
            return Ok(Err(CommitCause::Incomplete));
        }
        let mut roots = self.logs().roots.lock();
        let is_current = |roots: &EditableTree| roots.root_generation() == generation;
        let roots = match &mut *roots {
            Some(roots) if is_current(roots) => roots,
            old => old.insert(running.new_log(generation)),
        };
        let (mut frozen, mut logs) = (Vec::new(), Vec::new());
        for (tree, shared, log) in guards.iter_mut().filter(|(_, _, log)| log.is_dirty) {
            let Some(of_subvolume) = log.tree.as_mut() else {
                continue;
            };
            running.assign_log(of_subvolume, places)?;
            let root = (of_subvolume.root_logical(), of_subvolume.level());
            let (Some(blocks), (Some(logical), level)) = (of_subvolume.freeze()?, root) else {
                continue;
            };
            frozen.push(blocks);
            logs.push(Arc::clone(shared));
            let key = Key::new(TreeId::TREE_LOG.object_id(), ItemType::ROOT_ITEM, tree.get());
            let item = log_root_item(generation, logical, level);
            roots.put(&mut LogContext(generation), &key, &item.to_bytes())?;
            log.is_dirty = false;
        }
        if frozen.is_empty() {
            return Ok(Ok(None));
        }
        running.assign_log(roots, places)?;
        let (root, level) = (roots.root_logical(), roots.level());
        let (Some(root), Some(roots)) = (root, roots.freeze()?) else {
            return Err(Error::from(Defect::new("the tree of log roots has no root")));
        };
        Ok(Ok(Some(LogWrite {
            frozen,
            logs,
            roots,
            root,
            level,
        })))
    }

    fn write_out_logs(&self, write: &LogWrite) -> Result<()> {
        let volume = self.forest().volume();
        let all = write.frozen.iter().chain([&write.roots]);
        self.write_nodes(all.clone(), volume)?;
        if !buttress_faults::on("log-unflushed-before-superblocks") {
            volume.flush()?;
        }
        volume.write_log_root(write.root, write.level)?;
        let blocks = all.fold(0_u64, |sum, frozen| sum.saturating_add(frozen.nodes()));
        let counters = &self.logs().counters;
        let node_bytes = u64::from(volume.block_format().node_bytes);
        count(&counters.written, 1);
        count(&counters.blocks, blocks);
        count(&counters.bytes, blocks.saturating_mul(node_bytes));
        Ok(())
    }
}

/// What the log of a subvolume is named by.
fn log_root_item(generation: Generation, logical: Logical, level: u8) -> RootItem {
    RootItem {
        inode: InodeItem::empty(Timestamp::default()),
        generation,
        root_directory: InodeNumber::MIN,
        logical,
        byte_limit: 0,
        bytes_used: ByteCount::ZERO,
        last_snapshot: Generation::MIN,
        flags: RootFlags::empty(),
        references: 0,
        drop_progress: Key::MIN,
        drop_level: 0,
        level,
        generation_v2: generation,
        uuid: Uuid::nil(),
        parent_uuid: Uuid::nil(),
        received_uuid: Uuid::nil(),
        ctransid: Generation::MIN,
        otransid: Generation::MIN,
        stransid: Generation::MIN,
        rtransid: Generation::MIN,
        ctime: Timestamp::default(),
        otime: Timestamp::default(),
        stime: Timestamp::default(),
        rtime: Timestamp::default(),
    }
}

/// What is new of an inode, if anything is. Notes what is going to be logged.
fn collect(
    operation: &mut Operation<'_>,
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
        let is_durable = item.transid <= operation.look().core.durable;
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
    if operation.look().core.has_new_chunk {
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
    let collector = Collector::new(operation, log, location.subvolume, generation);
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
    operation: &mut Operation<'_>,
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
        .inodes
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
fn mark(operation: &mut Operation<'_>, location: Location, batch: &Batch) {
    let generation = batch.generation;
    for (inode, of_inode) in &batch.inodes {
        let at = Location::new(location.subvolume, *inode);
        let Some(item) = of_inode.item.filter(|_| of_inode.whole) else {
            continue;
        };
        let last_index = of_inode.entries.last().map(|(key, _)| key.offset);
        operation.look().inodes.with_log_state(at, generation, |state| {
            state.changed = Default::default();
            let batch = u64::MAX;
            state.logged = Some(Box::new(Logged { item, batch }));
            if let Some(last) = last_index {
                state.last_logged_index = last;
            }
        });
    }
}

impl Running {
    /// An empty tree for a log.
    fn new_log(&self, generation: Generation) -> EditableTree {
        let core = &self.core;
        EditableTree::new_empty(&core.forest, TreeId::TREE_LOG, generation, core.chunk_tree_uuid)
    }

    /// Takes room for blocks of logs. `None` when there is none beside what the commit needs.
    fn take_log_blocks(&mut self, count: u64) -> Result<Option<Vec<Logical>>> {
        let node_bytes = self.core.node_bytes().get();
        let reserved = self.metadata_reservation_bytes(Need::freeing(0));
        let room = self.core.groups.room(Purpose::Metadata);
        // Edits would have chunks made for want of what a commit gives back.
        let is_pinned = room.pinned_bytes > room.total_bytes >> 1;
        if is_pinned || room.free_bytes < reserved.saturating_add(count.saturating_mul(node_bytes)) {
            return Ok(None);
        }
        let mut places = Vec::new();
        let taken = self.take_places(count, &mut places);
        if !matches!(taken, Ok(true)) {
            self.give_back_log_blocks(places);
            return taken.map(|_| None);
        }
        Ok(Some(places))
    }

    fn take_places(&mut self, count: u64, places: &mut Vec<Logical>) -> Result<bool> {
        let node_bytes = self.core.node_bytes().get();
        while let Some(left) = count
            .checked_sub(ByteCount::of(places.len()).get())
            .filter(|left| *left > 0)
        {
            let wanted = left.saturating_mul(node_bytes);
            match self
                .core
                .groups
                .allocate(Purpose::Metadata, wanted, node_bytes, node_bytes)?
            {
                Found::Range(start, length) => {
                    let blocks = length.checked_div(node_bytes).unwrap_or(0).max(1);
                    let place = |index: u64| start.saturating_add(index.saturating_mul(node_bytes));
                    places.extend((0..blocks).map(|index| Logical::new(place(index))));
                }
                Found::Load(group) => self.load_group(group)?,
                Found::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    fn give_back_log_blocks(&mut self, places: impl IntoIterator<Item = Logical>) {
        let node_bytes = self.core.node_bytes().get();
        for place in places {
            let given = self.core.groups.give_back(place.get(), node_bytes);
            self.core.settle(given);
        }
    }

    /// Gives the blocks of a log that have none addresses, and pins them.
    fn assign_log(
        &mut self,
        tree: &mut EditableTree,
        places: &mut impl Iterator<Item = Logical>,
    ) -> Result<()> {
        let node_bytes = self.core.node_bytes().get();
        let mut used = Vec::new();
        let assigned = tree.for_each_unassigned(&mut |_, _| {
            let place = places
                .next()
                .ok_or_else(|| Error::from(Defect::new("a log found fewer places than it has blocks")))?;
            used.push(place);
            Ok(place)
        });
        for place in used {
            self.keep_log_block(place.get(), node_bytes, Share::Allocated)?;
        }
        Ok(assigned?)
    }
}
