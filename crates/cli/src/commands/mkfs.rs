//! `buttress mkfs IMAGE…`: makes a volume, with the flags and the summary of mkfs.btrfs.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress_device::{Device, OpenOptions as DeviceOptions};
use buttress_format::{ByteCount, ChecksumType, Profile, Uuid};
use buttress_fs::mkfs::{self, Feature, Identity, Made, Options, signatures};
use clap::Args;

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::parse_size;
use crate::table::Subcommand;
use crate::writing;

mod summary;

/// Make a volume on images or devices
///
/// An image file that does not exist is made when --byte-count says how large. Whatever the devices hold is lost; one
/// that seems to hold something needs -f.
#[derive(Args, Debug)]
pub struct Mkfs {
    /// How data is replicated: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5, raid6 [default: single]
    #[arg(short, long, value_name = "PROFILE", value_parser = profile)]
    data: Option<Profile>,
    /// How metadata is replicated, as for data [default: dup on one device, raid1 on more]
    #[arg(short, long, value_name = "PROFILE", value_parser = profile)]
    metadata: Option<Profile>,
    /// Data and metadata share block groups: for small volumes
    #[arg(short = 'M', long)]
    mixed: bool,
    /// The checksum: crc32c, xxhash, sha256, blake2 [default: crc32c]
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", value_parser = checksum)]
    csum: Option<ChecksumType>,
    /// Size of tree blocks, 4K to 64K [default: 16K]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    nodesize: Option<u64>,
    /// Unit of data [default: 4K]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    sectorsize: Option<u64>,
    /// Features, joined by commas; ^name for without it; list-all prints them
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// For compatibility: as --features
    #[arg(short = 'R', long, value_name = "LIST", hide = true)]
    runtime_features: Vec<String>,
    /// The label, at most 255 bytes
    #[arg(
        short = 'L',
        long,
        value_name = "LABEL",
        default_value = "",
        hide_default_value = true
    )]
    label: std::ffi::OsString,
    /// The volume's uuid [default: a random one]
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// The device's uuid, on one device [default: a random one]
    #[arg(long, value_name = "UUID")]
    device_uuid: Option<Uuid>,
    /// Use so much of each device; image files that do not exist are made of this size
    #[arg(short, long, visible_alias = "size", value_name = "SIZE", value_parser = parse_size)]
    byte_count: Option<u64>,
    /// Do not discard the devices' contents first
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Make the volume even where there seems to be one, or something else
    #[arg(short, long)]
    force: bool,
    /// The image files or block devices
    #[arg(value_name = "IMAGE", required_unless_present = "features")]
    images: Vec<PathBuf>,
}

fn profile(text: &str) -> Result<Profile, String> {
    let found = Profile::ALL
        .into_iter()
        .find(|profile| profile.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("unknown profile {text:?}"))
}

fn checksum(text: &str) -> Result<ChecksumType, String> {
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

impl Subcommand for Mkfs {
    const NAME: &'static str = "mkfs";

    fn run(self, context: &Context) -> Result<Outcome> {
        let features = self.features.iter().chain(&self.runtime_features);
        let words: Vec<&str> = features.flat_map(|list| list.split(',')).collect();
        if words.contains(&"list-all") {
            return summary::list_features(context);
        }
        let options = self.options(&words)?;
        if self.images.is_empty() {
            return Err(anyhow::anyhow!("no image or device was given"));
        }
        let images: Vec<PathBuf> = self
            .images
            .iter()
            .chain(&context.globals().devices)
            .cloned()
            .collect();
        let least = mkfs::least_device_bytes(&options, images.len())?;
        let made = self.make_files(&images, least)?;
        let result = self.make(context, &images, &options);
        if result.is_err() {
            // What was made for this and never became a volume goes again.
            for image in made {
                let _ = std::fs::remove_file(image);
            }
        }
        let (made, devices) = result?;
        summary::print(context, &made, &devices)?;
        Ok(Outcome::Done)
    }
}

impl Mkfs {
    fn make(&self, context: &Context, images: &[PathBuf], options: &Options) -> Result<(Made, Vec<Device>)> {
        let opening = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        // Those of --device are among the images already.
        let devices = context.open_devices_with(&self.images, &opening)?;
        for (device, image) in devices.iter().zip(images) {
            self.refuse_content(device, image)?;
        }
        let identity = self.identity(&devices)?;
        let made = mkfs::make(&devices, options, &identity).context("making the volume")?;
        Ok((made, devices))
    }

    fn options(&self, words: &[&str]) -> Result<Options> {
        let small = |bytes: Option<u64>| bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let mut features = Vec::new();
        for word in words {
            let (name, wanted) = word.strip_prefix('^').map_or((*word, true), |name| (name, false));
            if matches!(name, "zoned" | "quota" | "squota") && wanted {
                return Err(anyhow::anyhow!("feature {name} is not supported yet"));
            }
            let feature = Feature::from_name(name).with_context(|| format!("unknown feature {name:?}"));
            let advice = || Advice::new("`buttress mkfs -O list-all` prints all of them");
            features.push((feature.with_context(advice)?, wanted));
        }
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
            device_bytes: self.byte_count.map(ByteCount::new),
            keep_contents: self.nodiscard,
        })
    }

    /// Makes the image files that are not there; which ones.
    fn make_files(&self, images: &[PathBuf], least: ByteCount) -> Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        for image in images {
            if image.symlink_metadata().is_ok() {
                continue;
            }
            let Some(bytes) = self.byte_count else {
                return Err(anyhow::anyhow!("{} does not exist", image.display()))
                    .context(Advice::new("--byte-count SIZE makes an image file of that size"));
            };
            if bytes < least.get() {
                return Err(anyhow::anyhow!(
                    "{bytes} bytes are too few: each device needs at least {least}"
                ));
            }
            let file = File::create_new(image).with_context(|| format!("making {}", image.display()))?;
            made.push(image.clone());
            file.set_len(bytes)
                .with_context(|| format!("making {}", image.display()))?;
        }
        Ok(made)
    }

    fn refuse_content(&self, device: &Device, image: &Path) -> Result<()> {
        match signatures::find(device)? {
            Some(found) if !self.force => Err(anyhow::anyhow!("{} seems to hold {found}", image.display()))
                .context(Advice::new("-f overwrites it")),
            _ => Ok(()),
        }
    }

    fn identity(&self, devices: &[Device]) -> Result<Identity> {
        if self.device_uuid.is_some() && devices.len() > 1 {
            return Err(anyhow::anyhow!(
                "--device-uuid is for one device; {} are given",
                devices.len()
            ));
        }
        let environment = writing::environment(&format!("mkfs {}", self.label.display()))?;
        let mut time = environment.now();
        time.nanoseconds = 0;
        Ok(Identity {
            fsid: self.uuid.unwrap_or_else(|| environment.new_uuid()),
            chunk_tree: environment.new_uuid(),
            top_level: environment.new_uuid(),
            devices: devices
                .iter()
                .map(|_| self.device_uuid.unwrap_or_else(|| environment.new_uuid()))
                .collect(),
            time,
        })
    }
}
