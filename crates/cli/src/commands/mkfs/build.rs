//! `buttress mkfs --rootdir DIR IMAGE…`: creates a volume with the content of sources.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::build::{
    BuildOptions, Compress, DirectorySource, EntryPath, Error as BuildError, ImageBuilder, Owners, Size,
    SubvolumeMark,
};
use buttress::mkfs::{Made, Options};
use buttress::{ByteCount, Device, DeviceOptions, InodeFlags};
use clap::Args;

use super::sources::{OpenedSources, SourceArguments};
use super::{LeastBytes, Mkfs, SizeWish, end_of_volume, is_missing, summary};
use crate::compression::Method;
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::parse_size;
use crate::new_files::NewFiles;
use crate::progress::Watch;
use crate::signals::Cancelling;

/// Flags for volumes that are not empty.
#[derive(Args, Debug)]
pub(super) struct BuildArguments {
    // The source arguments must come first: they determine the positions of directories among all
    // sources.
    #[command(flatten)]
    pub(super) sources: SourceArguments,
    /// Add the content of this directory; may be repeated, and a later directory replaces entries
    /// of an earlier one
    #[arg(short, long, value_name = "DIR")]
    pub(super) rootdir: Vec<PathBuf>,
    /// Make this directory of the volume a subvolume: DIR, or TYPE:DIR with ro, rw, default or default-ro, or DIR:TYPE with
    /// types joined by commas; it is made if it is not there
    #[arg(id = "global-subvol", short = 'u', long = "subvol", value_name = "[TYPE:]DIR")]
    subvol: Vec<OsString>,
    /// Flags for a file, or for a directory and everything in it: nodatacow, nodatasum, joined by
    /// commas
    #[arg(long, value_name = "FLAGS:PATH")]
    inode_flags: Vec<OsString>,
    /// Compress file contents with zstd, zlib or lzo, at an optional level; `no` disables
    /// compression
    #[arg(long, value_name = "ALGO[:LEVEL]", value_parser = compress)]
    compress: Option<Compress>,
    /// Make the volume, and a new image file, as small as possible
    #[arg(long)]
    shrink: bool,
    /// Leave this much free space in a volume of the smallest size
    #[arg(long, visible_alias = "shrink-slack-size", value_name = "SIZE", value_parser = parse_size)]
    slack: Option<u64>,
    /// Store equal content once: equal files, and equal parts of 512 KiB (128 KiB if compressed)
    #[arg(long)]
    dedupe: bool,
    /// Share the blocks of source files instead of copying them, if the image and the sources are
    /// in one file system that supports this
    #[arg(long, conflicts_with = "compress")]
    reflink: bool,
    /// Make root the owner of everything
    #[arg(long)]
    all_root: bool,
    /// Make this user the owner of everything
    #[arg(long, value_name = "UID", conflicts_with = "all_root")]
    force_uid: Option<u32>,
    /// Make this group the group of everything
    #[arg(long, value_name = "GID", conflicts_with = "all_root")]
    force_gid: Option<u32>,
    /// Set the owner, group and permissions of the root directory [default without root, for an
    /// empty volume: the caller]
    #[arg(long, value_name = "UID:GID[:MODE]", value_parser = root_owner)]
    root_owner: Option<RootOwner>,
    /// Number of threads that read and compress [default: one for each processor]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

/// Owner: user id, group id, permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RootOwner(u32, u32, Option<u32>);

fn compress(text: &str) -> Result<Compress, String> {
    match text {
        "no" | "none" => Ok(Compress::No),
        text => text.parse().map(|Method(method)| Compress::With(method)),
    }
}

fn root_owner(text: &str) -> Result<RootOwner, String> {
    let mut parts = text.split(':');
    let mut number = |name: &str| {
        let part = parts.next().ok_or_else(|| format!("{text:?} has no {name}"))?;
        part.parse().map_err(|_| format!("{part:?} is not a {name}"))
    };
    let (uid, gid) = (number("user id")?, number("group id")?);
    let mode = match parts.next() {
        None => None,
        Some(mode) => match u32::from_str_radix(mode, 8) {
            Ok(mode) if mode <= 0o7777 => Some(mode),
            _ => {
                return Err(format!(
                    "invalid permissions {mode:?} (expected an octal mode such as 0755)"
                ));
            }
        },
    };
    match parts.next() {
        None => Ok(RootOwner(uid, gid, mode)),
        Some(_) => Err(format!("{text:?}: too many fields (expected UID:GID[:MODE])")),
    }
}

/// Parses one type of a subvolume; returns `None` for an unknown word.
fn mark(word: &[u8]) -> Option<SubvolumeMark> {
    let (read_only, default) = match word {
        b"rw" => (false, false),
        b"ro" => (true, false),
        b"default" => (false, true),
        b"default-ro" => (true, true),
        _ => return None,
    };
    Some(SubvolumeMark { read_only, default })
}

/// Parses a subvolume in either spelling.
fn subvolume(text: &OsStr) -> Result<(EntryPath, SubvolumeMark)> {
    let bytes = text.as_bytes();
    let colons = |byte: &u8| *byte == b':';
    let split = |at: usize| {
        let (before, after) = bytes.split_at(at);
        (before, after.get(1..).unwrap_or_default())
    };
    let first = bytes.iter().position(colons).map(split);
    let last = bytes.iter().rposition(colons).map(split);
    let in_front = first.and_then(|(word, path)| Some((path, mark(word)?)));
    let behind = last.and_then(|(path, words)| {
        let marks = words.split(|byte| *byte == b',').map(mark);
        let merged = marks.reduce(|one, other| {
            let (one, other) = one.zip(other)?;
            Some(SubvolumeMark {
                read_only: one.read_only || other.read_only,
                default: one.default || other.default,
            })
        });
        Some((path, merged??))
    });
    let (path, mark) = in_front.or(behind).unwrap_or((bytes, SubvolumeMark::default()));
    let path = tree_path("--subvol", path)?;
    if path.is_root() {
        return Err(anyhow::anyhow!(
            "--subvol {}: the root of the volume already is a subvolume",
            text.display()
        ));
    }
    Ok((path, mark))
}

fn tree_path(option: &str, path: &[u8]) -> Result<EntryPath> {
    EntryPath::new(path).with_context(|| format!("{option} {}", OsStr::from_bytes(path).display()))
}

fn inode_flags(text: &OsStr) -> Result<(EntryPath, InodeFlags)> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let parts = colon.and_then(|at| Some((bytes.get(..at)?, bytes.get(at.checked_add(1)?..)?)));
    let (words, path) = parts.with_context(|| {
        format!(
            "--inode-flags {}: the colon before the path is missing",
            text.display()
        )
    })?;
    let mut flags = InodeFlags::empty();
    for word in words.split(|byte| *byte == b',') {
        flags |= match word {
            b"nodatacow" => InodeFlags::NODATACOW | InodeFlags::NODATASUM,
            b"nodatasum" => InodeFlags::NODATASUM,
            _ => {
                return Err(anyhow::anyhow!("--inode-flags {}: unknown flag", text.display()))
                    .context(Advice::new("the flags are nodatacow and nodatasum"));
            }
        };
    }
    Ok((tree_path("--inode-flags", path)?, flags))
}

impl BuildArguments {
    pub(super) fn has_source(&self) -> bool {
        !(self.rootdir.is_empty() && self.subvol.is_empty()) || self.sources.has_source()
    }

    pub(super) const fn shrinks(&self) -> bool {
        self.shrink
    }

    pub(super) const fn leaves_slack(&self) -> bool {
        self.slack.is_some()
    }

    /// Returns whether the root directory of an empty volume gets a specific owner or mode.
    pub(super) const fn sets_owners(&self) -> bool {
        self.root_owner.is_some() || self.force_uid.is_some() || self.force_gid.is_some()
    }

    /// Refuses flags that have no effect for an empty volume.
    pub(super) fn refuse_alone(&self) -> Result<()> {
        let given = [
            (!self.inode_flags.is_empty(), "--inode-flags"),
            (self.compress.is_some(), "--compress"),
            (self.dedupe, "--dedupe"),
            (self.reflink, "--reflink"),
            (self.workers.is_some(), "--workers"),
        ];
        let given = given.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag);
        match given.or(self.sources.changes_sources()) {
            Some(flag) => Err(usage(format_args!("{flag} needs a source of content"))).context(Advice::new(
                "to add the content of a directory, give --rootdir DIR",
            )),
            None => Ok(()),
        }
    }

    fn owners(&self) -> Owners {
        let all = self.all_root.then_some(0);
        Owners {
            uid: self.force_uid.or(all),
            gid: self.force_gid.or(all),
            root: if self.has_source() {
                self.given_root_owner()
            } else {
                self.root_owner()
            },
        }
    }

    fn given_root_owner(&self) -> Option<(u32, u32, Option<u32>)> {
        self.root_owner.map(|RootOwner(uid, gid, mode)| (uid, gid, mode))
    }

    /// Returns the requested owner and permissions of an empty volume's root directory. Without
    /// root rights, the default is the caller, who could otherwise create nothing in it.
    pub(super) fn root_owner(&self) -> Option<(u32, u32, Option<u32>)> {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let all = self.all_root.then_some(0);
        let uid = self.force_uid.or(all).unwrap_or(user.as_raw());
        let gid = self.force_gid.or(all).unwrap_or(group.as_raw());
        let callers = (!user.is_root()).then_some((uid, gid, None));
        self.given_root_owner().or(callers)
    }

    /// Refuses `--slack` for a volume that is not as small as possible.
    fn refuse_slack(&self, size: Size) -> Result<()> {
        match (self.slack, size) {
            (Some(_), Size::Devices) => Err(usage("--slack needs a volume of minimal size: add --shrink")),
            _ => Ok(()),
        }
    }
}

impl Mkfs {
    /// Creates a volume with the content of the sources.
    pub(super) fn build_volume(
        &self,
        context: &Context,
        images: &[PathBuf],
        volume: Options,
        sources: OpenedSources,
    ) -> Result<Outcome> {
        let progress = context.progress();
        // A cancelled command must not leave an incomplete image file.
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "mkfs", progress.clone());
        let environment = self.environment()?;
        let missing = images
            .iter()
            .map(|image| is_missing(image))
            .collect::<Result<Vec<_>>>()?;
        let size = self.size_wish(&missing);
        self.build.refuse_slack(size)?;
        let options = self.build_options(volume, size, environment.latest())?;
        let builder = ImageBuilder::new(options);
        let builder = self.build.sources.add(builder, sources, |directory| {
            images
                .iter()
                .fold(DirectorySource::new(directory), |source, image| {
                    match image.metadata() {
                        Ok(metadata) => source.without(metadata.dev(), metadata.ino()),
                        // The image does not exist yet, so it is not in the directory.
                        Err(_) => source,
                    }
                })
        })?;
        let identity = self.identity(images.len(), environment.as_ref())?;
        let gathered = builder
            .gather(images.len(), identity.time, &progress)
            .context("reading the sources")?;
        let enough = gathered.enough_bytes();
        let (new_files, devices) = self.open_for(context, images, size, enough)?;
        let made = gathered.write(&devices, &identity, &progress).map_err(advised)?;
        if let (Size::Least { .. }, [image]) = (size, images)
            && let Some(start) = new_files.volume_start(context, image)
        {
            cut(image, start, &devices, &made)?;
        }
        progress.check()?;
        new_files.keep();
        watch.end();
        drop(cancelling);
        summary::print(context, &made, &devices)?;
        Ok(Outcome::Done)
    }

    fn size_wish(&self, missing: &[bool]) -> Size {
        let slack = ByteCount::new(self.build.slack.unwrap_or(0));
        // An empty volume has the default size.
        let is_new = missing == [true] && self.build.has_source();
        let least = match self.byte_count {
            Some(SizeWish::Auto) => true,
            Some(SizeWish::Bytes(_)) => self.build.shrink,
            None => self.build.shrink || is_new,
        };
        if least {
            Size::Least { slack }
        } else {
            Size::Devices
        }
    }

    fn build_options(
        &self,
        volume: Options,
        size: Size,
        latest_time: Option<buttress::Timestamp>,
    ) -> Result<BuildOptions> {
        let build = &self.build;
        Ok(BuildOptions {
            volume,
            compression: build.compress.unwrap_or(Compress::No),
            subvolumes: build
                .subvol
                .iter()
                .map(|text| subvolume(text))
                .collect::<Result<_>>()?,
            inode_flags: build
                .inode_flags
                .iter()
                .map(|text| inode_flags(text))
                .collect::<Result<_>>()?,
            owners: build.owners(),
            latest_time,
            size,
            dedupe: build.dedupe,
            share_files: build.reflink,
            workers: build.workers.map(usize::from),
            ..BuildOptions::default()
        })
    }

    /// Creates missing image files, and opens all image files.
    fn open_for(
        &self,
        context: &Context,
        images: &[PathBuf],
        size: Size,
        enough: ByteCount,
    ) -> Result<(NewFiles, Vec<Device>)> {
        let least = matches!(size, Size::Least { .. });
        let wanted = match (self.bytes(), least) {
            (Some(bytes), _) => Some(bytes),
            (None, true) => Some(enough.get()),
            (None, false) => None,
        };
        let new_files = self.make_files(context, images, wanted, LeastBytes::default())?;
        let opening = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        // An existing file may hold valuable data, so check it before extending it.
        let devices = context.open_devices_with(&self.images, &opening)?;
        for (device, image) in devices.iter().zip(images) {
            self.refuse_content(device, image)?;
        }
        let [image] = images else {
            return Ok((new_files, devices));
        };
        let Some(start) = new_files.volume_start(context, image) else {
            return Ok((new_files, devices));
        };
        let end = end_of_volume(start, enough.get())?;
        let metadata = image.metadata().with_context(|| image.display().to_string())?;
        if !(least && self.bytes().is_none() && metadata.is_file() && metadata.len() < end) {
            return Ok((new_files, devices));
        }
        drop(devices);
        let named = || format!("making {} longer", image.display());
        let file = OpenOptions::new().write(true).open(image).with_context(named)?;
        file.set_len(end).with_context(named)?;
        Ok((new_files, context.open_devices_with(&self.images, &opening)?))
    }
}

/// Adds advice to a build error, if a remedy is known.
fn advised(error: BuildError) -> anyhow::Error {
    let is_unshared = matches!(
        error,
        BuildError::NotShared { .. } | BuildError::SharedProfile { .. }
    );
    let error = anyhow::Error::new(error).context("making the volume");
    if is_unshared {
        error.context(Advice::new("to copy the contents, leave out --reflink"))
    } else {
        error
    }
}

/// Truncates an image file to the end of the volume, which starts at byte `start`.
fn cut(image: &Path, start: u64, devices: &[Device], made: &Made) -> Result<()> {
    let metadata = image.metadata().with_context(|| image.display().to_string())?;
    if !metadata.is_file() {
        return Ok(());
    }
    for device in devices {
        device.flush()?;
    }
    let named = || format!("cutting {} to its size", image.display());
    let file = OpenOptions::new().write(true).open(image).with_context(named)?;
    file.set_len(end_of_volume(start, made.superblock.total_bytes.get())?)
        .with_context(named)?;
    file.sync_all().with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subvolumes_are_named_in_either_spelling() {
        let parsed = |text: &str| {
            subvolume(OsStr::new(text)).ok().map(|(path, mark)| {
                (
                    String::from_utf8(path.as_bytes().to_vec()).unwrap(),
                    mark.read_only,
                    mark.default,
                )
            })
        };
        for (text, path, read_only, default) in [
            ("home", "home", false, false),
            ("rw:home", "home", false, false),
            ("ro:/srv/a", "srv/a", true, false),
            ("default:x", "x", false, true),
            ("default-ro:x", "x", true, true),
            ("x:ro", "x", true, false),
            ("x:ro,default", "x", true, true),
            ("x:default", "x", false, true),
            ("a:b", "a:b", false, false),
            ("ro:a:b", "a:b", true, false),
        ] {
            assert_eq!(
                parsed(text),
                Some((path.to_owned(), read_only, default)),
                "{text}"
            );
        }
        assert_eq!(parsed("ro:/"), None);
        assert_eq!(parsed("../x"), None);
    }

    #[test]
    fn owners_of_the_root_are_read() {
        assert_eq!(root_owner("1:2"), Ok(RootOwner(1, 2, None)));
        assert_eq!(root_owner("1:2:1777"), Ok(RootOwner(1, 2, Some(0o1777))));
        for text in ["", "1", "1:x", "1:2:8", "1:2:70000", "1:2:3:4"] {
            assert!(root_owner(text).is_err(), "{text}");
        }
    }
}
