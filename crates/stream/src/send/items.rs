//! From items to inodes: the gatherer collects the items of each inode and passes them on, inode by
//! inode.
//!
//! The items of one inode are adjacent: first its inode item, then its names, its attributes, and
//! last its extents. The gatherer collects names and attributes. The gatherer passes extents on one
//! by one, because a file may have millions.
//!
//! An inode with an unchanged inode item is unchanged: every operation that changes an inode sets
//! its change time. (Relocation of block groups changes addresses in extent items, but nothing that
//! a receiver sees.)

use crate::send::error::{NamesProblem, Result};
use crate::send::inode::{Attribute, InodeState};
use crate::send::snapshot::Snapshot;
use buttress_format::node::{Item, TreeBlock};
use buttress_format::{
    ByteCount, DirItems, FileExtent, FileExtentBody, InodeItem, InodeNumber, ItemType, Key, ObjectId,
};
use buttress_fs::{Error as FsError, FileRange, FileRangeBuilder, Progress, RangeKind};
use buttress_tree::{Changes, ReadAhead};

/// Largest memory for the extended attributes of one inode, in bytes.
const ATTRIBUTES_LIMIT: usize = 16 << 20;

/// Bytes of readahead to request before sending the held inodes, which takes about as long as these
/// reads. The remaining quarter of the usual readahead budget stays available to other readers.
const AHEAD_BYTES: ByteCount = ByteCount::new(48 << 20);

/// An item of either snapshot, or both versions of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Difference<'a> {
    pub(crate) key: Key,
    pub(crate) old: Option<&'a [u8]>,
    pub(crate) new: Option<&'a [u8]>,
    /// The leaf that holds `new`, if the visitor may keep it.
    pub(crate) new_leaf: Option<&'a TreeBlock>,
}

/// A file range that an extent item describes in one snapshot, or in both at one offset. Inline
/// content of the new range may keep its whole leaf in memory.
#[derive(Debug)]
pub(crate) struct ExtentChange {
    pub(crate) old: Option<FileRange>,
    pub(crate) new: Option<FileRange>,
}

impl ExtentChange {
    /// Returns its approximate memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let inline = |range: &FileRange| match &range.kind {
            RangeKind::Inline(inline) => inline.stored.len(),
            _ => 0,
        };
        let ranges = [&self.old, &self.new].into_iter().flatten();
        ranges.fold(size_of::<Self>(), |bytes, range| {
            bytes.saturating_add(inline(range))
        })
    }
}

/// Receiver of inodes and their extents.
pub(crate) trait Visitor {
    /// Begins an inode; `inode` has everything but its extents.
    fn begin(&mut self, inode: &InodeState) -> Result<()>;
    /// Processes an extent item of the current inode.
    fn extent(&mut self, change: ExtentChange) -> Result<()>;
    /// Ends the current inode's items.
    fn end(&mut self) -> Result<()>;
}

/// The inode whose items are being gathered.
struct Gathering {
    inode: InodeState,
    begun: bool,
    attribute_bytes: usize,
    /// True if the differing items are insufficient: see [`InodeState::needs_all_items`].
    needs_all: bool,
    /// First key of the new snapshot's next leaf, if it continues the items next to the inode item.
    beside_goes_on: Option<Key>,
    /// Builders of file ranges for the old file and the new file.
    ranges: [FileRangeBuilder; 2],
}

/// State of the gathering of an inode's items.
pub(crate) struct Gatherer<'a> {
    new: &'a Snapshot,
    old: Option<&'a Snapshot>,
    progress: &'a Progress,
    current: Option<Gathering>,
}

/// A walk over the differences between two snapshots, which can pause.
pub(crate) struct Walk {
    changes: Changes,
    /// The next item, if the walk paused before it.
    next: Option<OwnDifference>,
}

/// A [`Difference`] that owns its bytes.
struct OwnDifference {
    key: Key,
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

/// Returns whether a subtree with keys of `[first, end)` can hold items that sending needs.
/// Directory entries are not needed, because the names at the inodes hold the same information.
pub(crate) fn is_wanted(first: &Key, end: Option<&Key>) -> bool {
    let entries = |key: &Key| matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX);
    !(entries(first) && end.is_some_and(|end| first.objectid == end.objectid && entries(end)))
}

/// Returns whether `key`, which follows the inode item of `inode`, also follows all attributes of
/// this inode.
fn ends_attributes(inode: InodeNumber, key: &Key) -> bool {
    key.objectid != inode.object_id() || key.item_type > ItemType::XATTR_ITEM
}

impl Walk {
    /// Creates a walk over the differences between two snapshots.
    pub(crate) fn new(old: &Snapshot, new: &Snapshot, read_ahead: ReadAhead) -> Self {
        Self {
            changes: buttress_tree::changes_where(old.tree(), new.tree(), read_ahead, is_wanted),
            next: None,
        }
    }

    /// Starts readahead of the next leaves.
    pub(crate) fn look_ahead(&mut self) {
        self.changes.look_ahead(AHEAD_BYTES);
    }
}

impl<'a> Gatherer<'a> {
    pub(crate) const fn new(new: &'a Snapshot, old: Option<&'a Snapshot>, progress: &'a Progress) -> Self {
        Self {
            new,
            old,
            progress,
            current: None,
        }
    }

    /// Walks all inodes of a single snapshot.
    pub(crate) fn run(mut self, read_ahead: ReadAhead, visitor: &mut dyn Visitor) -> Result<()> {
        self.all_items(read_ahead, visitor)?;
        self.finish(visitor)
    }

    fn all_items(&mut self, read_ahead: ReadAhead, visitor: &mut dyn Visitor) -> Result<()> {
        let first = Key::new(ObjectId::FIRST_FREE, ItemType(0), 0);
        let last = Key::new(ObjectId::LAST_FREE, ItemType(u8::MAX), u64::MAX);
        let tree = self.new.tree().clone();
        let mut leaves = tree.leaves_where(first..=last, read_ahead, is_wanted).passing();
        while let Some(leaf) = leaves.next().map_err(FsError::from)? {
            self.progress.check()?;
            for item in leaf.items() {
                let difference = Difference {
                    key: item.key,
                    old: None,
                    new: Some(item.data),
                    new_leaf: Some(leaf.block),
                };
                self.item(&difference, visitor)?;
            }
        }
        Ok(())
    }

    /// Continues the walk over the differences up to inode `last`, or to the end if `last` is `None`.
    pub(crate) fn go_on(
        &mut self,
        walk: &mut Walk,
        last: Option<InodeNumber>,
        visitor: &mut dyn Visitor,
    ) -> Result<()> {
        let last = last.map_or(ObjectId::LAST_FREE, InodeNumber::object_id);
        if let Some(first) = walk.next.take_if(|first| first.key.objectid <= last) {
            let difference = Difference {
                key: first.key,
                old: first.old.as_deref(),
                new: first.new.as_deref(),
                new_leaf: None,
            };
            self.item(&difference, visitor)?;
        }
        let mut count = 0_u32;
        while walk.next.is_none()
            && let Some(change) = walk.changes.next().map_err(FsError::from)?
        {
            count = count.wrapping_add(1);
            if count.is_multiple_of(256) {
                self.progress.check()?;
            }
            if change.key.objectid > last {
                walk.next = Some(OwnDifference {
                    key: change.key,
                    old: change.old.map(<[u8]>::to_vec),
                    new: change.new.map(<[u8]>::to_vec),
                });
                break;
            }
            let difference = Difference {
                key: change.key,
                old: change.old,
                new: change.new,
                new_leaf: change.new_leaf,
            };
            let is_new_inode_item = change.key.item_type == ItemType::INODE_ITEM && change.new.is_some();
            self.look_on(&difference)?;
            self.item(&difference, visitor)?;
            if is_new_inode_item && let Some(current) = &mut self.current {
                let inode = &mut current.inode;
                let is_known = Self::look_beside(self.new, inode, walk.changes.following())?;
                let end = walk.changes.following_end();
                if !is_known && end.is_none_or(|end| ends_attributes(inode.number, &end)) {
                    inode.beside.no_xattrs = true;
                } else if !is_known {
                    current.beside_goes_on = end;
                }
            }
        }
        self.finish(visitor)
    }

    /// Collects the items after an inode item that its leaf holds. Returns whether the leaf holds
    /// all items of the inode up to the end of its extended attributes.
    fn look_beside<'i>(
        new: &Snapshot,
        inode: &mut InodeState,
        following: impl Iterator<Item = Item<'i>>,
    ) -> Result<bool> {
        for item in following {
            if ends_attributes(inode.number, &item.key) {
                inode.beside.no_xattrs = true;
                return Ok(true);
            }
            match item.key.item_type {
                ItemType::XATTR_ITEM => return Ok(true),
                ItemType::INODE_REF | ItemType::INODE_EXTREF if inode.beside.first_link.is_none() => {
                    let mut links = Vec::new();
                    new.parse_links(&item.key, item.data, &mut links)?;
                    inode.beside.first_link = links.into_iter().next();
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// Continues this collection in the next leaf, once the walk has reached it.
    fn look_on(&mut self, difference: &Difference<'_>) -> Result<()> {
        if let Some(current) = &mut self.current
            && current.beside_goes_on.is_some()
            && difference.key.objectid == current.inode.number.object_id()
            && let Some(leaf) = difference.new_leaf
            && leaf.key(0) == current.beside_goes_on
        {
            current.beside_goes_on = None;
            Self::look_beside(self.new, &mut current.inode, leaf.items())?;
        }
        Ok(())
    }

    /// Processes one item.
    fn item(&mut self, difference: &Difference<'_>, visitor: &mut dyn Visitor) -> Result<()> {
        let key = &difference.key;
        let number = InodeNumber::new(key.objectid.get());
        if self.current.as_ref().map(|current| current.inode.number) != Some(number) {
            self.finish(visitor)?;
            if key.item_type != ItemType::INODE_ITEM
                || key.objectid < ObjectId::FIRST_FREE
                || key.objectid > ObjectId::LAST_FREE
            {
                return Ok(());
            }
            self.current = Some(Gathering {
                inode: InodeState::new(number),
                begun: false,
                attribute_bytes: 0,
                needs_all: false,
                beside_goes_on: None,
                ranges: self.range_builders(number),
            });
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if current.needs_all {
            return Ok(());
        }
        if key.item_type == ItemType::INODE_ITEM {
            let parse = |data: Option<&[u8]>, of: &Snapshot| {
                data.map(|data| InodeItem::parse(key, data).map_err(|error| of.corrupt(error)))
                    .transpose()
            };
            current.inode.old = parse(difference.old, self.old.unwrap_or(self.new))?;
            current.inode.new = parse(difference.new, self.new)?;
            current.needs_all = current.inode.needs_all_items();
            return Ok(());
        }
        Self::part(self.new, self.old, current, difference, visitor)
    }

    /// Processes an item of an inode other than the inode item.
    fn part(
        new: &Snapshot,
        old: Option<&Snapshot>,
        current: &mut Gathering,
        difference: &Difference<'_>,
        visitor: &mut dyn Visitor,
    ) -> Result<()> {
        let key = &difference.key;
        let old = old.unwrap_or(new);
        match key.item_type {
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                if let Some(data) = difference.old {
                    old.parse_links(key, data, &mut current.inode.old_links)?;
                }
                if let Some(data) = difference.new {
                    new.parse_links(key, data, &mut current.inode.new_links)?;
                }
            }
            ItemType::XATTR_ITEM => {
                let bytes = difference.old.map_or(0, <[u8]>::len);
                let more = difference.new.map_or(0, <[u8]>::len);
                current.attribute_bytes = current.attribute_bytes.saturating_add(bytes).saturating_add(more);
                if current.attribute_bytes > ATTRIBUTES_LIMIT {
                    return Err(FsError::TooBig {
                        what: "extended attributes",
                        location: new.location(current.inode.number),
                        limit: ByteCount::of(ATTRIBUTES_LIMIT),
                    }
                    .into());
                }
                parse_xattrs(old, key, difference.old, &mut current.inode.old_xattrs)?;
                parse_xattrs(new, key, difference.new, &mut current.inode.new_xattrs)?;
            }
            ItemType::EXTENT_DATA => {
                let mode = current.inode.new.as_ref().or(current.inode.old.as_ref());
                if mode.is_some_and(|item| item.mode & 0o170_000 == 0o120_000) {
                    current.inode.target = link_target(new, key, difference.new)?;
                    return Ok(());
                }
                if !current.begun {
                    current.begun = true;
                    visitor.begin(&current.inode)?;
                }
                let [old_ranges, new_ranges] = &mut current.ranges;
                let old = difference.old.map(|data| old_ranges.range(key, data));
                let new = difference.new.map(|data| match difference.new_leaf {
                    Some(leaf) => new_ranges.range_in(key, data, leaf),
                    None => new_ranges.range(key, data),
                });
                visitor.extent(ExtentChange {
                    old: old.transpose()?,
                    new: new.transpose()?,
                })?;
            }
            _ => {}
        }
        Ok(())
    }

    fn range_builders(&self, inode: InodeNumber) -> [FileRangeBuilder; 2] {
        let of = |snapshot: &Snapshot| {
            FileRangeBuilder::new(snapshot.location(inode), snapshot.filesystem().sector_bytes())
        };
        [of(self.old.unwrap_or(self.new)), of(self.new)]
    }

    /// Ends the current inode.
    fn finish(&mut self, visitor: &mut dyn Visitor) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        if current.needs_all {
            self.take_all(&mut current, visitor)?;
        }
        if !current.begun {
            visitor.begin(&current.inode)?;
        }
        visitor.end()
    }

    /// Reads all items of an inode whose number belongs to different inodes in the two snapshots.
    fn take_all(&self, current: &mut Gathering, visitor: &mut dyn Visitor) -> Result<()> {
        let number = current.inode.number;
        let mut fresh = InodeState::new(number);
        fresh.old = current.inode.old;
        fresh.new = current.inode.new;
        if let Some(old) = self.old
            && fresh.old_present().is_some()
        {
            fresh.old_links = old.links(number)?;
        }
        current.inode = fresh;
        if current.inode.new_present().is_none() {
            return Ok(());
        }
        let first = Key::new(number.object_id(), ItemType::INODE_REF, 0);
        let last = Key::new(number.object_id(), ItemType(u8::MAX), u64::MAX);
        for item in self.new.tree().range(first..=last, ReadAhead::Forward) {
            let item = item.map_err(FsError::from)?;
            let difference = Difference {
                key: item.key(),
                old: None,
                new: Some(item.data()),
                new_leaf: None,
            };
            Self::part(self.new, self.old, current, &difference, visitor)?;
        }
        Ok(())
    }
}

fn parse_xattrs(of: &Snapshot, key: &Key, data: Option<&[u8]>, xattrs: &mut Vec<Attribute>) -> Result<()> {
    let Some(data) = data else { return Ok(()) };
    for entry in DirItems::parse(key, data).map_err(|error| of.corrupt(error))? {
        xattrs.push(Attribute {
            name: entry.name.to_vec(),
            value: entry.data.to_vec(),
        });
    }
    Ok(())
}

/// Returns the target that the extent item of a symbolic link holds.
fn link_target(of: &Snapshot, key: &Key, data: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let Some(data) = data else { return Ok(None) };
    let sector_bytes = of.filesystem().sector_bytes();
    let extent = FileExtent::parse(key, data, sector_bytes).map_err(|error| of.corrupt(error))?;
    match extent.body {
        FileExtentBody::Inline(target) if extent.compression == buttress_format::Compression::None => {
            Ok(Some(target.to_vec()))
        }
        _ => Err(of.names_error(InodeNumber::new(key.objectid.get()), NamesProblem::NoTarget)),
    }
}
