//! Excluded ranges: addresses that are never allocated, although no extent covers them.
//!
//! Three kinds of addresses are excluded from allocation. For each kind of excluded address, a
//! chunk excludes the part that its stripes cover:
//!
//! - the first 64 KiB of the logical address space: file extents use address 0 for a hole, and
//!   superblocks use it for a missing tree. The first chunk of volumes that old versions of
//!   mkfs.btrfs made begins at this address;
//! - the addresses of superblock copies on each device;
//! - the first MiB of each device, which btrfs reserves for boot loaders. Since about 2015, no new
//!   chunk begins in the first MiB of a device. The kernel avoids the first MiB only when it makes
//!   chunks. In older chunks, the kernel also uses the bytes between 68 KiB and 1 MiB.
//!
//! Data in excluded addresses of an older volume stays there until its extents are freed. Once
//! freed, excluded addresses are not used again.
//!
//! Source: on-disk format documentation, section "Superblock"; btrfs(5), section "Bootloader
//! support".

use crate::chunk_map::MappedChunk;
use crate::layout::{Content, Layout, StripeOffset};
use buttress_format::{ByteCount, DEVICE_RESERVED_BYTES, Logical, Physical, SUPERBLOCK_OFFSETS};
use core::ops::Range;

/// The first address that an extent may have.
const FIRST_LOGICAL: Logical = Logical::new(64 << 10);

/// A superblock copy excludes a whole stripe unit.
const SUPERBLOCK_KEEPS_BYTES: u64 = 64 << 10;

/// The granularity in bytes of the checks, which is the smallest sector size.
const STEP_BYTES: u64 = 4096;

/// Returns the excluded addresses of a chunk, in order and merged.
pub fn of_chunk(chunk: &MappedChunk) -> Vec<Range<u64>> {
    let stripes: Vec<Physical> = chunk
        .chunk()
        .stripes
        .iter()
        .map(|stripe| stripe.physical)
        .collect();
    excluded_ranges(chunk.start()..chunk.end(), chunk.layout(), &stripes)
}

/// Returns the excluded addresses like [`of_chunk`], for a chunk with these addresses whose stripes
/// begin at `stripes` on their devices. With parity, the whole row that covers the reserved bytes
/// is excluded. Parity that covers a superblock would be wrong after the next commit, and would
/// overwrite superblocks in its own unit.
pub fn excluded_ranges(addresses: Range<Logical>, layout: &Layout, stripes: &[Physical]) -> Vec<Range<u64>> {
    let (start, end) = (addresses.start.get(), addresses.end.get());
    // The excluded range at the chunk's start is empty unless the chunk begins below the first
    // usable address.
    let mut ranges: Vec<Range<u64>> = core::iter::once(start..FIRST_LOGICAL.get()).collect();
    let device_extent_bytes = layout.device_extent_bytes().get();
    for (index, stripe) in stripes.iter().enumerate() {
        for reserved in reserved_of_devices() {
            let mut at = reserved.start.max(stripe.get());
            let stop = reserved.end.min(stripe.get().saturating_add(device_extent_bytes));
            while at < stop {
                let offset = StripeOffset::new(at.saturating_sub(stripe.get()));
                // The loop checks the range in small steps, because a stripe unit may begin
                // anywhere in the excluded range.
                if layout.has_parity() {
                    ranges.push(row_of(start, layout, offset));
                } else if let Some(Content::Data(data)) = layout.content(index, offset) {
                    let first = start.saturating_add(data.get());
                    ranges.push(first..first.saturating_add(STEP_BYTES));
                }
                at = at.saturating_add(STEP_BYTES);
            }
        }
    }
    merged(ranges, end)
}

/// Returns the physical ranges that btrfs reserves on every device.
fn reserved_of_devices() -> impl Iterator<Item = Range<u64>> {
    let superblock = |at: Physical| at.get()..at.get().saturating_add(SUPERBLOCK_KEEPS_BYTES);
    core::iter::once(0..DEVICE_RESERVED_BYTES).chain(SUPERBLOCK_OFFSETS.into_iter().map(superblock))
}

/// Returns the ranges merged and without empty ranges, up to `end`. Several stripes can cover the
/// same addresses.
#[must_use]
pub fn merged(mut ranges: Vec<Range<u64>>, end: u64) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = range.start..range.end.min(end);
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the addresses of the row that holds an offset of a stripe.
fn row_of(start: u64, layout: &Layout, offset: StripeOffset) -> Range<u64> {
    let row = offset.get().checked_div(layout.stripe_bytes()).unwrap_or(0);
    let columns = ByteCount::of(layout.data_columns()).get();
    let row_bytes = columns.saturating_mul(layout.stripe_bytes());
    let first = start.saturating_add(row.saturating_mul(row_bytes));
    first..first.saturating_add(row_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ChunkOffset;
    use buttress_format::{Profile, STRIPE_BYTES};

    const MIB: u64 = 1 << 20;
    const SECTOR: u64 = 4096;

    /// Returns true if no extent may use a sector. The function maps the sector, or with parity its
    /// whole row, to the devices.
    fn must_stay_free(start: u64, layout: &Layout, stripes: &[u64], sector: u64) -> bool {
        let place = layout.place(ChunkOffset::new(sector)).unwrap();
        let behind = place.stripe_offset.get();
        let (from, length, indexes) = if layout.has_parity() {
            (behind - behind % STRIPE_BYTES, STRIPE_BYTES, 0..stripes.len())
        } else {
            (
                behind,
                SECTOR,
                place.stripe_index..place.stripe_index + place.copies,
            )
        };
        let reserved = [
            (0, MIB),
            (MIB / 16, STRIPE_BYTES),
            (64 * MIB, STRIPE_BYTES),
            (256 << 30, STRIPE_BYTES),
        ];
        let touches = |index: usize| {
            let first = stripes[index] + from;
            reserved
                .iter()
                .any(|(at, bytes)| first < at + bytes && *at < first + length)
        };
        start + sector < FIRST_LOGICAL.get() || indexes.into_iter().any(touches)
    }

    /// The test maps every sector of chunks of every profile in both directions. The tested chunks
    /// begin where old versions of mkfs.btrfs put chunks: inside the reserved range, over a
    /// superblock copy, and outside both.
    #[test]
    fn exactly_the_addresses_on_reserved_bytes_are_excluded() {
        let places = [
            0,
            MIB / 16 - 8192,
            MIB - STRIPE_BYTES,
            MIB,
            63 * MIB + 3 * STRIPE_BYTES,
            64 * MIB - 8192,
            64 * MIB,
            64 * MIB + STRIPE_BYTES,
            (256 << 30) - MIB,
        ];
        for profile in Profile::ALL {
            let count = usize::from(profile.min_devices()).max(2) + 1;
            let count = match profile {
                Profile::Single => 1,
                Profile::Dup | Profile::Raid1 => 2,
                Profile::Raid1C3 => 3,
                Profile::Raid1C4 | Profile::Raid10 => 4,
                Profile::Raid0 | Profile::Raid5 | Profile::Raid6 => count,
            };
            let sub_stripes = if profile == Profile::Raid10 { 2 } else { 1 };
            for (number, place) in places.iter().enumerate() {
                for start in [0, STRIPE_BYTES / 2, STRIPE_BYTES, 20 * MIB] {
                    let length = ByteCount::new(4 * MIB);
                    let layout = Layout::new(profile, length, count, sub_stripes, STRIPE_BYTES).unwrap();
                    let stripes: Vec<u64> = (0..count)
                        .map(|stripe| places[(number + stripe * 4) % places.len()])
                        .collect();
                    assert_eq!(stripes[0], *place);
                    let physical: Vec<Physical> = stripes.iter().copied().map(Physical::new).collect();
                    let addresses = Logical::new(start)..Logical::new(start + length.get());
                    let ranges = excluded_ranges(addresses.clone(), &layout, &physical);
                    assert!(
                        ranges.is_sorted_by(|one, next| one.end < next.start),
                        "{ranges:?}"
                    );
                    assert!(ranges.iter().all(|range| range.end <= addresses.end.get()));
                    for sector in (0..length.get()).step_by(4096) {
                        let is_kept = ranges.iter().any(|range| range.contains(&(start + sector)));
                        let must = must_stay_free(start, &layout, &stripes, sector);
                        assert_eq!(is_kept, must, "{profile} at {start}, {stripes:?}: {sector}");
                    }
                }
            }
        }
    }

    /// The first chunk of an old volume has the kernel's layout, and excludes the bytes reserved
    /// for boot loaders.
    #[test]
    fn a_chunk_at_address_0_begins_to_be_used_after_the_first_mib() {
        let layout = Layout::new(Profile::Single, ByteCount::new(4 * MIB), 1, 1, STRIPE_BYTES).unwrap();
        let addresses = |start: u64| Logical::new(start)..Logical::new(start + 4 * MIB);
        let only = |start, physical, wanted: Range<u64>| {
            let ranges = excluded_ranges(addresses(start), &layout, &[Physical::new(physical)]);
            assert_eq!(ranges, vec![wanted], "{start} at {physical}");
        };
        only(0, 0, 0..MIB);
        // This test chunk has no excluded address.
        only(0, 2 * MIB, 0..STRIPE_BYTES);
        only(8 * MIB, 0, 8 * MIB..9 * MIB);
    }
}
