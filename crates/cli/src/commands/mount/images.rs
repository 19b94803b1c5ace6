//! The image files of a mount, which other processes may delete or replace while it is served.
//!
//! After a deletion the server continues with the open file, whose content is lost when the server
//! ends. Until the server ends, `/proc/PID/fd/N` can be copied. The server therefore keeps a
//! descriptor of each image file and names it in its record. After an image file is deleted, the
//! server fails each sync and commit, and `buttress umount` refuses.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result};
use buttress_mount::volume::{Log, MountedVolume};
use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags};
use serde_json::{Value, json};

use super::registry::Known;
use crate::context::Context;
use crate::identity::Identity;

/// The image files that a server has open, without block devices.
#[derive(Debug)]
pub struct Images {
    files: Mutex<Vec<(PathBuf, OwnedFd)>>,
    directory: PathBuf,
    /// True if the changes of the volume go to overlay files.
    pub(crate) has_overlays: bool,
    /// Reports deletions, once [`watch`](Self::watch) has started it.
    watching: OnceLock<Arc<File>>,
}

impl Images {
    /// Opens the files of a volume's devices and overlays with `O_PATH`, which neither takes nor
    /// releases their locks.
    pub(super) fn open(context: &Context, image: &Path, directory: &Path) -> Result<Self> {
        let devices = std::iter::once(image).chain(context.globals().devices.iter().map(PathBuf::as_path));
        let overlays = devices
            .clone()
            .enumerate()
            .filter_map(|(number, _)| context.overlay_of(number));
        let paths: Vec<PathBuf> = devices.map(Path::to_owned).chain(overlays).collect();
        let mut files = Vec::new();
        for path in paths {
            let opened = match rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                // The overlay file does not exist until the first write.
                Err(rustix::io::Errno::NOENT) => continue,
                opened => opened.with_context(|| format!("opening {}", path.display()))?,
            };
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
            if kind == FileType::RegularFile {
                files.push((path.canonicalize().unwrap_or(path), opened));
            }
        }
        Ok(Self {
            files: Mutex::new(files),
            directory: directory.to_owned(),
            has_overlays: context.globals().overlay.is_some(),
            watching: OnceLock::new(),
        })
    }

    /// Returns the part of the server's record that names the files.
    pub(super) fn record(&self) -> Value {
        let files = self.files.lock();
        let files = files.iter();
        files
            .map(|(path, file)| json!({ "path": path.display().to_string(), "descriptor": file.as_raw_fd() }))
            .collect()
    }

    /// Returns the message about a deleted file, with the way to save its content. Returns `None`
    /// if no image file was deleted.
    pub(super) fn deleted(&self) -> Option<String> {
        let is_deleted = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|found| found.st_nlink == 0);
        let files = self.files.lock();
        let (path, file) = files.iter().find(|(_, file)| is_deleted(file))?;
        let descriptor = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Some(deleted_text(path, &self.directory, &descriptor))
    }

    /// Adds the image file of a device that joined the volume. A block device has no links, and is
    /// left out. The record of the server does not list the file.
    pub(crate) fn joined(&self, path: PathBuf, file: OwnedFd) -> Result<()> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::RegularFile {
            return Ok(());
        }
        if let Some(watching) = self.watching.get() {
            watch_links(watching, &file)?;
        }
        self.files.lock().push((path, file));
        Ok(())
    }

    /// Removes the image file of a device that left the volume. Its deletion then loses nothing.
    pub(crate) fn left(&self, path: &Path) {
        let identity = Identity::of_path(path);
        let is_it = |file: &OwnedFd| {
            let own = Identity::of_open(file);
            own.zip(identity.as_ref())
                .is_some_and(|(own, other)| own.is_same(other))
        };
        self.files
            .lock()
            .retain(|(other, file)| other != path && !is_it(file));
    }

    /// Makes syncs and commits fail after the deletion of an image file.
    pub(super) fn guard(images: &Arc<Self>, volume: &MountedVolume, log: &Log) {
        let asked = Arc::clone(images);
        volume.asks_if_doomed(Arc::new(move || asked.deleted()));
        if let Err(error) = Self::watch(images, log) {
            log(&format!(
                "deletions of the image are detected only at the next sync: {error:#}"
            ));
        }
    }

    /// Starts a thread that logs a deletion of an image file immediately. The server must call this
    /// function before it restricts its own system calls.
    fn watch(images: &Arc<Self>, log: &Log) -> Result<()> {
        let watching = inotify::init(CreateFlags::CLOEXEC)?;
        for (_, file) in &*images.files.lock() {
            watch_links(&watching, file)?;
        }
        let watching = Arc::new(File::from(watching));
        let watching = images.watching.get_or_init(|| watching);
        let watching = Arc::clone(watching);
        let (images, log) = (Arc::downgrade(images), Arc::clone(log));
        let thread = std::thread::Builder::new().name("buttress-images".to_owned());
        thread.spawn(move || {
            let (mut watching, mut events) = (&*watching, [0; 4096]);
            while matches!(watching.read(&mut events), Ok(1..)) {
                let Some(images) = images.upgrade() else { return };
                if let Some(text) = images.deleted() {
                    log(&text);
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// Adds an image file to the watch. The number of links is an attribute, so its changes are
/// reported.
fn watch_links(watching: impl AsFd, file: &OwnedFd) -> Result<()> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    inotify::add_watch(watching, name, WatchFlags::ATTRIB)?;
    Ok(())
}

fn deleted_text(path: &Path, directory: &Path, descriptor: &str) -> String {
    let (path, directory) = (path.display(), directory.display());
    format!(
        "{path} was deleted while mounted; its content is lost when the mount ends. To save it, run `buttress mount -o remount,ro {path} {directory}`, then `cp {descriptor} NEW-IMAGE`"
    )
}

/// The fate of the image files of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All image files of the mount still have their path.
    Kept,
    /// An image file has another path now.
    Moved(String),
    /// A file was deleted; the text explains how to save it.
    Deleted(String),
}

impl Known {
    /// Returns the fate of the server's image files.
    pub(super) fn fate_of_images(&self, directory: &Path) -> Fate {
        let files = self.record.get("images").and_then(Value::as_array);
        let process = self.record.get("pid").and_then(Value::as_u64);
        let (Some(files), Some(process)) = (files, process) else {
            return Fate::Kept;
        };
        let mut fate = Fate::Kept;
        for file in files {
            let path = file.get("path").and_then(Value::as_str);
            let descriptor = file.get("descriptor").and_then(Value::as_u64);
            let (Some(path), Some(descriptor)) = (path, descriptor) else {
                continue;
            };
            let descriptor = format!("/proc/{process}/fd/{descriptor}");
            let Ok(found) = rustix::fs::stat(descriptor.as_str()) else {
                continue;
            };
            if found.st_nlink == 0 {
                return Fate::Deleted(deleted_text(Path::new(path), directory, &descriptor));
            }
            let is_there = rustix::fs::stat(path)
                .is_ok_and(|there| (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino));
            if !is_there && let Ok(now) = std::fs::read_link(&descriptor) {
                let now = now.display();
                fate = Fate::Moved(format!(
                    "{path} was moved while mounted; its changes are in {now}"
                ));
            }
        }
        fate
    }
}
