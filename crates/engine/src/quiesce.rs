//! Reading the running transaction at one moment, including delayed references.
//!
//! A view holds the trees, but no tree contains the delayed references. A caller that needs both
//! takes a view, walks its trees without a lock, and then requests references of the found extents.
//! The references and the view belong to the same moment if no edit ran in between. If edits never
//! pause, the caller walks again under the edit lock; the blocks are then in the cache.

use super::fault_in::FaultIn;
use crate::engine::Engine;
use buttress_accounts::back_references::DelayedReferencesOf;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_format::Logical;
use buttress_fs::filesystem::Filesystem;

impl Engine {
    /// Returns the delayed references of these extents. Returns `None` if an edit ran, or may have
    /// run, since `view` was taken.
    pub fn delayed_references_of(
        &self,
        view: &Filesystem,
        extents: &[Logical],
    ) -> Option<DelayedReferencesOf> {
        let running = self.shared.running.lock();
        let is_newest = self
            .shared
            .view
            .lock()
            .as_ref()
            .is_some_and(|newest| newest.is_same_view(view));
        is_newest.then(|| running.core.references.of_extents(extents))
    }

    /// Runs a function on a view and the delayed references while no edit runs.
    pub fn quiesced<T>(&self, body: impl FnOnce(&Filesystem, &DelayedReferences) -> T) -> T {
        let mut reads = FaultIn::default();
        let mut running = loop {
            let running = self.shared.running.lock();
            if let Some(running) = self.with_inodes_written_back(running, &mut reads) {
                break running;
            }
        };
        let hold = running.core.hold(&self.shared.readers);
        let view = running.make_view(&self.shared.base, hold);
        body(&view, &running.core.references)
    }
}
