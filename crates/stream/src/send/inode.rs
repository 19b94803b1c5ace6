//! One inode and what became of it between two snapshots.

use crate::send::plan::is_directory;
use crate::send::snapshot::Link;
use buttress_format::{InodeItem, InodeNumber};

/// What the items of one inode say, as far as they differ; with no parent snapshot, all of them.
#[derive(Clone, Debug)]
pub(crate) struct InodeState {
    pub(crate) number: InodeNumber,
    pub(crate) old: Option<InodeItem>,
    pub(crate) new: Option<InodeItem>,
    /// Its names, as far as their items differ; in pairs of equals where an item holds other names as well.
    pub(crate) old_links: Vec<Link>,
    pub(crate) new_links: Vec<Link>,
    /// Its extended attributes, likewise.
    pub(crate) old_xattrs: Vec<Attribute>,
    pub(crate) new_xattrs: Vec<Attribute>,
    /// The target of a symbolic link.
    pub(crate) target: Option<Vec<u8>>,
    /// What lies beside its items that differ.
    pub(crate) beside: Beside,
}

/// What the leaf of a new inode item says of the inode's other items, whether they differ or not: it is at hand, and
/// saves looking them up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside {
    /// The inode's first name in the new snapshot; `None` where the leaf ends before it.
    pub(crate) first_link: Option<Link>,
    /// Whether it is certain that the new snapshot has no attributes of the inode.
    pub(crate) no_xattrs: bool,
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// What became of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is in neither snapshot, or has no name in either.
    Absent,
    Created,
    Removed,
    /// It is in both.
    Kept,
    /// Its number stands for another inode now.
    Replaced,
}

impl InodeState {
    pub(crate) const fn new(number: InodeNumber) -> Self {
        Self {
            number,
            old: None,
            new: None,
            old_links: Vec::new(),
            new_links: Vec::new(),
            old_xattrs: Vec::new(),
            new_xattrs: Vec::new(),
            target: None,
            beside: Beside {
                first_link: None,
                no_xattrs: false,
            },
        }
    }

    /// The inode in the parent snapshot, if it had a name there: one that was open and unlinked was not sent.
    pub(crate) fn old_present(&self) -> Option<&InodeItem> {
        self.old.as_ref().filter(|item| item.nlink > 0)
    }

    /// The inode in the new snapshot, if it has a name there.
    pub(crate) fn new_present(&self) -> Option<&InodeItem> {
        self.new.as_ref().filter(|item| item.nlink > 0)
    }

    pub(crate) fn state(&self) -> State {
        match (self.old_present(), self.new_present()) {
            (None, None) => State::Absent,
            (None, Some(_)) => State::Created,
            (Some(_), None) => State::Removed,
            (Some(old), Some(new)) => {
                let directories = is_directory(old.mode) && is_directory(new.mode);
                let same_kind = (old.mode ^ new.mode) & 0o170_000 == 0;
                if directories || (same_kind && old.generation == new.generation) {
                    State::Kept
                } else {
                    State::Replaced
                }
            }
        }
    }

    /// Whether what differs is not enough, since items that are equal belong to different inodes.
    pub(crate) fn needs_all_items(&self) -> bool {
        match self.state() {
            State::Replaced => true,
            State::Created => self.old.is_some(),
            State::Removed => self.new.is_some(),
            State::Absent | State::Kept => false,
        }
    }

    /// The names that go away.
    pub(crate) fn removed_links(&self) -> Vec<&Link> {
        let all = self.state() != State::Kept;
        let kept: std::collections::BTreeSet<&Link> = self.new_links.iter().collect();
        self.old_links
            .iter()
            .filter(|link| all || !kept.contains(link))
            .collect()
    }

    /// The names that are new.
    pub(crate) fn added_links(&self) -> Vec<Link> {
        let all = self.state() != State::Kept;
        let kept: std::collections::BTreeSet<&Link> = self.old_links.iter().collect();
        self.new_links
            .iter()
            .filter(|link| all || !kept.contains(link))
            .cloned()
            .collect()
    }
}
