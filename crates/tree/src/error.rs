//! Errors of reading and changing trees. All of them name the block, by the pointer that led to it.

use crate::pointer::{BlockPointer, LEVELS_MAX};
use buttress_format::Key;
use buttress_format::error::ErrorKind;
use buttress_format::node::BlockError;
use core::fmt;
use std::sync::Arc;

/// The result of reading a tree.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A block of a tree that could not be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("tree {}: block {} (level {}, generation {}): {cause}", pointer.tree, pointer.logical, pointer.level, pointer.generation)]
pub struct Error {
    pointer: Box<BlockPointer>,
    cause: Cause,
}

/// Why a block could not be had.
#[derive(Clone, Debug)]
pub enum Cause {
    /// Every copy breaks a rule; the last one's failure is given.
    Damaged(Box<Failure>),
    /// No copy could be read, or the address is not mapped.
    Unreadable(Box<buttress_volume::Error>),
    /// It is not in the cache, and nothing was to be read ([`NonBlocking`](crate::NonBlocking)).
    WouldBlock,
    /// An item with this key is there already.
    ItemExists(Key),
    /// No leaf has room for an item of this size.
    ItemTooLarge {
        /// The item's key.
        key: Key,
        /// The size of its data.
        size_bytes: usize,
        /// The most that a leaf can hold.
        most_bytes: usize,
    },
    /// Whoever keeps account of blocks could not do so. The tree must not be committed any more.
    Context(Arc<ContextError>),
    /// Something that the edits themselves keep true does not hold: a fault of this program. The tree must not be
    /// committed any more.
    Broken(&'static str),
    /// A count of blocks in memory is not what they come to: a fault of this program, as above.
    Miscounted {
        /// Of what.
        what: &'static str,
        /// What the count says.
        count: u64,
        /// What there is.
        found: u64,
    },
}

/// What went wrong in an [`EditContext`](crate::EditContext).
pub type ContextError = Box<dyn std::error::Error + Send + Sync>;

/// A rule that the bytes of a block break.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The block itself is wrong, or is not the one that was pointed to.
    Block(BlockError),
    /// The block's keys reach into those of its right neighbour.
    KeysPastEnd {
        /// The block's last key.
        last_key: Key,
        /// The bound: the key of the parent's next pointer, or of the next one further up.
        end_key: Key,
    },
    /// A root with a level that no tree can have.
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

    /// The pointer to the block.
    #[must_use]
    pub const fn pointer(&self) -> &BlockPointer {
        &self.pointer
    }

    /// Why it could not be had.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The rule that the bytes break, where bytes could be read.
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

    /// Returns whether an invariant of this program is broken, in this layer or the one below.
    #[must_use]
    pub const fn is_defect(&self) -> bool {
        match &self.cause {
            Cause::Broken(_) | Cause::Miscounted { .. } => true,
            Cause::Unreadable(error) => error.is_defect(),
            _ => false,
        }
    }

    /// The kind of the error.
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
            Self::WouldBlock => f.write_str("it is not in memory, and nothing was to be read"),
            Self::ItemExists(key) => write!(f, "there is an item {key} already"),
            Self::ItemTooLarge {
                key,
                size_bytes,
                most_bytes,
            } => write!(
                f,
                "item {key} of {size_bytes} bytes fits no leaf, which holds at most {most_bytes}"
            ),
            Self::Context(error) => error.fmt(f),
            Self::Broken(what) => write!(f, "a fault in this program: {what}"),
            Self::Miscounted { what, count, found } => write!(
                f,
                "a fault in this program: {what} are counted as {count}, and there are {found}"
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
                    "last key {last_key} is not below {end_key}, where the next block begins"
                )
            }
            Self::RootLevel => write!(f, "the root's level is not below {LEVELS_MAX}"),
        }
    }
}
