//! Space of the host that is reserved ahead, so that what is written later cannot fail for want of it.
//!
//! A commit writes tree blocks to addresses that were free. On an image file with holes, the file system that holds the
//! image may lack space for such an address. A commit that cannot write its blocks stops writing for good. The
//! allocator above therefore reserves addresses of metadata here before it hands them out.

use super::parts::Rows;
use crate::Volume;
#[cfg(doc)]
use crate::error::Corruption;
use crate::error::Error;
use buttress_format::{ByteCount, Logical};

impl Volume {
    /// Returns whether a write to a device can fail for want of space, as on an image file with holes.
    #[must_use]
    pub fn may_run_out(&self) -> bool {
        let slots = self.devices();
        let mut written = slots.iter().filter(|slot| slot.is_written());
        written.any(|slot| {
            slot.device()
                .is_some_and(|device| device.is_writable() && device.may_run_out())
        })
    }

    /// Reserves the space that writes to `[logical, logical + length)` need, on all devices that hold the range. On
    /// RAID5 and RAID6 whole rows get space, parity included. Changes no byte, and does nothing where devices cannot
    /// reserve.
    ///
    /// # Errors
    /// [`Error::Io`] that [is for want of space](buttress_device::IoError::is_out_of_space); a part of the range may
    /// then have space. [`Corruption::Unmapped`] when no chunk maps the range. None of these stops writing.
    pub fn reserve(&self, logical: Logical, length: ByteCount) -> Result<(), Error> {
        self.require_writing()?;
        self.each_part(logical, length, Rows::Touched, |device, part| {
            device.reserve(part.physical.get(), part.length)
        })
    }
}
