//! Subvolumes as trees: making subvolumes and snapshots, and dropping the trees of deleted ones.
//! [`crate::operations`] has their names and attributes.

mod dropping;
pub(crate) mod making;
