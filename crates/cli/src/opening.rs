//! From arguments to devices and volumes.
//!
//! The image of a target and the images of `--device` are opened with the global flags. What opening says
//! aloud goes to stderr at once; what was read around on the way (a bad copy passed over) when the command
//! ends, see [`crate::context::Context::report_at_end`].
//!
//! - `place`: in a session targets are paths in its volume, and nothing is opened for them.

mod place;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::volume::DevicesError;
use buttress::unstable::writer::open_replayed;
use buttress::{
    ByteCount, Device, DeviceEngine, DeviceOffset, DeviceOptions, Follow, Location, Notice, Rescue,
    SubvolumeId,
};

use crate::context::Context;
use crate::exit::Advice;
use crate::globals::{DEFAULT_CACHE_BYTES, Engine, Globals, Offset, Rescue as RescueOption};
use crate::sources::Role;
use crate::target::Target;
pub use place::{Mount, Place, absolute};

/// How many passed-over copies are printed one by one, without `-v`.
const FAULTS_SHOWN: usize = 10;

impl Context {
    /// Opens images or devices, and those of `--device`, for reading.
    pub fn open_devices(&self, images: &[PathBuf]) -> Result<Vec<Device>> {
        self.open_devices_with(images, &self.device_options())
    }

    /// Opens images or devices, and those of `--device`, in the way that is given.
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

    /// The side file of a device, by its place among those given: the first one's is `--overlay`'s, that of the second
    /// has `.2` at its end.
    pub(crate) fn overlay_of(&self, number: usize) -> Option<PathBuf> {
        let first = self.globals().overlay.as_ref()?;
        if number == 0 {
            return Some(first.clone());
        }
        let mut name = first.clone().into_os_string();
        name.push(format!(".{}", number.saturating_add(1)));
        Some(name.into())
    }

    /// Opens one image or device for reading, and none of `--device`.
    pub fn open_device_alone(&self, image: &Path) -> Result<Device> {
        let options = DeviceOptions {
            overlay: self.overlay_of(0),
            ..self.device_options()
        };
        self.open_device(image, &options)
    }

    /// How the global flags have devices opened, for reading; overlays left out.
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

    /// Opens one image or device in the way that is given.
    pub fn open_device(&self, path: &Path, options: &DeviceOptions) -> Result<Device> {
        if path.is_dir() {
            self.hand_on(path)?;
            return Err(anyhow::anyhow!("{} is a directory", path.display())).context(Advice::new(
                "give the image file or the block device itself; a mount point is not needed",
            ));
        }
        let device = Device::open(path, options)?;
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

/// Whether a volume cannot be opened because devices of it are missing.
pub(crate) fn lacks_devices(error: &anyhow::Error) -> bool {
    use buttress::unstable::volume::Error as VolumeError;
    let is_it = |error: &buttress::unstable::fs::Error| match error {
        buttress::unstable::fs::Error::Volume(VolumeError::Devices(error)) => {
            matches!(**error, DevicesError::Missing(_))
        }
        _ => false,
    };
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_it))
}

/// The error of opening a volume, with what to do where devices are missing.
fn advised(error: buttress::unstable::fs::Error) -> anyhow::Error {
    let error = anyhow::Error::new(error);
    if !lacks_devices(&error) {
        return error;
    }
    error.context(Advice::new(
        "--device gives another device of the volume; --degraded reads what can be read without those that are missing",
    ))
}

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Its files and what belongs to them: a pending log is replayed in memory.
    Files,
    /// What lies on its devices, and changing that.
    Devices,
    /// The same; it need not have a root tree that can be read.
    Inspection,
}

/// Marks errors of opening a volume, which name the image themselves. It prints as nothing.
#[derive(Debug)]
struct Opening;

impl fmt::Display for Opening {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Target {
    /// Puts the target's name before an error that does not name it.
    pub fn name_in(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error = error.into();
        if error.downcast_ref::<Opening>().is_some() {
            error
        } else {
            error.context(self.display())
        }
    }
}

/// A volume and the directory in which paths begin.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The volume.
    pub filesystem: Filesystem,
    /// What `IMAGE:/` means: the top level, or what `--subvol` or `--subvolid` say.
    pub root: Location,
}

impl Opened {
    /// What a path leads to.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Location> {
        Ok(self.filesystem.resolve(self.root, path, follow)?)
    }
}

impl Context {
    /// Opens the volume on an image or device, and prints what is to be said about it. In a session it is the
    /// session's volume.
    pub fn open_volume(&self, image: &Path) -> Result<Opened> {
        if let Some(present) = self.present(image)? {
            return Ok(present);
        }
        self.open_volume_with(image, &self.device_options())
    }

    /// Opens as [`open_volume`](Self::open_volume) does, for a command that reports whatever it can read: devices may
    /// be missing without `--degraded`.
    pub(crate) fn open_volume_as_far_as_there(&self, image: &Path) -> Result<Opened> {
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

    /// As [`open_volume`](Self::open_volume), with devices opened in the way that is given.
    pub fn open_volume_with(&self, image: &Path, options: &DeviceOptions) -> Result<Opened> {
        let purpose = match options.write {
            true => Purpose::Devices,
            false => Purpose::Files,
        };
        let filesystem = self.open_filesystem_with(&[image.to_owned()], options, purpose)?;
        let root = self.root_of(&filesystem)?;
        Ok(Opened { filesystem, root })
    }

    /// The volume as it lies on its devices, of several images beside those of `--device`.
    pub fn open_images_with(&self, images: &[PathBuf], options: &DeviceOptions) -> Result<Opened> {
        let filesystem = self.open_filesystem_with(images, options, Purpose::Devices)?;
        let root = self.root_of(&filesystem)?;
        Ok(Opened { filesystem, root })
    }

    /// Opens the volume, as it lies on its devices, for a command that reads much of it, and once: not through the page
    /// cache, unless it is there already.
    pub fn open_for_one_pass(&self, image: &Path) -> Result<Filesystem> {
        let options = self.options_for_one_pass();
        self.open_filesystem_with(&[image.to_owned()], &options, Purpose::Devices)
    }

    /// Opens the volume as it lies on its devices, which are opened in the way that is given.
    pub fn open_devices_of_volume(&self, image: &Path, options: &DeviceOptions) -> Result<Opened> {
        let filesystem = self.open_filesystem_with(&[image.to_owned()], options, Purpose::Devices)?;
        let root = self.root_of(&filesystem)?;
        Ok(Opened { filesystem, root })
    }

    fn options_for_one_pass(&self) -> DeviceOptions {
        DeviceOptions {
            direct_when_cold: true,
            ..self.device_options()
        }
    }

    /// Opens the volume for a command that reads much of its files, and once, with the directory in which paths begin. In a
    /// session it is the session's volume.
    pub fn open_volume_for_one_pass(&self, image: &Path) -> Result<Opened> {
        if let Some(present) = self.present(image)? {
            return Ok(present);
        }
        let options = self.options_for_one_pass();
        let filesystem = self.open_filesystem_with(&[image.to_owned()], &options, Purpose::Files)?;
        let root = self.root_of(&filesystem)?;
        Ok(Opened { filesystem, root })
    }

    /// Opens the volume on images or devices for looking at its blocks: it need not have a root tree that can be
    /// read.
    pub fn open_for_inspection(&self, images: &[PathBuf]) -> Result<Filesystem> {
        self.open_filesystem_with(images, &self.device_options(), Purpose::Inspection)
    }

    /// Opens the volume for a check: it need not have a root tree that can be read, and what is passed over on the
    /// way is the check's to tell.
    pub fn open_for_check(&self, image: &Path) -> Result<Filesystem> {
        let options = self.options_for_one_pass();
        let opened = self.opened(&[image.to_owned()], &options, Purpose::Inspection);
        opened.map_err(|error| error.context(Opening))
    }

    /// Opens the volume and prints what is to be said about it. Errors name the image.
    fn open_filesystem_with(
        &self,
        images: &[PathBuf],
        options: &DeviceOptions,
        purpose: Purpose,
    ) -> Result<Filesystem> {
        self.try_filesystem(images, options, purpose)
            .map_err(|error| error.context(Opening))
    }

    fn try_filesystem(
        &self,
        images: &[PathBuf],
        options: &DeviceOptions,
        purpose: Purpose,
    ) -> Result<Filesystem> {
        let filesystem = self.opened(images, options, purpose)?;
        let image = images.first().map_or(Path::new(""), PathBuf::as_path);
        self.report_faults(&filesystem, image);
        Ok(filesystem)
    }

    fn opened(&self, images: &[PathBuf], options: &DeviceOptions, purpose: Purpose) -> Result<Filesystem> {
        let globals = self.globals();
        let devices = self.open_devices_with(images, options)?;
        let writes = options.write;
        let image = images.first().map_or(Path::new(""), PathBuf::as_path);
        let rescue = Rescue {
            use_backup_root: globals.rescues(RescueOption::UseBackupRoot),
            ignore_bad_roots: globals.rescues(RescueOption::IgnoreBadRoots),
            ignore_data_checksums: globals.rescues(RescueOption::IgnoreDataCsums),
            no_log_replay: globals.rescues(RescueOption::NoLogReplay),
        };
        let options = OpenOptions::new(devices)
            .cache(ByteCount::new(globals.cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES)))
            .degraded(globals.degraded)
            .rescue(rescue)
            .for_inspection(purpose == Purpose::Inspection);
        let opened = match purpose {
            Purpose::Files => open_replayed(options).map(|shown| shown.filesystem),
            _ => options.open(),
        };
        let filesystem =
            opened.map_err(|error| advised(error).context(format!("opening {}", image.display())))?;
        // Some name a device, all are about this volume: a command may be about several.
        let name = image.display().to_string();
        for notice in filesystem.notices() {
            if writes && matches!(notice, Notice::PendingLog { .. }) {
                // It is replayed next.
                continue;
            }
            let text = notice.to_string();
            if text.contains(&name) {
                self.warn(text);
            } else {
                self.warn(format_args!("{name}: {text}"));
            }
        }
        Ok(filesystem)
    }

    /// Opens the volume of a target and finds what its path leads to.
    pub fn open_target(&self, target: &Target, follow: Follow) -> Result<(Opened, Location)> {
        let opened = self.open_volume(&target.image)?;
        let location = opened
            .resolve(&target.path, follow)
            .map_err(|error| target.name_in(error))?;
        Ok((opened, location))
    }

    /// The directory in which paths begin.
    fn root_of(&self, filesystem: &Filesystem) -> Result<Location> {
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        if let Some(id) = self.globals().subvolume_id {
            // As in the kernel, 0 stands for the top level.
            let id = if id == 0 {
                SubvolumeId::TOP_LEVEL
            } else {
                SubvolumeId::new(id)
            };
            filesystem.subvolume_tree(id).context("--subvolid")?;
            return Ok(Location::root_of(id));
        }
        if let Some(path) = &self.globals().subvolume {
            let location = filesystem
                .resolve(top, path.as_bytes(), Follow::All)
                .context("--subvol")?;
            if !location.is_subvolume_root() {
                return Err(anyhow::anyhow!("--subvol: {} is not a subvolume", path.display()))
                    .context(Advice::new("`buttress subvolume list IMAGE` shows what there is"));
            }
            return Ok(location);
        }
        Ok(top)
    }

    /// Has the copies that had to be passed over reported when the command ends.
    fn report_faults(&self, filesystem: &Filesystem, image: &Path) {
        let filesystem = filesystem.clone();
        let image = image.display().to_string();
        let shown = if self.globals().verbose > 0 {
            usize::MAX
        } else {
            FAULTS_SHOWN
        };
        let told = self.told_failures();
        self.report_at_end(move || {
            let log = filesystem.volume().faults();
            let mut lines: Vec<String> = log
                .faults
                .iter()
                .take(shown)
                .map(|fault| format!("{image}: {fault}"))
                .collect();
            if log.total() > lines.len() as u64 {
                lines.push(format!("{image}: {} copies were passed over in all", log.total()));
                for (device, counts) in &log.counts {
                    lines.push(format!(
                        "{image}: device {device}: {} wrong, {} unreadable, {} missing",
                        counts.corruptions, counts.read_errors, counts.missing
                    ));
                }
            }
            lines.extend(told.news_of(&filesystem.notices()));
            lines
        });
    }
}

/// The volumes of a command that takes several targets: each image is opened once.
#[derive(Debug)]
pub struct Images<'a> {
    context: &'a Context,
    open: fn(&Context, &Path) -> Result<Opened>,
    opened: Vec<(PathBuf, Opened)>,
}

impl<'a> Images<'a> {
    /// None opened yet.
    pub fn new(context: &'a Context) -> Self {
        Self {
            context,
            open: Context::open_volume,
            opened: Vec::new(),
        }
    }

    /// Likewise, for a command that reads much of them, and once: see [`Context::open_volume_for_one_pass`].
    pub fn for_one_pass(context: &'a Context) -> Self {
        Self {
            open: Context::open_volume_for_one_pass,
            ..Self::new(context)
        }
    }

    /// The volume on this image.
    pub fn open(&mut self, image: &Path) -> Result<Opened> {
        if let Some((_, opened)) = self.opened.iter().find(|(path, _)| path == image) {
            return Ok(opened.clone());
        }
        let opened = (self.open)(self.context, image)?;
        self.opened.push((image.to_owned(), opened.clone()));
        Ok(opened)
    }
}
