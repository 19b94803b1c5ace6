//! `buttress rescue fix-device-size IMAGE`: repairs recorded sizes that Linux refuses.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::{DeviceOptions, StructureRepairs, Volume};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;
use crate::target::Target;
use crate::writing::Writing;

/// Set the recorded sizes of devices, and their total, to what the devices have
///
/// All devices must be present. If a device has content past its end, the command changes nothing.
#[derive(Args, Debug)]
pub struct FixDeviceSize {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for FixDeviceSize {
    const NAME: &'static str = "fix-device-size";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress rescue fix-device-size backup.img",
        "Repairs a total size that Linux refuses",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let name = || target.image.display().to_string();
        let devices = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        let opened = context.open_volume_with(&target.image, &devices)?;
        let writing = Writing::new(opened, Volume::options().fixes_sizes(true));
        let writing = writing.with_context(|| format!("opening {} for writing", name()))?;
        let fixes = StructureRepairs::of(writing.volume())
            .fix_device_sizes()
            .with_context(name)?;
        writing.commit()?;
        if context.json() {
            let fixed = fixes.iter().map(|fix| {
                let device = fix.device.map(buttress::DeviceId::get);
                json!({ "devid": device, "old": fix.old.get(), "new": fix.new.get() })
            });
            let mut object = target.as_json();
            object.insert("fixed".to_owned(), fixed.collect());
            context.print_json("rescue-fix-device-size", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        if context.globals().quiet {
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        for fix in &fixes {
            let (old, new) = (fix.old.get(), fix.new.get());
            match fix.device {
                Some(id) => writeln!(
                    out,
                    "Fixed device size for devid {id}, old size: {old} new size: {new}"
                )?,
                None => writeln!(out, "Fixed super total bytes, old size: {old} new size: {new}")?,
            }
        }
        let line = match fixes.is_empty() {
            true => "No device size related problem found",
            false => "Fixed unaligned/mismatched total_bytes for super block and device items",
        };
        writeln!(out, "{line}")?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
