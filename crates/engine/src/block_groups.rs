//! The block groups of a volume that is open for writing: their used, free and pinned space.
//!
//! The engine loads a group's free ranges at the first allocation from the group. The free ranges
//! come from the free-space tree or, on volumes without one, from the extent tree. After loading,
//! this module holds the free ranges of the block group. An allocation removes a range from the
//! free ranges. A freed range stays out of the free ranges until no reader and no superblock needs
//! it ([`super::pins`]).
//!
//! Each group also collects *changes* for the free-space tree and the block group items. A change
//! is a range that became used or free since the free-space tree and the block group items were
//! last brought up to date. A range that became used and free again, or the reverse, does not count
//! as changed.
//!
//! Invariants:
//! - A byte counts as free only if no committed extent, no extent of the running transaction, no
//!   pinned range and no excluded range covers it.
//! - `used` always counts exactly the extents that the extent tree has, or will have after the
//!   delayed references are applied.

mod allocating;
mod shares;

pub use shares::Share;

use super::free_ranges::FreeRanges;
use buttress_exact::Exact as _;
use buttress_format::{
    BlockGroupFlags, BlockGroupItem, ByteCount, ItemType, Key, Logical, ObjectId, Profile,
};
use core::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// The content for which a group allocates space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// File content.
    Data,
    /// Tree blocks of all trees except the chunk tree.
    Metadata,
    /// Space for the chunk tree.
    System,
}

impl Purpose {
    /// Returns the flag of block groups that serve only this purpose.
    pub const fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }
}

/// A block group as the allocator sees it.
#[derive(Debug)]
pub struct Group {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) chunk_objectid: ObjectId,
    /// Bytes in extents, as the block group item will record them.
    pub used: u64,
    /// The used bytes that the item on disk records; `None` if the item is not yet inserted.
    pub written_used: Option<u64>,
    /// The used bytes as of the last durable commit.
    pub durable_used: u64,
    /// Free ranges; `None` until the first allocation loads them.
    pub free: Option<FreeRanges>,
    /// Whether the allocator hands out addresses only after the host has reserved space for them
    /// ([`super::backing`]).
    pub is_backed: bool,
    /// Free ranges without space on the host, once the free ranges are loaded.
    pub unbacked: FreeRanges,
    /// The group's bytes that were freed and may not be reused yet.
    pub pinned_bytes: u64,
    /// Bytes that were allocated and that have no extent item yet.
    pub allocated_bytes: u64,
    /// Free bytes that devices are discarding. No edit may allocate these bytes while devices
    /// discard them.
    pub trimming_bytes: u64,
    /// Bytes of the group that no tree accounts for, once the free ranges are loaded: excluded
    /// ranges, and space lost before opening.
    pub unaccounted_bytes: Option<u64>,
    /// Addresses that the allocator never hands out, such as superblock copies.
    pub excluded_ranges: Vec<Range<u64>>,
    /// Whether allocation from this block group is forbidden.
    pub read_only: bool,
    /// Whether allocations use this block group only if no other group has space. Its free space
    /// counts like any other.
    pub is_last_resort: bool,
    /// Whether the free-space tree has no item for this block group yet.
    pub needs_free_space_info: bool,
    /// Ranges that became used since the free-space tree was last brought up to date.
    pub became_used: FreeRanges,
    /// Ranges that became free since the free-space tree was last brought up to date.
    pub became_free: FreeRanges,
}

impl Group {
    pub(crate) fn from_item(item: &BlockGroupItem) -> Self {
        let used = item.used.get();
        Self {
            used,
            written_used: Some(used),
            durable_used: used,
            ..Self::new(item.start, item.length, item.flags, item.chunk_objectid)
        }
    }

    /// Returns an empty group that has no block group item yet.
    pub fn new(start: Logical, length: ByteCount, flags: BlockGroupFlags, chunk_objectid: ObjectId) -> Self {
        Self {
            start: start.get(),
            length: length.get(),
            flags,
            chunk_objectid,
            used: 0,
            written_used: None,
            durable_used: 0,
            free: None,
            is_backed: false,
            unbacked: FreeRanges::default(),
            pinned_bytes: 0,
            allocated_bytes: 0,
            trimming_bytes: 0,
            unaccounted_bytes: None,
            excluded_ranges: Vec::new(),
            read_only: false,
            is_last_resort: false,
            needs_free_space_info: false,
            became_used: FreeRanges::default(),
            became_free: FreeRanges::default(),
        }
    }

    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    pub(crate) const fn serves(&self, purpose: Purpose) -> bool {
        self.flags.contains(purpose.flag())
    }

    /// Returns the bytes that could be allocated now; an estimate if the free ranges of the block
    /// group are not loaded.
    pub fn free_bytes(&self) -> u64 {
        if self.read_only {
            return 0;
        }
        match &self.free {
            Some(free) => free.total_bytes(),
            // The block group's space on the host is unknown until its free ranges are loaded.
            None if self.is_backed => 0,
            None => self.estimated_free_bytes(),
        }
    }

    /// Returns the bytes that could be allocated after the host reserves space. The value is an
    /// estimate if the group is not loaded.
    pub fn unbacked_bytes(&self) -> u64 {
        match &self.free {
            _ if self.read_only || !self.is_backed => 0,
            Some(_) => self.unbacked.total_bytes(),
            None => self.estimated_free_bytes(),
        }
    }

    fn estimated_free_bytes(&self) -> u64 {
        let taken = self.excluded_ranges.iter().fold(0_u64, |sum, range| {
            sum.saturating_add(range.end.saturating_sub(range.start))
        });
        self.length
            .saturating_sub(self.used.max(self.durable_used))
            .saturating_sub(self.pinned_bytes)
            .saturating_sub(self.allocated_bytes)
            .saturating_sub(self.trimming_bytes)
            .saturating_sub(taken)
    }

    pub(crate) fn item_key(&self) -> Key {
        Key::new(ObjectId::new(self.start), ItemType::BLOCK_GROUP_ITEM, self.length)
    }

    pub(crate) fn item(&self) -> BlockGroupItem {
        BlockGroupItem {
            start: Logical::new(self.start),
            length: ByteCount::new(self.length),
            used: ByteCount::new(self.used),
            chunk_objectid: self.chunk_objectid,
            flags: self.flags,
        }
    }

    /// Returns whether readers need freed content of the group, or writers or a trim hold a part of
    /// its space.
    pub(crate) const fn is_held(&self) -> bool {
        self.pinned_bytes > 0 || self.allocated_bytes > 0 || self.trimming_bytes > 0
    }

    /// Returns whether the group has no allocated range without an extent item, as far as is known.
    pub fn is_untouched(&self) -> bool {
        match &self.free {
            Some(free) => {
                let taken = self.excluded_ranges.iter().fold(0_u64, |sum, range| {
                    sum.saturating_add(range.end.saturating_sub(range.start))
                });
                let free = free.total_bytes().saturating_add(self.unbacked.total_bytes());
                free.saturating_add(taken) >= self.length
            }
            None => true,
        }
    }

    /// Records that an extent appeared in the extent tree, for the free-space tree.
    fn note_used(&mut self, start: u64, length: u64) {
        let had_become_free = self.became_free.remove(start, length);
        if had_become_free < length {
            self.became_used.add(start, length);
        }
    }

    /// Records that an extent left the extent tree, for the free-space tree.
    fn note_freed(&mut self, start: u64, length: u64) {
        let had_become_used = self.became_used.remove(start, length);
        if had_become_used < length {
            self.became_free.add(start, length);
        }
    }
}

/// The profiles that new extents get, by purpose. `None` selects the most redundant profile that
/// the volume has for that kind of extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetProfiles {
    /// The profile of file data. In mixed block groups, this profile counts for data and metadata.
    pub data: Option<Profile>,
    /// The profile of new tree blocks.
    pub metadata: Option<Profile>,
    /// For the chunk tree.
    pub system: Option<Profile>,
}

impl TargetProfiles {
    /// The profile for a purpose.
    pub(crate) const fn of(self, purpose: Purpose) -> Option<Profile> {
        match purpose {
            Purpose::Data => self.data,
            Purpose::Metadata => self.metadata,
            Purpose::System => self.system,
        }
    }
}

/// The space of all block groups that serve one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes that are free now in existing groups.
    pub free_bytes: u64,
    /// Free bytes that the allocator hands out once the host has reserved space for them.
    pub unbacked_bytes: u64,
    /// Freed bytes that commits in progress or readers keep pinned.
    pub pinned_bytes: u64,
    /// Bytes of all groups that serve this purpose.
    pub total_bytes: u64,
    /// Bytes in use by extents.
    pub used_bytes: u64,
}

impl Room {
    /// Returns the free bytes, with and without space on the host.
    pub const fn with_unbacked(self) -> u64 {
        self.free_bytes.saturating_add(self.unbacked_bytes)
    }
}

/// All block groups, by address.
#[derive(Debug, Default)]
pub struct BlockGroups {
    groups: BTreeMap<u64, Group>,
    /// The end of the last allocation for each purpose.
    cursors: BTreeMap<Purpose, u64>,
    /// The space of all block groups, summed for each purpose and cached until the next change,
    /// because every edit reads it.
    rooms: Cell<[Option<Room>; 3]>,
    /// Allocations try groups of these profiles first.
    targets: TargetProfiles,
    /// Whether commits keep groups that stay empty. A job that makes groups ahead of their content sets this.
    keeps_empty: bool,
}

/// The result of an attempt to allocate.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// An allocated range: start and length.
    Range(u64, u64),
    /// The caller must first load the free ranges of the block group at this address.
    Load(u64),
    /// No block group has enough space.
    Nothing,
}

impl BlockGroups {
    pub(crate) fn insert(&mut self, group: Group) {
        self.rooms.take();
        self.groups.insert(group.start, group);
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Group> {
        self.rooms.take();
        self.groups.remove(&start)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// Returns the groups in order of address, for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.rooms.take();
        self.groups.values_mut()
    }

    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Group> {
        self.rooms.take();
        self.groups.get_mut(&start)
    }

    /// Returns the group that contains an address.
    pub fn holding(&self, logical: u64) -> Option<&Group> {
        let (_, group) = self.groups.range(..=logical).next_back()?;
        (logical < group.end()).then_some(group)
    }

    /// Whether nothing may be allocated from the group that holds an address.
    pub fn is_read_only(&self, logical: u64) -> bool {
        self.holding(logical).is_some_and(|group| group.read_only)
    }

    /// Returns the block group that holds an address, for a change.
    pub fn holding_mut(&mut self, logical: u64) -> Option<&mut Group> {
        self.rooms.take();
        let (_, group) = self.groups.range_mut(..=logical).next_back()?;
        (logical < group.end()).then_some(group)
    }

    /// Returns the space of all groups for a purpose.
    pub fn room(&self, purpose: Purpose) -> Room {
        let mut rooms = self.rooms.get();
        let [data, metadata, system] = &mut rooms;
        let known = match purpose {
            Purpose::Data => data,
            Purpose::Metadata => metadata,
            Purpose::System => system,
        };
        let room = *known.get_or_insert_with(|| self.sum_up(purpose));
        self.rooms.set(rooms);
        room
    }

    fn sum_up(&self, purpose: Purpose) -> Room {
        let mut room = Room::default();
        for group in self.groups.values().filter(|group| group.serves(purpose)) {
            room.free_bytes = room.free_bytes.saturating_add(group.free_bytes());
            room.unbacked_bytes = room.unbacked_bytes.saturating_add(group.unbacked_bytes());
            room.pinned_bytes = room.pinned_bytes.saturating_add(group.pinned_bytes);
            room.total_bytes = room.total_bytes.saturating_add(group.length);
            room.used_bytes = room.used_bytes.saturating_add(group.used);
        }
        room
    }

    /// The profiles of new chunks; new extents go first to block groups with these profiles.
    pub(crate) const fn targets(&self) -> TargetProfiles {
        self.targets
    }

    /// Sets the profiles of new chunks.
    pub(crate) const fn set_targets(&mut self, targets: TargetProfiles) {
        self.targets = targets;
    }

    /// Whether commits keep groups that stay empty.
    pub(crate) const fn keeps_empty(&self) -> bool {
        self.keeps_empty
    }

    /// Lets commits keep groups that stay empty, or remove them.
    pub(crate) const fn set_keeps_empty(&mut self, keeps: bool) {
        self.keeps_empty = keeps;
    }

    /// Whether a block group has the profile that new extents for a purpose get, if such a profile
    /// is set.
    fn is_preferred(&self, start: u64, purpose: Purpose) -> bool {
        let target = self.targets.of(purpose);
        let group = self.groups.get(&start);
        target.is_none_or(|target| group.is_some_and(|group| group.flags.profile() == Some(target)))
    }

    /// Returns the free bytes of the block groups from which new extents for a purpose come first.
    pub(crate) fn preferred_free_bytes(&self, purpose: Purpose) -> u64 {
        let serving = self.groups.values().filter(|group| group.serves(purpose));
        serving
            .filter(|group| self.is_preferred(group.start, purpose))
            .fold(0, |sum: u64, group| {
                sum.exact_add(group.free_bytes())
                    .exact_add(group.unbacked_bytes())
            })
    }

    /// Returns the pinned bytes of all groups.
    pub fn pinned_bytes(&self) -> u64 {
        let pinned = self.groups.values().map(|group| group.pinned_bytes);
        pinned.fold(0, u64::saturating_add)
    }

    /// Returns the end of the last allocation for a purpose.
    pub fn cursor(&self, purpose: Purpose) -> u64 {
        self.cursors.get(&purpose).copied().unwrap_or(0)
    }

    /// Sets the address from which the next allocation for a purpose continues, in place of the
    /// last allocation's end.
    pub fn go_on_at(&mut self, purpose: Purpose, cursor: u64) {
        self.cursors.insert(purpose, cursor);
    }

    /// Returns the starts of block groups in the order in which an allocation tries them.
    pub fn in_turn(&self, cursor: u64) -> impl Iterator<Item = u64> {
        let current = self.holding(cursor).map(|group| group.start);
        let after = self.groups.range(cursor..).map(|(start, _)| *start);
        let before = self.groups.range(..cursor).map(|(start, _)| *start);
        current.into_iter().chain(after).chain(before)
    }

    /// Returns the block group that an allocation of `wanted` bytes tries first, if its free space
    /// is not loaded.
    pub fn to_load(&self, purpose: Purpose, wanted: u64) -> Option<&Group> {
        let mut order: Vec<u64> = self.in_turn(self.cursor(purpose)).collect();
        if self.targets.of(purpose).is_some() {
            order.sort_by_key(|start| !self.is_preferred(*start, purpose));
        }
        order
            .into_iter()
            .filter_map(|start| self.groups.get(&start))
            .find(|group| group.serves(purpose) && !group.read_only && group.free_bytes() >= wanted)
            .filter(|group| group.free.is_none())
    }
}
