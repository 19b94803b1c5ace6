//! One inode, and its change between two snapshots.

use crate::send::plan::is_directory;
use crate::send::snapshot::Link;
use buttress_format::{InodeItem, InodeNumber};

/// The items of one inode, as far as they differ; without a parent snapshot, all items.
#[derive(Clone, Debug)]
pub(crate) struct InodeState {
    pub(crate) number: InodeNumber,
    pub(crate) old: Option<InodeItem>,
    pub(crate) new: Option<InodeItem>,
    /// Names of the inode whose items differ. If an item holds several names, unchanged names
    /// appear in both lists.
    pub(crate) old_links: Vec<Link>,
    pub(crate) new_links: Vec<Link>,
    /// Extended attributes of the inode whose items differ.
    pub(crate) old_xattrs: Vec<Attribute>,
    pub(crate) new_xattrs: Vec<Attribute>,
    /// Target of a symbolic link.
    pub(crate) target: Option<Vec<u8>>,
    /// Items next to the inode item, whether they differ or not.
    pub(crate) beside: Beside,
}

/// Facts about an inode's other items from the leaf of its new inode item. These facts apply to
/// differing and equal items, and save lookups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside {
    /// First name of the inode in the new snapshot; `None` if the leaf ends before it.
    pub(crate) first_link: Option<Link>,
    /// True if the new snapshot certainly has no extended attributes of the inode.
    pub(crate) no_xattrs: bool,
}

/// One extended attribute, with name and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// Change of an inode between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The inode is in neither snapshot, or has no name in either.
    Absent,
    Created,
    Removed,
    /// The inode is in both snapshots.
    Kept,
    /// Another inode has the same number in the new snapshot.
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

    /// Returns the inode item of the parent snapshot if the inode had a name there. An unlinked
    /// open inode was not sent.
    pub(crate) fn old_present(&self) -> Option<&InodeItem> {
        self.old.as_ref().filter(|item| item.nlink > 0)
    }

    /// Returns the inode item of the new snapshot if the inode has a name there.
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

    /// Returns whether the differing items of the inode are insufficient, because equal items
    /// belong to different inodes.
    pub(crate) fn needs_all_items(&self) -> bool {
        match self.state() {
            State::Replaced => true,
            State::Created => self.old.is_some(),
            State::Removed => self.new.is_some(),
            State::Absent | State::Kept => false,
        }
    }

    /// Lists the removed names.
    pub(crate) fn removed_links(&self) -> Vec<&Link> {
        let all = self.state() != State::Kept;
        let kept: std::collections::BTreeSet<&Link> = self.new_links.iter().collect();
        self.old_links
            .iter()
            .filter(|link| all || !kept.contains(link))
            .collect()
    }

    /// Lists the new names.
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
