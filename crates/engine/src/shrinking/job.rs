//! Carries out the plan of a shrink.
//!
//! The job holds the lock of device changes, and keeps ordinary edits from making chunks. It refuses
//! before any change. If the volume no longer fits its plan, it plans again: metadata can grow while
//! content moves. The module `cutting` has the end of the job.

use super::closing::NoChunks;
use super::cutting::Sizes;
use super::places::profile_of;
use super::plan::{GroupRef, NewChunk, Plan, Step};
use super::{LEAST_SPARE_BYTES, SPARE_BYTES, ShrinkSummary, ShrunkDevice, plan_of, plan_shrink, summary_of};
use crate::areas::Shrinking;
use crate::block_groups::Purpose;
use crate::chunks;
use crate::exclusive::Change;
use crate::membership::require_current;
use crate::relocation::RelocationOptions;
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, ByteCount, DeviceId, Logical, Physical, Uuid};
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::progress::Progress;
use buttress_volume::{MembershipRefusal, PackingObstacle};
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// How often the job plans again.
const PLANS_MAX: usize = 4;

/// Metadata may take one byte in this number of the free space that the plan left for it.
const HEADROOM_PART: u64 = 4;

impl Shrinking<'_> {
    /// Moves the content of the volume towards the start of its devices, and cuts the devices after
    /// it, with `slack` free bytes on each device. Nothing changes if no device would get smaller.
    /// Image files grow first if the content needs space beside itself, and are cut last.
    ///
    /// Only the caller may use the volume meanwhile: the job waits for views of older states.
    ///
    /// # Errors
    /// Fails before any change if a device is missing or belongs to a seed, or if a device that
    /// cannot grow has too little unallocated space. [`Error::Cancelled`] leaves a whole volume
    /// that the next shrink continues with. [`MembershipRefusal::NotPacked`] if the volume no longer
    /// fits any plan. Errors of devices, trees and extents as for
    /// [`relocate`](crate::areas::Relocations::relocate).
    ///
    /// After an error, devices that were enlarged get their earlier sizes again, unless much
    /// content is past their earlier ends.
    pub fn shrink(&self, slack: ByteCount, progress: &Progress) -> Result<ShrinkSummary> {
        self.pack(slack, progress, &|_| None)
    }

    /// Packs the volume as [`shrink`](Self::shrink) does, and cuts one device at `size`. Other
    /// devices keep their sizes.
    ///
    /// # Errors
    /// As for [`shrink`](Self::shrink). [`MembershipRefusal::TooSmall`] before any change if the
    /// packed content does not fit into the size.
    pub fn shrink_device(
        &self,
        device: DeviceId,
        size: ByteCount,
        progress: &Progress,
    ) -> Result<ShrinkSummary> {
        self.require_packed_size(device, size)?;
        self.pack(ByteCount::ZERO, progress, &|shrunk| {
            Some(match shrunk.device == device {
                true => size,
                false => shrunk.before,
            })
        })
    }

    /// Refuses a size that is too small for the content of a device after packing.
    ///
    /// # Errors
    /// [`MembershipRefusal::TooSmall`], with the smallest size; block groups or extents cannot be read.
    pub fn require_packed_size(&self, device: DeviceId, size: ByteCount) -> Result<()> {
        let slot = self.engine.devices().member(device)?;
        let summary = plan_shrink(&self.engine.view(), ByteCount::ZERO)?;
        let found = summary.devices.iter().find(|shrunk| shrunk.device == device);
        let least = found.map_or(ByteCount::ZERO, |shrunk| shrunk.after);
        if size >= least {
            return Ok(());
        }
        let name = slot
            .device()
            .map_or_else(String::new, |own| own.name().to_owned());
        Err(buttress_volume::Error::from(MembershipRefusal::TooSmall {
            device: name,
            size,
            least,
        })
        .into())
    }

    /// Packs the volume and cuts its devices. `size_of` returns a size that is not the smallest.
    fn pack(
        &self,
        slack: ByteCount,
        progress: &Progress,
        size_of: &dyn Fn(&ShrunkDevice) -> Option<ByteCount>,
    ) -> Result<ShrinkSummary> {
        let _alone = self.engine.begin_change(Change::Resize)?;
        // A reclaim between two steps would put extents where the plan has none.
        let _way = self.engine.shared.reclaim.give_way();
        self.engine.require_writing()?;
        self.engine.commit()?;
        let before = self.device_sizes()?;
        let packed = self.pack_and_cut(&before, slack, progress, size_of);
        packed.inspect_err(|_| {
            // The first error matters more than a device that stays larger.
            let _larger = self.return_sizes(&before);
        })
    }

    fn pack_and_cut(
        &self,
        before: &BTreeMap<DeviceId, Sizes>,
        slack: ByteCount,
        progress: &Progress,
        size_of: &dyn Fn(&ShrunkDevice) -> Option<ByteCount>,
    ) -> Result<ShrinkSummary> {
        let (mut summary, mut closed) = self.pack_content(before, slack, progress)?;
        for device in &mut summary.devices {
            // The plan may have grown the device.
            // Clamp: a device without an earlier size was not grown.
            device.before = before
                .get(&device.device)
                .map_or(device.before, |sizes| sizes.volume);
            device.after = device.after.min(device.before);
            // Clamp: the smallest size, if the caller asks for no other.
            device.after = size_of(device).unwrap_or(device.after);
        }
        let ends = summary.devices.iter();
        let ends = ends.map(|device| (device.device, device.after)).collect();
        closed.open_below(&ends);
        self.cut_devices(&ends)?;
        Ok(summary)
    }

    /// Plans and moves the content until a plan ends as planned. No chunk can be made until the
    /// returned guard is dropped.
    fn pack_content(
        &self,
        before: &BTreeMap<DeviceId, Sizes>,
        slack: ByteCount,
        progress: &Progress,
    ) -> Result<(ShrinkSummary, NoChunks<'_>)> {
        let mut plans = 0;
        loop {
            let mut closed = NoChunks::begin(self.engine)?;
            let plan = self.grow_for_plan(before)?;
            progress.expect(ByteCount::new(plan.moved_bytes));
            let planned = self.summarize(&plan, slack);
            let Err(obstacle) = self.carry_out(&plan, &mut closed, progress)? else {
                return Ok((planned, closed));
            };
            plans = plans.exact_add(1);
            if plans == PLANS_MAX {
                let refusal = MembershipRefusal::NotPacked { plans, obstacle };
                return Err(buttress_volume::Error::from(refusal).into());
            }
        }
    }

    /// Returns the sizes of each device. Refuses devices that are missing, and devices of a seed.
    fn device_sizes(&self) -> Result<BTreeMap<DeviceId, Sizes>> {
        let ids: Vec<DeviceId> = {
            let running = self.engine.shared.running.lock();
            running
                .core
                .devices
                .rooms
                .iter()
                .map(|room| room.item.device)
                .collect()
        };
        let mut sizes = BTreeMap::new();
        for device in ids {
            let slot = self.engine.devices().member(device)?;
            require_current(&slot)?;
            let own = slot.device().map(|own| ByteCount::new(own.size_bytes()));
            let size = slot.expected_bytes().zip(own);
            let missing = || {
                Error::from(buttress_volume::Error::from(MembershipRefusal::Missing {
                    device,
                }))
            };
            let (volume, own) = size.ok_or_else(missing)?;
            sizes.insert(device, Sizes { volume, device: own });
        }
        Ok(sizes)
    }

    fn summarize(&self, plan: &Plan, slack: ByteCount) -> ShrinkSummary {
        summary_of(&self.engine.view(), plan, slack)
    }

    /// Plans the shrink, and grows the devices to the sizes that the plan needs meanwhile.
    fn grow_for_plan(&self, before: &BTreeMap<DeviceId, Sizes>) -> Result<Plan> {
        let plan = plan_of(&self.engine.view(), SPARE_BYTES)?;
        if plan.steps.is_empty() {
            return Ok(plan);
        }
        if self.grow_devices(&plan)?.is_none() {
            return Ok(plan);
        }
        let plan = plan_of(&self.engine.view(), LEAST_SPARE_BYTES)?;
        match self.grow_devices(&plan)? {
            None => Ok(plan),
            Some((device, wanted)) => {
                // Clamp: figures of a message; device extents of a damaged volume may end past the device.
                let tail = plan.tails.get(&device).copied().unwrap_or(0);
                let free = |size: u64| ByteCount::new(size.saturating_sub(tail));
                let found = before.get(&device).map_or(0, |sizes| sizes.volume.get());
                Err(buttress_volume::Error::from(MembershipRefusal::NoPlace {
                    device,
                    content: ByteCount::new(plan.moved_bytes),
                    wanted: free(wanted),
                    found: free(found),
                })
                .into())
            }
        }
    }

    /// Grows each device to its peak. Returns the first device that cannot grow, with its peak.
    fn grow_devices(&self, plan: &Plan) -> Result<Option<(DeviceId, u64)>> {
        let sector_bytes = u64::from(self.engine.forest().block_format().sector_bytes);
        let mut growing = Vec::new();
        for (device, peak) in &plan.peaks {
            let slot = self.engine.devices().member(*device)?;
            let now = slot.expected_bytes().map_or(0, ByteCount::get);
            let peak = peak.div_ceil(sector_bytes).exact_mul(sector_bytes);
            if slot.device().is_some() && now < peak {
                growing.push((slot, peak));
            }
        }
        // If one device cannot grow, no device stays larger.
        let mut enlarged = Vec::new();
        for (slot, peak) in &growing {
            let Some(own) = slot.device().filter(|own| own.size_bytes() < *peak) else {
                continue;
            };
            let before = own.size_bytes();
            let Err(error) = own.set_size(*peak) else {
                enlarged.push((own, before));
                continue;
            };
            for (other, before) in enlarged {
                other.set_size(before)?;
            }
            return match error.kind {
                ErrorKind::Unsupported | ErrorKind::Other => Ok(Some((slot.id(), *peak))),
                _ => Err(error.into()),
            };
        }
        for (slot, peak) in &growing {
            self.engine
                .devices()
                .set_bytes(slot.id(), ByteCount::new(*peak))?;
        }
        self.engine.commit()?;
        Ok(None)
    }

    /// Carries out the steps. Returns the obstacle if the volume no longer fits the plan.
    fn carry_out(
        &self,
        plan: &Plan,
        closed: &mut NoChunks<'_>,
        progress: &Progress,
    ) -> Result<Result<(), PackingObstacle>> {
        let options = RelocationOptions {
            progress: progress.clone(),
            ..RelocationOptions::default()
        };
        let mut made: Vec<Logical> = Vec::new();
        let address = |made: &[Logical], group: &GroupRef| match group {
            GroupRef::Old(start) => Ok(*start),
            GroupRef::New(number) => made.get(*number).copied().ok_or_else(|| unknown_chunk(*number)),
        };
        for step in &plan.steps {
            progress.check()?;
            match step {
                Step::Make(chunk) => match self.make_planned(chunk)? {
                    Ok(start) => made.push(start),
                    Err(obstacle) => return Ok(Err(obstacle)),
                },
                Step::CheckMetadata => {
                    if let Err(obstacle) = self.require_headroom(plan) {
                        return Ok(Err(obstacle));
                    }
                }
                Step::Close(groups) => {
                    let groups: Result<Vec<Logical>> =
                        groups.iter().map(|group| address(&made, group)).collect();
                    closed.close(&groups?);
                }
                Step::Move { groups, into } => {
                    let groups: Result<Vec<Logical>> =
                        groups.iter().map(|group| address(&made, group)).collect();
                    let first = into.first().map(|number| address(&made, &GroupRef::New(*number)));
                    if let Some(first) = first.transpose()? {
                        self.go_on_in(first, plan.mixed_data_bytes);
                    }
                    self.engine.relocations().relocate_closed(&groups?, &options)?;
                }
            }
        }
        Ok(Ok(()))
    }

    /// Refuses a plan whose chunks for metadata are too small, since metadata has grown.
    fn require_headroom(&self, plan: &Plan) -> Result<(), PackingObstacle> {
        let running = self.engine.shared.running.lock();
        let used = running.core.groups.room(Purpose::Metadata).used_bytes;
        let (length, planned) = plan.metadata;
        let headroom = length.exact_sub(planned);
        let most = planned.exact_add(headroom.quotient(HEADROOM_PART));
        match used <= most {
            true => Ok(()),
            false => Err(PackingObstacle::Metadata {
                used: ByteCount::new(used),
                most: ByteCount::new(most),
            }),
        }
    }

    /// Makes a chunk of the plan. Returns the obstacle if it cannot be made at its place.
    fn make_planned(&self, chunk: &NewChunk) -> Result<Result<Logical, PackingObstacle>> {
        let uuids: BTreeMap<DeviceId, Uuid> = {
            let running = self.engine.shared.running.lock();
            let rooms = running.core.devices.rooms.iter();
            rooms.map(|room| (room.item.device, room.item.uuid)).collect()
        };
        let stripes = chunk.place.stripes.iter();
        let stripes = stripes.filter_map(|(device, at)| Some((*device, *at, *uuids.get(device)?)));
        let plan = chunks::Plan {
            profile: profile_of(chunk.flags),
            stripes: stripes.collect(),
            stripe_length: chunk.place.device_extent,
            length: chunk.place.length,
        };
        if plan.stripes.len() != chunk.place.stripes.len() {
            return Err(Defect::new("a chunk of a shrink is planned on an unknown device").into());
        }
        let (mut handle, made) = self.engine.retry(self.engine.start_unchecked(), |handle| {
            handle.chunks().make_at(chunk.flags, &plan)
        })?;
        if let Some(start) = made
            && let Some(group) = handle.core.groups.get_mut(start.get())
        {
            group.is_last_resort = chunk.is_last_resort;
        }
        let is_system = chunk.flags.contains(BlockGroupFlags::SYSTEM);
        let is_array_full =
            is_system && handle.core.chunk_planner().system_stripes_max(0) < plan.stripes.len();
        drop(handle);
        self.engine.commit_metadata()?;
        Ok(made.ok_or_else(|| {
            if is_array_full {
                return PackingObstacle::SystemArray;
            }
            // Clamp: figures of a message.
            let (device, at) = chunk.place.stripes.first().copied().unwrap_or_default();
            PackingObstacle::Place {
                device,
                start: Physical::new(at),
                length: ByteCount::new(chunk.place.device_extent),
            }
        }))
    }

    /// Lets the next allocations of all kinds begin in a chunk. In a mixed one, metadata begins
    /// after the data that moves there.
    fn go_on_in(&self, chunk: Logical, data_bytes: u64) {
        let mut running = self.engine.shared.running.lock();
        let Some((flags, end)) = running
            .core
            .groups
            .holding(chunk.get())
            .map(|group| (group.flags, group.end()))
        else {
            return;
        };
        for purpose in [Purpose::Data, Purpose::Metadata, Purpose::System] {
            let is_behind = purpose == Purpose::Metadata && flags.contains(Purpose::Data.flag());
            let at = match is_behind {
                true => chunk.get().exact_add(data_bytes),
                false => chunk.get(),
            };
            if flags.contains(purpose.flag()) && at < end {
                running.core.groups.go_on_at(purpose, at);
            }
        }
    }
}

fn unknown_chunk(number: usize) -> Error {
    Defect::new("a step of a shrink names a chunk that is not made")
        .with("number", buttress_exact::u64_of(number))
        .into()
}
