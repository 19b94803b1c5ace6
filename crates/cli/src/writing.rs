//! Volumes that are changed: opened for writing, edited, committed.
//!
//! Times and uuids come from the system, unless the environment variable `SOURCE_DATE_EPOCH` gives a time (seconds since
//! 1970): then that is the time of everything that is made and changed, no time that is copied or set is later, and uuids
//! follow from it, so that the same commands give the same bytes.
//!
//! A command that fails before it committed leaves the volume as it was, and says what it did in vain.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use buttress::scrub::ResyncOptions;
use buttress::unstable::scrub::resync::devices_behind;
use buttress::unstable::scrub::{Healer, Resync};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    AttributeChanges, ByteCount, ChecksumType, DataOptions, DeviceOptions, Environment, Follow, Location,
    NewInode, Progress, SubvolumeId, SystemEnvironment, Timestamp, Uncommitted, Uuid,
};
use rustix::fs::Mode;

use crate::context::Context;
use crate::exit::Advice;
use crate::opening::Opened;
use crate::resyncs::describe;

/// A command brings devices up to date before its own work if they missed at most this many bytes.
const RESYNC_AT_ONCE: ByteCount = ByteCount::new(RESYNC_AT_ONCE_MIB << 20);

const RESYNC_AT_ONCE_MIB: u64 = 256;

/// The variable of reproducible-builds.org's specification.
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// Where this command's times and uuids come from. `purpose` tells uuids of one kind of command from those of another.
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

/// The system's clock, and random uuids.
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

/// What a command did in vain.
fn print_loss(lost: &Uncommitted) {
    crate::exit::print_error(&anyhow::anyhow!(
        "not committed, and dropped: {lost}; the volume stays as it was at generation {}",
        lost.committed
    ));
}

/// One time, and uuids that follow from it.
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

/// A volume that is being changed. What is not [committed](Self::commit) is lost.
#[derive(Clone, Debug)]
pub struct Writing {
    /// What this command reads past is mended. Gone before the volume.
    _healer: Option<Arc<Healer>>,
    /// The volume.
    pub filesystem: WritableFilesystem,
    /// What `IMAGE:/` means.
    pub root: Location,
    /// Whose new files are.
    caller: NewInode,
    environment: Arc<dyn Environment>,
}

impl Context {
    /// Opens the volume on an image or device for changing it.
    pub fn open_for_writing(&self, image: &Path) -> Result<Writing> {
        self.open_for_writing_with(image, DataOptions::default())
    }

    /// The same, with a say in how content is written.
    pub fn open_for_writing_with(&self, image: &Path, data: DataOptions) -> Result<Writing> {
        if let Some(present) = self.present_for_writing(image)? {
            return Ok(present);
        }
        let writing = self.open_own_for_writing(image, data)?;
        resync(self, &writing.filesystem);
        Ok(writing)
    }

    /// As [`open_for_writing`](Self::open_for_writing); devices that missed commits are left for the caller.
    pub fn open_for_writing_without_resync(&self, image: &Path) -> Result<Writing> {
        if let Some(present) = self.present_for_writing(image)? {
            return Ok(present);
        }
        self.open_own_for_writing(image, DataOptions::default())
    }

    fn open_own_for_writing(&self, image: &Path, data: DataOptions) -> Result<Writing> {
        let options = DeviceOptions {
            write: true,
            ..self.device_options()
        };
        let opened = self.open_volume_with(image, &options)?;
        Writing::new(opened, data).with_context(|| format!("opening {} for writing", image.display()))
    }
}

impl Writing {
    /// Makes a volume whose devices are open for writing ready for it.
    pub fn new(opened: Opened, data: DataOptions) -> Result<Self> {
        Self::with(opened, data, false)
    }

    /// The same, to give up the replacement of a device, whose target need not be there.
    pub fn to_give_up_replacement(opened: Opened) -> Result<Self> {
        Self::with(opened, DataOptions::default(), true)
    }

    fn with(opened: Opened, data: DataOptions, gives_up_replacement: bool) -> Result<Self> {
        let superblock = opened.filesystem.superblock();
        let purpose = format!("{} {}", superblock.fsid, superblock.generation);
        let environment = environment(&purpose)?;
        let options = WriteOptions {
            environment: Arc::clone(&environment),
            data,
            gives_up_replacement,
            ..WriteOptions::default()
        };
        let filesystem = WritableFilesystem::new(opened.filesystem, options)?;
        Ok(Self {
            _healer: Healer::start_where_redundant(&filesystem).map(Arc::new),
            filesystem,
            root: opened.root,
            caller: caller(),
            environment,
        })
    }

    /// A volume that this process serves, for somebody.
    pub fn for_somebody(filesystem: WritableFilesystem, root: Location, caller: NewInode) -> Self {
        Self {
            // The server has one for all that it does.
            _healer: None,
            filesystem,
            root,
            caller,
            environment: Arc::new(Present),
        }
    }

    /// Gives a new subvolume to who runs the command, as the kernel does.
    pub fn give_to_caller(&self, subvolume: SubvolumeId) -> Result<()> {
        let new = self.new_inode(0o777);
        let changes = AttributeChanges {
            mode: Some(new.mode & !new.umask),
            uid: Some(new.uid),
            gid: Some(new.gid),
            ..AttributeChanges::default()
        };
        let root = Location::root_of(subvolume);
        Ok(self.filesystem.set_attributes(root, &changes)?)
    }

    /// The volume as it is now, changes included, for reading.
    pub fn view(&self) -> Opened {
        Opened {
            filesystem: self.filesystem.view(),
            root: self.root,
        }
    }

    /// What a path leads to, changes included.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Location> {
        self.view().resolve(path, follow)
    }

    /// The directory that a path's last name is to stand in, and the name.
    pub fn place(&self, path: &[u8]) -> Result<(Location, Vec<u8>)> {
        let (directory, name) = split(path);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(anyhow::anyhow!("a new name is missing"))
                .context(Advice::new("write IMAGE:/path/name"));
        }
        Ok((self.resolve(directory, Follow::All)?, name.to_vec()))
    }

    /// The file that a path leads to; an empty one is made where there is none.
    pub fn create_if_missing(&self, path: &[u8]) -> Result<Location> {
        if let Ok(location) = self.resolve(path, Follow::All) {
            return Ok(location);
        }
        let (directory, name) = self.place(path)?;
        Ok(self.filesystem.create(directory, &name, &self.new_inode(0o666))?)
    }

    /// The directory that a path leads to, if it leads to one.
    pub fn directory_at(&self, path: &[u8]) -> Option<Location> {
        let opened = self.view();
        let location = opened.resolve(path, Follow::All).ok()?;
        let is_directory = opened.filesystem.metadata(location).ok()?.is_directory();
        is_directory.then_some(location)
    }

    /// Makes the directories above a path that are not there.
    pub fn make_parents(&self, path: &[u8]) -> Result<()> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in slashes {
            let above = path.get(..end).unwrap_or(path);
            let is_named = above.iter().any(|byte| *byte != b'/');
            if is_named && self.resolve(above, Follow::All).is_err() {
                let (directory, name) = self.place(above)?;
                self.filesystem
                    .make_directory(directory, &name, &self.new_inode(0o777))?;
            }
        }
        Ok(())
    }

    /// What is new belongs to who runs the command, with a mode that its umask lessens, as on a mounted volume.
    pub fn new_inode(&self, mode: u32) -> NewInode {
        NewInode { mode, ..self.caller }
    }

    /// The time, as the volume gets it.
    pub fn now(&self) -> Timestamp {
        self.environment.now()
    }

    /// Makes what was changed durable.
    pub fn commit(&self) -> Result<()> {
        self.filesystem.commit().context("committing")?;
        Ok(())
    }
}

/// Brings up to date the devices that missed commits, if this takes little time. Later writes then reach these devices
/// too. Otherwise a warning names the command for it.
pub fn resync(context: &Context, filesystem: &WritableFilesystem) {
    let volume = Arc::clone(filesystem.committed_view().volume());
    if devices_behind(&volume).is_empty() {
        return;
    }
    let options = ResyncOptions {
        at_most: Some(RESYNC_AT_ONCE),
        ..ResyncOptions::default()
    };
    let job = Resync::new(filesystem.clone(), options, Progress::new());
    let (resynced, ended) = job.run_as_far_as_possible();
    for device in &resynced.devices {
        context.notice(describe(device));
    }
    for name in &resynced.left {
        context.warn(format_args!(
            "{name} missed more than {RESYNC_AT_ONCE_MIB} MiB, and is not written. To bring it up to date, run `buttress device resync`"
        ));
    }
    if let Err(error) = ended {
        context.warn(format_args!("a device that missed commits stays behind: {error}"));
    }
}

/// The last name of a path, and what is before it. Slashes at the end do not count.
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

/// The bits that new files of this process do not get.
pub fn umask() -> u32 {
    // The only way to learn it is to set it.
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(umask);
    umask.as_raw_mode() & 0o777
}

/// Who runs this program.
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
