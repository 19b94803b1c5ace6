//! `buttress tour [DIRECTORY]`: every main job in turn, with what each did and how long it took.
//!
//! With a directory, it makes a volume in a sparse file: it changes files, takes snapshots,
//! deletes, and checks (`making`). The second part opens the volume as a reader, shows and sends
//! it, reads it with a corrupt copy, and scrubs it (`steps`, `scrubbing`). At its end, the tour
//! removes the file, except with `--keep`. With an image argument, the tour does only the second
//! part, and writes nothing.
//!
//! A failed step is reported, the other steps run nevertheless, and the exit code is 1.

mod making;
mod scrubbing;
mod steps;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::table::Subcommand;
use crate::target::Target;
use making::Making;
use steps::Tour;

/// Run every main job on a volume made from a directory, and show the result and time of each
#[derive(Args, Debug)]
pub struct TourCommand {
    /// The directory to make a volume from (without `target` and `.git`), or a volume to inspect
    #[arg(value_name = "DIRECTORY|IMAGE", default_value = ".")]
    place: OsString,
    /// Keep the new volume for experiments
    #[arg(long)]
    keep: bool,
}

/// A completed step.
struct Made {
    name: &'static str,
    result: Result<String>,
    took: Duration,
}

impl Subcommand for TourCommand {
    const NAME: &'static str = "tour";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress tour",
            "Runs every main job on a volume made from the current directory",
        ),
        example(
            "buttress tour --keep",
            "Runs every main job, and keeps the volume for experiments",
        ),
        example(
            "buttress tour backup.img",
            "Runs the jobs that only read, on an existing volume",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut printer = Printer {
            context,
            made: Vec::new(),
        };
        let mut tour = Tour::default();
        let mut image = None;
        if Path::new(&self.place).is_dir() {
            let mut making = Making::new(Path::new(&self.place))?;
            for (name, step) in Making::steps() {
                printer.step(name, || step(&mut making))?;
            }
            tour.use_file(&making.image)?;
            image = Some(Image {
                path: making.image,
                keep: self.keep,
            });
        } else {
            if self.keep {
                return Err(usage("--keep applies only to a new volume made from a directory"));
            }
            tour.devices = context.open_devices(&[Target::parse(&self.place).image])?;
        }
        for (name, step) in tour.steps() {
            printer.step(name, || step(&mut tour))?;
        }
        printer.finish(image)
    }
}

/// Printer of completed steps.
struct Printer<'a> {
    context: &'a Context,
    made: Vec<Made>,
}

/// Widths of the columns except the last one.
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
                writeln!(out, "{:<NAME_WIDTH$} {:>TIME_WIDTH$}  result", "step", "time")?;
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

    fn finish(self, image: Option<Image>) -> Result<Outcome> {
        let kept = image.as_ref().filter(|image| image.keep);
        let kept = kept.map(|image| image.path.as_path());
        if self.context.json() {
            let steps = self.made.iter().map(|made| {
                json!({
                    "step": made.name,
                    "seconds": made.took.as_secs_f64(),
                    "ok": made.result.is_ok(),
                    "result": made.result.as_ref().ok(),
                })
            });
            let steps = Value::Array(steps.collect());
            let image = kept.map(|image| image.display().to_string());
            self.context
                .print_json("tour", json!({ "image": image, "steps": steps }))?;
        } else if let Some(image) = kept {
            let mut out = self.context.stdout();
            writeln!(
                out,
                "\nThe volume is {}. Try these commands:",
                terminal::shown(image.display())
            )?;
            for line in TO_TRY {
                writeln!(
                    out,
                    "  {}",
                    line.replace("IMAGE", &terminal::shown(image.display()))
                )?;
            }
            out.flush()?;
        } else if image.is_some() {
            let mut out = self.context.stdout();
            writeln!(
                out,
                "\nThe volume was removed; to keep it for experiments, run `buttress tour --keep`."
            )?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}

/// The created image file, removed at the end of the tour in any case, unless it is to be kept.
struct Image {
    path: PathBuf,
    keep: bool,
}

impl Drop for Image {
    fn drop(&mut self) {
        if !self.keep {
            // The file of the tour may be deleted already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Suggested commands for the remaining volume.
const TO_TRY: [&str; 6] = [
    "buttress ls -l IMAGE:/project",
    "buttress diff IMAGE:/before IMAGE:/after",
    "buttress send -p IMAGE:/before IMAGE:/after | buttress receive --dump",
    "buttress shell -w IMAGE",
    "buttress check IMAGE",
    "mount -o loop IMAGE /mnt     # the kernel's own btrfs, as root",
];
