//! An open volume as a [`Vfs`].
//!
//! | part | holds |
//! |---|---|
//! | `accesses` | which accesses move times of the last access |
//! | `numbers`, `nodes`, `handles` | inode numbers, references to nodes, what is open |
//! | `names` | looking up, making, linking, renaming, removing, listing |
//! | `attributes` | what `stat(2)` shows and `setattr` changes, extended attributes |
//! | `content` | files: reading, writing, room, holes, copies |
//! | `control` | commands (`ioctl(2)`) of file systems in general and of btrfs |
//! | `writeback_cache` | what the kernel keeps back of what was written |
//! | `placeholders` | the empty directories that stand in a snapshot for nested subvolumes |
//! | `outside` | what changed otherwise than by the kernel's calls |
//! | `cleaner` | gives back the space of deleted subvolumes |
//! | `lasting` | whether what is synced lasts |
//! | `idle` | a commit soon after the last file that was written is closed |
//! | `statistics` | what `statfs(2)` shows |
//! | `messages` | what the log reports of errors |
//! | `ending` | the end of the service: a commit, or none |
//!
//! # Unlinked, and still in use
//!
//! The kernel goes on using an inode without a name as long as it has a reference. So before the last name of a node goes that
//! has references, the inode is held open in the writer, and the hold is kept with the node. A crash leaves it as an orphan, which the next
//! opening removes.
//!
//! # Errors
//!
//! A caller of system calls learns a number. What a person should know (damage, a device that fails, a defect of this program)
//! goes to the log as well, each text once in a while.

mod accesses;
mod attributes;
mod cleaner;
mod content;
mod control;
mod ending;
mod handles;
mod idle;
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
pub use lasting::Doomed;
use nodes::Nodes;
use numbers::Numbers;
pub use outside::SubvolumeNames;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
pub use writeback_cache::KernelSync;

/// How a volume is open.
#[derive(Clone, Debug)]
pub enum Access {
    /// As it is on its devices.
    Reading(Filesystem),
    /// For changes.
    Writing(WritableFilesystem),
}

impl Access {
    /// A state of the volume that does not change.
    #[must_use]
    pub fn view(&self) -> Filesystem {
        match self {
            Self::Reading(filesystem) => filesystem.clone(),
            Self::Writing(writer) => writer.view(),
        }
    }
}

/// How files are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Showing {
    /// All files belong to this user.
    pub uid: Option<u32>,
    /// All files belong to this group.
    pub gid: Option<u32>,
    /// Which accesses move the time of the last access, until [`MountedVolume::set_accesses`] changes that.
    pub accesses: AccessPolicy,
}

/// Where messages for a person go.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A volume as a file system. See the module.
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
    /// The system's number of what is mounted, once it is; 0 before.
    device: AtomicU64,
    log: Log,
    /// Leaves.
    told: Mutex<Vec<(String, Instant)>>,
    /// The space of a volume that is open for reading, which does not change.
    statistics: OnceLock<Statistics>,
    /// Raised when a file may have got a capability: see `content`.
    capabilities: AtomicU64,
    /// Who is served keeps for a while what is written: see `writeback_cache`.
    is_writeback_cached: AtomicBool,
    /// Nothing is done any more.
    is_shut_down: AtomicBool,
    peek: OnceLock<Peek>,
    kernel_sync: OnceLock<KernelSync>,
    doomed: OnceLock<Doomed>,
    ends_after: OnceLock<Arc<dyn Fn() + Send + Sync>>,
    /// How the end went that who unmounted waited for, until somebody takes it. A leaf.
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
    /// The directory `root` of a volume, and all below it.
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

    /// It is mounted, on this directory.
    ///
    /// # Errors
    /// That the system does not tell of it.
    pub fn is_mounted_on(&self, directory: &std::path::Path) -> std::io::Result<()> {
        // Nothing is asked of the server, which does not run yet.
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

    /// A subvolume was deleted: its space is to come back.
    fn has_deleted(&self) {
        if let Some(cleaner) = &self.cleaner {
            cleaner.wake();
        }
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
            Access::Writing(writer) => writer.read_link(location),
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
        // The kernel calls only for directories.
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

/// Returns the time of the kernel's last clock tick, which the kernel also uses for times of files. If the kernel keeps
/// times of files, all other times come from this clock. No such time is then later than the kernel's next one.
#[must_use]
pub fn coarse_now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

/// A time of a call, or another.
fn resolved(time: Option<NewTime>, now: Timestamp) -> Option<Timestamp> {
    time.map(|time| match time {
        NewTime::Now => now,
        NewTime::At(time) => time,
    })
}
