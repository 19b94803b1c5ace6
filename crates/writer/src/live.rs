//! The live state: what readers of the running transaction see without the edit lock.
//!
//! Edits are serialised by the edit lock; reads of the newest state are not. They meet edits only where both work on the
//! same thing, for as long as one step of an edit takes:
//!
//! | module | holds |
//! |---|---|
//! | `looking` | names, attributes, links and inodes, as they are now |
//! | `content` | content of files, with what waits |
//! | `file` | a file that a caller keeps open |
//! | `direct_reads` | which reads Linux serves without its page cache |
//! | `read_ahead` | blocks that changes to come will need |
//!
//! A view ([`WritableFilesystem::view`](crate::WritableFilesystem::view)) is of one moment and costs later edits copies;
//! a live read is of now, and keeps nothing.
//!
//! # Locks
//!
//! In this order, each held for one step in memory and never while a device is waited for: dirty data of a file, the
//! steps of operations, a shard of the table of inodes, the state of an inode, the tree of a subvolume, other trees, the extent tree. A look-up that misses a block lets go of all of them, reads it, and is retried ([`Retry`]).
//!
//! # What a reader may count on
//!
//! Each call answers with a state that was there between its begin and its end. Two calls may see two states.

mod content;
mod direct_reads;
mod file;
mod looking;
mod read_ahead;
#[cfg(test)]
mod tests;

pub use file::LiveFile;

use crate::WritableFilesystem;
use buttress_engine::retry::{Looked, Retry};
use buttress_fs::error::Result;
use buttress_locks::Excused;
use buttress_tree::NonBlocking;

impl WritableFilesystem {
    /// Looks at the live state, without the edit lock, between two operations. `look` may be run several times, and must leave no trace of a run that
    /// ends with a block that is not in memory.
    pub(crate) fn look_live<T>(&self, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        self.retry_live(|| {
            let _whole = self.steps().read();
            look()
        })
    }

    /// As [`look_live`](Self::look_live), for a look-up that takes the lock of operations itself, where its order wants that.
    pub(crate) fn retry_live<T>(&self, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let mut retry = Retry::default();
        loop {
            let looked = {
                let _resident_only = NonBlocking::hold();
                look()
            };
            match retry.after(self.forest(), looked) {
                Looked::Done(result) => return result,
                Looked::Again => {}
                Looked::Futile => {
                    let _excused = Excused::from_device_rule();
                    return look();
                }
            }
        }
    }
}
