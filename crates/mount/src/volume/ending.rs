//! The end of the service: closes all files, and commits everything.
//!
//! | end | the volume |
//! |---|---|
//! | the session is gone ([`MountedVolume::leave`]) | is committed; then the server unlocks the devices ([`MountedVolume::unlock_devices`]) |
//! | `umount` waits for the server (`end_service`) | is committed first; then all calls fail, and the devices are unlocked |
//! | an earlier shutdown without a commit | keeps its last commit |
//! | a call panicked (`stop_after_panic`) | keeps its last commit |
//!
//! Invariant: after the flag `is_shut_down` is set, no call changes the volume.

use super::{Access, MountedVolume};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl MountedVolume {
    /// Ends the use of the volume after the session is gone. Ends a mount: closes open files,
    /// removes inodes without names, and commits.
    ///
    /// # Errors
    /// Returns an error if the last commit failed.
    pub fn leave(&self) -> Result<(), buttress::unstable::fs::Error> {
        if let Some(ended) = self.ended.lock().take() {
            return ended;
        }
        self.handles.clear();
        self.nodes.clear();
        if let Some(cleaner) = &self.cleaner {
            cleaner.stop();
        }
        if let Some(idle) = &self.idle {
            idle.stop();
        }
        match &self.access {
            Access::Writing(writer) if !self.is_down() => writer.commit().map(drop),
            Access::Writing(writer) => {
                writer.clone().abandon();
                Ok(())
            }
            Access::Reading(_) => Ok(()),
        }
    }

    /// Sets a function that stops other writers (scrubs, the healer). This function runs before the
    /// last commit of an unmount, and returns whether all other writers have stopped.
    pub fn ends_after(&self, stop: Arc<dyn Fn() -> bool + Send + Sync>) {
        // If several functions are set, only the first function is kept.
        let _is_first = self.ends_after.set(stop).is_ok();
    }

    /// Stops the other writers. Returns whether all of them have stopped.
    pub fn stop_others(&self) -> bool {
        self.ends_after.get().is_none_or(|stop| stop())
    }

    /// Refuses further calls, and releases the locks of the devices for processes that wait for the
    /// image. The end of the process may come too late for them: the kernel ends requests of io_uring
    /// rings in the background after it, and these keep the files open.
    ///
    /// The caller has called [`leave`](Self::leave), and no other writer uses the volume.
    pub fn unlock_devices(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
        for slot in self.access.view().volume().devices() {
            if let Some(device) = slot.device() {
                device.unlock();
            }
        }
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
        let are_others_stopped = self.stop_others();
        let ended = self.leave();
        *self.ended.lock() = Some(ended);
        self.is_shut_down.store(true, Ordering::SeqCst);
        if are_others_stopped {
            self.unlock_devices();
        }
    }

    /// Stops the service after a call panicked.
    pub(super) fn stop_after_panic(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
        self.tell(
            "a call of the file system panicked, which is a defect of Buttress: the mount no longer works, and uncommitted changes are lost. Please report it",
        );
    }
}
