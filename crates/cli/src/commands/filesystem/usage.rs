//! `buttress filesystem usage IMAGE`: space use, in the formats of `btrfs filesystem usage`.

mod table;

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::{BlockGroupFlags, ByteCount, GroupSpace, Space, SpaceTotals as Totals};
use clap::Args;
use serde_json::{Value, json};

use super::{profile_name, space_of};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::{ShortUnitFlags, UnitFlags, Units};
use crate::output::terminal;
use crate::table::{MountView, Subcommand};

/// Show allocated, used and free space, overall, by profile and by device
#[derive(Args, Debug)]
pub struct Usage {
    #[command(flatten)]
    units: UnitFlags,
    #[command(flatten)]
    short_units: ShortUnitFlags,
    /// Print a table
    #[arg(short = 'T')]
    table: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Usage {
    const NAME: &'static str = "usage";
    const ON_MOUNTS: bool = true;
    // The chunks of the running transaction have no block group items yet.
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress filesystem usage -T backup.img",
            "Shows the usage as a table",
        ),
        example(
            "buttress filesystem usage --device two.img one.img",
            "Shows the usage of a volume of two devices",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let filesystem = context.open_volume(&target.image)?.volume().clone();
        let space = space_of(&filesystem, context)?;
        if context.json() {
            context.print_json("filesystem-usage", as_json(&space))?;
            return Ok(Outcome::Done);
        }
        let units = self.short_units.units(self.units);
        let mut out = context.stdout();
        write_totals(&mut out, &space, units)?;
        if self.table {
            table::write(&mut out, &space, units)?;
        } else {
            write_groups(&mut out, &space, units)?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Returns the groups in the order of `usage`: data, metadata, system.
fn groups_in_order(space: &Space) -> Vec<&GroupSpace> {
    let mut groups: Vec<&GroupSpace> = space.groups.iter().collect();
    groups.sort_by_key(|group| {
        let kind = if group.flags.contains(BlockGroupFlags::DATA) {
            0
        } else if group.flags.contains(BlockGroupFlags::METADATA) {
            1
        } else {
            2
        };
        (kind, group.flags.bits())
    });
    groups
}

/// Returns the name of a device in the lists.
fn device_name(device: &buttress::DeviceSpace) -> String {
    terminal::shown(device.name.as_deref().unwrap_or("missing"))
}

fn write_totals(out: &mut impl Write, space: &Space, units: Units) -> Result<()> {
    let totals = space.totals();
    let width = if units == Units::default() { 10 } else { 18 };
    let text = |bytes: ByteCount| units.text(bytes.get());
    writeln!(out, "Overall:")?;
    for (label, tabs, bytes) in [
        ("Device size:", "\t\t", totals.device_size),
        ("Device allocated:", "\t\t", totals.allocated),
        ("Device unallocated:", "\t\t", totals.unallocated),
        ("Device missing:", "\t\t", totals.missing),
        ("Device slack:", "\t\t", totals.slack),
        ("Used:", "\t\t\t", totals.used),
    ] {
        writeln!(out, "    {label}{tabs}{:>width$}", text(bytes))?;
    }
    writeln!(
        out,
        "    Free (estimated):\t\t{:>width$}\t(min: {})",
        text(totals.free_estimated),
        text(totals.free_min)
    )?;
    writeln!(
        out,
        "    Free (statfs, df):\t\t{:>width$}",
        text(space.available())
    )?;
    writeln!(out, "    Data ratio:\t\t\t{:>width$.2}", totals.data_ratio)?;
    writeln!(out, "    Metadata ratio:\t\t{:>width$.2}", totals.metadata_ratio)?;
    writeln!(
        out,
        "    Global reserve:\t\t{:>width$}\t(used: {})",
        text(space.global_reserve),
        units.text(0)
    )?;
    let (several, which) = multiple_profiles(space, &totals);
    writeln!(out, "    Multiple profiles:\t\t{several:>width$}{which}\n")?;
    Ok(())
}

/// Returns `yes` and the kinds with several profiles, or `no`.
fn multiple_profiles(space: &Space, totals: &Totals) -> (&'static str, String) {
    if !totals.multiple_profiles {
        return ("no", String::new());
    }
    let kinds = [
        ("data", BlockGroupFlags::DATA),
        ("metadata", BlockGroupFlags::METADATA),
        ("system", BlockGroupFlags::SYSTEM),
    ];
    let several: Vec<&str> = kinds
        .into_iter()
        .filter(|(_, kind)| {
            space
                .groups
                .iter()
                .filter(|group| group.flags.contains(*kind))
                .count()
                > 1
        })
        .map(|(name, _)| name)
        .collect();
    ("yes", format!("\t({})", several.join(", ")))
}

fn write_groups(out: &mut impl Write, space: &Space, units: Units) -> Result<()> {
    for group in groups_in_order(space) {
        writeln!(
            out,
            "{},{}: Size:{}, Used:{} ({:.2}%)",
            group.flags.type_name(),
            profile_name(group.flags),
            units.text(group.total.get()),
            units.text(group.used.get()),
            percent(group.used, group.total)
        )?;
        for device in &space.devices {
            for (_, bytes) in device.allocated.iter().filter(|(flags, _)| *flags == group.flags) {
                writeln!(out, "   {}\t{:>10}", device_name(device), units.text(bytes.get()))?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "Unallocated:")?;
    for device in &space.devices {
        writeln!(
            out,
            "   {}\t{:>10}",
            device_name(device),
            units.text(device.unallocated().get())
        )?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "two digits are printed")]
fn percent(part: ByteCount, whole: ByteCount) -> f64 {
    if whole == ByteCount::ZERO {
        0.0
    } else {
        part.get() as f64 * 100.0 / whole.get() as f64
    }
}

fn as_json(space: &Space) -> Value {
    let totals = space.totals();
    let groups = space.groups.iter().map(|group| {
        json!({
            "bg-type": group.flags.type_name(),
            "bg-profile": profile_name(group.flags),
            "block_groups": group.block_groups,
            "total": group.total.get(),
            "used": group.used.get(),
            "raw": group.raw.get(),
        })
    });
    let devices = space.devices.iter().map(|device| {
        let allocated = device.allocated.iter().map(|(flags, bytes)| {
            json!({ "bg-type": flags.type_name(), "bg-profile": profile_name(*flags), "bytes": bytes.get() })
        });
        json!({
            "devid": device.id.get(),
            "uuid": device.uuid.hyphenated().to_string(),
            "path": device.name,
            "size": device.size.get(),
            "allocated": allocated.collect::<Vec<_>>(),
            "unallocated": device.unallocated().get(),
            "slack": device.slack().get(),
            "missing": device.is_missing(),
        })
    });
    json!({
        "device_size": totals.device_size.get(),
        "allocated": totals.allocated.get(),
        "unallocated": totals.unallocated.get(),
        "missing": totals.missing.get(),
        "slack": totals.slack.get(),
        "used": totals.used.get(),
        "free_estimated": totals.free_estimated.get(),
        "free_estimated_min": totals.free_min.get(),
        "free_statfs": space.available().get(),
        "data_ratio": totals.data_ratio,
        "metadata_ratio": totals.metadata_ratio,
        "global_reserve": space.global_reserve.get(),
        "multiple_profiles": totals.multiple_profiles,
        "groups": groups.collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
    })
}
