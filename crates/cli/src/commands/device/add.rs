//! `buttress device add NEW… IMAGE`: adds devices to a volume.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::{Device, DeviceOptions, NewDevice, WritableVolume};
use buttress_exact::Exact as _;
use clap::Args;
use serde_json::{Value, json};

use super::members::{given, refuse_same};
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::Uses;
use crate::identity::Identity;
use crate::manual::{Example, example};
use crate::mounted::passed::{FILES_MAX, Passed, refused_own};
use crate::mounted::places;
use crate::opening::Mount;
use crate::output::size::Units;
use crate::output::terminal;
use crate::table::{MountView, Subcommand};

/// Add devices to a volume
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
    /// The new images or devices, then an image or device of the volume, or a path on a mount
    #[arg(value_name = "NEW… IMAGE", required = true)]
    places: Vec<OsString>,
}

impl Subcommand for Add {
    const NAME: &'static str = "add";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress device add second.img first.img",
            "Adds second.img to the volume on first.img",
        ),
        example(
            "buttress device add -f --device second.img third.img first.img",
            "Adds a third device, and overwrites its content",
        ),
        example(
            "buttress device add /dev/sdc /mnt",
            "Adds a device to a mounted volume",
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
        let image = context.target(image).image;
        if let Some(mount) = context.mount() {
            return self.add_on_mount(context, &mount, &image, new);
        }
        let paths: Vec<PathBuf> = new.iter().map(PathBuf::from).collect();
        let given = given(context, &image);
        refuse_same(&paths, &given)?;
        pass(context, &image, new)?;
        let writing = context.open_for_writing(&image)?;
        let devices = self.open_new(context, writing.volume(), &paths, given.len())?;
        let mut added = Vec::new();
        for device in devices {
            added.push(self.add(writing.volume(), device)?);
        }
        writing.commit()?;
        print(context, &added)?;
        Ok(Outcome::Done)
    }
}

/// A device that joined: its id, name and size in bytes.
type Added = (u64, String, u64);

/// If the volume is mounted, opens the new devices for its server, and hands the command on.
fn pass(context: &Context, image: &Path, new: &[OsString]) -> Result<()> {
    let Some(below) = places::find(image) else {
        return Ok(());
    };
    if new.len() > FILES_MAX {
        return Err(usage(format_args!(
            "too many devices for one command on a mount (found {}, expected at most {FILES_MAX})",
            new.len()
        )));
    }
    for word in new {
        context.pass(Passed::open(word, &below, context.sources())?);
    }
    context.hand_on(image)
}

impl Add {
    const fn options(&self) -> NewDevice {
        NewDevice {
            overwrites: self.force,
            discards: !self.nodiscard,
        }
    }

    fn add(&self, volume: &WritableVolume, device: Device) -> Result<Added> {
        let (name, size) = (device.name().to_owned(), device.size_bytes());
        let id = volume.add_device(device, self.options());
        let id = id.with_context(|| name.clone())?;
        Ok((id.get(), name, size))
    }

    /// Adds devices that the client opened to the volume that this process serves.
    fn add_on_mount(
        &self,
        context: &Context,
        mount: &Mount,
        image: &Path,
        new: &[OsString],
    ) -> Result<Outcome> {
        let writing = context.open_for_writing(image)?;
        if mount.images.has_overlays {
            return Err(anyhow!("{} is mounted with --overlay", image.display()))
                .context(Advice::new("unmount it, and add the device with --overlay"));
        }
        let mut devices = Vec::new();
        for word in new {
            let Passed { name, locked } = mount.received.take(word)?;
            let identity = Identity::of_open(&locked.file);
            if identity.is_some_and(|identity| identity.is_on(&mount.device)) {
                return Err(refused_own(&name.path.display().to_string()));
            }
            let file = locked.file.try_clone()?;
            let device = Device::from_locked(&name.path, locked)?;
            self.check(writing.volume(), &device)?;
            devices.push((device, name.path, file));
        }
        let mut added = Vec::new();
        for (device, path, file) in devices {
            added.push(self.add(writing.volume(), device)?);
            mount.images.joined(path, file)?;
        }
        writing.commit()?;
        print(context, &added)?;
        Ok(Outcome::Done)
    }

    /// Refuses an unsuitable device, with advice if only its content is in the way.
    fn check(&self, volume: &WritableVolume, device: &Device) -> Result<()> {
        let overwriting = NewDevice {
            overwrites: true,
            ..self.options()
        };
        volume.check_new_device(device, overwriting)?;
        let checked = volume.check_new_device(device, self.options());
        checked.context(Advice::new("to overwrite it, give -f"))
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
            self.check(volume, &device)?;
            Ok(device)
        };
        new.iter().enumerate().map(open).collect()
    }
}

fn print(context: &Context, added: &[Added]) -> Result<()> {
    if context.json() {
        let device = |(id, name, size): &Added| json!({ "devid": id, "device": name, "size": size });
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
