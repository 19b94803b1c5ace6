//! `buttress replace status IMAGE`: progress of a device replacement, or the outcome of the last
//! one.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::below::{Filesystem, ReplaceItem, ReplaceState, filesystem_of, replacement_item};
use super::record::{ENDING, Record};
use crate::background::status_file;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::time::Clock;
use crate::status_files::Record as _;
use crate::table::{MountView, Subcommand};

/// Show the progress of a replacement, or the result of the last replacement
#[derive(Args, Debug)]
pub(super) struct Status {
    /// For compatibility: it is always printed once
    #[arg(short = '1', hide = true)]
    once: bool,
    /// The status file of a running replacement, if it is not IMAGE.replace-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// An image or device of the volume, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Status {
    const NAME: &'static str = "status";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress replace status first.img",
        "Shows the progress of a running or interrupted replacement",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        context.present(&image)?;
        let path = status_file(&image, self.status_file.as_deref(), ENDING).ok();
        // The server of a mount keeps no status file.
        let path = path.filter(|_| !context.is_on_mount());
        let record = path.as_deref().and_then(|path| Record::load(path).ok().flatten());
        if let Some(record) = record.as_ref().filter(|record| record.is_alive()) {
            return print_running(context, record);
        }
        if let Some(error) = record.and_then(|record| record.error) {
            context.warn(format_args!("{}: the last run failed: {error}", image.display()));
        }
        let filesystem = filesystem_of(context.open_volume(&image)?.volume());
        let item = replacement_item(&filesystem)?;
        let tenths = item.map_or(0, |item| tenths_of_percent(&filesystem, &item));
        if context.json() {
            let document = match item {
                None => json!({ "state": state(None) }),
                Some(item) => json!({
                    "state": state(Some(item.state)),
                    "devid": item.source.get(),
                    "progress_1000": tenths,
                    "started": item.time_started_seconds,
                    "stopped": item.time_stopped_seconds,
                    "write_errors": item.write_errors,
                    "uncorrectable_read_errors": item.uncorrectable_read_errors,
                    "process": null,
                }),
            };
            context.print_json("replace-status", document)?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        writeln!(out, "{}", line(item.as_ref(), tenths))?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Prints the status of a running replacement, without opening the volume.
fn print_running(context: &Context, record: &Record) -> Result<Outcome> {
    if context.json() {
        let document = json!({
            "state": state(Some(ReplaceState::Started)),
            "devid": record.device,
            "progress_1000": record.tenths,
            "started": record.started,
            "stopped": 0,
            "write_errors": record.write_errors,
            "uncorrectable_read_errors": record.uncorrectable_read_errors,
            "process": record.process.0,
        });
        context.print_json("replace-status", document)?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    writeln!(
        out,
        "{} done, {} write errs, {} uncorr. read errs",
        percent(record.tenths),
        record.write_errors,
        record.uncorrectable_read_errors
    )?;
    out.flush()?;
    Ok(Outcome::Done)
}

fn percent(tenths: u64) -> String {
    format!(
        "{}.{}%",
        tenths.checked_div(10).unwrap_or(0),
        tenths.checked_rem(10).unwrap_or(0)
    )
}

const fn state(state: Option<ReplaceState>) -> &'static str {
    match state {
        None | Some(ReplaceState::NeverStarted) => "never started",
        Some(ReplaceState::Started) => "started",
        Some(ReplaceState::Finished) => "finished",
        Some(ReplaceState::Canceled) => "canceled",
        Some(ReplaceState::Suspended) => "suspended",
        Some(ReplaceState::Unknown(_)) => "unknown",
    }
}

/// Returns the progress in tenths of a percent by the cursor, as the kernel computes it.
fn tenths_of_percent(filesystem: &Filesystem, item: &ReplaceItem) -> u64 {
    if item.state == ReplaceState::Finished {
        return 1000;
    }
    let slots = filesystem.volume().devices();
    let source = slots.iter().find(|slot| slot.id() == item.source);
    let all = source.and_then(|source| source.expected_bytes());
    let all = all.map_or(1, |all| u128::from(all.get().max(1)));
    let done = u128::from(item.cursor_left.get())
        .saturating_mul(1000)
        .checked_div(all);
    u64::try_from(done.unwrap_or(0)).unwrap_or(1000).min(1000)
}

/// Formats the line of `btrfs replace status -1`.
fn line(item: Option<&ReplaceItem>, tenths: u64) -> String {
    let Some(item) = item.filter(|item| item.state != ReplaceState::NeverStarted) else {
        return "Never started".to_owned();
    };
    let clock = Clock::system();
    let time = |seconds: u64| clock.day_and_time(i64::try_from(seconds).unwrap_or(i64::MAX));
    let (started, stopped) = (time(item.time_started_seconds), time(item.time_stopped_seconds));
    let percent = percent(tenths);
    let so_far = match item.state {
        ReplaceState::Finished => format!("Started on {started}, finished on {stopped}"),
        ReplaceState::Canceled => format!("Started on {started}, canceled on {stopped} at {percent}"),
        ReplaceState::Suspended => format!("Started on {started}, suspended on {stopped} at {percent}"),
        _ => format!("{percent} done"),
    };
    format!(
        "{so_far}, {} write errs, {} uncorr. read errs",
        item.write_errors, item.uncorrectable_read_errors
    )
}
