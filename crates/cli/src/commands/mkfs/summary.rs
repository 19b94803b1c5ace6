//! Output of `mkfs`: the summary of mkfs.btrfs, and the list of features.

use std::io::Write;

use anyhow::Result;
use buttress::mkfs::{Feature, Made, Quotas};
use buttress::unstable::format::Incompat;
use buttress::{BlockGroupFlags, Device};
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::output::json::insert_name;
use crate::output::size::Units;
use crate::output::terminal;

/// Returns the names of a volume's selectable features, in list order.
fn features(made: &Made) -> Vec<&'static str> {
    let superblock = &made.superblock;
    let has = |feature: &Feature| match feature {
        Feature::MixedBlockGroups => superblock.incompat.contains(Incompat::MIXED_GROUPS),
        Feature::ExtendedReferences => superblock.incompat.contains(Incompat::EXTENDED_IREF),
        Feature::Raid56 => superblock.incompat.contains(Incompat::RAID56),
        Feature::SkinnyMetadata => superblock.incompat.contains(Incompat::SKINNY_METADATA),
        Feature::NoHoles => superblock.incompat.contains(Incompat::NO_HOLES),
        Feature::Raid1C34 => superblock.incompat.contains(Incompat::RAID1C34),
        Feature::FreeSpaceTree => superblock
            .compat_ro
            .contains(buttress::unstable::format::CompatRo::FREE_SPACE_TREE),
        Feature::BlockGroupTree => superblock
            .compat_ro
            .contains(buttress::unstable::format::CompatRo::BLOCK_GROUP_TREE),
        Feature::Quotas => made.quotas == Some(Quotas::Full),
        Feature::SimpleQuotas => made.quotas == Some(Quotas::Simple),
        _ => false,
    };
    let named = Feature::ALL.into_iter().filter(has);
    named.map(Feature::name).collect()
}

/// Prints the summary of the created volume.
pub(super) fn print(context: &Context, made: &Made, devices: &[Device]) -> Result<()> {
    if context.json() {
        return context.print_json("mkfs", as_json(made, devices));
    }
    if context.globals().quiet {
        return Ok(());
    }
    let units = Units::default();
    let superblock = &made.superblock;
    let mut out = context.stdout();
    write!(out, "{:<20}", "Label:")?;
    match superblock.label.as_slice() {
        [] => out.write_all(b"(null)")?,
        label => out.write_all(&context.printable(label))?,
    }
    writeln!(out)?;
    let mut line = |name: &str, value: &str| match value {
        "" => writeln!(out, "{name}"),
        value => writeln!(out, "{name:<20}{value}"),
    };
    line("UUID:", &superblock.fsid.hyphenated().to_string())?;
    line("Node size:", &superblock.node_bytes.to_string())?;
    line("Sector size:", &superblock.sector_bytes.to_string())?;
    line("Filesystem size:", &units.text(superblock.total_bytes.get()))?;
    line("Block group profiles:", "")?;
    for (name, kind) in kinds() {
        let chunk = made
            .chunks
            .iter()
            .find(|chunk| chunk.flags.intersection(BlockGroupFlags::TYPES) == kind);
        if let Some(chunk) = chunk {
            let size = units.text(chunk.length.get());
            line(
                &format!("  {name}:"),
                &format!("{:<8}{size:>17}", chunk.profile().name()),
            )?;
        }
    }
    line("Features:", &features(made).join(", "))?;
    line("Checksum:", superblock.checksum_type.name())?;
    line("Number of devices:", &superblock.num_devices.to_string())?;
    line("Devices:", "")?;
    writeln!(out, "   ID        SIZE  PATH")?;
    for (item, device) in made.devices.iter().zip(devices) {
        let size = units.text(item.total_bytes.get());
        writeln!(
            out,
            "{:>5}  {size:>10}  {}",
            item.device,
            terminal::shown(device.name())
        )?;
    }
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

fn kinds() -> [(&'static str, BlockGroupFlags); 4] {
    [
        ("Data", BlockGroupFlags::DATA),
        ("Metadata", BlockGroupFlags::METADATA),
        ("Data+Metadata", BlockGroupFlags::DATA | BlockGroupFlags::METADATA),
        ("System", BlockGroupFlags::SYSTEM),
    ]
}

fn as_json(made: &Made, devices: &[Device]) -> Value {
    let superblock = &made.superblock;
    let mut object = Map::new();
    insert_name(&mut object, "label", &superblock.label);
    object.insert("uuid".into(), superblock.fsid.hyphenated().to_string().into());
    object.insert("node_size".into(), superblock.node_bytes.into());
    object.insert("sector_size".into(), superblock.sector_bytes.into());
    object.insert("total_bytes".into(), superblock.total_bytes.get().into());
    object.insert("bytes_used".into(), superblock.bytes_used.get().into());
    object.insert("checksum".into(), superblock.checksum_type.name().into());
    object.insert("features".into(), features(made).into());
    let groups = made.chunks.iter().map(|chunk| {
        json!({
            "type": chunk.flags.type_name(),
            "profile": chunk.profile().name(),
            "length": chunk.length.get(),
        })
    });
    object.insert("block_groups".into(), groups.collect());
    let devices = made.devices.iter().zip(devices).map(|(item, device)| {
        json!({
            "devid": item.device.get(),
            "uuid": item.uuid.hyphenated().to_string(),
            "size": item.total_bytes.get(),
            "used": item.bytes_used.get(),
            "path": device.name(),
        })
    });
    object.insert("devices".into(), devices.collect());
    Value::Object(object)
}
