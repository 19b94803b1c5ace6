//! Errors of reading and changing trees. Each error holds the pointer that led to the block.

use crate::pointer::{BlockPointer, LEVELS_MAX};
use buttress_format::Key;
use buttress_format::error::ErrorKind;
use buttress_format::node::BlockError;
use core::fmt;
use std::sync::Arc;

/// The result of reading a tree.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The error of a block of a tree that cannot be read or changed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("tree {}: block {} (level {}, generation {}): {cause}", pointer.tree, pointer.logical, pointer.level, pointer.generation)]
pub struct Error {
    pointer: Box<BlockPointer>,
    cause: Cause,
}

/// The reason why a block cannot be read or changed.
#[derive(Clone, Debug)]
pub enum Cause {
    /// Every copy of the block violates a rule. Holds the failure of the last copy.
    Damaged(Box<Failure>),
    /// No copy of the tree block can be read, or its address is not mapped.
    Unreadable(Box<buttress_volume::Error>),
    /// The block is not in the cache, and the thread must not read
    /// ([`NonBlocking`](crate::NonBlocking)).
    WouldBlock,
    /// The tree already has an item with this key.
    ItemExists(Key),
    /// No leaf has space for an item of this size.
    ItemTooLarge {
        /// The item's key.
        key: Key,
        /// The size of the item's data in bytes.
        size_bytes: usize,
        /// The largest size that a leaf can hold.
        most_bytes: usize,
    },
    /// The edit context failed to account for a block. The tree with the unaccounted block must not
    /// be committed.
    Context(Arc<ContextError>),
    /// A defect: an invariant of the edits does not hold. The tree with the broken invariant must
    /// not be committed.
    Broken(&'static str),
    /// A defect: a count of blocks in memory differs from the number found. The tree with the wrong
    /// count must not be committed.
    Miscounted {
        /// The kind of blocks that the count covers.
        what: &'static str,
        /// The value of the count.
        count: u64,
        /// The number of blocks found.
        found: u64,
    },
}

/// The error of an [`EditContext`](crate::EditContext).
pub type ContextError = Box<dyn std::error::Error + Send + Sync>;

/// The rule that a block violates.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The block fails its checks, or does not match its pointer.
    Block(BlockError),
    /// The block's keys overlap those of its right neighbour.
    KeysPastEnd {
        /// The block's last key.
        last_key: Key,
        /// The exclusive end of the block's keys: the key of the next pointer in the parent or in a
        /// higher node.
        end_key: Key,
    },
    /// The root's level exceeds the highest level that a tree can have.
    RootLevel,
}

impl Error {
    pub(crate) fn damaged(pointer: &BlockPointer, failure: Failure) -> Self {
        Self {
            pointer: Box::new(*pointer),
            cause: Cause::Damaged(Box::new(failure)),
        }
    }

    pub(crate) fn unreadable(pointer: &BlockPointer, error: buttress_volume::Error) -> Self {
        Self {
            pointer: Box::new(*pointer),
            cause: Cause::Unreadable(Box::new(error)),
        }
    }

    pub(crate) fn new(pointer: &BlockPointer, cause: Cause) -> Self {
        Self {
            pointer: Box::new(*pointer),
            cause,
        }
    }

    /// Returns the pointer to the block.
    #[must_use]
    pub const fn pointer(&self) -> &BlockPointer {
        &self.pointer
    }

    /// Returns the reason for the error.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the violated rule, if a copy of the block could be read.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match &self.cause {
            Cause::Damaged(failure) => Some(failure),
            Cause::Unreadable(_)
            | Cause::WouldBlock
            | Cause::ItemExists(_)
            | Cause::ItemTooLarge { .. }
            | Cause::Context(_)
            | Cause::Broken(_)
            | Cause::Miscounted { .. } => None,
        }
    }

    /// Returns true if the error is a broken invariant of this program, in this layer or a lower
    /// one.
    #[must_use]
    pub const fn is_defect(&self) -> bool {
        match &self.cause {
            Cause::Broken(_) | Cause::Miscounted { .. } => true,
            Cause::Unreadable(error) => error.is_defect(),
            _ => false,
        }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &self.cause {
            Cause::Damaged(_) | Cause::Broken(_) | Cause::Miscounted { .. } => ErrorKind::Corrupt,
            Cause::Unreadable(error) => error.kind(),
            Cause::WouldBlock | Cause::ItemExists(_) | Cause::ItemTooLarge { .. } | Cause::Context(_) => {
                ErrorKind::Caller
            }
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(failure) => failure.fmt(f),
            Self::Unreadable(error) => error.fmt(f),
            Self::WouldBlock => f.write_str("it is not in memory, and reads are not allowed here"),
            Self::ItemExists(key) => write!(f, "there is an item {key} already"),
            Self::ItemTooLarge {
                key,
                size_bytes,
                most_bytes,
            } => write!(
                f,
                "item {key} is too long for a leaf (found {size_bytes} bytes, expected at most {most_bytes})"
            ),
            Self::Context(error) => error.fmt(f),
            Self::Broken(what) => write!(f, "a defect of Buttress: {what}"),
            Self::Miscounted { what, count, found } => write!(
                f,
                "a defect of Buttress: wrong count of {what} (counted {count}, found {found})"
            ),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(error) => error.fmt(f),
            Self::KeysPastEnd { last_key, end_key } => {
                write!(
                    f,
                    "last key {last_key} is not below {end_key}, the first key of the next block"
                )
            }
            Self::RootLevel => write!(f, "the root's level is not below {LEVELS_MAX}"),
        }
    }
}
