//! `buttress device stats IMAGE`: error counters of each device.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::{DeviceId, Volume};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::output::terminal;
use crate::table::Subcommand;

/// Show the error counters of each device of a volume
#[derive(Args, Debug)]
pub(super) struct Stats {
    /// Exit with 64 if a counter is not zero
    #[arg(short = 'c', long)]
    check: bool,
    /// Print the counters, then set them to zero
    #[arg(short = 'z', long)]
    reset: bool,
    /// Print a table
    #[arg(short = 'T')]
    table: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Bit that `-c` adds to the exit code if a counter is not zero.
const FAILED_BEFORE: u8 = 64;

/// Counters of one device.
struct Row {
    id: DeviceId,
    name: String,
    counters: [u64; 5],
}

const NAMES: [&str; 5] = [
    "write_io_errs",
    "read_io_errs",
    "flush_io_errs",
    "corruption_errs",
    "generation_errs",
];

impl Subcommand for Stats {
    const NAME: &'static str = "stats";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress device stats backup.img",
            "Shows the error counters of each device",
        ),
        example(
            "buttress device stats -c backup.img",
            "Also exits with 64 if a counter is not zero",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "The command succeeded"),
        (1, "The command failed"),
        (2, "The command line is wrong"),
        (64, "A counter is not zero (with -c)"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let rows = if self.reset {
            let writing = context.open_for_writing(&image)?;
            let rows = rows(writing.volume())?;
            for row in rows.iter().filter(|row| row.failed()) {
                writing.volume().reset_device_statistics(row.id)?;
            }
            writing.commit()?;
            rows
        } else {
            rows(context.open_volume(&image)?.volume())?
        };
        if context.json() {
            context.print_json("device-stats", rows.iter().map(Row::as_json).collect())?;
        } else {
            let mut out = context.stdout();
            match self.table {
                true => print_table(&mut out, &rows)?,
                false => print_lines(&mut out, &rows)?,
            }
            out.flush()?;
        }
        let failed = self.check && rows.iter().any(Row::failed);
        Ok(match failed {
            true => Outcome::Code(FAILED_BEFORE),
            false => Outcome::Done,
        })
    }
}

/// Returns all devices in the order of their ids. If a device has no statistics item, it has no
/// errors.
fn rows(volume: &Volume) -> Result<Vec<Row>> {
    let counts = volume.device_statistics()?.into_iter();
    let rows = volume
        .devices()
        .into_iter()
        .zip(counts)
        .map(|(device, (_, counts))| Row {
            id: device.id,
            name: device.name,
            counters: [
                counts.write_errors,
                counts.read_errors,
                counts.flush_errors,
                counts.corruption_errors,
                counts.generation_errors,
            ],
        });
    Ok(rows.collect())
}

impl Row {
    fn failed(&self) -> bool {
        self.counters.iter().any(|count| *count > 0)
    }

    fn as_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("device".to_owned(), json!(self.name));
        object.insert("devid".to_owned(), json!(self.id.get()));
        for (name, count) in NAMES.into_iter().zip(self.counters) {
            object.insert(name.to_owned(), json!(count));
        }
        Value::Object(object)
    }
}

fn print_lines(out: &mut dyn Write, rows: &[Row]) -> Result<()> {
    for row in rows {
        let device = terminal::shown(&row.name);
        for (name, count) in NAMES.into_iter().zip(row.counters) {
            writeln!(out, "[{device}].{name:<16} {count}")?;
        }
    }
    Ok(())
}

const HEADS: [&str; 5] = [
    "Write errors",
    "Read errors",
    "Flush errors",
    "Corruption errors",
    "Generation errors",
];

fn print_table(out: &mut dyn Write, rows: &[Row]) -> Result<()> {
    let names: Vec<String> = rows
        .iter()
        .map(|row| terminal::shown(&row.name).to_string())
        .collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    writeln!(out, "Id {:<width$} {}", "Path", HEADS.join(" "))?;
    let rules: Vec<String> = HEADS.iter().map(|head| "-".repeat(head.len())).collect();
    writeln!(out, "-- {} {}", "-".repeat(width), rules.join(" "))?;
    for (row, name) in rows.iter().zip(names) {
        write!(out, "{:>2} {name:<width$}", row.id.get())?;
        for (head, count) in HEADS.iter().zip(row.counters) {
            write!(out, " {count:>width$}", width = head.len())?;
        }
        writeln!(out)?;
    }
    Ok(())
}
