//! `buttress filesystem shrink IMAGE`: the smallest image that holds the volume.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress::{ByteCount, DeviceInfo, ErrorKind, ShrinkSummary};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
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
/// meanwhile. If the command is interrupted, the volume stays whole, and the next run continues. An
/// interrupted command returns the image file to its size, unless much content is past this size.
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
        let summary = ended.with_context(name);
        let command = format!("buttress filesystem shrink {}", image.display());
        let summary = summary.map_err(|error| advised(error, &command, &devices, &volume.devices()))?;
        self.print(context, &image, &devices, &summary)
    }
}

/// Adds to an error which devices are larger than before, and the command that continues.
pub(super) fn advised(
    error: anyhow::Error,
    command: &str,
    before: &[DeviceInfo],
    after: &[DeviceInfo],
) -> anyhow::Error {
    let size_of = |device: &DeviceInfo| device.device_size.max(device.size);
    let grown = after.iter().filter_map(|device| {
        let earlier = before.iter().find(|earlier| earlier.id == device.id)?;
        let (earlier, now) = (size_of(earlier)?, size_of(device)?);
        let text = |bytes: ByteCount| Units::default().text(bytes.get());
        (now > earlier).then(|| format!("{} has {} (before: {})", device.name, text(now), text(earlier)))
    });
    let grown: Vec<String> = grown.collect();
    let is_cancelled = error.downcast_ref().map(buttress::Error::kind) == Some(ErrorKind::Cancelled);
    if !grown.is_empty() {
        return error.context(Advice(format!(
            "{}, because content is past its earlier end; the volume is whole. To continue and to cut it, run `{command}`",
            grown.join(", ")
        )));
    }
    match is_cancelled {
        true => error.context(Advice(format!(
            "the volume is whole and no larger than before; to continue, run `{command}`"
        ))),
        false => error,
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
