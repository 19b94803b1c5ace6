//! The dirty data of one file: whole sectors, in order of their file offset.

use buttress_exact::{Exact as _, at_most, u64_of};
use bytes::Bytes;
use core::ops::Range;
use std::collections::BTreeMap;

/// The maximum size of a piece of dirty content, in bytes. Growing a piece copies at most this
/// much.
const PIECE_BYTES: usize = 1 << 20;

/// The memory of a piece beside its content, in bytes.
const PIECE_OVERHEAD_BYTES: u64 = 96;

/// The dirty data of one file. Pieces do not overlap, and begin and end at sector boundaries.
#[derive(Debug, Default)]
pub struct DirtyData {
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
}

fn length_of(piece: &[u8]) -> u64 {
    u64_of(piece.len())
}

impl DirtyData {
    /// Returns the dirty bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the memory of the dirty data, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let pieces = u64_of(self.pieces.len());
        self.bytes.exact_add(pieces.exact_mul(PIECE_OVERHEAD_BYTES))
    }

    /// Returns whether nothing is dirty.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns whether the sector that begins at `at` is dirty.
    pub fn has(&self, at: u64) -> bool {
        let piece = self.pieces.range(..=at).next_back();
        piece.is_some_and(|(start, piece)| at < start.saturating_add(length_of(piece)))
    }

    /// Returns at most `count` dirty ranges after `from`. Adjacent ranges count as one.
    pub fn ranges(&self, from: u64, count: usize) -> Vec<Range<u64>> {
        let before = self.pieces.range(..from).next_back();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (start, piece) in before.into_iter().chain(self.pieces.range(from..)) {
            let range = from.max(*start)..start.saturating_add(length_of(piece));
            let is_full = ranges.len() >= count;
            match ranges.last_mut() {
                _ if range.start >= range.end => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ if is_full => break,
                _ => ranges.push(range),
            }
        }
        ranges
    }

    /// Returns how many bytes of a range of whole sectors are not dirty.
    pub fn missing_bytes(&self, range: &Range<u64>) -> u64 {
        let before = self.pieces.range(..range.start).next_back();
        let present =
            before
                .into_iter()
                .chain(self.pieces.range(range.clone()))
                .fold(0_u64, |sum, (start, piece)| {
                    let end = start.saturating_add(length_of(piece)).min(range.end);
                    sum.saturating_add(end.saturating_sub(range.start.max(*start)))
                });
        range.end.saturating_sub(range.start).saturating_sub(present)
    }

    /// Stores written content. If a write covers a clean sector only in part, zeros fill the rest
    /// of the sector. The caller must first store the sector's old content.
    pub fn write(&mut self, mut offset: u64, mut bytes: &[u8], sector_bytes: u64) {
        while !bytes.is_empty() {
            let taken = self.write_some(offset, bytes, sector_bytes);
            offset = offset.exact_add(u64_of(taken));
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    /// Stores the content of a file that has none, from offset zero, without copying it.
    pub fn take_first(&mut self, mut content: Vec<u8>, sector_bytes: u64) {
        if !self.is_empty() || content.len() > PIECE_BYTES {
            self.write(0, &content, sector_bytes);
            return;
        }
        fill_sector(&mut content, sector_bytes);
        self.bytes = length_of(&content);
        self.pieces.insert(0, content);
    }

    /// Stores the beginning of the content, at least one byte. Returns the stored length.
    fn write_some(&mut self, offset: u64, bytes: &[u8], sector_bytes: u64) -> usize {
        let next = self
            .pieces
            .range(offset.saturating_add(1)..)
            .next()
            .map(|(start, _)| *start);
        if let Some((start, piece)) = self.pieces.range_mut(..=offset).next_back() {
            let inside = at_most(offset.saturating_sub(*start), usize::MAX);
            let length = piece.len();
            if inside < length {
                let place = piece.get_mut(inside..).unwrap_or_default();
                let taken = place.len().min(bytes.len());
                if let (Some(place), Some(bytes)) = (place.get_mut(..taken), bytes.get(..taken)) {
                    place.copy_from_slice(bytes);
                }
                return taken;
            }
            if inside == length && length < PIECE_BYTES {
                let room = PIECE_BYTES.exact_sub(length);
                let taken = append(piece, bytes, room, offset, next, sector_bytes);
                let grown = match buttress_faults::on("dirty-bytes-counted-again") {
                    true => length_of(piece),
                    false => length_of(piece).exact_sub(u64_of(length)),
                };
                self.bytes = self.bytes.exact_add(grown);
                return taken;
            }
        }
        let lead = offset.remainder(sector_bytes).narrow::<usize>();
        let start = offset.exact_sub(u64_of(lead));
        let room = PIECE_BYTES.exact_sub(lead);
        // Store whole sectors at once, because growing a piece copies it.
        let sector = sector_bytes.narrow::<usize>();
        let filled = lead.exact_add(bytes.len().min(room));
        let mut piece = Vec::with_capacity(filled.checked_next_multiple_of(sector).unwrap_or(filled));
        piece.resize(lead, 0);
        let taken = append(&mut piece, bytes, room, offset, next, sector_bytes);
        self.bytes = self.bytes.exact_add(length_of(&piece));
        self.pieces.insert(start, piece);
        taken
    }

    /// Copies the dirty part of a range over `buffer`, which holds the file's content from `offset`
    /// on.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        let end = offset.saturating_add(length_of(buffer));
        let before = self.pieces.range(..offset).next_back();
        for (start, piece) in before.into_iter().chain(self.pieces.range(offset..end)) {
            let from = offset.max(*start);
            let skip = at_most(from.saturating_sub(*start), piece.len());
            let at = from.saturating_sub(offset).narrow::<usize>();
            let source = piece.get(skip..).unwrap_or_default();
            let place = buffer.get_mut(at..).unwrap_or_default();
            place.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
        }
    }

    /// Drops a range of whole sectors; an end of `u64::MAX` means the end of the file. Returns the
    /// dropped bytes.
    pub fn remove(&mut self, range: &Range<u64>) -> u64 {
        let before = self.bytes;
        if let Some((start, piece)) = self.pieces.range_mut(..range.start).next_back() {
            let keep = at_most(range.start.saturating_sub(*start), piece.len());
            if keep < piece.len() {
                let tail = piece.split_off(keep);
                self.pieces.insert(range.start, tail);
            }
        }
        let mut inside = self.pieces.split_off(&range.start);
        let mut after = inside.split_off(&range.end);
        if let Some((start, piece)) = inside.pop_last() {
            let cut = at_most(range.end.saturating_sub(start), piece.len());
            if let Some(tail) = piece.get(cut..).filter(|tail| !tail.is_empty()) {
                after.insert(range.end, tail.to_vec());
            }
        }
        self.pieces.append(&mut after);
        self.bytes = self.counted();
        before.exact_sub(self.bytes)
    }

    /// Overwrites the dirty part of a range with zeros.
    pub fn zero(&mut self, range: &Range<u64>) {
        let start = self
            .pieces
            .range(..=range.start)
            .next_back()
            .map_or(range.start, |(start, _)| *start);
        for (at, piece) in self.pieces.range_mut(start..range.end) {
            let from = at_most(range.start.saturating_sub(*at), piece.len());
            let to = at_most(range.end.saturating_sub(*at), piece.len());
            if let Some(part) = piece.get_mut(from..to) {
                part.fill(0);
            }
        }
    }

    /// Returns the length of all pieces, in bytes.
    fn counted(&self) -> u64 {
        self.pieces
            .values()
            .map(|piece| length_of(piece))
            .fold(0, u64::exact_add)
    }

    /// Removes and returns all pieces of dirty data.
    pub fn take(&mut self) -> Vec<(u64, Bytes)> {
        self.bytes = 0;
        let pieces = core::mem::take(&mut self.pieces);
        pieces
            .into_iter()
            .map(|(start, piece)| (start, Bytes::from(piece)))
            .collect()
    }

    /// Removes and returns the pieces of a range of whole sectors.
    pub fn take_range(&mut self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        self.split(range.start);
        self.split(range.end);
        let mut inside = self.pieces.split_off(&range.start);
        self.pieces.append(&mut inside.split_off(&range.end));
        let taken = inside.values().map(|piece| length_of(piece));
        self.bytes = self.bytes.exact_sub(taken.fold(0, u64::exact_add));
        inside
            .into_iter()
            .map(|(start, piece)| (start, Bytes::from(piece)))
            .collect()
    }

    /// Splits the piece that contains `at`, so that a piece begins there.
    fn split(&mut self, at: u64) {
        let before = self.pieces.range_mut(..at).next_back();
        let tail = before.and_then(|(start, piece)| {
            let keep = at_most(at.saturating_sub(*start), piece.len());
            (keep < piece.len()).then(|| piece.split_off(keep))
        });
        self.pieces.extend(tail.map(|tail| (at, tail)));
    }

    /// Puts back pieces that could not be written. Newer dirty data wins over the restored pieces.
    pub fn restore(&mut self, pieces: Vec<(u64, Bytes)>) {
        let newer = self.take();
        for (start, piece) in pieces {
            if !buttress_faults::on("dirty-bytes-restored-uncounted") {
                self.bytes = self.bytes.exact_add(length_of(&piece));
            }
            self.pieces.insert(start, Vec::from(piece));
        }
        for (start, piece) in newer {
            // Pieces are whole sectors, so no sector needs filling.
            self.write(start, &piece, 1);
        }
    }
}

/// Appends as much as the piece has space for, and zeros up to the end of the sector.
fn append(
    piece: &mut Vec<u8>,
    bytes: &[u8],
    room: usize,
    offset: u64,
    next: Option<u64>,
    sector_bytes: u64,
) -> usize {
    let gap = next.map_or(usize::MAX, |next| {
        at_most(next.saturating_sub(offset), usize::MAX)
    });
    let taken = bytes.len().min(room).min(gap);
    piece.extend_from_slice(bytes.get(..taken).unwrap_or_default());
    fill_sector(piece, sector_bytes);
    taken
}

/// Appends zeros up to the end of the sector.
fn fill_sector(piece: &mut Vec<u8>, sector_bytes: u64) {
    let sector_bytes = sector_bytes.narrow::<usize>();
    let whole = piece.len().checked_next_multiple_of(sector_bytes);
    piece.resize(whole.unwrap_or(piece.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTOR: u64 = 512;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, u8),
        Remove(u64, u64),
        Zero(u64, u64),
        TakeAndRestore,
        TakeWriteAndRestore(u64, usize, u8),
        TakeRange(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0_u64..20_000, 1_usize..6000, 1_u8..).prop_map(|(at, length, byte)| Step::Write(at, length, byte)),
            2 => (0_u64..40, 0_u64..12).prop_map(|(at, length)| Step::Remove(at, length)),
            1 => (0_u64..20_000, 0_u64..3000).prop_map(|(at, length)| Step::Zero(at, length)),
            1 => Just(Step::TakeAndRestore),
            1 => (0_u64..40, 1_usize..12, 1_u8..).prop_map(|(at, length, byte)| Step::TakeWriteAndRestore(at, length, byte)),
            2 => (0_u64..40, 0_u64..12).prop_map(|(at, length)| Step::TakeRange(at, length)),
        ]
    }

    proptest! {
        #[test]
        fn pieces_agree_with_a_list_of_sectors(steps in prop::collection::vec(step(), 1..40)) {
            let mut pending = DirtyData::default();
            let mut model: BTreeMap<u64, [u8; SECTOR as usize]> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Write(at, length, byte) => {
                        pending.write(at, &vec![byte; length], SECTOR);
                        for position in at..at + length as u64 {
                            let sector = model.entry(position / SECTOR).or_insert([0; SECTOR as usize]);
                            sector[(position % SECTOR) as usize] = byte;
                        }
                    }
                    Step::Remove(at, length) => {
                        let before = model.len() as u64;
                        model.retain(|sector, _| !(at..at + length).contains(sector));
                        let removed = pending.remove(&(at * SECTOR..(at + length) * SECTOR));
                        prop_assert_eq!(removed, (before - model.len() as u64) * SECTOR);
                    }
                    Step::Zero(at, length) => {
                        pending.zero(&(at..at + length));
                        for position in at..at + length {
                            if let Some(sector) = model.get_mut(&(position / SECTOR)) {
                                sector[(position % SECTOR) as usize] = 0;
                            }
                        }
                    }
                    Step::TakeAndRestore => {
                        let taken = pending.take();
                        prop_assert!(pending.is_empty() && pending.bytes() == 0);
                        pending.restore(taken);
                    }
                    Step::TakeWriteAndRestore(at, length, byte) => {
                        let taken = pending.take();
                        pending.write(at * SECTOR, &vec![byte; length * SECTOR as usize], SECTOR);
                        pending.restore(taken);
                        for sector in at..at + length as u64 {
                            model.insert(sector, [byte; SECTOR as usize]);
                        }
                    }
                    Step::TakeRange(at, length) => {
                        let range = at..at + length;
                        let taken = pending.take_range(&(at * SECTOR..(at + length) * SECTOR));
                        let bytes: usize = taken.iter().map(|(_, piece)| piece.len()).sum();
                        let inside = model.keys().filter(|sector| range.contains(sector)).count();
                        prop_assert_eq!(bytes as u64, inside as u64 * SECTOR);
                        prop_assert!(range.clone().all(|sector| !pending.has(sector * SECTOR)));
                        pending.restore(taken);
                    }
                }
                prop_assert_eq!(pending.bytes(), model.len() as u64 * SECTOR);
                let mut read = vec![0xee; 40 * SECTOR as usize];
                pending.read(3 * SECTOR, &mut read);
                for sector in 0..40_u64 {
                    let found = &read[(sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize];
                    prop_assert_eq!(pending.has((sector + 3) * SECTOR), model.contains_key(&(sector + 3)));
                    match model.get(&(sector + 3)) {
                        Some(expected) => prop_assert_eq!(found, &expected[..]),
                        None => prop_assert!(found.iter().all(|byte| *byte == 0xee)),
                    }
                }
                let missing = (5..25).filter(|sector| !model.contains_key(sector)).count() as u64;
                prop_assert_eq!(pending.missing_bytes(&(5 * SECTOR..25 * SECTOR)), missing * SECTOR);
                let ranges = pending.ranges(5 * SECTOR, usize::MAX);
                let apart = ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
                let sectors: Vec<u64> =
                    ranges.iter().flat_map(|range| range.start / SECTOR..range.end / SECTOR).collect();
                let expected: Vec<u64> = model.keys().copied().filter(|sector| *sector >= 5).collect();
                prop_assert!(apart && sectors == expected, "{:?}", ranges);
                prop_assert_eq!(pending.ranges(5 * SECTOR, 2), ranges.into_iter().take(2).collect::<Vec<_>>());
            }
        }
    }
}
