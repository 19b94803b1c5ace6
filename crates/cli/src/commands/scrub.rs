//! `buttress scrub …`: every copy and all parity, in the words of btrfs-progs, on images and devices that are
//! not mounted, and on our own mounts.
//!
//! - `options`: what `start` and `resume` have in common
//! - `running`: a scrub under way: its record is kept up to date, signals pause it
//! - `online`: scrubs of a volume that is mounted, in its server
//! - `record`: the status file, by which a scrub goes on, is looked at and stopped
//! - `printing`: what btrfs-progs prints, and JSON with its counters' names
//! - `files`: whose data is damaged

mod cancel;
pub(in crate::commands) mod files;
pub(crate) mod online;
mod options;
mod printing;
mod record;
mod running;
mod start;
mod status;

use crate::manual::ExitCode;
use crate::table::{Row, leaf};

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<start::Start>(),
    leaf::<cancel::Cancel>(),
    leaf::<start::Resume>(),
    leaf::<status::Status>(),
];

/// What the name of a status file ends with.
const STATUS_ENDING: &str = ".scrub-status";

/// Nothing is running, or there is nothing to go on with.
const NOTHING: u8 = 2;

/// Some damage could not be repaired.
const UNCORRECTABLE: u8 = 3;

/// The exit codes of `start` and `resume`.
const EXIT_CODES: &[ExitCode] = &[
    (0, "The scrub finished, and all errors were corrected"),
    (1, "The scrub failed or was stopped"),
    (2, "There is nothing to resume, or the command line is wrong"),
    (3, "There are uncorrectable errors"),
];
