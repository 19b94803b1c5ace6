//! `buttress device usage IMAGE`: allocation on each device, in the format of `btrfs device usage`.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::unstable::filesystem_of;
use buttress::{BlockGroupFlags, DeviceId, DeviceSpace, Profile, Volume};
use clap::Args;
use serde_json::{Value, json};

use crate::commands::filesystem::{profile_name, space_of};
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::size::{ShortUnitFlags, UnitFlags, Units};
use crate::output::terminal;
use crate::table::{MountView, Subcommand};

/// Show the allocated space of each device, by type and profile
#[derive(Args, Debug)]
pub(super) struct Usage {
    #[command(flatten)]
    units: UnitFlags,
    #[command(flatten)]
    short_units: ShortUnitFlags,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Usage {
    const NAME: &'static str = "usage";
    const ON_MOUNTS: bool = true;
    // The chunks of the running transaction have no block group items yet.
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress device usage --device two.img one.img",
        "Shows the allocated space of each of two devices",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let filesystem = context.open_volume(&target.image)?.volume().clone();
        let space = space_of(&filesystem, context)?;
        let (all, none) = (allocated(&filesystem), Allocated::new());
        let of = |id: DeviceId| all.get(&id).unwrap_or(&none);
        if context.json() {
            let devices = space.devices.iter();
            let devices = devices.map(|device| as_json(device, of(device.id)));
            context.print_json("device-usage", devices.collect())?;
            return Ok(Outcome::Done);
        }
        let units = self.short_units.units(self.units);
        let mut out = context.stdout();
        for device in &space.devices {
            write_device(&mut out, device, of(device.id), units)?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// The bytes allocated on a device, by kind, profile and, if data is striped, the number of stripes.
type Allocated = BTreeMap<(u8, u64, usize), (BlockGroupFlags, u64)>;

/// The profiles whose number of stripes btrfs-progs prints.
const STRIPED: [Profile; 4] = [Profile::Raid0, Profile::Raid10, Profile::Raid5, Profile::Raid6];

/// Returns the bytes allocated on each device.
fn allocated(filesystem: &Volume) -> HashMap<DeviceId, Allocated> {
    let mut all: HashMap<DeviceId, Allocated> = HashMap::new();
    for chunk in filesystem_of(filesystem).volume().chunk_map().chunks() {
        let flags = chunk.flags();
        let place = match flags {
            flags if flags.contains(BlockGroupFlags::DATA) => 0,
            flags if flags.contains(BlockGroupFlags::METADATA) => 1,
            _ => 2,
        };
        let stripes = &chunk.chunk().stripes;
        let is_striped = flags.profile().is_some_and(|profile| STRIPED.contains(&profile));
        let count = if is_striped { stripes.len() } else { 0 };
        let length = chunk.layout().device_extent_bytes().get();
        for stripe in stripes {
            let device = all.entry(stripe.device).or_default();
            let (_, bytes) = device.entry((place, flags.bits(), count)).or_insert((flags, 0));
            *bytes = bytes.saturating_add(length);
        }
    }
    all
}

fn write_device(
    out: &mut impl Write,
    device: &DeviceSpace,
    allocated: &Allocated,
    units: Units,
) -> Result<()> {
    let name = terminal::shown(device.name.as_deref().unwrap_or("missing"));
    let mut lines = vec![
        ("Device size".to_owned(), device.size.get()),
        ("Device slack".to_owned(), device.slack().get()),
    ];
    for ((_, _, stripes), (flags, bytes)) in allocated {
        let profile = profile_name(*flags);
        let profile = match stripes {
            0 => profile.to_owned(),
            stripes => format!("{profile}/{stripes}"),
        };
        lines.push((format!("{},{profile}", flags.type_name()), *bytes));
    }
    lines.push(("Unallocated".to_owned(), device.unallocated().get()));
    writeln!(out, "{name}, ID: {}", device.id)?;
    for (label, bytes) in lines {
        let width = 21_usize.saturating_sub(label.len());
        writeln!(out, "   {label}:{:width$}{:>10}", "", units.text(bytes))?;
    }
    writeln!(out)?;
    Ok(())
}

fn as_json(device: &DeviceSpace, allocated: &Allocated) -> Value {
    let allocated = allocated.iter().map(|((_, _, stripes), (flags, bytes))| {
        let stripes = Some(stripes).filter(|stripes| **stripes > 0);
        json!({
            "bg-type": flags.type_name(), "bg-profile": profile_name(*flags), "stripes": stripes, "bytes": bytes,
        })
    });
    json!({
        "devid": device.id.get(),
        "uuid": device.uuid.hyphenated().to_string(),
        "path": device.name,
        "size": device.size.get(),
        "slack": device.slack().get(),
        "allocated": allocated.collect::<Vec<_>>(),
        "unallocated": device.unallocated().get(),
        "missing": device.is_missing(),
    })
}
