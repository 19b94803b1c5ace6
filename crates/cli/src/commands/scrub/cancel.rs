//! `buttress scrub cancel IMAGE`: asks the scrubbing process to stop, and waits for its end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use buttress::Uuid;
use clap::Args;
use serde_json::json;

use super::record::{Record, State};
use super::{NOTHING, STATUS_ENDING, described, online};
use crate::background::{self, status_file};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::table::Subcommand;
use crate::target::Target;

/// Stop a running scrub; `scrub resume` continues it
#[derive(Args, Debug)]
pub(super) struct Cancel {
    /// The status file, if it is not IMAGE.scrub-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// The image or device, or the mounted directory
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Cancel {
    const NAME: &'static str = "cancel";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress scrub cancel backup.img",
        "Stops a running scrub",
    )];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "The scrub was stopped"),
        (1, "The scrub could not be stopped"),
        (2, "No scrub is running, or the command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if let Some(online) = online::find(context, &self.image)? {
            return match online.cancel() {
                Some(record) => say_cancelled(context, record.uuid),
                None => not_running(context, Path::new(&self.image), online.uuid()),
            };
        }
        let image = Target::parse(&self.image).image;
        let path = status_file(
            &described(context, &image),
            self.status_file.as_deref(),
            STATUS_ENDING,
        )?;
        let running = Record::find(&path)?.filter(|record| record.state == State::Running);
        let Some(record) = running else {
            // Open the volume, so that a missing volume gives the usual error.
            let filesystem = context.open_for_one_pass(&image)?;
            return not_running(context, &image, filesystem.info().fsid);
        };
        background::stop(record.process)?;
        say_cancelled(context, record.uuid)
    }
}

fn not_running(context: &Context, image: &Path, uuid: Uuid) -> Result<Outcome> {
    context.warn(format_args!(
        "scrub cancel failed on {}: not running",
        image.display()
    ));
    if context.json() {
        let document = json!({ "uuid": uuid.to_string(), "cancelled": false });
        context.print_json("scrub-cancel", document)?;
    }
    Ok(Outcome::Code(NOTHING))
}

fn say_cancelled(context: &Context, uuid: Uuid) -> Result<Outcome> {
    let document = json!({ "uuid": uuid.to_string(), "cancelled": true });
    context.print_answer("scrub-cancel", document, format_args!("scrub cancelled"))?;
    Ok(Outcome::Done)
}
