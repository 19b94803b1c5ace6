//! Which part of a tree a walk is about: keys below an end, and of the subtrees before it those that are wanted.
//!
//! A parent says of each child which keys can lie below it: from the child's own key up to the next one's. What
//! is decided from that alone saves the read: a subtree that is not wanted is neither asked for by a walk nor
//! fetched by its read-ahead.

use crate::pointer::BlockPointer;
use buttress_format::Key;
use core::fmt;
use std::sync::Arc;

/// Says whether anything with a key from the first one up to, not including, the second one is wanted. `None`:
/// up to the last key of the tree.
pub(crate) type Wanted = Arc<dyn Fn(&Key, Option<&Key>) -> bool + Send + Sync>;

/// The part of a tree that a walk is about.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    end: Option<Key>,
    wanted: Option<Wanted>,
}

impl Scope {
    /// All keys below `end`; `None`: all keys.
    pub(crate) const fn below(end: Option<Key>) -> Self {
        Self { end, wanted: None }
    }

    /// The same, but only subtrees that are wanted.
    pub(crate) fn only(self, wanted: Wanted) -> Self {
        Self {
            wanted: Some(wanted),
            ..self
        }
    }

    /// Whether the block and all that come after it in the order of keys lie past the end.
    pub(crate) fn ends_before(&self, pointer: &BlockPointer) -> bool {
        match (self.end, pointer.first_key) {
            (Some(end), Some(first)) => first >= end,
            _ => false,
        }
    }

    /// Whether the walk is to look at the block or what is below it.
    pub(crate) fn admits(&self, pointer: &BlockPointer) -> bool {
        let wanted = self.wanted.as_ref();
        !self.ends_before(pointer)
            && wanted
                // Clamp: a root begins left of everything.
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
