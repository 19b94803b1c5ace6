//! Views: states of the volume that never change, for as long as they are held.

use crate::engine::{EditLock, Engine, Shared};
use crate::fault_in::FaultIn;
use crate::pins::Hold;
use crate::running::Running;
use buttress_format::TreeId;
use buttress_fs::filesystem::{Filesystem, RunningTrees};
use buttress_locks::MutexGuard;
use core::time::Duration;
use std::collections::HashMap;

/// How often a reader that waits for the edit lock looks whether there is a view meanwhile.
const VIEW_LOOK_EVERY: Duration = Duration::from_millis(1);

impl Engine {
    /// The volume as it is now, the running transaction included: a state that never changes, for as long as it is held.
    /// It waits for no commit, and for a device only to read in where inodes lie that changed; the space that it still needs is not used again before it is dropped.
    #[must_use]
    pub fn view(&self) -> Filesystem {
        let mut reads = FaultIn::default();
        loop {
            if let Some(view) = self.shared.view.lock().as_ref() {
                return view.clone();
            }
            // A commit that holds the lock gives a view before it begins with what takes long.
            let Some(running) = self.shared.running.try_lock_for(VIEW_LOOK_EVERY) else {
                continue;
            };
            if let Some(mut running) = self.with_inodes_written_back(running, &mut reads) {
                return self.shared.give_view(&mut running);
            }
        }
    }

    /// Puts inodes that changed in memory back into their leaves. `None`, and the lock is let go of, when something had to
    /// be read for that.
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
            Ok(_) => running.write_back_inodes(),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // The next commit cannot succeed either; the view shows what could be written back.
            self.forest().volume().stop_writing(&error);
        }
        Some(running)
    }
}

impl Shared {
    /// Makes a view of what is, and keeps it at hand until something is edited.
    pub(crate) fn give_view(&self, running: &mut Running) -> Filesystem {
        let hold = running.core.hold(&self.readers);
        let view = running.make_view(&self.base, hold);
        let older = self.view.lock().replace(view.clone());
        // It lets go of its hold, which has a lock of its own.
        drop(older);
        view
    }
}

impl Running {
    /// A file system that sees this state.
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
