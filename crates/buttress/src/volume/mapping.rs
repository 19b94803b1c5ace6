//! Logical addresses as places on devices.

use super::Volume;
use crate::error::Result;
use buttress_format::{ByteCount, DeviceId, ItemType, Key, Logical, ObjectId, Physical, Profile, TreeId};
use buttress_tree::ReadAhead;
use buttress_volume::MappedChunk;
use buttress_volume::layout::Layout;
use core::ops::Range;

/// A place of bytes on a device. Returned by [`Volume::copies`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyPlace {
    /// The number of the copy, from 1. For RAID5 and RAID6, the copies 2 and 3 are the places of the
    /// parity.
    pub copy: u32,
    /// The first address.
    pub logical: Logical,
    /// The number of bytes that are contiguous on the device. Copies of several stripes are
    /// returned stripe by stripe.
    pub length: ByteCount,
    /// The device.
    pub device: DeviceId,
    /// The offset on the device.
    pub physical: Physical,
}

impl Volume {
    /// Returns the places of all bytes of a range: of each copy, in the order of addresses. A part
    /// of the range that no chunk maps has no place.
    ///
    /// ```
    /// # use buttress::{ByteCount, Device, Volume};
    /// # let volume = Volume::create().on_devices(vec![Device::memory(vec![0; 256 << 20])])?;
    /// let extent = volume.extents(buttress::Logical::new(0), ByteCount::new(u64::MAX))?[0].clone();
    /// let copies = volume.copies(extent.start, ByteCount::new(4096));
    /// assert_eq!(copies[0].logical, extent.start);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn copies(&self, start: Logical, length: ByteCount) -> Vec<CopyPlace> {
        // Clamp: a range may end after the last address.
        let end = start.saturating_add(length);
        let map = self.view().volume().chunk_map();
        let chunks = map.chunks().iter();
        let mut found = Vec::new();
        for chunk in chunks {
            let from = start.max(chunk.start());
            let to = end.min(chunk.end());
            if from >= to {
                continue;
            }
            let layout = chunk.layout();
            let copies = match layout.profile() {
                Profile::Raid5 => 2,
                Profile::Raid6 => 3,
                _ => layout.ways(),
            };
            for copy in 1..=copies {
                copy_of(chunk, copy, from, to, &mut found);
            }
        }
        found
    }

    /// Returns the ranges of all extents of the extent tree that overlap a range of addresses, in
    /// order.
    ///
    /// # Errors
    /// Fails if the extent tree cannot be read.
    pub fn extents(&self, start: Logical, length: ByteCount) -> Result<Vec<Range<Logical>>> {
        // Clamp: a range may end after the last address.
        let end = start.saturating_add(length);
        let filesystem = self.view();
        let node_bytes = u64::from(filesystem.superblock().node_bytes);
        let range_of = |key: &Key| {
            let length = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => node_bytes,
                _ => return None,
            };
            let start = Logical::new(key.objectid.get());
            Some(start..start.checked_add(ByteCount::new(length))?)
        };
        let tree = filesystem.tree(TreeId::EXTENT)?;
        let mut cursor = tree.cursor(ReadAhead::default());
        let key = |logical: Logical| Key::new(ObjectId::new(logical.get()), ItemType(0), 0);
        let first = key(start);
        let mut before = None;
        cursor
            .seek_at_or_before(&first)
            .map_err(buttress_fs::Error::from)?;
        // References and block groups may follow the extent's own item.
        while let Some(key) = cursor.key() {
            before = range_of(&key);
            if before.is_some() || !cursor.previous().map_err(buttress_fs::Error::from)? {
                break;
            }
        }
        let mut found: Vec<_> = before.filter(|range| range.end > start).into_iter().collect();
        for item in tree.range(first..key(end), ReadAhead::default()) {
            let item = item.map_err(buttress_fs::Error::from)?;
            if let Some(range) = range_of(&item.key())
                && found.last().is_none_or(|last| *last != range)
            {
                found.push(range);
            }
        }
        Ok(found)
    }
}

/// Adds the places of one copy of a range in a chunk.
fn copy_of(chunk: &MappedChunk, copy: u32, from: Logical, to: Logical, found: &mut Vec<CopyPlace>) {
    let layout = chunk.layout();
    let mut at = from;
    while at < to {
        let Some((stripe, offset, run)) = place_of(chunk, layout, copy, at) else {
            return;
        };
        let left = to.distance_from(at);
        let length = run.min(left);
        let stripe = chunk.chunk().stripes.get(stripe);
        let physical = stripe.and_then(|stripe| stripe.physical.checked_add(ByteCount::new(offset)));
        if let (Some(stripe), Some(physical)) = (stripe, physical) {
            found.push(CopyPlace {
                copy,
                logical: at,
                length,
                device: stripe.device,
                physical,
            });
        }
        at = at.exact_add(length);
    }
}

/// Returns the stripe of a copy, the offset in the stripe, and the number of bytes up to the next
/// stripe.
fn place_of(chunk: &MappedChunk, layout: &Layout, copy: u32, at: Logical) -> Option<(usize, u64, ByteCount)> {
    let offset = chunk.offset_of(at)?;
    let place = layout.place(offset)?;
    let number = usize::try_from(copy.checked_sub(1)?).ok()?;
    let stripe = match (place.parity, number) {
        (None, number) => place.stripe_index.checked_add(number)?,
        (Some(_), 0) => place.stripe_index,
        (Some(column), parity) => {
            let column_of_parity = layout.data_columns().checked_add(parity.checked_sub(1)?)?;
            layout.stripe_of_column(column.row, column_of_parity)?
        }
    };
    // Copies are listed stripe by stripe, as btrfs-map-logical prints them.
    let within = offset.get().checked_rem(layout.stripe_bytes())?;
    let to_next = ByteCount::new(layout.stripe_bytes().checked_sub(within)?);
    let run = match layout.profile() {
        Profile::Single => place.length,
        _ => place.length.min(to_next),
    };
    Some((stripe, place.stripe_offset.get(), run))
}
