//! Batches of a file that may change between them.
//!
//! A batch takes the ranges of content that wait and a view of the trees, at one moment; walks the view without a lock;
//! and asks for the delayed references, which are of the same moment if nothing was edited since. Else it is retried,
//! [`ATTEMPTS`] times; then it is made while edits wait.

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

/// How often a batch is made beside edits before it is made while they wait.
const ATTEMPTS: usize = 3;

/// How many ranges of content that wait are taken at once.
const WAITING_MAX: usize = 4096;

/// Where the content of a file is at one moment.
#[derive(Debug)]
pub struct ContentState {
    /// Ranges of whole sectors that are dirty.
    pub waiting: Vec<Range<u64>>,
    /// The volume, with what was written back.
    pub view: Filesystem,
}

/// A volume that is open for writing, as a map of one of its files asks it.
pub trait LiveContent: Debug + Send + Sync {
    /// Dirty ranges from `from` on, at most `count` of them, and a view of the same moment.
    ///
    /// # Errors
    /// That the inode cannot be read.
    fn look_at_content(&self, location: Location, from: u64, count: usize) -> Result<ContentState>;

    /// The delayed references for these extents; `None` when something was, or may have been, edited since `view` was
    /// taken.
    fn delayed_references_of(&self, view: &Filesystem, extents: &[Logical]) -> Option<DelayedReferencesOf>;

    /// As [`LiveContent::look_at_content`], with all delayed references, while nothing is edited. `body` is called once.
    ///
    /// # Errors
    /// As there, and what `body` ends with.
    fn quiesced_content(
        &self,
        location: Location,
        from: u64,
        count: usize,
        body: &mut dyn FnMut(&ContentState, &DelayedReferences) -> Result<()>,
    ) -> Result<()>;
}

/// What a batch found.
struct Found {
    walk: Walk,
    batch: Batch,
    shared: Vec<bool>,
}

impl Fiemap {
    pub(super) fn fill_live(&mut self, writer: &dyn LiveContent, size: usize) -> Result<()> {
        let (location, from) = (self.location, self.position.get());
        for _ in 0..ATTEMPTS {
            let state = writer.look_at_content(location, from, WAITING_MAX)?;
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

    /// Makes a batch. `None`: something was edited meanwhile.
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
