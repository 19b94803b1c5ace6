//! A run in the crash laboratory: its history, and what each generation held that it committed.

use super::state::describe;
use super::volume::{devices, open_checked};
use anyhow::{Context, Result, ensure};
use buttress::OpenOptions;
use buttress::device::crash::{History, Outcome};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// One run.
#[derive(Debug)]
pub struct Recorded {
    history: History,
    states: Mutex<BTreeMap<u64, String>>,
}

impl Recorded {
    /// A run of which only the history is known.
    #[must_use]
    pub fn new(history: History) -> Self {
        Self {
            history,
            states: Mutex::default(),
        }
    }

    /// All writes and flushes.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// How many generations are known so far.
    #[must_use]
    pub fn known_states(&self) -> usize {
        self.states.lock().map_or(0, |states| states.len())
    }

    fn known(&self, generation: u64) -> Option<String> {
        self.states.lock().ok()?.get(&generation).cloned()
    }

    /// Says what a generation holds.
    pub fn learn(&self, generation: u64, state: String) {
        if let Ok(mut states) = self.states.lock() {
            states.insert(generation, state);
        }
    }

    /// Reads what each marked commit held from the image at the moment at which it had returned, and checks that.
    ///
    /// # Errors
    /// What the checks found; a mark of another generation than the image's.
    pub fn learn_what_was_marked(&self) -> Result<()> {
        for cut in 0..=self.history.len() {
            let Some(generation) = self.history.last_mark(cut) else {
                continue;
            };
            if self.known(generation).is_some() {
                continue;
            }
            let found = open_checked(&self.history.images_at(cut, Outcome::AllKept))
                .with_context(|| format!("generation {generation}"))?;
            ensure!(
                found.superblock().generation.get() == generation,
                "the mark of {generation}"
            );
            self.learn(generation, describe(&found)?);
        }
        Ok(())
    }

    /// What a generation held that is found after a crash.
    ///
    /// An operation may commit more than once before it returns. What such a commit held shows an image that lost nothing, at
    /// a moment when its superblocks were written and those of the next commit were not. Generations only rise, so the
    /// moment is found by halving.
    ///
    /// # Errors
    /// That it was never committed, or cannot be read.
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
