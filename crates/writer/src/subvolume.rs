//! Subvolumes as trees: making them and their snapshots, and dropping what deleted ones leave. Their names and
//! attributes are [`crate::operations`].

mod dropping;
pub(crate) mod making;
