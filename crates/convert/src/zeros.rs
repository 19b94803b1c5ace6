//! Free bytes of the old file system that were holes of its image file. A roll back makes them zero
//! again.
//!
//! The file `zero-blocks` beside the saved image lists them: pairs of first byte and length, both
//! little-endian numbers of 8 bytes. It is inline, so it has only the longest runs.
//!
//! Left out: zeros on block devices, because a device does not know its holes.

use crate::error::Result;
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::InodeNumber;
use core::cmp::Reverse;
use core::ops::Range;

/// The inode of the list in the saved image's subvolume.
pub(crate) const ZEROS: InodeNumber = InodeNumber::new(258);

/// The name of the list.
pub(crate) const NAME: &[u8] = b"zero-blocks";

/// The bytes of an entry.
const ENTRY_BYTES: usize = 16;

/// The largest number of runs in a list: 2 KiB.
const RUNS_MAX: usize = 128;

/// Returns the longest holes of the first `end` bytes of `device` outside of the `used` ranges, which
/// are in order. The result is in order, too.
pub(crate) fn find(device: &Device, used: &[Range<u64>], end: u64) -> Result<Vec<Range<u64>>> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < end {
        let data = device.next_data(at)?;
        let next = data.as_ref().map_or(end, |data| data.start.min(end));
        add_free(&mut holes, used, at..next);
        if holes.len() > RUNS_MAX.exact_mul(2) {
            keep_longest(&mut holes);
        }
        at = data.map_or(end, |data| data.end);
    }
    keep_longest(&mut holes);
    Ok(holes)
}

/// Adds the parts of a hole outside of the used ranges.
fn add_free(holes: &mut Vec<Range<u64>>, used: &[Range<u64>], hole: Range<u64>) {
    let mut at = hole.start;
    let first = used.partition_point(|run| run.end <= at);
    for run in used.iter().skip(first) {
        if run.start >= hole.end {
            break;
        }
        if at < run.start {
            holes.push(at..run.start);
        }
        at = at.max(run.end);
    }
    if at < hole.end {
        holes.push(at..hole.end);
    }
}

fn keep_longest(runs: &mut Vec<Range<u64>>) {
    runs.sort_by_key(|run| Reverse(run.end.exact_sub(run.start)));
    runs.truncate(RUNS_MAX);
    runs.sort_by_key(|run| run.start);
}

/// Returns the bytes of a list.
pub(crate) fn encode(runs: &[Range<u64>], bytes_max: usize) -> Vec<u8> {
    let most = bytes_max.quotient(ENTRY_BYTES);
    let entries = runs
        .iter()
        .take(most)
        .flat_map(|run| [run.start, run.end.exact_sub(run.start)]);
    entries.flat_map(u64::to_le_bytes).collect()
}

/// Returns the runs of a list that are outside of the `used` ranges and before `end`. The list is a
/// user's file, so other entries are possible.
pub(crate) fn decode(bytes: &[u8], used: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    for entry in bytes.chunks_exact(ENTRY_BYTES).take(RUNS_MAX) {
        let (start, length) = entry.split_at(8);
        let [start, length] =
            [start, length].map(|part| part.first_chunk::<8>().map(|part| u64::from_le_bytes(*part)));
        let (Some(start), Some(length)) = (start, length) else {
            continue;
        };
        let Some(run_end) = start.checked_add(length).filter(|run_end| *run_end <= end) else {
            continue;
        };
        add_free(&mut runs, used, start..run_end);
    }
    runs
}

/// Makes the bytes of all runs zero, except those of `kept`.
pub(crate) fn restore(device: &Device, runs: &[Range<u64>], kept: &Range<u64>) -> Result<()> {
    for run in runs {
        let parts = [
            run.start..run.end.min(kept.start),
            run.start.max(kept.end)..run.end,
        ];
        for part in parts {
            zero(device, part)?;
        }
    }
    Ok(())
}

/// Makes the bytes of a range zero, as far as they are no holes.
pub(crate) fn zero(device: &Device, range: Range<u64>) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let Some(data) = device.next_data(at)?.filter(|data| data.start < range.end) else {
            return Ok(());
        };
        let (start, end) = (data.start.max(at), data.end.min(range.end));
        device.zero(start, end.exact_sub(start))?;
        at = end;
    }
    Ok(())
}

const _: () = assert!(RUNS_MAX * ENTRY_BYTES <= 2048);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_longest_free_holes() {
        let used = [0..10, 20..30, 50..51];
        let mut holes = Vec::new();
        add_free(&mut holes, &used, 5..25);
        add_free(&mut holes, &used, 28..60);
        assert_eq!(holes, [10..20, 30..50, 51..60]);
        let many: Vec<_> = (0..300_u64).map(|run| run * 1000..run * 1000 + run + 1).collect();
        let mut kept = many.clone();
        keep_longest(&mut kept);
        assert_eq!(kept, many[300 - RUNS_MAX..]);
        let bytes = encode(&kept, 2048);
        assert_eq!(decode(&bytes, &[], u64::MAX), kept);
        assert_eq!(decode(&encode(&kept, 100), &[], u64::MAX), kept[..6]);
    }

    #[test]
    fn a_forged_list_names_no_used_byte() {
        let used = [0..4096, 8192..12_288];
        let forged = [0..u64::MAX, 0..16_384, 8192..8193, 5..5];
        let runs = decode(&encode(&forged, 2048), &used, 16_384);
        assert_eq!(runs, [4096..8192, 12_288..16_384]);
        let device = Device::memory(vec![7; 16_384]);
        restore(&device, &runs, &(4096..5000)).unwrap();
        let bytes = device.read(0, 16_384).unwrap();
        let kept: Vec<_> = bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == 7)
            .map(|(at, _)| at)
            .collect();
        let expected: Vec<_> = (0..5000).chain(8192..12_288).collect();
        assert_eq!(kept, expected);
    }
}
