//! `buttress scrub status IMAGE`: how far a scrub is, or what the last one found.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use buttress::format::Uuid;
use buttress::fs::Progress;
use buttress::logical_volume::superblocks;
use buttress::scrub::{Options as ScrubOptions, Scrub};
use clap::Args;
use serde_json::json;

use super::printing::{Style, as_json, print_record};
use super::record::{Record, State};
use super::{STATUS_ENDING, online};
use crate::background::status_file;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::UnitFlags;
use crate::table::Subcommand;
use crate::target::Target;

/// Show how far a scrub is, or what the last one found
#[derive(Args, Debug)]
pub(super) struct Status {
    /// Print statistics of each device
    #[arg(short = 'd')]
    per_device: bool,
    /// Print all counters, not the summary
    #[arg(short = 'R')]
    raw_counters: bool,
    /// The status file, if it is not IMAGE.scrub-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device, or the directory on which it is mounted
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Status {
    const NAME: &'static str = "status";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress scrub status backup.img",
        "Shows how far a scrub is, or what the last one found",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let style = Style {
            units: self.units.units(),
            raw_counters: self.raw_counters,
        };
        if let Some(online) = online::find(context, &self.image)? {
            return match online.record() {
                Some(record) => self.print(context, &record, style),
                None => print_none(context, online.uuid(), Some(online.bytes_to_scrub()?), style),
            };
        }
        let image = Target::parse(&self.image).image;
        let path = status_file(&image, self.status_file.as_deref(), STATUS_ENDING)?;
        let record = Record::load(&path)?;
        // While it runs, the scrub alone has the volume.
        if let Some(record) = record.as_ref().filter(|record| record.state == State::Running) {
            return self.print(context, record, style);
        }
        // The findings of a scrub need no other device.
        let device = context.open_device_alone(&image)?;
        let uuid = superblocks::choose(&device)
            .with_context(|| image.display().to_string())?
            .superblock
            .fsid;
        drop(device);
        match record.filter(|record| record.uuid == uuid) {
            Some(record) => self.print(context, &record, style),
            None => {
                let filesystem = context.open_volume_as_far_as_there(&image)?.filesystem;
                let scrub = Scrub::new(&filesystem, ScrubOptions::default(), Progress::new())?;
                let devices = filesystem.volume().devices();
                // The bytes in use on a missing device are unknown.
                let is_whole = devices.iter().all(|device| device.device().is_some());
                let to_scrub = is_whole.then(|| scrub.report().to_scrub());
                print_none(context, uuid, to_scrub, style)
            }
        }
    }
}

fn print_none(context: &Context, uuid: Uuid, to_scrub: Option<u64>, style: Style) -> Result<Outcome> {
    if context.json() {
        let document = json!({
            "uuid": uuid.to_string(), "status": "none", "bytes_to_scrub": to_scrub,
        });
        context.print_json("scrub-status", document)?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    writeln!(out, "UUID:             {uuid}")?;
    writeln!(out, "\tno stats available")?;
    writeln!(
        out,
        "Total to scrub:   {}",
        to_scrub.map_or_else(
            || "unknown, devices are missing".to_owned(),
            |bytes| style.units.text(bytes)
        )
    )?;
    out.flush()?;
    Ok(Outcome::Done)
}

impl Status {
    fn print(&self, context: &Context, record: &Record, style: Style) -> Result<Outcome> {
        if context.json() {
            context.print_json("scrub-status", as_json(record, None))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        writeln!(out, "UUID:             {}", record.uuid)?;
        print_record(&mut out, record, self.per_device, style)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
