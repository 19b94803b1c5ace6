//! A backend that exposes a part of another backend.
//!
//! Clamps: the numbers of a partition table can be anything; ranges beyond the device are refused.

use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[cfg(target_os = "linux")]
use crate::backend::RingTarget;
use crate::backend::{Backend, Source};
use crate::error::check_range;

/// A backend for the bytes `range` of the backend `whole`. Invariant: `range` is within `whole`, so
/// adding an offset within the window to the range's start cannot overflow.
#[derive(Debug)]
pub(crate) struct Window {
    whole: Arc<dyn Backend>,
    name: String,
    range: Range<u64>,
}

impl Window {
    pub(crate) fn new(whole: Arc<dyn Backend>, name: String, range: Range<u64>) -> Self {
        let size = whole.size_bytes();
        let range = range.start.min(size)..range.end.min(size).max(range.start.min(size));
        Self { whole, name, range }
    }

    /// Returns the offset in the whole backend of an access to this part. Fails if the access
    /// exceeds the part's range.
    fn place(&self, offset: u64, length: u64) -> io::Result<u64> {
        check_range(self.size_bytes(), offset, length)?;
        Ok(self.range.start.saturating_add(offset))
    }
}

fn total(buffers: &[&mut [u8]]) -> u64 {
    buffers.iter().fold(0, |sum: u64, buffer| {
        sum.saturating_add(crate::error::byte_length(buffer.len()))
    })
}

impl Backend for Window {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    fn sector_bytes(&self) -> u32 {
        self.whole.sector_bytes()
    }

    fn is_rotational(&self) -> bool {
        self.whole.is_rotational()
    }

    fn is_writable(&self) -> bool {
        self.whole.is_writable()
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.whole
            .read_vectored_at(self.place(offset_bytes, total(buffers))?, buffers)
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        self.whole
            .read_cached_vectored_at(self.place(offset_bytes, total(buffers))?, buffers)
    }

    fn read_telling_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<Source> {
        self.whole
            .read_telling_at(self.place(offset_bytes, total(buffers))?, buffers)
    }

    fn next_data(&self, from_bytes: u64) -> io::Result<Option<Range<u64>>> {
        if from_bytes >= self.size_bytes() {
            return Ok(None);
        }
        let place = self.range.start.saturating_add(from_bytes);
        let data = self
            .whole
            .next_data(place)?
            .filter(|data| data.start < self.range.end);
        Ok(data.map(|data| {
            let end = data.end.min(self.range.end);
            data.start.saturating_sub(self.range.start)..end.saturating_sub(self.range.start)
        }))
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.whole.write_at(
            self.place(offset_bytes, crate::error::byte_length(bytes.len()))?,
            bytes,
        )
    }

    fn write_vectored_at(&self, offset_bytes: u64, parts: &[&[u8]]) -> io::Result<()> {
        let length = parts.iter().fold(0, |sum: u64, part| {
            sum.saturating_add(crate::error::byte_length(part.len()))
        });
        self.whole
            .write_vectored_at(self.place(offset_bytes, length)?, parts)
    }

    #[cfg(target_os = "linux")]
    fn share_from(
        &self,
        source: BorrowedFd<'_>,
        source_offset_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> io::Result<()> {
        let place = self.place(offset_bytes, length_bytes)?;
        self.whole
            .share_from(source, source_offset_bytes, place, length_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.whole.flush()
    }

    fn unlock(&self) {
        self.whole.unlock();
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.whole
            .discard(self.place(offset_bytes, length_bytes)?, length_bytes)
    }

    fn may_run_out(&self) -> bool {
        self.whole.may_run_out()
    }

    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.whole
            .reserve(self.place(offset_bytes, length_bytes)?, length_bytes)
    }

    fn describe_space(&self) -> Option<String> {
        self.whole.describe_space()
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.whole
            .zero(self.place(offset_bytes, length_bytes)?, length_bytes)
    }

    #[cfg(target_os = "linux")]
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        let target = self.whole.ring_target()?;
        Some(RingTarget {
            start_bytes: target.start_bytes.checked_add(self.range.start)?,
            ..target
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBackend;

    #[test]
    fn a_window_shows_its_part_and_nothing_else() {
        let whole = Arc::new(MemoryBackend::new("m", (0..100).collect()));
        let window = Window::new(Arc::clone(&whole) as Arc<dyn Backend>, "w".to_owned(), 10..20);
        let mut bytes = [0; 4];
        window.read_vectored_at(6, &mut [&mut bytes]).unwrap();
        assert_eq!(bytes, [16, 17, 18, 19]);
        assert!(window.read_vectored_at(7, &mut [&mut bytes]).is_err());
        assert!(window.write_at(u64::MAX, &bytes).is_err());
        window.zero(0, 10).unwrap();
        assert!(window.zero(0, 11).is_err());
        assert_eq!(
            whole.snapshot()[8..22],
            [8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 21]
        );
    }

    #[test]
    fn range_beyond_the_end_is_cut() {
        let whole = Arc::new(MemoryBackend::new("m", vec![0; 100]));
        assert_eq!(Window::new(whole, "w".to_owned(), 90..200).size_bytes(), 10);
    }
}
