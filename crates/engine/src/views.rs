//! Views: states of the volume that never change while a caller holds them.

use crate::engine::{EditLock, Engine, Shared};
use crate::fault_in::FaultIn;
use crate::pins::Hold;
use crate::running::Running;
use buttress_format::{Generation, TreeId};
use buttress_fs::filesystem::{Filesystem, RunningTrees};
use buttress_locks::MutexGuard;
use buttress_tree::RootPointer;
use core::time::Duration;
use std::collections::HashMap;

/// How often a reader that waits for the edit lock checks for a new view.
const VIEW_LOOK_EVERY: Duration = Duration::from_millis(1);

impl Engine {
    /// Returns a view of the current state, including the running transaction. The view never
    /// changes, and its space is not reused before it is dropped. This call waits for no commit.
    /// Making a view waits for a device only to read leaves of changed inodes.
    #[must_use]
    pub fn view(&self) -> Filesystem {
        let mut reads = FaultIn::default();
        loop {
            if let Some(view) = self.shared.view.lock().as_ref() {
                return view.clone();
            }
            // A commit that holds the edit lock makes a view before it starts work that takes long.
            let Some(running) = self.shared.running.try_lock_for(VIEW_LOOK_EVERY) else {
                continue;
            };
            if let Some(mut running) = self.with_inodes_written_back(running, &mut reads) {
                return self.shared.give_view(&mut running);
            }
        }
    }

    /// Writes changed inodes back into their leaves. Returns `None`, with the edit lock released,
    /// if a leaf had to be read.
    pub(crate) fn with_inodes_written_back<'a>(
        &self,
        mut running: MutexGuard<'a, Running, EditLock>,
        reads: &mut FaultIn,
    ) -> Option<MutexGuard<'a, Running, EditLock>> {
        let written = match reads.missing_for(|| running.missing_for_inodes()) {
            Ok(missing) if !missing.is_empty() => {
                drop(running);
                reads.read(self, missing);
                return None;
            }
            Ok(_) => running.inode_items().write_back(),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // The next commit cannot succeed either, so writing stops. The view shows the inodes
            // that could be written back before the error.
            self.forest().volume().stop_writing(&error);
        }
        Some(running)
    }

    /// Returns the state of the last commit without later edits. While the caller holds the
    /// committed view, the view's space is not reused.
    #[must_use]
    pub fn committed_view(&self) -> Filesystem {
        let running = self.shared.running.lock();
        let base = &self.shared.base;
        let superblock = base.volume().superblock();
        // A commit releases pins under this lock at its end, so the hold must precede the release.
        let hold = self.shared.readers.hold(superblock.generation);
        drop(running);
        let tree = |tree, logical, generation: Generation, level| {
            base.forest().tree(RootPointer {
                tree,
                logical,
                generation,
                level,
            })
        };
        base.with_running(RunningTrees {
            root_tree: tree(
                TreeId::ROOT,
                superblock.root,
                superblock.generation,
                superblock.root_level,
            ),
            chunk_tree: Some(tree(
                TreeId::CHUNK,
                superblock.chunk_root,
                superblock.chunk_root_generation,
                superblock.chunk_root_level,
            )),
            trees: HashMap::new(),
            label: superblock.label.clone(),
            hold: Box::new(hold),
        })
    }
}

impl Shared {
    /// Makes a view of the current state, and caches it until the next edit.
    pub(crate) fn give_view(&self, running: &mut Running) -> Filesystem {
        let hold = running.core.hold(&self.readers);
        let view = running.make_view(&self.base, hold);
        let older = self.view.lock().replace(view.clone());
        // Drop the older view outside the lock: that releases its hold, which acquires another
        // lock.
        drop(older);
        view
    }
}

impl Running {
    /// Returns a file system that reads the running state.
    pub fn make_view(&mut self, base: &Filesystem, hold: Hold) -> Filesystem {
        let mut trees = HashMap::new();
        let own = core::iter::once((&TreeId::EXTENT, &self.core.extent));
        for (id, open) in own.chain(self.trees.iter()) {
            if let Some(item) = &open.item {
                trees.insert(*id, (item.clone(), open.tree.view()));
            }
        }
        let view_of = |id: TreeId| self.trees.get(id).map(|open| open.tree.view());
        base.with_running(RunningTrees {
            root_tree: view_of(TreeId::ROOT).unwrap_or_else(|| base.root_tree().clone()),
            chunk_tree: view_of(TreeId::CHUNK),
            trees,
            label: self.core.label.clone(),
            hold: Box::new(hold),
        })
    }
}
