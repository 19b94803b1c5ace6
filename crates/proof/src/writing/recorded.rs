//! A run in the crash laboratory: its history, and what each generation held that it committed.

use super::state::{describe, first_difference};
use super::volume::{devices, open_checked};
use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress_lab::crash::{History, Outcome};
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

    /// Reads what each marked commit held from the image at the moment at which it had returned, checks that, and compares
    /// it with what is known of it: what the writer itself showed at that moment.
    ///
    /// # Errors
    /// What the checks found; a mark of a later generation than the image's; what differs.
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
            // Where commits run beside operations, another one may have come before the mark.
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

    /// Compares what was found after a crash with what that generation held.
    ///
    /// # Errors
    /// The first difference; that there was no such generation.
    pub fn expect(&self, generation: u64, found: &str) -> Result<()> {
        let expected = self.state_of(generation)?;
        ensure!(
            expected == found,
            "not what generation {generation} held: {}",
            first_difference(&expected, found)
        );
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
