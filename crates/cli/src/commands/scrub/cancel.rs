//! `buttress scrub cancel IMAGE`: asks the process that scrubs to stop, and waits until it did.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::NOTHING;
use super::record::{self, Record, State};
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, ExitCode, example};
use crate::table::Subcommand;
use crate::target::Target;

/// Stop a scrub that is running; `scrub resume` goes on with it
#[derive(Args, Debug)]
pub(super) struct Cancel {
    /// The status file, if it is not IMAGE.scrub-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// How often it is looked whether the scrub has stopped.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Subcommand for Cancel {
    const NAME: &'static str = "cancel";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress scrub cancel backup.img",
        "Stops a scrub that is running, so that it can be resumed",
    )];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "The scrub was stopped"),
        (1, "It could not be stopped"),
        (2, "No scrub is running, or the command line is wrong"),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = Target::parse(&self.image).image;
        let path = record::path_of(&image, self.status_file.as_deref())?;
        let running = Record::load(&path)?.filter(|record| record.state == State::Running);
        let Some(record) = running else {
            // Opened, so that a volume that is not there is told as everywhere.
            let filesystem = context.open_for_one_pass(&image)?;
            let uuid = filesystem.superblock().fsid;
            context.warn(format_args!(
                "scrub cancel failed on {}: not running",
                image.display()
            ));
            if context.json() {
                context.print_json(
                    "scrub-cancel",
                    json!({ "uuid": uuid.to_string(), "cancelled": false }),
                )?;
            }
            return Ok(Outcome::Code(NOTHING));
        };
        let (process, _) = record.process;
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        let process = process.context("the status file names no process")?;
        kill_process(process, Signal::INT).context("asking the scrub to stop")?;
        while record.is_alive() {
            std::thread::sleep(LOOK_EVERY);
        }
        if context.json() {
            let document = json!({ "uuid": record.uuid.to_string(), "cancelled": true });
            context.print_json("scrub-cancel", document)?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            writeln!(out, "scrub cancelled")?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
