//! `buttress balance pause IMAGE` and `buttress balance cancel IMAGE`, also of a balance in another process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::balance::BalanceControl;
use clap::Args;
use rustix::process::Signal;
use serde_json::json;

use super::record::Record;
use super::{EXIT_CODES, NOTHING, online, running};
use crate::background;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::status_files::Record as _;
use crate::table::Subcommand;

/// Pause a running balance; `balance resume` continues it
#[derive(Args, Debug)]
pub(super) struct Pause {
    #[command(flatten)]
    options: Options,
}

/// Cancel a running or paused balance; moved block groups stay moved
#[derive(Args, Debug)]
pub(super) struct Cancel {
    #[command(flatten)]
    options: Options,
}

#[derive(Args, Debug)]
struct Options {
    /// The status file, if it is not IMAGE.balance-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// The image or device, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Options {
    /// Returns the record of a balance that another process runs.
    fn running(&self, image: &Path) -> Result<Option<Record>> {
        let status = running::status_path(image, self.status_file.as_deref(), false)?;
        Ok(Record::load_running(status.as_deref()))
    }
}

impl Subcommand for Pause {
    const NAME: &'static str = "pause";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress balance pause disk.img",
        "Pauses the balance that is running, so that it can be resumed",
    )];
    const EXIT_CODES: &'static [ExitCode] = EXIT_CODES;

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.options.image).image;
        let was_running = match online::find(context, &image)? {
            Some(online) => online.balances.stop(BalanceControl::pause),
            None => match self.options.running(&image)? {
                Some(record) => {
                    background::stop_by(record.process, Signal::TERM)?;
                    true
                }
                None => {
                    // The command opens the image even without a balance, so that an image without
                    // a volume is reported as by every command.
                    drop(context.open_volume(&image)?);
                    false
                }
            },
        };
        match was_running {
            true => say(context, "balance-pause", "paused"),
            false => not_in_progress(context, "pause", &image, "Not running"),
        }
    }
}

impl Subcommand for Cancel {
    const NAME: &'static str = "cancel";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress balance cancel disk.img",
        "Cancels the running or paused balance",
    )];
    const EXIT_CODES: &'static [ExitCode] = EXIT_CODES;

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.options.image).image;
        let online = online::find(context, &image)?;
        let was_running = match &online {
            Some(online) => online.balances.stop(BalanceControl::cancel),
            None => match self.options.running(&image)? {
                Some(record) => {
                    background::stop(record.process)?;
                    true
                }
                None => false,
            },
        };
        // If a process died before it ended its balance, the balance is left paused.
        let ended = match &online {
            Some(online) => match online.volume().balance_status()? {
                Some(_) => Some(online.writable()?.end_balance()),
                None => None,
            },
            None => {
                running::open_existing(context, &image)?.map(|(writing, _)| writing.volume().end_balance())
            }
        };
        if let Some(ended) = ended {
            ended.with_context(|| image.display().to_string())?;
        } else if !was_running {
            return not_in_progress(context, "cancel", &image, "Not in progress");
        }
        say(context, "balance-cancel", "cancelled")
    }
}

fn say(context: &Context, command: &'static str, done: &'static str) -> Result<Outcome> {
    if context.json() {
        context.print_json(command, json!({ (done): true }))?;
    }
    Ok(Outcome::Done)
}

/// Reports that there is nothing to pause, cancel or resume.
pub(super) fn not_in_progress(
    context: &Context,
    command: &'static str,
    image: &Path,
    why: &str,
) -> Result<Outcome> {
    context.warn(format_args!(
        "balance {command} on '{}' failed: {why}",
        image.display()
    ));
    if context.json() {
        let (name, done) = match command {
            "pause" => ("balance-pause", "paused"),
            "cancel" => ("balance-cancel", "cancelled"),
            _ => ("balance-resume", "resumed"),
        };
        context.print_json(name, json!({ (done): false }))?;
    }
    Ok(Outcome::Code(NOTHING))
}
