//! ledgers.

use super::*;

pub(super) const FAULTS: &[Fault] = &[];
