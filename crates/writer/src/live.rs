//! The live state: reads of the running transaction without the edit lock.
//!
//! The edit lock serialises edits, but not reads of the newest state. A read and an edit block each
//! other only on the same object, and only during one step of the edit:
//!
//! | module | holds |
//! |---|---|
//! | `lookups` | current names, attributes, links and inodes |
//! | `content` | content of files, including dirty data |
//! | `file` | a file that a caller keeps open |
//! | `direct_reads` | which reads Linux serves without its page cache |
//! | `read_ahead` | readahead of blocks that later changes will need |
//!
//! A view ([`WritableFilesystem::view`](crate::WritableFilesystem::view)) shows the volume at one
//! moment, and makes later edits copy blocks. A live read shows the current state and preserves
//! nothing.
//!
//! # Locks
//!
//! A live read acquires locks in a fixed order. A live read first locks a file's dirty data, the
//! steps of operations, a shard of the inode table, and an inode's state. Next in the order are the
//! locks of the subvolume's tree, of other trees, and of the extent tree. Each of these locks is
//! held for one step in memory, and never during device I/O. A lookup that misses a block releases
//! all locks, reads the block, and retries ([`Retry`]).
//!
//! # Guarantees to readers
//!
//! Each live read returns a state that existed between the call's begin and its end. Two calls of
//! live lookups may return two states.

mod content;
mod direct_reads;
mod file;
mod lookups;
mod read_ahead;
#[cfg(test)]
pub(crate) mod tests;

pub use file::LiveFile;

use crate::areas::LiveReads;
use buttress_engine::retry::{Attempted, Retry};
use buttress_fs::error::Result;
use buttress_locks::Excused;
use buttress_tree::NonBlocking;

impl LiveReads<'_> {
    /// Runs a lookup of the live state without the edit lock, between two operations. `read` may
    /// run several times, if operations overlap the lookup. A run of the lookup that ends with a
    /// missing block must leave no effect.
    pub(crate) fn read_whole<T>(&self, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        self.retry(|| {
            let _whole = self.filesystem.steps().read();
            read()
        })
    }

    /// Runs a lookup as [`read_whole`](Self::read_whole) does, for a lookup that acquires the steps
    /// lock itself in its lock order.
    pub(crate) fn retry<T>(&self, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        let mut retry = Retry::default();
        loop {
            let attempted = {
                let _resident_only = NonBlocking::hold();
                read()
            };
            match retry.after(self.filesystem.forest(), attempted) {
                Attempted::Done(result) => return result,
                Attempted::Again => {}
                Attempted::Futile => {
                    let _excused = Excused::from_device_rule();
                    return read();
                }
            }
        }
    }
}
