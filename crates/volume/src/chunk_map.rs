//! The map from logical addresses to chunks.
//!
//! Chunks lie in a sorted array, so a lookup is one binary search over their starts. A
//! [`MappedChunk`] holds its checked layout and the slots of its devices, so its owner needs no
//! further lookup. Readers never see the chunk map change: [`crate::Volume`] returns `Arc`s of it,
//! and a change copies the map if a reader holds it.
//!
//! Invariants: chunks do not overlap, none is empty, and none ends beyond the address space. Every
//! chunk has a [`Layout`] for the number of stripes that it lists.

use crate::devices::DeviceSlot;
use crate::error::{Corruption, Error};
use crate::layout::{ChunkOffset, Layout, StripeOffset};
use buttress_exact::Exact as _;
use buttress_format::block_group::BlockGroupFlags;
use buttress_format::chunk::Chunk;
use buttress_format::{ByteCount, DeviceId, Logical, Physical};
use std::sync::Arc;

/// A chunk in the map.
#[derive(Debug)]
pub struct MappedChunk {
    start: Logical,
    chunk: Chunk,
    layout: Layout,
    devices: Vec<Arc<DeviceSlot>>,
    /// True if any of the devices is stale, so that the order of copies must check for stale
    /// devices.
    has_stale: bool,
}

impl MappedChunk {
    /// Checks a chunk. `devices` are the slots of the chunk's stripes, in order.
    pub(crate) fn new(start: Logical, chunk: Chunk, devices: Vec<Arc<DeviceSlot>>) -> Result<Self, Error> {
        let layout = Layout::new(
            chunk.replication(),
            chunk.length,
            chunk.stripes.len().min(devices.len()),
            chunk.sub_stripes,
            chunk.stripe_bytes,
        )
        .map_err(|error| Corruption::ChunkLayout { start, error })?;
        if start.checked_add(chunk.length).is_none() {
            return Err(Corruption::ChunkTooLong {
                start,
                length: chunk.length,
            }
            .into());
        }
        let has_stale = devices.iter().any(|slot| slot.stale().is_some());
        Ok(Self {
            start,
            chunk,
            layout,
            devices,
            has_stale,
        })
    }

    /// Returns the chunk's first address.
    #[must_use]
    pub const fn start(&self) -> Logical {
        self.start
    }

    /// Returns the number of addresses that the chunk maps.
    #[must_use]
    pub const fn length(&self) -> ByteCount {
        self.chunk.length
    }

    /// Returns the exclusive end of the chunk's addresses.
    #[must_use]
    pub const fn end(&self) -> Logical {
        // Clamp: cannot overflow, because `new` checked the sum; `exact_add` is not const.
        self.start.saturating_add(self.chunk.length)
    }

    /// Returns the chunk item as it was read.
    #[must_use]
    pub const fn chunk(&self) -> &Chunk {
        &self.chunk
    }

    /// Returns the chunk's layout.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the devices of the chunk's stripes, in the order of the stripes.
    #[must_use]
    pub fn devices(&self) -> &[Arc<DeviceSlot>] {
        &self.devices
    }

    /// Returns the chunk's type and profile as flags.
    #[must_use]
    pub const fn flags(&self) -> BlockGroupFlags {
        self.chunk.profile
    }

    /// Returns the number of stripes on missing devices.
    #[must_use]
    pub fn missing_stripes(&self) -> usize {
        self.devices.iter().filter(|slot| slot.device().is_none()).count()
    }

    /// Returns an address as an offset in the chunk, or `None` outside the chunk.
    #[must_use]
    pub fn offset_of(&self, logical: Logical) -> Option<ChunkOffset> {
        let offset = logical.checked_distance_from(self.start)?;
        (offset < self.chunk.length).then(|| ChunkOffset::new(offset.get()))
    }

    /// Returns the id of the stripe's device. Returns 0, which no device has, for a stripe that
    /// does not exist.
    #[must_use]
    pub fn stripe_device(&self, stripe_index: usize) -> DeviceId {
        self.chunk
            .stripes
            .get(stripe_index)
            .map_or(DeviceId::MIN, |stripe| stripe.device)
    }

    pub(crate) fn is_present(&self, stripe_index: usize) -> bool {
        self.devices
            .get(stripe_index)
            .is_some_and(|slot| slot.in_use().is_some())
    }

    /// Returns the number of stripes on devices that are not written, or on `without`.
    pub(crate) fn lost_stripes(&self, without: Option<&Arc<DeviceSlot>>) -> usize {
        let is_lost = |slot: &&Arc<DeviceSlot>| {
            !slot.is_written() || without.is_some_and(|other| Arc::ptr_eq(other, slot))
        };
        self.devices.iter().filter(is_lost).count()
    }

    /// Returns the number of stripes that the chunk may lose while all of it stays readable.
    pub(crate) fn tolerated_stripes(&self) -> usize {
        let tolerated = usize::from(self.layout.profile().tolerated_failures());
        if buttress_faults::on("volume-one-failure-too-many-tolerated") {
            return tolerated.exact_add(1);
        }
        tolerated
    }

    pub(crate) const fn has_stale(&self) -> bool {
        self.has_stale
    }

    pub(crate) fn is_stale(&self, stripe_index: usize) -> bool {
        self.devices
            .get(stripe_index)
            .is_some_and(|slot| slot.stale().is_some())
    }

    /// Returns the physical address of a byte of a stripe.
    pub(crate) fn physical(&self, stripe_index: usize, offset: StripeOffset) -> Result<Physical, Error> {
        let unmapped = || Corruption::Unmapped {
            logical: self.start,
            length: self.chunk.length,
        };
        let stripe = self.chunk.stripes.get(stripe_index).ok_or_else(unmapped)?;
        stripe
            .physical
            .checked_add(ByteCount::new(offset.get()))
            .ok_or_else(|| {
                Error::from(Corruption::StripeOverflow {
                    start: self.start,
                    stripe_index,
                    device: stripe.device,
                    physical: stripe.physical,
                    offset: offset.get(),
                })
            })
    }
}

/// The result of adding a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The chunk is new.
    New,
    /// The map already held the same chunk.
    Same,
    /// The map already held a chunk with the same range but other content, and keeps it.
    Differs,
}

/// All chunks of a volume, in address order.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    /// The `start` of each chunk, stored apart from the chunks so that a search touches few cache
    /// lines.
    starts: Vec<Logical>,
    chunks: Vec<Arc<MappedChunk>>,
}

impl ChunkMap {
    /// Returns the chunks in address order.
    #[must_use]
    pub fn chunks(&self) -> &[Arc<MappedChunk>] {
        &self.chunks
    }

    /// Returns the chunk that maps an address.
    #[must_use]
    pub fn find(&self, logical: Logical) -> Option<&Arc<MappedChunk>> {
        let after = self.starts.partition_point(|start| *start <= logical);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        (logical < chunk.end()).then_some(chunk)
    }

    /// Adds a chunk. Appends chunks that arrive in address order.
    pub(crate) fn add(&mut self, chunk: MappedChunk) -> Result<Added, Error> {
        let position = self.starts.partition_point(|start| *start < chunk.start);
        if let Some(known) = self.chunks.get(position)
            && known.start == chunk.start
            && known.length() == chunk.length()
        {
            return Ok(if known.chunk == chunk.chunk {
                Added::Same
            } else {
                Added::Differs
            });
        }
        let before = position.checked_sub(1).and_then(|before| self.chunks.get(before));
        let after = self.chunks.get(position);
        for other in before.into_iter().chain(after) {
            if chunk.start < other.end() && other.start < chunk.end() {
                return Err(Error::from(Corruption::ChunksOverlap {
                    start: chunk.start,
                    end: chunk.end(),
                    other_start: other.start,
                    other_end: other.end(),
                }));
            }
        }
        self.starts.insert(position, chunk.start);
        self.chunks.insert(position, Arc::new(chunk));
        Ok(Added::New)
    }

    /// Appends a chunk with an address above all other chunks.
    pub(crate) fn add_mapped(&mut self, chunk: Arc<MappedChunk>) {
        self.starts.push(chunk.start);
        self.chunks.push(chunk);
    }

    /// Replaces the chunk that begins at the same address.
    pub(crate) fn replace(&mut self, chunk: MappedChunk) {
        if let Ok(position) = self.starts.binary_search(&chunk.start)
            && let Some(place) = self.chunks.get_mut(position)
        {
            *place = Arc::new(chunk);
        }
    }

    /// Removes the chunk that begins at `start`. Returns false if no chunk begins at `start`.
    pub(crate) fn remove(&mut self, start: Logical) -> bool {
        let Ok(position) = self.starts.binary_search(&start) else {
            return false;
        };
        self.starts.remove(position);
        self.chunks.remove(position);
        true
    }
}
