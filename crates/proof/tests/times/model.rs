//! The model of the times: which times a call sets, and which of them a crash may bring back.

use buttress::{AccessPolicy, AccessTimes, FileKind, Location, Metadata, Timestamp};
use std::collections::BTreeMap;

/// All four times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
}

impl Times {
    pub fn all(now: Timestamp) -> Self {
        Self {
            accessed: now,
            modified: now,
            changed: now,
            created: now,
        }
    }

    pub fn of(metadata: &Metadata) -> Self {
        Self {
            accessed: metadata.accessed,
            modified: metadata.modified,
            changed: metadata.changed,
            created: metadata.created.unwrap(),
        }
    }
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    pub kind: FileKind,
    pub times: Times,
    pub is_noatime: bool,
    /// Content was written that the test has not had written back.
    pub is_dirty: bool,
    pub links: u32,
    /// The durable times first, then the times that the inode had since.
    pub since_durable: Vec<Times>,
}

impl Inode {
    pub fn new(kind: FileKind, times: Times) -> Self {
        Self {
            kind,
            times,
            is_noatime: false,
            is_dirty: false,
            links: 1,
            since_durable: vec![times],
        }
    }

    fn settle(&mut self) {
        self.since_durable = vec![self.times];
        self.is_dirty = false;
    }
}

/// The state that a volume must show. See the module.
#[derive(Debug, Default)]
pub struct Model {
    pub inodes: BTreeMap<Location, Inode>,
    /// Inodes without names that a crash may bring back.
    pub gone: BTreeMap<Location, Inode>,
    pub names: BTreeMap<(Location, String), Location>,
    /// Times of inodes in snapshots.
    pub kept: BTreeMap<Location, Times>,
}

impl Model {
    pub fn change(&mut self, at: Location, change: impl FnOnce(&mut Times)) {
        let inode = self.inodes.get_mut(&at).unwrap();
        change(&mut inode.times);
        inode.since_durable.push(inode.times);
    }

    /// Content was written, or names in a directory changed.
    pub fn modify(&mut self, at: Location, now: Timestamp) {
        self.change(at, |times| (times.modified, times.changed) = (now, now));
    }

    /// The inode was changed.
    pub fn touch(&mut self, at: Location, now: Timestamp) {
        self.change(at, |times| times.changed = now);
    }

    /// The inode was read. Returns whether its time moves.
    pub fn access(&mut self, at: Location, policy: AccessPolicy, now: Timestamp) -> bool {
        const DAY: i64 = 86_400;
        let inode = &self.inodes[&at];
        let times = inode.times;
        let ignores = inode.is_noatime || policy.without_directories && inode.kind == FileKind::Directory;
        let moves = match policy.times {
            AccessTimes::Never => false,
            AccessTimes::Strict => true,
            AccessTimes::Relative => {
                times.modified >= times.accessed
                    || times.changed >= times.accessed
                    || now.seconds - times.accessed.seconds >= DAY
            }
        };
        if ignores || !moves || times.accessed == now {
            return false;
        }
        self.change(at, |times| times.accessed = now);
        true
    }

    /// A name came.
    pub fn add(&mut self, directory: Location, name: &str, at: Location, now: Timestamp) {
        self.names.insert((directory, name.to_owned()), at);
        self.modify(directory, now);
    }

    /// A name went, and the inode with its last one.
    pub fn remove(&mut self, directory: Location, name: &str, now: Timestamp) {
        let at = self.names.remove(&(directory, name.to_owned())).unwrap();
        self.modify(directory, now);
        self.touch(at, now);
        let inode = self.inodes.get_mut(&at).unwrap();
        inode.links -= 1;
        if inode.links == 0 || inode.kind == FileKind::Directory {
            let inode = self.inodes.remove(&at).unwrap();
            self.gone.insert(at, inode);
        }
    }

    /// All of it is durable.
    pub fn commit(&mut self) {
        self.gone.clear();
        self.inodes.values_mut().for_each(Inode::settle);
    }

    /// This inode is durable.
    pub fn sync(&mut self, at: Location) {
        self.inodes.get_mut(&at).unwrap().settle();
    }
}
