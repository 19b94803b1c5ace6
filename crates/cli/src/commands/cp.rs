//! `buttress cp SOURCE… DESTINATION`: copies files out of a volume, into one, or from one to
//! another.
//!
//! As in `cp(1)`, if the destination is a directory, the copies go into it under their names.
//! Otherwise the destination is the path of the copy. The root of a volume has no name, so its
//! content goes into the destination itself. The destination determines the direction:
//! `IMAGE:/path` is in a volume, any other path is on the host. [`crate::replacing`] defines the
//! treatment of existing files.
//!
//! Copying continues after a failure. A copy into a volume commits everything that it copied in one
//! transaction at the end, then reports what is missing. If the volume is full, the command copies
//! no further files.

mod into;
mod out;
mod total;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use buttress::{DataOptions, Follow};
use clap::Args;
use serde_json::json;

use crate::compression::Method;
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::extract::{Preserve, Totals};
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::replacing::Replacing;
use crate::table::Subcommand;
use crate::target::Target;
use crate::writing::Writing;
pub(crate) use into::{Copied, SourceKind, copy as copy_into};
pub(crate) use out::copy as copy_out;

/// Copy files out of a volume, or into one
#[derive(Args, Debug)]
pub struct Cp {
    #[command(flatten)]
    flags: Flags,
    /// Compress files that are copied into a volume: zlib, lzo or zstd, with an optional level
    /// after a colon
    #[arg(long, value_name = "ALGORITHM[:LEVEL]")]
    compress: Option<Method>,
    /// Copy into this directory; all other arguments are sources
    #[arg(
        short = 't',
        long,
        value_name = "DIRECTORY",
        conflicts_with = "no_target_directory"
    )]
    target_directory: Option<OsString>,
    /// Sources, then the destination. IMAGE:/path is in a volume; any other path is on the host
    #[arg(value_name = "SOURCE… DESTINATION", required = true)]
    places: Vec<OsString>,
}

/// Options of copies, also for commands of a session.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// Copy directories recursively
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Copy recursively, and preserve owners, modes, times and extended attributes
    #[arg(short = 'a', long)]
    archive: bool,
    /// Treat the destination as the name of the copy, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Do not descend into nested subvolumes or other file systems
    #[arg(long)]
    one_file_system: bool,
    /// Copy symbolic links as links, even if the command line names them
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Same as -P, and preserve hard links
    #[arg(short = 'd')]
    no_dereference_and_links: bool,
    /// Do not overwrite existing files
    #[arg(short = 'n', long, conflicts_with = "remove_destination")]
    no_clobber: bool,
    /// Remove an existing file that cannot be written to
    #[arg(short = 'f', long, conflicts_with = "no_clobber")]
    force: bool,
    /// Remove each existing file first, instead of overwriting it
    #[arg(long)]
    remove_destination: bool,
}

/// Options of a copy, combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    recursive: bool,
    preserve: Preserve,
    replacing: Replacing,
    /// Treatment of symbolic links that the user named.
    follow: Follow,
    target: TargetDirectory,
    one_file_system: bool,
}

/// Condition under which the copy goes into the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetDirectory {
    /// If the destination is a directory.
    Maybe,
    /// Never (-T).
    Never,
    /// Always; the destination must be a directory (-t, or several sources).
    Always,
}

impl How {
    /// Adjusts the options to the number of sources.
    fn for_sources(mut self, count: usize) -> Self {
        if count > 1 && self.target == TargetDirectory::Maybe {
            self.target = TargetDirectory::Always;
        }
        self
    }

    /// Makes all copies go into a directory given with `-t`.
    fn into_target_directory(mut self) -> Self {
        self.target = TargetDirectory::Always;
        self
    }
}

/// Names of copies in a common directory, so that no copy replaces another.
#[derive(Debug, Default)]
struct JustMade {
    /// Sources as the user named them.
    sources: HashSet<OsString>,
    names: HashSet<Vec<u8>>,
}

impl JustMade {
    /// Returns whether the user named a source before; the command then does not copy it again.
    fn is_repeated(&mut self, context: &Context, source: &OsStr) -> bool {
        let repeated = !self.sources.insert(source.to_owned());
        if repeated {
            context.warn(format_args!(
                "source '{}' specified more than once",
                source.display()
            ));
        }
        repeated
    }

    /// Refuses to replace an earlier copy of this command with a file other than a directory.
    fn refuse(&mut self, name: Option<&[u8]>, shown: &str, source: &str) -> Result<()> {
        match name {
            Some(name) if !self.names.insert(name.to_vec()) => Err(anyhow!(
                "will not overwrite just-created '{shown}' with '{source}'"
            )),
            _ => Ok(()),
        }
    }
}

impl Flags {
    pub(crate) fn how(self) -> How {
        let as_links = self.recursive || self.archive || self.no_dereference || self.no_dereference_and_links;
        How {
            recursive: self.recursive || self.archive,
            preserve: if self.archive {
                Preserve::All
            } else {
                Preserve::Nothing
            },
            replacing: Replacing {
                no_clobber: self.no_clobber,
                remove: self.remove_destination,
                force: self.force,
                by_others: as_links,
                keep_links: self.archive || self.no_dereference_and_links,
                ..Replacing::default()
            },
            follow: if as_links { Follow::NotLast } else { Follow::All },
            target: if self.no_target_directory {
                TargetDirectory::Never
            } else {
                TargetDirectory::Maybe
            },
            one_file_system: self.one_file_system,
        }
    }
}

impl Subcommand for Cp {
    const NAME: &'static str = "cp";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress cp -a backup.img:/home/plain .",
            "Copies a directory out of a volume, with owners, modes, times and extended attributes",
        ),
        example(
            "buttress cp -a --compress zstd project new.img:/",
            "Copies a directory of the host into a volume, compressed",
        ),
        example(
            "buttress cp -r a.img:/photos b.img:/",
            "Copies a directory from one volume to another",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let (destination, sources, how) = match &self.target_directory {
            Some(directory) => (
                directory,
                self.places.as_slice(),
                self.flags.how().into_target_directory(),
            ),
            None => {
                let (destination, sources) = split_places(&self.places)?;
                (destination, sources, self.flags.how())
            }
        };
        let target = Target::parse(destination);
        let totals = if target.has_path && target.image.exists() {
            let data = DataOptions {
                compression: self.compress.map(|method| method.0),
                ..DataOptions::default()
            };
            let writing = context.open_for_writing_with(&target.image, data)?;
            let copied = into::copy(context, how, &writing, sources, SourceKind::Named, &target.path)?;
            commit(context, &writing, &target, &copied)?;
            copied.totals
        } else {
            require_volume(destination, &target)?;
            if self.compress.is_some() {
                return Err(usage(
                    "--compress needs a destination in a volume: write it as IMAGE:/path",
                ));
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

/// Commits the copied files. If the copy failed in part, reports what the volume now contains.
fn commit(context: &Context, writing: &Writing, target: &Target, copied: &Copied) -> Result<()> {
    let shown = target.image.display();
    if let Err(error) = writing.commit() {
        return Err(error.context(format!(
            "{shown}: the copy failed and nothing was committed; the volume is unchanged"
        )));
    }
    let is_empty = copied
        .totals
        .iter()
        .all(|(_, totals)| *totals == Totals::default());
    if copied.failures == 0 || is_empty {
        return Ok(());
    }
    let sum =
        |count: fn(&Totals) -> u64| -> u64 { copied.totals.iter().map(|(_, totals)| count(totals)).sum() };
    let bytes = Units::default().text(sum(|totals| totals.bytes));
    context.tell(format_args!(
        "{shown}: committed: {} files ({bytes}), {} directories, {} others; {} errors: {}",
        sum(|totals| totals.files),
        sum(|totals| totals.directories),
        sum(|totals| totals.others.saturating_add(totals.hard_links)),
        copied.failures,
        if copied.is_full {
            "the volume is full, and files after the last error were not copied"
        } else {
            "these files were not copied"
        },
    ));
    Ok(())
}

/// Refuses a destination in the form of a volume path if neither the volume nor a host directory
/// for such a file name exists, because the user meant the volume.
fn require_volume(destination: &OsString, target: &Target) -> Result<()> {
    let parent = Path::new(destination).parent();
    if !target.has_path || parent.is_none_or(Path::is_dir) {
        return Ok(());
    }
    let image = target.image.display();
    Err(anyhow::anyhow!("{image}: no such file or directory"))
        .context(Advice::new("to create the volume, run `buttress mkfs IMAGE`"))
}

/// Splits off the destination, which is the last argument.
pub(crate) fn split_places(places: &[OsString]) -> Result<(&OsString, &[OsString])> {
    places
        .split_last()
        .filter(|(_, sources)| !sources.is_empty())
        .ok_or_else(|| usage("the destination is missing: give it as the last argument"))
}

/// Returns the name for a copy of the file at this path. The root and paths that end in `..` have
/// no name for a copy.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty() && *name != b".")
        .filter(|name| *name != b"..")
}
