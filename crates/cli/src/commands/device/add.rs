//! `buttress device add NEW… IMAGE`: adds devices to a volume.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::{Device, DeviceOptions, NewDevice, WritableVolume};
use buttress_exact::Exact as _;
use clap::Args;
use serde_json::{Value, json};

use super::members::{given, refuse_same};
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::output::terminal;
use crate::table::Subcommand;
use crate::target::Target;

/// Add devices to a volume that is not mounted
///
/// Each new image or device loses its content and joins the volume. New chunks use the new device;
/// existing content stays on its devices. A crash leaves the volume either with or without the new
/// device.
#[derive(Args, Debug)]
pub(super) struct Add {
    /// Overwrite a device even if it seems to contain data
    #[arg(short = 'f', long)]
    force: bool,
    /// Do not discard the blocks of a new device
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// For compatibility: the command has exclusive use of the volume
    #[arg(long, hide = true)]
    enqueue: bool,
    /// The new images or devices, then an image or device of the volume
    #[arg(value_name = "NEW… IMAGE", required = true)]
    places: Vec<OsString>,
}

impl Subcommand for Add {
    const NAME: &'static str = "add";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress device add second.img first.img",
            "Adds second.img to the volume on first.img",
        ),
        example(
            "buttress device add -f --device second.img third.img first.img",
            "Adds a third device, and overwrites its content",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let Some((image, new)) = self.places.split_last().filter(|(_, new)| !new.is_empty()) else {
            return Err(usage(
                "give at least one new device, then an image or device of the volume",
            ));
        };
        let image = Target::parse(image).image;
        let new: Vec<PathBuf> = new.iter().map(PathBuf::from).collect();
        let given = given(context, &image);
        refuse_same(&new, &given)?;
        let writing = context.open_for_writing(&image)?;
        let devices = self.open_new(context, writing.volume(), &new, given.len())?;
        let options = self.options();
        let mut added = Vec::new();
        for device in devices {
            let (name, size) = (device.name().to_owned(), device.size_bytes());
            let id = writing
                .volume()
                .add_device(device, options)
                .with_context(|| name.clone())?;
            added.push((id.get(), name, size));
        }
        writing.commit()?;
        print(context, &added)?;
        Ok(Outcome::Done)
    }
}

impl Add {
    const fn options(&self) -> NewDevice {
        NewDevice {
            overwrites: self.force,
            discards: !self.nodiscard,
        }
    }

    /// Opens all new devices and checks them, before any of them changes.
    fn open_new(
        &self,
        context: &Context,
        volume: &WritableVolume,
        new: &[PathBuf],
        before: usize,
    ) -> Result<Vec<Device>> {
        let open = |(number, path): (usize, &PathBuf)| {
            let options = DeviceOptions {
                write: true,
                overlay: context.overlay_of(before.exact_add(number)),
                ..context.device_options()
            };
            let device = context.open_device(Path::new(path), &options);
            let device = device.map_err(|error| match path.try_exists() {
                Ok(false) => error.context(Advice(format!(
                    "to make an image file first, run `truncate -s SIZE {}`",
                    path.display()
                ))),
                _ => error,
            })?;
            let overwriting = NewDevice {
                overwrites: true,
                ..self.options()
            };
            volume.check_new_device(&device, overwriting)?;
            let checked = volume.check_new_device(&device, self.options());
            checked.context(Advice::new("to overwrite it, give -f"))?;
            Ok(device)
        };
        new.iter().enumerate().map(open).collect()
    }
}

fn print(context: &Context, added: &[(u64, String, u64)]) -> Result<()> {
    if context.json() {
        let device =
            |(id, name, size): &(u64, String, u64)| json!({ "devid": id, "device": name, "size": size });
        let devices: Value = added.iter().map(device).collect();
        return context.print_json("device-add", devices);
    }
    if context.globals().quiet {
        return Ok(());
    }
    let mut out = context.stdout();
    for (id, name, size) in added {
        let size = Units::default().text(*size);
        writeln!(out, "{}: added as device {id} ({size})", terminal::shown(name))?;
    }
    out.flush()?;
    Ok(())
}
