//! The return of a device that missed commits, up to the point at which the device is current.
//!
//! Until the return ends, the device's own superblock leads to the device's older state. If the
//! profiles allow, this state can be read from the device alone. The superblock is therefore the
//! last thing that changes. From [`Volume::begin_return`] on, the device gets every block that is
//! written to the volume, and no superblock. A job above writes the blocks that the device missed.
//! [`Volume::end_return`] then writes the volume's superblock to the device: copies, flush,
//! primary, flush. A crash before the primary superblock leaves the device at its own state. A
//! crash after that write leaves the returning device at the volume's state. Until its superblock
//! is written, the returning device counts as lost, and nothing unverified is read from it.
//!
//! A return is a replacement whose target is the device itself ([`crate::replacement`]), without an
//! item in the device tree. Linux sees a device that missed commits, before and after a crash.
//!
//! A stripe is *moved* if the device's own state uses the stripe's place for something else. The
//! stripe's content goes to another place on the device. The chunk names the new place by the time
//! the superblock changes ([`Volume::move_stripes`]).
//!
//! Left out: the choice of addresses that may be written without harm to the device's own state.
//! The writer above excludes the space of the device's own state from allocation, and decides which
//! stripes move.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::Error;
use crate::replacement::{Replacement, Returning};
use crate::write::WriteRefusal;
use buttress_format::chunk::Chunk;
use buttress_format::superblock::Superblock;
use buttress_format::{Generation, Logical, Physical};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

impl Volume {
    /// Begins a return: each later write to the volume also reaches the device with this uuid,
    /// except superblocks.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::NotBehind`] for a device that missed nothing. Returns
    /// [`WriteRefusal::Replacing`] while a device is being replaced or brought up to date.
    pub fn begin_return(
        &self,
        device: Uuid,
        moved: BTreeMap<(Logical, usize), Physical>,
    ) -> Result<Arc<Replacement>, Error> {
        let _alone = self.writes().write();
        let slots = self.devices();
        let slot = slots.iter().find(|slot| slot.uuid() == device);
        let behind = slot.and_then(|slot| Some((slot, slot.stale()?, slot.device()?)));
        let (slot, stale, own) = behind.ok_or(WriteRefusal::NotBehind { uuid: device })?;
        let target = DeviceSlot::given(slot.id(), slot.uuid(), slot.fsid(), own.clone(), None);
        self.require_own(&target)?;
        let mut replacing = self.replacing().write();
        if replacing.is_some() {
            return Err(WriteRefusal::Replacing.into());
        }
        let returning = Returning {
            since: stale.generation,
            moved,
        };
        let replacement = Arc::new(Replacement::of_returning(
            Arc::clone(slot),
            Arc::new(target),
            returning,
        ));
        *replacing = Some(Arc::clone(&replacement));
        Ok(replacement)
    }

    /// Writes the superblock in use to a device that now has every block. After this call, the
    /// device serves like any other device.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::NoTarget`] if no device is being brought up to date, or if a write
    /// to it failed. On an error, the returning device keeps its old generation.
    pub fn end_return(&self) -> Result<(), Error> {
        let _alone = self.writes().write();
        let replacement = self
            .replacement()
            .filter(|replacement| replacement.returning().is_some() && replacement.target().is_written());
        let replacement = replacement.ok_or(WriteRefusal::NoTarget)?;
        let target = replacement.target();
        let superblock = self.superblock();
        let item = replacement.source().item();
        let item = item.ok_or_else(|| WriteRefusal::NoDeviceItem {
            device: Arc::clone(target.name()),
        })?;
        // Only primary superblocks name a log tree.
        let without_log = Superblock {
            log_root: Logical::MIN,
            log_root_level: 0,
            ..(*superblock).clone()
        };
        self.write_superblocks_of_returned(target, &superblock, &without_log, &item)?;
        self.exchange(&replacement)
    }

    /// Replaces a chunk of the map by a chunk whose stripes have other addresses on the same
    /// devices. The new places must hold the bytes of the old places.
    ///
    /// # Errors
    /// Returns [`WriteRefusal::NoSuchChunk`]. Also fails if the profile does not allow the moved
    /// chunk.
    pub fn move_stripes(&self, start: Logical, chunk: Chunk) -> Result<(), Error> {
        let _alone = self.writes().write();
        self.exchange_chunk(start, chunk)
    }

    /// Returns the generation that the returning device had.
    #[must_use]
    pub fn returns_since(&self) -> Option<Generation> {
        let replacement = self.replacement()?;
        replacement.returning().map(|returning| returning.since)
    }
}
