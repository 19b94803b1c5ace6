//! Checks one subvolume item by item, to find the errors behind a sum of facts that is not zero.
//!
//! The check reads leaves in order, so the items of an inode are adjacent, and it adds up their
//! sizes. The check looks up both directory items of each name. The lookups cost one descent for
//! each name, but no memory, and run only for subvolumes with a known error.

use crate::context::Check;
use crate::facts;
use crate::finding::Finding;
use crate::fingerprint::{Fact, Hash};
use crate::names;
use crate::report::Note;
use buttress_format::{
    ByteCount, DirItem, DirItems, FileExtent, FileKind, FileOffset, InodeExtrefs, InodeItem, InodeName,
    InodeNumber, InodeRefs, Item, ItemType, Key, ObjectId, SubvolumeId,
};
use buttress_fs::{Name, Result};
use buttress_tree::{ReadAhead, Tree};

/// The state of the current inode.
struct Current {
    number: InodeNumber,
    item: Option<InodeItem>,
    /// Whether an orphan item marks the inode for deletion, so that some of its items may be gone.
    waits: bool,
    names: u64,
    name_bytes: u64,
    bytes: u64,
    has_entries: bool,
    has_extents: bool,
}

impl Current {
    const fn new(number: InodeNumber) -> Self {
        Self {
            number,
            item: None,
            waits: false,
            names: 0,
            name_bytes: 0,
            bytes: 0,
            has_entries: false,
            has_extents: false,
        }
    }
}

struct Pass<'a> {
    check: &'a Check<'a>,
    tree: &'a Tree,
    subvolume: SubvolumeId,
    current: Option<Current>,
    /// The number of findings.
    found: u64,
    /// The amount that leftover orphan items without an inode subtract from the subvolume's sum of
    /// facts. Leftover orphan items are no damage.
    allowed: u64,
    /// True if some inodes are pending deletion; the sum of such a subvolume may have any value.
    waits: bool,
    /// Whether the whole subvolume was readable.
    complete: bool,
}

/// Checks every item of a subvolume whose sum of facts is `sum`; `None` if the sum is unknown.
pub(crate) fn check_each(
    check: &Check<'_>,
    tree: &Tree,
    subvolume: SubvolumeId,
    sum: Option<u64>,
) -> Result<()> {
    let mut pass = Pass {
        check,
        tree,
        subvolume,
        current: None,
        found: 0,
        allowed: 0,
        waits: false,
        complete: true,
    };
    let mut leaves = tree.leaves(.., ReadAhead::sweep());
    loop {
        check.progress.check()?;
        match leaves.next() {
            Ok(Some(leaf)) => {
                for item in leaf.items() {
                    pass.item(&item);
                }
            }
            Ok(None) => break,
            Err(_) => pass.complete = false,
        }
    }
    pass.finish();
    let balances = sum.is_none_or(|sum| sum.wrapping_add(pass.allowed) == 0);
    let explained = balances || pass.found > 0 || pass.waits;
    if !explained && pass.complete {
        check.find(Finding::FilesUnexplained { subvolume });
    }
    Ok(())
}

impl Pass<'_> {
    fn find(&mut self, finding: Finding) {
        self.found = self.found.saturating_add(1);
        self.check.find(finding);
    }

    /// Returns the result of a lookup. An unreadable tree block counts as no error of files,
    /// because another step reports it.
    fn known<T>(&mut self, result: buttress_tree::Result<T>) -> Option<T> {
        self.complete &= result.is_ok();
        result.ok()
    }

    fn item(&mut self, item: &Item<'_>) {
        let key = &item.key;
        if key.objectid == ObjectId::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM {
            self.orphan(key.offset);
            return;
        }
        if !facts::is_file(key.objectid) {
            return;
        }
        let number = InodeNumber::new(key.objectid.get());
        if self
            .current
            .as_ref()
            .is_none_or(|current| current.number != number)
        {
            self.finish();
            self.current = Some(Current::new(number));
        }
        match key.item_type {
            ItemType::INODE_ITEM => {
                let Ok(inode) = InodeItem::parse(key, item.data) else {
                    return;
                };
                let waits = inode.nlink == 0 && self.has_orphan_item(number);
                self.waits |= waits;
                if let Some(current) = &mut self.current {
                    current.item = Some(inode);
                    current.waits = waits;
                }
            }
            ItemType::INODE_REF => {
                for name in InodeRefs::parse(key, item.data).into_iter().flatten() {
                    self.name(number, &name);
                }
            }
            ItemType::INODE_EXTREF => {
                for name in InodeExtrefs::parse(key, item.data).into_iter().flatten() {
                    self.name(number, &name);
                }
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                for entry in DirItems::parse(key, item.data).into_iter().flatten() {
                    self.entry(key, &entry);
                }
            }
            ItemType::EXTENT_DATA => {
                let extent = FileExtent::parse(key, item.data, self.check.sector_bytes);
                if let (Some(current), Ok(extent)) = (&mut self.current, extent) {
                    current.has_extents = true;
                    current.bytes = current.bytes.saturating_add(facts::extent_bytes(&extent));
                }
            }
            _ => {}
        }
    }

    /// Returns whether an orphan item marks an inode for deletion; true if the tree is unreadable
    /// at the item's place.
    fn has_orphan_item(&mut self, inode: InodeNumber) -> bool {
        let key = Key::new(ObjectId::ORPHAN, ItemType::ORPHAN_ITEM, inode.get());
        let tree = self.tree;
        !matches!(self.known(tree.get(&key)), Some(None))
    }

    /// Handles an orphan item: it belongs to an inode without links, or is left over.
    fn orphan(&mut self, inode: u64) {
        let key = Key::new(ObjectId::new(inode), ItemType::INODE_ITEM, 0);
        let tree = self.tree;
        let item = self.known(tree.get(&key));
        if matches!(item, Some(None)) {
            self.check.note(Note::OrphanItemLeftOver {
                subvolume: self.subvolume,
                inode: InodeNumber::new(inode),
            });
        }
        let unlinked = item
            .flatten()
            .and_then(|item| InodeItem::parse(&key, item.data()).ok())
            .is_some_and(|inode| inode.nlink == 0);
        if !unlinked {
            let hash = Hash::of(Fact::Orphan).number(inode).get();
            self.allowed = self.allowed.wrapping_add(hash);
        }
    }

    /// Returns whether the current inode is pending deletion.
    fn is_waiting(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.waits)
    }

    fn name(&mut self, inode: InodeNumber, name: &InodeName<'_>) {
        if let Some(current) = &mut self.current {
            current.names = current.names.saturating_add(1);
        }
        if facts::is_own_parent(inode, name) || self.is_waiting() {
            return;
        }
        let tree = self.tree;
        let leads_here = |target: Option<names::Target>| {
            target.is_some_and(|target| {
                target.location.item_type == ItemType::INODE_ITEM
                    && target.location.objectid == inode.object_id()
            })
        };
        let index = self.known(names::by_index(tree, name.parent, name.index, name.name));
        let hash = self.known(names::by_hash(tree, name.parent, name.name));
        let (Some(index), Some(hash)) = (index, hash) else {
            return;
        };
        if let Some(missing) = names::missing(leads_here(index), leads_here(hash)) {
            self.find(Finding::EntryMissing {
                subvolume: self.subvolume,
                inode,
                directory: name.parent,
                name: Name::from(name.name),
                missing,
            });
        }
    }

    fn entry(&mut self, key: &Key, entry: &DirItem<'_>) {
        let directory = InodeNumber::new(key.objectid.get());
        if let Some(current) = &mut self.current {
            current.has_entries = true;
            let length = ByteCount::of(entry.name.len()).get();
            current.name_bytes = current.name_bytes.saturating_add(length);
        }
        match entry.location.item_type {
            ItemType::INODE_ITEM => self.file_entry(directory, key, entry),
            ItemType::ROOT_ITEM if key.item_type == ItemType::DIR_INDEX => {
                let tree = self.tree;
                let other = self.known(names::by_hash(tree, directory, entry.name));
                let same = |other: names::Target| {
                    other.location.objectid == entry.location.objectid && other.kind == entry.kind
                };
                if other.is_some_and(|other| !other.is_some_and(same)) {
                    self.find(Finding::EntriesDiffer {
                        subvolume: self.subvolume,
                        directory,
                        name: Name::from(entry.name),
                    });
                }
            }
            _ => {}
        }
    }

    /// Checks an entry that leads to an inode of the same subvolume.
    fn file_entry(&mut self, directory: InodeNumber, key: &Key, entry: &DirItem<'_>) {
        let (tree, subvolume, name) = (self.tree, self.subvolume, || Name::from(entry.name));
        let inode = InodeNumber::new(entry.location.objectid.get());
        let inode_key = Key::new(entry.location.objectid, ItemType::INODE_ITEM, 0);
        let Some(item) = self.known(tree.get(&inode_key)) else {
            return;
        };
        let item = item.and_then(|item| InodeItem::parse(&inode_key, item.data()).ok());
        let Some(item) = item else {
            // Cleanup may have removed the child before it removes the directory.
            if !self.is_waiting() {
                self.find(Finding::EntryWithoutInode {
                    subvolume,
                    directory,
                    name: name(),
                    inode,
                });
            }
            return;
        };
        // The kernel's cleanup removes the entries together with the directory, and each child by
        // its own orphan item.
        if self.is_waiting() && item.nlink == 0 && self.has_orphan_item(inode) {
            return;
        }
        if item.kind() != entry.kind {
            self.find(Finding::EntryKind {
                subvolume,
                directory,
                name: name(),
                entry: entry.kind.to_raw(),
                inode: item.kind().to_raw(),
            });
        }
        let index = (key.item_type == ItemType::DIR_INDEX).then_some(key.offset);
        if self.known(names::has_link(tree, inode, directory, index, entry.name)) == Some(false) {
            self.find(Finding::LinkMissing {
                subvolume,
                inode,
                directory,
                name: name(),
            });
        }
    }

    /// Ends the check of the current inode after all its items.
    fn finish(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        let (subvolume, inode) = (self.subvolume, current.number);
        let Some(item) = current.item else {
            if self.complete {
                self.find(Finding::InodeMissing { subvolume, inode });
            }
            return;
        };
        if current.waits {
            return;
        }
        if u64::from(item.nlink) != current.names {
            self.find(Finding::LinkCount {
                subvolume,
                inode,
                stored: item.nlink,
                counted: current.names,
            });
        }
        if item.nlink == 0 {
            self.find(Finding::OrphanItemMissing { subvolume, inode });
        }
        self.finish_content(&current, &item);
    }

    fn finish_content(&mut self, current: &Current, item: &InodeItem) {
        let (subvolume, inode) = (self.subvolume, current.number);
        let (name_bytes, bytes) = (ByteCount::new(current.name_bytes), ByteCount::new(current.bytes));
        let kind = item.kind();
        if kind == FileKind::Directory {
            if item.size != name_bytes {
                self.find(Finding::DirectorySize {
                    subvolume,
                    inode,
                    stored: item.size,
                    counted: name_bytes,
                });
            }
        } else if current.has_entries {
            self.find(Finding::NotADirectory { subvolume, inode });
        }
        if matches!(kind, FileKind::Regular | FileKind::Symlink) {
            if item.nbytes != bytes {
                self.find(Finding::FileBytes {
                    subvolume,
                    inode,
                    stored: item.nbytes,
                    counted: bytes,
                });
            }
        } else if current.has_extents {
            self.find(Finding::ContentUnexpected { subvolume, inode });
        }
    }
}

/// Finds the ranges of a file below its size that have no item.
pub(crate) fn check_holes(
    check: &Check<'_>,
    tree: Option<&Tree>,
    subvolume: SubvolumeId,
    inode: InodeNumber,
    item: &InodeItem,
) {
    let Some(tree) = tree else { return };
    let key = |offset| Key::new(inode.object_id(), ItemType::EXTENT_DATA, offset);
    let sector_bytes = u64::from(check.sector_bytes);
    let Some(end) = item.size.checked_align_up(sector_bytes) else {
        return;
    };
    let mut covered = 0;
    let find = |offset: u64, end: u64| {
        check.find(Finding::HoleItemMissing {
            subvolume,
            inode,
            offset: FileOffset::new(offset),
            end: FileOffset::new(end),
        });
    };
    for extent in tree.range(key(0)..key(end.get()), ReadAhead::Forward) {
        // The scan of all blocks reports unreadable blocks.
        let Ok(extent) = extent else { return };
        let Ok(parsed) = FileExtent::parse(&extent.key(), extent.data(), check.sector_bytes) else {
            return;
        };
        if extent.key().offset > covered {
            find(covered, extent.key().offset);
        }
        covered = covered.max(parsed.file_end(&extent.key(), check.sector_bytes).get());
    }
    if covered < end.get() {
        find(covered, end.get());
    }
}
