//! The replacement of a device in progress, as the running transaction has it.

use buttress_format::ReplaceItem;

/// A replacement, as the running transaction has it.
#[derive(Clone, Copy, Debug)]
pub struct Replacing {
    pub(crate) item: ReplaceItem,
    /// Whether the device tree has an older item.
    pub is_changed: bool,
    /// Whether the next commit puts the target in the source's place.
    pub finishes: bool,
}
