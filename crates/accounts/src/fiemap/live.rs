//! Batches of a map of a file that may change between them.
//!
//! A batch takes the dirty ranges and a view of the trees at one moment, walks the view without a
//! lock, and then requests the delayed references. The delayed references and the view belong to
//! the same moment if no edit ran in between. If an edit ran, the batch is retried, at most
//! [`ATTEMPTS`] times. After that, the batch runs while edits are blocked.

use super::walk::{Batch, Resumed, Walk, last_extent_end};
use super::{End, Fiemap};
use crate::back_references::DelayedReferencesOf;
use crate::back_references::LookUpWaiting;
use crate::back_references::sharing::sharing;
use crate::delayed_references::DelayedReferences;
use buttress_format::{FileOffset, Logical};
use buttress_fs::error::Result;
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use core::fmt::Debug;
use core::ops::Range;

/// The number of attempts that run beside edits. The next attempt to read the live state blocks
/// edits.
const ATTEMPTS: usize = 3;

/// The most dirty ranges that a batch takes at once.
const WAITING_MAX: usize = 4096;

/// The content of a file at one moment.
#[derive(Debug)]
pub struct ContentState {
    /// Ranges of whole sectors that are dirty.
    pub waiting: Vec<Range<u64>>,
    /// The volume's trees, without dirty data.
    pub view: Filesystem,
}

/// A volume that is open for writing, as the source of a map.
pub trait LiveContent: Debug + Send + Sync {
    /// Returns at most `count` dirty ranges from `from` on, and a view of the same moment.
    ///
    /// # Errors
    /// Fails if the inode cannot be read.
    fn content_state(&self, location: Location, from: u64, count: usize) -> Result<ContentState>;

    /// Returns the delayed references of these extents. Returns `None` if an edit ran, or may have
    /// run, since `view` was taken.
    fn delayed_references_of(&self, view: &Filesystem, extents: &[Logical]) -> Option<DelayedReferencesOf>;

    /// Runs `body` once on the result of [`LiveContent::content_state`] and all delayed
    /// references, while no edit runs.
    ///
    /// # Errors
    /// Fails as [`LiveContent::content_state`] does, or with any error of `body`.
    fn quiesced_content(
        &self,
        location: Location,
        from: u64,
        count: usize,
        body: &mut dyn FnMut(&ContentState, &DelayedReferences) -> Result<()>,
    ) -> Result<()>;
}

/// The result of a batch.
struct Found {
    walk: Walk,
    batch: Batch,
    shared: Vec<bool>,
}

impl Fiemap {
    pub(super) fn fill_live(&mut self, writer: &dyn LiveContent, size: usize) -> Result<()> {
        let (location, from) = (self.location, self.position.get());
        for _ in 0..ATTEMPTS {
            let state = writer.content_state(location, from, WAITING_MAX)?;
            let waiting = &mut |extents: &[_]| writer.delayed_references_of(&state.view, extents);
            if let Some(found) = self.look(&state, size, waiting)? {
                return self.take_live(&state, found);
            }
        }
        writer.quiesced_content(location, from, WAITING_MAX, &mut |state, references| {
            let found = self.look(state, size, &mut |extents| Some(references.of_extents(extents)))?;
            match found {
                Some(found) => self.take_live(state, found),
                None => Ok(()),
            }
        })
    }

    /// Makes a batch of extents from the live state of a file. Returns `None` if an edit ran during
    /// the lookup.
    fn look(
        &self,
        state: &ContentState,
        size: usize,
        waiting: &mut LookUpWaiting<'_>,
    ) -> Result<Option<Found>> {
        let last = state
            .waiting
            .last()
            .filter(|_| state.waiting.len() >= WAITING_MAX);
        let resumed = Resumed {
            begun: self.begun,
            known_to: last.map(|range| FileOffset::new(range.end)),
        };
        let range = self.position..self.range.end;
        let ranges = state.waiting.clone();
        let mut walk = Walk::new(&state.view, self.location, &range, ranges, Some(resumed))?;
        let mut batch = Batch {
            keeps_uses: self.asks_sharing,
            ..Batch::default()
        };
        walk.collect(size, self.progress.as_ref(), &mut batch)?;
        let mut sharing = sharing(&state.view);
        if let Some(progress) = &self.progress {
            sharing = sharing.with_progress(progress);
        }
        let shared = if self.asks_sharing {
            sharing.are_shared_while(self.location.subvolume, &batch.uses, waiting)?
        } else {
            Some(Vec::new())
        };
        Ok(shared.map(|shared| Found { walk, batch, shared }))
    }

    fn take_live(&mut self, state: &ContentState, found: Found) -> Result<()> {
        let Found { walk, batch, shared } = found;
        (self.batch, self.shared) = (batch, shared);
        self.begun = true;
        self.position = walk.position();
        if walk.has_ended() && self.position >= self.range.end {
            let last_extent_end = if walk.content_follows() {
                None
            } else {
                Some(last_extent_end(&state.view, self.location)?)
            };
            self.end = Some(End { last_extent_end });
        }
        Ok(())
    }
}
