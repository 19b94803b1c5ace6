//! Batches of a file that may change between them.
//!
//! A batch takes the ranges of content that wait and a view of the trees, at one moment; walks the view without a lock;
//! and asks for the delayed references, which are of the same moment if nothing was edited since. Else it is retried,
//! [`ATTEMPTS`] times; then it is made while edits wait.

use super::walk::{Batch, Resumed, Walk, last_extent_end};
use super::{End, Fiemap};
use crate::back_references::LookUpWaiting;
use crate::data::table::ContentState;
use crate::error::Result;
use crate::transaction::WritableFilesystem;
use buttress_format::FileOffset;

/// How often a batch is made beside edits before it is made while they wait.
const ATTEMPTS: usize = 3;

/// How many ranges of content that wait are taken at once.
const WAITING_MAX: usize = 4096;

/// What a batch found.
struct Found {
    walk: Walk,
    batch: Batch,
    shared: Vec<bool>,
}

impl Fiemap {
    pub(super) fn fill_live(&mut self, writer: &WritableFilesystem, size: usize) -> Result<()> {
        let (location, from) = (self.location, self.position.get());
        for _ in 0..ATTEMPTS {
            let state = writer.look_at_content(location, from, WAITING_MAX)?;
            let waiting = &mut |extents: &[_]| writer.delayed_references_of(&state.view, extents);
            if let Some(found) = self.look(&state, size, waiting)? {
                return self.take_live(&state, found);
            }
        }
        let (found, state) = writer.quiesced_content(location, from, WAITING_MAX, |state, references| {
            let found = self.look(&state, size, &mut |extents| Some(references.of_extents(extents)))?;
            Ok((found, state))
        })?;
        match found {
            Some(found) => self.take_live(&state, found),
            None => Ok(()),
        }
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
        let mut sharing = state.view.sharing();
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
