//! Telling devices which bytes are no longer needed.
//!
//! Only ranges that nothing uses, and that no durable superblock leads to any more, may be discarded. Of RAID5 and RAID6
//! only whole rows are, parity included: half a row without its data would not fit its parity.

use super::parts::Rows;
use crate::Volume;
#[cfg(doc)]
use crate::error::Corruption;
use crate::error::Error;
use buttress_format::{ByteCount, Logical};

impl Volume {
    /// Discards `[logical, logical + length)` on all devices that hold it. Devices without discard do nothing.
    ///
    /// # Errors
    /// [`Corruption::Unmapped`] when no chunk maps the range; what a device fails with. That does not stop writing: the
    /// bytes are not needed.
    pub fn discard(&self, logical: Logical, length: ByteCount) -> Result<(), Error> {
        self.require_writing()?;
        self.each_part(logical, length, Rows::Whole, |device, part| {
            device.discard(part.physical.get(), part.length)
        })
    }
}
