//! `buttress subvolume find-new IMAGE:/SUBVOLUME GENERATION`: lists newer extents, in the format of
//! btrfs-progs.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::unstable::filesystem_of;
use buttress::unstable::format::{FileExtent, FileExtentBody, ItemType};
use buttress::{Compression, Follow, InodeNumber, Location, ReadAhead, Volume};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::table::{MountView, Subcommand};

/// List the extents of a subvolume that were written since a generation
#[derive(Args, Debug)]
pub struct FindNew {
    /// The subvolume
    #[arg(value_name = "IMAGE:/SUBVOLUME")]
    target: OsString,
    /// First generation to list; a future generation prints only the current one
    #[arg(value_name = "GENERATION")]
    generation: u64,
}

/// The content of one file extent item.
struct Found {
    inode: InodeNumber,
    offset: u64,
    length: u64,
    disk: u64,
    disk_offset: u64,
    generation: u64,
    flags: Vec<&'static str>,
    path: Vec<u8>,
}

impl Subcommand for FindNew {
    const NAME: &'static str = "find-new";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress subvolume find-new backup.img:/home 17",
        "Lists the extents that were written in generation 17 or later",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.target);
        let (opened, location) = context.open_target(&target, Follow::All)?;
        if !location.is_subvolume_root() {
            return Err(anyhow::anyhow!("{} is not a subvolume", target.display())).context(Advice::new(
                "`buttress subvolume list IMAGE` lists the subvolumes",
            ));
        }
        let filesystem = opened.volume();
        let marker = filesystem.subvolume_info(location.subvolume)?.generation().get();
        let mut values = Vec::new();
        let mut out = context.stdout();
        each(filesystem, location, self.generation, &mut |found| {
            if context.json() {
                values.push(as_json(&found));
                return Ok(());
            }
            write!(
                out,
                "inode {} file offset {} len {} disk start {} offset {} gen {} flags {} ",
                found.inode,
                found.offset,
                found.length,
                found.disk,
                found.disk_offset,
                found.generation,
                found.flags.join("|"),
            )?;
            out.write_all(&context.printable(&found.path))?;
            writeln!(out)?;
            Ok(())
        })?;
        if context.json() {
            let document = json!({ "extents": values, "transid_marker": marker });
            context.print_json("subvolume-find-new", document)?;
            return Ok(Outcome::Done);
        }
        writeln!(out, "transid marker was {marker}")?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Calls `give` for each file extent item of the subvolume from generation `from` on, in key order.
fn each(
    filesystem: &Volume,
    location: Location,
    from: u64,
    give: &mut dyn FnMut(Found) -> Result<()>,
) -> Result<()> {
    let raw = filesystem_of(filesystem);
    let sector_bytes = raw.sector_bytes();
    // Extents of one inode are consecutive.
    let mut known: HashMap<InodeNumber, Vec<u8>> = HashMap::new();
    for item in raw
        .subvolume_tree(location.subvolume)?
        .range(.., ReadAhead::sweep())
    {
        let item = item?;
        let key = item.key();
        if key.item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let extent = FileExtent::parse(&key, item.data(), sector_bytes)?;
        if extent.generation.get() < from {
            continue;
        }
        let inode = InodeNumber::new(key.objectid.get());
        if !known.contains_key(&inode) {
            let paths = filesystem.paths(Location::new(location.subvolume, inode));
            let path = paths.ok().and_then(|paths| paths.into_iter().next());
            known = HashMap::from([(inode, path.unwrap_or_default())]);
        }
        let (length, disk, disk_offset) = match &extent.body {
            FileExtentBody::Inline(_) => (extent.ram_bytes.get(), 0, 0),
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => {
                (slice.num_bytes.get(), slice.disk.get(), slice.offset.get())
            }
        };
        give(Found {
            inode,
            offset: key.offset,
            length,
            disk,
            disk_offset,
            generation: extent.generation.get(),
            flags: flags_of(&extent),
            path: known.get(&inode).cloned().unwrap_or_default(),
        })?;
    }
    Ok(())
}

fn flags_of(extent: &FileExtent<'_>) -> Vec<&'static str> {
    let mut flags = Vec::new();
    if extent.compression != Compression::None {
        flags.push("COMPRESS");
    }
    match extent.body {
        FileExtentBody::Inline(_) => flags.push("INLINE"),
        FileExtentBody::Preallocated(_) => flags.push("PREALLOC"),
        FileExtentBody::Regular(_) if flags.is_empty() => flags.push("NONE"),
        FileExtentBody::Regular(_) => {}
    }
    flags
}

fn as_json(found: &Found) -> Value {
    let mut object = Map::new();
    object.insert("inode".into(), found.inode.get().into());
    object.insert("offset".into(), found.offset.into());
    object.insert("length".into(), found.length.into());
    object.insert("disk_start".into(), found.disk.into());
    object.insert("disk_offset".into(), found.disk_offset.into());
    object.insert("generation".into(), found.generation.into());
    object.insert("flags".into(), found.flags.clone().into());
    insert_name(&mut object, "path", &found.path);
    Value::Object(object)
}
