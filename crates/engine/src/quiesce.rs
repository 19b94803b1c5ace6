//! Looking at the running transaction at one moment, delayed references included.
//!
//! A view holds the trees, but delayed references are not in any of them. Whoever needs both takes a view, walks it
//! without any lock, and then asks for the references of what it found: they are of the same moment if nothing was edited
//! in between. Where edits never pause, the lock is held for the whole walk instead, which by then finds its blocks in
//! the cache.

use super::fault_in::FaultIn;
use crate::engine::Engine;
use buttress_accounts::back_references::DelayedReferencesOf;
use buttress_accounts::delayed_references::DelayedReferences;
use buttress_format::Logical;
use buttress_fs::filesystem::Filesystem;

impl Engine {
    /// The delayed references for these extents; `None` when something was, or may have been, edited since `view` was
    /// taken.
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

    /// Does something with a view and the delayed references while nothing is edited.
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
