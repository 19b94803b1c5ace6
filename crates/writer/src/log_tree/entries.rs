//! The entries of a synced directory: entries added since its last logging, and entries removed.
//!
//! New names in a directory have higher indexes than all earlier names. The scan of a directory's
//! entries therefore begins after the last logged index, and its cost depends only on new names.

use super::collecting::{Collector, Extent, INODES_MAX, Stop, Walk};
use super::inode_batch::Data;
use super::statistics::CommitCause;
use buttress_engine::inode_table::FIRST_INDEX;
use buttress_format::{DirItem, DirItems, FileKind, InodeItem, InodeNumber, ItemType};
use core::ops::ControlFlow;

impl Collector<'_, '_> {
    /// Collects the entries that a directory gained and lost.
    pub(super) fn entries(&mut self, directory: InodeNumber, item: &InodeItem) -> Walk {
        let tree = self.tree();
        let changes = self.operation.lookups().names().of(tree);
        if changes.is_some_and(|changes| changes.has_subvolume(directory)) {
            return Err(Stop::Commit(CommitCause::SubvolumeMoved));
        }
        let since = self.log.names_seen_by(directory);
        for removed in self.names_of_directory(directory, since) {
            if removed.is_committed {
                self.batch_of(directory)
                    .ranges
                    .push((removed.index, removed.index));
                self.let_go(&removed)?;
            }
        }
        let location = self.at(directory);
        let state = self
            .operation
            .lookups()
            .inodes()
            .with_log(location, self.generation, |log| {
                (log.first_index, log.last_logged_index)
            });
        let first = match item.generation == self.generation {
            true => Some(FIRST_INDEX),
            false => state.and_then(|(first, _)| first),
        };
        let Some(first) = first else {
            return Ok(());
        };
        let behind = match buttress_faults::on("log-index-forgotten") {
            true => 0,
            false => state.map_or(0, |(_, last)| last.saturating_add(1)),
        };
        self.batch_of(directory).ranges.push((first, u64::MAX));
        self.new_entries(directory, first.max(behind))
    }

    fn new_entries(&mut self, directory: InodeNumber, from: u64) -> Walk {
        let tree = self.tree();
        let first = DirItem::index_key(directory, from);
        let mut items = self.batch.inodes.room_for_entries();
        let open = self.operation.lookups().open_tree(tree)?;
        open.tree.scan(&first, |key, data| {
            if key.objectid != first.objectid || key.item_type != ItemType::DIR_INDEX {
                return ControlFlow::Break(());
            }
            items.push((*key, Data::from_slice(data)));
            match items.len() > INODES_MAX {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        let mut targets = Vec::with_capacity(items.len());
        self.batch.inodes.reserve(items.len());
        self.waiting.reserve(items.len());
        // Push the directory entries in reverse, so that the walk visits them in order.
        for (key, data) in items.iter().rev() {
            self.bytes = self.bytes.saturating_add(data.len());
            let mut entries = DirItems::parse(key, data).map_err(|error| self.broken(error))?;
            let Some(entry) = entries.next() else { continue };
            if entry.location.item_type != ItemType::INODE_ITEM {
                return Err(Stop::Commit(CommitCause::SubvolumeMoved));
            }
            let target = InodeNumber::new(entry.location.objectid.get());
            let is_new_directory = entry.kind == FileKind::Directory
                && self
                    .living(target)?
                    .is_some_and(|item| item.generation == self.generation);
            let extent = match is_new_directory {
                true => Extent::Whole,
                false => Extent::Existence,
            };
            self.want(target, extent);
            targets.push(target);
        }
        self.batch_of(directory).entries = items;
        self.gather(targets)
    }
}
