//! Discards: telling devices which bytes are no longer needed.
//!
//! Only unused ranges that no durable superblock leads to may be discarded. With RAID5 and RAID6,
//! only whole rows are discarded, parity included, because a partial row would not match its
//! parity.

use super::parts::Rows;
use crate::Volume;
#[cfg(doc)]
use crate::error::Corruption;
use crate::error::Error;
use buttress_format::{ByteCount, Logical};

impl Volume {
    /// Discards `[logical, logical + length)` on all devices that hold it. Devices without discard
    /// support do nothing.
    ///
    /// # Errors
    /// Returns [`Corruption::Unmapped`] if no chunk maps the range. Also fails if a device fails
    /// during the discard. A failed discard does not stop writing, because the bytes are not
    /// needed.
    pub fn discard(&self, logical: Logical, length: ByteCount) -> Result<(), Error> {
        self.require_writing()?;
        self.each_part(logical, length, Rows::Whole, |device, part| {
            device.discard(part.physical.get(), part.length)
        })
    }
}
