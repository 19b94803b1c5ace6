//! The current space of a volume for `statfs(2)`, including the running transaction and dirty data.

use super::block_groups::{Group, Purpose};
use super::reservation::Need;
use crate::engine::Engine;
use crate::running_parts::SpaceFigures;
use buttress_accounts::space::Space;
use buttress_format::{BlockGroupFlags, ByteCount, Incompat, Profile};
use buttress_fs::error::defect::take;
use buttress_fs::error::{Defect, Result};

/// The items of one write, for which metadata must have space.
const ITEMS_OF_WRITE: u64 = 8;

/// The space of a volume in bytes of data: raw bytes divided by the number of copies of data. See
/// the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceNow {
    /// The size of a sector, in bytes.
    pub sector_bytes: u32,
    /// The size of the volume.
    pub size: ByteCount,
    /// The bytes that neither data nor metadata uses.
    pub free: ByteCount,
    /// The bytes that data can still use.
    pub available: ByteCount,
}

impl Engine {
    /// Returns the current space of the volume. Never waits for a commit, and reads nothing from
    /// devices.
    ///
    /// # Errors
    /// Fails with a [`Defect`] if a ledger of reservations does not add up.
    pub fn space_now(&self) -> Result<SpaceNow> {
        self.start_reading().space().now()
    }
}

impl SpaceFigures<'_> {
    fn now(&self) -> Result<SpaceNow> {
        let core = &self.running.core;
        let data_copies = self
            .data_profile()
            .map_or(1, |profile| u64::from(profile.copies().max(1)));
        let in_data = |raw: u64| raw.checked_div(data_copies).unwrap_or(0);
        let dirty = self.dirty_data_bytes()?;
        let used = core
            .groups
            .iter()
            .fold(dirty.saturating_mul(data_copies), |sum, group| {
                sum.saturating_add(in_use(group).saturating_mul(copies(group.flags)))
            });
        let size = in_data(core.devices.total_bytes());
        let available = self.available_bytes()?;
        let free = size.saturating_sub(in_data(used));
        Ok(SpaceNow {
            sector_bytes: core.format.sector_bytes,
            size: ByteCount::new(size),
            free: ByteCount::new(free.max(available)),
            available: ByteCount::new(available),
        })
    }

    /// Returns the bytes reserved by dirty data, without space that is only reserved ahead.
    fn dirty_data_bytes(&self) -> Result<u64, Defect> {
        let mut dirty = self.running.core.reserved_data_bytes;
        let what = "more is reserved ahead than is promised to data";
        take(&mut dirty, self.running.core.ahead.bytes(), what)?;
        Ok(dirty)
    }

    fn data_profile(&self) -> Option<Profile> {
        let data = self
            .running
            .core
            .groups
            .iter()
            .filter(|group| group.serves(Purpose::Data));
        data.last()?.flags.profile()
    }

    /// Returns the bytes that data can still use: free, pinned only by commits, or in possible new
    /// chunks.
    fn available_bytes(&self) -> Result<u64, Defect> {
        if !self.can_take_items() {
            return Ok(0);
        }
        let core = &self.running.core;
        let is_mixed = core.has(Incompat::MIXED_GROUPS);
        let room = core.groups.room(Purpose::Data);
        let pinned = room
            .pinned_bytes
            .saturating_sub(self.running.core.pinned_by_readers().get());
        let promised = match is_mixed {
            true => self
                .running
                .block_reserve()
                .metadata_bytes(Need::places(ITEMS_OF_WRITE)),
            false => 0,
        };
        let profile = self.data_profile().unwrap_or(Profile::Single);
        let spaces = core
            .devices
            .rooms
            .iter()
            .filter(|room| core.device_takes_chunks(room.item.uuid, profile))
            .map(|room| room.allocatable().total_bytes());
        let space = room
            .free_bytes
            .saturating_add(pinned)
            .saturating_add(Space::allocatable_bytes(profile, spaces));
        // Reservations may exceed the bytes that are free now, because edits may still make chunks.
        Ok(space
            .saturating_sub(promised)
            .saturating_sub(self.dirty_data_bytes()?))
    }

    /// Returns whether metadata has space for the items of a write, or a chunk for them can be
    /// made.
    fn can_take_items(&self) -> bool {
        let room = self.running.core.groups.room(Purpose::Metadata);
        let wanted = self
            .running
            .block_reserve()
            .metadata_bytes(Need::places(ITEMS_OF_WRITE));
        room.free_bytes.saturating_add(room.pinned_bytes) >= wanted
            || self.running.core.chunk_planner().can_make(Purpose::Metadata)
    }
}

/// Returns the bytes of a block group that are in extents, or allocated for data without an extent
/// item yet.
fn in_use(group: &Group) -> u64 {
    group.used.saturating_add(group.allocated_bytes)
}

fn copies(flags: BlockGroupFlags) -> u64 {
    flags
        .profile()
        .map_or(1, |profile| u64::from(profile.copies().max(1)))
}
