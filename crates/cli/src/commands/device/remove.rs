//! `buttress device remove DEVICE… IMAGE`: removes devices from a volume.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use buttress::DeviceInfo;
use clap::Args;
use serde_json::{Value, json};

use super::members::find;
use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::{MountView, Subcommand};

/// Remove devices from a volume
///
/// The command moves the content of the device to other devices, and removes the device from the
/// volume. The superblocks of the device are wiped last. Give the image or block device, its id, or
/// (with --degraded) `missing` for the first missing device. A crash leaves the volume either with
/// or without the device.
#[derive(Args, Debug)]
pub(super) struct Remove {
    /// For compatibility: the command has exclusive use of the volume
    #[arg(long, hide = true)]
    enqueue: bool,
    /// Devices to remove, then an image or device of the volume, or a path on a mount
    #[arg(value_name = "DEVICE… IMAGE", required = true)]
    places: Vec<OsString>,
}

impl Subcommand for Remove {
    const NAME: &'static str = "remove";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress device remove second.img --device second.img first.img",
            "Moves the content of second.img to first.img, and removes second.img from the volume",
        ),
        example(
            "buttress device remove --degraded missing first.img",
            "Removes a missing device from the volume",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        remove(context, &self.places)
    }
}

/// Remove devices from a volume, like `device remove`
#[derive(Args, Debug)]
pub(super) struct Delete {
    /// Devices to remove, then an image or device of the volume, or a path on a mount
    #[arg(value_name = "DEVICE… IMAGE", required = true)]
    places: Vec<OsString>,
}

impl Subcommand for Delete {
    const NAME: &'static str = "delete";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress device delete 2 --device second.img first.img",
        "Removes device 2 from the volume",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        remove(context, &self.places)
    }
}

fn remove(context: &Context, places: &[OsString]) -> Result<Outcome> {
    let Some((image, words)) = places.split_last().filter(|(_, words)| !words.is_empty()) else {
        return Err(usage(
            "give at least one device, then an image or device of the volume",
        ));
    };
    let image = context.target(image).image;
    if words.iter().any(|word| word == OsStr::new("cancel")) {
        return Err(anyhow!(
            "{}: no removal of a device is in progress; to stop a running removal, press Ctrl-C",
            image.display()
        ));
    }
    let writing = context.open_for_writing(&image)?;
    let devices = writing.volume().devices();
    let mut going: Vec<DeviceInfo> = Vec::new();
    for word in words {
        let device = find(context, word, &devices).with_context(|| image.display().to_string())?;
        if going.iter().any(|other| other.id == device.id) {
            return Err(anyhow!("{}: given twice", word.display()));
        }
        going.push(device);
    }
    let progress = context.progress();
    let _job = context.begin_job(&progress)?;
    let cancelling = Cancelling::start(&progress)?;
    let watch = Watch::start(context, "device-remove", progress.clone());
    let mut removed = Vec::new();
    let ended = going.iter().try_for_each(|device| {
        writing.volume().remove_device(device.id, &progress)?;
        removed.push(device);
        if let (Some(mount), Some(path)) = (context.mount(), &device.path) {
            mount.images.left(Path::new(path));
        }
        Ok::<(), buttress::Error>(())
    });
    watch.end_as(ended.is_ok());
    drop(cancelling);
    if ended.is_ok() || !context.json() {
        print(context, &removed)?;
    }
    ended.with_context(|| image.display().to_string())?;
    Ok(Outcome::Done)
}

fn print(context: &Context, removed: &[&DeviceInfo]) -> Result<()> {
    if context.json() {
        let device = |device: &&DeviceInfo| json!({ "devid": device.id.get(), "device": device.path });
        let devices: Value = removed.iter().map(device).collect();
        return context.print_json("device-remove", devices);
    }
    if context.globals().quiet {
        return Ok(());
    }
    let mut out = context.stdout();
    for device in removed {
        let name = device.path.as_deref().map_or("missing", |path| path);
        writeln!(
            out,
            "device {} ({}): removed",
            device.id.get(),
            terminal::shown(name)
        )?;
    }
    out.flush()?;
    Ok(())
}
