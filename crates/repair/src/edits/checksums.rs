//! Checksums of data that has none.
//!
//! A checksum from the data itself proves nothing, so it needs a confirmation: an equal copy on
//! another device, or the owner's consent. Without one, the data stays without checksums.

use crate::items::Items;
use crate::steps::Applied;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::limits::item_bytes_max;
use buttress_format::{ByteCount, DeviceId, ItemType, Key, Logical, ObjectId, TreeId};
use buttress_fs::error::Result;
use buttress_volume::{ExtentRead, MappingContent, Volume};
use std::collections::BTreeSet;

/// The most items that one edit adds (see [`super::PLACES`]). Another round adds the rest.
const ITEMS_MAX: usize = 40;

/// The most bytes of data that an edit reads at once.
const DATA_BYTES_MAX: u64 = 4 << 20;

fn key_at(logical: u64) -> Key {
    Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, logical)
}

/// Adds the missing checksums of data in `[start, end)`.
pub(super) fn add(items: &mut Items<'_>, start: u64, end: u64) -> Result<Applied> {
    let sector_bytes = u64::from(items.sector_bytes());
    let checksum = items.running.core.format.checksum_type;
    let sum_bytes = checksum.size_bytes();
    // Half of a leaf leaves space for other items.
    let sums_max = item_bytes_max(items.running.core.format.node_bytes)
        .quotient(sum_bytes)
        .max(2);
    let piece = u64_of(sums_max >> 1).exact_mul(sector_bytes).min(DATA_BYTES_MAX);
    let (mut at, mut added, mut unconfirmed) = (start, 0, false);
    while at < end && added < ITEMS_MAX {
        let (gap_start, gap_end) = gap(items, at, end, sum_bytes)?;
        let stop = gap_end.min(gap_start.exact_add(piece));
        if gap_start >= stop {
            break;
        }
        at = stop;
        let Some(data) = confirmed(items, gap_start, stop)? else {
            unconfirmed = true;
            continue;
        };
        let mut sums = Vec::new();
        checksum.compute_sectors(&data, sector_bytes.narrow(), &mut sums);
        items.put(TreeId::CHECKSUM, &key_at(gap_start), &sums)?;
        added = added.exact_add(1);
    }
    Ok(match (added, unconfirmed) {
        (0, true) => Applied::Nothing(
            "no copy on another device confirms the data: `--yes-to checksum-missing` accepts the data as it is",
        ),
        (0, false) => Applied::Nothing("the data has checksums"),
        _ => Applied::Changed,
    })
}

/// Returns the next range in `[at, end)` without checksums, which is empty if there is none.
fn gap(items: &mut Items<'_>, at: u64, end: u64, sum_bytes: usize) -> Result<(u64, u64)> {
    let sector_bytes = u64::from(items.sector_bytes());
    let mut start = at;
    while start < end {
        let before = items.running.at_or_before(TreeId::CHECKSUM, &key_at(start))?;
        let covered = before
            .filter(|item| item.key().item_type == ItemType::EXTENT_CSUM)
            .and_then(|item| {
                let sectors = u64_of(item.data().len().quotient(sum_bytes));
                let length = sectors.checked_mul(sector_bytes)?;
                item.key().offset.checked_add(length)
            });
        match covered.filter(|covered| *covered > start) {
            Some(covered) => start = covered,
            None => break,
        }
    }
    let next = items.running.at_or_after(TreeId::CHECKSUM, &key_at(start))?;
    let next = next.filter(|item| item.key().item_type == ItemType::EXTENT_CSUM);
    // Clamp: without a further item, the gap ends with the range.
    let stop = next.map_or(end, |item| item.key().offset.min(end));
    Ok((start, stop))
}

/// Returns the data of a range if it is confirmed.
fn confirmed(items: &Items<'_>, start: u64, end: u64) -> Result<Option<Vec<u8>>> {
    let volume = items.volume;
    let logical = Logical::new(start);
    let length = end.exact_sub(start);
    let read = ExtentRead {
        logical,
        length: length.narrow(),
    };
    // A copy that cannot be read confirms nothing.
    let Ok(first) = volume.read_copy(read, 1) else {
        return Ok(None);
    };
    let first = first.to_vec();
    if items.accepts_data {
        return Ok(Some(first));
    }
    if devices_of_copies(volume, logical, ByteCount::new(length))? < 2 {
        return Ok(None);
    }
    for copy in 2..=volume.copies(logical)? {
        let is_equal = volume
            .read_copy(read, copy)
            .is_ok_and(|other| other[..] == first[..]);
        if !is_equal {
            return Ok(None);
        }
    }
    Ok(Some(first))
}

/// Returns the least number of devices that hold a copy of a part of the range.
fn devices_of_copies(volume: &Volume, logical: Logical, length: ByteCount) -> Result<usize> {
    let mut runs: std::collections::BTreeMap<Logical, BTreeSet<DeviceId>> = std::collections::BTreeMap::new();
    for mapping in volume.map(logical, length)? {
        if matches!(mapping.content, MappingContent::Data { .. }) {
            runs.entry(mapping.logical).or_default().insert(mapping.device);
        }
    }
    // Clamp: a range without a mapping has no copies.
    Ok(runs.values().map(BTreeSet::len).min().unwrap_or(0))
}
