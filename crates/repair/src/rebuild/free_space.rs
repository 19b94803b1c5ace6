//! The free-space items of one block group.

use super::places::Group;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::free_space::{BITMAP_MAX_BYTES, bitmap_range_bytes};
use buttress_format::{ByteCount, FreeSpaceBitmap, FreeSpaceExtent, FreeSpaceInfo, Key, Logical};
use core::ops::Range;

/// Returns the items of a block group in which these ranges are free.
pub(super) fn items(group: &Group, free: &[Range<u64>], sector_bytes: u32) -> Vec<(Key, Vec<u8>)> {
    let count = u64_of(free.len()).narrow();
    let uses_bitmaps = count > FreeSpaceInfo::bitmap_threshold(group.length(), sector_bytes);
    let info = FreeSpaceInfo {
        start: Logical::new(group.start),
        length: group.length(),
        extent_count: count,
        flags: if uses_bitmaps {
            FreeSpaceInfo::USING_BITMAPS
        } else {
            0
        },
    };
    let mut items = vec![(info.key(), info.to_bytes().to_vec())];
    if uses_bitmaps {
        add_bitmaps(&mut items, group, free, sector_bytes);
    } else {
        items.extend(free.iter().map(|range| {
            let extent = FreeSpaceExtent {
                start: Logical::new(range.start),
                length: ByteCount::new(range.end.exact_sub(range.start)),
            };
            (extent.key(), Vec::new())
        }));
    }
    items
}

fn add_bitmaps(items: &mut Vec<(Key, Vec<u8>)>, group: &Group, free: &[Range<u64>], sector_bytes: u32) {
    let whole = bitmap_range_bytes(sector_bytes);
    let sector = u64::from(sector_bytes);
    let mut ranges = free.iter().peekable();
    let mut start = group.start;
    while start < group.end {
        let end = start.exact_add(whole).min(group.end);
        let sectors = end.exact_sub(start).div_ceil(sector);
        let mut bits = vec![0; sectors.div_ceil(8).narrow::<usize>().min(BITMAP_MAX_BYTES)];
        while let Some(range) = ranges.peek().filter(|range| range.start < end) {
            let from = range.start.max(start).exact_sub(start).quotient(sector);
            let to = range.end.min(end).exact_sub(start).quotient(sector);
            FreeSpaceBitmap::mark(&mut bits, from.narrow()..to.narrow(), true);
            if range.end > end {
                break;
            }
            ranges.next();
        }
        let bitmap = FreeSpaceBitmap {
            start: Logical::new(start),
            length: ByteCount::new(end.exact_sub(start)),
            bits: &bits,
        };
        items.push((bitmap.key(), bits.clone()));
        start = end;
    }
}
