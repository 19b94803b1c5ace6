//! A run in the crash laboratory: its history, and the content of each committed generation.

use super::state::{describe, first_difference};
use super::volume::{devices, open_checked};
use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress_lab::crash::{History, Outcome};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A run that a crash laboratory recorded.
#[derive(Debug)]
pub struct Recorded {
    history: History,
    states: Mutex<BTreeMap<u64, String>>,
}

impl Recorded {
    /// Creates a run of which only the history is known.
    #[must_use]
    pub fn new(history: History) -> Self {
        Self {
            history,
            states: Mutex::default(),
        }
    }

    /// Returns all writes and flushes.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Returns the number of generations known so far.
    #[must_use]
    pub fn known_states(&self) -> usize {
        self.states.lock().map_or(0, |states| states.len())
    }

    fn known(&self, generation: u64) -> Option<String> {
        self.states.lock().ok()?.get(&generation).cloned()
    }

    /// Records the content of a generation.
    pub fn learn(&self, generation: u64, state: String) {
        if let Ok(mut states) = self.states.lock() {
            states.insert(generation, state);
        }
    }

    /// When a marked commit has returned, reads its content from the image, checks it, and compares
    /// it with the writer's view.
    ///
    /// # Errors
    /// Fails with the findings of the checks, a mark of a later generation than the image's, or the
    /// differences in content.
    pub fn learn_what_was_marked(&self) -> Result<()> {
        let mut last = None;
        for cut in 0..=self.history.len() {
            let marked = self.history.last_mark(cut).filter(|marked| last != Some(*marked));
            let Some(generation) = marked else {
                continue;
            };
            last = marked;
            let found = open_checked(&self.history.images_at(cut, Outcome::AllKept))
                .with_context(|| format!("generation {generation}"))?;
            // With concurrent commits, another commit may have preceded the mark.
            let marked = generation;
            let generation = found.superblock().generation.get();
            ensure!(
                generation >= marked,
                "generation {generation} at the mark of {marked}"
            );
            let state = describe(&found)?;
            if let Some(known) = self.known(generation) {
                ensure!(
                    known == state,
                    "generation {generation} is not what the writer showed: {}",
                    first_difference(&known, &state)
                );
            }
            self.learn(generation, state);
        }
        Ok(())
    }

    /// Compares the content found after a crash with that of its generation.
    ///
    /// # Errors
    /// Fails with the first difference, or if the generation is unknown.
    pub fn expect(&self, generation: u64, found: &str) -> Result<()> {
        let expected = self.state_of(generation)?;
        ensure!(
            expected == found,
            "not what generation {generation} held: {}",
            first_difference(&expected, found)
        );
        Ok(())
    }

    /// Returns the content of a generation found after a crash.
    ///
    /// An operation may commit more than once before it returns, so a later generation may match
    /// too. The content of such a commit is in an image without losses, taken after its superblocks
    /// were written and before those of the next commit. Generations only increase, so a binary
    /// search finds the moment.
    ///
    /// # Errors
    /// The generation was never committed, or its state is unreadable.
    pub fn state_of(&self, generation: u64) -> Result<String> {
        if let Some(state) = self.known(generation) {
            return Ok(state);
        }
        let open_at = |cut: usize| {
            let images = self.history.images_at(cut, Outcome::AllKept);
            OpenOptions::new(devices(&images)).open()
        };
        let (mut low, mut high) = (0, self.history.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if open_at(middle)?.superblock().generation.get() < generation {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = open_at(low)?;
        ensure!(
            found.superblock().generation.get() == generation,
            "generation {generation}, which was never committed"
        );
        let state = describe(&found)?;
        self.learn(generation, state.clone());
        Ok(state)
    }
}
