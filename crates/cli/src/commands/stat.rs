//! `buttress stat IMAGE:/path…`: the output of `stat(1)`, plus btrfs's subvolume, generations,
//! flags and extended attributes.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::{FileKind, Follow, InodeRecord, Subvolume, Timestamp, Xattr};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::opening::Images;
use crate::output::escape_controls;
use crate::output::json::insert_name;
use crate::output::mode::{kind_words, permissions};
use crate::output::time::Clock;
use crate::output::xattr;
use crate::table::Subcommand;

/// Show all attributes of files: four times, flags, extended attributes
#[derive(Args, Debug)]
pub struct Stat {
    /// Follow a symbolic link at the end of the path
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Files in volumes
    #[arg(value_name = "IMAGE:/path", required = true)]
    files: Vec<OsString>,
}

/// Properties of a file to print.
struct Shown {
    path: Vec<u8>,
    record: InodeRecord,
    link: Option<Vec<u8>>,
}

impl Subcommand for Stat {
    const NAME: &'static str = "stat";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress stat backup.img:/home/letter",
            "Shows the times, flags and extended attributes of a file",
        ),
        example(
            "buttress stat --format json backup.img:/home/letter",
            "Prints these attributes as JSON",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut images = Images::new(context);
        let follow = if self.dereference {
            Follow::All
        } else {
            Follow::NotLast
        };
        let mut values = Vec::new();
        let clock = Clock::system();
        let mut out = context.stdout();
        for argument in &self.files {
            let target = context.target(argument);
            let shown = images
                .open(&target.image)
                .and_then(|opened| look(&opened, &target.path, follow));
            match shown {
                Ok(shown) if context.json() => values.push(as_json(&shown)),
                Ok(shown) => write_text(&mut out, &shown, &clock, context)?,
                Err(error) => context.lost(&target.name_in(error)),
            }
        }
        out.flush()?;
        drop(out);
        if context.json() {
            context.print_json("stat", Value::Array(values))?;
        }
        Ok(Outcome::Done)
    }
}

fn look(opened: &Subvolume, path: &[u8], follow: Follow) -> Result<Shown> {
    let location = opened.locate(path, follow)?;
    let record = opened.volume().inode(location)?;
    let link = match record.metadata.kind {
        FileKind::Symlink => Some(opened.volume().read_link(location)?),
        _ => None,
    };
    Ok(Shown {
        path: path.to_owned(),
        record,
        link,
    })
}

fn write_text(out: &mut impl Write, shown: &Shown, clock: &Clock, context: &Context) -> Result<()> {
    let metadata = &shown.record.metadata;
    write!(out, "  File: ")?;
    out.write_all(&context.printable(&shown.path))?;
    if let Some(link) = &shown.link {
        write!(out, " -> ")?;
        out.write_all(&context.printable(link))?;
    }
    let size = metadata.size.get();
    writeln!(
        out,
        "\n  Size: {size:<10}\tBlocks: {:<10} IO Block: {:<6} {}",
        metadata.blocks_512(),
        metadata.block_bytes,
        kind_words(metadata.mode, size)
    )?;
    write!(
        out,
        "Subvolume: {:<10}\tInode: {:<10}  Links: {}",
        metadata.location.subvolume, metadata.location.inode, metadata.nlink
    )?;
    if let Some(device) = metadata.device {
        write!(out, "     Device type: {},{}", device.major, device.minor)?;
    }
    writeln!(
        out,
        "\nAccess: ({:04o}/{})  Uid: {:>5}   Gid: {:>5}",
        metadata.permissions(),
        permissions(metadata.mode),
        metadata.uid,
        metadata.gid
    )?;
    let time = |time: Timestamp| clock.full(time.seconds, time.nanoseconds);
    writeln!(out, "Access: {}", time(metadata.accessed))?;
    writeln!(out, "Modify: {}", time(metadata.modified))?;
    writeln!(out, "Change: {}", time(metadata.changed))?;
    writeln!(
        out,
        " Birth: {}",
        metadata.created.map_or_else(|| "-".to_owned(), time)
    )?;
    writeln!(
        out,
        "Generation: {} (changed in {})\tSequence: {}",
        metadata.generation, metadata.transid, metadata.sequence
    )?;
    let letters = metadata.attributes().letters();
    writeln!(out, "Flags: {}", if letters.is_empty() { "-" } else { &letters })?;
    for Xattr { name, value } in &shown.record.xattrs {
        writeln!(out, "Xattr: {}={}", escape_controls(name), xattr::text(value))?;
    }
    Ok(())
}

fn time_json(time: Timestamp) -> Value {
    json!({ "seconds": time.seconds, "nanoseconds": time.nanoseconds })
}

fn as_json(shown: &Shown) -> Value {
    let metadata = &shown.record.metadata;
    let mut object = Map::new();
    insert_name(&mut object, "path", &shown.path);
    object.insert("type".into(), kind_name(metadata.kind).into());
    object.insert("subvolume".into(), metadata.location.subvolume.get().into());
    object.insert("inode".into(), metadata.location.inode.get().into());
    object.insert("mode".into(), format!("{:o}", metadata.mode).into());
    object.insert("permissions".into(), permissions(metadata.mode).into());
    object.insert("links".into(), metadata.nlink.into());
    object.insert("uid".into(), metadata.uid.into());
    object.insert("gid".into(), metadata.gid.into());
    object.insert("size".into(), metadata.size.get().into());
    object.insert("allocated".into(), metadata.allocated.get().into());
    if let Some(device) = metadata.device {
        object.insert(
            "device".into(),
            json!({ "major": device.major, "minor": device.minor }),
        );
    }
    object.insert("atime".into(), time_json(metadata.accessed));
    object.insert("mtime".into(), time_json(metadata.modified));
    object.insert("ctime".into(), time_json(metadata.changed));
    object.insert("btime".into(), metadata.created.map_or(Value::Null, time_json));
    object.insert("generation".into(), metadata.generation.get().into());
    object.insert("transid".into(), metadata.transid.get().into());
    object.insert("sequence".into(), metadata.sequence.into());
    object.insert("flags".into(), metadata.attributes().letters().into());
    if let Some(link) = &shown.link {
        insert_name(&mut object, "target", link);
    }
    let xattrs = shown.record.xattrs.iter().map(|xattr| {
        let mut object = Map::new();
        insert_name(&mut object, "name", &xattr.name);
        insert_name(&mut object, "value", &xattr.value);
        Value::Object(object)
    });
    object.insert("xattrs".into(), xattrs.collect());
    Value::Object(object)
}

/// Returns the kind of file as one word, for JSON.
pub(crate) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharacterDevice => "character-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Unknown | FileKind::Xattr => "unknown",
    }
}
