//! `buttress filesystem shrink IMAGE`: the smallest image that holds the volume.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress::{ByteCount, DeviceInfo, ShrinkSummary};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;

/// Shrink a volume to the smallest size that holds it
///
/// Packs the content towards the start, and truncates the image file last. The result has the free
/// space of a volume that `mkfs --shrink` makes: nearly none for data. The image file may grow
/// meanwhile. If the command is interrupted, the volume stays whole, and the next run continues.
/// With several devices, the command shrinks each.
#[derive(Args, Debug)]
pub struct Shrink {
    /// Leave this much unallocated space on each device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    slack: u64,
    /// Print the new size, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Shrink {
    const NAME: &'static str = "shrink";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress filesystem shrink backup.img",
            "Makes the image as small as possible",
        ),
        example(
            "buttress filesystem shrink --slack 100M backup.img",
            "Leaves 100 MiB for later writes",
        ),
        example(
            "buttress filesystem shrink --dry-run backup.img",
            "Prints the size, and changes nothing",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let name = || image.display().to_string();
        let slack = ByteCount::new(self.slack);
        if self.dry_run {
            let opened = context.open_volume(&image)?;
            let summary = opened.volume().plan_shrink(slack).with_context(name)?;
            return self.print(context, &image, &opened.volume().devices(), &summary);
        }
        let writing = context.open_for_writing(&image)?;
        let volume = writing.volume();
        let devices = volume.devices();
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "shrink", progress.clone());
        let ended = volume.shrink(slack, &progress);
        watch.end_as(ended.is_ok());
        drop(cancelling);
        let summary = ended.with_context(name)?;
        self.print(context, &image, &devices, &summary)
    }
}

impl Shrink {
    fn print(
        &self,
        context: &Context,
        image: &Path,
        devices: &[DeviceInfo],
        summary: &ShrinkSummary,
    ) -> Result<Outcome> {
        let shown = |id| {
            let device = devices.iter().find(|device| device.id == id);
            device.map_or("", |device| device.name.as_str())
        };
        if context.json() {
            let rows: Vec<Value> = summary
                .devices
                .iter()
                .map(|device| {
                    json!({
                        "devid": device.device.get(),
                        "device": shown(device.device),
                        "old_size": device.before.get(),
                        "new_size": device.after.get(),
                    })
                })
                .collect();
            let document = json!({
                "dry_run": self.dry_run,
                "bytes_to_move": summary.moved_bytes.get(),
                "devices": rows,
            });
            context.print_json("filesystem-shrink", document)?;
            return Ok(Outcome::Done);
        }
        if context.globals().quiet {
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        let text = |bytes: ByteCount| Units::default().text(bytes.get());
        if !summary.gains() {
            let image = image.display().to_string();
            // Clamp: the sum is shown only.
            let size = summary
                .devices
                .iter()
                .fold(0_u64, |sum, device| sum.saturating_add(device.after.get()));
            writeln!(
                out,
                "{}: already as small as possible ({})",
                terminal::shown(&image),
                Units::default().text(size)
            )?;
            out.flush()?;
            return Ok(Outcome::Done);
        }
        let verb = match self.dry_run {
            true => "Would shrink",
            false => "Shrink",
        };
        for device in &summary.devices {
            writeln!(
                out,
                "{verb} device id {} ({}) from {} to {}",
                device.device.get(),
                terminal::shown(shown(device.device)),
                text(device.before),
                text(device.after)
            )?;
        }
        if self.dry_run {
            writeln!(
                out,
                "Content to move: {}, largest size meanwhile: {}",
                text(summary.moved_bytes),
                text(summary.peak_bytes)
            )?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
