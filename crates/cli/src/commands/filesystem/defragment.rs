//! `buttress filesystem defragment IMAGE:/PATH…`: joins small extents of files, or compresses files.
//!
//! As `btrfs filesystem defragment` does, the command prints nothing about files that it
//! defragmented, and continues after a file that fails. With `-r` it stays in the subvolume, and
//! follows no symbolic link. Without `-r`, a directory is left alone with a warning.
//!
//! Clamps: sums for display, and ranges without an end.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write as _;

use anyhow::{Context as _, Result, anyhow};
use buttress::{
    ByteCount, CompressionMethod, DefragmentCompression, DefragmentOptions, DefragmentSummary, Error,
    ErrorKind, FileKind, FileOffset, Follow, Location, Progress, WalkItem, WalkOptions,
};
use clap::Args;
use serde_json::json;

use crate::commands::subvolume::open_one_volume;
use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::globals::parse_size;
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::{MountView, Subcommand};
use crate::target::Target;
use crate::writing::Writing;

/// The target size of Linux for `-t 0`.
const TARGET_OF_LINUX: u64 = 256 << 10;

/// The smallest step.
const STEP_MIN: u64 = 256 << 10;

/// Join small extents of files, and compress files
///
/// Content and times of the files stay. Snapshots and clones keep the old extents, so defragmented
/// files need space of their own; --keep-shared avoids this.
#[derive(Args, Debug)]
pub struct Defragment {
    /// Defragment all files below directories, except in nested subvolumes
    #[arg(short = 'r')]
    recursive: bool,
    /// Compress the files: zlib (the default), lzo or zstd
    #[arg(
        short = 'c', value_name = "ALGORITHM[:LEVEL]", num_args = 0..=1, require_equals = true,
        default_missing_value = "zlib"
    )]
    compress: Option<String>,
    /// Level of the compression: 1 to 9 for zlib, -15 to 15 for zstd
    #[arg(short = 'L', long, value_name = "LEVEL", allow_hyphen_values = true)]
    level: Option<i32>,
    /// Compress nothing, and decompress compressed content
    #[arg(long, conflicts_with = "compress")]
    nocomp: bool,
    /// Commit after each file
    #[arg(short = 'f')]
    flush: bool,
    /// Defragment from this byte on
    #[arg(short = 's', value_name = "START", value_parser = parse_size)]
    start: Option<u64>,
    /// Defragment at most this many bytes of each file; 0 means all bytes to its end
    #[arg(short = 'l', value_name = "LEN", value_parser = parse_size)]
    length: Option<u64>,
    /// Leave extents of at least this size alone; 0 means 256K
    #[arg(short = 't', value_name = "SIZE", default_value = "32M", value_parser = parse_size)]
    target: u64,
    /// Rewrite this much content at a time, and commit after each step
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    step: Option<u64>,
    /// Move extents with several users together for all of them, and rewrite only the others
    #[arg(long)]
    keep_shared: bool,
    /// Files and directories, all in one volume
    #[arg(value_name = "IMAGE:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// A file to defragment, with its name for messages.
struct Found {
    location: Location,
    name: Vec<u8>,
    size: u64,
}

impl Subcommand for Defragment {
    const NAME: &'static str = "defragment";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress filesystem defragment -r backup.img:/var/lib",
            "Joins the small extents of all files below a directory",
        ),
        example(
            "buttress filesystem defragment -r -czstd:9 backup.img:/home",
            "Compresses all files below a directory",
        ),
        example(
            "buttress filesystem defragment --keep-shared backup.img:/database",
            "Defragments a file that snapshots share",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let options = self.options()?;
        let targets: Vec<Target> = self.targets.iter().map(|target| context.target(target)).collect();
        let writing = open_one_volume(context, &targets)?;
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let mut files = Vec::new();
        let mut seen = HashSet::new();
        for target in &targets {
            if let Err(error) = self.find(context, &writing, target, &mut seen, &mut files) {
                context.lost(&target.name_in(error));
            }
        }
        let bytes = files
            .iter()
            .fold(0_u64, |sum, file| sum.saturating_add(file.size));
        progress.expect(ByteCount::new(bytes));
        let watch = Watch::start(context, "defragment", progress.clone());
        let mut done = Done::default();
        let ended = self.defragment_all(context, &writing, &files, &options, &progress, &mut done);
        watch.end_as(ended.is_ok());
        drop(cancelling);
        // A file that was defragmented stays so, also after a cancellation.
        writing.commit()?;
        done.print(context)?;
        ended?;
        Ok(Outcome::Done)
    }
}

impl Defragment {
    fn options(&self) -> Result<DefragmentOptions> {
        let method = |text: &String| -> Result<CompressionMethod> {
            let text = match self.level {
                Some(_) if text.contains(':') => {
                    return Err(usage("give the level once: -cALGORITHM:LEVEL or -L LEVEL"));
                }
                Some(level) => format!("{text}:{level}"),
                None => text.clone(),
            };
            text.parse()
                .map_err(|error: String| usage(format_args!("-c: {error}")))
        };
        let compression = match &self.compress {
            Some(text) => DefragmentCompression::With(method(text)?),
            None if self.level.is_some() => return Err(usage("-L needs -c")),
            None if self.nocomp => DefragmentCompression::Never,
            None => DefragmentCompression::Keep,
        };
        let defaults = DefragmentOptions::default();
        Ok(DefragmentOptions {
            start: FileOffset::new(self.start.unwrap_or(0)),
            length: self
                .length
                .filter(|length| *length > 0)
                .map_or(defaults.length, ByteCount::new),
            target: match self.target {
                0 => ByteCount::new(TARGET_OF_LINUX),
                target => ByteCount::new(target),
            },
            step: self
                .step
                .map_or(defaults.step, |step| ByteCount::new(step.max(STEP_MIN))),
            compression,
            keeps_sharing: self.keep_shared,
        })
    }

    /// Adds the files of a target.
    fn find(
        &self,
        context: &Context,
        writing: &Writing,
        target: &Target,
        seen: &mut HashSet<Location>,
        files: &mut Vec<Found>,
    ) -> Result<()> {
        let location = writing.resolve(&target.path, Follow::All)?;
        let metadata = writing.volume().metadata(location)?;
        match metadata.kind {
            FileKind::Regular => {
                if seen.insert(location) {
                    files.push(Found {
                        location,
                        name: target.name_of(b""),
                        size: metadata.size.get(),
                    });
                }
                Ok(())
            }
            FileKind::Directory if self.recursive => {
                let options = WalkOptions {
                    one_file_system: true,
                    progress: context.progress(),
                    ..WalkOptions::without_content()
                };
                for item in writing.volume().walk(location, options) {
                    match item {
                        WalkItem::Entry(entry) => {
                            let metadata = entry.metadata();
                            if metadata.kind == FileKind::Regular && seen.insert(metadata.location) {
                                files.push(Found {
                                    location: metadata.location,
                                    name: target.name_of(&entry.path()),
                                    size: metadata.size.get(),
                                });
                            }
                        }
                        WalkItem::Failed(error) => context.lost(&target.name_in(error)),
                        WalkItem::Enter(_) | WalkItem::Leave(_) => {}
                    }
                }
                Ok(())
            }
            FileKind::Directory => {
                context.warn(format_args!(
                    "{} is a directory and stays as it is; -r defragments the files below it",
                    terminal::shown(target.display())
                ));
                Ok(())
            }
            _ => Err(anyhow!("not a regular file or a directory")),
        }
    }

    fn defragment_all(
        &self,
        context: &Context,
        writing: &Writing,
        files: &[Found],
        options: &DefragmentOptions,
        progress: &Progress,
        done: &mut Done,
    ) -> Result<()> {
        let mut out = context.stdout();
        for file in files {
            progress.check()?;
            if context.globals().verbose > 0 && !context.json() {
                out.write_all(&context.printable(&file.name))?;
                writeln!(out)?;
            }
            // Output may wait for its reader, so it is no part of a job that an unmount waits for.
            let job = context.begin_job(progress)?;
            let summary = match self.defragment(writing, file, options, progress) {
                Ok(summary) => summary,
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error.into()),
                Err(error) => {
                    let name = terminal::shown(String::from_utf8_lossy(&file.name)).to_string();
                    context.lost(&anyhow::Error::new(error).context(name));
                    continue;
                }
            };
            drop(job);
            progress.advance(1, ByteCount::ZERO);
            done.files = done.files.saturating_add(1);
            done.summary.add(&summary);
            if self.flush {
                writing.commit()?;
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Defragments a file: as a whole, or in steps with a commit after each.
    fn defragment(
        &self,
        writing: &Writing,
        file: &Found,
        options: &DefragmentOptions,
        progress: &Progress,
    ) -> Result<DefragmentSummary, Error> {
        let opened = writing.volume().open_file(file.location)?;
        if self.step.is_none() {
            return opened.defragment(options, progress);
        }
        let end = options.start.get().saturating_add(options.length.get());
        let mut summary = DefragmentSummary::default();
        let mut at = options.start.get();
        loop {
            // The file may shrink meanwhile.
            let size = opened.size()?.get();
            if at >= end.min(size) && at > options.start.get() {
                return Ok(summary);
            }
            let step = DefragmentOptions {
                start: FileOffset::new(at),
                length: ByteCount::new(end.saturating_sub(at).min(options.step.get())),
                ..*options
            };
            summary.add(&opened.defragment(&step, progress)?);
            writing.volume().sync()?;
            at = at.saturating_add(options.step.get());
        }
    }
}

/// The work of the command.
#[derive(Debug, Default)]
struct Done {
    files: u64,
    summary: DefragmentSummary,
}

impl Done {
    fn print(&self, context: &Context) -> Result<()> {
        let summary = &self.summary;
        if context.json() {
            let document = json!({
                "files": self.files,
                "old_extents": summary.old_extents,
                "new_extents": summary.new_extents,
                "rewritten": summary.rewritten.get(),
                "moved": summary.moved.get(),
                "left": summary.left.get(),
                "busy": summary.busy.get(),
            });
            return context.print_json("filesystem-defragment", document);
        }
        if context.globals().verbose == 0 {
            return Ok(());
        }
        let units = Units::default();
        let mut out = context.stdout();
        write!(
            out,
            "{} file{}: {} rewritten, extents: {} before, {} now",
            self.files,
            if self.files == 1 { "" } else { "s" },
            units.text(summary.rewritten.get()),
            summary.old_extents,
            summary.new_extents
        )?;
        for (bytes, what) in [
            (summary.moved, "moved and still shared"),
            (summary.left, "left, for lack of better space"),
            (summary.busy, "left, because of writers"),
        ] {
            if bytes > ByteCount::ZERO {
                write!(out, "; {} {what}", units.text(bytes.get()))?;
            }
        }
        writeln!(out)?;
        out.flush().context("writing the result")
    }
}
