//! `buttress replace …`: replaces a device of a volume with another one, with the commands of
//! btrfs-progs.
//!
//! - `start`: checks the target, starts or resumes a replacement, in the background unless `-B` is
//!   given
//! - `below`: names of the layers below the library's interface
//! - `running`: a replacement in progress: updates its record, and suspends on signals
//! - `online`: replacements of a mounted volume, in its server
//! - `print`: the outcome, and the losses
//! - `record`: the status file, which serves to inspect and to cancel a running replacement

mod below;
mod cancel;
pub(crate) mod online;
mod print;
mod record;
mod running;
mod start;
mod status;

use crate::manual::ExitCode;
use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<start::Start>(),
    leaf::<status::Status>(),
    leaf::<cancel::Cancel>(),
];

/// Exit code if no replacement exists.
const NOTHING: u8 = 2;

/// Exit codes of `cancel`.
const CANCEL_EXIT_CODES: &[ExitCode] = &[
    (0, "The replacement was cancelled"),
    (1, "The replacement could not be cancelled"),
    (2, "No device is being replaced, or the command line is wrong"),
];
