//! `buttress rescue clear-uuid-tree|clear-space-cache|clear-ino-cache IMAGE`: remove what Linux makes
//! again, or no longer uses.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress::{DeviceOptions, StructureRepairs, SubvolumeId, Volume, WritableVolume};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;
use crate::target::Target;
use crate::writing::{Writing, resync};

/// Delete the uuid tree, which Linux makes again at the next mount
#[derive(Args, Debug)]
pub struct ClearUuidTree {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// A version of the space cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheVersion {
    /// The files of the v1 cache
    V1,
    /// The free-space tree
    V2,
}

/// Delete the v1 space cache, or the free-space tree (v2)
///
/// Linux makes the free-space tree again at the next mount with `-o space_cache=v2`, and
/// `buttress tune --convert-to-free-space-tree` does at once.
#[derive(Args, Debug)]
pub struct ClearSpaceCache {
    /// The version of the cache
    #[arg(value_name = "VERSION")]
    version: CacheVersion,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Delete the inode caches of old kernels in all subvolumes
#[derive(Args, Debug)]
pub struct ClearInoCache {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for ClearUuidTree {
    const NAME: &'static str = "clear-uuid-tree";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress rescue clear-uuid-tree backup.img",
        "Deletes a damaged uuid tree",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        change(context, &self.image, Self::NAME, |volume, done| {
            done.removed = Some(StructureRepairs::of(volume).clear_uuid_tree()?);
            Ok(())
        })
    }
}

impl Subcommand for ClearSpaceCache {
    const NAME: &'static str = "clear-space-cache";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress rescue clear-space-cache v2 backup.img",
        "Deletes a damaged free-space tree",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if self.version == CacheVersion::V1 {
            return change(context, &self.image, Self::NAME, |volume, done| {
                StructureRepairs::of(volume).clear_v1_cache()?;
                done.lines.push("Free space cache cleared".to_owned());
                Ok(())
            });
        }
        change_opened(context, &self.image, Self::NAME, open_to_clear, |volume, done| {
            let removed = StructureRepairs::of(volume).clear_free_space_tree()?;
            done.removed = Some(removed);
            let lines: &[&str] = match removed {
                true => &["Clear free space cache v2", "free space cache v2 cleared"],
                false => &["no free space cache v2 to clear"],
            };
            done.lines.extend(lines.iter().map(|line| (*line).to_owned()));
            Ok(())
        })
    }
}

impl Subcommand for ClearInoCache {
    const NAME: &'static str = "clear-ino-cache";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress rescue clear-ino-cache backup.img",
        "Deletes what the mount option inode_cache of old kernels left",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        change(context, &self.image, Self::NAME, |volume, done| {
            let mut cleared = Vec::new();
            StructureRepairs::of(volume).clear_inode_caches(|subvolume| cleared.push(subvolume))?;
            let line = |id: &SubvolumeId| format!("Successfully cleaned up ino cache for root id: {id}");
            done.lines.extend(cleared.iter().map(line));
            done.lines.push("Successfully cleared ino cache".to_owned());
            Ok(())
        })
    }
}

/// The result of a change.
#[derive(Debug, Default)]
struct Done {
    /// Whether a tree was removed, if the command removes a tree.
    removed: Option<bool>,
    lines: Vec<String>,
}

/// Opens a volume whose free-space tree may be damaged. No allocation uses the tree.
fn open_to_clear(context: &Context, image: &Path) -> Result<Writing> {
    if let Some(present) = context.present_for_writing(image)? {
        return Ok(present);
    }
    let devices = DeviceOptions {
        write: true,
        ..context.device_options()
    };
    let opened = context.open_volume_with(image, &devices)?;
    let writing = Writing::new(opened, Volume::options().clears_free_space_tree(true))
        .with_context(|| format!("opening {} for writing", image.display()))?;
    resync(context, writing.volume());
    Ok(writing)
}

/// Opens the volume, changes it, and prints the result.
fn change(
    context: &Context,
    image: &OsString,
    name: &str,
    change: impl FnOnce(&WritableVolume, &mut Done) -> buttress::Result<()>,
) -> Result<Outcome> {
    change_opened(context, image, name, Context::open_for_writing, change)
}

/// Opens the volume by `open`, changes it, and prints the result.
fn change_opened(
    context: &Context,
    image: &OsString,
    name: &str,
    open: impl FnOnce(&Context, &Path) -> Result<Writing>,
    change: impl FnOnce(&WritableVolume, &mut Done) -> buttress::Result<()>,
) -> Result<Outcome> {
    let target = Target::parse(image);
    let writing = open(context, &target.image)?;
    let mut done = Done::default();
    change(writing.volume(), &mut done).with_context(|| target.image.display().to_string())?;
    writing.commit()?;
    if context.json() {
        let mut object = target.as_json();
        if let Some(removed) = done.removed {
            object.insert("removed".to_owned(), json!(removed));
        }
        context.print_json(&format!("rescue-{name}"), Value::Object(object))?;
    } else if !context.globals().quiet {
        let mut out = context.stdout();
        for line in &done.lines {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
    Ok(Outcome::Done)
}
