//! The places of chunks on devices, and the addresses of data.
//!
//! Chunks are placed one after another on each device, and never over a superblock copy. A chunk
//! ends before a superblock copy, and the next chunk begins after the copy. No part of a chunk is
//! therefore excluded, and addresses of extents continue from chunk to chunk.
//!
//! Data and metadata have separate ranges of addresses. The range of data comes first and is long
//! enough for all contents. Tree blocks thus get their addresses before the amount of data is
//! known.

use crate::error::{Error, Result};
use buttress_format::{
    BlockGroupFlags, ByteCount, DEVICE_RESERVED_BYTES, Logical, Physical, Profile, STRIPE_BYTES,
    SUPERBLOCK_OFFSETS,
};
use buttress_mkfs::PlannedChunk;
use buttress_volume::StripeGeometry;

/// The maximum length of a chunk's device extent.
pub(crate) const DEVICE_EXTENT_BYTES_MAX: u64 = 1 << 30;

/// The minimum length of a free run before a superblock copy that is worth a chunk.
const RUN_BYTES_MIN: u64 = 1 << 20;

/// Places chunks on devices.
#[derive(Clone, Debug)]
pub(crate) struct Placer {
    sizes: Vec<u64>,
    next: Vec<u64>,
}

impl Placer {
    pub(crate) fn new(sizes: &[u64]) -> Self {
        Self {
            sizes: sizes.to_vec(),
            next: vec![DEVICE_RESERVED_BYTES; sizes.len()],
        }
    }

    /// Returns the end of the chunks on each device.
    pub(crate) fn ends(&self) -> &[u64] {
        &self.next
    }

    /// Returns the next run of free bytes on a device.
    fn run(&self, device: usize) -> (u64, u64) {
        let size = self.sizes.get(device).copied().unwrap_or(0);
        let mut start = self.next.get(device).copied().unwrap_or(u64::MAX);
        for copy in SUPERBLOCK_OFFSETS {
            let (from, to) = (copy.get(), copy.get().saturating_add(STRIPE_BYTES));
            if start >= to {
                continue;
            }
            if start.saturating_add(RUN_BYTES_MIN) <= from || size <= from {
                return (start, from.min(size));
            }
            start = to;
        }
        (start, size)
    }

    /// Places a chunk of about `wanted` bytes, or of the bytes available before the next superblock
    /// copy. Returns `None` if the devices have no space left.
    pub(crate) fn chunk(
        &mut self,
        logical: Logical,
        kind: BlockGroupFlags,
        profile: Profile,
        wanted: u64,
    ) -> Option<PlannedChunk> {
        let halved = u32::from(profile == Profile::Dup);
        let room = |device: usize| {
            let (start, end) = self.run(device);
            let whole = end.saturating_sub(start).wrapping_shr(halved);
            whole & !(STRIPE_BYTES.saturating_sub(1))
        };
        let mut devices: Vec<usize> = (0..self.sizes.len()).filter(|device| room(*device) > 0).collect();
        let geometry = StripeGeometry::widest(profile, devices.len())?;
        let free = |device: usize| {
            let size = self.sizes.get(device).copied().unwrap_or(0);
            size.saturating_sub(self.run(device).0)
        };
        devices.sort_by_key(|device| core::cmp::Reverse(free(*device)));
        devices.truncate(geometry.devices());
        devices.sort_unstable();
        let row = geometry.row_bytes().get();
        let wanted = wanted.max(1).checked_next_multiple_of(row)?;
        let extent = geometry.device_extent_bytes(ByteCount::new(wanted)).get();
        let least_room = devices.iter().map(|device| room(*device)).min()?;
        let extent = extent.min(least_room).min(DEVICE_EXTENT_BYTES_MAX);
        let mut stripes = Vec::new();
        for device in devices {
            let (mut at, _) = self.run(device);
            for _ in 0..=halved {
                stripes.push((device, Physical::new(at)));
                at = at.saturating_add(extent);
            }
            if let Some(next) = self.next.get_mut(device) {
                *next = at;
            }
        }
        let device_extent = ByteCount::new(extent);
        Some(PlannedChunk::new(
            logical,
            kind | profile.flag(),
            geometry.chunk_bytes(device_extent)?,
            device_extent,
            stripes,
        ))
    }

    /// Shortens the last placed chunk to its used bytes, as far as possible.
    pub(crate) fn trim(&mut self, chunk: &mut PlannedChunk, used: u64) -> Option<()> {
        let profile = chunk.profile();
        let devices = match profile {
            // The second half lies after the first half, and cannot be moved.
            Profile::Dup => return Some(()),
            _ => chunk.stripes.len(),
        };
        let geometry = StripeGeometry::new(profile, devices).ok()?;
        let length = used.max(1).checked_next_multiple_of(geometry.row_bytes().get())?;
        let extent = geometry.device_extent_bytes(ByteCount::new(length));
        for (device, physical) in &chunk.stripes {
            if let Some(next) = self.next.get_mut(*device) {
                *next = physical.get().saturating_add(extent.get());
            }
        }
        chunk.length = geometry.chunk_bytes(extent)?;
        chunk.device_extent = extent;
        Some(())
    }
}

/// A chunk and the number of its used bytes, from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct UsedChunk {
    pub(crate) chunk: PlannedChunk,
    pub(crate) used: u64,
}

/// Assigns consecutive addresses to data.
#[derive(Debug)]
pub(crate) struct DataSpace {
    pub(crate) placer: Placer,
    pub(crate) chunks: Vec<UsedChunk>,
    kind: BlockGroupFlags,
    profile: Profile,
    next_logical: u64,
    /// An upper bound on the bytes still to come.
    left: u64,
}

/// The address of new data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) logical: Logical,
    /// The number of bytes that fit at this address.
    pub(crate) bytes: u64,
    /// True if the chunk is new.
    pub(crate) new_chunk: bool,
}

impl DataSpace {
    pub(crate) const fn new(
        placer: Placer,
        kind: BlockGroupFlags,
        profile: Profile,
        first: Logical,
        most: u64,
    ) -> Self {
        Self {
            placer,
            chunks: Vec::new(),
            kind,
            profile,
            next_logical: first.get(),
            left: most,
        }
    }

    /// Places a chunk of about `wanted` bytes if none exists, because writers take the profile of
    /// new chunks from existing ones.
    pub(crate) fn keep_profile(&mut self, wanted: u64) -> Result<()> {
        if !self.chunks.is_empty() {
            return Ok(());
        }
        let logical = Logical::new(self.next_logical);
        let chunk = self.placer.chunk(logical, self.kind, self.profile, wanted);
        let chunk = chunk.ok_or(Error::NoRoom {
            what: "data",
            needed: ByteCount::new(wanted),
        })?;
        self.next_logical = self.next_logical.saturating_add(chunk.length.get());
        self.chunks.push(UsedChunk { chunk, used: 0 });
        Ok(())
    }

    /// Allocates an address for `wanted` bytes, or for the first part of them unless `whole` is
    /// set.
    pub(crate) fn take(&mut self, wanted: u64, whole: bool) -> Result<Room> {
        let mut new_chunk = false;
        loop {
            if let Some(last) = self.chunks.last_mut() {
                let free = last.chunk.length.get().saturating_sub(last.used);
                if free > 0 && (!whole || free >= wanted) {
                    let bytes = wanted.min(free);
                    let logical = last.chunk.logical.saturating_add(ByteCount::new(last.used));
                    last.used = last.used.saturating_add(bytes);
                    self.left = self.left.saturating_sub(bytes);
                    return Ok(Room {
                        logical,
                        bytes,
                        new_chunk,
                    });
                }
            }
            let no_room = Error::NoRoom {
                what: "data",
                needed: ByteCount::new(self.left.max(wanted)),
            };
            let logical = Logical::new(self.next_logical);
            let chunk = self
                .placer
                .chunk(logical, self.kind, self.profile, self.left.max(wanted));
            let chunk = chunk.ok_or(no_room)?;
            self.next_logical = self.next_logical.saturating_add(chunk.length.get());
            self.chunks.push(UsedChunk { chunk, used: 0 });
            new_chunk = true;
        }
    }
}
