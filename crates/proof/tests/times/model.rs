//! The model of the times: the times that a call sets, and those that a crash may restore.

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
    /// True if the file has written content that the test has not written back yet.
    pub is_dirty: bool,
    pub links: u32,
    /// Durable times, followed by the later times of the inode.
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

/// The state that a volume must show.
#[derive(Debug, Default)]
pub struct Model {
    pub inodes: BTreeMap<Location, Inode>,
    /// Inodes without names that a crash may restore.
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

    /// Records that content was written, or that names in a directory changed.
    pub fn modify(&mut self, at: Location, now: Timestamp) {
        self.change(at, |times| (times.modified, times.changed) = (now, now));
    }

    /// Records that the inode was changed.
    pub fn touch(&mut self, at: Location, now: Timestamp) {
        self.change(at, |times| times.changed = now);
    }

    /// Records a read of the inode. Returns whether the access time of the file changes.
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

    /// Adds a name.
    pub fn add(&mut self, directory: Location, name: &str, at: Location, now: Timestamp) {
        self.names.insert((directory, name.to_owned()), at);
        self.modify(directory, now);
    }

    /// Removes a name, and the inode with its last name.
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

    /// Records that all changes so far are durable.
    pub fn commit(&mut self) {
        self.gone.clear();
        self.inodes.values_mut().for_each(Inode::settle);
    }

    /// Records that the state of this inode is durable.
    pub fn sync(&mut self, at: Location) {
        self.inodes.get_mut(&at).unwrap().settle();
    }
}
