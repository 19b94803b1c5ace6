//! The live state: what readers of the running transaction see without the edit lock.
//!
//! Edits are serialised by the edit lock; reads of the newest state are not. They meet edits only where both work on the
//! same thing, for as long as one step of an edit takes:
//!
//! | module | holds |
//! |---|---|
//! | `trees` | the open trees, each with a lock of its own: look-ups share it, one edit of that tree takes it |
//! | `inodes` | one object for each inode in use: its item, size, counts, next directory index |
//! | `known_names` | names that were looked up, and where they lead |
//! | `looking` | names, attributes, links and inodes, as they are now |
//! | `pending_times` | times of writes that the inode item does not have yet |
//! | `content` | content of files, with what waits |
//! | `direct_reads` | which reads Linux serves without its page cache |
//! | `read_ahead` | blocks that changes to come will need |
//! | `steps` | operations are seen whole |
//! | `waiting_names` | names of unfinished subvolumes that are not in their directories yet |
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
pub(crate) mod inodes;
pub(crate) mod known_names;
mod looking;
pub(crate) mod pending_times;
mod read_ahead;
pub(crate) mod steps;
#[cfg(test)]
mod tests;
pub(crate) mod trees;
pub(crate) mod waiting_names;

use crate::transaction::WritableFilesystem;
use buttress_format::Logical;
use buttress_fs::error::{Error, Result};
use buttress_locks::Excused;
use buttress_tree::{Forest, NonBlocking};

/// How often a look-up is retried because a block on its way was not in memory. A way is some levels in some trees; where
/// the cache is too small to keep all of that, the rest is read where it is found missing.
const RETRIES_MAX: usize = 64;

/// The one way to read what a look-up needs that must not wait for a device: look, read what was missing, look again.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    last: Option<Logical>,
    count: usize,
}

/// What became of a look-up.
pub(crate) enum Looked<T> {
    /// It ended, well or with an error of its own.
    Done(Result<T>),
    /// What was missing has been read.
    Again,
    /// Reading is of no use: the cache did not keep what was read.
    Futile,
}

impl Retry {
    /// Takes the outcome of a look-up that was to do without reading. Reads what it found missing; no lock may be held.
    pub(crate) fn after<T>(&mut self, forest: &Forest, looked: Result<T>) -> Looked<T> {
        let Some(pointer) = looked.as_ref().err().and_then(Error::missing_block) else {
            return Looked::Done(looked);
        };
        self.count = self.count.saturating_add(1);
        if self.last == Some(pointer.logical) || self.count >= RETRIES_MAX {
            return Looked::Futile;
        }
        self.last = Some(pointer.logical);
        // What cannot be read may have gone from the tree meanwhile: where it is still wanted, the error is met again.
        match forest.read_block(&pointer) {
            Ok(_) => Looked::Again,
            Err(_) => Looked::Futile,
        }
    }
}

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
