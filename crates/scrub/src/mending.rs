//! Repairs: writes right bytes over wrong ones, reads them back, and records the outcome.
//!
//! The scrub reads repaired bytes back from the device like any read. A device with direct I/O
//! reads from the medium; otherwise the bytes may come from memory. The repair flushes all written
//! devices before the scrub ends. If a flush fails, the repairs on that device are uncertain, and
//! the report says so.

use crate::damage::{Cause, Damage, Outcome, Part};
use crate::job::Job;
use crate::report::Counters;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Logical, Physical};
use buttress_volume::layout::StripeOffset;
use buttress_volume::{DeviceErrors, DeviceSlot, MappedChunk};
use std::sync::Arc;

/// A place on a device, and its content.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) slot: Arc<DeviceSlot>,
    pub(crate) physical: Physical,
    pub(crate) logical: Logical,
    pub(crate) length: usize,
    pub(crate) part: Part,
    /// The number of errors for which a repaired place counts: its sectors of data, or one for a
    /// tree block.
    pub(crate) errors: u64,
}

/// Returns the device and the physical address of an offset in a stripe of a chunk.
pub(crate) fn site_of(
    chunk: &MappedChunk,
    stripe_index: usize,
    offset: u64,
) -> Option<(Arc<DeviceSlot>, Physical)> {
    let slot = chunk.devices().get(stripe_index)?;
    let stripe = chunk.chunk().stripes.get(stripe_index)?;
    let offset = ByteCount::new(StripeOffset::new(offset).get());
    Some((Arc::clone(slot), stripe.physical.checked_add(offset)?))
}

impl Job<'_> {
    /// Writes `good` at the location of a bad copy, unless the scrub is read-only. Returns the
    /// outcome.
    pub(crate) fn mend(&self, site: &Site, good: &[u8]) -> Outcome {
        if self.options.read_only || is_missed(site) {
            return Outcome::Correctable;
        }
        match self.rewrite(site, good) {
            Ok(()) => Outcome::Corrected,
            Err(reason) => Outcome::Uncorrectable { tried: vec![reason] },
        }
    }

    fn rewrite(&self, site: &Site, good: &[u8]) -> Result<(), String> {
        let device = site
            .slot
            .in_use()
            .ok_or("its device is missing or was left out")?;
        if !device.is_writable() || site.slot.fsid() != self.volume.superblock().fsid {
            return Err("its device is not open for writing, or a seed".to_owned());
        }
        if !buttress_faults::on("scrub-mends-nothing") {
            device.write(site.physical.get(), good).map_err(|error| {
                site.slot.count_errors(DeviceErrors {
                    writes: 1,
                    ..DeviceErrors::default()
                });
                error.to_string()
            })?;
        }
        self.written.lock().insert(site.slot.uuid());
        let back = device.read(site.physical.get(), good.len());
        let back = back.map_err(|error| format!("written, but {error}"))?;
        if back.get(..) == Some(good) || buttress_faults::on("scrub-mended-unread") {
            Ok(())
        } else {
            Err("written, but other content was read back: the device loses or misdirects writes".to_owned())
        }
    }

    /// Counts and records damage in the scrub's report.
    pub(crate) fn note(&self, site: &Site, cause: Cause, outcome: Outcome) {
        let count = site.errors;
        if is_missed(site) && !matches!(cause, Cause::Unreadable(_)) {
            let missed = |counters: &mut Counters| counters.missed = counters.missed.exact_add(count);
            return self.count(&site.slot, missed);
        }
        let mut errors = DeviceErrors::default();
        self.count(&site.slot, |counters: &mut Counters| {
            let counter = match &cause {
                Cause::Unreadable(_) => &mut counters.read_errors,
                Cause::Checksum => &mut counters.csum_errors,
                Cause::Header(_) | Cause::Generation { .. } | Cause::Parity => &mut counters.verify_errors,
                // If copies without checksums differ, it is unknown which copy is wrong.
                Cause::Differs => &mut counters.unverified_errors,
                Cause::Superblock(_) => &mut counters.super_errors,
            };
            *counter = counter.exact_add(count);
            let counter = match &outcome {
                Outcome::Corrected => &mut counters.corrected_errors,
                Outcome::Uncorrectable { .. } => &mut counters.uncorrectable_errors,
                Outcome::Unverified | Outcome::Correctable => return,
            };
            *counter = counter.exact_add(count);
        });
        match &cause {
            Cause::Unreadable(_) => errors.reads = count,
            Cause::Checksum | Cause::Header(_) | Cause::Superblock(_) => errors.corruptions = count,
            Cause::Generation { .. } => errors.generations = count,
            Cause::Parity | Cause::Differs => {}
        }
        if !self.options.read_only {
            site.slot.count_errors(errors);
        }
        self.progress.count_error();
        self.ledger.lock().keep(
            Damage {
                device: site.slot.id(),
                device_name: Arc::clone(site.slot.name()),
                physical: site.physical,
                logical: site.logical,
                length: ByteCount::of(site.length),
                part: site.part,
                cause,
                outcome,
            },
            self.options.damages_max,
        );
    }
}

/// Returns whether a bad copy is on a device that missed commits, which may have caused the damage.
/// A scrub does not repair such a block, because the device's own superblock may need the old
/// bytes. A resynchronisation does ([`crate::resync`]).
fn is_missed(site: &Site) -> bool {
    let is_stale = site.slot.stale().is_some() && site.part != Part::Superblock;
    is_stale && !buttress_faults::on("scrub-mends-stale-device")
}

/// Damage in the order in which it was found, and unreadable parts of trees.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) damages: Vec<Damage>,
    pub(crate) unlisted: u64,
    pub(crate) unwalked: Vec<String>,
}

/// The most unreadable parts of trees that are listed.
const UNWALKED_MAX: usize = 1000;

impl Ledger {
    fn keep(&mut self, damage: Damage, most: usize) {
        if self.damages.last_mut().is_some_and(|last| last.absorb(&damage)) {
            return;
        }
        if self.damages.len() < most {
            self.damages.push(damage);
        } else {
            self.unlisted = self.unlisted.exact_add(1);
        }
    }

    pub(crate) fn cannot_walk(&mut self, what: String) {
        if self.unwalked.len() < UNWALKED_MAX && !self.unwalked.contains(&what) {
            self.unwalked.push(what);
        }
    }
}
