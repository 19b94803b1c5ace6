//! Single copies and stripes: for scrub, repair and replace, and to show the location of an
//! address.
//!
//! Copies are counted from 1, like mirrors in btrfs-progs. With parity, copy 1 is the direct read,
//! and the other copies are ways to rebuild it (see the table in the module `mirror`). A read of
//! one copy tests that copy alone: no other copy replaces it, no verifier runs, and the fault log
//! records nothing.

use crate::Volume;
use crate::devices::DeviceSlot;
use crate::error::{Corruption, Error};
use crate::faults::FaultReason;
use crate::fetch::{fetch, reachable};
use crate::layout::{Content, StripeOffset};
use crate::mirror::Segment;
use crate::read::ExtentRead;
use buttress_device::Buffer;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::checksum::CHECKSUM_FIELD_BYTES;
use buttress_format::node::{Header, RawHeader};
use buttress_format::{ByteCount, DeviceId, Generation, Logical, Physical};
use std::sync::Arc;
use uuid::Uuid;
use zerocopy::FromBytes;

/// The content to which a mapping points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappingContent {
    /// A copy of the data bytes.
    Data {
        /// The number of the copy, from 1.
        copy: u32,
    },
    /// Parity `P` of the row that holds the bytes.
    P,
    /// Parity `Q` of the row that holds the bytes.
    Q,
}

/// The location of a run of logical addresses on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address of the run.
    pub logical: Logical,
    /// The length of the run, which is contiguous on the device.
    pub length: ByteCount,
    /// The device that holds the run.
    pub device: DeviceId,
    /// The device's uuid.
    pub device_uuid: Uuid,
    /// The first byte of the run on the device.
    pub physical: Physical,
    /// The kind of content: a copy, or parity.
    pub content: MappingContent,
    /// True if the device is missing.
    pub missing: bool,
}

impl Volume {
    /// Returns the number of copies of the chunk that maps `logical`. With parity, the number is
    /// one plus the number of ways to rebuild the bytes.
    ///
    /// # Errors
    /// Returns [`Corruption::Unmapped`] if no chunk maps the address.
    pub fn copies(&self, logical: Logical) -> Result<u32, Error> {
        let map = self.chunk_map();
        let chunk = map.find(logical).ok_or(Corruption::Unmapped {
            logical,
            length: ByteCount::new(1),
        })?;
        Ok(chunk.layout().ways())
    }

    /// Returns all locations of a range, run by run in logical order. Each run of the result lists
    /// its copies in order, then parity.
    ///
    /// # Errors
    /// Fails if the range is not fully mapped, or if a stripe lies outside its device's physical
    /// address space.
    pub fn map(&self, logical: Logical, length: ByteCount) -> Result<Vec<Mapping>, Error> {
        // A range too large for memory is also too large for a read.
        let length = length.at_most(usize::MAX);
        let mut mappings = Vec::new();
        for segment in self.segments(ExtentRead { logical, length })? {
            let place = segment.place;
            let copies = (0..place.copies).map(|copy| {
                let content = MappingContent::Data {
                    copy: copy.exact_add(1).narrow(),
                };
                (place.stripe_index.exact_add(copy), content)
            });
            let columns = segment.chunk.layout().data_columns();
            let parity = [
                (columns, MappingContent::P),
                (columns.exact_add(1), MappingContent::Q),
            ];
            let parity = parity.into_iter().filter_map(|(column, content)| {
                Some((
                    segment
                        .chunk
                        .layout()
                        .stripe_of_column(place.parity?.row, column)?,
                    content,
                ))
            });
            for (stripe_index, content) in copies.chain(parity) {
                let Some(slot) = segment.chunk.devices().get(stripe_index) else {
                    continue;
                };
                mappings.push(Mapping {
                    logical: segment.logical,
                    length: ByteCount::of(segment.length()),
                    device: slot.id(),
                    device_uuid: slot.uuid(),
                    physical: segment.physical_on(stripe_index),
                    content,
                    missing: slot.device().is_none(),
                });
            }
        }
        Ok(mappings)
    }

    /// Reads one copy of a range, without verification.
    ///
    /// # Errors
    /// Returns [`Error::NoSuchCopy`] if the chunk has no copy with this number. Returns
    /// [`Error::Unreadable`] if the device is missing or fails.
    pub fn read_copy(&self, read: ExtentRead, copy: u32) -> Result<Buffer, Error> {
        self.read_copy_of(read, copy, false)
    }

    /// Reads one copy like [`Volume::read_copy`], but not from devices that missed commits. A
    /// rebuild from a stale column or stale parity can yield an older block, which passes the same
    /// checks as the current block.
    pub(crate) fn read_current_copy(&self, read: ExtentRead, copy: u32) -> Result<Buffer, Error> {
        self.read_copy_of(read, copy, true)
    }

    fn read_copy_of(&self, read: ExtentRead, copy: u32, is_current: bool) -> Result<Buffer, Error> {
        let mut joined: Option<Buffer> = None;
        for mut segment in self.segments(read)? {
            if is_current {
                segment.distrust_stale();
            }
            let copies = segment.chunk.layout().ways();
            if copy == 0 || copy > copies {
                return Err(Error::NoSuchCopy {
                    logical: segment.logical,
                    copy,
                    copies,
                });
            }
            let way = segment.ways.iter().find(|way| way.copy == copy);
            let bytes = match way {
                Some(way) => fetch(self.row_locks(), &segment, *way, 0..segment.length())
                    .map_err(|attempt| segment.unreadable(vec![attempt]))?,
                None => return Err(segment.unreadable(Vec::new())),
            };
            if bytes.len() == read.length {
                return Ok(bytes);
            }
            let joined = joined.get_or_insert_with(|| Buffer::zeroed(read.length));
            if let Some(place) = joined.get_mut(segment.range.clone()) {
                place.copy_from_slice(&bytes);
            }
        }
        joined.ok_or(
            Corruption::Unmapped {
                logical: read.logical,
                length: ByteCount::of(read.length),
            }
            .into(),
        )
    }

    /// Returns two devices whose copies of a tree block differ, although both are whole and of this
    /// address and generation. The devices with these different copies were written apart from each
    /// other. Returns `None` if no two intact copies differ.
    #[must_use]
    pub fn differing_copies(
        &self,
        logical: Logical,
        generation: Generation,
    ) -> Option<(Arc<DeviceSlot>, Arc<DeviceSlot>)> {
        let length = usize_of(self.block_format().node_bytes);
        let read = ExtentRead { logical, length };
        let slots = self.devices();
        let mut first: Option<(Arc<DeviceSlot>, Buffer)> = None;
        for mapping in self.map(logical, ByteCount::of(length)).ok()? {
            let MappingContent::Data { copy } = mapping.content else {
                continue;
            };
            let slot = slots.iter().find(|slot| slot.uuid() == mapping.device_uuid)?;
            let Ok(bytes) = self.read_copy(read, copy) else {
                continue;
            };
            if !self.is_block_of(&bytes, logical, generation) {
                continue;
            }
            match &first {
                None => first = Some((Arc::clone(slot), bytes)),
                Some((other, known)) if known[..] != bytes[..] => {
                    return Some((Arc::clone(other), Arc::clone(slot)));
                }
                Some(_) => {}
            }
        }
        None
    }

    pub(crate) fn is_block_of(&self, bytes: &[u8], logical: Logical, generation: Generation) -> bool {
        let Ok((raw, _)) = RawHeader::ref_from_prefix(bytes) else {
            return false;
        };
        let checksum_type = self.block_format().checksum_type;
        let header = Header::from_raw(raw, checksum_type);
        let covered = bytes.get(CHECKSUM_FIELD_BYTES..);
        header.logical == logical
            && header.generation == generation
            && covered.is_some_and(|covered| header.checksum == checksum_type.compute(covered))
    }

    /// Reads a stripe of the chunk at `logical` as stored on its device, including parity and
    /// unused parts.
    ///
    /// # Errors
    /// Returns [`Corruption::Unmapped`] if no such chunk or stripe exists, or if the range leaves
    /// the stripe. Returns [`Error::Unreadable`] if the device is missing or fails.
    pub fn read_stripe(
        &self,
        logical: Logical,
        stripe_index: usize,
        offset: StripeOffset,
        length: usize,
    ) -> Result<Buffer, Error> {
        let unmapped = Corruption::Unmapped {
            logical,
            length: ByteCount::of(length),
        };
        let map = self.chunk_map();
        let chunk = map.find(logical).ok_or(unmapped.clone())?;
        let end = offset.get().checked_add(ByteCount::of(length).get());
        let last = end.and_then(|end| end.checked_sub(1)).map(StripeOffset::new);
        let inside = last
            .and_then(|last| chunk.layout().content(stripe_index, last))
            .is_some();
        if !inside || length == 0 {
            return Err(unmapped.into());
        }
        let physical = chunk.physical(stripe_index, offset)?;
        let read = reachable(chunk, stripe_index, physical, length)
            .and_then(|device| device.read(physical.get(), length).map_err(FaultReason::Io));
        read.map_err(|reason| {
            let attempt = crate::Attempt {
                copy: 1,
                device: chunk.stripe_device(stripe_index),
                physical,
                reason,
            };
            crate::Unreadable {
                logical,
                length: ByteCount::of(length),
                attempts: vec![attempt],
            }
            .into()
        })
    }

    /// Returns the content at `physical` on a device: each chunk with a stripe there, and the
    /// content of the stripe.
    ///
    /// Chunks of the RAID stripe tree place data freely in their stripes, so the result is not the
    /// location of their data. The search visits all chunks of the volume.
    #[must_use]
    pub fn contents_at(&self, device: Uuid, physical: Physical) -> Vec<(Logical, Content)> {
        let map = self.chunk_map();
        let mut found = Vec::new();
        for chunk in map.chunks() {
            for (stripe_index, stripe) in chunk.chunk().stripes.iter().enumerate() {
                let offset = physical.checked_distance_from(stripe.physical);
                let offset = offset.filter(|_| stripe.device_uuid == device);
                let content = offset.and_then(|offset| {
                    chunk
                        .layout()
                        .content(stripe_index, StripeOffset::new(offset.get()))
                });
                found.extend(content.map(|content| (chunk.start(), content)));
            }
        }
        found
    }

    /// Returns the segments of an extent. Fails if the location of any segment is unknown.
    fn segments(&self, read: ExtentRead) -> Result<impl Iterator<Item = Segment>, Error> {
        let plan = self.plan(read)?;
        match plan.iter().find_map(|pending| pending.segment.failure.clone()) {
            Some(failure) => Err(failure),
            None => Ok(plan.into_iter().map(|pending| pending.segment)),
        }
    }
}
