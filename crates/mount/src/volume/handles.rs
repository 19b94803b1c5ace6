//! What is open.

use crate::vfs::{Errno, HandleId, NodeId, OpenMode, Result};
use buttress::Location;
use buttress::unstable::locks::{Rank, RwLock, lock_class};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

lock_class!(OpenLock, "open", Rank::LEAF);

/// An open file, of a volume that is open for changes.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) location: Location,
    pub(super) mode: OpenMode,
    /// Of one that is open for writing: whether content came out of a cache, and the times that belong to it did not yet.
    pub(super) is_untold: Arc<AtomicBool>,
    /// The state of capabilities in which the file is known to have none; see [`super::content`].
    pub(super) without_capability: AtomicU64,
}

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) node: NodeId,
    pub(super) location: Location,
    /// Names that get this index or a later one are not listed: they came after the listing began.
    pub(super) end: Mutex<u64>,
}

#[derive(Debug)]
enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
}

/// A file that is open for writing.
#[derive(Debug, Default)]
struct Written {
    times: u64,
    /// How many of them are open for reading, too: maps that can be written need that.
    mappable: u64,
    is_untold: Arc<AtomicBool>,
    /// The number of the latest sync by the kernel that had begun when the kernel sent times of the file.
    timed_in_sync: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    handles: HashMap<HandleId, Handle>,
    written: HashMap<Location, Written>,
}

/// All that is open.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: RwLock<Open, OpenLock>,
    last: AtomicU64,
    /// How many files are open for writing.
    writers: AtomicU64,
    /// How many syncs by the kernel have begun.
    kernel_syncs: AtomicU64,
    /// All were closed, and nobody is served any more.
    are_closed: AtomicBool,
}

impl Handles {
    fn add(&self, handle: Handle) -> HandleId {
        let id = HandleId(self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        self.open.write().handles.insert(id, handle);
        id
    }

    pub(super) fn add_file(&self, location: Location, mode: OpenMode) -> HandleId {
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
        self.add(Handle::File(Arc::new(OpenFile {
            location,
            mode,
            is_untold,
            without_capability: AtomicU64::new(0),
        })))
    }

    /// Whether a file is open for writing.
    pub(super) fn is_written(&self, location: Location) -> bool {
        self.open.read().written.contains_key(&location)
    }

    /// Whether a file may be written by a map.
    pub(super) fn is_mappable(&self, location: Location) -> bool {
        let open = self.open.read();
        open.written
            .get(&location)
            .is_some_and(|written| written.mappable > 0)
    }

    /// The files that are open for writing.
    pub(super) fn written(&self) -> Vec<Location> {
        self.open.read().written.keys().copied().collect()
    }

    /// The times of a file were told; whether they had not been since content of it came.
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

    /// Runs a sync of the mount by the kernel. The kernel sends the times of a file beside its content, so content can arrive
    /// after its times. Content of a file whose times arrived in this sync, or in a later one that overlaps it, is timed.
    ///
    /// Left out: a caller that writes during the sync. Its content can arrive after the times too, and then has older times
    /// in the snapshot that the sync is for.
    pub(super) fn in_kernel_sync(&self, sync: impl FnOnce()) {
        let number = self.kernel_syncs.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        sync();
        for written in self.open.read().written.values() {
            if written.timed_in_sync.load(Ordering::SeqCst) >= number {
                written.is_untold.store(false, Ordering::SeqCst);
            }
        }
    }

    pub(super) fn add_directory(&self, directory: OpenDirectory) -> HandleId {
        self.add(Handle::Directory(Arc::new(directory)))
    }

    pub(super) fn file(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        match self.open.read().handles.get(&id) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(self.unknown()),
        }
    }

    pub(super) fn directory(&self, id: HandleId) -> Result<Arc<OpenDirectory>> {
        match self.open.read().handles.get(&id) {
            Some(Handle::Directory(directory)) => Ok(Arc::clone(directory)),
            _ => Err(self.unknown()),
        }
    }

    /// Closes it; whether it was the last file that was open for writing.
    pub(super) fn release(&self, id: HandleId) -> bool {
        let mut open = self.open.write();
        let file = match open.handles.remove(&id) {
            Some(Handle::File(file)) if file.mode.write => file,
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

    /// The files and directories that are open.
    pub(super) fn locations(&self) -> HashSet<Location> {
        let open = self.open.read();
        let location = |handle: &Handle| match handle {
            Handle::File(file) => file.location,
            Handle::Directory(directory) => directory.location,
        };
        open.handles.values().map(location).collect()
    }

    /// How many files are open for writing.
    pub(super) fn writers(&self) -> u64 {
        self.writers.load(Ordering::Relaxed)
    }

    /// How many files and directories are open.
    pub(super) fn len(&self) -> usize {
        self.open.read().handles.len()
    }

    /// What is wrong with a handle that is not there.
    fn unknown(&self) -> Errno {
        match self.are_closed() {
            true => Errno::SHUTDOWN,
            false => Errno::BADF,
        }
    }

    /// Whether everything was closed: nobody is served any more.
    pub(super) fn are_closed(&self) -> bool {
        self.are_closed.load(Ordering::SeqCst)
    }

    /// Closes everything: whoever had it open is gone, or will be.
    pub(super) fn clear(&self) {
        self.are_closed.store(true, Ordering::SeqCst);
        *self.open.write() = Open::default();
        self.writers.store(0, Ordering::Relaxed);
    }
}
