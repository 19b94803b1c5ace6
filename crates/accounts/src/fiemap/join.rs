//! Joining of adjacent extents with equal flags.

use super::FiemapExtent;

/// Holds the last extent back until the next extent is known not to continue it.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    held: Option<FiemapExtent>,
}

impl Joiner {
    /// Adds the file's next extent to the joined extents. Returns the previous extent if the two
    /// extents stay separate.
    ///
    /// Two extents are joined if the second follows the first in the file and on the volume, and
    /// all flags are equal. Inline and dirty extents have address 0 in the ioctl, so they are never
    /// joined.
    pub(super) fn add(&mut self, extent: FiemapExtent) -> Option<FiemapExtent> {
        match &mut self.held {
            Some(held)
                if held.end() == extent.offset
                    && held.flags == extent.flags
                    && held
                        .address
                        .and_then(|start| start.checked_add(held.length))
                        .is_some_and(|end| Some(end) == extent.address) =>
            {
                held.length = held.length.exact_add(extent.length);
                None
            }
            held => held.replace(extent),
        }
    }

    /// Returns the last extent of the map, which is held back for joining.
    pub(super) fn take(&mut self) -> Option<FiemapExtent> {
        self.held.take()
    }
}
