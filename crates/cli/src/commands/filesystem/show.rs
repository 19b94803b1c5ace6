//! `buttress filesystem show IMAGE|DIRECTORY`: label, uuid and devices, in the format of `btrfs filesystem show`.

mod directory;

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::unstable::format::Superblock;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::opening::lacks_devices;
use crate::output::json::insert_name;
use crate::output::size::UnitFlags;
use crate::output::terminal;
use crate::table::Subcommand;

/// Show label, uuid and devices of a volume, or which files of a directory belong together
#[derive(Args, Debug)]
pub struct Show {
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device, or a directory whose files are looked through
    #[arg(value_name = "IMAGE|DIRECTORY")]
    image: OsString,
}

impl Subcommand for Show {
    const NAME: &'static str = "show";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress filesystem show backup.img",
            "Shows label, uuid and devices",
        ),
        example(
            "buttress filesystem show images/",
            "Shows which of the images are devices of which volume, and where some are missing",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        if context.place().is_none() && target.image.is_dir() {
            context.hand_on(&target.image)?;
            return directory::show(context, &target.image, self.units.units());
        }
        let filesystem = match context.open_volume_as_far_as_there(&target.image) {
            Ok(opened) => opened.filesystem,
            Err(error) if lacks_devices(&error) => {
                context.warn(format_args!("{error:#}"));
                let globals = context.globals();
                let devices = std::iter::once(&target.image).chain(&globals.devices);
                return directory::show_devices(context, devices.cloned().collect(), self.units.units());
            }
            Err(error) => return Err(error),
        };
        let superblock = filesystem.superblock();
        let mut devices = filesystem.volume().devices();
        devices.sort_by_key(|device| device.id());
        let sizes = |item: Option<buttress::unstable::format::DeviceItem>| {
            item.map_or((0, 0), |item| (item.total_bytes.get(), item.bytes_used.get()))
        };
        if context.json() {
            let mut object = Map::new();
            insert_name(&mut object, "label", &superblock.label);
            object.insert("uuid".into(), superblock.fsid.hyphenated().to_string().into());
            object.insert("total_devices".into(), superblock.num_devices.into());
            object.insert("bytes_used".into(), superblock.bytes_used.get().into());
            let devices = devices.iter().map(|device| {
                let (size, used) = sizes(device.item());
                let path = device.device().map(|opened| opened.name().to_owned());
                json!({
                    "devid": device.id().get(),
                    "uuid": device.uuid().hyphenated().to_string(),
                    "size": size,
                    "used": used,
                    "path": path,
                    "missing": path.is_none(),
                })
            });
            object.insert("devices".into(), devices.collect());
            context.print_json("filesystem-show", Value::Array(vec![Value::Object(object)]))?;
            return Ok(Outcome::Done);
        }
        let units = self.units.units();
        let mut out = context.stdout();
        print_label(context, &mut out, &superblock)?;
        writeln!(
            out,
            "\tTotal devices {} FS bytes used {}",
            superblock.num_devices,
            units.text(superblock.bytes_used.get())
        )?;
        for device in &devices {
            let (size, used) = sizes(device.item());
            let path = device.device().map_or(" MISSING", |opened| opened.name());
            let path = terminal::shown(path);
            writeln!(
                out,
                "\tdevid {:>4} size {} used {} path {path}",
                device.id(),
                units.text(size),
                units.text(used)
            )?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn print_label(context: &Context, out: &mut dyn Write, superblock: &Superblock) -> Result<()> {
    if superblock.label.is_empty() {
        write!(out, "Label: none ")?;
    } else {
        write!(out, "Label: '")?;
        out.write_all(&context.printable(&superblock.label))?;
        write!(out, "' ")?;
    }
    writeln!(out, " uuid: {}", superblock.fsid.hyphenated())?;
    Ok(())
}
