//! Block groups that are being emptied: no allocation uses them, and a commit removes them once
//! nothing is left.
//!
//! Invariants:
//! - Before a block group is marked, other groups have space for all of its content. Chunks are
//!   planned before one is made, so that a volume without space stays as it was.
//! - A block group that was not emptied takes extents again at the end of the relocation.

use super::left::Removal;
use crate::block_groups::{Group, Purpose};
use crate::engine::Engine;
use crate::need::Need;
use crate::running_parts::RelocationStep;
use buttress_exact::Exact as _;
use buttress_format::superblock::SYSTEM_CHUNK_ARRAY_BYTES;
use buttress_format::{BlockGroupFlags, ByteCount, DeviceId, Logical, Superblock};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::progress::Progress;
use core::time::Duration;

/// The nodes of the chunk tree besides the nodes that move.
const SYSTEM_NODES: u64 = 16;

/// The number of places of edits that may run beside a relocation.
const PLACES_BESIDE: u64 = 64;

/// The longest wait. A check commits, and a reader such as a long send must not cause many commits.
const READERS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The first wait for readers of older states before a job checks again. Later waits double.
const READERS_WAIT: Duration = Duration::from_millis(20);

/// How long a job that leaves groups waits for readers first.
const LEFT_WAIT: Duration = Duration::from_millis(300);

/// The number of commits without readers that remove an empty group.
const COMMITS_MAX: usize = 8;

/// The plan of a job before its first change.
#[derive(Debug, Default)]
struct Planned {
    /// The device, offset and length of device extents, taken while the job plans.
    places: Vec<(DeviceId, u64, u64)>,
    /// The bytes of the superblock's array for planned system chunks.
    array_bytes: usize,
}

const PURPOSES: [Purpose; 3] = [Purpose::System, Purpose::Metadata, Purpose::Data];

/// The block groups that a relocation job empties. The block groups accept new extents again when
/// this value is dropped.
#[derive(Debug)]
pub(super) struct Emptying<'a> {
    engine: &'a Engine,
    pub(super) groups: Vec<Logical>,
}

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        let mut running = self.engine.shared.running.lock();
        for start in &self.groups {
            if let Some(group) = running.core.groups.get_mut(start.get()) {
                group.read_only = false;
            }
        }
    }
}

impl<'a> Emptying<'a> {
    /// Marks groups. Marked block groups get no more extents.
    pub(super) fn begin(engine: &'a Engine, groups: &[Logical]) -> Result<Self> {
        let mut emptying = Self {
            engine,
            groups: Vec::new(),
        };
        let (mut handle, ()) = engine.retry(engine.start_unchecked(), |handle| {
            handle.relocation_step().require_space_for(groups)
        })?;
        for start in groups {
            if let Some(group) = handle.core.groups.get_mut(start.get())
                && group.start == start.get()
            {
                group.read_only = true;
                emptying.groups.push(*start);
            }
        }
        let (handle, ()) = engine.retry(handle, |handle| handle.relocation_step().make_space(groups))?;
        drop(handle);
        // After this commit, nothing is overwritten in place in these block groups. The commit
        // waits for extents that are being overwritten in place.
        engine.commit()?;
        Ok(emptying)
    }

    /// Returns a set of groups that are closed already. Makes no space for their content.
    pub(super) fn of_closed(engine: &'a Engine, groups: &[Logical]) -> Result<Self> {
        let handle = engine.start_reading();
        let is_closed = |start: &&Logical| {
            let group = handle.core.groups.holding(start.get());
            group.is_some_and(|group| group.start == start.get() && group.read_only)
        };
        let groups = groups.iter().filter(is_closed).copied().collect();
        drop(handle);
        // As for groups that this module closes, nothing is overwritten in place after this commit.
        engine.commit()?;
        Ok(Self { engine, groups })
    }

    /// Returns whether a block group holds no extent; true for a block group that is removed. A new group may
    /// begin at the address of a removed group, and the job leaves the new group alone.
    pub(super) fn is_empty(&self, start: Logical) -> bool {
        self.bytes_left(start) == [0, 0]
    }

    /// Returns the used bytes of a block group, and the bytes that writers allocated there and have
    /// not used yet. Both are 0 for a block group that is removed.
    pub(super) fn bytes_left(&self, start: Logical) -> [u64; 2] {
        let running = self.engine.shared.running.lock();
        let group = running
            .core
            .groups
            .holding(start.get())
            .filter(|group| group.start == start.get() && group.read_only);
        group.map_or([0, 0], |group| [group.used, group.allocated_bytes])
    }

    /// Returns the bytes in use in all block groups of this set.
    pub(super) fn used_bytes(&self) -> u64 {
        let running = self.engine.shared.running.lock();
        let used = self
            .groups
            .iter()
            .filter_map(|start| running.core.groups.holding(start.get()));
        used.fold(0, |sum: u64, group| sum.exact_add(group.used))
    }

    /// Has commits remove the groups. Readers of older states keep groups from being removed: the
    /// job waits for the readers, or leaves such groups, as the options say. Returns the number of
    /// groups that are left.
    pub(super) fn remove(&mut self, progress: &Progress, removal: Removal) -> Result<usize> {
        let mut idle = 0_usize;
        let mut pause = READERS_WAIT;
        let mut patience = match removal {
            Removal::Left if self.engine.relocations().has_left() => Duration::ZERO,
            Removal::Awaited | Removal::Left => LEFT_WAIT,
        };
        loop {
            {
                let mut handle = self.engine.start_unchecked();
                if !self
                    .groups
                    .iter()
                    .any(|start| handle.relocation_step().is_emptied(*start))
                {
                    break;
                }
                // A commit removes empty block groups, so the next commit must not be skipped as
                // unchanged.
                handle.core.superblock_changed = true;
            }
            self.engine.commit_metadata()?;
            if self.is_held() {
                progress.check()?;
                if removal == Removal::Left && patience.is_zero() {
                    return Ok(self.leave());
                }
                std::thread::sleep(pause);
                // Clamp: the last wait may be longer than the rest of the time.
                patience = patience.saturating_sub(pause);
                pause = pause
                    .checked_mul(2)
                    .map_or(READERS_WAIT_MAX, |longer| longer.min(READERS_WAIT_MAX));
                continue;
            }
            idle = idle.exact_add(1);
            if idle > COMMITS_MAX {
                return Err(Defect::new("an empty block group is not removed").into());
            }
        }
        // The space of the emptied chunks can be used again once this commit is durable.
        self.engine.commit_metadata()?;
        Ok(0)
    }

    /// Returns whether readers need the old content of the groups, or writers or a trim hold a part
    /// of their space.
    fn is_held(&self) -> bool {
        let handle = self.engine.start_reading();
        let mut left = self
            .groups
            .iter()
            .filter_map(|start| handle.core.groups.holding(start.get()));
        left.any(|group| group.read_only && group.is_held())
    }

    /// Leaves the groups that still exist to a later commit. The groups keep their mark.
    fn leave(&mut self) -> usize {
        let mut handle = self.engine.start_reading();
        let groups = core::mem::take(&mut self.groups);
        let left: Vec<Logical> = groups
            .into_iter()
            .filter(|start| handle.relocation_step().is_emptied(*start))
            .collect();
        handle.core.left_groups.extend(left.iter().copied());
        left.len()
    }
}

impl RelocationStep<'_> {
    /// The bytes that groups hold for a purpose. Mixed block groups count as data groups.
    fn used_by(&self, groups: &[Logical], purpose: Purpose) -> u64 {
        let counts = |group: &&Group| {
            let is_mixed = group
                .flags
                .contains(BlockGroupFlags::DATA | BlockGroupFlags::METADATA);
            group.serves(purpose) && !(is_mixed && purpose == Purpose::Metadata)
        };
        groups
            .iter()
            .filter_map(|start| self.running.core.groups.holding(start.get()))
            .filter(counts)
            .fold(0, |sum: u64, group| sum.exact_add(group.used))
    }

    fn purposes_of(&self, groups: &[Logical]) -> Vec<Purpose> {
        let there = || {
            groups
                .iter()
                .filter_map(|start| self.running.core.groups.holding(start.get()))
        };
        let serves = |purpose: &Purpose| there().any(|group| group.serves(*purpose));
        PURPOSES.into_iter().filter(serves).collect()
    }

    /// Returns the bytes that must be free for a purpose once these block groups accept no more
    /// allocations.
    pub(crate) fn wanted_for(&self, groups: &[Logical], purpose: Purpose) -> u64 {
        let used = self.used_by(groups, purpose);
        let beside = match purpose {
            Purpose::System => self.running.core.node_bytes().get().exact_mul(SYSTEM_NODES),
            Purpose::Metadata => self
                .running
                .block_reserve()
                .metadata_bytes(Need::freeing(PLACES_BESIDE)),
            Purpose::Data => self
                .running
                .core
                .reserved_data_bytes
                .max(self.running.core.sector_bytes()),
        };
        used.exact_add(beside)
    }

    /// The free bytes for a purpose outside of the groups to be emptied.
    pub(crate) fn free_outside(&self, groups: &[Logical], purpose: Purpose) -> u64 {
        let inside = groups
            .iter()
            .filter_map(|start| self.running.core.groups.holding(start.get()));
        let target = self.running.core.groups.targets().of(purpose);
        let counts = |group: &&Group| {
            let has_target = target.is_none_or(|target| group.flags.profile() == Some(target));
            group.serves(purpose) && has_target
        };
        let inside = inside.filter(counts).fold(0_u64, |sum, group| {
            sum.exact_add(group.free_bytes())
                .exact_add(group.unbacked_bytes())
        });
        // Clamp: groups that are already marked have no free bytes left.
        self.running
            .core
            .groups
            .preferred_free_bytes(purpose)
            .saturating_sub(inside)
    }

    /// Fails, before anything changed, if other groups and new chunks have no space for the content
    /// of these groups.
    fn require_space_for(&mut self, groups: &[Logical]) -> Result<()> {
        let mut planned = Planned::default();
        let mut lack = None;
        let purposes = self.purposes_of(groups);
        if !purposes.contains(&Purpose::System)
            && self.running.core.chunk_planner().lacks_converted_system_room()
        {
            // The first new chunk makes this system chunk too, if its space exists.
            self.plan_places(Purpose::System, &mut planned);
        }
        for purpose in purposes {
            let wanted = self.wanted_for(groups, purpose);
            let mut free = self.free_outside(groups, purpose);
            while free < wanted {
                match self.plan_places(purpose, &mut planned) {
                    Some(length) => free = free.exact_add(length),
                    None => break,
                }
            }
            if free < wanted {
                lack = lack.or(Some((purpose, wanted.exact_sub(free))));
            }
        }
        self.running.core.devices.release(&planned.places);
        match lack {
            None => Ok(()),
            Some((Purpose::System, _)) if self.system_array_is_full(planned.array_bytes) => {
                Err(self.no_space_in_array())
            }
            Some((purpose, bytes)) => Err(self.no_space_to_move(purpose, bytes)),
        }
    }

    /// Plans one more chunk, and takes its places until the planning ends. Returns the
    /// length of the planned chunk.
    fn plan_places(&mut self, purpose: Purpose, planned: &mut Planned) -> Option<u64> {
        let planner = self.running.core.chunk_planner();
        let plan = planner.plan_beside(purpose, planned.array_bytes)?;
        let before = planned.places.len();
        for (device, _, _) in &plan.stripes {
            match self.running.core.devices.take(*device, plan.stripe_length) {
                Some(start) => planned.places.push((*device, start, plan.stripe_length)),
                None => break,
            }
        }
        if purpose == Purpose::System {
            let bytes = Superblock::system_chunk_bytes_of(plan.stripes.len());
            planned.array_bytes = planned.array_bytes.exact_add(bytes);
        }
        let is_whole = planned.places.len().exact_sub(before) == plan.stripes.len();
        is_whole.then_some(plan.length)
    }

    /// Returns whether the superblock's array has no space for a system chunk of the profile that
    /// new ones have.
    fn system_array_is_full(&self, planned_bytes: usize) -> bool {
        let planner = self.running.core.chunk_planner();
        let (_, profile) = planner.profile_for(Purpose::System);
        planner.system_stripes_max(planned_bytes) < usize::from(profile.min_stripes())
    }

    fn no_space_in_array(&self) -> Error {
        let core = &self.running.core;
        let (_, profile) = core.chunk_planner().profile_for(Purpose::System);
        // Clamp: an array never has more free bytes than it has bytes.
        let taken = SYSTEM_CHUNK_ARRAY_BYTES.saturating_sub(core.system_array_free_bytes());
        Error::SystemArrayFull {
            taken: ByteCount::of(taken),
            capacity: ByteCount::of(SYSTEM_CHUNK_ARRAY_BYTES),
            wanted: ByteCount::of(Superblock::system_chunk_bytes_of(profile.min_stripes().into())),
        }
    }

    fn no_space_to_move(&self, purpose: Purpose, bytes: u64) -> Error {
        Error::NoSpace {
            what: match purpose {
                Purpose::Data => "data in other block groups",
                Purpose::Metadata => "metadata in other block groups",
                Purpose::System => "the chunk tree in other block groups",
            },
            wanted: ByteCount::new(bytes),
            pinned_by_readers: self.running.core.pinned_by_readers(),
            reclaimable: self.running.core.groups.reclaimable(purpose),
        }
    }

    /// Makes chunks for the content that these block groups hold. If a block is missing, making
    /// chunks stops between two chunks.
    fn make_space(&mut self, groups: &[Logical]) -> Result<()> {
        for purpose in self.purposes_of(groups) {
            loop {
                let wanted = self.wanted_for(groups, purpose);
                let free = self.free_outside(groups, purpose);
                if free >= wanted {
                    break;
                }
                if !self.running.chunks().allocate(purpose)? {
                    return Err(self.no_space_to_move(purpose, wanted.exact_sub(free)));
                }
            }
        }
        Ok(())
    }
}
