//! What must be logged with an inode, so that replaying leads to a state that is whole.
//!
//! A log is a part of what changed. Which part is chosen so that, replayed on the last commit, it leaves nothing half done:
//!
//! - An inode in the log has all its names there, as they are now, and all its attributes. Names that the last commit has of
//!   it, and that it lost, are taken back by a range in the log of the directory that they were in.
//! - What is taken away by that, by a logged name that another inode had, or with a directory that is gone, and lives on
//!   elsewhere, is in the log itself.
//! - A directory in which a logged inode has a name is in the log if it is new, or if it, or one above it, was moved.
//! - A directory that is synced has its new entries in the log, and what they lead to; new directories among that with
//!   their own entries. Existing inodes, and files that were not synced themselves, are logged as ones that there are,
//!   without content.
//! - Names that an inode in the log lost since it was logged are brought up to date with whatever is logged next.
//!
//! Where that cannot be said in a log the answer is a commit, with its cause. All of it is looked up in memory, under the edit
//! lock, in time that goes with what is new.

use super::batch::{Batch, Data, InodeBatch, InodeBatches, Item, NamesAndAttributes};
use super::gathering::Gathered;
use super::inode_set::InodeSet;
use super::names::RemovedName;
use super::statistics::CommitCause;
use super::subvolume_log::SubvolumeLog;
use crate::operations::Operation;
use crate::operations::entries::Target;
use crate::operations::inode_state::FIRST_INDEX;
use buttress_format::{
    ByteCount, DirItem, DirItems, FileKind, Generation, InodeExtrefs, InodeItem, InodeNumber, InodeRefs,
    ItemError, ItemType, SubvolumeId, TreeId,
};
use buttress_fs::Location;
use buttress_fs::error::{Corruption, Defect, Error};
use core::ops::ControlFlow;
use smallvec::SmallVec;
use std::collections::HashSet;

/// The most inodes, and bytes of items, that are logged at once. A commit writes more than that with less effort.
const INODES_MAX: usize = 1 << 14;
const BYTES_MAX: usize = 16 << 20;

/// A directory is often synced after some dozen names.
const ENTRIES_EXPECTED: usize = 128;

/// Directories above one another: more than any path has.
const DEPTH_MAX: usize = 4096;

/// How much of an inode is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// That there is one, its names and its attributes.
    Existence,
    /// All of it.
    Whole,
}

/// A name that an inode has, with its directory.
type OwnName = (InodeNumber, SmallVec<[u8; 32]>);

/// What there is to do.
#[derive(Debug)]
pub(super) enum Collected {
    /// The last commit has all of it.
    Committed,
    /// A commit that is under way has.
    Committing,
    /// The log has, as of this batch.
    Logged(u64),
    /// This is to be logged.
    Batch(Box<Batch>),
    /// The log cannot say it.
    Commit(CommitCause),
}

/// The walk over what belongs together.
pub(super) struct Collector<'a, 'b> {
    pub(super) operation: &'a mut Operation<'b>,
    pub(super) log: &'a SubvolumeLog,
    pub(super) subvolume: SubvolumeId,
    pub(super) generation: Generation,
    pub(super) batch: Batch,
    pub(super) bytes: usize,
    waiting: Vec<InodeNumber>,
    wanted: InodeSet,
    /// Those that are wanted as a whole.
    wanted_whole: InodeSet,
    let_go: HashSet<InodeNumber>,
    /// Names and attributes that were read at one go.
    pub(super) gathered: Gathered,
}

/// Ends the walk.
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
        operation: &'a mut Operation<'b>,
        log: &'a SubvolumeLog,
        subvolume: SubvolumeId,
        generation: Generation,
        room: InodeBatches,
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
            },
            bytes: 0,
            waiting: Vec::new(),
            wanted: InodeSet::default(),
            wanted_whole: InodeSet::default(),
            let_go: HashSet::new(),
            gathered: Gathered::default(),
        }
    }

    /// Collects what goes with an inode that is synced.
    pub(super) fn collect(mut self, inode: InodeNumber) -> Walk<Batch> {
        let tree = self.tree();
        self.require_log_of_subvolume()?;
        let names = self.operation.look().names.of(tree);
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
        self.batch.names_seen = names.map_or(0, |names| names.len());
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
        Ok(self.batch)
    }

    pub(super) const fn tree(&self) -> TreeId {
        self.subvolume.tree()
    }

    const fn at(&self, inode: InodeNumber) -> Location {
        Location::new(self.subvolume, inode)
    }

    pub(super) fn broken(&self, error: ItemError) -> Error {
        let tree = self.tree();
        Corruption::Item { tree, error }.into()
    }

    /// A tree that the last commit does not have cannot be replayed into.
    fn require_log_of_subvolume(&mut self) -> Walk {
        let tree = self.tree();
        self.operation.require_subvolume(self.subvolume)?;
        let generation = self.generation;
        let item = self.operation.look().root_item(tree)?;
        match item.otransid == generation {
            true => Err(Stop::Commit(CommitCause::NewSubvolume)),
            false => Ok(()),
        }
    }

    fn want(&mut self, inode: InodeNumber, extent: Extent) {
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

    /// The inode, if it has names.
    fn living(&mut self, inode: InodeNumber) -> Walk<Option<InodeItem>> {
        match self.operation.inode(self.at(inode)) {
            Ok(item) => Ok(Some(item).filter(|item| item.nlink > 0)),
            Err(Error::InodeNotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn batch_of(&mut self, inode: InodeNumber) -> &mut InodeBatch {
        self.batch.inodes.of(inode)
    }

    /// A name went that the log may know.
    fn follow_removal(&mut self, removed: &RemovedName) -> Walk {
        if self.log.has(removed.inode) {
            match self.living(removed.inode)? {
                Some(_) => self.want(removed.inode, Extent::Existence),
                None => {
                    self.batch.removed.push(removed.inode);
                    // What the last commit has of it is older than what was synced.
                    if removed.is_committed {
                        self.take_back(removed)?;
                    }
                    self.let_go(removed)?;
                }
            }
            self.want_successor(removed)?;
        }
        if self.log.has(removed.directory) && self.living(removed.directory)?.is_some() {
            self.want(removed.directory, Extent::Existence);
            self.batch_of(removed.directory).gone.push(removed.index);
            self.want_successor(removed)?;
        }
        Ok(())
    }

    /// A name is taken away. Whatever has it now came with that: the two are seen together, or neither.
    fn want_successor(&mut self, removed: &RemovedName) -> Walk {
        if self.living(removed.directory)?.is_none() || buttress_faults::on("log-forgets-successor") {
            return Ok(());
        }
        let directory = self.at(removed.directory);
        match self
            .operation
            .find_entry(directory, &removed.name)?
            .map(|entry| entry.target)
        {
            None => Ok(()),
            Some(Target::Inode(inode)) => {
                self.want(inode, Extent::Existence);
                Ok(())
            }
            Some(Target::Subvolume(_)) => Err(Stop::Commit(CommitCause::SubvolumeMoved)),
        }
    }

    /// Replaying is going to take away a name that the last commit has: what it led to must be somewhere else, if it lives.
    fn let_go(&mut self, removed: &RemovedName) -> Walk {
        if self.living(removed.inode)?.is_some() {
            self.want(removed.inode, Extent::Existence);
            return Ok(());
        }
        if !removed.is_directory || !self.let_go.insert(removed.inode) {
            return Ok(());
        }
        // It goes with all that it held.
        for held in self.names_of_directory(removed.inode, 0) {
            if held.is_committed {
                self.let_go(&held)?;
            }
        }
        Ok(())
    }

    fn names_of_directory(&mut self, directory: InodeNumber, since: usize) -> Vec<RemovedName> {
        let tree = self.tree();
        let names = self.operation.look().names.of(tree);
        names.map_or_else(Vec::new, |names| {
            names.of_directory(directory, since).cloned().collect()
        })
    }

    fn visit(&mut self, inode: InodeNumber, extent: Extent) -> Walk {
        let Some(item) = self.living(inode)? else {
            return Ok(());
        };
        let kind = item.kind();
        let extent = match kind {
            // A symlink without its target is none.
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

    /// All items of names and attributes, and the names.
    fn names_and_attributes(
        &mut self,
        inode: InodeNumber,
    ) -> Walk<(NamesAndAttributes, SmallVec<[OwnName; 1]>)> {
        let items = match self.gathered.take(inode) {
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
            // The root's name for itself is none.
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

    /// What the names of a logged inode ask for: those that it has, and those that it lost.
    fn names(&mut self, inode: InodeNumber, names: &[OwnName]) -> Walk {
        let tree = self.tree();
        let mut parent = None;
        for (directory, name) in names {
            if parent.replace(*directory) != Some(*directory) {
                self.reach(*directory)?;
            }
            let changes = self.operation.look().names.of(tree);
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
        let changes = self.operation.look().names.of(tree);
        let lost: Vec<RemovedName> = changes.map_or_else(Vec::new, |changes| {
            let lost = changes.of_inode(inode);
            lost.filter(|lost| lost.is_committed).cloned().collect()
        });
        for lost in lost {
            self.take_back(&lost)?;
        }
        Ok(())
    }

    /// The last commit has a name that replaying is to take away.
    fn take_back(&mut self, lost: &RemovedName) -> Walk {
        if buttress_faults::on("log-keeps-old-names") {
            return Ok(());
        }
        if self.living(lost.directory)?.is_none() {
            return Err(Stop::Commit(CommitCause::DirectoryGone));
        }
        if !self.log.has(lost.directory) {
            self.want(lost.directory, Extent::Existence);
        }
        self.batch_of(lost.directory)
            .ranges
            .push((lost.index, lost.index));
        self.want_successor(lost)
    }

    /// Logs of the directories from here up to the top what replaying needs to have them where they are.
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
            let changes = self.operation.look().names.of(tree);
            let is_moved = changes.is_some_and(|changes| changes.of_inode(at).next().is_some());
            if item.generation == self.generation || is_moved {
                self.want(at, Extent::Existence);
                return Ok(());
            }
            // Where no directory moved, what was there is where it was.
            let any_moved = changes.is_some_and(super::names::RemovedNames::has_directories);
            if at == InodeNumber::ROOT_DIRECTORY || !any_moved {
                return Ok(());
            }
            let first = InodeRefs::key(at, InodeNumber::MIN);
            let found = self.operation.look().at_or_after(tree, &first)?;
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

    /// The entries that a directory got and lost.
    fn entries(&mut self, directory: InodeNumber, item: &InodeItem) -> Walk {
        let tree = self.tree();
        let changes = self.operation.look().names.of(tree);
        if changes.is_some_and(|changes| changes.has_subvolume(directory)) {
            return Err(Stop::Commit(CommitCause::SubvolumeMoved));
        }
        let since = self.log.names_seen_by(directory);
        for removed in self.names_of_directory(directory, since) {
            if removed.is_committed {
                self.batch_of(directory)
                    .ranges
                    .push((removed.index, removed.index));
                self.let_go(&removed)?;
            }
        }
        let location = self.at(directory);
        let state = self
            .operation
            .look()
            .inodes
            .look_at_log(location, self.generation, |log| {
                (log.first_index, log.last_logged_index)
            });
        let first = match item.generation == self.generation {
            true => Some(FIRST_INDEX),
            false => state.and_then(|(first, _)| first),
        };
        let Some(first) = first else {
            return Ok(());
        };
        let behind = match buttress_faults::on("log-index-forgotten") {
            true => 0,
            false => state.map_or(0, |(_, last)| last.saturating_add(1)),
        };
        self.batch_of(directory).ranges.push((first, u64::MAX));
        self.new_entries(directory, first.max(behind))
    }

    fn new_entries(&mut self, directory: InodeNumber, from: u64) -> Walk {
        let tree = self.tree();
        let first = DirItem::index_key(directory, from);
        let mut items: Vec<Item> = Vec::with_capacity(ENTRIES_EXPECTED);
        let open = self.operation.look().open_tree(tree)?;
        open.tree.scan(&first, |key, data| {
            if key.objectid != first.objectid || key.item_type != ItemType::DIR_INDEX {
                return ControlFlow::Break(());
            }
            items.push((*key, Data::from_slice(data)));
            match items.len() > INODES_MAX {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        let mut targets = Vec::with_capacity(items.len());
        self.batch.inodes.reserve(items.len());
        // The last one first, so that they are visited in order.
        for (key, data) in items.iter().rev() {
            self.bytes = self.bytes.saturating_add(data.len());
            let mut entries = DirItems::parse(key, data).map_err(|error| self.broken(error))?;
            let Some(entry) = entries.next() else { continue };
            if entry.location.item_type != ItemType::INODE_ITEM {
                return Err(Stop::Commit(CommitCause::SubvolumeMoved));
            }
            let target = InodeNumber::new(entry.location.objectid.get());
            let is_new_directory = entry.kind == FileKind::Directory
                && self
                    .living(target)?
                    .is_some_and(|item| item.generation == self.generation);
            let extent = match is_new_directory {
                true => Extent::Whole,
                false => Extent::Existence,
            };
            self.want(target, extent);
            targets.push(target);
        }
        self.batch_of(directory).entries = items;
        self.gather(targets)
    }
}

/// What is logged of an inode of which nothing but its names was synced. Without content it has no size.
fn existence_of(item: &InodeItem) -> InodeItem {
    let mut logged = *item;
    logged.generation = Generation::MIN;
    if item.kind() == FileKind::Regular {
        logged.size = ByteCount::ZERO;
        logged.nbytes = ByteCount::ZERO;
    }
    logged
}
