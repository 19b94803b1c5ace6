//! `buttress image`: metadata dumps of volumes, and volumes from dumps, with the options of
//! btrfs-image.
//!
//! A dump has the bytes that btrfs-image reads, and the other way round. `-s` and `-ss` are the same
//! here: replacements always keep hashes. Left out: `-o` (the result opens nowhere) and `-d`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::dump::{self, DumpOptions, Sanitise};
use buttress::unstable::volume::signatures;
use buttress::{Device, DeviceOptions};
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
    /// Overwrite existing content
    #[arg(long, requires = "restore")]
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
            "buttress image -r backup.dump metadata.img",
            "Restores the metadata of a dump to an image",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if self.restore {
            return self.run_restore(context);
        }
        let [target] = self.targets.as_slice() else {
            return Err(usage("a dump has one target"));
        };
        self.run_dump(context, target)
    }
}

impl Image {
    fn run_dump(&self, context: &Context, target: &Path) -> Result<Outcome> {
        let volume = context.open_for_inspection(core::slice::from_ref(&self.source))?;
        let processors = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
        let options = DumpOptions {
            level: self.level,
            threads: self.threads.map_or(processors, usize::from),
            walk: self.walk,
            sanitise: (self.sanitise > 0).then(|| Sanitise {
                secret: random_secret(),
                strict: self.strict,
            }),
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
            let count = dumped.kept_names;
            context.warn(&format!(
                "{count} names stay in the dump: no replacement keeps the order of the trees"
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
