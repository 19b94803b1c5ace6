//! `buttress device resync IMAGE`: brings devices that missed commits up to date.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::ByteCount;
use buttress::scrub::{ResyncOptions, Resynced};
use buttress::unstable::scrub::Resync as Job;
use buttress::unstable::writer_of;
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, ExitCode, example};
use crate::output::terminal;
use crate::progress::Watch;
use crate::resyncs::describe;
use crate::signals::Cancelling;
use crate::table::Subcommand;

/// Bring devices that missed commits up to date
///
/// An absent device misses commits. This command writes the missed extents to the device, so that
/// it takes part in all later commits. Until the job ends, the device alone is readable in its old
/// state. After an interruption, the same command continues the job. `scrub start` also does this
/// job before it scrubs, and a writable mount does it in the background.
#[derive(Args, Debug)]
pub(super) struct Resync {
    /// Limit reads of each device to this many bytes per second; 0 means no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// The image or device, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Resync {
    const NAME: &'static str = "resync";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress device resync --device second.img first.img",
        "Brings second.img up to date after first.img was written alone",
    )];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "All given devices are up to date"),
        (1, "The command failed"),
        (2, "The command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let writing = context.open_for_writing_without_resync(&image)?;
        let options = ResyncOptions {
            limit: self.limit.filter(|limit| *limit > 0).map(ByteCount::new),
            ..ResyncOptions::default()
        };
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "resync", progress.clone());
        let mount = context.place().and_then(|place| place.mount);
        let (resynced, ended) = match mount {
            Some(mount) => mount.resyncs.run(writer_of(writing.volume()), options, &progress),
            None => Job::new(writer_of(writing.volume()).clone(), options, progress).run_as_far_as_possible(),
        };
        watch.end_as(ended.is_ok());
        drop(cancelling);
        writing.commit()?;
        if ended.is_ok() || !context.json() {
            print(context, &resynced, ended.is_ok())?;
        }
        ended?;
        Ok(Outcome::Done)
    }
}

fn print(context: &Context, resynced: &Resynced, is_whole: bool) -> Result<()> {
    if context.json() {
        let device = |device: &buttress::scrub::ResyncedDevice| {
            json!({
                "device": device.name.to_string(),
                "devid": device.device.get(),
                "since_generation": device.since.get(),
                "missed_bytes": device.missed.get(),
                "written_bytes": device.written.get(),
            })
        };
        let devices: Value = resynced.devices.iter().map(device).collect();
        return context.print_json("device-resync", devices);
    }
    if context.globals().quiet {
        return Ok(());
    }
    let mut out = context.stdout();
    if resynced.devices.is_empty() && is_whole {
        writeln!(out, "all given devices are up to date")?;
    }
    for device in &resynced.devices {
        writeln!(out, "{}", terminal::shown(describe(device)))?;
    }
    out.flush()?;
    Ok(())
}
