//! An open volume as a [`Vfs`].
//!
//! | part | holds |
//! |---|---|
//! | `accesses` | the policy for access times |
//! | `numbers`, `nodes`, `handles` | inode numbers, references to nodes, open files |
//! | `names` | lookup, creation, links, renames, removal, listing |
//! | `attributes` | the attributes of `stat(2)` and their changes, extended attributes |
//! | `content` | files: reads, writes, allocation, holes, copies |
//! | `control` | commands (`ioctl(2)`) of file systems in general and of btrfs |
//! | `writeback_cache` | written content that the kernel has not sent yet |
//! | `placeholders` | the empty directories in a snapshot that represent nested subvolumes |
//! | `outside` | changes outside the kernel's calls |
//! | `cleaner` | frees the space of deleted subvolumes |
//! | `lasting` | whether synced content survives the end of the server |
//! | `jobs` | long changes that the end of the service cancels |
//! | `idle` | a commit soon after the last close of a written file |
//! | `statistics` | the space that `statfs(2)` shows |
//! | `messages` | log messages for errors |
//! | `ending` | the end of the service: a commit, or none |
//!
//! # Unlinked, and still in use
//!
//! The kernel uses an inode without a name for as long as it has a reference. Before a referenced
//! node loses its last name, the mount therefore opens the inode in the writer, and keeps this open
//! inode with the node. After a crash, this unnamed inode is an orphan, which the next opening
//! removes.
//!
//! # Errors
//!
//! System calls return an error number. The log also contains errors that a person should know
//! about (damage, a failing device, a defect of this program), the same text at most once a minute.

mod accesses;
mod attributes;
mod cleaner;
mod content;
mod control;
mod ending;
mod handles;
mod idle;
mod jobs;
mod lasting;
mod messages;
mod names;
mod nodes;
mod numbers;
mod outside;
mod placeholders;
mod statistics;
mod writeback_cache;

use crate::vfs::{
    Answered, Changes, Control, Copied, Entry, Errno, HandleId, Listed, Looks, NewKind, NewNode, NodeId,
    OpenMode, Opened, ReadHow, RenameHow, Result, SeekTo, SetHow, Shown, Stale, Statistics, Vfs,
};
use crate::vfs::{Caller, HeldBack, NewTime};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{AccessPolicy, AllocateMode, Location, Timestamp};
use cleaner::Cleaner;
pub use control::Peek;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use handles::Handles;
use idle::Idle;
pub use jobs::{Job, Jobs};
pub use lasting::Doomed;
use nodes::Nodes;
use numbers::Numbers;
pub use outside::SubvolumeNames;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
pub use writeback_cache::KernelSync;

/// Access to a volume.
#[derive(Clone, Debug)]
pub enum Access {
    /// The volume is open for reading.
    Reading(Filesystem),
    /// The volume is open for writing.
    Writing(WritableFilesystem),
}

impl Access {
    /// Returns a view of the volume that does not change.
    #[must_use]
    pub fn view(&self) -> Filesystem {
        match self {
            Self::Reading(filesystem) => filesystem.clone(),
            Self::Writing(writer) => writer.view(),
        }
    }
}

/// Options that change the attributes of files in the mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct Showing {
    /// User id that all files show as owner.
    pub uid: Option<u32>,
    /// Group id that all files show.
    pub gid: Option<u32>,
    /// Policy for access times, until [`MountedVolume::set_remounted`] changes it.
    pub accesses: AccessPolicy,
}

/// Receiver of log messages for a person.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A volume as a file system.
pub struct MountedVolume {
    access: Access,
    root: Location,
    showing: Showing,
    accesses: accesses::Accesses,
    numbers: Numbers,
    nodes: Nodes,
    handles: Arc<Handles>,
    idle: Option<Idle>,
    cleaner: Option<Cleaner>,
    jobs: Arc<Jobs>,
    /// Device number of the mount; 0 before it is mounted.
    device: AtomicU64,
    log: Log,
    /// Recent log messages with their times. Leaf lock.
    told: Mutex<Vec<(String, Instant)>>,
    /// Space of a volume that is open for reading, which never changes.
    statistics: OnceLock<Statistics>,
    /// Counter that increments when a file may have gained a capability: see `content`.
    capabilities: AtomicU64,
    /// True if the kernel has a write-back cache: see `writeback_cache`.
    is_writeback_cached: AtomicBool,
    /// True after a shutdown: every call fails.
    is_shut_down: AtomicBool,
    peek: OnceLock<Peek>,
    kernel_sync: OnceLock<KernelSync>,
    doomed: OnceLock<Doomed>,
    ends_after: OnceLock<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Result of the last commit of an unmount, until a caller takes the result. Leaf lock.
    ended: Mutex<Option<core::result::Result<(), buttress::unstable::fs::Error>>>,
}

impl fmt::Debug for MountedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountedVolume")
            .field("root", &self.root)
            .field("open", &self.handles.len())
            .finish_non_exhaustive()
    }
}

impl MountedVolume {
    /// Creates a file system of the directory `root` of a volume, and everything below it.
    #[must_use]
    pub fn new(access: Access, root: Location, showing: Showing, log: Log) -> Self {
        let handles = Arc::new(Handles::default());
        let idle = match &access {
            Access::Reading(_) => None,
            Access::Writing(writer) => Idle::start(writer.clone(), Arc::clone(&handles)),
        };
        let cleaner = match &access {
            Access::Reading(_) => None,
            Access::Writing(writer) => Cleaner::start(writer.clone()),
        };
        let (numbers, nodes) = (Numbers::new(root.subvolume), Nodes::new());
        if let Ok(root) = numbers.of(root) {
            // The kernel refers to the root without a request.
            nodes.refer(root, None);
        }
        Self {
            access,
            root,
            showing,
            accesses: accesses::Accesses::new(showing.accesses),
            numbers,
            nodes,
            handles,
            idle,
            cleaner,
            jobs: Arc::default(),
            device: AtomicU64::new(0),
            log,
            told: Mutex::default(),
            statistics: OnceLock::new(),
            capabilities: AtomicU64::new(1),
            is_writeback_cached: AtomicBool::new(false),
            is_shut_down: AtomicBool::new(false),
            peek: OnceLock::new(),
            kernel_sync: OnceLock::new(),
            doomed: OnceLock::new(),
            ends_after: OnceLock::new(),
            ended: Mutex::default(),
        }
    }

    /// Records that the file system is mounted on this directory.
    ///
    /// # Errors
    /// The system does not return the mount's device number.
    pub fn is_mounted_on(&self, directory: &std::path::Path) -> std::io::Result<()> {
        // This call must not send a request to the server, which does not run yet.
        let found = rustix::fs::statx(
            rustix::fs::CWD,
            directory,
            rustix::fs::AtFlags::STATX_DONT_SYNC,
            rustix::fs::StatxFlags::INO,
        )?;
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        self.device.store(device, Ordering::SeqCst);
        Ok(())
    }

    fn device(&self) -> Option<u64> {
        match self.device.load(Ordering::SeqCst) {
            0 => None,
            device => Some(device),
        }
    }

    /// Wakes the cleaner to free the space of a deleted subvolume.
    fn has_deleted(&self) {
        if let Some(cleaner) = &self.cleaner {
            cleaner.wake();
        }
    }

    /// Returns the long changes of the volume, for further ones outside of the kernel's calls.
    #[must_use]
    pub const fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Begins a long change for a control command.
    fn begin_job(&self, control: &Control<'_>) -> Result<Job> {
        self.jobs.begin(control.progress).ok_or(Errno::SHUTDOWN)
    }

    fn location(&self, node: NodeId) -> Result<Location> {
        if self.is_down() || self.handles.are_closed() {
            return Err(Errno::SHUTDOWN);
        }
        self.numbers.location(node)
    }

    fn writer(&self) -> Result<&WritableFilesystem> {
        match &self.access {
            Access::Writing(_) if self.is_down() || self.handles.are_closed() => Err(Errno::SHUTDOWN),
            Access::Writing(writer) => Ok(writer),
            Access::Reading(_) => Err(Errno::ROFS),
        }
    }

    fn now(&self) -> Timestamp {
        match self.is_writeback_cached() {
            true => coarse_now(),
            false => buttress::Environment::now(&buttress::SystemEnvironment),
        }
    }
}

impl Vfs for MountedVolume {
    fn root(&self) -> NodeId {
        self.numbers.of(self.root).unwrap_or(NodeId(0))
    }

    fn lookup(&self, directory: NodeId, name: &[u8]) -> Result<Entry> {
        self.lookup_at(directory, name)
    }

    fn parent(&self, directory: NodeId) -> Result<Entry> {
        self.parent_of(directory)
    }

    fn revive(&self, node: NodeId, listed_in: Option<NodeId>) -> Result<Entry> {
        self.entry_of(node, self.location(node)?, listed_in)
            .map_err(|_| Errno::STALE)
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.nodes.forget(node, references);
    }

    fn caches(&self, node: NodeId) {
        self.nodes.caches(node);
    }

    fn is_cached(&self, node: NodeId) -> bool {
        self.nodes.is_cached(node)
    }

    fn attributes(&self, node: NodeId) -> Result<Shown> {
        self.shown(self.location(node)?)
    }

    fn change(&self, node: NodeId, changes: &Changes) -> Result<Shown> {
        let location = self.location(node)?;
        match location.placeholder() {
            Some(_) => self.change_placeholder(location, changes),
            None => self.change_at(location, changes),
        }
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        let location = self.location(node)?;
        self.note_access(location);
        match &self.access {
            Access::Reading(filesystem) => filesystem.read_link(location),
            Access::Writing(writer) => writer.live().read_link(location),
        }
        .map_err(|error| self.failed(&error))
    }

    fn make(&self, directory: NodeId, name: &[u8], new: &NewNode, kind: NewKind<'_>) -> Result<Entry> {
        self.make_at(directory, name, new, kind)
    }

    fn create(
        &self,
        directory: NodeId,
        name: &[u8],
        new: &NewNode,
        mode: OpenMode,
    ) -> Result<(Entry, HandleId)> {
        self.create_at(directory, name, new, mode)
    }

    fn create_unnamed(&self, directory: NodeId, new: &NewNode, mode: OpenMode) -> Result<(Entry, HandleId)> {
        self.create_unnamed_at(directory, new, mode)
    }

    fn link(&self, node: NodeId, directory: NodeId, name: &[u8]) -> Result<Entry> {
        self.link_at(node, directory, name)
    }

    fn unlink(&self, directory: NodeId, name: &[u8]) -> Result<()> {
        self.unlink_at(directory, name)
    }

    fn remove_directory(&self, directory: NodeId, name: &[u8]) -> Result<()> {
        self.remove_directory_at(directory, name)
    }

    fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        how: RenameHow,
        caller: Caller,
    ) -> Result<()> {
        self.rename_at(from, to, how, caller)
    }

    fn open(&self, node: NodeId, mode: OpenMode) -> Result<HandleId> {
        self.open_at(self.location(node)?, mode)
    }

    fn read(&self, file: Opened, offset: u64, buffer: &mut [u8], how: ReadHow) -> Result<usize> {
        self.read_at(file, offset, buffer, how)
    }

    fn write(
        &self,
        handle: HandleId,
        offset: u64,
        bytes: &[u8],
        cached: bool,
        drop_privileges: bool,
    ) -> Result<()> {
        self.write_at(handle, offset, bytes, cached, drop_privileges)
    }

    fn sync(&self, node: NodeId, only_data: bool) -> Result<()> {
        self.sync_at(self.location(node)?, only_data)
    }

    fn sync_all(&self) -> Result<()> {
        match &self.access {
            Access::Reading(_) => Ok(()),
            Access::Writing(_) => {
                let committed = self.writer()?.commit();
                committed.map_err(|error| self.failed(&error))?;
                self.require_lasting()
            }
        }
    }

    fn release(&self, handle: HandleId) {
        let was_last = self.handles.release(handle);
        if was_last && let Some(idle) = &self.idle {
            idle.closed();
        }
    }

    fn allocate(&self, handle: HandleId, range: Range<u64>, mode: AllocateMode) -> Result<()> {
        self.allocate_at(handle, range, mode)
    }

    fn seek(&self, file: Opened, offset: u64, to: SeekTo) -> Result<u64> {
        self.seek_at(file, offset, to)
    }

    fn copy(&self, from: (HandleId, u64), to: (HandleId, u64), bytes: u64) -> Result<Copied> {
        self.copy_at(from, to, bytes)
    }

    fn open_directory(&self, node: NodeId) -> Result<HandleId> {
        // The kernel syncs only directories with this request.
        let _is_there = self.location(node)?;
        Err(Errno::NOSYS)
    }

    fn list(&self, directory: Opened, position: u64, count: usize) -> Result<Vec<Listed>> {
        self.list_at(directory, position, count)
    }

    fn statistics(&self) -> Result<Statistics> {
        self.statistics_now()
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_at(self.location(node)?, name)
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.xattr_names_at(self.location(node)?)
    }

    fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: SetHow,
        drop_set_group: bool,
    ) -> Result<()> {
        self.set_xattr_at(self.location(node)?, name, value, how, drop_set_group)
    }

    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.remove_xattr_at(self.location(node)?, name)
    }

    fn control(&self, node: NodeId, control: &Control<'_>) -> Result<Answered> {
        self.control_at(self.location(node)?, control)
    }

    fn keeps_writes(&self) {
        self.is_writeback_cached.store(true, Ordering::SeqCst);
    }

    fn kept_back(&self, by: Looks) -> HeldBack {
        self.may_be_kept_back(by)
    }

    fn fetch_times(&self) {
        self.sync_kernel();
    }

    fn is_fetching_times(&self, caller: Caller) -> bool {
        self.is_syncing_kernel(caller)
    }

    fn has_come(&self, content: &[Stale]) {
        self.tell_times(content);
    }

    fn end(&self) {
        self.end_service();
    }

    fn broke(&self) {
        self.stop_after_panic();
    }
}

/// Returns the time of the kernel's last clock tick, which the kernel also uses for times of files.
/// With a write-back cache, all other times come from this clock. A time from this clock is then
/// never later than the kernel's next time of the file.
#[must_use]
pub fn coarse_now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

/// Resolves a requested time: the time of the call, or the given time.
fn resolved(time: Option<NewTime>, now: Timestamp) -> Option<Timestamp> {
    time.map(|time| match time {
        NewTime::Now => now,
        NewTime::At(time) => time,
    })
}
