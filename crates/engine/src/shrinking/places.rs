//! The ranges of devices that chunks take, for a plan: no I/O, and nothing of the volume changes.
//!
//! Chunks of a plan never cover a superblock copy, so all of their bytes are usable. A chunk is placed
//! either low ([`Places::low`]), in the first free range that can hold it, or at the tail
//! ([`Places::tail`]), past every device extent of the volume.
//!
//! # Invariants
//!
//! - Device extents of a plan never overlap, and never begin in the first MiB of a device.
//! - All lengths and addresses are multiples of [`STRIPE_BYTES`].

use buttress_exact::Exact as _;
use buttress_format::{
    BlockGroupFlags, ByteCount, DEVICE_RESERVED_BYTES, DeviceId, Profile, STRIPE_BYTES, SUPERBLOCK_OFFSETS,
};
use buttress_volume::StripeGeometry;
use std::collections::BTreeMap;

/// The longest device extent that a plan makes.
pub(super) const DEVICE_EXTENT_BYTES_MAX: u64 = 1 << 30;

/// Returns the profile of a block group.
pub(super) fn profile_of(flags: BlockGroupFlags) -> Profile {
    // Clamp: the chunk map refuses flags with several profiles.
    flags.profile().unwrap_or(Profile::Single)
}

/// The place of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub device_extent: u64,
    /// The length of the chunk, without copies and parity.
    pub length: u64,
    /// The device and address of each stripe.
    pub stripes: Vec<(DeviceId, u64)>,
}

/// The occupied ranges of one device.
#[derive(Clone, Debug)]
struct Taken {
    device: DeviceId,
    /// The end of each device extent, by its start.
    extents: BTreeMap<u64, u64>,
    /// The end of all device extents of the volume, before the plan.
    tail_start: u64,
    /// The end of what the plan placed at the tail.
    tail: u64,
}

/// The occupied ranges of all devices.
#[derive(Clone, Debug)]
pub(super) struct Places {
    devices: Vec<Taken>,
}

impl Places {
    /// Returns the ranges of these devices, which have the device extents of `places`.
    pub(super) fn new<'a>(
        devices: impl Iterator<Item = DeviceId>,
        places: impl Iterator<Item = &'a Place> + Clone,
    ) -> Self {
        let of_device = |device: DeviceId| {
            let mut taken = Taken {
                device,
                extents: BTreeMap::new(),
                tail_start: 0,
                tail: 0,
            };
            for place in places.clone() {
                taken.add(place);
            }
            taken.tail_start = whole_stripes(taken.end().max(DEVICE_RESERVED_BYTES));
            taken.tail = taken.tail_start;
            taken
        };
        Self {
            devices: devices.map(of_device).collect(),
        }
    }

    /// Returns the end of the last device extent of each device.
    pub(super) fn ends(&self) -> impl Iterator<Item = (DeviceId, u64)> + '_ {
        self.devices.iter().map(|taken| (taken.device, taken.end()))
    }

    /// Returns the end of the tail of each device, which the device must reach while the plan is carried out.
    pub(super) fn tail_ends(&self) -> impl Iterator<Item = (DeviceId, u64)> + '_ {
        self.devices.iter().map(|taken| (taken.device, taken.tail))
    }

    /// Returns the start of the tail of a device.
    pub(super) fn tail_start(&self, device: DeviceId) -> u64 {
        let taken = self.devices.iter().find(|taken| taken.device == device);
        taken.map_or(0, |taken| taken.tail_start)
    }

    /// Returns the end of the last device extent of a device before its tail.
    pub(super) fn end_below_tail(&self, device: DeviceId) -> u64 {
        let taken = self.devices.iter().find(|taken| taken.device == device);
        taken.map_or(0, |taken| {
            let below = taken.extents.range(..taken.tail_start);
            // Clamp: a device without extents ends at its start.
            below.map(|(_, end)| *end).next_back().unwrap_or(0)
        })
    }

    pub(super) fn take(&mut self, place: &Place) {
        self.devices.iter_mut().for_each(|taken| taken.add(place));
    }

    pub(super) fn free(&mut self, place: &Place) {
        for taken in &mut self.devices {
            for (_, start) in place.stripes.iter().filter(|(device, _)| *device == taken.device) {
                taken.extents.remove(start);
            }
        }
    }

    /// Returns the lowest place of a chunk for `content` bytes, whose stripes are below `bound` on
    /// their devices.
    pub(super) fn low(
        &self,
        profile: Profile,
        content: u64,
        bound: &dyn Fn(DeviceId) -> u64,
    ) -> Option<Place> {
        self.place(profile, content, &|taken, device_extent, copies| {
            let mut starts = Vec::new();
            for (start, end) in taken.runs(bound(taken.device)) {
                let mut at = start;
                while starts.len() < copies && end.exact_sub(at) >= device_extent {
                    starts.push(at);
                    at = at.exact_add(device_extent);
                }
            }
            (starts.len() == copies).then_some(starts)
        })
    }

    /// Returns the free ranges of a device below `bound`, without superblock copies.
    pub(super) fn runs(&self, device: DeviceId, bound: u64) -> Vec<(u64, u64)> {
        let taken = self.devices.iter().find(|taken| taken.device == device);
        taken.map_or_else(Vec::new, |taken| taken.runs(bound).collect())
    }

    /// Places a chunk for `content` bytes at the tail of the devices with the lowest tails.
    pub(super) fn tail(&mut self, profile: Profile, content: u64) -> Option<Place> {
        let place = self.place(profile, content, &|taken, device_extent, copies| {
            let mut starts = Vec::new();
            let mut at = taken.tail;
            for _ in 0..copies {
                let start = past_superblocks(at, device_extent);
                starts.push(start);
                at = start.exact_add(device_extent);
            }
            Some(starts)
        })?;
        for taken in &mut self.devices {
            let own = place.stripes.iter().filter(|(device, _)| *device == taken.device);
            for (_, start) in own {
                taken.tail = taken.tail.max(start.exact_add(place.device_extent));
            }
        }
        self.take(&place);
        Some(place)
    }

    /// Places a chunk on as many devices as its profile uses, at those with the lowest starts.
    /// `starts` returns the places of this many device extents of this length on one device.
    fn place(&self, profile: Profile, content: u64, starts: &StartsOf<'_>) -> Option<Place> {
        (1..=self.devices.len()).rev().find_map(|count| {
            let geometry = StripeGeometry::widest(profile, count)?;
            let row = geometry.row_bytes().get();
            let length = content.max(1).checked_next_multiple_of(row)?;
            let device_extent = geometry.device_extent_bytes(ByteCount::new(length)).get();
            let length = geometry.chunk_bytes(ByteCount::new(device_extent))?.get();
            let copies = match profile {
                Profile::Dup => 2,
                _ => 1,
            };
            let found = self.devices.iter().filter_map(|taken| {
                let starts = starts(taken, device_extent, copies)?;
                Some((starts, taken.device))
            });
            let mut found: Vec<(Vec<u64>, DeviceId)> = found.collect();
            found.sort_unstable();
            if found.len() < geometry.devices() {
                return None;
            }
            found.truncate(geometry.devices());
            found.sort_unstable_by_key(|(_, device)| *device);
            let stripes = found
                .into_iter()
                .flat_map(|(starts, device)| starts.into_iter().map(move |start| (device, start)));
            Some(Place {
                device_extent,
                length,
                stripes: stripes.collect(),
            })
        })
    }
}

/// Returns the starts of as many device extents on one device.
type StartsOf<'a> = dyn Fn(&Taken, u64, usize) -> Option<Vec<u64>> + 'a;

impl Taken {
    fn add(&mut self, place: &Place) {
        for (_, start) in place.stripes.iter().filter(|(device, _)| *device == self.device) {
            self.extents.insert(*start, start.exact_add(place.device_extent));
        }
    }

    fn end(&self) -> u64 {
        // Device extents never overlap, so the last one has the highest end.
        // Clamp: a device without extents ends at its start.
        self.extents.values().next_back().copied().unwrap_or(0)
    }

    /// Returns the free ranges below `bound`, without superblock copies.
    fn runs(&self, bound: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let copies = SUPERBLOCK_OFFSETS.map(|copy| (copy.get(), copy.get().exact_add(STRIPE_BYTES)));
        let mut walls: Vec<(u64, u64)> = self.extents.iter().map(|(start, end)| (*start, *end)).collect();
        if !buttress_faults::on("shrink-over-superblocks") {
            walls.extend(copies);
        }
        walls.sort_unstable();
        walls.push((bound, bound));
        let mut at = DEVICE_RESERVED_BYTES;
        walls.into_iter().filter_map(move |(start, end)| {
            let run = (at < start.min(bound)).then_some((at, start.min(bound)));
            at = whole_stripes(at.max(end));
            run
        })
    }
}

/// Returns the address rounded up to a stripe unit.
fn whole_stripes(at: u64) -> u64 {
    at.div_ceil(STRIPE_BYTES).exact_mul(STRIPE_BYTES)
}

/// Returns the first address from `at` on where this many bytes cover no superblock copy.
fn past_superblocks(mut at: u64, bytes: u64) -> u64 {
    for copy in SUPERBLOCK_OFFSETS {
        let (start, end) = (copy.get(), copy.get().exact_add(STRIPE_BYTES));
        if at < end && start < at.exact_add(bytes) {
            at = end;
        }
    }
    at
}
