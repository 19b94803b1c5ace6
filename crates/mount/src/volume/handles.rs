//! Open files.

use crate::vfs::{Errno, HandleId, OpenMode, Result};
use buttress::Location;
use buttress::unstable::fs::Error;
use buttress::unstable::locks::Rank;
use buttress::unstable::locks::RwLock;
use buttress::unstable::locks::lock_class;
use buttress::unstable::writer::LiveFile;
use buttress::unstable::writer::WritableFilesystem;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

lock_class!(OpenLock, "open", Rank::LEAF);

/// An open file of a volume that is open for writing.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) location: Location,
    pub(super) mode: OpenMode,
    /// The live file of the inode, from the first read or write on.
    live: OnceLock<LiveFile>,
    /// For a file open for writing: true if cached content has arrived without its times.
    pub(super) is_untold: Arc<AtomicBool>,
    /// The state of capabilities in which the file is known to have none; see [`super::content`].
    pub(super) without_capability: AtomicU64,
}

/// A file that is open for writing, with all its handles.
#[derive(Debug, Default)]
struct Written {
    times: u64,
    /// Number of these handles that are also open for reading; writable memory maps need both.
    mappable: u64,
    is_untold: Arc<AtomicBool>,
    /// The number of the latest sync by the kernel that had begun when the kernel sent times of the file.
    timed_in_sync: AtomicU64,
}

impl OpenFile {
    /// Returns the live file; later calls search no table.
    pub(super) fn live(&self, writer: &WritableFilesystem) -> core::result::Result<&LiveFile, Error> {
        if let Some(live) = self.live.get() {
            return Ok(live);
        }
        let live = writer.live().file(self.location)?;
        Ok(self.live.get_or_init(|| live))
    }
}

#[derive(Debug, Default)]
struct Open {
    handles: HashMap<HandleId, Arc<OpenFile>>,
    written: HashMap<Location, Written>,
}

/// All files that are open on the mount.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: RwLock<Open, OpenLock>,
    last: AtomicU64,
    /// Number of handles that are open for writing.
    writers: AtomicU64,
    /// Number of syncs that the kernel has begun.
    kernel_syncs: AtomicU64,
    /// True after [`Self::clear`]: the service has ended.
    are_closed: AtomicBool,
}

impl Handles {
    fn add(&self, file: OpenFile) -> HandleId {
        let id = HandleId(self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        self.open.write().handles.insert(id, Arc::new(file));
        id
    }

    /// Opens a file. `without_capability`: the state of capabilities in which the file is known to
    /// have none.
    pub(super) fn add_file(&self, location: Location, mode: OpenMode, without_capability: u64) -> HandleId {
        let is_untold = if mode.write {
            self.writers.fetch_add(1, Ordering::Relaxed);
            let mut open = self.open.write();
            let written = open.written.entry(location).or_default();
            written.times = written.times.saturating_add(1);
            written.mappable = written.mappable.saturating_add(u64::from(!mode.write_only));
            Arc::clone(&written.is_untold)
        } else {
            Arc::default()
        };
        self.add(OpenFile {
            location,
            mode,
            live: OnceLock::new(),
            is_untold,
            without_capability: AtomicU64::new(without_capability),
        })
    }

    /// Returns whether a file is open for writing.
    pub(super) fn is_written(&self, location: Location) -> bool {
        self.open.read().written.contains_key(&location)
    }

    /// Returns whether a writable memory map of the file may exist.
    pub(super) fn is_mappable(&self, location: Location) -> bool {
        let open = self.open.read();
        open.written
            .get(&location)
            .is_some_and(|written| written.mappable > 0)
    }

    /// Lists the files that are open for writing.
    pub(super) fn written(&self) -> Vec<Location> {
        self.open.read().written.keys().copied().collect()
    }

    /// Marks the kernel's times of a file as known to the server. Returns whether content of the
    /// file had arrived without its times.
    pub(super) fn tell(&self, location: Location) -> bool {
        let open = self.open.read();
        let written = open.written.get(&location);
        written.is_some_and(|written| written.is_untold.swap(false, Ordering::SeqCst))
    }

    /// Records that the kernel sent times of a file.
    pub(super) fn take_times(&self, location: Location) {
        if let Some(written) = self.open.read().written.get(&location) {
            written.is_untold.store(false, Ordering::SeqCst);
            let sync = self.kernel_syncs.load(Ordering::SeqCst);
            written.timed_in_sync.store(sync, Ordering::SeqCst);
        }
    }

    /// Runs a sync of the mount by the kernel. The kernel sends times and content of a file
    /// independently, so content can arrive after its times. Content of a file whose times arrived
    /// in this sync, or in a later one that overlaps it, is timed.
    ///
    /// Left out: a caller that writes during the sync. The content of such a write can also arrive
    /// after the times. The file then has older times in the snapshot for which the sync runs.
    pub(super) fn in_kernel_sync(&self, sync: impl FnOnce()) {
        let number = self.kernel_syncs.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        sync();
        for written in self.open.read().written.values() {
            if written.timed_in_sync.load(Ordering::SeqCst) >= number {
                written.is_untold.store(false, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn file(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        match self.open.read().handles.get(&id) {
            Some(file) => Ok(Arc::clone(file)),
            None => Err(self.unknown()),
        }
    }

    /// Closes a handle. Returns whether the closed handle was the last one open for writing.
    pub(super) fn release(&self, id: HandleId) -> bool {
        let mut open = self.open.write();
        let file = match open.handles.remove(&id) {
            Some(file) if file.mode.write => file,
            _ => return false,
        };
        if let Entry::Occupied(mut written) = open.written.entry(file.location) {
            match written.get().times.checked_sub(1) {
                None | Some(0) => drop(written.remove()),
                Some(rest) => {
                    let closed = u64::from(!file.mode.write_only);
                    let written = written.get_mut();
                    debug_assert!(written.mappable >= closed, "more handles were closed than opened");
                    written.times = rest;
                    written.mappable = written.mappable.wrapping_sub(closed);
                }
            }
        }
        drop(open);
        self.writers.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Lists the files that callers have open.
    pub(super) fn locations(&self) -> HashSet<Location> {
        let open = self.open.read();
        open.handles.values().map(|file| file.location).collect()
    }

    /// Returns the number of handles that are open for writing.
    pub(super) fn writers(&self) -> u64 {
        self.writers.load(Ordering::Relaxed)
    }

    /// Returns the number of open handles.
    pub(super) fn len(&self) -> usize {
        self.open.read().handles.len()
    }

    /// Returns the error for an unknown handle.
    fn unknown(&self) -> Errno {
        match self.are_closed() {
            true => Errno::SHUTDOWN,
            false => Errno::BADF,
        }
    }

    /// Returns whether the server has ended its service and closed all handles.
    pub(super) fn are_closed(&self) -> bool {
        self.are_closed.load(Ordering::SeqCst)
    }

    /// Closes all handles, because their clients are gone or will be.
    pub(super) fn clear(&self) {
        self.are_closed.store(true, Ordering::SeqCst);
        *self.open.write() = Open::default();
        self.writers.store(0, Ordering::Relaxed);
    }
}
