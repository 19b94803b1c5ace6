//! Retries of non-blocking lookups: look up, read the missing block, look up again.

use buttress_format::Logical;
use buttress_fs::error::{Error, Result};
use buttress_tree::Forest;

/// The largest number of retries of a lookup that misses a block. A lookup path has a few levels in
/// a few trees. If the cache is too small to keep these blocks, the lookup reads the remaining
/// blocks itself.
const RETRIES_MAX: usize = 64;

/// Drives one non-blocking lookup: look up, read the missing block, look up again. All non-blocking
/// lookups use this type.
#[derive(Debug, Default)]
pub struct Retry {
    last: Option<Logical>,
    count: usize,
}

/// The outcome of a non-blocking lookup.
pub enum Attempted<T> {
    /// The lookup ended with a value or with its own error, not with a missing block.
    Done(Result<T>),
    /// The missing block was read: look up again.
    Again,
    /// The cache did not keep a block that was read, so more retries do not help.
    Futile,
}

impl Retry {
    /// Handles the result of a non-blocking lookup: reads the block that the lookup missed. The
    /// caller must hold no lock during this call.
    pub fn after<T>(&mut self, forest: &Forest, attempted: Result<T>) -> Attempted<T> {
        let Some(pointer) = attempted.as_ref().err().and_then(Error::missing_block) else {
            return Attempted::Done(attempted);
        };
        self.count = self.count.saturating_add(1);
        if self.last == Some(pointer.logical) || self.count >= RETRIES_MAX {
            return Attempted::Futile;
        }
        self.last = Some(pointer.logical);
        // An unreadable block may have left the tree since the lookup. If the block is still in the
        // tree, the next lookup returns the error.
        match forest.read_block(&pointer) {
            Ok(_) => Attempted::Again,
            Err(_) => Attempted::Futile,
        }
    }
}
