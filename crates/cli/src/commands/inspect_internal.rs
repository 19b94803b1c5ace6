//! `buttress inspect-internal …`: the structures of a volume as they lie on disk.
//!
//! One module for each command, in `inspect_internal/`.

use crate::table::Row;

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[];
