//! The balance in progress or paused, as the running transaction has it.

use buttress_format::BalanceItem;

/// A balance, as the running transaction has it.
#[derive(Clone, Copy, Debug)]
pub struct Balancing {
    pub(crate) item: BalanceItem,
    /// Whether the root tree has an older item, or none.
    pub(crate) is_changed: bool,
    /// Whether the next commit removes the balance item.
    pub(crate) ends: bool,
    /// Whether a thread is moving block groups.
    pub(crate) runs: bool,
}

impl Balancing {
    /// Returns a balance whose item the root tree has.
    pub(crate) const fn recorded(item: BalanceItem) -> Self {
        Self {
            item,
            is_changed: false,
            ends: false,
            runs: false,
        }
    }
}
