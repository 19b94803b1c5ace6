//! Volumes whose image files are in one directory, found by their superblocks alone.

use buttress_exact::u64_of;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::unstable::format::Superblock;
use buttress::unstable::volume::superblocks;
use buttress::{Device, Uuid};
use serde_json::{Map, Value, json};

use super::print_label;
use crate::context::Context;
use crate::exit::Outcome;
use crate::output::json::insert_name;
use crate::output::size::Units;
use crate::output::terminal;
use crate::sources::Role;

/// A device of a volume.
struct Found {
    path: PathBuf,
    superblock: Superblock,
}

/// Shows the volumes in a directory, without its subdirectories.
pub(super) fn show(context: &Context, directory: &Path, units: Units) -> Result<Outcome> {
    print(context, &look(context, directory)?, units)
}

/// Shows the superblocks of the devices of a volume that cannot be opened.
pub(super) fn show_devices(context: &Context, devices: Vec<PathBuf>, units: Units) -> Result<Outcome> {
    print(context, &of_paths(context, devices)?, units)
}

fn print(context: &Context, volumes: &BTreeMap<Uuid, Vec<Found>>, units: Units) -> Result<Outcome> {
    if context.json() {
        let volumes = volumes.values().map(|found| as_json(found)).collect();
        context.print_json("filesystem-show", volumes)?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    for (number, found) in volumes.values().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let Some(newest) = newest(found) else { continue };
        print_label(context, &mut out, &newest.label, newest.fsid)?;
        writeln!(
            out,
            "\tTotal devices {} FS bytes used {}",
            newest.num_devices,
            units.text(newest.bytes_used.get())
        )?;
        for device in found {
            let item = &device.superblock.device_item;
            writeln!(
                out,
                "\tdevid {:>4} size {} used {} path {}",
                item.device,
                units.text(item.total_bytes.get()),
                units.text(item.bytes_used.get()),
                terminal::shown(device.path.display())
            )?;
        }
        if missing(found) > 0 {
            writeln!(out, "\t*** Some devices missing")?;
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// Returns the devices in a directory, by volume, in the order of their ids.
fn look(context: &Context, directory: &Path) -> Result<BTreeMap<Uuid, Vec<Found>>> {
    let named = || directory.display().to_string();
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(named)? {
        let path = entry.with_context(named)?.path();
        // Skip other kinds of files: opening them is useless, or may block forever.
        if path.metadata().is_ok_and(|metadata| may_be_device(&metadata)) {
            paths.push(path);
        }
    }
    paths.sort();
    of_paths(context, paths)
}

/// Returns the devices among some files, by volume, in the order of their ids.
fn of_paths(context: &Context, paths: Vec<PathBuf>) -> Result<BTreeMap<Uuid, Vec<Found>>> {
    let mut volumes: BTreeMap<Uuid, Vec<Found>> = BTreeMap::new();
    for path in paths {
        if let Some(superblock) = superblock_of(context, &path)? {
            let found = Found { path, superblock };
            volumes.entry(found.superblock.fsid).or_default().push(found);
        }
    }
    for found in volumes.values_mut() {
        found.sort_by_key(|device| device.superblock.device_item.device);
    }
    Ok(volumes)
}

/// Returns the superblock of a file, if it is a device. Only devices become sources of the command,
/// because any other file may be its standard output.
fn superblock_of(context: &Context, path: &Path) -> Result<Option<Superblock>> {
    let device = match Device::open(path, &context.device_options()) {
        Ok(device) => device,
        Err(error) => {
            context.warn(error);
            return Ok(None);
        }
    };
    let Ok(found) = superblocks::choose(&device) else {
        return Ok(None);
    };
    context.sources().add(path, Role::Volume)?;
    for notice in device.notices() {
        context.warn(notice);
    }
    Ok(Some(found.superblock))
}

fn may_be_device(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    metadata.is_file() || metadata.file_type().is_block_device()
}

fn newest(found: &[Found]) -> Option<&Superblock> {
    let superblocks = found.iter().map(|device| &device.superblock);
    superblocks.max_by_key(|superblock| superblock.generation)
}

/// Returns the number of missing devices of a volume. The target of a running replacement does not
/// count as a device yet.
fn missing(found: &[Found]) -> u64 {
    let own = |device: &&Found| device.superblock.device_item.device.get() != 0;
    let there = u64_of(found.iter().filter(own).count());
    newest(found).map_or(0, |newest| newest.num_devices.saturating_sub(there))
}

fn as_json(found: &[Found]) -> Value {
    let mut object = Map::new();
    if let Some(newest) = newest(found) {
        insert_name(&mut object, "label", &newest.label);
        object.insert("uuid".into(), newest.fsid.hyphenated().to_string().into());
        object.insert("total_devices".into(), newest.num_devices.into());
        object.insert("bytes_used".into(), newest.bytes_used.get().into());
    }
    object.insert("missing_devices".into(), missing(found).into());
    let devices = found.iter().map(|device| {
        let item = &device.superblock.device_item;
        json!({
            "devid": item.device.get(),
            "uuid": item.uuid.hyphenated().to_string(),
            "size": item.total_bytes.get(),
            "used": item.bytes_used.get(),
            "path": device.path.display().to_string(),
            "generation": device.superblock.generation.get(),
            "missing": false,
        })
    });
    object.insert("devices".into(), devices.collect());
    Value::Object(object)
}
