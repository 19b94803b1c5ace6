//! The block groups of a volume that is open for writing: what is used, what is free, what is pinned.
//!
//! A group's free ranges are loaded when something is to be allocated from it, from the free-space tree or, on volumes
//! without one, from the extent tree. From then on they live here: allocating takes a range out; what a transaction
//! freed stays out until nobody can need it any more ([`super::pins`]).
//!
//! What the free-space tree and the block group items have to be told is collected per group as *changes*: ranges that
//! became used and ranges that became free since the trees were last brought up to date. A range that did both is in
//! neither.
//!
//! Invariants: a byte is free here only if no committed extent, no extent of the running transaction, no pinned range
//! and nothing that is kept out covers it. `used` counts exactly the extents that the extent tree has, or will have when the
//! delayed references have run.

mod shares;

pub use shares::Share;

use super::free_ranges::FreeRanges;
use buttress_format::{
    BlockGroupFlags, BlockGroupItem, ByteCount, ItemType, Key, Logical, ObjectId, Profile,
};
use buttress_fs::error::{Defect, Result};
use core::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a group holds, as far as allocation cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// File content.
    Data,
    /// All trees but the chunk tree.
    Metadata,
    /// The chunk tree.
    System,
}

impl Purpose {
    /// The flag of groups for this purpose alone.
    pub const fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }
}

/// One block group.
#[derive(Debug)]
pub struct Group {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) chunk_objectid: ObjectId,
    /// Bytes of extents, as the item is to say.
    pub used: u64,
    /// What the item says; `None` when it has yet to be inserted.
    pub written_used: Option<u64>,
    /// `used` as of the last commit that is durable.
    pub durable_used: u64,
    /// Free ranges; `None` until loaded.
    pub free: Option<FreeRanges>,
    /// Whether addresses are handed out only after the host has given space for them ([`super::backing`]).
    pub is_backed: bool,
    /// Free ranges that the host has not given space for, once free ranges are loaded.
    pub unbacked: FreeRanges,
    /// Bytes that were freed and may not be used yet.
    pub pinned_bytes: u64,
    /// Bytes that were allocated, and that the extent tree does not have yet.
    pub allocated_bytes: u64,
    /// Free bytes that devices are being told of: nobody may use them meanwhile.
    pub trimming_bytes: u64,
    /// Bytes that no tree accounts for, once free ranges are loaded: what is kept out, and what was lost before.
    pub unaccounted_bytes: Option<u64>,
    /// Addresses that are never handed out, superblock copies among them.
    pub excluded_ranges: Vec<Range<u64>>,
    /// Nothing may be allocated from it: a relocation empties it, and a commit removes it once it is empty.
    pub read_only: bool,
    /// Whether the free-space tree has no item of it yet.
    pub needs_free_space_info: bool,
    /// Ranges that became used since the free-space tree was brought up to date.
    pub became_used: FreeRanges,
    /// Ranges that became free.
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

    /// A group that has no item yet, and nothing in it.
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

    /// Bytes that could be allocated now; an estimate for groups that are not loaded.
    pub fn free_bytes(&self) -> u64 {
        if self.read_only {
            return 0;
        }
        match &self.free {
            Some(free) => free.total_bytes(),
            // Their space on the host is known once they are loaded.
            None if self.is_backed => 0,
            None => self.estimated_free_bytes(),
        }
    }

    /// Bytes that could be allocated if the host gave space for them; an estimate for groups that are not loaded.
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

    /// Whether nothing was allocated from it and not used yet, as far as is known.
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

    /// An extent appeared in the extent tree: the free-space tree is to be told.
    fn note_used(&mut self, start: u64, length: u64) {
        let had_become_free = self.became_free.remove(start, length);
        if had_become_free < length {
            self.became_used.add(start, length);
        }
    }

    /// An extent left the extent tree: the free-space tree is to be told.
    fn note_freed(&mut self, start: u64, length: u64) {
        let had_become_used = self.became_used.remove(start, length);
        if had_become_used < length {
            self.became_free.add(start, length);
        }
    }
}

/// The profiles that new extents get, by purpose. `None`: the most redundant profile that the volume has for the purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetProfiles {
    /// For file data. In mixed block groups, this one counts for both.
    pub data: Option<Profile>,
    /// For tree blocks.
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

/// What is free for one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Free now, in groups that exist.
    pub free_bytes: u64,
    /// Free, and to be handed out once the host has given space for it.
    pub unbacked_bytes: u64,
    /// Freed, and pinned by commits that are under way or by readers.
    pub pinned_bytes: u64,
    /// In all groups.
    pub total_bytes: u64,
    /// Used.
    pub used_bytes: u64,
}

impl Room {
    /// Free, whether or not the host has given space for it.
    pub const fn with_unbacked(self) -> u64 {
        self.free_bytes.saturating_add(self.unbacked_bytes)
    }
}

/// All block groups, by address.
#[derive(Debug, Default)]
pub struct BlockGroups {
    groups: BTreeMap<u64, Group>,
    /// Where the last allocation for each purpose ended.
    cursors: BTreeMap<Purpose, u64>,
    /// What was summed up since the last change: asked for by every edit.
    rooms: Cell<[Option<Room>; 3]>,
    /// Groups of these profiles come first.
    targets: TargetProfiles,
}

/// What allocation found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A range: start and length.
    Range(u64, u64),
    /// The group that starts here must be loaded first.
    Load(u64),
    /// No group has room.
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

    /// Returns the groups in order, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.rooms.take();
        self.groups.values_mut()
    }

    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Group> {
        self.rooms.take();
        self.groups.get_mut(&start)
    }

    /// The group that holds an address.
    pub fn holding(&self, logical: u64) -> Option<&Group> {
        let (_, group) = self.groups.range(..=logical).next_back()?;
        (logical < group.end()).then_some(group)
    }

    /// Whether nothing may be allocated from the group that holds an address.
    pub fn is_read_only(&self, logical: u64) -> bool {
        self.holding(logical).is_some_and(|group| group.read_only)
    }

    /// The group that holds an address, to be changed.
    pub fn holding_mut(&mut self, logical: u64) -> Option<&mut Group> {
        self.rooms.take();
        let (_, group) = self.groups.range_mut(..=logical).next_back()?;
        (logical < group.end()).then_some(group)
    }

    /// What is free for a purpose.
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

    /// The profiles that new chunks get, and whose groups come first.
    pub(crate) const fn targets(&self) -> TargetProfiles {
        self.targets
    }

    /// Sets the profiles of new chunks.
    pub(crate) const fn set_targets(&mut self, targets: TargetProfiles) {
        self.targets = targets;
    }

    /// Whether a group has the profile that new extents for a purpose get, if one is set.
    fn is_preferred(&self, start: u64, purpose: Purpose) -> bool {
        let target = self.targets.of(purpose);
        let group = self.groups.get(&start);
        target.is_none_or(|target| group.is_some_and(|group| group.flags.profile() == Some(target)))
    }

    /// Returns the free bytes of the groups that new extents for a purpose get first.
    pub(crate) fn preferred_free_bytes(&self, purpose: Purpose) -> u64 {
        let serving = self.groups.values().filter(|group| group.serves(purpose));
        serving
            .filter(|group| self.is_preferred(group.start, purpose))
            .fold(0, |sum: u64, group| {
                sum.saturating_add(group.free_bytes())
                    .saturating_add(group.unbacked_bytes())
            })
    }

    /// What is pinned in all groups.
    pub fn pinned_bytes(&self) -> u64 {
        let pinned = self.groups.values().map(|group| group.pinned_bytes);
        pinned.fold(0, u64::saturating_add)
    }

    /// Where the last allocation for a purpose ended.
    pub fn cursor(&self, purpose: Purpose) -> u64 {
        self.cursors.get(&purpose).copied().unwrap_or(0)
    }

    /// The next allocation goes on from here: where one ended before that was for nothing.
    pub fn go_on_at(&mut self, purpose: Purpose, cursor: u64) {
        self.cursors.insert(purpose, cursor);
    }

    /// The groups in the order in which an allocation looks at them.
    pub fn in_turn(&self, cursor: u64) -> impl Iterator<Item = u64> {
        let current = self.holding(cursor).map(|group| group.start);
        let after = self.groups.range(cursor..).map(|(start, _)| *start);
        let before = self.groups.range(..cursor).map(|(start, _)| *start);
        current.into_iter().chain(after).chain(before)
    }

    /// The group that an allocation of so many bytes asks for first, where its free space is not loaded.
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

    /// Looks for `wanted` bytes for a purpose, going on from where the last allocation ended; where no place has as
    /// many, for the most that one place has, but at least `least`.
    ///
    /// # Errors
    /// That the group's shares do not add up.
    pub fn allocate(
        &mut self,
        purpose: Purpose,
        wanted: u64,
        least: u64,
        unit_bytes: u64,
    ) -> Result<Found, Defect> {
        self.rooms.take();
        let cursor = self.cursor(purpose);
        let mut order: Vec<u64> = self.in_turn(cursor).collect();
        if self.targets.of(purpose).is_some() {
            order.sort_by_key(|start| !self.is_preferred(*start, purpose));
        }
        // First a place for all of it, then the best part.
        for least_here in [wanted, least] {
            for start in &order {
                let Some(group) = self.groups.get_mut(start) else {
                    continue;
                };
                if !group.serves(purpose) || group.read_only || group.free_bytes() < least_here {
                    continue;
                }
                let Some(free) = group.free.as_mut() else {
                    return Ok(Found::Load(*start));
                };
                if let Some((found, length)) = free.allocate(wanted, least_here, unit_bytes, cursor) {
                    if !buttress_faults::on("ledger-allocation-uncounted") {
                        group.allocated_bytes = group.allocated_bytes.saturating_add(length);
                    }
                    group.balance()?;
                    self.cursors.insert(purpose, found.saturating_add(length));
                    return Ok(Found::Range(found, length));
                }
            }
            if least >= wanted {
                break;
            }
        }
        Ok(Found::Nothing)
    }
}
