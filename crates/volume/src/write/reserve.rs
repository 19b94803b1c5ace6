//! Reservation of the host's space, so that later writes cannot fail for lack of it.
//!
//! A commit writes tree blocks to addresses that were free. On a sparse image file, the file system
//! that holds the image may lack space for such an address. A commit that cannot write its blocks
//! stops writing for good. The allocator above therefore reserves addresses of metadata with this
//! module before it allocates them.

use super::parts::Rows;
use crate::Volume;
#[cfg(doc)]
use crate::error::Corruption;
use crate::error::Error;
use buttress_format::{ByteCount, Logical};

impl Volume {
    /// Returns true if a write to a device can fail for lack of space, as on a sparse image file.
    #[must_use]
    pub fn may_run_out(&self) -> bool {
        let slots = self.devices();
        let mut written = slots.iter().filter(|slot| slot.is_written());
        written.any(|slot| {
            slot.device()
                .is_some_and(|device| device.is_writable() && device.may_run_out())
        })
    }

    /// Reserves the space that writes to `[logical, logical + length)` need, on all devices that
    /// hold the range. On RAID5 and RAID6, whole rows get space, parity included. The call changes
    /// no byte of the devices. Does nothing on devices that cannot reserve space.
    ///
    /// # Errors
    /// Returns [`Error::Io`] that [is for lack of
    /// space](buttress_device::IoError::is_out_of_space); a part of the range may then have space.
    /// Returns [`Corruption::Unmapped`] if no chunk maps the range. The errors of a reservation do
    /// not stop writing.
    pub fn reserve(&self, logical: Logical, length: ByteCount) -> Result<(), Error> {
        self.require_writing()?;
        self.each_part(logical, length, Rows::Touched, |device, part| {
            device.reserve(part.physical.get(), part.length)
        })
    }
}
