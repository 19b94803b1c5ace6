//! Output of `btrfs scrub start -B` and `btrfs scrub status`, and the same data as JSON.

use std::io::Write;

use anyhow::Result;
use buttress::scrub::{Counters, DeviceReport, Outcome, Report};
use serde_json::{Value, json};

use super::files::Affected;
use super::options::Options;
use super::record::{Record, State, device_to_json};
use crate::context::Context;
use crate::output::json::insert_name;
use crate::output::size::Units;
use crate::output::terminal;
use crate::output::time::Clock;

/// Style of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) units: Units,
    /// Prints all counters of a scrub instead of the summary.
    pub(super) raw_counters: bool,
}

/// A scrub or one device's part of it, to print as a block.
struct Block<'a> {
    record: &'a Record,
    counters: Counters,
    to_scrub: u64,
}

impl<'a> Block<'a> {
    fn of_all(record: &'a Record) -> Self {
        let report = record.report();
        Self {
            record,
            counters: report.totals(),
            to_scrub: report.to_scrub(),
        }
    }

    fn of_device(record: &'a Record, device: &DeviceReport) -> Self {
        Self {
            record,
            counters: device.counters,
            to_scrub: device.to_scrub,
        }
    }

    fn print(&self, out: &mut dyn Write, style: Style) -> Result<()> {
        let clock = Clock::system();
        let record = self.record;
        let (name, at) = match record.resumed {
            Some(at) => ("Scrub resumed:   ", at),
            None => ("Scrub started:   ", record.started),
        };
        writeln!(out, "{name} {}", clock.long_date(at))?;
        writeln!(out, "Status:           {}", record.state.name())?;
        let seconds = record.milliseconds.checked_div(1000).unwrap_or(0);
        writeln!(out, "Duration:         {}", duration(seconds))?;
        if style.raw_counters {
            for (name, value) in self.counters.fields() {
                writeln!(out, "\t{name}: {value}")?;
            }
            // btrfs-progs has no counter of missed copies.
            if self.counters.missed > 0 {
                writeln!(out, "\tmissed: {}", self.counters.missed)?;
            }
            return Ok(());
        }
        self.print_progress(out, style, seconds, &clock)?;
        self.print_summary(out)
    }

    /// Returns the rate in bytes per second of running time.
    fn rate(&self) -> u64 {
        let bytes = u128::from(self.counters.bytes_scrubbed());
        let milliseconds = u128::from(self.record.milliseconds.max(1));
        let rate = bytes.saturating_mul(1000).checked_div(milliseconds);
        u64::try_from(rate.unwrap_or(0)).unwrap_or(u64::MAX)
    }

    fn print_progress(&self, out: &mut dyn Write, style: Style, seconds: u64, clock: &Clock) -> Result<()> {
        let done = self.counters.bytes_scrubbed();
        let rate = self.rate();
        if self.record.state != State::Finished {
            let left = self.to_scrub.saturating_sub(done);
            let seconds_left = left.checked_div(rate).unwrap_or(0);
            if self.record.state == State::Running && rate > 0 {
                writeln!(out, "Time left:        {}", duration(seconds_left))?;
                let begun = self.record.resumed.unwrap_or(self.record.started);
                let end = begun
                    .saturating_add_unsigned(seconds)
                    .saturating_add_unsigned(seconds_left);
                writeln!(out, "ETA:              {}", clock.long_date(end))?;
            }
        }
        writeln!(out, "Total to scrub:   {}", style.units.text(self.to_scrub))?;
        if self.record.state != State::Finished {
            let percent = hundredths(done, self.to_scrub);
            writeln!(
                out,
                "Bytes scrubbed:   {}  ({}.{:02}%)",
                style.units.text(done),
                percent.checked_div(100).unwrap_or(0),
                percent.checked_rem(100).unwrap_or(0)
            )?;
        }
        writeln!(out, "Rate:             {}/s", style.units.text(rate))?;
        Ok(())
    }

    fn print_summary(&self, out: &mut dyn Write) -> Result<()> {
        let counters = &self.counters;
        if counters.missed > 0 {
            writeln!(
                out,
                "Missed:           {} (in commits that a device missed)",
                counters.missed
            )?;
        }
        if counters.errors() == 0 && counters.unverified_errors == 0 {
            writeln!(out, "Error summary:    no errors found")?;
            return Ok(());
        }
        write!(out, "Error summary:   ")?;
        for (name, count) in [
            ("read", counters.read_errors),
            ("super", counters.super_errors),
            ("verify", counters.verify_errors),
            ("csum", counters.csum_errors),
        ] {
            if count > 0 {
                write!(out, " {name}={count}")?;
            }
        }
        writeln!(out)?;
        writeln!(out, "  Corrected:      {}", counters.corrected_errors)?;
        writeln!(out, "  Uncorrectable:  {}", counters.uncorrectable_errors)?;
        writeln!(out, "  Unverified:     {}", counters.unverified_errors)?;
        Ok(())
    }
}

/// Formats a duration as hours, minutes, seconds.
fn duration(seconds: u64) -> String {
    let minutes = seconds.checked_div(60).unwrap_or(0);
    let (hours, minutes) = (
        minutes.checked_div(60).unwrap_or(0),
        minutes.checked_rem(60).unwrap_or(0),
    );
    let seconds = seconds.checked_rem(60).unwrap_or(0);
    format!("{hours}:{minutes:02}:{seconds:02}")
}

/// Returns the ratio of `part` to `whole` in hundredths of a percent.
fn hundredths(part: u64, whole: u64) -> u64 {
    let share = u128::from(part)
        .saturating_mul(10_000)
        .checked_div(u128::from(whole))
        .unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Prints the record: all devices together, or each device.
pub(super) fn print_record(
    out: &mut dyn Write,
    record: &Record,
    per_device: bool,
    style: Style,
) -> Result<()> {
    if !per_device {
        return Block::of_all(record).print(out, style);
    }
    let what = match record.state {
        State::Running => "status",
        _ => "history",
    };
    for device in &record.devices {
        let name = terminal::shown(&device.name);
        writeln!(out, "\nScrub device {name} (id {}) {what}", device.device)?;
        Block::of_device(record, device).print(out, style)?;
    }
    Ok(())
}

/// Prints the result of a scrub in the foreground.
pub(super) fn print_end(
    context: &Context,
    options: &Options,
    record: &Record,
    report: &Report,
    damages: &[Affected],
    command: &str,
) -> Result<()> {
    if context.json() {
        let document = as_json(record, Some((report, damages)));
        return context.print_json(&format!("scrub-{command}"), document);
    }
    if context.globals().quiet {
        return Ok(());
    }
    let style = Style {
        units: options.units.units(),
        raw_counters: options.raw_counters,
    };
    let mut out = context.stdout();
    let what = match record.state {
        State::Finished => "done",
        _ => "canceled",
    };
    if options.per_device {
        for device in &record.devices {
            let name = terminal::shown(&device.name);
            writeln!(out, "\nScrub device {name} (id {}) {what}", device.device)?;
            Block::of_device(record, device).print(&mut out, style)?;
        }
    } else {
        writeln!(out, "scrub {what} for {}", record.uuid)?;
        Block::of_all(record).print(&mut out, style)?;
    }
    print_damages(context, &mut out, report, damages)?;
    out.flush()?;
    Ok(())
}

fn print_damages(
    context: &Context,
    out: &mut dyn Write,
    report: &Report,
    damages: &[Affected],
) -> Result<()> {
    for Affected { damage, paths } in damages {
        out.write_all(&context.printable(damage.to_string().as_bytes()))?;
        writeln!(out)?;
        for path in paths {
            out.write_all(b"\tfile: ")?;
            out.write_all(&context.printable(path))?;
            writeln!(out)?;
        }
    }
    if report.damages_unlisted > 0 {
        writeln!(out, "and {} more errors", report.damages_unlisted)?;
    }
    for part in &report.unwalked {
        out.write_all(&context.printable(part.as_bytes()))?;
        writeln!(out)?;
    }
    Ok(())
}

/// Returns the record as a document, with the damaged ranges of a scrub that just ended.
pub(super) fn as_json(record: &Record, ended: Option<(&Report, &[Affected])>) -> Value {
    let block = Block::of_all(record);
    let devices: Vec<Value> = record.devices.iter().map(device_to_json).collect();
    let mut totals = serde_json::Map::new();
    for (name, value) in block.counters.fields() {
        totals.insert(name.to_owned(), json!(value));
    }
    totals.insert("missed".to_owned(), json!(block.counters.missed));
    let mut document = json!({
        "uuid": record.uuid.to_string(),
        "status": record.state.name(),
        "started": record.started,
        "resumed": record.resumed,
        "duration_seconds": record.milliseconds.checked_div(1000),
        "bytes_to_scrub": block.to_scrub,
        "bytes_scrubbed": block.counters.bytes_scrubbed(),
        "rate": block.rate(),
        "totals": totals,
        "devices": devices,
    });
    if let (Some(object), Some((report, damages))) = (document.as_object_mut(), ended) {
        let listed: Vec<Value> = damages.iter().map(damage_as_json).collect();
        object.insert("damages".to_owned(), listed.into());
        object.insert("damages_unlisted".to_owned(), json!(report.damages_unlisted));
        object.insert("not_scrubbed".to_owned(), json!(report.unwalked));
    }
    document
}

fn damage_as_json(affected: &Affected) -> Value {
    let damage = &affected.damage;
    let tried = match &damage.outcome {
        Outcome::Uncorrectable { tried } => tried.clone(),
        _ => Vec::new(),
    };
    let files: Vec<Value> = affected
        .paths
        .iter()
        .map(|path| {
            let mut object = serde_json::Map::new();
            insert_name(&mut object, "path", path);
            Value::Object(object)
        })
        .collect();
    json!({
        "devid": damage.device.get(),
        "device": *damage.device_name,
        "physical": damage.physical.get(),
        "logical": damage.logical.get(),
        "length": damage.length.get(),
        "part": damage.part.name(),
        "cause": damage.cause.name(),
        "reason": damage.cause.to_string(),
        "outcome": damage.outcome.name(),
        "tried": tried,
        "files": files,
    })
}
