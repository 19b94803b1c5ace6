//! Damaged volumes: a seed volume with one planted damage, and the findings that the check must
//! report.
//!
//! Each [`Plant`] edits one of the kernel's small volumes, repairs the checksums, and names exactly
//! the codes that the check must find. If one damage breaks two rules, the plant names both: a
//! missing extent leaves space that is not recorded as free. Some plants are harmless changes that
//! a check could mistake for damage; these plants name no codes.

mod extents;
mod files;
mod log;
mod volume;

use crate::editor::Editor;
use crate::seeds;

/// A planted damage, and its required findings.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    /// The name of the damage.
    pub name: &'static str,
    /// A part of the seed volume's name.
    pub volume: &'static str,
    /// A description of the damage.
    pub what: &'static str,
    /// Whether the check must read all data to find it.
    pub reads_data: bool,
    /// The codes of all required findings.
    pub codes: &'static [&'static str],
    /// Codes of required notes; further notes are permitted.
    pub notes: &'static [&'static str],
    /// Plants the damage.
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

    /// Returns the damaged volume.
    ///
    /// # Panics
    /// Panics if no such seed volume exists, or if it has no place for the damage.
    #[must_use]
    pub fn make(&self) -> Editor {
        let mut editor = seed(self.volume);
        (self.change)(&mut editor);
        editor
    }
}

/// Returns a seed volume, by a part of its name.
///
/// # Panics
/// Panics if no such seed volume exists.
#[must_use]
pub fn seed(name: &str) -> Editor {
    let mut volumes = seeds::volumes().iter();
    let aims = volumes.find(|aims| aims.volume.name.contains(name));
    Editor::new(aims.unwrap_or_else(|| panic!("there is a volume {name}")))
}

/// Returns all plants.
#[must_use]
pub fn all() -> Vec<Plant> {
    let files = files::PLANTS.concat();
    [volume::PLANTS, extents::PLANTS, &files, log::PLANTS].concat()
}

/// Returns the plant with this name.
///
/// # Panics
/// Panics if no such plant exists.
#[must_use]
pub fn named(name: &str) -> Plant {
    let found = all().into_iter().find(|plant| plant.name == name);
    found.unwrap_or_else(|| panic!("there is a plant {name}"))
}
