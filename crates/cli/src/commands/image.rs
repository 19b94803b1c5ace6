//! `buttress image`: metadata dumps of volumes, and volumes from dumps, with the options of
//! btrfs-image.
//!
//! A dump has the bytes that btrfs-image reads, and the other way round. `-s` and `-ss` are the same
//! here: replacements always keep hashes. `-o` and `-d` are refused with the reason.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::check::Finding;
use buttress::dump::{self, DumpOptions, ReduceOptions, Sanitise};
use buttress::unstable::volume::signatures;
use buttress::{Device, DeviceOptions, FileKind, Location, Volume};
use clap::{ArgAction, Args};
use serde_json::json;
use uuid::Uuid;

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::new_files::NewFiles;
use crate::output::size::Units;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::sources::Role;
use crate::table::Subcommand;

/// Write all metadata of a volume to a dump, or restore a dump
///
/// A dump holds names, attributes and the structure of a volume, but no file content. btrfs-image
/// reads and writes the same format. A restored volume is for inspection: its data is missing.
#[derive(Args, Debug)]
pub struct Image {
    /// Restore a dump to an image or device
    #[arg(short = 'r')]
    restore: bool,
    /// Restore to all devices of the dumped volume
    #[arg(short = 'm', requires = "restore")]
    multi: bool,
    /// Level of zlib compression, from 0 to 9
    #[arg(short = 'c', value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=9))]
    level: u32,
    /// Number of threads that compress [default: one for each processor]
    #[arg(short = 't', value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Find blocks by a walk from the roots, for a damaged extent tree
    #[arg(short = 'w')]
    walk: bool,
    /// Replace all names and attributes; -ss is the same
    ///
    /// The hash of a name of five or more bytes stays. Names of up to 6 bytes can be computed from it,
    /// and guesses of longer names can be tested. Do not publish the dump if names are secret.
    #[arg(short = 's', action = ArgAction::Count, conflicts_with = "restore")]
    sanitise: u8,
    /// With -s, refuse a volume with a short name that has no replacement
    #[arg(long, requires = "sanitise")]
    strict: bool,
    /// Write the smallest sanitised dump in which a check reports this finding
    #[arg(
        long,
        value_name = "CODE",
        conflicts_with_all = ["restore", "level", "walk", "with_data", "force", "strict"]
    )]
    reduce: Option<String>,
    /// Refused: nothing opens a volume that is restored without changes to its chunk tree
    #[arg(short = 'o', hide = true)]
    old: bool,
    /// Refused: --with-data dumps the contents of chosen files
    #[arg(short = 'd', hide = true)]
    data: bool,
    /// Also dump the contents of this file of the volume
    #[arg(long, value_name = "PATH", conflicts_with = "restore")]
    with_data: Vec<PathBuf>,
    /// Overwrite existing content; with -s, accept --with-data
    #[arg(long)]
    force: bool,
    /// The image or device; with -r, the dump
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The dump, or - for standard output; with -r, the image or device
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<PathBuf>,
}

impl Subcommand for Image {
    const NAME: &'static str = "image";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress image -c 9 backup.img backup.dump",
            "Writes a compressed dump of the metadata",
        ),
        example(
            "buttress image -s -c 9 backup.img report.dump",
            "Writes a dump for a bug report, with replaced names and attributes",
        ),
        example(
            "buttress image --reduce link-count backup.img report.dump",
            "Writes the smallest dump that shows a finding of `buttress check`",
        ),
        example(
            "buttress image --with-data /etc/fstab backup.img backup.dump",
            "Writes a dump with the contents of one file",
        ),
        example(
            "buttress image -r backup.dump metadata.img",
            "Restores the metadata of a dump to an image",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        self.require_options()?;
        if self.restore {
            return self.run_restore(context);
        }
        let [target] = self.targets.as_slice() else {
            return Err(usage("a dump has one target"));
        };
        if let Some(code) = &self.reduce {
            return self.run_reduce(context, target, code);
        }
        self.run_dump(context, target)
    }
}

impl Image {
    /// Refuses options that contradict each other.
    fn require_options(&self) -> Result<()> {
        if self.old {
            return Err(usage(
                "-o is not supported: no tool opens a volume whose chunk tree still has the old places; leave out -o",
            ));
        }
        if self.data {
            return Err(usage(
                "-d is not supported: no release of btrfs-image enables it; to dump contents of files, give --with-data",
            ));
        }
        let is_sanitised = self.sanitise > 0;
        let has_contents = is_sanitised && !self.with_data.is_empty();
        if has_contents && !self.force {
            return Err(usage(
                "--with-data puts contents into the dump as they are, which -s is to remove; to do both, give --force",
            ));
        }
        if self.force && !self.restore && !has_contents {
            return Err(usage("--force needs -r, or -s with --with-data"));
        }
        Ok(())
    }

    fn run_dump(&self, context: &Context, target: &Path) -> Result<Outcome> {
        let volume = context.open_for_inspection(core::slice::from_ref(&self.source))?;
        let with_data = self.with_data.iter().map(|path| located(&volume, path));
        let with_data = with_data.collect::<Result<_>>()?;
        let options = DumpOptions {
            level: self.level,
            threads: self.threads(),
            walk: self.walk,
            sanitise: (self.sanitise > 0).then(|| Sanitise {
                secret: random_secret(),
                strict: self.strict,
            }),
            with_data,
        };
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "image", progress.clone());
        let to_stdout = target == Path::new("-");
        let dumped = if to_stdout {
            dump::write(&volume, &mut context.stdout(), &options, &progress)
        } else {
            let mut output = context.create_output(target)?;
            let dumped = dump::write(&volume, &mut output, &options, &progress);
            dumped.and_then(|dumped| {
                let finished = output.finish().map_err(io::Error::other);
                finished?;
                Ok(dumped)
            })
        };
        watch.end_as(dumped.is_ok());
        drop(cancelling);
        let dumped = dumped.with_context(|| format!("dumping {}", self.source.display()))?;
        if dumped.walked && !self.walk {
            context.warn("the extent tree is damaged: a walk from the roots found the blocks");
        }
        if dumped.kept_names > 0 {
            warn_of_names(context, dumped.kept_names);
        }
        if dumped.damaged_data > 0 {
            let bytes = Units::default().text(dumped.damaged_data);
            context.warn(format!(
                "{bytes} of the data match no checksum, and are in the dump as they are"
            ));
        }
        if dumped.unreadable > 0 {
            let count = dumped.unreadable;
            context.lost(&anyhow!(
                "{count} blocks have no readable copy with their own header or changed meanwhile, and are not in the dump"
            ));
        }
        if context.json() && !to_stdout {
            let object = json!({
                "blocks": dumped.blocks,
                "unreadable": dumped.unreadable,
                "bytes": dumped.bytes,
                "kept-names": dumped.kept_names,
                "data-bytes": dumped.data_bytes,
            });
            context.print_json("image", object)?;
        } else if !to_stdout && !context.globals().quiet {
            let mut out = context.stdout();
            let bytes = Units::default().text(dumped.bytes);
            let (blocks, target) = (dumped.blocks, terminal::shown(target.display()));
            writeln!(out, "{blocks} blocks written to {target} ({bytes})")?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }

    fn run_reduce(&self, context: &Context, target: &Path, code: &str) -> Result<Outcome> {
        if !Finding::CODES.iter().any(|(known, ..)| *known == code) {
            return Err(anyhow!("--reduce {code}: no finding has this code"))
                .context(Advice::new("`buttress check --codes` lists all codes"));
        }
        let volume = context.open_for_inspection(core::slice::from_ref(&self.source))?;
        let options = ReduceOptions {
            sanitise: Sanitise {
                secret: random_secret(),
                strict: false,
            },
            threads: self.threads(),
            ..ReduceOptions::default()
        };
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "image", progress.clone());
        let reduced = dump::reduce(&volume, code, &options, &progress);
        watch.end_as(reduced.is_ok());
        drop(cancelling);
        let reduced = reduced.with_context(|| format!("reducing {}", self.source.display()))?;
        if reduced.kept_names > 0 {
            warn_of_names(context, reduced.kept_names);
        }
        if target == Path::new("-") {
            let mut out = context.stdout();
            out.write_all(&reduced.dump)?;
            out.flush()?;
            return Ok(Outcome::Done);
        }
        let mut output = context.create_output(target)?;
        output.write_all(&reduced.dump)?;
        output.finish()?;
        if context.json() {
            let object = json!({
                "blocks": reduced.blocks,
                "blocks-before": reduced.blocks_before,
                "bytes": reduced.dump.len(),
                "checks": reduced.checks,
                "finding": reduced.finding.to_string(),
                "kept-names": reduced.kept_names,
            });
            context.print_json("image", object)?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            let bytes = Units::default().text(reduced.dump.len() as u64);
            let target = terminal::shown(target.display());
            let (blocks, before) = (reduced.blocks, reduced.blocks_before);
            writeln!(out, "{blocks} of {before} blocks written to {target} ({bytes})")?;
            writeln!(out, "{code}: {}", terminal::shown(reduced.finding.to_string()))?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }

    /// Returns the number of threads that compress.
    fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
        self.threads.map_or(processors, usize::from)
    }

    fn run_restore(&self, context: &Context) -> Result<Outcome> {
        if self.targets.len() > 1 && !self.multi {
            return Err(usage("give -m to restore to several devices"));
        }
        let input = File::open(&self.source);
        let input = input.with_context(|| format!("cannot open {}", self.source.display()))?;
        context.sources().add(&self.source, Role::Stream)?;
        let mut new_files = NewFiles::default();
        let devices = self
            .targets
            .iter()
            .enumerate()
            .map(|(number, target)| self.open_target(context, number, target, &mut new_files));
        let devices: Vec<Device> = devices.collect::<Result<_>>()?;
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "image", progress.clone());
        let restored = dump::restore(&mut BufReader::new(input), &devices, &progress);
        watch.end_as(restored.is_ok());
        drop(cancelling);
        let restored = restored.with_context(|| format!("restoring {}", self.source.display()))?;
        new_files.keep();
        if context.json() {
            let object = json!({ "bytes": restored.bytes, "one-device": restored.is_flattened });
            context.print_json("image", object)?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            let bytes = Units::default().text(restored.bytes);
            let targets: Vec<String> = self
                .targets
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            writeln!(out, "{bytes} written to {}", terminal::shown(targets.join(", ")))?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }

    /// Opens a device of the restored volume. Without an overlay, creates a missing file.
    fn open_target(
        &self,
        context: &Context,
        number: usize,
        target: &Path,
        new_files: &mut NewFiles,
    ) -> Result<Device> {
        context.sources().refuse_path(target)?;
        let overlay = context.overlay_of(number);
        if !target.exists() {
            if overlay.is_some() {
                return Err(anyhow!("{} does not exist", target.display())).context(Advice::new(
                    "an overlay needs an existing image; to create the image, leave out --overlay",
                ));
            }
            new_files.create(target)?;
        }
        let options = DeviceOptions {
            write: true,
            overlay,
            ..context.device_options()
        };
        let device = context.open_device(target, &options)?;
        if !self.force {
            refuse_content(&device, target, options.overlay.is_some())?;
        }
        Ok(device)
    }
}

/// Warns of names that have no replacement.
fn warn_of_names(context: &Context, count: u64) {
    context.warn(format!(
        "{count} names stay in the dump: no replacement keeps the order of the trees"
    ));
}

/// Returns the regular file at a path of the volume.
fn located(volume: &Volume, path: &Path) -> Result<Location> {
    let found = volume.root().metadata(path);
    let found = found.with_context(|| format!("cannot find {} in the volume", path.display()))?;
    match found.kind {
        FileKind::Regular => Ok(found.location),
        _ => Err(anyhow!("{} is no regular file of the volume", path.display())),
    }
}

/// Returns a secret for the replacements of names. Nothing keeps the secret.
fn random_secret() -> [u8; 32] {
    let mut secret = [0; 32];
    let (first, second) = secret.split_at_mut(16);
    first.copy_from_slice(Uuid::new_v4().as_bytes());
    second.copy_from_slice(Uuid::new_v4().as_bytes());
    secret
}

/// Refuses a target that holds a file system, or a regular file with data. An overlay keeps the
/// data of a file.
fn refuse_content(device: &Device, target: &Path, has_overlay: bool) -> Result<()> {
    let advice = || Advice::new("to overwrite it, give --force");
    if let Some(found) = signatures::find(device)? {
        return Err(anyhow!("{} seems to contain {found}", target.display())).context(advice());
    }
    let is_file = target.metadata().map(|metadata| metadata.is_file());
    let is_file = is_file.with_context(|| format!("cannot inspect {}", target.display()))?;
    if is_file && !has_overlay && device.next_data(0)?.is_some() {
        return Err(anyhow!("{} is not empty", target.display())).context(advice());
    }
    Ok(())
}
