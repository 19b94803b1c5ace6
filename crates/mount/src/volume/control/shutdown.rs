//! Shutdown (`FS_IOC_SHUTDOWN`, XFS's `GOINGDOWN`): nothing is written any more and every call
//! fails, as after a power cut. Synced content is present at the next mount. File-system test
//! suites use the shutdown command.
//!
//! | kind | before |
//! |---|---|
//! | 0, the default | everything is committed |
//! | 1, flush the log | everything is committed: changes of names have no separate log here |
//! | 2, don't | nothing |
//!
//! The command's number says that it only returns data, so the kernel passes no input with it. The
//! kind of the shutdown is in the caller's memory. A sandboxed server cannot read this memory; the
//! program that serves the volume provides a [`Peek`] that can. Without a [`Peek`], the mount
//! refuses the command.
//!
//! Source: `linux/fs.h`; `xfs_ioctl(2)` for the kinds.

use super::super::MountedVolume;
use super::rights::require_privileged;
use crate::vfs::{Answered, Caller, Control, Errno, Result};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Reads the kind of a shutdown from a process's memory. Arguments: process id, address.
pub type Peek = Arc<dyn Fn(u32, u64) -> Option<u32> + Send + Sync>;

const COMMIT: u32 = 0;
const FLUSH_LOG: u32 = 1;
const FLUSH_NOTHING: u32 = 2;

impl MountedVolume {
    /// Sets the function that reads the requested kind from the caller's memory.
    pub fn peeks_by(&self, peek: Peek) {
        // A second call has no effect: only the first shutdown function is kept.
        let _is_first = self.peek.set(peek).is_ok();
    }

    pub(super) fn shut_down(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let writer = self.writer()?;
        match self.kind_wanted(control.caller, control.argument)? {
            COMMIT | FLUSH_LOG => self.committed()?,
            FLUSH_NOTHING => {}
            _ => return Err(Errno::INVAL),
        }
        self.is_shut_down.store(true, Ordering::SeqCst);
        writer.view().volume().stop_writing(&"the volume was shut down");
        self.tell("the volume was shut down: the mount no longer works, and uncommitted and unsynced changes are lost");
        Ok(Answered::default())
    }

    fn kind_wanted(&self, caller: Caller, argument: u64) -> Result<u32> {
        let peek = self.peek.get().ok_or(Errno::NOTTY)?;
        peek(caller.pid, argument).ok_or(Errno::FAULT)
    }
}
