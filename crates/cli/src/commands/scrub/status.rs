//! `buttress scrub status IMAGE`: progress of a scrub, or the findings of the last one.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use buttress::scrub::Options as ScrubOptions;
use buttress::unstable::volume::superblocks;
use buttress::{Progress, Uuid};
use clap::Args;
use serde_json::{Value, json};

use super::printing::{Style, as_json, print_record};
use super::record::{Record, State};
use super::{STATUS_ENDING, described, online};
use crate::background::status_file;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::UnitFlags;
use crate::output::terminal;
use crate::resyncs;
use crate::table::Subcommand;
use crate::target::Target;

/// Show the progress of a scrub, or the result of the last scrub
#[derive(Args, Debug)]
pub(super) struct Status {
    /// Print statistics of each device
    #[arg(short = 'd')]
    per_device: bool,
    /// Print all counters instead of the summary
    #[arg(short = 'R')]
    raw_counters: bool,
    /// The status file, if it is not IMAGE.scrub-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device, or the mounted directory
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Status {
    const NAME: &'static str = "status";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress scrub status backup.img",
        "Shows the progress of a scrub, or the result of the last scrub",
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
            let resync = online.resync_status();
            return match online.record() {
                Some(record) => self.print(context, &record, style, &resync),
                None => {
                    let to_scrub = Some(online.bytes_to_scrub()?);
                    print_none(context, online.uuid(), to_scrub, style, &resync)
                }
            };
        }
        // Resynchronisations of an unmounted volume run only inside commands.
        let resync = resyncs::Status::default();
        let image = Target::parse(&self.image).image;
        let path = status_file(
            &described(context, &image),
            self.status_file.as_deref(),
            STATUS_ENDING,
        )?;
        let record = Record::find(&path)?;
        // During a scrub, no other process can open the volume.
        if let Some(record) = record.as_ref().filter(|record| record.state == State::Running) {
            return self.print(context, record, style, &resync);
        }
        // To report a scrub's findings, no other device is needed.
        let device = context.open_device_alone(&image)?;
        let uuid = superblocks::choose(&device)
            .with_context(|| image.display().to_string())?
            .superblock
            .fsid;
        drop(device);
        match record.filter(|record| record.uuid == uuid) {
            Some(record) => self.print(context, &record, style, &resync),
            None => {
                let filesystem = context.open_volume_as_far_as_there(&image)?.volume().clone();
                let scrub = filesystem.scrub_job(ScrubOptions::default(), &Progress::new())?;
                let devices = filesystem.devices();
                // For a missing device, the scrub does not know the bytes in use.
                let is_whole = devices.iter().all(|device| device.path.is_some());
                let to_scrub = is_whole.then(|| scrub.report().to_scrub());
                print_none(context, uuid, to_scrub, style, &resync)
            }
        }
    }
}

fn print_none(
    context: &Context,
    uuid: Uuid,
    to_scrub: Option<u64>,
    style: Style,
    resync: &resyncs::Status,
) -> Result<Outcome> {
    if context.json() {
        let document = json!({
            "uuid": uuid.to_string(), "status": "none", "bytes_to_scrub": to_scrub,
        });
        context.print_json("scrub-status", with_resync(document, resync))?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    writeln!(out, "UUID:             {uuid}")?;
    print_resync(&mut out, resync, style)?;
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

/// Adds the state of devices that missed commits to the document, if there are any.
fn with_resync(mut document: Value, resync: &resyncs::Status) -> Value {
    if resync.behind.is_empty() {
        return document;
    }
    let behind: Vec<Value> = resync
        .behind
        .iter()
        .map(|device| {
            json!({
                "devid": device.device.get(),
                "device": *device.name,
                "since_generation": device.since.get(),
            })
        })
        .collect();
    let running = resync
        .running
        .map(|(done, all)| json!({ "bytes_inspected": done.get(), "bytes_to_inspect": all.get() }));
    if let Some(object) = document.as_object_mut() {
        let resync = json!({ "behind": behind, "running": running, "error": resync.error });
        object.insert("resync".to_owned(), resync);
    }
    document
}

/// Prints the devices that missed commits, and the progress of their resynchronisation.
fn print_resync(out: &mut dyn Write, resync: &resyncs::Status, style: Style) -> Result<()> {
    for device in &resync.behind {
        let name = terminal::shown(&device.name);
        let (id, since) = (device.device, device.since);
        writeln!(
            out,
            "Behind:           {name} (device {id}) since generation {since}"
        )?;
    }
    if resync.behind.is_empty() {
        return Ok(());
    }
    match (resync.running, &resync.error) {
        (Some((done, all)), _) if all.get() > 0 => {
            let (done, all) = (style.units.text(done.get()), style.units.text(all.get()));
            writeln!(out, "Resync:           running, {done} of {all} inspected")?;
        }
        (Some(_), _) => writeln!(out, "Resync:           running, compares extents")?,
        (None, Some(error)) => writeln!(out, "Resync:           failed: {}", terminal::shown(error))?,
        (None, None) => writeln!(out, "Resync:           not running")?,
    }
    Ok(())
}

impl Status {
    fn print(
        &self,
        context: &Context,
        record: &Record,
        style: Style,
        resync: &resyncs::Status,
    ) -> Result<Outcome> {
        if context.json() {
            context.print_json("scrub-status", with_resync(as_json(record, None), resync))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        writeln!(out, "UUID:             {}", record.uuid)?;
        print_resync(&mut out, resync, style)?;
        print_record(&mut out, record, self.per_device, style)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
