//! `buttress filesystem show IMAGE|DIRECTORY`: label, uuid and devices, in the format of `btrfs filesystem show`.

mod directory;

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result, anyhow};
use buttress::{ByteCount, Uuid};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::opening::lacks_devices;
use crate::output::json::insert_name;
use crate::output::size::UnitFlags;
use crate::output::terminal;
use crate::table::Subcommand;

/// Show the label, uuid and devices of a volume, or of all volumes in a directory of images
#[derive(Args, Debug)]
pub struct Show {
    #[command(flatten)]
    units: UnitFlags,
    /// Show the volume only if it is mounted
    #[arg(short = 'm', long)]
    mounted: bool,
    /// The image or device, or a directory of images
    #[arg(value_name = "IMAGE|DIRECTORY")]
    image: OsString,
}

impl Subcommand for Show {
    const NAME: &'static str = "show";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress filesystem show backup.img",
            "Shows the label, uuid and devices of a volume",
        ),
        example(
            "buttress filesystem show images/",
            "Lists the volumes in a directory of images, with missing devices",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        if self.mounted && context.place().is_none() {
            return Err(anyhow!("{}: no volume is mounted here", target.image.display()))
                .context(Advice::new("leave out -m to show an image that is not mounted"));
        }
        if context.place().is_none() && target.image.is_dir() {
            context.hand_on(&target.image)?;
            return directory::show(context, &target.image, self.units.units());
        }
        let volume = match context.open_volume_as_far_as_there(&target.image) {
            Ok(opened) => opened.volume().clone(),
            Err(error) if lacks_devices(&error) => {
                context.warn(format_args!("{error:#}"));
                let globals = context.globals();
                let devices = std::iter::once(&target.image).chain(&globals.devices);
                return directory::show_devices(context, devices.cloned().collect(), self.units.units());
            }
            Err(error) => return Err(error),
        };
        let info = volume.info();
        let devices = volume.devices();
        let bytes = |count: Option<ByteCount>| count.map_or(0, ByteCount::get);
        if context.json() {
            let mut object = Map::new();
            insert_name(&mut object, "label", &info.label);
            object.insert("uuid".into(), info.fsid.hyphenated().to_string().into());
            object.insert("total_devices".into(), info.device_count.into());
            object.insert("bytes_used".into(), info.used.get().into());
            let devices = devices.iter().map(|device| {
                json!({
                    "devid": device.id.get(),
                    "uuid": device.uuid.hyphenated().to_string(),
                    "size": bytes(device.size),
                    "used": bytes(device.allocated),
                    "path": device.path,
                    "missing": device.path.is_none(),
                })
            });
            object.insert("devices".into(), devices.collect());
            context.print_json("filesystem-show", Value::Array(vec![Value::Object(object)]))?;
            return Ok(Outcome::Done);
        }
        let units = self.units.units();
        let mut out = context.stdout();
        print_label(context, &mut out, &info.label, info.fsid)?;
        writeln!(
            out,
            "\tTotal devices {} FS bytes used {}",
            info.device_count,
            units.text(info.used.get())
        )?;
        for device in &devices {
            let path = terminal::shown(device.path.as_deref().unwrap_or(" MISSING"));
            writeln!(
                out,
                "\tdevid {:>4} size {} used {} path {path}",
                device.id,
                units.text(bytes(device.size)),
                units.text(bytes(device.allocated))
            )?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn print_label(context: &Context, out: &mut dyn Write, label: &[u8], fsid: Uuid) -> Result<()> {
    if label.is_empty() {
        write!(out, "Label: none ")?;
    } else {
        write!(out, "Label: '")?;
        out.write_all(&context.printable(label))?;
        write!(out, "' ")?;
    }
    writeln!(out, " uuid: {}", fsid.hyphenated())?;
    Ok(())
}
