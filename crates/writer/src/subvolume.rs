//! Subvolumes as trees: making subvolumes and snapshots, and dropping the trees of deleted ones.
//! [`crate::operations`] has the names and attributes of subvolumes.

mod dropping;
pub(crate) mod making;
