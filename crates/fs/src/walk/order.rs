//! The order of a walk: the stack of directories.
//!
//! This module reads only names and the kinds that entries state. The walk loads inodes later,
//! except those of directories to enter.
//!
//! A walk enters a directory if the directory's own record names the entry that leads to it. Each
//! directory has one such record, so no directory is entered twice. The only directory that a cycle
//! could reach again is the start of the walk; the walk checks for it. A directory without such a
//! record is damaged, but its content may be valid. Such directories are stored, up to
//! [`UNVERIFIED_MAX`], and entered once.
//!
//! Bounds: only the [`OPEN_LEVELS`] innermost directories have open listings; a walk has at most
//! [`DEPTH_MAX`] levels and [`CHILDREN_MAX`] queued directories.

use super::{WalkError, WalkOptions, WalkOrder, join};
use crate::directory::{DirEntry, ReadDir, Suspended};
use crate::error::{Corruption, Error, Name, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRecord;
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::FileKind;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// The number of directory listings that a walk keeps open.
const OPEN_LEVELS: usize = 32;

/// The maximum depth of a walk.
const DEPTH_MAX: usize = 4096;

/// The maximum length of a path.
const PATH_MAX_BYTES: usize = 256 << 10;

/// The maximum number of entered directories without a record of their place.
const UNVERIFIED_MAX: usize = 65_536;

/// The maximum number of queued directories, over all levels.
const CHILDREN_MAX: usize = 1 << 20;

/// The next item of the walk.
#[derive(Debug)]
pub(super) enum Found {
    Entry {
        directory: Arc<[u8]>,
        entry: DirEntry,
        parent: Location,
        record: Option<Box<InodeRecord>>,
    },
    Enter(Arc<[u8]>),
    Leave(Arc<[u8]>),
    Failed(WalkError),
}

/// A directory on the walk's path from its start.
#[derive(Debug)]
struct Level {
    location: Location,
    path: Arc<[u8]>,
    listing: Listing,
    /// Directories to enter after all entries of this directory were returned; unused in depth
    /// order.
    children: VecDeque<DirEntry>,
    /// True if the walk has returned all entries of the directory.
    listed: bool,
}

#[derive(Debug)]
enum Listing {
    Open(Box<ReadDir>),
    Suspended(Suspended),
    Sorted(std::vec::IntoIter<Result<DirEntry>>),
    Done,
}

/// The walk's path through the directories.
#[derive(Debug)]
pub(super) struct Order {
    filesystem: Filesystem,
    options: WalkOptions,
    start: Location,
    stack: Vec<Level>,
    unverified: HashSet<Location>,
    waiting_children: usize,
    ready: VecDeque<Found>,
    begun: bool,
}

impl Order {
    pub(super) fn new(filesystem: &Filesystem, start: Location, options: WalkOptions) -> Self {
        Self {
            filesystem: filesystem.clone(),
            options,
            start,
            stack: Vec::new(),
            unverified: HashSet::new(),
            waiting_children: 0,
            ready: VecDeque::new(),
            begun: false,
        }
    }

    fn fail(&mut self, path: Vec<u8>, error: impl Into<Error>) {
        self.ready.push_back(Found::Failed(WalkError {
            path,
            error: error.into(),
        }));
    }

    fn by_directory(&self) -> bool {
        matches!(self.options.order, WalkOrder::ByDirectory { .. })
    }

    /// Begins the walk with its start, and opens the start's listing as the first level.
    fn begin(&mut self) {
        self.begun = true;
        let record = match self.record(self.start) {
            Ok(record) => record,
            Err(error) => return self.fail(Vec::new(), error),
        };
        let path: Arc<[u8]> = Arc::from(&[][..]);
        let kind = record.metadata.kind;
        let entry = DirEntry {
            name: Vec::new(),
            kind,
            index: 0,
            target: self.start,
        };
        let parent = self.start;
        let size = record.metadata.size;
        self.ready.push_back(Found::Entry {
            directory: Arc::clone(&path),
            entry,
            parent,
            record: Some(Box::new(record)),
        });
        if kind == FileKind::Directory {
            self.push_level(self.start, path, size);
        }
    }

    fn push_level(&mut self, location: Location, path: Arc<[u8]>, size: buttress_format::ByteCount) {
        let listing = match self.filesystem.subvolume_tree(location.subvolume) {
            _ if location.placeholder().is_some() => ReadDir::empty(&self.filesystem, location),
            Ok(tree) => ReadDir::new(&self.filesystem, tree, location, size, 0),
            Err(error) => return self.fail(path.to_vec(), error),
        };
        self.ready.push_back(Found::Enter(Arc::clone(&path)));
        // Dropping the listing of an outer directory frees its memory.
        if let Some(outer) = self
            .stack
            .len()
            .checked_sub(OPEN_LEVELS)
            .and_then(|outer| self.stack.get_mut(outer))
            && let Listing::Open(open) = &outer.listing
            && let Some(suspended) = open.suspend()
        {
            outer.listing = Listing::Suspended(suspended);
        }
        let listing = match self.options.order {
            WalkOrder::ByDirectory { sorted: true } => sorted(listing),
            _ => Listing::Open(Box::new(listing)),
        };
        self.stack.push(Level {
            location,
            path,
            listing,
            children: VecDeque::new(),
            listed: false,
        });
    }

    /// Returns the next entry of the innermost directory.
    fn next_entry(&mut self) -> Option<Result<DirEntry>> {
        let filesystem = &self.filesystem;
        let level = self.stack.last_mut()?;
        if let Listing::Suspended(suspended) = level.listing {
            level.listing = match filesystem.subvolume_tree(level.location.subvolume) {
                Ok(tree) => Listing::Open(Box::new(ReadDir::resume(
                    filesystem,
                    tree,
                    level.location,
                    suspended,
                ))),
                Err(error) => {
                    level.listing = Listing::Done;
                    return Some(Err(error));
                }
            };
        }
        match &mut level.listing {
            Listing::Open(open) => open.next(),
            Listing::Sorted(entries) => entries.next(),
            Listing::Suspended(_) | Listing::Done => None,
        }
    }

    /// Advances the walk by an entry, or by the end of a directory. Returns false at the end of the
    /// walk.
    fn advance(&mut self) -> bool {
        if !self.begun {
            self.begin();
            return true;
        }
        let Some(level) = self.stack.last() else {
            return false;
        };
        let (parent, path, listed) = (level.location, Arc::clone(&level.path), level.listed);
        if !listed {
            match self.next_entry() {
                Some(Ok(entry)) => self.take(parent, path, entry),
                Some(Err(error)) => self.fail(path.to_vec(), error),
                None => {
                    if let Some(level) = self.stack.last_mut() {
                        level.listed = true;
                        level.listing = Listing::Done;
                    }
                    if self.by_directory() {
                        self.ready.push_back(Found::Leave(path));
                    }
                }
            }
            return true;
        }
        if let Some(child) = self.stack.last_mut().and_then(|level| level.children.pop_front()) {
            self.waiting_children = self.waiting_children.exact_sub(1);
            if let Some(record) = self.enter(parent, &path, &child) {
                let child_path = Arc::from(join(&path, &child.name));
                self.push_level(child.target, child_path, record.metadata.size);
            }
            return true;
        }
        self.stack.pop();
        if !self.by_directory() {
            self.ready.push_back(Found::Leave(path));
        }
        true
    }

    fn take(&mut self, parent: Location, path: Arc<[u8]>, entry: DirEntry) {
        let is_directory = entry.kind == FileKind::Directory;
        let is_nested = entry.target.subvolume != parent.subvolume;
        if is_nested && self.options.without_snapshots && self.is_snapshot(entry.target) {
            return;
        }
        let descend = is_directory && !(is_nested && self.options.one_file_system);
        if self.by_directory() {
            if descend {
                self.keep_child(&path, &entry);
            }
            self.ready.push_back(Found::Entry {
                directory: path,
                entry,
                parent,
                record: None,
            });
            return;
        }
        if !descend {
            self.ready.push_back(Found::Entry {
                directory: path,
                entry,
                parent,
                record: None,
            });
            return;
        }
        if let Some(record) = self.enter(parent, &path, &entry) {
            let child_path = Arc::from(join(&path, &entry.name));
            let (target, size) = (entry.target, record.metadata.size);
            self.ready.push_back(Found::Entry {
                directory: path,
                entry,
                parent,
                record: Some(Box::new(record)),
            });
            self.push_level(target, child_path, size);
        }
    }

    fn is_snapshot(&self, root: Location) -> bool {
        let item = self.filesystem.root_item(root.subvolume.tree());
        item.is_ok_and(|item| !item.parent_uuid.is_nil())
    }

    fn keep_child(&mut self, path: &Arc<[u8]>, entry: &DirEntry) {
        if self.waiting_children >= CHILDREN_MAX {
            let error = Error::TooBig {
                what: "directories that wait to be listed",
                location: entry.target,
                limit: buttress_format::ByteCount::of(CHILDREN_MAX),
            };
            return self.fail(join(path, &entry.name), error);
        }
        if let Some(level) = self.stack.last_mut() {
            self.waiting_children = self.waiting_children.exact_add(1);
            level.children.push_back(entry.clone());
        }
    }

    /// Returns the record of a directory that may be entered by `entry`. If the directory may not
    /// be entered, reports the reason.
    fn enter(&mut self, parent: Location, path: &Arc<[u8]>, entry: &DirEntry) -> Option<InodeRecord> {
        let full = join(path, &entry.name);
        if self.stack.len() >= DEPTH_MAX || full.len() > PATH_MAX_BYTES {
            let depth = self.stack.len();
            let path_bytes = full.len();
            self.fail(
                full,
                Corruption::DirectoryTooDeep {
                    directory: entry.target,
                    depth,
                    path_bytes,
                },
            );
            return None;
        }
        let checked = self
            .record(entry.target)
            .and_then(|record| self.check_place(parent, entry, &record).map(|()| record));
        match checked {
            Ok(record) => Some(record),
            Err(error) => {
                self.fail(full, error);
                None
            }
        }
    }

    /// Returns the record of a directory, as far as the options allow lost items.
    fn record(&self, directory: Location) -> Result<InodeRecord> {
        match self.filesystem.inode_record(directory) {
            Err(error) if self.options.salvage => {
                let salvaged = InodeRecord::salvage(&self.filesystem, directory, FileKind::Directory);
                salvaged.map_err(|_| error)
            }
            record => record,
        }
    }

    /// Checks that `entry` of `parent` is the only valid place of the directory that it names.
    fn check_place(&mut self, parent: Location, entry: &DirEntry, record: &InodeRecord) -> Result<()> {
        let target = entry.target;
        if record.metadata.kind != FileKind::Directory {
            return Err(kind_wrong(parent, entry, record));
        }
        if target.placeholder().is_some() {
            return Ok(());
        }
        let twice = || Corruption::DirectoryLinkedTwice {
            directory: parent,
            name: Name::from(&entry.name[..]),
            target,
        };
        if target == self.start {
            return Err(twice().into());
        }
        if target.subvolume != parent.subvolume {
            let place = self.filesystem.subvolume_place(target.subvolume)?;
            let is_own = place.is_some_and(|place| {
                place.parent == parent.subvolume
                    && place.directory == parent.inode
                    && place.name == entry.name
            });
            // The walk may have begun inside a subvolume that it reaches again from a directory
            // above.
            let on_the_way = self
                .stack
                .iter()
                .any(|level| level.location.subvolume == target.subvolume);
            return if is_own && !on_the_way {
                Ok(())
            } else {
                Err(Corruption::SubvolumeLinkedTwice {
                    subvolume: target.subvolume,
                    directory: parent,
                }
                .into())
            };
        }
        match record.links.as_slice() {
            [link] if record.link_count == 1 => {
                if link.directory == parent.inode && link.name == entry.name {
                    Ok(())
                } else {
                    Err(twice().into())
                }
            }
            [] if self.unverified.len() >= UNVERIFIED_MAX => Err(Corruption::DirectoriesUnverified {
                directory: target,
                limit: UNVERIFIED_MAX,
            }
            .into()),
            [] if self.unverified.insert(target) => Ok(()),
            _ => Err(twice().into()),
        }
    }
}

/// Returns the error of an entry whose inode is of another kind.
pub(super) fn kind_wrong(parent: Location, entry: &DirEntry, record: &InodeRecord) -> Error {
    Corruption::EntryKindWrong {
        directory: parent,
        name: Name::from(&entry.name[..]),
        entry_kind: crate::inode::kind_name(entry.kind),
        inode: record.metadata.location.inode,
        mode: record.metadata.mode,
    }
    .into()
}

/// Returns the entries of a directory by name, unless they are too many.
fn sorted(mut listing: ReadDir) -> Listing {
    let mut entries = Vec::new();
    while entries.len() < super::SORTED_MAX {
        match listing.next() {
            Some(entry) => entries.push(entry),
            None => {
                entries.sort_by(|one, other| name_of(one).cmp(&name_of(other)));
                return Listing::Sorted(entries.into_iter());
            }
        }
    }
    drop(entries);
    match listing.restart() {
        Ok(listing) => Listing::Open(Box::new(listing)),
        Err(error) => Listing::Sorted(vec![Err(error)].into_iter()),
    }
}

/// Entries that are errors come last in the sorted order.
fn name_of(entry: &Result<DirEntry>) -> (bool, &[u8]) {
    match entry {
        Ok(entry) => (false, &entry.name),
        Err(_) => (true, &[]),
    }
}

impl Iterator for Order {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Some(found);
            }
            if !self.advance() {
                return None;
            }
        }
    }
}
