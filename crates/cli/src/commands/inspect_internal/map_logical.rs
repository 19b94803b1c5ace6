//! `buttress inspect-internal map-logical`: the places of extents on the devices.
//!
//! Output and flags are those of `btrfs-map-logical`. For RAID5 and RAID6, the mirrors 2 and 3 are
//! the places of the parity. Unlike there, the range may begin outside of an extent.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::salvage::identify;
use buttress::{ByteCount, CopyPlace, Device, DeviceId, Logical, Progress, Volume};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::table::Subcommand;

/// Print the places of a logical address on the devices
#[derive(Args, Debug)]
pub struct MapLogical {
    /// The logical address
    #[arg(short = 'l', value_name = "OFFSET")]
    logical: u64,
    /// The copy that -o writes, from 1
    #[arg(short = 'c', value_name = "COPY", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    copy: u32,
    /// Write the bytes of one copy to this file
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// The number of bytes [default: the size of a tree block]
    #[arg(
        short = 'b',
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true
    )]
    bytes: u64,
    /// The image or device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// The bytes that are written at once.
const PART_BYTES: usize = 1 << 20;

impl Subcommand for MapLogical {
    const NAME: &'static str = "map-logical";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress inspect-internal map-logical -l 30408704 backup.img",
            "Prints the devices and offsets of an address from a kernel message",
        ),
        example(
            "buttress inspect-internal map-logical -l 30408704 -c 2 -o block backup.img",
            "Writes the second copy of a tree block to a file",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let devices = context.open_devices(std::slice::from_ref(&self.device))?;
        let volume = context
            .volume_options()
            .for_inspection()
            .open_devices(devices.clone())?;
        let start = Logical::new(self.logical);
        let length = match self.bytes {
            0 => volume.info().node_bytes,
            bytes => ByteCount::new(bytes),
        };
        let end = start
            .checked_add(length)
            .context("the range ends after the last address")?;
        let mut copies = Vec::new();
        for extent in volume.extents(start, length)? {
            let (from, to) = (extent.start.max(start), extent.end.min(end));
            copies.extend(volume.copies(from, to.distance_from(from)));
        }
        if copies.is_empty() {
            return Err(anyhow!(
                "{}: no extent in the range {start} to {end}",
                self.device.display()
            ));
        }
        if let Some(path) = &self.output {
            self.write(context, path, &copies, &volume, &devices)?;
        }
        print(context, &copies, &volume)?;
        Ok(Outcome::Done)
    }
}

impl MapLogical {
    fn write(
        &self,
        context: &Context,
        path: &std::path::Path,
        copies: &[CopyPlace],
        volume: &Volume,
        devices: &[Device],
    ) -> Result<()> {
        let identities = identify(devices, &Progress::new())?;
        let fsid = volume.info().fsid;
        let known = identities.iter().find(|identity| identity.fsid == fsid);
        let members = known
            .map(|identity| identity.devices.as_slice())
            .unwrap_or_default(); // Clamp: without a superblock, every device is missing.
        let device_of = |id: DeviceId| {
            let pairs = members.iter().zip(devices);
            let mut found =
                pairs.filter(|(member, _)| member.member.is_some_and(|(_, known, _)| known == id));
            found.next().map(|(_, device)| device)
        };
        let mut file = context.create_output(path)?;
        let wanted = copies.iter().filter(|place| place.copy == self.copy);
        let mut is_there = false;
        for place in wanted {
            is_there = true;
            let id = place.device;
            let device = device_of(id).with_context(|| format!("device {id} is missing"))?;
            let (mut at, mut left) = (place.physical.get(), place.length.get());
            while left > 0 {
                let part = usize::try_from(left).map_or(PART_BYTES, |left| left.min(PART_BYTES));
                file.write_all(&device.read(at, part)?)?;
                at = at.checked_add(part as u64).context("the end of the device")?;
                left = left.checked_sub(part as u64).context("the end of the range")?;
            }
        }
        if !is_there {
            return Err(anyhow!("the address has no copy {}", self.copy));
        }
        file.finish()?;
        Ok(())
    }
}

fn print(context: &Context, copies: &[CopyPlace], volume: &Volume) -> Result<()> {
    let devices = volume.devices();
    let name_of = |id: DeviceId| {
        let device = devices.iter().find(|device| device.id == id);
        let name = device.and_then(|device| device.path.clone());
        name.unwrap_or_else(|| format!("missing, devid {id}"))
    };
    if context.json() {
        let values = copies.iter().map(|place| {
            json!({
                "mirror": place.copy,
                "logical": place.logical.get(),
                "physical": place.physical.get(),
                "bytes": place.length.get(),
                "devid": place.device.get(),
                "device": name_of(place.device),
            })
        });
        return context.print_json(MapLogical::NAME, Value::Array(values.collect()));
    }
    let mut out = context.stdout();
    for place in copies {
        writeln!(
            out,
            "mirror {} logical {} physical {} device {}",
            place.copy,
            place.logical,
            place.physical,
            terminal::shown(name_of(place.device))
        )?;
    }
    out.flush()?;
    Ok(())
}
