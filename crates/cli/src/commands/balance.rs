//! `buttress balance …`: moves and converts block groups, with btrfs-progs' words, on unmounted
//! volumes and on this program's mounts.
//!
//! - `filters`: the filters of `-d`, `-m` and `-s`
//! - `start`, `resume`: begin a balance, or continue one
//! - `stopping`: pause and cancel, also of a balance in another process
//! - `running`: a balance under way in this process: its record, signals
//! - `online`: balances of a volume that is mounted, in its server
//! - `record`: the status file
//! - `printing`: messages at the end, and the plan of a dry run

mod filters;
pub(crate) mod online;
mod printing;
mod record;
mod resume;
mod running;
mod start;
mod status;
mod stopping;

use crate::manual::ExitCode;
use crate::table::{Row, leaf};

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<start::Start>(),
    leaf::<stopping::Pause>(),
    leaf::<stopping::Cancel>(),
    leaf::<resume::Resume>(),
    leaf::<status::Status>(),
];

/// Suffix of the name of a balance status file.
const STATUS_ENDING: &str = ".balance-status";

/// No balance is running, or none exists.
const NOTHING: u8 = 2;

/// The exit codes of `pause`, `cancel` and `resume`.
const EXIT_CODES: &[ExitCode] = &[
    (0, "Done"),
    (1, "It failed"),
    (2, "No balance is in progress, or the command line is wrong"),
];
