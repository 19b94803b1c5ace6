//! Changes to volumes: opening for writing, edits, commits.
//!
//! Times and uuids come from the system, unless the environment variable `SOURCE_DATE_EPOCH` gives
//! a time (seconds since 1970). This time then applies to everything that the command creates and
//! changes, and limits times that it copies or sets. Uuids derive from this time, so the same
//! commands give the same bytes.
//!
//! A command that fails before its commit leaves the volume unchanged, and reports the lost
//! changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use buttress::scrub::ResyncOptions;
use buttress::{
    AttributeChanges, ByteCount, ChecksumType, DataOptions, DeviceOptions, Environment, Follow, Location,
    NewInode, Progress, Subvolume, SubvolumeId, SystemEnvironment, Timestamp, Uncommitted, Uuid, Volume,
    VolumeOptions, WritableSubvolume, WritableVolume,
};
use rustix::fs::Mode;

use crate::context::Context;
use crate::exit::Advice;
use crate::resyncs::describe;

/// Largest amount of missed data at which a command brings devices up to date before its own work.
const RESYNC_AT_ONCE: ByteCount = ByteCount::new(RESYNC_AT_ONCE_MIB << 20);

const RESYNC_AT_ONCE_MIB: u64 = 256;

/// Environment variable of the reproducible-builds.org specification, with a time in seconds.
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// Returns the source of this command's times and uuids. `purpose` distinguishes uuids of different
/// kinds of commands.
pub fn environment(purpose: &str) -> Result<Arc<dyn Environment>> {
    let Some(text) = std::env::var_os(EPOCH_VARIABLE) else {
        return Ok(Arc::new(Present));
    };
    let seconds = text.to_str().and_then(|text| text.trim().parse().ok());
    let seconds = seconds
        .with_context(|| format!("{EPOCH_VARIABLE} is {}: not a number of seconds", text.display()))?;
    Ok(Arc::new(FixedEnvironment {
        seconds,
        purpose: purpose.to_owned(),
        uuids: AtomicU64::new(0),
    }))
}

/// An environment with the system's clock and random uuids.
#[derive(Debug)]
struct Present;

impl Environment for Present {
    fn now(&self) -> Timestamp {
        SystemEnvironment.now()
    }

    fn new_uuid(&self) -> Uuid {
        SystemEnvironment.new_uuid()
    }

    fn commit_interval(&self) -> Option<Duration> {
        SystemEnvironment.commit_interval()
    }

    fn lost(&self, lost: &Uncommitted) {
        print_loss(lost);
    }
}

/// Prints the changes that a failed command lost.
fn print_loss(lost: &Uncommitted) {
    crate::exit::print_error(&anyhow::anyhow!(
        "uncommitted changes were discarded: {lost}; the volume stays at generation {}",
        lost.committed
    ));
}

/// An environment with one fixed time, and uuids derived from it.
#[derive(Debug)]
struct FixedEnvironment {
    seconds: i64,
    purpose: String,
    uuids: AtomicU64,
}

impl Environment for FixedEnvironment {
    fn now(&self) -> Timestamp {
        Timestamp {
            seconds: self.seconds,
            nanoseconds: 0,
        }
    }

    fn latest(&self) -> Option<Timestamp> {
        Some(self.now())
    }

    fn lost(&self, lost: &Uncommitted) {
        print_loss(lost);
    }

    fn new_uuid(&self) -> Uuid {
        let number = self.uuids.fetch_add(1, Ordering::Relaxed);
        let seed = format!("{} {} {number}", self.purpose, self.seconds);
        let hash = ChecksumType::Sha256.compute(seed.as_bytes());
        let bytes = hash.as_bytes().first_chunk::<16>().copied().unwrap_or_default();
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }
}

/// A volume under change. Changes without a [commit](Self::commit) are lost.
#[derive(Clone, Debug)]
pub struct Writing {
    /// Directory that `IMAGE:/` stands for.
    pub root: WritableSubvolume,
    /// Owner of new files.
    caller: NewInode,
    environment: Arc<dyn Environment>,
}

impl Context {
    /// Opens the volume on an image or device for writing.
    pub fn open_for_writing(&self, image: &Path) -> Result<Writing> {
        self.open_for_writing_with(image, DataOptions::default())
    }

    /// Opens the volume for writing, with options for new content.
    pub fn open_for_writing_with(&self, image: &Path, data: DataOptions) -> Result<Writing> {
        if let Some(present) = self.present_for_writing(image)? {
            return Ok(present);
        }
        let writing = self.open_own_for_writing(image, data)?;
        resync(self, writing.volume());
        Ok(writing)
    }

    /// Opens like [`open_for_writing`](Self::open_for_writing), but leaves devices that missed
    /// commits to the caller.
    pub fn open_for_writing_without_resync(&self, image: &Path) -> Result<Writing> {
        if let Some(present) = self.present_for_writing(image)? {
            return Ok(present);
        }
        self.open_own_for_writing(image, DataOptions::default())
    }

    fn open_own_for_writing(&self, image: &Path, data: DataOptions) -> Result<Writing> {
        let devices = DeviceOptions {
            write: true,
            ..self.device_options()
        };
        let opened = self.open_volume_with(image, &devices)?;
        Writing::new(opened, Volume::options().data(data))
            .with_context(|| format!("opening {} for writing", image.display()))
    }
}

impl Writing {
    /// Prepares a volume, whose devices are open for writing, for changes with `options`.
    pub fn new(opened: Subvolume, options: VolumeOptions) -> Result<Self> {
        let info = opened.volume().info();
        let environment = environment(&format!("{} {}", info.fsid, info.generation))?;
        let caller = caller();
        let options = options
            .environment(Arc::clone(&environment))
            .owner(caller.uid, caller.gid)
            .umask(caller.umask);
        let volume = opened.volume().clone().into_writable(options)?;
        Ok(Self {
            root: volume.subvolume_by_id(opened.id())?,
            caller,
            environment,
        })
    }

    /// Wraps a volume that this process serves, for changes by `caller`.
    pub fn for_somebody(root: WritableSubvolume, caller: NewInode) -> Self {
        Self {
            root,
            caller,
            environment: Arc::new(Present),
        }
    }

    /// Returns the writable volume.
    pub fn volume(&self) -> &WritableVolume {
        self.root.volume()
    }

    /// Gives a new subvolume to the user of the command, as the kernel does.
    pub fn give_to_caller(&self, subvolume: SubvolumeId) -> Result<()> {
        let new = self.new_inode(0o777);
        let changes = AttributeChanges {
            mode: Some(new.mode & !new.umask),
            uid: Some(new.uid),
            gid: Some(new.gid),
            ..AttributeChanges::default()
        };
        let root = Location::root_of(subvolume);
        Ok(self.volume().set_attributes(root, &changes)?)
    }

    /// Returns the current state of the volume, with uncommitted changes.
    pub fn view(&self) -> Subvolume {
        (*self.root).clone()
    }

    /// Resolves a path, with uncommitted changes.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Location> {
        Ok(self.root.locate(path, follow)?)
    }

    /// Returns the parent directory of a path, and its last name. The last name of the path need
    /// not exist.
    pub fn place(&self, path: &[u8]) -> Result<(Location, Vec<u8>)> {
        let (directory, name) = split(path);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(anyhow::anyhow!("the new name is missing"))
                .context(Advice::new("write IMAGE:/path/name"));
        }
        Ok((self.resolve(directory, Follow::All)?, name.to_vec()))
    }

    /// Returns the file at a path, and creates an empty one if it does not exist.
    pub fn create_if_missing(&self, path: &[u8]) -> Result<Location> {
        if let Ok(location) = self.resolve(path, Follow::All) {
            return Ok(location);
        }
        let (directory, name) = self.place(path)?;
        Ok(self
            .volume()
            .create_file(directory, &name, &self.new_inode(0o666))?)
    }

    /// Returns the directory at a path, if it exists.
    pub fn directory_at(&self, path: &[u8]) -> Option<Location> {
        let location = self.root.locate(path, Follow::All).ok()?;
        let is_directory = self.volume().metadata(location).ok()?.is_directory();
        is_directory.then_some(location)
    }

    /// Creates the missing parent directories of a path.
    pub fn make_parents(&self, path: &[u8]) -> Result<()> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in slashes {
            let above = path.get(..end).unwrap_or(path);
            let is_named = above.iter().any(|byte| *byte != b'/');
            if is_named && self.resolve(above, Follow::All).is_err() {
                let (directory, name) = self.place(above)?;
                self.volume()
                    .create_dir(directory, &name, &self.new_inode(0o777))?;
            }
        }
        Ok(())
    }

    /// Returns the properties of a new inode: it belongs to the user of the command, and the umask
    /// reduces its mode, as on a mounted volume.
    pub fn new_inode(&self, mode: u32) -> NewInode {
        NewInode { mode, ..self.caller }
    }

    /// Returns the current time of the environment.
    pub fn now(&self) -> Timestamp {
        self.environment.now()
    }

    /// Commits all changes.
    pub fn commit(&self) -> Result<()> {
        self.volume().sync().context("committing")?;
        Ok(())
    }
}

/// Brings up to date the devices that missed commits, if this takes little time. Later writes then
/// reach these devices too. If the resynchronisation would take long, a warning names the command
/// for it.
pub fn resync(context: &Context, volume: &WritableVolume) {
    if volume
        .devices()
        .iter()
        .all(|device| device.behind_since.is_none())
    {
        return;
    }
    let options = ResyncOptions {
        at_most: Some(RESYNC_AT_ONCE),
        ..ResyncOptions::default()
    };
    let (resynced, ended) = volume.resync(options, &Progress::new());
    for device in &resynced.devices {
        context.notice(describe(device));
    }
    for name in &resynced.left {
        context.warn(format_args!(
            "{name} missed more than {RESYNC_AT_ONCE_MIB} MiB and is left out of date. To bring it up to date, run `buttress device resync`"
        ));
    }
    if let Err(error) = ended {
        context.warn(format_args!(
            "a device that missed commits stays out of date: {error}"
        ));
    }
}

/// Splits a path into its parent path and its last name. Trailing slashes are not part of the last
/// name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last.saturating_add(1));
    let path = path.get(..end).unwrap_or(path);
    let start = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash.saturating_add(1));
    path.split_at_checked(start).unwrap_or((b"", path))
}

/// Returns the umask of this process.
pub fn umask() -> u32 {
    // Reading the umask requires setting it.
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(umask);
    umask.as_raw_mode() & 0o777
}

/// Returns user and group of this process as owner of new files.
fn caller() -> NewInode {
    NewInode {
        mode: 0,
        umask: umask(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_a_path() {
        let cases: [(&[u8], &[u8], &[u8]); 6] = [
            (b"/a/b", b"/a/", b"b"),
            (b"/a", b"/", b"a"),
            (b"/a/b//", b"/a/", b"b"),
            (b"/", b"", b""),
            (b"", b"", b""),
            (b"a", b"", b"a"),
        ];
        for (path, directory, name) in cases {
            assert_eq!(split(path), (directory, name));
        }
    }

    #[test]
    fn a_fixed_time_gives_the_same_uuids_again() {
        let environment = |purpose: &str| FixedEnvironment {
            seconds: 7,
            purpose: purpose.to_owned(),
            uuids: AtomicU64::new(0),
        };
        let (one, two, other) = (environment("a"), environment("a"), environment("b"));
        let first = one.new_uuid();
        assert_eq!((first, one.new_uuid()), (two.new_uuid(), two.new_uuid()));
        assert_ne!(first, other.new_uuid());
        assert_eq!(first.get_version_num(), 4);
        assert_eq!(one.now().seconds, 7);
    }
}
