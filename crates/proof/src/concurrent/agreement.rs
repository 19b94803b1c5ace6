//! Agreement between the model and an answer, and the effect of a call on the model.
//!
//! If a call succeeded, it must be possible in the model, and its answer must equal the model's. If
//! the volume refused a call, the call must be impossible in the model, and the reason of the
//! refusal must apply. If several reasons apply, the call may give any of them.

use super::call::{Answer, Call, Names, Stat};
use super::observation::Observation;
use super::record::Record;
use crate::writing::content::Change;
use crate::writing::model::{Inode, Model, Subvolume, Target};
use crate::writing::operation::{Made, Mode, Operation};
use buttress::{InodeNumber, Location, SubvolumeId};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Contents that a file has had, newest last.
type Contents = Vec<Arc<Vec<u8>>>;

/// State of the model after the first calls of an order.
#[derive(Clone, Debug)]
pub struct State {
    /// Model of the volume.
    pub model: Model,
    /// Frozen sources of snapshots that have no name yet, by the index of their record.
    frozen: BTreeMap<usize, Subvolume>,
    /// Contents that files have had since the round began, if the round has snapshots that may have
    /// any of them.
    seen: Option<BTreeMap<Location, Contents>>,
}

/// Possible outcome of a recorded call in a state of the model.
#[derive(Debug)]
pub enum Agreement {
    /// In this state, the call may take effect, and changes nothing.
    Same,
    /// The call may take effect at this point of the order, and leads to this state.
    Next(Box<State>),
    /// The recorded call cannot take effect in this state.
    No,
}

impl State {
    /// Creates the state of a quiet volume.
    #[must_use]
    pub fn new(model: Model, has_snapshots: bool) -> Self {
        Self {
            model,
            frozen: BTreeMap::new(),
            seen: has_snapshots.then(BTreeMap::new),
        }
    }

    /// Returns the outcome of the call with its answer in this state.
    #[must_use]
    pub fn agree(&self, number: usize, record: &Record) -> Agreement {
        let model = &self.model;
        if let Answer::Refused(errno, _) = &record.answer {
            return sameness(
                is_impossible(model, &record.call) && reasons(model, &record.call).contains(errno),
            );
        }
        match (&record.call, &record.answer) {
            // A view may show deleted subvolumes that are not dropped yet, with their content at
            // the deletion.
            (Call::ListInView(directory), Answer::Names(_))
                if !model.subvolumes.contains_key(&directory.subvolume) =>
            {
                Agreement::Same
            }
            (Call::Change(operation), answer) => self.change(number, operation, answer),
            (Call::Xattr(location, name), Answer::Value(value)) => {
                let has = model.inode(*location).and_then(|inode| inode.xattrs.get(name));
                sameness(has == value.as_ref())
            }
            (call, answer) => sameness(look(model, call).as_ref() == Some(answer)),
        }
    }

    fn change(&self, number: usize, operation: &Operation, answer: &Answer) -> Agreement {
        if !operation.is_possible(&self.model) {
            return Agreement::No;
        }
        let made = match answer {
            Answer::Inode(location) if self.model.inode(*location).is_some() => return Agreement::No,
            Answer::Subvolume(id) if self.model.subvolumes.contains_key(id) => return Agreement::No,
            Answer::Inode(location) => Made::Inode(*location),
            Answer::Subvolume(id) => Made::Subvolume(*id),
            _ => Made::Nothing,
        };
        if let (Operation::Content(file, Change::Append(_)), Answer::Position(position)) = (operation, answer)
            && self.model.inode(*file).map(|inode| inode.content.len() as u64) != Some(*position)
        {
            return Agreement::No;
        }
        let mut next = self.clone();
        if let Operation::Snapshot(_, directory, name, read_only) = operation
            && let Made::Subvolume(id) = &made
        {
            let Some(copy) = next.frozen.remove(&number) else {
                return Agreement::No;
            };
            let place = Some((*directory, name.clone()));
            let read_only = *read_only;
            next.model.subvolumes.insert(
                *id,
                Subvolume {
                    place,
                    read_only,
                    ..copy
                },
            );
            next.model.link(*directory, name, Target::Subvolume(*id), 0);
            return Agreement::Next(Box::new(next));
        }
        if let (Operation::Content(file, _), Some(seen)) = (operation, &mut next.seen) {
            let content = self.model.inode(*file).map(|inode| Arc::clone(&inode.content));
            seen.entry(*file).or_default().extend(content);
        }
        operation.follow(&mut next.model, &made, 0);
        Agreement::Next(Box::new(next))
    }

    /// Freezes the source of a snapshot, whose files have the contents observed in the snapshot
    /// afterwards. Returns `None` if the snapshot cannot have been taken in this state.
    #[must_use]
    pub fn freeze(&self, number: usize, record: &Record, seen_after: Option<&Observation>) -> Option<Self> {
        let (Call::Change(Operation::Snapshot(source, ..)), Answer::Subvolume(id)) =
            (&record.call, &record.answer)
        else {
            return None;
        };
        let mut copy = self.model.subvolumes.get(source)?.clone();
        copy.inodes.retain(|_, inode| inode.links > 0);
        for (inode, of) in copy.inodes.iter_mut().filter(|(_, of)| of.is_file()) {
            let number = InodeNumber::new(*inode);
            let Some(found) = seen_after.and_then(|seen| seen.content(Location::new(*id, number))) else {
                continue;
            };
            let before = self.seen.as_ref()?.get(&Location::new(*source, number));
            if of.content != found && !before.is_some_and(|before| before.contains(&found)) {
                return None;
            }
            of.content = found;
        }
        let mut next = self.clone();
        next.frozen.insert(number, copy);
        Some(next)
    }

    /// Returns a hash of the state; equal states have equal hashes.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (id, subvolume) in &self.model.subvolumes {
            hash_subvolume(*id, subvolume, &mut hasher);
        }
        (self.model.default, &self.model.held).hash(&mut hasher);
        for (number, subvolume) in &self.frozen {
            number.hash(&mut hasher);
            hash_subvolume(SubvolumeId::TOP_LEVEL, subvolume, &mut hasher);
        }
        self.seen.hash(&mut hasher);
        hasher.finish()
    }
}

fn hash_subvolume(id: SubvolumeId, subvolume: &Subvolume, hasher: &mut impl Hasher) {
    (id, subvolume.read_only, &subvolume.place).hash(hasher);
    for (number, inode) in &subvolume.inodes {
        (number, inode.mode, inode.uid, inode.gid, inode.links).hash(hasher);
        (&inode.xattrs, &inode.target, &inode.content).hash(hasher);
        for (name, target) in &inode.entries {
            let (kind, number) = match target {
                Target::Inode(number) => (0, *number),
                Target::Subvolume(id) => (1, id.get()),
            };
            (name, kind, number).hash(hasher);
        }
    }
}

const fn sameness(agrees: bool) -> Agreement {
    if agrees { Agreement::Same } else { Agreement::No }
}

/// Returns the target of a name, as a lookup reports it.
#[must_use]
pub fn target(model: &Model, directory: Location, name: &[u8]) -> Option<Location> {
    Some(match model.target(directory, name)? {
        Target::Inode(number) => Location::new(directory.subvolume, InodeNumber::new(number)),
        Target::Subvolume(id) if model.is_place(id, directory, name) => Location::root_of(id),
        Target::Subvolume(_) => Location::placeholder_in(directory),
    })
}

/// Returns the attributes that `stat` shows.
#[must_use]
pub fn stat(inode: &Inode) -> Stat {
    let size = if inode.is_directory() {
        2 * inode.entries.keys().map(Vec::len).sum::<usize>()
    } else {
        inode.content.len().max(inode.target.len())
    };
    Stat {
        mode: inode.mode,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        size: size as u64,
    }
}

/// Returns the names of a directory with their targets.
#[must_use]
pub fn names(model: &Model, directory: Location) -> Option<Names> {
    let inode = model.inode(directory).filter(|inode| inode.is_directory())?;
    inode
        .entries
        .keys()
        .map(|name| Some((name.clone(), target(model, directory, name)?)))
        .collect()
}

/// Returns the answer of a successful call that only reads.
fn look(model: &Model, call: &Call) -> Option<Answer> {
    Some(match call {
        Call::Lookup(directory, name) => {
            model.inode(*directory).filter(|inode| inode.is_directory())?;
            Answer::Entry(target(model, *directory, name))
        }
        Call::List(directory) | Call::ListInView(directory) => Answer::Names(names(model, *directory)?),
        Call::Stat(location) => Answer::Stat(stat(model.inode(*location)?)),
        Call::Read(location, offset, length) => {
            let content = &model.inode(*location).filter(|inode| inode.is_file())?.content;
            let from = usize::try_from(*offset).ok()?.min(content.len());
            let end = from.saturating_add(*length).min(content.len());
            Answer::Bytes(content[from..end].to_vec())
        }
        Call::Xattr(location, name) => Answer::Value(model.inode(*location)?.xattrs.get(name).cloned()),
        Call::WriteBack(_) | Call::Commit => Answer::Done,
        Call::Change(_) => return None,
    })
}

fn is_impossible(model: &Model, call: &Call) -> bool {
    match call {
        Call::Change(operation) => !operation.is_possible(model),
        Call::WriteBack(_) => true,
        call => look(model, call).is_none(),
    }
}

/// Returns the model's view of a call, for a failure's message.
#[must_use]
pub fn expected(model: &Model, call: &Call) -> String {
    if !is_impossible(model, call) {
        return look(model, call).map_or_else(|| "possible".to_owned(), |answer| answer.to_string());
    }
    format!("refused with one of {:?}", reasons(model, call))
}

/// Returns the errors with which a call may be refused if it is impossible in a state.
fn reasons(model: &Model, call: &Call) -> Vec<i32> {
    let mut found = Reasons {
        model,
        found: Vec::new(),
    };
    match call {
        Call::Change(operation) => found.of_change(operation),
        Call::Lookup(directory, _) | Call::List(directory) | Call::ListInView(directory) => {
            found.of_directory(*directory);
        }
        Call::Stat(location) | Call::Xattr(location, _) | Call::WriteBack(location) => {
            found.of_inode(*location)
        }
        Call::Read(location, ..) => found.of_file(*location),
        Call::Commit => {}
    }
    found.found.iter().map(|errno| errno.raw_os_error()).collect()
}

/// Collector of the errors that apply to a call.
struct Reasons<'a> {
    model: &'a Model,
    found: Vec<Errno>,
}

impl Reasons<'_> {
    fn when(&mut self, holds: bool, errno: Errno) {
        if holds {
            self.found.push(errno);
        }
    }

    fn of_inode(&mut self, location: Location) {
        self.when(self.model.inode(location).is_none(), Errno::NOENT);
    }

    fn of_writable(&mut self, location: Location) {
        self.of_inode(location);
        let subvolume = self.model.subvolumes.get(&location.subvolume);
        self.when(
            subvolume.is_some_and(|subvolume| subvolume.read_only),
            Errno::ROFS,
        );
    }

    fn of_file(&mut self, location: Location) {
        self.of_inode(location);
        let inode = self.model.inode(location);
        self.when(inode.is_some_and(Inode::is_directory), Errno::ISDIR);
        let is_other = |inode: &Inode| !inode.is_directory() && !inode.is_file();
        self.when(inode.is_some_and(is_other), Errno::INVAL);
    }

    fn of_directory(&mut self, location: Location) {
        self.of_inode(location);
        let is_none = |inode: &Inode| !inode.is_directory();
        self.when(self.model.inode(location).is_some_and(is_none), Errno::NOTDIR);
    }

    fn of_adding(&mut self, directory: Location, name: &[u8]) {
        self.of_directory(directory);
        self.of_writable(directory);
        self.when(self.model.target(directory, name).is_some(), Errno::EXIST);
    }

    fn of_removing(&mut self, directory: Location, name: &[u8]) {
        self.of_directory(directory);
        self.of_writable(directory);
        self.when(self.model.target(directory, name).is_none(), Errno::NOENT);
    }

    fn is_directory(&self, directory: Location, name: &[u8]) -> bool {
        match self.model.target(directory, name) {
            None => false,
            Some(Target::Subvolume(_)) => true,
            Some(Target::Inode(number)) => {
                let location = Location::new(directory.subvolume, InodeNumber::new(number));
                self.model.inode(location).is_some_and(Inode::is_directory)
            }
        }
    }

    fn is_empty(&self, directory: Location, name: &[u8]) -> bool {
        let location = target(self.model, directory, name);
        let inode = location.and_then(|location| self.model.inode(location));
        inode.is_none_or(|inode| inode.entries.is_empty())
    }

    fn of_change(&mut self, operation: &Operation) {
        match operation {
            Operation::Create(directory, name, _)
            | Operation::MakeDirectory(directory, name, _)
            | Operation::MakeSymlink(directory, name, _)
            | Operation::CreateSubvolume(directory, name) => self.of_adding(*directory, name),
            Operation::Snapshot(source, directory, name, _) => {
                self.of_adding(*directory, name);
                self.when(!self.model.subvolumes.contains_key(source), Errno::NOENT);
            }
            Operation::Link(inode, directory, name) => {
                self.of_adding(*directory, name);
                self.of_inode(*inode);
                self.when(inode.subvolume != directory.subvolume, Errno::XDEV);
                self.when(
                    self.model.inode(*inode).is_some_and(Inode::is_directory),
                    Errno::PERM,
                );
            }
            Operation::Unlink(directory, name) => {
                self.of_removing(*directory, name);
                self.when(self.is_directory(*directory, name), Errno::ISDIR);
            }
            Operation::RemoveDirectory(directory, name) => {
                self.of_removing(*directory, name);
                self.when(!self.is_directory(*directory, name), Errno::NOTDIR);
                self.when(!self.is_empty(*directory, name), Errno::NOTEMPTY);
                let is_subvolume = matches!(self.model.target(*directory, name), Some(Target::Subvolume(_)));
                self.when(is_subvolume, Errno::PERM);
            }
            Operation::Rename(from, old, to, new, mode) => self.of_rename((*from, old), (*to, new), *mode),
            Operation::DeleteSubvolume(id) => self.of_deleting(*id),
            Operation::SetDefault(id) | Operation::SetReadOnly(id, _) => {
                self.when(!self.model.subvolumes.contains_key(id), Errno::NOENT);
            }
            Operation::Content(file, change) => {
                self.of_file(*file);
                self.of_writable(*file);
                let Some((source, ..)) = change.shared() else {
                    return;
                };
                self.of_file(source);
                self.when(!change.is_possible(self.model, *file), Errno::INVAL);
            }
            Operation::SetXattr(inode, ..) => self.of_writable(*inode),
            Operation::RemoveXattr(inode, name) => {
                self.of_writable(*inode);
                let lacks = |inode: &Inode| !inode.xattrs.contains_key(name);
                self.when(self.model.inode(*inode).is_some_and(lacks), Errno::NODATA);
            }
            Operation::SetMode(inode, _) | Operation::SetOwner(inode, ..) => self.of_writable(*inode),
            Operation::Hold(inode) => {
                self.of_inode(*inode);
                self.when(
                    self.model.inode(*inode).is_some_and(|inode| inode.links == 0),
                    Errno::NOENT,
                );
            }
            _ => {}
        }
    }

    fn of_deleting(&mut self, id: SubvolumeId) {
        let Some(subvolume) = self.model.subvolumes.get(&id) else {
            self.found.push(Errno::NOENT);
            return;
        };
        let Some((directory, _)) = &subvolume.place else {
            self.found.push(Errno::PERM);
            return;
        };
        self.when(id == self.model.default, Errno::PERM);
        self.when(!self.model.is_writable(*directory), Errno::ROFS);
        let lies_in = |other: &Subvolume| {
            other
                .place
                .as_ref()
                .is_some_and(|(place, _)| place.subvolume == id)
        };
        self.when(self.model.subvolumes.values().any(lies_in), Errno::NOTEMPTY);
    }

    fn of_rename(&mut self, (from, old): (Location, &[u8]), (to, new): (Location, &[u8]), mode: Mode) {
        self.of_removing(from, old);
        self.of_directory(to);
        self.of_writable(to);
        let present = self.model.target(to, new);
        self.when(mode == Mode::NoReplace && present.is_some(), Errno::EXIST);
        self.when(mode == Mode::Exchange && present.is_none(), Errno::NOENT);
        self.when(from.subvolume != to.subvolume, Errno::XDEV);
        for (directory, name) in [(from, old), (to, new)] {
            // A read-only subvolume cannot leave its directory.
            if let Some(Target::Subvolume(id)) = self.model.target(directory, name) {
                self.of_writable(Location::root_of(id));
                self.when(mode != Mode::Exchange, Errno::NOTEMPTY);
            }
        }
        let (moves, meets) = (self.is_directory(from, old), self.is_directory(to, new));
        self.when(meets && !moves, Errno::ISDIR);
        self.when(moves && present.is_some() && !meets, Errno::NOTDIR);
        self.when(!self.is_empty(to, new), Errno::NOTEMPTY);
        // The call would move a directory into itself. Other facts of the state show which of the
        // two directories the call would move.
        self.when(moves || meets, Errno::INVAL);
    }
}
