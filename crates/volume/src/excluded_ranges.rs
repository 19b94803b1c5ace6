//! Addresses that are never handed out, although no extent covers them.
//!
//! Three kinds, and of each what a chunk's stripes have of it:
//!
//! - the first 64 KiB of the logical address space: file extents say "hole" with address 0, and superblocks "no tree". The
//!   first chunk of volumes that old versions of mkfs.btrfs made begins there;
//! - what superblock copies lie behind;
//! - the first MiB of each device: boot loaders live there, and no chunk begins there that was made since about 2015. The
//!   kernel goes by this only when it makes chunks; of older chunks it also uses what lies between 68 KiB and 1 MiB.
//!
//! What was written to such places before stays until it is freed; then it is not used again.
//!
//! Source: on-disk format documentation, section "Superblock"; btrfs(5), section "Bootloader support".

use crate::chunk_map::MappedChunk;
use crate::layout::{Content, Layout, StripeOffset};
use buttress_format::{ByteCount, DEVICE_RESERVED_BYTES, Logical, Physical, SUPERBLOCK_OFFSETS};
use core::ops::Range;

/// The first address that extents may have.
const FIRST_LOGICAL: Logical = Logical::new(64 << 10);

/// A superblock copy keeps a whole stripe unit from being used.
const SUPERBLOCK_KEEPS_BYTES: u64 = 64 << 10;

/// The smallest piece of a stripe that is looked at: no sector is smaller.
const STEP_BYTES: u64 = 4096;

/// The addresses of a chunk that are kept out, in order, merged.
pub fn of_chunk(chunk: &MappedChunk) -> Vec<Range<u64>> {
    let stripes: Vec<Physical> = chunk
        .chunk()
        .stripes
        .iter()
        .map(|stripe| stripe.physical)
        .collect();
    excluded_ranges(chunk.start()..chunk.end(), chunk.layout(), &stripes)
}

/// As [`of_chunk`], for a chunk with these addresses whose stripes begin on their devices at `stripes`. Where there is
/// parity, all of a row is kept out: parity over a superblock would be wrong with the next commit, and would overwrite one
/// that lies in its own unit.
pub fn excluded_ranges(addresses: Range<Logical>, layout: &Layout, stripes: &[Physical]) -> Vec<Range<u64>> {
    let (start, end) = (addresses.start.get(), addresses.end.get());
    // Empty for all chunks but one that begins below it.
    let mut ranges: Vec<Range<u64>> = core::iter::once(start..FIRST_LOGICAL.get()).collect();
    let device_extent_bytes = layout.device_extent_bytes().get();
    for (index, stripe) in stripes.iter().enumerate() {
        for reserved in reserved_of_devices() {
            let mut at = reserved.start.max(stripe.get());
            let stop = reserved.end.min(stripe.get().saturating_add(device_extent_bytes));
            while at < stop {
                let offset = StripeOffset::new(at.saturating_sub(stripe.get()));
                // Step by step, since a unit of striping may begin anywhere in it.
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

/// What is not used of any device.
fn reserved_of_devices() -> impl Iterator<Item = Range<u64>> {
    let superblock = |at: Physical| at.get()..at.get().saturating_add(SUPERBLOCK_KEEPS_BYTES);
    core::iter::once(0..DEVICE_RESERVED_BYTES).chain(SUPERBLOCK_OFFSETS.into_iter().map(superblock))
}

/// Ranges in order, without those that are empty, and not past `end`. Several stripes can lie behind the same addresses.
fn merged(mut ranges: Vec<Range<u64>>, end: u64) -> Vec<Range<u64>> {
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

/// The addresses of the row in which an offset of a stripe lies.
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

    /// Whether a sector must stay free, from the address to the devices: where it lies itself, and in a profile with parity
    /// where its whole row does.
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

    /// Sector by sector, in both directions: chunks of every profile that begin where old versions of mkfs.btrfs put them,
    /// in the middle of what is reserved, over a superblock copy, and away from all of it.
    #[test]
    fn what_lies_on_reserved_bytes_of_a_device_is_kept_out_and_nothing_else() {
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

    /// The first chunk of an old volume: as the kernel has it, and what boot loaders may use.
    #[test]
    fn a_chunk_at_address_0_begins_to_be_used_after_the_first_mib() {
        let layout = Layout::new(Profile::Single, ByteCount::new(4 * MIB), 1, 1, STRIPE_BYTES).unwrap();
        let addresses = |start: u64| Logical::new(start)..Logical::new(start + 4 * MIB);
        let only = |start, physical, wanted: Range<u64>| {
            let ranges = excluded_ranges(addresses(start), &layout, &[Physical::new(physical)]);
            assert_eq!(ranges, vec![wanted], "{start} at {physical}");
        };
        only(0, 0, 0..MIB);
        // No address, wherever it lies.
        only(0, 2 * MIB, 0..STRIPE_BYTES);
        only(8 * MIB, 0, 8 * MIB..9 * MIB);
    }
}
