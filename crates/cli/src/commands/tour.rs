//! `buttress tour [IMAGE]`: every main job in turn, with what each did and how long it took.
//!
//! Without an image it shows a small volume that comes with the program, made by the Linux kernel: subvolumes, a
//! snapshot, files of every kind, compressed in each way that btrfs knows (`cargo xtask tour-image`). It is
//! unpacked into memory; nothing is written anywhere.
//!
//! The steps stand in `steps`. A step that fails is told, the rest is done all the same, and the exit code is 1.

mod asset;
mod steps;

use std::ffi::OsString;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::size::Units;
use crate::table::Subcommand;
use crate::target::Target;
use steps::Tour;

/// Do every main job once on a small volume, and show what each did and how long it took
#[derive(Args, Debug)]
pub struct TourCommand {
    /// Look at this volume, not at the one that comes with the program
    #[arg(value_name = "IMAGE")]
    image: Option<OsString>,
}

/// A step that was made.
struct Made {
    name: &'static str,
    result: Result<String>,
    took: Duration,
}

impl Subcommand for TourCommand {
    const NAME: &'static str = "tour";

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut printer = Printer {
            context,
            made: Vec::new(),
        };
        let mut tour = Tour::default();
        match &self.image {
            Some(image) => tour.devices = context.open_devices(&[Target::parse(image).image])?,
            None => printer.step("unpack the volume", || {
                let (backend, packed_bytes) = asset::unpack()?;
                let units = Units::default();
                let (bytes, packed) = (units.text(backend.size_bytes()), units.text(packed_bytes));
                tour.use_memory(backend);
                Ok(format!("{bytes} out of {packed} that come with the program"))
            })?,
        }
        for (name, step) in tour.steps() {
            printer.step(name, || step(&mut tour))?;
        }
        printer.finish()
    }
}

/// Prints each step when it is done.
struct Printer<'a> {
    context: &'a Context,
    made: Vec<Made>,
}

/// Widths of the columns before the last.
const NAME_WIDTH: usize = 36;
const TIME_WIDTH: usize = 10;

impl Printer<'_> {
    fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<String>) -> Result<()> {
        let begun = Instant::now();
        let result = work();
        let made = Made {
            name,
            result,
            took: begun.elapsed(),
        };
        if !self.context.json() {
            let mut out = self.context.stdout();
            if self.made.is_empty() {
                writeln!(
                    out,
                    "{:<NAME_WIDTH$} {:>TIME_WIDTH$}  what it did",
                    "step", "time"
                )?;
            }
            let what = match &made.result {
                Ok(what) => what.clone(),
                Err(_) => "FAILED".to_owned(),
            };
            let time = format!("{:.1} ms", made.took.as_secs_f64() * 1000.0);
            writeln!(out, "{name:<NAME_WIDTH$} {time:>TIME_WIDTH$}  {what}")?;
            out.flush()?;
        }
        if let Err(error) = &made.result {
            self.context.lost(error);
        }
        self.made.push(made);
        Ok(())
    }

    fn finish(self) -> Result<Outcome> {
        if self.context.json() {
            let steps = self.made.iter().map(|made| {
                json!({
                    "step": made.name,
                    "seconds": made.took.as_secs_f64(),
                    "ok": made.result.is_ok(),
                    "result": made.result.as_ref().ok(),
                })
            });
            self.context.print_json("tour", Value::Array(steps.collect()))?;
        }
        Ok(Outcome::Done)
    }
}
