//! The end of the service: closes all files, and commits everything.
//!
//! | end | the volume |
//! |---|---|
//! | the session is gone ([`MountedVolume::leave`]) | is committed; then all calls fail, and the devices are unlocked |
//! | the kernel's last request (`end_service`) | as above, before `umount` returns |
//! | an earlier shutdown without a commit | keeps its last commit |
//! | a call panicked (`stop_after_panic`) | keeps its last commit |
//!
//! Invariant: after the flag `is_shut_down` is set, no call changes the volume.

use super::{Access, MountedVolume};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl MountedVolume {
    /// Ends the use of the volume after the session is gone: stops the other writers, closes open
    /// files, removes inodes without names, and commits. Further calls fail.
    ///
    /// If all other writers have stopped, the devices are unlocked for processes that wait for the
    /// image. The end of the process may come too late for them: the kernel ends requests of io_uring
    /// rings in the background after it, and these keep the files open.
    ///
    /// # Errors
    /// Returns an error if the last commit failed.
    pub fn leave(&self) -> Result<(), buttress::unstable::fs::Error> {
        if let Some(ended) = self.ended.lock().take() {
            return ended;
        }
        let are_others_stopped = self.ends_after.get().is_none_or(|stop| stop());
        self.handles.clear();
        self.nodes.clear();
        if let Some(cleaner) = &self.cleaner {
            cleaner.stop();
        }
        if let Some(idle) = &self.idle {
            idle.stop();
        }
        let ended = match &self.access {
            Access::Writing(writer) if !self.is_down() => writer.commit().map(drop),
            Access::Writing(writer) => {
                writer.clone().abandon();
                Ok(())
            }
            Access::Reading(_) => Ok(()),
        };
        self.is_shut_down.store(true, Ordering::SeqCst);
        if are_others_stopped {
            let slots = self.access.view().volume().devices();
            let devices = slots.iter().filter_map(|slot| slot.device());
            devices.for_each(|device| device.unlock());
        }
        ended
    }

    /// Sets a function that stops other writers (scrubs, the healer). This function runs before the
    /// last commit of an unmount, and returns whether all other writers have stopped.
    pub fn ends_after(&self, stop: Arc<dyn Fn() -> bool + Send + Sync>) {
        // If several functions are set, only the first function is kept.
        let _is_first = self.ends_after.set(stop).is_ok();
    }

    /// Cancels long changes of the volume, and prevents further ones. Writes that wait for a count of
    /// quotas are refused without it.
    pub fn cancel_jobs(&self) {
        self.jobs.cancel();
        if let Access::Writing(writer) = &self.access {
            writer.quotas().stop_recounting();
        }
    }

    /// Returns whether the service has stopped.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.is_shut_down.load(Ordering::SeqCst)
    }

    /// Commits at the request of a process that unmounts, and keeps the result for [`leave`](Self::leave).
    pub(super) fn end_service(&self) {
        self.cancel_jobs();
        let ended = self.leave();
        *self.ended.lock() = Some(ended);
    }

    /// Stops the service after a call panicked. Nothing is written any more: a commit could contain
    /// a part of the call's changes.
    pub(super) fn stop_after_panic(&self) {
        if let Access::Writing(writer) = &self.access {
            let view = writer.view();
            view.volume().stop_writing(&"a call of the file system panicked");
        }
        self.is_shut_down.store(true, Ordering::SeqCst);
        self.tell(
            "a call of the file system panicked, which is a defect of Buttress: the mount no longer works, and uncommitted changes are lost. Please report it",
        );
    }
}
