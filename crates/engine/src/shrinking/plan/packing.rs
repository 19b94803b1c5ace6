//! Data groups move towards the start of the devices, in order of address.
//!
//! The free space before the groups that are left never shrinks: a moved group frees at least as much
//! as its content takes. Each group therefore goes to the tail at most once.

use super::super::places::{DEVICE_EXTENT_BYTES_MAX, Place, Places, profile_of};
use super::{GroupRef, Left, Planner, Source, Step, Stop};
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, DeviceId, STRIPE_BYTES};
use std::collections::BTreeMap;

/// A block group counts as packed if at most one byte in this number is free.
const PACKED_PART: u64 = 64;

impl Planner<'_, '_> {
    /// Leaves out the packed data groups at the start of the devices. The remaining groups
    /// move in order of address.
    pub(super) fn keep_packed(&mut self, mut data: Vec<Source>) {
        data.sort_by_key(|group| group.place.stripes.iter().map(|(_, at)| *at).min());
        let mut is_prefix = true;
        // Only the kept groups take space in this map.
        let mut kept = Places::new(self.facts.devices.iter().copied(), core::iter::empty());
        for group in data {
            let free = group.place.length.exact_sub(group.used.min(group.place.length));
            let is_packed = free <= group.place.length.quotient(PACKED_PART).max(STRIPE_BYTES);
            let profile = profile_of(group.flags);
            let lowest = kept.low(profile, group.place.length, &|_| u64::MAX >> 1);
            is_prefix =
                is_prefix && is_packed && lowest.is_some_and(|lowest| lowest.stripes == group.place.stripes);
            if is_prefix {
                kept.take(&group.place);
                continue;
            }
            self.left.push_back(Left {
                group: GroupRef::Old(group.start),
                flags: group.flags,
                used: group.used,
                origins: vec![group.start],
                place: group.place,
            });
        }
    }

    /// Moves the data groups that are left towards the start.
    pub(super) fn pack(&mut self) -> Result<(), Stop> {
        while let Some(group) = self.left.pop_front() {
            if group.used == 0 {
                self.places.free(&group.place);
                self.go(vec![group.group], Vec::new(), 0);
                continue;
            }
            let place = self.low(&group, group.used);
            // A group that does not fit before a superblock copy fills that space in part.
            let is_past_free = place
                .as_ref()
                .is_none_or(|place| !self.is_lowest(place) || is_scattered(place));
            if is_past_free && self.divide(&group)? {
                continue;
            }
            match place {
                Some(place) => self.pack_with_followers(group, place),
                None => self.evacuate(group)?,
            }
        }
        Ok(())
    }

    /// Returns the lowest place for `bytes` of the first group, below all groups that are left.
    fn low(&self, group: &Left, bytes: u64) -> Option<Place> {
        self.places.low(group.profile(), bytes, &self.front(group))
    }

    /// Whether a place begins in the lowest free range of a device.
    fn is_lowest(&self, place: &Place) -> bool {
        place.stripes.iter().any(|(device, at)| {
            let runs = self.places.runs(*device, u64::MAX >> 1);
            runs.first().is_some_and(|(start, _)| start == at)
        })
    }

    /// Returns the first byte of each device that belongs to a group that is left.
    fn front(&self, group: &Left) -> impl Fn(DeviceId) -> u64 + use<> {
        let mut fronts: BTreeMap<DeviceId, u64> = self.tail_starts();
        for (device, at) in self
            .left
            .iter()
            .chain([group])
            .flat_map(|left| &left.place.stripes)
        {
            fronts
                .entry(*device)
                .and_modify(|front| *front = (*front).min(*at));
        }
        // Clamp: nothing is placed on a device that the plan does not have.
        move |device| fronts.get(&device).copied().unwrap_or(0)
    }

    /// Moves a group and as many of the next groups as fit into the same free range.
    fn pack_with_followers(&mut self, first: Left, mut place: Place) {
        let mut used = first.used;
        let mut batch = vec![first];
        while let Some(next) = self.left.front() {
            let (Some(first), together) = (batch.first(), used.exact_add(next.used)) else {
                break;
            };
            let longer = self.low(first, together).filter(|longer| {
                let starts = |place: &Place| place.stripes.first().copied();
                let is_near = starts(longer) == starts(&place) && !is_scattered(longer);
                is_near && longer.device_extent <= DEVICE_EXTENT_BYTES_MAX
            });
            let Some(longer) = longer.filter(|_| next.flags == first.flags) else {
                break;
            };
            (place, used) = (longer, together);
            batch.extend(self.left.pop_front());
        }
        let flags = batch.first().map_or(BlockGroupFlags::DATA, |group| group.flags);
        let chunk = self.make(flags, place);
        batch.iter().for_each(|group| self.places.free(&group.place));
        self.go(batch.iter().map(|group| group.group).collect(), vec![chunk], used);
    }

    /// Moves a group into several chunks, since superblock copies divide the space before it.
    /// Returns false if that space is too small.
    fn divide(&mut self, group: &Left) -> Result<bool, Stop> {
        let front = self.front(group);
        let device = self
            .facts
            .devices
            .first()
            .copied()
            .filter(|_| self.facts.devices.len() == 1);
        let runs = device.map_or_else(Vec::new, |device| self.places.runs(device, front(device)));
        let total = runs
            .iter()
            .fold(0_u64, |sum, (start, end)| sum.exact_add(end.exact_sub(*start)));
        if runs.len() < 2 || total < group.used {
            return Ok(false);
        }
        let mut lengths = Vec::new();
        for origin in &group.origins {
            lengths.extend((self.lengths)(*origin)?);
        }
        let mut trial = self.places.clone();
        let mut chunks = Vec::new();
        let mut rest = lengths.as_slice();
        for _ in runs {
            let prefix = longest_prefix(rest, |bytes| {
                let place = trial.low(group.profile(), bytes, &front);
                place.filter(|place| !is_scattered(place))
            });
            let Some((count, place)) = prefix else { break };
            trial.take(&place);
            chunks.push(place);
            // Clamp: the prefix is a part of the lengths.
            rest = rest.get(count..).unwrap_or_default();
        }
        if !rest.is_empty() {
            return Ok(false);
        }
        let into: Vec<usize> = chunks
            .into_iter()
            .map(|place| self.make(group.flags, place))
            .collect();
        self.places.free(&group.place);
        self.go(vec![group.group], into, group.used);
        Ok(true)
    }

    /// Moves a group to the tail for a time.
    fn evacuate(&mut self, group: Left) -> Result<(), Stop> {
        if matches!(group.group, GroupRef::New(_)) {
            return Err(Stop::NoPlace);
        }
        let (chunk, place) = self.make_at_tail(group.flags, group.used, false)?;
        self.places.free(&group.place);
        self.go(vec![group.group], vec![chunk], group.used);
        self.plan.steps.push(Step::Close(vec![GroupRef::New(chunk)]));
        self.left.push_back(Left {
            group: GroupRef::New(chunk),
            place,
            ..group
        });
        Ok(())
    }
}

/// Whether the copies on one device are apart from each other.
pub(super) fn is_scattered(place: &Place) -> bool {
    let pairs = place.stripes.iter().zip(place.stripes.iter().skip(1));
    let mut on_one_device = pairs.filter(|((device, _), (other, _))| device == other);
    on_one_device.any(|((_, at), (_, next))| at.exact_add(place.device_extent) != *next)
}

/// Returns the number of lengths, from the first on, whose sum has a place where the first length
/// has one, and that place.
fn longest_prefix(lengths: &[u64], place_of: impl Fn(u64) -> Option<Place>) -> Option<(usize, Place)> {
    let mut sum = 0_u64;
    let sums: Vec<u64> = lengths
        .iter()
        .map(|length| {
            sum = sum.exact_add(*length);
            sum
        })
        .collect();
    let first = place_of(*sums.first()?)?;
    let same = |bytes: &u64| place_of(*bytes).filter(|place| place.stripes.first() == first.stripes.first());
    let count = sums.partition_point(|bytes| same(bytes).is_some());
    let place = sums.get(count.checked_sub(1)?).and_then(same)?;
    Some((count, place))
}
