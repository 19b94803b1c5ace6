//! Broken volumes: a seed volume with one damage planted, and what the check must say of it.
//!
//! Each [`Plant`] edits one of the kernel's small volumes, mends the checksums, and names the codes that must be found:
//! those and no others. Where one damage breaks two rules (an extent that is gone leaves space that is not recorded as
//! free), both are named. Some plant what is no damage, where a check could take it for one: those name no codes.

mod extents;
mod files;
mod log;
mod volume;

use crate::editor::Editor;
use crate::seeds;

/// A damage, and what must follow from it.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    /// The name of the planted damage.
    pub name: &'static str,
    /// The seed volume, by a part of its name.
    pub volume: &'static str,
    /// What is done to it.
    pub what: &'static str,
    /// Whether only reading all data finds it.
    pub reads_data: bool,
    /// The codes of all findings that the check must report.
    pub codes: &'static [&'static str],
    /// Codes of notes that the check must report; the report may contain further notes.
    pub notes: &'static [&'static str],
    /// Plants it.
    pub change: fn(&mut Editor),
}

impl Plant {
    const fn new(
        name: &'static str,
        volume: &'static str,
        what: &'static str,
        codes: &'static [&'static str],
        change: fn(&mut Editor),
    ) -> Self {
        Self {
            name,
            volume,
            what,
            reads_data: false,
            codes,
            notes: &[],
            change,
        }
    }

    const fn noting(self, notes: &'static [&'static str]) -> Self {
        Self { notes, ..self }
    }

    const fn reading_data(self) -> Self {
        Self {
            reads_data: true,
            ..self
        }
    }

    /// The broken volume.
    ///
    /// # Panics
    /// Panics when no such seed volume exists, or when it has no place for the damage.
    #[must_use]
    pub fn make(&self) -> Editor {
        let mut editor = seed(self.volume);
        (self.change)(&mut editor);
        editor
    }
}

/// A seed volume, by a part of its name.
///
/// # Panics
/// Panics when no such item exists.
#[must_use]
pub fn seed(name: &str) -> Editor {
    let mut volumes = seeds::volumes().iter();
    let aims = volumes.find(|aims| aims.volume.name.contains(name));
    Editor::new(aims.unwrap_or_else(|| panic!("there is a volume {name}")))
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Plant> {
    let files = files::PLANTS.concat();
    [volume::PLANTS, extents::PLANTS, &files, log::PLANTS].concat()
}

/// Returns the plant with this name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn named(name: &str) -> Plant {
    let found = all().into_iter().find(|plant| plant.name == name);
    found.unwrap_or_else(|| panic!("there is a plant {name}"))
}
