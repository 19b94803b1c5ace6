//! The balance in progress or paused, as the running transaction has it.

use crate::block_groups::Purpose;
use buttress_format::{BalanceItem, Profile};

/// A balance, as the running transaction has it.
#[derive(Clone, Copy, Debug)]
pub struct Balancing {
    pub(crate) item: BalanceItem,
    /// Whether the root tree has an older item, or none.
    pub(crate) is_changed: bool,
    /// Whether the next commit removes the item.
    pub(crate) ends: bool,
}

impl Balancing {
    /// Returns a balance whose item the root tree has.
    pub(crate) const fn recorded(item: BalanceItem) -> Self {
        Self {
            item,
            is_changed: false,
            ends: false,
        }
    }

    /// Returns the profile that the balance converts to: new chunks for this purpose get it, also while the balance is
    /// paused.
    pub(crate) fn target(&self, purpose: Purpose) -> Option<Profile> {
        let arguments = match purpose {
            Purpose::Data => &self.item.data,
            Purpose::Metadata => &self.item.metadata,
            Purpose::System => &self.item.system,
        };
        arguments.target_profile().filter(|_| !self.ends)
    }
}
