//! The inodes that must be logged together, so that a replay leads to a consistent state.
//!
//! A log holds a part of the changes of a transaction. The logged part is chosen so that its replay
//! on the last commit leaves no change half done:
//!
//! - The log has all current names and all attributes of each inode in it. If the inode lost names
//!   that the last commit has, a range item in their directory's log removes these names.
//! - A replay may remove names: by that range, by a logged name that another inode had, or with a
//!   deleted directory. An inode that loses such a name and still exists is itself in the log.
//! - The log has each directory in which a logged inode has a name, if that directory is new, or if
//!   it or a directory above it was moved.
//! - The log of a synced directory has its new entries and the inodes they lead to. New directories
//!   among the directory's new inodes have their own entries logged. Other inodes are logged by
//!   existence only: names and attributes, no content.
//! - If a logged inode has lost names since, the next batch updates its names.
//!
//! If a log cannot express a change, the sync commits instead and records the cause. The collection
//! looks up all names and inodes in memory, under the edit lock, in time proportional to the new
//! changes.

use super::batch::Batch;
use super::gathered::Gathered;
use super::inode_batch::{InodeBatch, InodeBatches, NamesAndAttributes};
use super::inode_set::InodeSet;
use super::statistics::CommitCause;
use super::subvolume_log::SubvolumeLog;
use crate::operations::Access;
use buttress_engine::removed_names::RemovedName;
use buttress_format::{
    ByteCount, FileKind, Generation, InodeExtrefs, InodeItem, InodeNumber, InodeRefs, ItemError, ItemType,
    SubvolumeId, TreeId,
};
use buttress_fs::Location;
use buttress_fs::error::{Corruption, Defect, Error};
use smallvec::SmallVec;
use std::collections::HashSet;

/// The maximum number of inodes, and of item bytes, in one batch of a log. For more inodes or bytes
/// than this, a commit is cheaper than a log.
pub(super) const INODES_MAX: usize = 1 << 14;
const BYTES_MAX: usize = 16 << 20;

/// The depth of directories at which a walk stops: more than any path has.
const DEPTH_MAX: usize = 4096;

/// How much of an inode is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The log records the existence of the inode, its names and its attributes.
    Existence,
    /// The log gets the whole inode, with its content or entries.
    Whole,
}

/// A name of an inode, with its directory.
type OwnName = (InodeNumber, SmallVec<[u8; 32]>);

/// The work that a sync must do after the collection.
#[derive(Debug)]
pub(super) enum Collected {
    /// Nothing is left to do: the last commit has all changes of the inode.
    Committed,
    /// The sync waits for the commit in progress, which contains all changes of the inode.
    Committing,
    /// This batch of the log has all of the inode, so wait for it.
    Logged(u64),
    /// Add this batch to the log.
    Batch(Box<Batch>),
    /// The log cannot express the change, so the sync commits.
    Commit(CommitCause),
}

/// The walk over the inodes that must be logged together.
pub(super) struct Collector<'a, 'b> {
    pub(super) operation: &'a mut Access<'b>,
    pub(super) log: &'a SubvolumeLog,
    pub(super) subvolume: SubvolumeId,
    pub(super) generation: Generation,
    pub(super) batch: Batch,
    pub(super) bytes: usize,
    pub(super) waiting: Vec<InodeNumber>,
    wanted: InodeSet,
    /// Inodes that must be logged as a whole.
    wanted_whole: InodeSet,
    /// Deleted inodes that the walk has visited.
    pub(super) gone: HashSet<InodeNumber>,
    /// Items, names and attributes that were read in one pass.
    pub(super) gathered: Gathered,
}

/// The reason why collecting a log ended early.
pub(super) enum Stop {
    Commit(CommitCause),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<buttress_tree::Error> for Stop {
    fn from(error: buttress_tree::Error) -> Self {
        Self::Failed(error.into())
    }
}

pub(super) type Walk<T = ()> = Result<T, Stop>;

impl<'a, 'b> Collector<'a, 'b> {
    pub(super) fn new(
        operation: &'a mut Access<'b>,
        log: &'a SubvolumeLog,
        subvolume: SubvolumeId,
        generation: Generation,
        room: InodeBatches,
        gathered: Gathered,
    ) -> Self {
        Self {
            operation,
            log,
            subvolume,
            generation,
            batch: Batch {
                generation,
                inodes: room,
                sums: Vec::new(),
                removed: Vec::new(),
                names_seen: 0,
                gathered: Gathered::default(),
            },
            bytes: 0,
            waiting: Vec::new(),
            wanted: InodeSet::default(),
            wanted_whole: InodeSet::default(),
            gone: HashSet::new(),
            gathered,
        }
    }

    /// Collects the changes that must be logged with a synced inode.
    pub(super) fn collect(mut self, inode: InodeNumber) -> Walk<Batch> {
        let tree = self.tree();
        self.require_log_of_subvolume()?;
        let names = self.operation.lookups().names().of(tree);
        if names.is_some_and(|names| names.is_full()) {
            return Err(Stop::Commit(CommitCause::ManyNames));
        }
        let new: Vec<RemovedName> = names.map_or_else(Vec::new, |names| {
            let of_log =
                |removed: &&RemovedName| self.log.has(removed.inode) || self.log.has(removed.directory);
            names
                .since(self.log.names_seen())
                .iter()
                .filter(of_log)
                .cloned()
                .collect()
        });
        self.batch.names_seen = names.map_or(0, |names| names.count());
        self.want(inode, Extent::Whole);
        for removed in new {
            self.follow_removal(&removed)?;
        }
        while let Some(inode) = self.waiting.pop() {
            let extent = match self.wanted_whole.has(inode) {
                true => Extent::Whole,
                false => Extent::Existence,
            };
            self.visit(inode, extent)?;
            if self.batch.inodes.len() > INODES_MAX || self.bytes > BYTES_MAX {
                return Err(Stop::Commit(CommitCause::Much));
            }
        }
        self.batch.gathered = self.gathered.cleared();
        Ok(self.batch)
    }

    pub(super) const fn tree(&self) -> TreeId {
        self.subvolume.tree()
    }

    pub(super) const fn at(&self, inode: InodeNumber) -> Location {
        Location::new(self.subvolume, inode)
    }

    pub(super) fn broken(&self, error: ItemError) -> Error {
        let tree = self.tree();
        Corruption::Item { tree, error }.into()
    }

    /// A log cannot be replayed if the last commit lacks its subvolume.
    fn require_log_of_subvolume(&mut self) -> Walk {
        let tree = self.tree();
        self.operation.require_subvolume(self.subvolume)?;
        let generation = self.generation;
        let item = self.operation.lookups().root_item(tree)?;
        match item.otransid == generation {
            true => Err(Stop::Commit(CommitCause::NewSubvolume)),
            false => Ok(()),
        }
    }

    pub(super) fn want(&mut self, inode: InodeNumber, extent: Extent) {
        let is_new = match extent {
            Extent::Existence => self.wanted.insert(inode),
            Extent::Whole => {
                self.wanted.insert(inode);
                self.wanted_whole.insert(inode)
            }
        };
        if is_new {
            self.waiting.push(inode);
        }
    }

    /// Returns the inode's item, if the inode has names.
    pub(super) fn living(&mut self, inode: InodeNumber) -> Walk<Option<InodeItem>> {
        if let Some(item) = self.gathered.item(inode) {
            if cfg!(debug_assertions) && item != self.operation.inode(self.at(inode))? {
                let what = "an inode item that was read at one go is not the newest";
                return Err(Stop::Failed(Defect::new(what).into()));
            }
            return Ok(Some(item).filter(|item| item.nlink > 0));
        }
        match self.operation.inode(self.at(inode)) {
            Ok(item) => Ok(Some(item).filter(|item| item.nlink > 0)),
            Err(Error::InodeNotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn batch_of(&mut self, inode: InodeNumber) -> &mut InodeBatch {
        self.batch.inodes.of(inode)
    }

    fn visit(&mut self, inode: InodeNumber, extent: Extent) -> Walk {
        let Some(item) = self.living(inode)? else {
            return Ok(());
        };
        let kind = item.kind();
        let extent = match kind {
            // A log always needs the target of a symlink.
            FileKind::Symlink => Extent::Whole,
            _ => extent,
        };
        let (items, names) = self.names_and_attributes(inode)?;
        self.names(inode, &names)?;
        let is_whole = extent == Extent::Whole;
        let logged = match is_whole {
            true => Some(item),
            false if self.log.has(inode) => None,
            false => Some(existence_of(&item)),
        };
        let batch = self.batch_of(inode);
        batch.item = logged;
        batch.whole |= is_whole;
        batch.names = Some(items);
        if !is_whole {
            return Ok(());
        }
        match kind {
            FileKind::Directory => self.entries(inode, &item),
            FileKind::Regular | FileKind::Symlink => self.content(inode, &item),
            _ => Ok(()),
        }
    }

    /// Returns all items of names and attributes, and the names.
    fn names_and_attributes(
        &mut self,
        inode: InodeNumber,
    ) -> Walk<(NamesAndAttributes, SmallVec<[OwnName; 1]>)> {
        let items = match self.gathered.take_names(inode) {
            Some(items) => {
                if cfg!(debug_assertions) && items != self.scan_names_and_attributes(inode)? {
                    let what = "names and attributes that were read at one go are not those of their inode";
                    return Err(Stop::Failed(Defect::new(what).into()));
                }
                items
            }
            None => self.scan_names_and_attributes(inode)?,
        };
        let bytes = items.iter().map(|(_, data)| data.len());
        self.bytes = bytes.fold(self.bytes, usize::saturating_add);
        let mut names = SmallVec::new();
        let mut take = |name: buttress_format::InodeName<'_>| {
            // The root directory's reference to itself is not a name.
            if name.parent != inode {
                names.push((name.parent, SmallVec::from_slice(name.name)));
            }
        };
        for (key, data) in &items {
            match key.item_type {
                ItemType::INODE_REF => InodeRefs::parse(key, data)
                    .map_err(|error| self.broken(error))?
                    .for_each(&mut take),
                ItemType::INODE_EXTREF => InodeExtrefs::parse(key, data)
                    .map_err(|error| self.broken(error))?
                    .for_each(&mut take),
                _ => {}
            }
        }
        Ok((items, names))
    }

    /// Collects the inodes that the current and the removed names of a logged inode require.
    fn names(&mut self, inode: InodeNumber, names: &[OwnName]) -> Walk {
        let tree = self.tree();
        let mut parent = None;
        for (directory, name) in names {
            if parent.replace(*directory) != Some(*directory) {
                self.reach(*directory)?;
            }
            let changes = self.operation.lookups().names().of(tree);
            let others: Vec<RemovedName> = changes.map_or_else(Vec::new, |changes| {
                let others = changes.under(*directory, name);
                others
                    .filter(|other| other.inode != inode && other.is_committed)
                    .cloned()
                    .collect()
            });
            for other in others {
                self.let_go(&other)?;
            }
        }
        let changes = self.operation.lookups().names().of(tree);
        let lost: Vec<RemovedName> = changes.map_or_else(Vec::new, |changes| {
            let lost = changes.of_inode(inode);
            lost.filter(|lost| lost.is_committed).cloned().collect()
        });
        for lost in lost {
            self.take_back(&lost)?;
        }
        Ok(())
    }

    /// Logs `directory` and those directories above it whose position a log replay must restore.
    fn reach(&mut self, directory: InodeNumber) -> Walk {
        let tree = self.tree();
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if self.log.has(at) || self.wanted.has(at) {
                return Ok(());
            }
            let Some(item) = self.living(at)? else {
                return Ok(());
            };
            let changes = self.operation.lookups().names().of(tree);
            let is_moved = changes.is_some_and(|changes| changes.of_inode(at).next().is_some());
            if item.generation == self.generation || is_moved {
                self.want(at, Extent::Existence);
                return Ok(());
            }
            // If no directory moved, existing directories have kept their positions.
            let any_moved =
                changes.is_some_and(buttress_engine::removed_names::RemovedNames::has_directories);
            if at == InodeNumber::ROOT_DIRECTORY || !any_moved {
                return Ok(());
            }
            let first = InodeRefs::key(at, InodeNumber::MIN);
            let found = self.operation.lookups().at_or_after(tree, &first)?;
            let key = found.map(|item| item.key());
            let Some(key) =
                key.filter(|key| key.objectid == first.objectid && key.item_type == ItemType::INODE_REF)
            else {
                return Ok(());
            };
            at = InodeNumber::new(key.offset);
        }
        Ok(())
    }
}

/// Returns the item of an inode that is logged by existence only. The logged item of a file has
/// size zero, because its content is not logged.
fn existence_of(item: &InodeItem) -> InodeItem {
    let mut logged = *item;
    logged.generation = Generation::MIN;
    if item.kind() == FileKind::Regular {
        logged.size = ByteCount::ZERO;
        logged.nbytes = ByteCount::ZERO;
    }
    logged
}
