//! From arguments to devices and volumes.
//!
//! Global flags about images apply to the image of a target and to the images of `--device`.
//! Messages about the opening go to stderr at once. Copies that a read had to skip are reported
//! when the command ends, see [`crate::context::Context::report_at_end`].
//!
//! - `place`: in a session, targets are paths in the session's volume, and the command opens
//!   nothing for them.
//! - `generation`: paths in older states, `IMAGE:/.generations/N/path`.
//! - `states`: older states of a volume, and the index that finds them.

pub(crate) mod generation;
mod place;
pub(crate) mod states;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::{
    ByteCount, Device, DeviceEngine, DeviceOffset, DeviceOptions, Follow, Generation, Location, Notice,
    Subvolume, SubvolumeId, Volume, VolumeOptions,
};

use crate::context::Context;
use crate::exit::{Advice, usage};
use crate::globals::{DEFAULT_CACHE_BYTES, Engine, Globals, Offset};
use crate::identity::Identity;
use crate::mounted::places::{self, Mounted};
use crate::sources::Role;
use crate::target::Target;
pub use place::{Mount, Place, absolute};

/// Largest number of skipped copies that are printed individually without `-v`.
const FAULTS_SHOWN: usize = 10;

impl Context {
    /// Opens the given images or devices, and those of `--device`, for reading.
    pub fn open_devices(&self, images: &[PathBuf]) -> Result<Vec<Device>> {
        self.open_devices_with(images, &self.device_options())
    }

    /// Opens the given images or devices, and those of `--device`, with `options`.
    pub fn open_devices_with(&self, images: &[PathBuf], options: &DeviceOptions) -> Result<Vec<Device>> {
        let paths = images.iter().chain(&self.globals().devices);
        let numbered = paths.enumerate();
        let opened = numbered.map(|(number, path)| {
            let options = DeviceOptions {
                overlay: self.overlay_of(number),
                ..options.clone()
            };
            self.open_device(path, &options)
        });
        opened.collect()
    }

    /// Returns the overlay file of a device by its index among the given ones: `--overlay` for the
    /// first, the same name with `.2` appended for the second.
    pub(crate) fn overlay_of(&self, number: usize) -> Option<PathBuf> {
        let first = self.globals().overlay.as_ref()?;
        Some(numbered(first, number))
    }

    /// Opens one image or device for reading, without the devices of `--device`.
    pub fn open_device_alone(&self, image: &Path) -> Result<Device> {
        let options = DeviceOptions {
            overlay: self.overlay_of(0),
            ..self.device_options()
        };
        self.open_device(image, &options)
    }

    /// Returns the options of the global flags for opening devices for reading, without overlays.
    pub fn device_options(&self) -> DeviceOptions {
        let globals = self.globals();
        DeviceOptions {
            direct: globals.direct,
            engine: match globals.engine {
                Some(Engine::IoUring) => DeviceEngine::IoUring,
                Some(Engine::Threads) | None => DeviceEngine::Threads,
            },
            partition: match globals.offset {
                Some(Offset::Bytes(bytes)) => DeviceOffset::Bytes(bytes),
                Some(Offset::Partition(number)) => DeviceOffset::Partition(number),
                None => DeviceOffset::Whole,
            },
            ..DeviceOptions::default()
        }
    }

    /// Opens one image or device with `options`. With `--generation`, refuses to open it for writing.
    pub fn open_device(&self, path: &Path, options: &DeviceOptions) -> Result<Device> {
        if options.write && self.globals().generation.is_some() {
            return Err(usage(
                "--generation opens an older state, which can only be read: omit the option",
            ));
        }
        if generation::bare(path).1 != generation::Wanted::Newest {
            return Err(usage(format_args!(
                "{}: this command needs the whole volume, not an older state: omit the path",
                path.display()
            )));
        }
        if path.is_dir() {
            self.hand_on(path)?;
            return Err(anyhow::anyhow!("{} is a directory", path.display())).context(Advice::new(
                "give the image file or the block device itself, not a mount point",
            ));
        }
        let device =
            Device::open(path, options).map_err(|error| where_served(path, error.kind, error.into()))?;
        self.set_opened();
        let role = if options.write {
            Role::ChangedVolume
        } else {
            Role::Volume
        };
        self.sources().add(path, role)?;
        if let Some(overlay) = &options.overlay {
            self.sources().add(overlay, Role::Overlay)?;
        }
        for notice in device.notices() {
            self.warn(notice);
        }
        Ok(device)
    }
}

/// Opens the volume on devices, and prints notices about it.
fn open_on(
    context: &Context,
    image: &Path,
    devices: Vec<Device>,
    options: VolumeOptions,
    writes: bool,
    generation: Option<Generation>,
) -> Result<Volume> {
    let is_older = generation.is_some();
    let options = match generation {
        Some(generation) => options.generation(generation),
        None => options,
    };
    let (bare, _) = generation::bare(image);
    let options = states::with_index(context, bare, &devices, options, is_older)?;
    let opened = options.open_devices(devices);
    let volume = opened.map_err(|error| {
        let error = states::advised(is_older, advised(error));
        error.context(format!("opening {}", image.display()))
    })?;
    // Notices need the image's name, because a command may open several volumes.
    let name = image.display().to_string();
    for notice in volume.notices() {
        if writes && matches!(notice, Notice::PendingLog { .. }) {
            // At the next turn, the log tree is replayed.
            continue;
        }
        if states::is_requested(context, &notice) {
            continue;
        }
        let text = notice.to_string();
        if text.contains(&name) {
            context.warn(text);
        } else {
            context.warn(format_args!("{name}: {text}"));
        }
    }
    Ok(volume)
}

/// Opens the volume on devices for a check, like [`Context::open_for_check`].
pub(crate) fn open_for_check_on(context: &Context, image: &Path, devices: Vec<Device>) -> Result<Volume> {
    let options = context.volume_options().for_inspection();
    let generation = context.globals().generation.map(Generation::new);
    let opened = open_on(context, image, devices, options, false, generation);
    opened.map_err(|error| error.context(Opening))
}

/// Opens an image or device, and those of `--device`, with the overlays that begin with `overlay`.
/// A reader uses only the overlays that exist.
pub(crate) fn open_devices_over(
    context: &Context,
    image: &Path,
    overlay: Option<&Path>,
    options: &DeviceOptions,
) -> Result<Vec<Device>> {
    let paths = std::iter::once(image).chain(context.globals().devices.iter().map(PathBuf::as_path));
    let opened = paths.enumerate().map(|(number, path)| {
        let overlay = overlay.map(|first| numbered(first, number));
        let options = DeviceOptions {
            overlay: overlay.filter(|overlay| options.write || overlay.exists()),
            ..options.clone()
        };
        context.open_device(path, &options)
    });
    opened.collect()
}

/// Returns the overlay file of an image by its index: `first` for the first image, the same name
/// with `.2` appended for the second.
pub(crate) fn numbered(first: &Path, index: usize) -> PathBuf {
    if index == 0 {
        return first.to_owned();
    }
    let mut name = OsString::from(first);
    name.push(format!(".{}", index.saturating_add(1)));
    name.into()
}

/// Returns the files of an overlay that exist, for a volume with `count` images. A file for a
/// further image is included: the overlay was made with more images.
pub(crate) fn existing_overlays(first: &Path, count: usize) -> Vec<PathBuf> {
    let files = (0..=count).map(|index| numbered(first, index));
    files.filter(|file| file.exists()).collect()
}

/// If a mount of this program serves an image that is in use, adds the mount's directory to the
/// error of opening the image.
fn where_served(path: &Path, kind: io::ErrorKind, error: anyhow::Error) -> anyhow::Error {
    let is_in_use = kind == io::ErrorKind::ResourceBusy;
    let Some(own) = Identity::of_path(path).filter(|_| is_in_use) else {
        return error;
    };
    let is_source = |mount: &Mounted| {
        let source = Identity::of_path(&mount.source).filter(|_| mount.is_ours);
        source.is_some_and(|source| source.overlaps(&own))
    };
    let Some(mount) = places::all().into_iter().find(is_source) else {
        return error;
    };
    let directory = mount.directory.display();
    error.context(Advice(format!(
        "it is mounted at {directory}: give {directory} in place of the image, or run `buttress umount {directory}` first"
    )))
}

/// Returns whether a volume cannot be opened because devices are missing.
pub(crate) fn lacks_devices(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| cause.downcast_ref().is_some_and(buttress::Error::lacks_devices))
}

/// Adds advice about missing devices to an error of opening a volume.
pub(crate) fn advised(error: buttress::Error) -> anyhow::Error {
    let error = anyhow::Error::new(error);
    if !lacks_devices(&error) {
        return error;
    }
    error.context(Advice::new(
        "give further devices with --device; to read without the missing devices, give --degraded",
    ))
}

/// Marks errors of opening a volume that already name the image. When the error is printed, the
/// marker prints as nothing.
#[derive(Debug)]
struct Opening;

impl fmt::Display for Opening {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Target {
    /// Prefixes the target's name to an error that does not name it.
    pub fn name_in(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error = error.into();
        if error.downcast_ref::<Opening>().is_some() {
            error
        } else {
            error.context(self.display())
        }
    }
}

impl Context {
    /// Opens the volume on an image or device, and prints notices about it. In a session, this
    /// function returns the session's volume.
    pub fn open_volume(&self, image: &Path) -> Result<Subvolume> {
        if let Some(present) = self.present(image)? {
            return Ok(present);
        }
        self.open_volume_with(image, &self.device_options())
    }

    /// Opens the volume like [`open_volume`](Self::open_volume), for a command that reports
    /// whatever it can read. In this case, devices may be missing without `--degraded`.
    pub(crate) fn open_volume_as_far_as_there(&self, image: &Path) -> Result<Subvolume> {
        match self.open_volume(image) {
            Err(error) if lacks_devices(&error) && !self.globals().degraded => {
                let globals = Globals {
                    degraded: true,
                    ..self.globals().clone()
                };
                // The first error explains why the volume is not whole.
                Self::new(globals).open_volume(image).map_err(|_| error)
            }
            opened => opened,
        }
    }

    /// Returns the options of the global flags for opening volumes.
    pub fn volume_options(&self) -> VolumeOptions {
        let globals = self.globals();
        let options = Volume::options()
            .cache(ByteCount::new(globals.cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES)))
            .degraded(globals.degraded)
            .rescue(globals.rescue());
        match globals.generation {
            Some(generation) => options.generation(Generation::new(generation)),
            None => options,
        }
    }

    /// Opens the volume like [`open_volume`](Self::open_volume), with `devices` as options. If the
    /// volume is open for writing, the call returns the committed state on its devices.
    pub fn open_volume_with(&self, image: &Path, devices: &DeviceOptions) -> Result<Subvolume> {
        let options = match devices.write {
            true => self.volume_options().on_disk(),
            false => self.volume_options(),
        };
        self.root_of(&self.open_and_report(&[image.to_owned()], devices, options)?)
    }

    /// Opens the volume on several images and those of `--device`, in its committed state.
    pub fn open_images_with(&self, images: &[PathBuf], devices: &DeviceOptions) -> Result<Subvolume> {
        self.root_of(&self.open_and_report(images, devices, self.volume_options().on_disk())?)
    }

    /// Opens the volume, in its committed state, for a command that reads much of it once. Reads
    /// bypass the page cache, unless it already holds the data.
    pub fn open_for_one_pass(&self, image: &Path) -> Result<Volume> {
        let options = self.volume_options().on_disk();
        self.open_and_report(&[image.to_owned()], &self.options_for_one_pass(), options)
    }

    fn options_for_one_pass(&self) -> DeviceOptions {
        DeviceOptions {
            direct_when_cold: true,
            ..self.device_options()
        }
    }

    /// Opens the volume, with the directory in which paths begin, for a command that reads much
    /// file content once. In a session, this function returns the session's volume.
    pub fn open_volume_for_one_pass(&self, image: &Path) -> Result<Subvolume> {
        if let Some(present) = self.present(image)? {
            return Ok(present);
        }
        self.open_volume_with(image, &self.options_for_one_pass())
    }

    /// Opens the volume on images or devices for an inspection of its blocks. For such an
    /// inspection, the root tree may be unreadable.
    pub fn open_for_inspection(&self, images: &[PathBuf]) -> Result<Volume> {
        let options = self.volume_options().for_inspection();
        self.open_and_report(images, &self.device_options(), options)
    }

    /// Opens the volume for a check. A check opens the volume even if the root tree is unreadable,
    /// and the check itself reports skipped copies.
    pub fn open_for_check(&self, image: &Path) -> Result<Volume> {
        let options = self.volume_options().for_inspection();
        let opened = self.opened(&[image.to_owned()], &self.options_for_one_pass(), options);
        opened.map_err(|error| error.context(Opening))
    }

    /// Opens the volume, and registers a report of skipped copies for the end of the command.
    /// Errors of opening name the image.
    fn open_and_report(
        &self,
        images: &[PathBuf],
        devices: &DeviceOptions,
        options: VolumeOptions,
    ) -> Result<Volume> {
        let volume = self
            .opened(images, devices, options)
            .map_err(|error| error.context(Opening))?;
        let image = images.first().map_or(Path::new(""), PathBuf::as_path);
        self.report_faults(&volume, image);
        Ok(volume)
    }

    /// Opens the volume and prints notices about it.
    fn opened(&self, images: &[PathBuf], devices: &DeviceOptions, options: VolumeOptions) -> Result<Volume> {
        let writes = devices.write;
        let image = images.first().map_or(Path::new(""), PathBuf::as_path);
        let (_, wanted) = generation::bare(image);
        let generation = generation::generation_of(self, wanted)?;
        let is_path = wanted != generation::Wanted::Newest && !writes;
        let bare = images.iter().map(|image| match is_path {
            true => generation::bare(image).0.to_owned(),
            false => image.clone(),
        });
        let devices = self.open_devices_with(&bare.collect::<Vec<PathBuf>>(), devices)?;
        open_on(self, image, devices, options, writes, generation)
    }

    /// Opens the volume of a target and resolves its path.
    pub fn open_target(&self, target: &Target, follow: Follow) -> Result<(Subvolume, Location)> {
        let opened = self.open_volume(&target.image)?;
        let location = opened
            .locate(&target.path, follow)
            .map_err(|error| target.name_in(error))?;
        Ok((opened, location))
    }

    /// Returns the subvolume in which paths begin: the top level, or the one of `--subvol` or
    /// `--subvolid`.
    fn root_of(&self, volume: &Volume) -> Result<Subvolume> {
        if let Some(id) = self.globals().subvolume_id {
            // As in the kernel, the subvolume id 0 means the top level.
            let id = if id == 0 {
                SubvolumeId::TOP_LEVEL
            } else {
                SubvolumeId::new(id)
            };
            return volume.subvolume_by_id(id).context("--subvolid");
        }
        if let Some(path) = &self.globals().subvolume {
            let location = volume.root().locate(path, Follow::All).context("--subvol")?;
            if !location.is_subvolume_root() {
                return Err(anyhow::anyhow!("--subvol: {} is not a subvolume", path.display())).context(
                    Advice::new("`buttress subvolume list IMAGE` lists all subvolumes"),
                );
            }
            return Ok(volume.subvolume_by_id(location.subvolume)?);
        }
        Ok(volume.root())
    }

    /// Registers a report of skipped copies for the end of the command.
    fn report_faults(&self, volume: &Volume, image: &Path) {
        let volume = volume.clone();
        let image = image.display().to_string();
        let shown = if self.globals().verbose > 0 {
            usize::MAX
        } else {
            FAULTS_SHOWN
        };
        let told = self.told_failures();
        self.report_at_end(move || {
            let log = volume.faults();
            let mut lines: Vec<String> = log
                .faults
                .iter()
                .take(shown)
                .map(|fault| format!("{image}: {fault}"))
                .collect();
            if log.total() > lines.len() as u64 {
                lines.push(format!(
                    "{image}: {} bad copies were skipped in total",
                    log.total()
                ));
                for (device, counts) in &log.counts {
                    lines.push(format!(
                        "{image}: device {device}: {} damaged, {} unreadable, {} missing",
                        counts.corruptions, counts.read_errors, counts.missing
                    ));
                }
            }
            lines.extend(told.news_of(&volume.notices()));
            lines
        });
    }
}

/// The volumes of a command with several targets; each image is opened once.
#[derive(Debug)]
pub struct Images<'a> {
    context: &'a Context,
    open: fn(&Context, &Path) -> Result<Subvolume>,
    opened: Vec<(PathBuf, Subvolume)>,
}

impl<'a> Images<'a> {
    /// Creates an empty set.
    pub fn new(context: &'a Context) -> Self {
        Self {
            context,
            open: Context::open_volume,
            opened: Vec::new(),
        }
    }

    /// Creates an empty set for a command that reads much content once: see
    /// [`Context::open_volume_for_one_pass`].
    pub fn for_one_pass(context: &'a Context) -> Self {
        Self {
            open: Context::open_volume_for_one_pass,
            ..Self::new(context)
        }
    }

    /// Returns the volume on this image, and opens it if necessary.
    pub fn open(&mut self, image: &Path) -> Result<Subvolume> {
        if let Some((_, opened)) = self.opened.iter().find(|(path, _)| path == image) {
            return Ok(opened.clone());
        }
        let opened = (self.open)(self.context, image)?;
        self.opened.push((image.to_owned(), opened.clone()));
        Ok(opened)
    }
}
