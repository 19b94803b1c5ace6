//! A device with private changes over a shared unchanged one, so that many devices can begin with
//! the same bytes.

use buttress::Backend;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of a changed page in bytes.
const PAGE_BYTES: usize = 4096;

type Pages = HashMap<u64, Box<[u8]>>;

/// A device with private changes.
#[derive(Debug)]
pub struct Forked {
    below: Arc<dyn Backend>,
    changed: Mutex<Pages>,
}

impl Forked {
    /// Creates a device with the bytes of another device, which must not change.
    #[must_use]
    pub fn of(below: &Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            below: Arc::clone(below),
            changed: Mutex::default(),
        })
    }

    /// Splits a range into pages: the page, the offset in it, and the part's position in the range.
    fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, core::ops::Range<usize>)> {
        let mut done = 0;
        core::iter::from_fn(move || {
            let at = offset + done as u64;
            let inside = (at % PAGE_BYTES as u64) as usize;
            let part = (PAGE_BYTES - inside).min(length - done);
            let range = done..done + part;
            done += part;
            (part > 0).then_some((at / PAGE_BYTES as u64, inside, range))
        })
    }

    fn page<'a>(&self, pages: &'a mut Pages, number: u64) -> io::Result<&'a mut Box<[u8]>> {
        match pages.entry(number) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(place) => {
                let mut page = vec![0; PAGE_BYTES];
                let rest = self.below.size_bytes() - number * PAGE_BYTES as u64;
                let there = PAGE_BYTES.min(usize::try_from(rest).unwrap_or(PAGE_BYTES));
                self.below
                    .read_vectored_at(number * PAGE_BYTES as u64, &mut [&mut page[..there]])?;
                Ok(place.insert(page.into_boxed_slice()))
            }
        }
    }
}

impl Backend for Forked {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.below.read_vectored_at(offset_bytes, buffers)?;
        let pages = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = offset_bytes;
        for buffer in buffers {
            for (number, inside, range) in Self::parts(at, buffer.len()) {
                if let Some(page) = pages.get(&number) {
                    let length = range.len();
                    buffer[range].copy_from_slice(&page[inside..inside + length]);
                }
            }
            at += buffer.len() as u64;
        }
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let mut pages = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, inside, range) in Self::parts(offset_bytes, bytes.len()) {
            let length = range.len();
            self.page(&mut pages, number)?[inside..inside + length].copy_from_slice(&bytes[range]);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.write_at(offset_bytes, &vec![0; usize::try_from(length_bytes).unwrap_or(0)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress::unstable::device::MemoryBackend;

    #[test]
    fn a_fork_changes_by_itself() {
        let below: Arc<dyn Backend> = Arc::new(MemoryBackend::new("below", vec![1; 20_000]));
        let (one, other) = (Forked::of(&below), Forked::of(&below));
        one.write_at(4000, &[2; 5000]).unwrap();
        let read = |of: &dyn Backend| {
            let (mut first, mut second) = (vec![0; 6000], vec![0; 6000]);
            of.read_vectored_at(3000, &mut [&mut first, &mut second]).unwrap();
            [first, second].concat()
        };
        let expected = [vec![1; 1000], vec![2; 5000], vec![1; 6000]].concat();
        assert!(read(&*one) == expected);
        assert!(read(&*other) == vec![1; 12_000] && read(&*below) == vec![1; 12_000]);
    }
}
