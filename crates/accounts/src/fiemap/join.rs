//! Joining extents that nobody could tell apart.

use super::FiemapExtent;

/// Holds the last extent back until it is known that the next one does not continue it.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    held: Option<FiemapExtent>,
}

impl Joiner {
    /// Adds the next extent; gives the one before it, if the two stay apart.
    ///
    /// They are one when the second follows the first in the file and on the volume and all flags are the same. Extents
    /// inside the tree and those that wait have address 0 in the ioctl, so they follow nothing, and nothing them.
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

    /// The extent that is held back.
    pub(super) fn take(&mut self) -> Option<FiemapExtent> {
        self.held.take()
    }
}
