//! `buttress balance status IMAGE`: whether a balance is running or paused, and how far it is.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use buttress::balance::{BalanceCounts, BalanceFlags, BalanceItem};
use buttress_exact::Exact as _;
use clap::Args;
use serde_json::json;

use super::record::{Record, TYPES, item_to_json, of_type};
use super::{STATUS_ENDING, filters, online};
use crate::background::status_file;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::output::terminal;
use crate::status_files::Record as _;
use crate::table::Subcommand;

/// Show whether a balance is running or paused, and its progress
///
/// With -v, the command also shows the filters.
#[derive(Args, Debug)]
pub(super) struct Status {
    /// The status file, if it is not IMAGE.balance-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// The image or device, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// A balance, as far as this process knows.
struct Found {
    item: BalanceItem,
    /// Of one that is running.
    running: Option<(BalanceCounts, u32)>,
}

impl Subcommand for Status {
    const NAME: &'static str = "status";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress balance status -v disk.img",
        "Shows the progress of the balance, and its filters",
    )];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "No balance is in progress"),
        (1, "A balance is running or paused, or its status is unreadable"),
        (2, "The command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let found = match online::find(context, &image)? {
            Some(online) => online.volume().balance_status()?.map(|item| Found {
                item,
                running: online
                    .balances
                    .counts()
                    .map(|counts| (counts, std::process::id())),
            }),
            None => self.find_offline(context, &image)?,
        };
        print(context, &image, found.as_ref())
    }
}

impl Status {
    fn find_offline(&self, context: &Context, image: &Path) -> Result<Option<Found>> {
        let path = status_file(image, self.status_file.as_deref(), STATUS_ENDING).ok();
        let record = match &path {
            Some(path) => Record::load(path)?,
            None => None,
        };
        match record {
            Some(record) if record.is_alive() => Ok(Some(Found {
                item: record.item,
                running: Some((record.counts, record.process.0)),
            })),
            record => {
                if let Some(error) = record.and_then(|record| record.error) {
                    context.warn(format_args!("{}: the last run failed: {error}", image.display()));
                }
                let item = context.open_volume(image)?.volume().balance_status()?;
                Ok(item.map(|item| Found { item, running: None }))
            }
        }
    }
}

fn print(context: &Context, image: &Path, found: Option<&Found>) -> Result<Outcome> {
    let outcome = match found {
        None => Outcome::Done,
        Some(_) => Outcome::Negative,
    };
    if context.json() {
        let counts = found.and_then(|found| found.running);
        let document = json!({
            "state": match found {
                None => "none",
                Some(Found { running: Some(_), .. }) => "running",
                Some(_) => "paused",
            },
            "filters": found.map(|found| item_to_json(&found.item)),
            "expected": counts.map(|(counts, _)| counts.expected),
            "considered": counts.map(|(counts, _)| counts.considered),
            "relocated": counts.map(|(counts, _)| counts.relocated),
            "process": counts.map(|(_, process)| process),
        });
        context.print_json("balance-status", document)?;
        return Ok(outcome);
    }
    let mut out = context.stdout();
    let shown = terminal::shown(image.display());
    match found {
        None => writeln!(out, "No balance found on '{shown}'")?,
        Some(found) => {
            match found.running {
                None => writeln!(out, "Balance on '{shown}' is paused")?,
                Some((counts, _)) => {
                    writeln!(out, "Balance on '{shown}' is running")?;
                    writeln!(out, "{}", line(&counts))?;
                }
            }
            if context.globals().verbose > 0 {
                print_filters(&mut out, found)?;
            }
        }
    }
    out.flush()?;
    Ok(outcome)
}

/// Returns how far a balance is, as btrfs-progs prints it.
fn line(counts: &BalanceCounts) -> String {
    // The counts may come from a file.
    let percent = match counts.expected.checked_sub(counts.relocated) {
        Some(left) if left > 0 => u128::from(left).exact_mul(100).quotient(counts.expected.into()),
        _ => 0,
    };
    format!(
        "{} out of about {} chunks balanced ({} considered), {percent:3}% left",
        counts.relocated, counts.expected, counts.considered
    )
}

fn print_filters(out: &mut impl std::io::Write, found: &Found) -> Result<()> {
    let flags = found.item.flags;
    let force = match flags.contains(BalanceFlags::FORCE) {
        true => "on",
        false => "off",
    };
    writeln!(
        out,
        "Dumping filters: flags 0x{:x}, state 0x{:x}, force is {force}",
        flags.bits(),
        u8::from(found.running.is_some())
    )?;
    for (flag, _, name) in TYPES {
        if flags.contains(flag) {
            let filters = of_type(&found.item, flag);
            writeln!(
                out,
                "  {name} (flags 0x{:x}): {}",
                filters.flags.bits(),
                filters::described(filters)
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_as_by_btrfs_progs() {
        let counts = |expected, considered, relocated| BalanceCounts {
            expected,
            considered,
            relocated,
        };
        for (counts, expected) in [
            (
                counts(5, 1, 0),
                "0 out of about 5 chunks balanced (1 considered), 100% left",
            ),
            (
                counts(5, 1, 1),
                "1 out of about 5 chunks balanced (1 considered),  80% left",
            ),
            (
                counts(0, 0, 0),
                "0 out of about 0 chunks balanced (0 considered),   0% left",
            ),
        ] {
            assert_eq!(line(&counts), expected);
        }
    }
}
