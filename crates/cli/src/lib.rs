//! The `buttress` command: btrfs images and devices without a mount, without root.
//!
//! - [`table`]: the one table of commands. Parser, help, man pages and completions are made from it.
//! - [`manual`]: man pages.
//! - [`globals`]: the flags that stand before the command or after it.
//! - [`context`]: what a running command is given: flags, output, warnings, losses.
//! - [`target`]: `IMAGE:/path` arguments.
//! - [`sources`]: what is read, so that nothing is written there; [`identity`]: other names of the same thing.
//! - [`opening`]: from arguments to devices and volumes.
//! - [`writing`]: volumes that are changed.
//! - [`output`]: JSON documents, names on terminals, sizes, times and modes as text.
//! - [`pax`]: tar archives.
//! - [`progs`]: commands of btrfs-progs that are not here, and the table of those that are.
//! - [`progress`]: how far a long job is.
//! - [`exit`]: exit codes, and how an error is printed. [`ending`]: errors that end a job of many files.
//! - [`extract`]: files from a volume into a directory of the host, safely.
//! - [`insert`]: files from the host or a volume into a volume. [`host`]: files of the host.
//! - [`compression`]: ways to compress, as arguments.
//! - [`replacing`]: what a copy does with what is there already.
//! - [`removal`]: whole directories of a volume, removed.
//! - [`shell`]: sessions: words that look at a volume and change it.
//! - [`mounted`]: paths below a mount of ours, for which its server does the work.
//! - [`commands`]: one thin module for each command. No file-system logic lives here.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests state what must hold"
    )
)]

pub mod background;
pub mod commands;
pub mod compression;
pub mod context;
pub mod ending;
pub mod exit;
pub mod extract;
pub mod failures;
pub mod globals;
pub mod host;
pub mod identity;
pub mod insert;
pub mod manual;
pub mod mounted;
pub mod opening;
pub mod output;
pub mod pax;
pub mod progress;
pub mod progs;
pub mod removal;
pub mod replacing;
pub mod resyncs;
pub mod shell;
pub mod signals;
pub mod sources;
pub mod table;
pub mod target;
pub mod writing;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command line `arguments` (the program's name first) and says how it ended.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if commands::mount::watches() {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let arguments = commands::mount::of_helper(&arguments).unwrap_or(arguments);
    exit::status(table::run(arguments))
}
