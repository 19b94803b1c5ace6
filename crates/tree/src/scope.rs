//! The scope of a walk: the keys below an end, and the wanted subtrees among them.
//!
//! A parent node implies the range of keys below each child: from the child's key up to the next
//! child's key. Decisions from this range alone save reads: neither a walk nor its read-ahead
//! fetches an unwanted subtree.

use crate::pointer::BlockPointer;
use buttress_format::Key;
use core::fmt;
use std::sync::Arc;

/// A predicate: true if the walk wants any key from the first key up to the second, exclusive.
/// `None` means up to the last key of the tree.
pub(crate) type Wanted = Arc<dyn Fn(&Key, Option<&Key>) -> bool + Send + Sync>;

/// The part of a tree that a walk visits.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    end: Option<Key>,
    wanted: Option<Wanted>,
}

impl Scope {
    /// Returns the scope of all keys below `end`, or of all keys if `end` is `None`.
    pub(crate) const fn below(end: Option<Key>) -> Self {
        Self { end, wanted: None }
    }

    /// Returns this scope, limited to wanted subtrees.
    pub(crate) fn only(self, wanted: Wanted) -> Self {
        Self {
            wanted: Some(wanted),
            ..self
        }
    }

    /// Returns true if the block and all later blocks in key order lie beyond the scope's end.
    pub(crate) fn ends_before(&self, pointer: &BlockPointer) -> bool {
        match (self.end, pointer.first_key) {
            (Some(end), Some(first)) => first >= end,
            _ => false,
        }
    }

    /// Returns true if the walk visits the block or its descendants.
    pub(crate) fn admits(&self, pointer: &BlockPointer) -> bool {
        let wanted = self.wanted.as_ref();
        !self.ends_before(pointer)
            && wanted
                // Clamp: a root begins before every key.
                .is_none_or(|wanted| wanted(&pointer.first_key.unwrap_or(Key::MIN), pointer.end_key.as_ref()))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("end", &self.end)
            .field("filtered", &self.wanted.is_some())
            .finish()
    }
}
