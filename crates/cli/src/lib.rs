//! The `buttress` command: btrfs images and devices without a mount and without root.
//!
//! - [`table`]: the one table of commands, from which parser, help, man pages and completions are
//!   generated.
//! - [`manual`]: man pages.
//! - [`globals`]: the global flags, before or after the command.
//! - [`context`]: the context of a running command: flags, output, warnings, losses.
//! - [`target`]: `IMAGE:/path` arguments.
//! - [`sources`]: the command's inputs, which it must not write to; [`identity`]: detection of
//!   other names for the same bytes.
//! - [`opening`]: from arguments to devices and volumes.
//! - [`writing`]: changes to volumes.
//! - [`output`]: JSON documents, names on terminals, sizes, times and modes as text.
//! - [`pax`]: tar archives.
//! - [`progs`]: commands that only btrfs-progs has, and the table of common commands.
//! - [`progress`]: progress of long jobs.
//! - [`exit`]: exit codes, and the printing of errors. [`ending`]: errors that end a job over many
//!   files.
//! - [`extract`]: files from a volume into a directory of the host, safely.
//! - [`insert`]: files from the host or a volume into a volume. [`host`]: files of the host.
//! - [`compression`]: compression methods as arguments.
//! - [`replacing`]: the treatment of existing files by a copy.
//! - [`removal`]: removal of whole directories of a volume.
//! - [`shell`]: sessions: shell commands that read and change a volume.
//! - [`mounted`]: paths below a mount of this program, whose server executes the command.
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
pub mod new_files;
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
pub mod status_files;
pub mod table;
pub mod target;
pub mod writing;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command line `arguments`, which begins with the program's name, and returns its exit
/// code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if commands::mount::watches() {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let arguments = commands::mount::of_helper(&arguments).unwrap_or(arguments);
    exit::status(table::run(arguments))
}
