//! Writes logs: blocks, the tree of log roots, a flush, the primary superblocks, a flush.
//!
//! A round writes all changed logs of subvolumes, for all waiting calls. Log blocks get addresses
//! under the edit lock; the rest of the round runs without this lock. During a round of log
//! writing, no commit is frozen or written: rounds and commits hold the superblock lock. A commit
//! may converge during a round of log writing.
//!
//! Logs replace some of their blocks between two rounds. Once the second round is durable, nothing
//! leads to the replaced blocks, and the next round may reuse their addresses
//! ([`buttress_engine::log_blocks`]).

use super::editor::LogContext;
use super::logs::{LogLock, LogRoots, SharedLog};
use super::statistics::{CommitCause, count};
use super::subvolume_log::SubvolumeLog;
use crate::areas::LogTree;
use buttress_engine::block_groups::Purpose;
use buttress_engine::log_blocks::{Place, Spare};
use buttress_engine::running::Running;
use buttress_exact::Exact as _;
use buttress_format::{Generation, ItemType, Key, Logical, RootItem, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_locks::MutexGuard;
use buttress_tree::{BlockPointer, EditableTree, Frozen};
use std::sync::Arc;

/// The logs of all subvolumes, locked.
type Guards<'a> = Vec<(TreeId, &'a Arc<SharedLog>, MutexGuard<'a, SubvolumeLog, LogLock>)>;

/// The log blocks that one round writes.
struct LogWrite {
    /// The changed blocks of each log.
    frozen: Vec<Frozen>,
    /// The logs that these blocks belong to, in the same order.
    logs: Vec<Arc<SharedLog>>,
    /// The tree of log roots, which is written last.
    roots: Frozen,
    root: Logical,
    level: u8,
    /// Log blocks to which no pointer leads once this round is durable.
    superseded: Vec<BlockPointer>,
}

/// The result of a round of log writing.
pub(super) enum Written {
    /// All batches of the log up to this batch are durable.
    UpTo(u64),
    /// The round does not make the changes durable, so the sync commits.
    Commit(CommitCause),
}

impl LogTree<'_> {
    /// Writes all changed logs to the devices.
    pub(super) fn write_logs(&self) -> Result<Written> {
        let _no_other = self.filesystem.superblocks().lock();
        self.filesystem.require_writing()?;
        let devices_before = self.filesystem.forest().volume().written_devices();
        let node_bytes = u64::from(self.filesystem.forest().block_format().node_bytes);
        self.filesystem
            .fault_in_free_space(Purpose::Metadata, node_bytes)?;
        let applied = self.filesystem.logs().joining.lock().applied;
        let logs: Vec<(TreeId, Arc<SharedLog>)> = {
            let subvolumes = self.filesystem.logs().subvolumes.lock();
            subvolumes
                .iter()
                .map(|(tree, log)| (*tree, Arc::clone(log)))
                .collect()
        };
        let mut guards: Guards<'_> = logs
            .iter()
            .map(|(tree, shared)| (*tree, shared, shared.log.lock()))
            .collect();
        let frozen = self.freeze_logs(&mut guards);
        if !matches!(frozen, Ok(Ok(_))) && !buttress_faults::on("log-failed-freeze-joined") {
            // Some logs may already be frozen and clean. After this failure, syncs that wait for
            // the current round need a commit.
            guards.iter_mut().for_each(|(_, _, log)| log.is_broken = true);
        }
        let write = match frozen? {
            Ok(write) => write,
            Err(cause) => return Ok(Written::Commit(cause)),
        };
        drop(guards);
        let Some(write) = write else {
            // The previous round, or a commit since, has written all changes of this sync.
            count(&self.filesystem.logs().counters.joined, 1);
            return Ok(Written::UpTo(applied));
        };
        if let Err(error) = self.write_out_logs(&write) {
            self.filesystem.forest().volume().stop_writing(&error);
            return Err(error);
        }
        for (log, frozen) in write.logs.iter().zip(write.frozen) {
            if let Some(tree) = &mut log.log.lock().tree {
                tree.keep_written(frozen);
            }
        }
        if let Some(roots) = self.filesystem.logs().roots.lock().as_mut() {
            roots.tree.keep_written(write.roots);
            // Forget the superseded blocks, because the next log blocks at these addresses have the
            // same generation.
            self.filesystem.forest().forget_blocks(&write.superseded);
            let addresses = write.superseded.iter().map(|block| block.logical);
            roots.spare.extend(addresses);
        }
        if self.filesystem.forest().volume().written_devices() != devices_before {
            // A failed device has the same generation as the devices with the log, because only a
            // commit changes generations.
            logs.iter()
                .for_each(|(_, shared)| shared.log.lock().is_broken = true);
            return Ok(Written::Commit(CommitCause::DeviceLost));
        }
        Ok(Written::UpTo(applied))
    }

    /// Gives addresses to the blocks of all changed logs, and freezes them. Returns `None` if no
    /// log has unwritten changes.
    fn freeze_logs(
        &self,
        guards: &mut Guards<'_>,
    ) -> Result<core::result::Result<Option<LogWrite>, CommitCause>> {
        let dirty = || guards.iter().filter(|(_, _, log)| log.is_dirty);
        let of_logs = dirty().fold(0_u64, |sum, (_, _, log)| {
            sum.saturating_add(log.tree.as_ref().map_or(0, EditableTree::unassigned_nodes))
        });
        let roots_level = self
            .filesystem
            .logs()
            .roots
            .lock()
            .as_ref()
            .map_or(0, |roots| roots.tree.level());
        let count = of_logs.saturating_add(u64::from(roots_level)).saturating_add(1);
        let count = count.narrow::<usize>();
        // The tree of log roots may have to split.
        let more = dirty().count().saturating_mul(2).saturating_add(4);
        if buttress_faults::on("log-over-durable-log")
            && let Some(roots) = self.filesystem.logs().roots.lock().as_mut()
        {
            let left = guards.iter().flat_map(|(_, _, log)| &log.superseded);
            roots.spare.extend(left.map(|block| block.logical));
        }
        let handle = self.filesystem.start_reading();
        let mut spare = self.take_spare(handle.core.generation);
        let taken = self
            .filesystem
            .retry(handle, |handle| handle.log_space().take(&mut spare, count, more));
        let (mut handle, places) = match taken {
            Ok((handle, Some(places))) => (handle, places),
            other => {
                self.put_spare(spare);
                return other.map(|_| Err(CommitCause::Space));
            }
        };
        let mut unused = places.into_iter();
        let frozen = self.freeze_into(&mut handle, guards, &mut unused);
        handle.log_space().give_back(&mut spare, unused.as_slice());
        self.put_spare(spare);
        frozen
    }

    /// Takes the spare addresses of this transaction's earlier logs out of the shared state, for
    /// the allocation of addresses.
    fn take_spare(&self, generation: Generation) -> Spare {
        let mut roots = self.filesystem.logs().roots.lock();
        let roots = roots.as_mut().filter(|roots| roots.generation == generation);
        roots.map_or_else(Spare::default, |roots| core::mem::take(&mut roots.spare))
    }

    fn put_spare(&self, spare: Spare) {
        if let Some(roots) = self.filesystem.logs().roots.lock().as_mut() {
            roots.spare = spare;
        }
    }

    fn freeze_into(
        &self,
        running: &mut Running,
        guards: &mut Guards<'_>,
        places: &mut impl Iterator<Item = Place>,
    ) -> Result<core::result::Result<Option<LogWrite>, CommitCause>> {
        let generation = running.core.generation;
        for (_, _, log) in guards
            .iter_mut()
            .filter(|(_, _, log)| log.generation != generation)
        {
            // The transaction of this log is committed, so the log is empty.
            **log = SubvolumeLog::default();
        }
        if running.core.has_new_chunk && guards.iter().any(|(_, _, log)| log.is_dirty) {
            return Ok(Err(CommitCause::NewChunk));
        }
        if guards.iter().any(|(_, _, log)| log.is_broken) {
            return Ok(Err(CommitCause::Incomplete));
        }
        let mut roots = self.filesystem.logs().roots.lock();
        let roots = match &mut *roots {
            Some(roots) if roots.generation == generation => roots,
            old => old.insert(LogRoots {
                generation,
                tree: running.log_space().new_log(generation),
                superseded: Vec::new(),
                spare: Spare::default(),
            }),
        };
        let (mut frozen, mut logs, mut superseded) = (Vec::new(), Vec::new(), Vec::new());
        for (tree, shared, log) in guards.iter_mut().filter(|(_, _, log)| log.is_dirty) {
            let defect = |what| Defect::new(what).with("subvolume", tree.get());
            let Some(of_subvolume) = log.tree.as_mut() else {
                if buttress_faults::on("log-without-tree-passed-over") {
                    continue;
                }
                return Err(Error::from(defect("a log has changes and no tree")));
            };
            running.log_space().assign(of_subvolume, places)?;
            let root = (of_subvolume.root_logical(), of_subvolume.level());
            let Some(blocks) = of_subvolume.freeze()? else {
                // The batch changed nothing in this log: an earlier round wrote the log's content.
                continue;
            };
            let (Some(logical), level) = root else {
                return Err(Error::from(defect("a log has blocks and no root")));
            };
            frozen.push(blocks);
            logs.push(Arc::clone(shared));
            let key = Key::new(TreeId::TREE_LOG.object_id(), ItemType::ROOT_ITEM, tree.get());
            let item = log_root_item(generation, logical, level);
            let mut context = LogContext {
                generation,
                superseded: &mut roots.superseded,
            };
            roots.tree.put(&mut context, &key, &item.to_bytes())?;
            superseded.append(&mut log.superseded);
            log.is_dirty = false;
        }
        if frozen.is_empty() {
            return Ok(Ok(None));
        }
        superseded.append(&mut roots.superseded);
        let roots = &mut roots.tree;
        running.log_space().assign(roots, places)?;
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
            superseded,
        })))
    }

    fn write_out_logs(&self, write: &LogWrite) -> Result<()> {
        let volume = self.filesystem.forest().volume();
        let all = write.frozen.iter().chain([&write.roots]);
        self.filesystem.write_nodes(all.clone(), volume, false)?;
        if !buttress_faults::on("log-unflushed-before-superblocks") {
            volume.flush()?;
        }
        volume.write_log_root(write.root, write.level)?;
        let blocks = all.fold(0_u64, |sum, frozen| sum.saturating_add(frozen.nodes()));
        let counters = &self.filesystem.logs().counters;
        let node_bytes = u64::from(volume.block_format().node_bytes);
        count(&counters.written, 1);
        count(&counters.blocks, blocks);
        count(&counters.bytes, blocks.saturating_mul(node_bytes));
        Ok(())
    }
}

/// Returns the root item that names the log of a subvolume.
fn log_root_item(generation: Generation, logical: Logical, level: u8) -> RootItem {
    RootItem {
        logical,
        level,
        ..RootItem::empty(generation)
    }
}
