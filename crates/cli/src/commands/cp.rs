//! `buttress cp SOURCE… DESTINATION`: files out of a volume, into one, or from one to another.
//!
//! As with `cp(1)`: if the destination is a directory, things are put into it under their names; otherwise it
//! names the copy. The root of a volume has no name: its content goes into the destination itself. Which way it goes
//! the destination says: `IMAGE:/path` is in a volume, anything else on the host.

mod into;
mod out;

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress_fs::data::DataOptions;
use clap::Args;
use serde_json::json;

use crate::compression::Method;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::extract::Preserve;
use crate::table::Subcommand;
use crate::target::Target;
pub(crate) use into::{SourceKind, copy as copy_into};
pub(crate) use out::copy as copy_out;

/// Copy files out of a volume, or into one
#[derive(Args, Debug)]
pub struct Cp {
    #[command(flatten)]
    flags: Flags,
    /// Into a volume: compress files like this (zlib, lzo, zstd, with a level after a colon)
    #[arg(long, value_name = "ALGORITHM[:LEVEL]")]
    compress: Option<Method>,
    /// What to copy, then where to; IMAGE:/path is in a volume, anything else on the host
    #[arg(value_name = "SOURCE… DESTINATION", required = true)]
    places: Vec<OsString>,
}

/// How things are copied; also for the words of a session.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// Copy directories and all they hold
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Copy directories, and keep owners, modes, times and extended attributes
    #[arg(short = 'a', long)]
    archive: bool,
    /// Never put the copy into the destination directory: the destination is the copy
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Do not descend into nested subvolumes, or other file systems
    #[arg(long)]
    one_file_system: bool,
}

/// The same, put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    recursive: bool,
    preserve: Preserve,
    no_target_directory: bool,
    one_file_system: bool,
}

impl Flags {
    pub(crate) fn how(self) -> How {
        How {
            recursive: self.recursive || self.archive,
            preserve: if self.archive {
                Preserve::All
            } else {
                Preserve::Nothing
            },
            no_target_directory: self.no_target_directory,
            one_file_system: self.one_file_system,
        }
    }
}

impl Subcommand for Cp {
    const NAME: &'static str = "cp";

    fn run(self, context: &Context) -> Result<Outcome> {
        let (destination, sources) = split_places(&self.places)?;
        let how = self.flags.how();
        let target = Target::parse(destination);
        let totals = if target.has_path && target.image.exists() {
            let data = DataOptions {
                compression: self.compress.map(|method| method.0),
                ..DataOptions::default()
            };
            let writing = context.open_for_writing_with(&target.image, data)?;
            let totals = into::copy(
                context,
                how,
                &writing,
                sources,
                SourceKind::Named(&target.image),
                &target.path,
            )?;
            writing.commit()?;
            totals
        } else {
            if self.compress.is_some() {
                return Err(anyhow::anyhow!("--compress is for copies into a volume"))
                    .context(Advice::new("the destination in a volume is written IMAGE:/path"));
            }
            out::copy(context, how, sources, Path::new(destination))?
        };
        if context.json() {
            let values = totals.iter().map(|(source, totals)| {
                json!({
                    "source": source,
                    "files": totals.files,
                    "directories": totals.directories,
                    "hard_links": totals.hard_links,
                    "others": totals.others,
                    "bytes": totals.bytes,
                })
            });
            context.print_json("cp", values.collect())?;
        }
        Ok(Outcome::Done)
    }
}

/// What was named last is the destination.
pub(crate) fn split_places(places: &[OsString]) -> Result<(&OsString, &[OsString])> {
    places
        .split_last()
        .filter(|(_, sources)| !sources.is_empty())
        .context("a destination is missing")
        .context(Advice::new("the last argument says where to copy to"))
}

/// The name that a copy of what is at this path gets; the root, and what `..` leads to, have none.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty() && *name != b".")
        .filter(|name| *name != b"..")
}
