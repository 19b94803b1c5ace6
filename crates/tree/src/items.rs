//! Iteration over the items of a key range.

use crate::cursor::Cursor;
use crate::error::Result;
use crate::owned_item::OwnedItem;
use crate::read_ahead::ReadAhead;
use crate::tree::Tree;
use buttress_format::Key;
use core::iter::FusedIterator;
use core::ops::Bound;
use core::ops::RangeBounds;

/// An iterator over the items of a key range, in order.
///
/// An error stands for all items of an unreadable block. The iterator then continues after that
/// block. The iterator returns at most one error for each damaged block, so a caller that ignores
/// errors still reaches the end.
#[derive(Debug)]
pub struct Items {
    cursor: Cursor,
    start: Option<Key>,
    end: Bound<Key>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Running,
    Done,
}

impl Tree {
    /// Returns the items whose keys lie in `range`, in order. Read-ahead stops at the range's end.
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<Key>, read_ahead: ReadAhead) -> Items {
        Items::new(
            self,
            range.start_bound().cloned(),
            range.end_bound().cloned(),
            read_ahead,
        )
    }
}

impl Items {
    pub(crate) fn new(tree: &Tree, start: Bound<Key>, end: Bound<Key>, read_ahead: ReadAhead) -> Self {
        let (start, state) = match start {
            Bound::Unbounded => (None, State::Fresh),
            Bound::Included(key) => (Some(key), State::Fresh),
            Bound::Excluded(key) => match key.successor() {
                Some(key) => (Some(key), State::Fresh),
                None => (None, State::Done),
            },
        };
        let ahead_end = match end {
            Bound::Unbounded => None,
            Bound::Excluded(key) => Some(key),
            Bound::Included(key) => key.successor(),
        };
        Self {
            cursor: Cursor::new(tree.clone(), read_ahead, ahead_end),
            start,
            end,
            state,
        }
    }

    /// Advances to the next item of the range.
    fn advance(&mut self) -> Result<bool> {
        let fresh = self.state == State::Fresh;
        self.state = State::Running;
        match (fresh, self.start) {
            (true, Some(key)) => {
                self.cursor.seek(&key)?;
            }
            _ => {
                self.cursor.next()?;
            }
        }
        Ok(self.cursor.key().is_some_and(|key| match self.end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        }))
    }
}

impl Iterator for Items {
    type Item = Result<OwnedItem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Done {
            return None;
        }
        match self.advance() {
            Ok(true) => self.cursor.owned().map(Ok),
            Ok(false) => {
                self.state = State::Done;
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl FusedIterator for Items {}
