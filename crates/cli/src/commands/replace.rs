//! `buttress replace …`: another device takes the place of one, in the words of btrfs-progs, on volumes that are not mounted.
//!
//! - `start`: looks whether the target will do, begins or goes on, in the background unless `-B` says otherwise
//! - `running`: a replacement under way, its record kept up to date, signals suspend it
//! - `print`: how it ended, and what was lost
//! - `record`: the status file, by which it is looked at and given up while it runs

mod cancel;
mod print;
mod record;
mod running;
mod start;
mod status;

use crate::manual::ExitCode;
use crate::table::{Row, leaf};

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<start::Start>(),
    leaf::<status::Status>(),
    leaf::<cancel::Cancel>(),
];

/// Nothing is being replaced.
const NOTHING: u8 = 2;

/// The exit codes of `cancel`.
const CANCEL_EXIT_CODES: &[ExitCode] = &[
    (0, "The replacement was cancelled"),
    (1, "The replacement could not be cancelled"),
    (2, "No device is being replaced, or the command line is wrong"),
];
