//! `buttress undelete IMAGE PATH…`: versions of files that the newest state no longer has.
//!
//! The search is `buttress::salvage::history`. Versions are written by the extraction of `restore`, state
//! by state, with the verdicts of `restore`.
//!
//! # Left out
//!
//! Files that no known root leads to.

mod listing;
mod pattern;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use buttress::salvage::{
    BlockIndex, History, Identity, Verdict, Version, ViewOptions, best_versions, history, open_state, states,
};
use buttress::{ByteCount, Device, FileKind, Progress};
use clap::Args;

use crate::commands::restore::report::Judging;
use crate::commands::restore::roots::scanned;
use crate::commands::restore::versions::VersionWriter;
use crate::context::Context;
use crate::exit::{self, Outcome, usage};
use crate::extract::{Chosen, Preserve};
use crate::globals::{DEFAULT_CACHE_BYTES, Uses};
use crate::manual::{Example, example};
use crate::opening::advised;
use crate::opening::states::{default_index, identity_of, index_of};
use crate::progress::Watch;
use crate::replacing::Replacing;
use crate::signals::Cancelling;
use crate::sources::Role;
use crate::table::Subcommand;
use crate::target::Target;
use pattern::{Pattern, Patterns};

/// Find deleted and changed files in older states, and write them to a directory
///
/// The command lists the versions that the newest commit no longer has, and says which of them are
/// whole. With -o, it writes the newest whole version of each file. It writes nothing to the image.
/// Without an index of `buttress rescue scan`, it searches the whole device for older states.
///
/// A PATH with a slash begins at the top level; one without a slash is a name in any directory. `*`, `?`
/// and `[…]` match within a name, and `**` across directories. A directory stands for all files below it.
///
/// Exit codes: 0 if each file has a verified version, 1 if one has none or nothing was found, 2 if no
/// state could be read. With --all, 1 if any version is not verified.
#[derive(Args, Debug)]
pub struct Undelete {
    /// Write the newest whole version of each file below this directory
    #[arg(short = 'o', long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// With -o, write all versions, as NAME.gGENERATION, or NAME.gGENERATION-ROOT for a second root of it
    #[arg(long, requires = "output")]
    all: bool,
    /// With -o, write verified versions only
    #[arg(long, requires = "output")]
    verified_only: bool,
    /// With -o, restore extended attributes
    #[arg(short = 'x', long = "xattr", requires = "output")]
    xattrs: bool,
    /// With -o, restore owners, modes and times
    #[arg(short = 'm', long, requires = "output")]
    metadata: bool,
    /// Find symbolic links, too
    #[arg(short = 'S', long)]
    symlink: bool,
    /// With -o, write the verdict on each file to this file, as JSON
    #[arg(long, value_name = "FILE", requires = "output")]
    report: Option<PathBuf>,
    /// The index of a scan [default: the image's name with .scan appended, if the file exists]
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// Without an index, read only the states that superblocks name
    #[arg(long, conflicts_with = "index")]
    no_scan: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The paths or patterns of the files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

impl Subcommand for Undelete {
    const NAME: &'static str = "undelete";
    const TROUBLE: u8 = exit::USAGE;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress undelete disk.img /home/anna/thesis.odt",
            "Lists the versions of a file, and which of them are whole",
        ),
        example(
            "buttress undelete -o rescued -m disk.img '*.jpg' /home/anna/letters",
            "Writes the newest whole version of deleted photos, and of all files in a directory",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        if target.has_path {
            let path = target.path.escape_ascii();
            return Err(usage(format_args!(
                "{}: give the path {path} as a separate argument",
                self.image.display()
            )));
        }
        let mut patterns = Vec::new();
        for path in &self.paths {
            let pattern = Pattern::new(path.as_bytes());
            patterns.push(pattern.map_err(|error| usage(format_args!("{}: {error}", path.display())))?);
        }
        let patterns = Patterns(patterns);
        let devices = context.open_devices(std::slice::from_ref(&target.image))?;
        let progress = context.progress();
        let cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, Self::NAME, progress.clone());
        let done = self.search(context, &target, &devices, &patterns, &progress);
        let done = done.and_then(|search| self.finish(context, &search, &patterns, &progress));
        watch.end_as(done.is_ok());
        drop(cancelling);
        done
    }
}

/// The versions of all files that the user named.
struct Search<'a> {
    devices: &'a [Device],
    identity: Identity,
    options: ViewOptions,
    history: History,
}

impl Undelete {
    fn search<'a>(
        &self,
        context: &Context,
        target: &Target,
        devices: &'a [Device],
        patterns: &Patterns,
        progress: &Progress,
    ) -> Result<Search<'a>> {
        let image = &target.image;
        let index = index_of(context, image, self.index.as_deref(), devices)?.map(Arc::new);
        if index.is_some() {
            let path = self.index.clone();
            let path = path.unwrap_or_else(|| default_index(image)); // Clamp: the default is the index in use.
            context.sources().add(&path, Role::Index)?;
        }
        let (identity, index) = match index {
            Some(index) => (index.identity().clone(), Some(index)),
            None if self.no_scan => (identity_of(image, devices, None, progress)?, None),
            None => self.scan(context, image, devices, progress)?,
        };
        let found = states(devices, identity.fsid, index.as_deref())?;
        if found.is_empty() {
            return Err(anyhow!("{}: no root tree is known", image.display()));
        }
        let globals = context.globals();
        let options = ViewOptions {
            // Clamp: without the option, the default budget counts.
            cache: ByteCount::new(globals.cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES)),
            rescue: globals.rescue(),
            degraded: globals.degraded,
            index,
        };
        let found = history(devices, &identity, &found, &options, patterns, progress);
        let mut history = found.map_err(|error| advised(error.into()))?;
        match &history.newest_error {
            Some(error) if history.states == 0 => {
                let nothing = format!("{}: no state can be read", image.display());
                return Err(anyhow::Error::new(Arc::clone(error)).context(nothing));
            }
            Some(error) => context.warn(format_args!(
                "the newest commit cannot be read, so files that it has are listed, too: {error}"
            )),
            None => {}
        }
        if !self.symlink {
            history
                .versions
                .retain(|version| version.kind == FileKind::Regular);
        }
        if history.is_cut {
            context.warn("too many versions match, so the rest is left out; give a narrower path");
        }
        if history.unopened > 0 || history.unreadable > 0 {
            context.notice(format_args!(
                "states that do not open: {}; overwritten tree blocks: {}",
                history.unopened, history.unreadable
            ));
        }
        Ok(Search {
            devices,
            identity,
            options,
            history,
        })
    }

    fn scan(
        &self,
        context: &Context,
        image: &Path,
        devices: &[Device],
        progress: &Progress,
    ) -> Result<(Identity, Option<Arc<BlockIndex>>)> {
        context.notice(format_args!(
            "{}: all blocks are searched for older states; `buttress rescue scan` keeps the result",
            image.display()
        ));
        let (identity, index) = scanned(context, devices, progress)?;
        Ok((identity, Some(index)))
    }

    /// Lists the versions, or writes them.
    fn finish(
        &self,
        context: &Context,
        search: &Search<'_>,
        patterns: &Patterns,
        progress: &Progress,
    ) -> Result<Outcome> {
        let versions = &search.history.versions;
        let mut is_missing = false;
        for (pattern, argument) in patterns.0.iter().zip(&self.paths) {
            if !versions.iter().any(|version| pattern.matches(&version.path)) {
                is_missing = true;
                context.warn(format_args!("{}: no older version was found", argument.display()));
            }
        }
        let outcome = match &self.output {
            None => {
                listing::print(context, &search.history)?;
                let best = best_versions(versions);
                match best.iter().all(|version| version.verdict() == Verdict::Verified) {
                    true => Outcome::Done,
                    false => Outcome::Negative,
                }
            }
            Some(directory) => self.write(context, search, directory, progress)?,
        };
        Ok(match outcome {
            Outcome::Done if is_missing || search.history.is_cut => Outcome::Negative,
            other => other,
        })
    }

    /// Returns the versions to write.
    fn chosen<'a>(&self, context: &Context, versions: &'a [Version]) -> Vec<&'a Version> {
        if self.all {
            return versions.iter().collect();
        }
        let mut best = best_versions(versions);
        best.retain(|version| {
            let Some(now) = &version.renamed_to else {
                return true;
            };
            context.warn(format_args!(
                "{}: left out, because it was renamed to /{}",
                listing::path(version),
                now.escape_ascii()
            ));
            false
        });
        best
    }

    /// Writes versions below a directory.
    fn write(
        &self,
        context: &Context,
        search: &Search<'_>,
        directory: &Path,
        progress: &Progress,
    ) -> Result<Outcome> {
        let versions = self.chosen(context, &search.history.versions);
        let Some(first) = versions.first() else {
            // `finish` reports paths without a version. Files that were only renamed are not lost.
            return Ok(Outcome::Done);
        };
        if !directory.exists() {
            std::fs::create_dir(directory).with_context(|| format!("making {}", directory.display()))?;
        }
        let view = open_state(search.devices, &search.identity, &first.state, &search.options)?;
        let judging = Arc::new(Judging::start(
            context,
            Self::NAME,
            (first.judge(&view), first.state.generation().get()),
            None,
            (self.report.as_deref(), self.verified_only),
        )?);
        let writer = VersionWriter {
            devices: search.devices,
            identity: &search.identity,
            options: &search.options,
            directory,
            preserve: Preserve::Some(Chosen {
                metadata: self.metadata,
                xattrs: self.xattrs,
            }),
            replacing: Replacing {
                no_clobber: true,
                by_others: true,
                keep_links: true,
                ..Replacing::default()
            },
            numbered: self.all,
        };
        let is_cut = writer.write(context, versions, &judging, progress)?;
        let judging = Arc::into_inner(judging).context("a thread still restores files")?;
        let verdicts = judging.finish(context)?;
        Ok(match is_cut {
            true => Outcome::Code(Self::TROUBLE),
            false => verdicts,
        })
    }
}
