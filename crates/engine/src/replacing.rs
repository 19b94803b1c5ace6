//! The device replacement in progress, as the running transaction records it.

use buttress_format::ReplaceItem;

/// The device replacement in progress, as the running transaction records it.
#[derive(Clone, Copy, Debug)]
pub struct Replacing {
    pub(crate) item: ReplaceItem,
    /// Whether the replacement item in the device tree is older than this item.
    pub is_changed: bool,
    /// Whether the next commit puts the target in the source's place.
    pub finishes: bool,
}
