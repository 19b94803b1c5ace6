//! Look-ups that wait for no device: look, read what was missing, look again.

use buttress_format::Logical;
use buttress_fs::error::{Error, Result};
use buttress_tree::Forest;

/// The largest number of retries of a look-up that misses a block. A way is some levels in some trees; where
/// the cache is too small to keep all of that, the rest is read where it is found missing.
const RETRIES_MAX: usize = 64;

/// The one way to read what a look-up needs that must not wait for a device: look, read what was missing, look again.
#[derive(Debug, Default)]
pub struct Retry {
    last: Option<Logical>,
    count: usize,
}

/// The outcome of a look-up.
pub enum Looked<T> {
    /// It ended, well or with an error of its own.
    Done(Result<T>),
    /// The missing block has been read.
    Again,
    /// Reading is of no use: the cache did not keep what was read.
    Futile,
}

impl Retry {
    /// Takes the outcome of a look-up that was to do without reading. Reads what it found missing; no lock may be held.
    pub fn after<T>(&mut self, forest: &Forest, looked: Result<T>) -> Looked<T> {
        let Some(pointer) = looked.as_ref().err().and_then(Error::missing_block) else {
            return Looked::Done(looked);
        };
        self.count = self.count.saturating_add(1);
        if self.last == Some(pointer.logical) || self.count >= RETRIES_MAX {
            return Looked::Futile;
        }
        self.last = Some(pointer.logical);
        // A block that cannot be read may have left the tree meanwhile. If not, the next look-up reports the error.
        match forest.read_block(&pointer) {
            Ok(_) => Looked::Again,
            Err(_) => Looked::Futile,
        }
    }
}
