//! The counters of a scrub, named as in `btrfs scrub status -R`.
//!
//! Errors of data and of copies count by sector, errors of tree blocks and superblocks by block. A
//! repaired error counts for its kind and in `corrected_errors`, an unrepaired one for its kind and
//! in `uncorrectable_errors`. The report counts parity errors in `verify_errors`.

use crate::damage::Damage;
use buttress_exact::Exact as _;
use buttress_format::{DeviceId, Physical};
use std::sync::Arc;
use uuid::Uuid;

/// The counters of one device, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of scrubbed extents of data.
    pub data_extents_scrubbed: u64,
    /// The number of scrubbed tree blocks.
    pub tree_extents_scrubbed: u64,
    /// Scrubbed bytes of data.
    pub data_bytes_scrubbed: u64,
    /// Scrubbed bytes of tree blocks.
    pub tree_bytes_scrubbed: u64,
    /// Sectors or blocks that the device did not return.
    pub read_errors: u64,
    /// Sectors or blocks with wrong checksums.
    pub csum_errors: u64,
    /// Tree blocks that belong elsewhere or are older, and parity that does not match.
    pub verify_errors: u64,
    /// Sectors of data without a checksum.
    pub no_csum: u64,
    /// Always zero: `check` finds checksums without extents.
    pub csum_discards: u64,
    /// Bad superblocks.
    pub super_errors: u64,
    /// Always zero: kept only for `btrfs scrub status -R`.
    pub malloc_errors: u64,
    /// Errors that could not be repaired.
    pub uncorrectable_errors: u64,
    /// Errors for which the right content is unknown.
    pub unverified_errors: u64,
    /// Errors that the scrub repaired.
    pub corrected_errors: u64,
    /// The highest offset on the device that was read.
    pub last_physical: u64,
    /// Sectors of data and tree blocks that the device lacks because it missed commits. Missed
    /// sectors and blocks are no errors, and `btrfs scrub status -R` has no counter for them.
    pub missed: u64,
}

impl Counters {
    /// Returns all counters with their names, in the order of `btrfs scrub status -R`.
    #[must_use]
    pub const fn fields(&self) -> [(&'static str, u64); 15] {
        [
            ("data_extents_scrubbed", self.data_extents_scrubbed),
            ("tree_extents_scrubbed", self.tree_extents_scrubbed),
            ("data_bytes_scrubbed", self.data_bytes_scrubbed),
            ("tree_bytes_scrubbed", self.tree_bytes_scrubbed),
            ("read_errors", self.read_errors),
            ("csum_errors", self.csum_errors),
            ("verify_errors", self.verify_errors),
            ("no_csum", self.no_csum),
            ("csum_discards", self.csum_discards),
            ("super_errors", self.super_errors),
            ("malloc_errors", self.malloc_errors),
            ("uncorrectable_errors", self.uncorrectable_errors),
            ("unverified_errors", self.unverified_errors),
            ("corrected_errors", self.corrected_errors),
            ("last_physical", self.last_physical),
        ]
    }

    /// Returns the counter of this name for changes, for reading stored counters.
    pub fn field_mut(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "data_extents_scrubbed" => &mut self.data_extents_scrubbed,
            "tree_extents_scrubbed" => &mut self.tree_extents_scrubbed,
            "data_bytes_scrubbed" => &mut self.data_bytes_scrubbed,
            "tree_bytes_scrubbed" => &mut self.tree_bytes_scrubbed,
            "read_errors" => &mut self.read_errors,
            "csum_errors" => &mut self.csum_errors,
            "verify_errors" => &mut self.verify_errors,
            "no_csum" => &mut self.no_csum,
            "csum_discards" => &mut self.csum_discards,
            "super_errors" => &mut self.super_errors,
            "malloc_errors" => &mut self.malloc_errors,
            "uncorrectable_errors" => &mut self.uncorrectable_errors,
            "unverified_errors" => &mut self.unverified_errors,
            "corrected_errors" => &mut self.corrected_errors,
            "last_physical" => &mut self.last_physical,
            _ => return None,
        })
    }

    /// Adds the counters of another device or of an earlier part.
    pub fn add(&mut self, other: &Self) {
        self.missed = self.missed.exact_add(other.missed);
        for (name, value) in other.fields() {
            if let Some(own) = self.field_mut(name) {
                *own = if name == "last_physical" {
                    (*own).max(value)
                } else {
                    own.exact_add(value)
                };
            }
        }
    }

    /// Returns the number of errors of all kinds.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.read_errors
            .exact_add(self.csum_errors)
            .exact_add(self.verify_errors)
            .exact_add(self.super_errors)
    }

    /// Returns the scrubbed bytes of data and tree blocks.
    #[must_use]
    pub fn bytes_scrubbed(&self) -> u64 {
        self.data_bytes_scrubbed.exact_add(self.tree_bytes_scrubbed)
    }

    pub(crate) fn reached(&mut self, end: Physical) {
        self.last_physical = self.last_physical.max(end.get());
    }
}

/// A device of the volume, and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// The device's id.
    pub device: DeviceId,
    /// The device's uuid.
    pub uuid: Uuid,
    /// The name by which the device was opened.
    pub name: Arc<str>,
    /// Whether the device is missing, so that nothing was read of it.
    pub missing: bool,
    /// The bytes to be scrubbed on the device, as block groups count them.
    pub to_scrub: u64,
    /// The counters of the device.
    pub counters: Counters,
}

/// The report of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The report of each device.
    pub devices: Vec<DeviceReport>,
    /// Damage in order of address, up to the limit of the options.
    pub damages: Vec<Damage>,
    /// The number of damaged places beyond those that the report lists.
    pub damages_unlisted: u64,
    /// Ranges that were not scrubbed because the trees that describe them are unreadable.
    pub unwalked: Vec<String>,
}

impl Report {
    /// Returns the sum over all devices.
    #[must_use]
    pub fn totals(&self) -> Counters {
        let mut totals = Counters::default();
        self.devices
            .iter()
            .for_each(|device| totals.add(&device.counters));
        totals
    }

    /// Returns whether some error was not repaired, or some range was not scrubbed.
    #[must_use]
    pub fn has_uncorrectable(&self) -> bool {
        self.totals().uncorrectable_errors > 0 || !self.unwalked.is_empty()
    }

    /// Returns the number of bytes that the scrub has to read on all devices.
    #[must_use]
    pub fn to_scrub(&self) -> u64 {
        self.devices
            .iter()
            .fold(0, |sum, device| sum.exact_add(device.to_scrub))
    }
}

/// Returns damages in order of address, with equal neighbours joined, because groups end in any
/// order.
pub(crate) fn joined(mut damages: Vec<Damage>) -> Vec<Damage> {
    damages.sort_by_key(|damage| (damage.device, damage.physical));
    let mut joined: Vec<Damage> = Vec::new();
    for damage in damages {
        if !joined.last_mut().is_some_and(|last| last.absorb(&damage)) {
            joined.push(damage);
        }
    }
    joined.sort_by_key(|damage| (damage.logical, damage.device, damage.physical));
    joined
}
