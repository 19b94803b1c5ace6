//! What is open.

use crate::vfs::{Errno, HandleId, OpenMode, Result};
use buttress::fs::Location;
use buttress::locks::{Rank, RwLock, lock_class};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

lock_class!(OpenLock, "open", Rank::LEAF);

/// An open file, of a volume that is open for changes.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) location: Location,
    pub(super) mode: OpenMode,
    /// The state of capabilities in which the file is known to have none; see [`super::content`].
    pub(super) without_capability: AtomicU64,
}

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) location: Location,
    /// Names that get this index or a later one are not listed: they came after the listing began.
    pub(super) end: Mutex<u64>,
}

#[derive(Debug)]
enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
}

/// All that is open.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: RwLock<HashMap<HandleId, Handle>, OpenLock>,
    last: AtomicU64,
    /// How many files are open for writing.
    writers: AtomicU64,
    /// All were closed, and nobody is served any more.
    are_closed: AtomicBool,
}

impl Handles {
    fn add(&self, handle: Handle) -> HandleId {
        let id = HandleId(self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        self.open.write().insert(id, handle);
        id
    }

    pub(super) fn add_file(&self, file: OpenFile) -> HandleId {
        if file.mode.write {
            self.writers.fetch_add(1, Ordering::Relaxed);
        }
        self.add(Handle::File(Arc::new(file)))
    }

    pub(super) fn add_directory(&self, directory: OpenDirectory) -> HandleId {
        self.add(Handle::Directory(Arc::new(directory)))
    }

    pub(super) fn file(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        match self.open.read().get(&id) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(self.unknown()),
        }
    }

    pub(super) fn directory(&self, id: HandleId) -> Result<Arc<OpenDirectory>> {
        match self.open.read().get(&id) {
            Some(Handle::Directory(directory)) => Ok(Arc::clone(directory)),
            _ => Err(self.unknown()),
        }
    }

    /// Closes it; whether it was the last file that was open for writing.
    pub(super) fn release(&self, id: HandleId) -> bool {
        let gone = self.open.write().remove(&id);
        match gone {
            Some(Handle::File(file)) if file.mode.write => self.writers.fetch_sub(1, Ordering::Relaxed) == 1,
            _ => false,
        }
    }

    /// The files and directories that are open.
    pub(super) fn locations(&self) -> HashSet<Location> {
        let open = self.open.read();
        let location = |handle: &Handle| match handle {
            Handle::File(file) => file.location,
            Handle::Directory(directory) => directory.location,
        };
        open.values().map(location).collect()
    }

    /// How many files are open for writing.
    pub(super) fn writers(&self) -> u64 {
        self.writers.load(Ordering::Relaxed)
    }

    /// How many files and directories are open.
    pub(super) fn len(&self) -> usize {
        self.open.read().len()
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
        self.open.write().clear();
        self.writers.store(0, Ordering::Relaxed);
    }
}
