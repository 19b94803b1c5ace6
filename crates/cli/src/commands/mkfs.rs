//! `buttress mkfs IMAGE…`: creates a volume, with the flags and the summary of mkfs.btrfs.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::build::derived_uuid;
use buttress::mkfs::{Feature, Identity, Made, Options};
use buttress::unstable::volume::signatures;
use buttress::{ByteCount, ChecksumType, Device, DeviceOptions, Environment, Profile, Uuid, mkfs};
use clap::Args;

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::{Offset, Uses, parse_size};
use crate::manual::{Example, example};
use crate::new_files::NewFiles;
use crate::output::size::Units;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::writing;

mod build;
pub(super) mod features;
mod sources;
mod summary;
mod wishes;

/// Make a volume on images or devices
///
/// An image file that does not exist is created: sparse, and with 16 GiB unless --size is given. If
/// mkfs fails, it removes the new image file. The devices lose their content; a device that seems
/// to contain data needs -f.
///
/// With --rootdir, the volume gets the content of a directory, without a mount and without
/// privileges. A new image file is then as small as possible, unless --size is given. Equal content
/// and options give equal bytes if -U, SOURCE_DATE_EPOCH and DETERMINISTIC_SEED=1 are set.
#[derive(Args, Debug)]
#[command(version, display_name = "buttress mkfs")]
pub struct Mkfs {
    /// Profile of data: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5, raid6 [default:
    /// single]
    #[arg(short, long, value_name = "PROFILE", value_parser = profile)]
    data: Option<Profile>,
    /// Profile of metadata, by the names of --data [default: dup on one device, raid1 on more]
    #[arg(short, long, value_name = "PROFILE", value_parser = profile)]
    metadata: Option<Profile>,
    /// Store data and metadata in the same block groups, for small volumes
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Checksum algorithm: crc32c, xxhash, sha256, blake2 [default: crc32c]
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", value_parser = checksum)]
    csum: Option<ChecksumType>,
    /// Size of tree blocks, 4K to 64K [default: 16K]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    nodesize: Option<u64>,
    /// Size of data sectors [default: 4K]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    sectorsize: Option<u64>,
    /// Features, joined by commas; ^NAME disables a feature; list-all prints all features
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// For compatibility: as --features
    #[arg(short = 'R', long, value_name = "LIST", hide = true)]
    runtime_features: Vec<String>,
    /// Label, at most 255 bytes
    #[arg(
        short = 'L',
        long,
        value_name = "LABEL",
        default_value = "",
        hide_default_value = true
    )]
    label: std::ffi::OsString,
    /// Uuid of the volume [default: a random one]
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Uuid of the device, for a volume of one device [default: a random one]
    #[arg(long, value_name = "UUID")]
    device_uuid: Option<Uuid>,
    /// Use this much of each device, and create image files with this size. `auto` uses as little as
    /// possible [default: all of a device; 16G for an image, auto with --rootdir]
    #[arg(short, long, visible_alias = "size", value_name = "SIZE", value_parser = size)]
    byte_count: Option<SizeWish>,
    #[command(flatten)]
    build: build::BuildArguments,
    /// Do not discard the devices first
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Overwrite devices that seem to contain a volume or other data
    #[arg(short, long)]
    force: bool,
    /// The image files or block devices
    #[arg(value_name = "IMAGE", required_unless_present = "features")]
    images: Vec<PathBuf>,
}

/// Value of `--size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeWish {
    Auto,
    Bytes(u64),
}

fn size(text: &str) -> Result<SizeWish, String> {
    match text {
        "auto" => Ok(SizeWish::Auto),
        text => parse_size(text).map(SizeWish::Bytes),
    }
}

fn profile(text: &str) -> Result<Profile, String> {
    let found = Profile::ALL
        .into_iter()
        .find(|profile| profile.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("unknown profile {text:?}"))
}

pub(super) fn checksum(text: &str) -> Result<ChecksumType, String> {
    let named = [
        ("crc32c", ChecksumType::Crc32c),
        ("xxhash", ChecksumType::Xxhash64),
        ("xxhash64", ChecksumType::Xxhash64),
        ("sha256", ChecksumType::Sha256),
        ("blake2", ChecksumType::Blake2b),
        ("blake2b", ChecksumType::Blake2b),
    ];
    let found = named
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text));
    found
        .map(|(_, checksum)| checksum)
        .ok_or_else(|| format!("unknown checksum {text:?}"))
}

/// Default size of a new image file in bytes. The file is sparse and allocates only written blocks.
const IMAGE_BYTES: u64 = 16 << 30;

/// Returns whether nothing exists at a path, or an error if a file exists that cannot hold a
/// volume.
fn is_missing(image: &Path) -> Result<bool> {
    let named = || image.display().to_string();
    let kind = match image.metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if image.symlink_metadata().is_ok() {
                return Err(anyhow::anyhow!(
                    "{} is a symbolic link to a missing file",
                    image.display()
                ))
                .context(Advice::new("remove the link, or create its target"));
            }
            return Ok(true);
        }
        Err(error) => return Err(error).with_context(named),
    };
    let what = if kind.is_file() || kind.is_block_device() {
        return Ok(false);
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a character device"
    };
    Err(anyhow::anyhow!("{} is {what}", image.display()))
        .context(Advice::new("give an image file or a block device"))
}

/// Returns the end of a volume of `bytes` bytes that starts at byte `start` of an image.
fn end_of_volume(start: u64, bytes: u64) -> Result<u64> {
    start.checked_add(bytes).ok_or_else(|| {
        usage(format_args!(
            "--offset: a volume of {bytes} bytes at offset {start} is larger than any file"
        ))
    })
}

impl Subcommand for Mkfs {
    const NAME: &'static str = "mkfs";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress mkfs new.img",
            "Makes a volume in a new sparse image file of 16 GiB",
        ),
        example(
            "buttress mkfs --rootdir tree --compress zstd image.img",
            "Makes the smallest volume with the content of a directory, compressed",
        ),
        example(
            "buttress mkfs -d raid1 -m raid1 -b 4G one.img two.img",
            "Makes a volume of two images that mirror each other",
        ),
    ];

    fn uses(&self) -> Uses {
        // The command's own option `--subvol` has the name of the global option.
        Uses {
            root_id: false,
            volume: false,
            state: false,
            ..Uses::PATHS
        }
    }

    fn run(mut self, context: &Context) -> Result<Outcome> {
        let features = self.features.iter().chain(&self.runtime_features);
        if features::asks_for_list(features) {
            if let Some(image) = self.images.first() {
                return Err(usage(format_args!(
                    "-O list-all only lists features and takes no image (found {})",
                    image.display()
                )));
            }
            return features::list(context);
        }
        if self.images.is_empty() {
            return Err(anyhow::anyhow!("the image or device is missing"));
        }
        let images: Vec<PathBuf> = self
            .images
            .iter()
            .chain(&context.globals().devices)
            .cloned()
            .collect();
        let mut time = self.environment()?.now();
        time.nanoseconds = 0;
        let sources = self
            .build
            .sources
            .open(context, &images, time, &context.progress())?;
        self.follow(&sources.wishes)?;
        let features = self.features.iter().chain(&self.runtime_features);
        let words: Vec<&str> = features.flat_map(|list| list.split(',')).collect();
        let options = self.options(&words)?;
        let has_quotas = [Feature::Quotas, Feature::SimpleQuotas]
            .iter()
            .any(|feature| options.has(*feature));
        if !self.build.has_source() {
            self.build.refuse_alone()?;
        }
        if self.build.has_source()
            || self.build.shrinks()
            || self.build.leaves_slack()
            || self.byte_count == Some(SizeWish::Auto)
            || has_quotas
            || self.build.sets_owners()
        {
            return self.build_volume(context, &images, options, sources);
        }
        let least = LeastBytes {
            volume: mkfs::least_device_bytes(&options, images.len())?,
            file: mkfs::least_device_bytes_for_a_file(&options, images.len())?,
        };
        let progress = context.progress();
        // A cancelled command must not leave an incomplete image file.
        let cancelling = Cancelling::start(&progress)?;
        let new_files = self.make_files(context, &images, self.bytes(), least)?;
        let (made, devices) = self.make(context, &images, &options)?;
        progress.check()?;
        new_files.keep();
        drop(cancelling);
        summary::print(context, &made, &devices)?;
        Ok(Outcome::Done)
    }
}

/// The advice for a device that is too small.
fn least_advice(least: ByteCount) -> Advice {
    let size = Units::default().text(least.get());
    Advice(format!(
        "the smallest size is {size} ({least} bytes): give --size {least} or more"
    ))
}

/// Smallest sizes of each device.
#[derive(Clone, Copy, Debug, Default)]
struct LeastBytes {
    /// Smallest size for a volume.
    volume: ByteCount,
    /// Smallest size for a volume that holds a file.
    file: ByteCount,
}

impl Mkfs {
    fn bytes(&self) -> Option<u64> {
        match self.byte_count {
            Some(SizeWish::Bytes(bytes)) => Some(bytes),
            Some(SizeWish::Auto) | None => None,
        }
    }

    fn make(&self, context: &Context, images: &[PathBuf], options: &Options) -> Result<(Made, Vec<Device>)> {
        let opening = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        // The images already include the devices of `--device`.
        let devices = context.open_devices_with(&self.images, &opening)?;
        for (device, image) in devices.iter().zip(images) {
            self.refuse_content(device, image)?;
        }
        let identity = self.identity(devices.len(), self.environment()?.as_ref())?;
        let made = mkfs::make(&devices, options, &identity).map_err(|error| {
            let least = match &error {
                mkfs::Error::TooSmall { least, .. } => Some(*least),
                _ => None,
            };
            let error = anyhow::Error::new(error).context("making the volume");
            match least {
                Some(least) => error.context(least_advice(least)),
                None => error,
            }
        })?;
        Ok((made, devices))
    }

    fn options(&self, words: &[&str]) -> Result<Options> {
        let small = |bytes: Option<u64>| bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let mut features = features::parse(words.iter().copied())?;
        if self.mixed {
            features.push((Feature::MixedBlockGroups, true));
        }
        Ok(Options {
            label: std::os::unix::ffi::OsStrExt::as_bytes(self.label.as_os_str()).to_vec(),
            node_bytes: small(self.nodesize),
            sector_bytes: small(self.sectorsize),
            checksum: self.csum,
            data: self.data,
            metadata: self.metadata,
            features,
            device_bytes: self.bytes().map(ByteCount::new),
            keep_contents: self.nodiscard,
            root_owner: self.build.root_owner(),
        })
    }

    /// Creates the missing image files.
    fn make_files(
        &self,
        context: &Context,
        images: &[PathBuf],
        wanted: Option<u64>,
        least: LeastBytes,
    ) -> Result<NewFiles> {
        let bytes = wanted.unwrap_or(IMAGE_BYTES);
        let missing: Vec<&PathBuf> = images
            .iter()
            .filter_map(|image| {
                is_missing(image)
                    .map(|missing| missing.then_some(image))
                    .transpose()
            })
            .collect::<Result<_>>()?;
        if !missing.is_empty() && bytes < least.volume.get() {
            return Err(anyhow::anyhow!(
                "the size is too small (found {bytes} bytes, expected at least {} for each device)",
                least.file
            ))
            .context(least_advice(least.file));
        }
        if let (Some(image), Some(_)) = (missing.first(), &context.globals().overlay) {
            return Err(anyhow::anyhow!("{} does not exist", image.display())).context(Advice::new(
                "an overlay needs an existing image; to create the image, leave out --overlay",
            ));
        }
        let start = match context.globals().offset {
            Some(Offset::Bytes(start)) => start,
            // A new image file has no partitions, so opening a partition of it will fail.
            Some(Offset::Partition(_)) | None => 0,
        };
        let mut new = NewFiles::default();
        for image in missing {
            new.make(image, end_of_volume(start, bytes)?)?;
        }
        if wanted.is_none() && !new.paths().is_empty() {
            let size = Units::default().text(bytes);
            context.notice(format!(
                "created {} as a sparse file of {size}; to choose another size, give --size",
                new.paths()
                    .iter()
                    .map(|image| image.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        Ok(new)
    }

    fn refuse_content(&self, device: &Device, image: &Path) -> Result<()> {
        match signatures::find(device)? {
            Some(found) if !self.force => {
                Err(anyhow::anyhow!("{} seems to contain {found}", image.display()))
                    .context(Advice::new("to overwrite it, give -f"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the source of the time and of random uuids.
    fn environment(&self) -> Result<std::sync::Arc<dyn Environment>> {
        writing::environment(&format!("mkfs {}", self.label.display()))
    }

    fn identity(&self, devices: usize, environment: &dyn Environment) -> Result<Identity> {
        if self.device_uuid.is_some() && devices > 1 {
            return Err(anyhow::anyhow!(
                "--device-uuid needs exactly one device (found {devices})"
            ));
        }
        let mut time = environment.now();
        time.nanoseconds = 0;
        let follows = std::env::var_os(SEED_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0");
        let fsid = match (self.uuid, follows) {
            (Some(uuid), _) => uuid,
            (None, false) => environment.new_uuid(),
            (None, true) => {
                return Err(anyhow::anyhow!("{SEED_VARIABLE} is set, but -U is missing")).context(
                    Advice::new("give the uuid of the volume with -U; all other uuids are derived from it"),
                );
            }
        };
        let other = |role: &str, number: u64| {
            if follows {
                derived_uuid(fsid, role, number)
            } else {
                environment.new_uuid()
            }
        };
        Ok(Identity {
            fsid,
            chunk_tree: other("chunk tree", 0),
            top_level: other("top level", 0),
            devices: (1_u64..)
                .take(devices)
                .map(|number| self.device_uuid.unwrap_or_else(|| other("device", number)))
                .collect(),
            time,
        })
    }
}

/// Environment variable that makes all uuids derive from the volume's uuid.
const SEED_VARIABLE: &str = "DETERMINISTIC_SEED";
