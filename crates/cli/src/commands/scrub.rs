//! `buttress scrub …`: verifies every copy and all parity, with the commands of btrfs-progs. It
//! works on unmounted images and devices, and on mounts of this program.
//!
//! - `options`: the common options of `start` and `resume`
//! - `running`: a scrub in progress: updates its record, and pauses on signals
//! - `online`: scrubs of a mounted volume, in its server
//! - `record`: the status file, which serves to resume, inspect and stop a scrub
//! - `printing`: the output of btrfs-progs, and JSON with its counters' names
//! - `files`: the files with damaged data

mod cancel;
pub(in crate::commands) mod files;
pub(crate) mod online;
mod options;
mod printing;
mod record;
mod running;
mod start;
mod status;

use std::path::{Path, PathBuf};

use crate::context::Context;
use crate::manual::ExitCode;
use crate::table::{Row, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<start::Start>(),
    leaf::<cancel::Cancel>(),
    leaf::<start::Resume>(),
    leaf::<status::Status>(),
];

/// Suffix of a status file's name.
const STATUS_ENDING: &str = ".scrub-status";

/// Returns the path beside which the status file is: the overlay if one is given, because the repairs
/// are in the overlay and not in the image.
fn described(context: &Context, image: &Path) -> PathBuf {
    context.overlay_of(0).unwrap_or_else(|| image.to_owned())
}

/// Exit code if no scrub is running, or none can be resumed.
const NOTHING: u8 = 2;

/// Exit code if some damage could not be repaired.
const UNCORRECTABLE: u8 = 3;

/// Exit codes of `start` and `resume`.
const EXIT_CODES: &[ExitCode] = &[
    (0, "The scrub finished, and all errors were corrected"),
    (1, "The scrub failed or was stopped"),
    (2, "There is nothing to resume, or the command line is wrong"),
    (3, "There are uncorrectable errors"),
];
