//! `buttress convert IMAGE`: ext2, ext3 and ext4 to btrfs in place and back, with the options of
//! btrfs-convert.
//!
//! Each call first ends an interrupted conversion or roll back. Until the last step, the device
//! holds the old file system unchanged, so a signal cancels the command without a loss.
//!
//! Left out: compression, and roll backs of volumes that btrfs-convert made.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow};
use buttress::convert::{self, Error, Options, Resumed, RollBack, Source, Without};
use buttress::mkfs::{Identity, Options as MakeOptions};
use buttress::{ChecksumType, Device, DeviceOptions, Progress, Uuid};
use clap::Args;
use serde_json::{Value, json};

use crate::commands::mkfs::{checksum, features};
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::target::Target;
use crate::writing::environment;

/// Convert ext2, ext3 or ext4 to btrfs in place, or roll back
///
/// Files keep their blocks, and the subvolume ext2_saved holds the old file system as a file. The
/// file system must be unmounted and clean. After an interruption, the same command continues.
///
/// -r brings the old file system back, as long as ext2_saved exists and no balance has moved its
/// blocks. All changes since the conversion are then lost.
#[derive(Args, Debug)]
pub struct Convert {
    /// Store no checksums of file content
    #[arg(short = 'd', long)]
    no_datasum: bool,
    /// Leave out extended attributes and ACLs
    #[arg(short = 'i', long)]
    no_xattr: bool,
    /// Leave the content of small files in data blocks
    #[arg(short = 'n', long)]
    no_inline: bool,
    /// Checksum algorithm: crc32c, xxhash, sha256, blake2 [default: crc32c]
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", value_parser = checksum)]
    csum: Option<ChecksumType>,
    /// Size of tree blocks, up to 64K [default: 16K]
    #[arg(short = 'N', long, value_name = "SIZE", value_parser = parse_size)]
    nodesize: Option<u64>,
    /// Bring the old file system back
    #[arg(short = 'r', long, conflicts_with_all = [
        "no_datasum", "no_xattr", "no_inline", "csum", "nodesize", "label", "copy_label", "uuid", "features",
    ])]
    rollback: bool,
    /// Set this label
    #[arg(short = 'l', long, value_name = "LABEL")]
    label: Option<OsString>,
    /// Keep the label, which is the default
    #[arg(short = 'L', long, conflicts_with = "label")]
    copy_label: bool,
    /// Uuid of the volume: new, copy, or a uuid [default: new]
    #[arg(long, value_name = "SPEC")]
    uuid: Option<UuidWish>,
    /// Show the progress on a terminal, which is the default
    #[arg(short = 'p')]
    progress: bool,
    /// Do not show the progress
    #[arg(long, conflicts_with = "progress")]
    no_progress: bool,
    /// Features, joined by commas; ^NAME disables a feature; list-all prints all features
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// Roll back although changes since the conversion will be lost
    #[arg(short = 'f', long, requires = "rollback")]
    force: bool,
    /// The image or device
    #[arg(value_name = "IMAGE", required_unless_present = "features")]
    image: Option<PathBuf>,
}

/// Value of `--uuid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UuidWish {
    New,
    Copy,
    Given(Uuid),
}

impl FromStr for UuidWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "new" => Ok(Self::New),
            "copy" => Ok(Self::Copy),
            text => Uuid::from_str(text)
                .map(Self::Given)
                .map_err(|_| format!("{text:?} is neither new, copy nor a uuid")),
        }
    }
}

impl Subcommand for Convert {
    const NAME: &'static str = "convert";
    const EXAMPLES: &'static [Example] = &[
        example("buttress convert disk.img", "Converts ext4 to btrfs in place"),
        example("buttress convert -r disk.img", "Brings the old file system back"),
    ];

    fn uses(&self) -> Uses {
        Uses::DEVICE
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if features::asks_for_list(self.features.iter()) {
            return match &self.image {
                Some(image) => Err(usage(format_args!(
                    "-O list-all only lists features and takes no image (found {})",
                    image.display()
                ))),
                None => features::list(context),
            };
        }
        let Some(image) = self.image.clone() else {
            return Err(usage("the image or device is missing"));
        };
        let make = self.make()?;
        let options = DeviceOptions {
            write: true,
            overlay: context.overlay_of(0),
            ..context.device_options()
        };
        let job = Job {
            context,
            device: context.open_device(&image, &options)?,
            image,
            has_watch: !self.no_progress,
        };
        match self.rollback {
            true => job.roll_back(self.force),
            false => job.convert(&self, make),
        }
    }
}

impl Convert {
    fn make(&self) -> Result<MakeOptions> {
        let words = self.features.iter().flat_map(|list| list.split(','));
        let node_bytes = self.nodesize.map(|bytes| {
            // Clamp: the library refuses the largest size with the sizes that are possible.
            u32::try_from(bytes).unwrap_or(u32::MAX)
        });
        let label = self.label.as_ref();
        Ok(MakeOptions {
            label: label.map_or_else(Vec::new, |label| label.as_bytes().to_vec()),
            node_bytes,
            checksum: self.csum,
            features: features::parse(words)?,
            ..MakeOptions::default()
        })
    }

    /// Returns the options of a conversion of `source`.
    fn options(&self, make: MakeOptions, source: &Source) -> Result<Options> {
        let environment = environment(&format!("convert {}", source.uuid))?;
        let fsid = match self.uuid {
            None | Some(UuidWish::New) => environment.new_uuid(),
            Some(UuidWish::Copy) => source.uuid,
            Some(UuidWish::Given(uuid)) => uuid,
        };
        Ok(Options {
            make,
            identity: Identity {
                fsid,
                chunk_tree: environment.new_uuid(),
                top_level: environment.new_uuid(),
                devices: vec![environment.new_uuid()],
                time: environment.now(),
            },
            saved: environment.new_uuid(),
            folder: None,
            without: Without {
                checksums: self.no_datasum,
                attributes: self.no_xattr,
                inline: self.no_inline,
            },
        })
    }
}

/// A conversion or roll back of an opened device.
struct Job<'a> {
    context: &'a Context,
    device: Device,
    image: PathBuf,
    has_watch: bool,
}

impl Job<'_> {
    fn convert(&self, arguments: &Convert, make: MakeOptions) -> Result<Outcome> {
        if self.resume()? == Resumed::Finished {
            return self.print("converted", "Conversion complete");
        }
        let source = Source::read(&self.device).map_err(|error| self.named(error))?;
        let options = arguments.options(make, &source)?;
        let description = Self::description(&source, &options);
        let progress = self.context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let prepared = self.watched(&progress, || convert::prepare(&self.device, &options, &progress));
        let prepared = prepared.map_err(|error| {
            self.named(error).context(Advice::new(
                "the old file system is unchanged; solve the problem and run the command again",
            ))
        })?;
        prepared.publish().map_err(|error| self.unfinished(error))?;
        drop(cancelling);
        // A reader that closes the pipe must not stop the conversion, so all lines come at its end.
        self.print("converted", &format!("{description}Conversion complete"))
    }

    fn roll_back(&self, force: bool) -> Result<Outcome> {
        if self.resume()? == Resumed::PutBack {
            return self.print("rolled-back", "Rollback succeeded");
        }
        let found = RollBack::find(&self.device).map_err(|error| self.named(error))?;
        let commits = found.commits();
        if commits > 0 && !force {
            let image = self.image.display();
            return Err(anyhow!(
                "{image}: a roll back loses all changes since the conversion (commits: {commits})"
            ))
            .context(Advice::new("to lose them, give -f"));
        }
        let progress = self.context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let verified = self.watched(&progress, || found.verify(&progress));
        let verified = verified.map_err(|error| self.named(error))?;
        verified.run().map_err(|error| self.unfinished(error))?;
        drop(cancelling);
        self.print("rolled-back", "Rollback succeeded")
    }

    /// Ends an interrupted conversion or roll back.
    fn resume(&self) -> Result<Resumed> {
        let resumed = convert::resume(&self.device).map_err(|error| self.unfinished(error))?;
        let found = match resumed {
            Resumed::Nothing => return Ok(resumed),
            Resumed::Finished => "the btrfs volume",
            Resumed::PutBack => "the old file system",
        };
        self.context.notice(format!(
            "{}: a conversion was interrupted; the device now holds {found}",
            self.image.display()
        ));
        Ok(resumed)
    }

    /// Does a step with a display of its progress.
    fn watched<T>(
        &self,
        progress: &Progress,
        step: impl FnOnce() -> convert::Result<T>,
    ) -> convert::Result<T> {
        let watch = self
            .has_watch
            .then(|| Watch::start(self.context, "convert", progress.clone()));
        let done = step();
        if let Some(watch) = watch {
            watch.end_as(done.is_ok());
        }
        done
    }

    fn named(&self, error: Error) -> anyhow::Error {
        anyhow::Error::new(error).context(self.image.display().to_string())
    }

    /// Returns the error of a step that the next call continues.
    fn unfinished(&self, error: Error) -> anyhow::Error {
        self.named(error).context(Advice::new(
            "do not mount or repair the device; run the same command again to end the interrupted conversion",
        ))
    }

    /// Describes both file systems in the words of btrfs-convert.
    fn description(source: &Source, options: &Options) -> String {
        let yes = |is_left_out: bool| if is_left_out { "no" } else { "yes" }.to_owned();
        let shown = |label: &[u8]| terminal::shown(String::from_utf8_lossy(label)).to_string();
        let label = match options.make.label.as_slice() {
            [] => &source.label,
            label => label,
        };
        let checksum = options.make.checksum.map_or("crc32c", ChecksumType::name);
        let without = options.without;
        let rows = [
            ("Source filesystem:", None),
            ("  Type:", Some(source.kind.to_owned())),
            ("  Label:", Some(shown(&source.label))),
            ("  Blocksize:", Some(source.block_bytes.to_string())),
            ("  UUID:", Some(source.uuid.to_string())),
            ("Target filesystem:", None),
            ("  Label:", Some(shown(label))),
            ("  Blocksize:", Some(source.block_bytes.to_string())),
            ("  UUID:", Some(options.identity.fsid.to_string())),
            ("  Checksum:", Some(checksum.to_owned())),
            ("    Data csum:", Some(yes(without.checksums))),
            ("    Inline data:", Some(yes(without.inline))),
            ("    Copy xattr:", Some(yes(without.attributes))),
            ("Reported stats:", None),
            ("  Total space:", Some(source.bytes().to_string())),
            ("  Free space:", Some(source.free_bytes().to_string())),
            ("  Inode count:", Some(source.inodes.to_string())),
            ("  Free inodes:", Some(source.free_inodes.to_string())),
            ("  Block count:", Some(source.blocks.to_string())),
        ];
        let row = |(name, value): (&str, Option<String>)| match value {
            Some(value) => format!("{name:<17} {value}\n"),
            None => format!("{name}\n"),
        };
        rows.into_iter().map(row).collect()
    }

    fn print(&self, result: &'static str, line: &str) -> Result<Outcome> {
        if self.context.json() {
            let mut object = Target::parse(self.image.as_os_str()).as_json();
            object.insert("result".to_owned(), json!(result));
            self.context.print_json("convert", Value::Object(object))?;
        } else if !self.context.globals().quiet {
            let mut out = self.context.stdout();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
