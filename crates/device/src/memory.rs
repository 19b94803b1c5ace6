//! A device in memory, for tests and small images, and as the storage of a simulated disk.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::ops::Range;

use buttress_locks::unscheduled::RwLock;
use buttress_locks::{Rank, lock_class};

use crate::backend::Backend;
use crate::error::{byte_length, check_range, out_of_range};

lock_class!(BytesLock, "bytes", Rank::LEAF);

/// The unit for which a memory device records the byte that fills it.
const PAGE_BYTES: usize = 4096;

/// The content of discarded bytes: a pattern, so that no code comes to rely on them.
const DISCARDED: u8 = 0xd5;

/// Writable bytes in memory, always durable.
///
/// Discards and zeroing of whole pages are only recorded. A new volume discards all of its devices.
/// Writing the discard pattern into memory would take most of the time of many tests.
pub struct MemoryBackend {
    name: String,
    size_bytes: AtomicU64,
    bytes: RwLock<Pages, BytesLock>,
}

/// The bytes, in which some pages are represented by one byte that fills them.
struct Pages {
    bytes: Vec<u8>,
    /// For each page, the byte that fills it if the page in `bytes` is out of date. The last page
    /// of the device may be partial.
    fills: Vec<Option<u8>>,
}

impl Pages {
    fn new(bytes: Vec<u8>) -> Self {
        let fills = vec![None; bytes.len().div_ceil(PAGE_BYTES)];
        Self { bytes, fills }
    }

    /// Changes the device's length: removes bytes at the end, or appends zeros.
    fn resize(&mut self, length: usize) -> Option<()> {
        // A fill pattern stands for a whole page, and this change affects a part of the page.
        let last = length.min(self.bytes.len());
        let start = page_range(last / PAGE_BYTES).start;
        if let Some(Some(byte)) = self.fills.get(last / PAGE_BYTES).copied() {
            let end = page_range(last / PAGE_BYTES).end.min(self.bytes.len());
            self.bytes.get_mut(start..end)?.fill(byte);
            *self.fills.get_mut(last / PAGE_BYTES)? = None;
        }
        self.bytes.resize(length, 0);
        self.fills.resize(length.div_ceil(PAGE_BYTES), None);
        Some(())
    }

    /// Calls `each` with the number, the position in `bytes` and the length of each page's part of
    /// this range. Returns true if the range lies on the device.
    fn parts(&self, offset: u64, length: usize, mut each: impl FnMut(usize, Range<usize>)) -> bool {
        let Some(range) = index_range(offset, length).filter(|range| range.end <= self.bytes.len()) else {
            return false;
        };
        let mut start = range.start;
        while start < range.end {
            let page = start / PAGE_BYTES;
            let end = page_range(page).end.min(range.end);
            each(page, start..end);
            start = end;
        }
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let mut rest = buffer;
        self.parts(offset, rest.len(), |page, range| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(range.len());
            match (self.fills.get(page), self.bytes.get(range)) {
                (Some(Some(byte)), _) => part.fill(*byte),
                (_, Some(bytes)) => part.copy_from_slice(bytes),
                (_, None) => {}
            }
            rest = after;
        })
        .then_some(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<()> {
        self.bring_up_to_date(offset, bytes.len())?;
        let range = index_range(offset, bytes.len())?;
        self.bytes.get_mut(range)?.copy_from_slice(bytes);
        Some(())
    }

    fn fill(&mut self, offset: u64, length: usize, byte: u8) -> Option<()> {
        let mut parts = Vec::new();
        self.parts(offset, length, |page, range| parts.push((page, range)))
            .then_some(())?;
        for (page, range) in parts {
            if range.len() == PAGE_BYTES {
                *self.fills.get_mut(page)? = Some(byte);
            } else if self.fills.get(page) != Some(&Some(byte)) {
                self.bring_up_to_date(byte_length(range.start), range.len())?;
                self.bytes.get_mut(range)?.fill(byte);
            }
        }
        Some(())
    }

    /// Writes the fill byte to the pages at the ends of this range, if they are out of date. The
    /// caller overwrites the range, so whole pages in the range need no filling.
    fn bring_up_to_date(&mut self, offset: u64, length: usize) -> Option<()> {
        let range = index_range(offset, length).filter(|range| range.end <= self.bytes.len())?;
        for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
            if let Some(byte) = self.fills.get_mut(page)?.take() {
                let whole = page_range(page);
                let end = whole.end.min(self.bytes.len());
                if whole.start < range.start || end > range.end {
                    self.bytes.get_mut(whole.start..end)?.fill(byte);
                }
            }
        }
        Some(())
    }
}

fn page_range(page: usize) -> Range<usize> {
    let start = page.saturating_mul(PAGE_BYTES);
    start..start.saturating_add(PAGE_BYTES)
}

impl MemoryBackend {
    /// Makes a device that holds `bytes`.
    #[must_use]
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            name: name.into(),
            size_bytes: AtomicU64::new(byte_length(bytes.len())),
            bytes: RwLock::new(Pages::new(bytes)),
        }
    }

    /// Returns a copy of the device's current content.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let pages = self.bytes.read();
        let mut bytes = vec![0; pages.bytes.len()];
        // The range is the whole device, so the read cannot fail.
        let _ = pages.read(0, &mut bytes);
        bytes
    }

    fn fill(&self, offset: u64, length: u64, byte: u8) -> io::Result<()> {
        let length = self.length_of(offset, length)?;
        let filled = self.bytes.write().fill(offset, length, byte);
        filled.ok_or_else(|| out_of_range(self.size_bytes()))
    }

    fn length_of(&self, offset: u64, length: u64) -> io::Result<usize> {
        check_range(self.size_bytes(), offset, length)?;
        usize::try_from(length).map_err(|_| out_of_range(self.size_bytes()))
    }
}

impl std::fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBackend")
            .field("name", &self.name)
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

fn index_range(offset: u64, length: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(length)?)
}

impl Backend for MemoryBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        let length = usize::try_from(size_bytes).map_err(|_| out_of_range(self.size_bytes()))?;
        let mut pages = self.bytes.write();
        pages
            .resize(length)
            .ok_or_else(|| out_of_range(self.size_bytes()))?;
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let pages = self.bytes.read();
        let mut offset = offset_bytes;
        for buffer in buffers {
            let read = pages.read(offset, buffer);
            read.ok_or_else(|| out_of_range(self.size_bytes()))?;
            offset = offset.saturating_add(byte_length(buffer.len()));
        }
        Ok(())
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        self.read_vectored_at(offset_bytes, buffers).map(|()| true)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.bytes.write().write(offset_bytes, bytes);
        written.ok_or_else(|| out_of_range(self.size_bytes()))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Fills the range with a pattern.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.fill(offset_bytes, length_bytes, DISCARDED)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.fill(offset_bytes, length_bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudo-random numbers, the same in each run.
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn device_agrees_with_a_byte_vector() {
        // The last page is partial.
        let size = 20 * PAGE_BYTES + 700;
        let mut model: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let device = MemoryBackend::new("device", model.clone());
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for step in 0..3000_u64 {
            let mut start = (next(&mut state) % size as u64) as usize;
            let mut length = (next(&mut state) % (3 * PAGE_BYTES as u64)) as usize;
            if step % 3 == 0 {
                start -= start % PAGE_BYTES;
                length -= length % PAGE_BYTES;
            }
            let length = length.min(size - start);
            let (offset, range) = (start as u64, start..start + length);
            match next(&mut state) % 4 {
                0 => {
                    let bytes = vec![step as u8; length];
                    device.write_at(offset, &bytes).unwrap();
                    model[range].copy_from_slice(&bytes);
                }
                1 => {
                    device.discard(offset, length as u64).unwrap();
                    model[range].fill(DISCARDED);
                }
                2 => {
                    device.zero(offset, length as u64).unwrap();
                    model[range].fill(0);
                }
                _ => {
                    let (mut first, mut second) = (vec![1; length / 3], vec![1; length - length / 3]);
                    device
                        .read_vectored_at(offset, &mut [&mut first, &mut second])
                        .unwrap();
                    assert_eq!([first, second].concat(), model[range], "step {step}");
                }
            }
        }
        assert_eq!(device.snapshot(), model);
    }

    #[test]
    fn size_change_cuts_bytes_and_adds_zeros() {
        let device = MemoryBackend::new("device", vec![7; 3 * PAGE_BYTES]);
        device.discard(0, 3 * PAGE_BYTES as u64).unwrap();
        device.set_size(PAGE_BYTES as u64 + 10).unwrap();
        assert_eq!(device.snapshot(), vec![DISCARDED; PAGE_BYTES + 10]);
        device.set_size(2 * PAGE_BYTES as u64).unwrap();
        let mut expected = vec![DISCARDED; PAGE_BYTES + 10];
        expected.resize(2 * PAGE_BYTES, 0);
        assert_eq!(device.snapshot(), expected);
        assert_eq!(device.size_bytes(), 2 * PAGE_BYTES as u64);
    }

    #[test]
    fn accesses_beyond_the_end_change_nothing() {
        let device = MemoryBackend::new("device", vec![7; PAGE_BYTES + 10]);
        let end = PAGE_BYTES as u64;
        assert!(device.write_at(end, &[0; 11]).is_err());
        assert!(device.discard(end, 11).is_err());
        assert!(device.zero(u64::MAX, 1).is_err());
        assert!(device.read_vectored_at(end, &mut [&mut [0; 11]]).is_err());
        assert_eq!(device.snapshot(), vec![7; PAGE_BYTES + 10]);
    }
}
