//! The commands, one thin module for each.

pub mod completions;
pub mod inspect_internal;
pub mod man;
