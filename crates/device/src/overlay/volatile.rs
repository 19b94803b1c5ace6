//! An overlay that keeps its changes in memory until it is dropped. A volatile overlay shows a
//! volume in its state after a change.
//!
//! The overlay stores written blocks in memory. Reads of written bytes come from memory, and all
//! other reads from the base. The base is never written, so it may be open for reading only.
//! Flushes do nothing.

use buttress_exact::{Exact as _, at_most};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use buttress_locks::unscheduled::RwLock;
use buttress_locks::{Rank, lock_class};

use crate::backend::{Backend, Source};
use crate::error::{byte_length, check_range, out_of_range};

lock_class!(ChangedLock, "changed", Rank::new(90).over_device_when_exclusive());

/// The unit in which a volatile overlay keeps changes.
const BLOCK_BYTES: usize = 4096;

type Blocks = BTreeMap<u64, Box<[u8]>>;

/// A base and the changes over it; see the module's documentation.
#[derive(Debug)]
pub struct VolatileOverlay {
    base: Arc<dyn Backend>,
    changed: RwLock<Blocks, ChangedLock>,
}

/// A part of a block: the block's number, the offset in it, and the length.
struct Part {
    block: u64,
    inside: usize,
    length: usize,
}

/// Splits `[offset, offset + length)` at the ends of blocks.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = Part> {
    let unit = byte_length(BLOCK_BYTES);
    let end = offset.exact_add(byte_length(length));
    let mut at = offset;
    core::iter::from_fn(move || {
        let block = at.checked_div(unit)?;
        let next = block.exact_add(1).exact_mul(unit).min(end);
        let part = Part {
            block,
            inside: usize::try_from(at.checked_rem(unit)?).ok()?,
            length: usize::try_from(next.checked_sub(at)?).ok()?,
        };
        at = next;
        (part.length > 0).then_some(part)
    })
}

impl VolatileOverlay {
    /// Makes an overlay over `base`, without changes yet.
    #[must_use]
    pub fn new(base: Arc<dyn Backend>) -> Self {
        Self {
            base,
            changed: RwLock::default(),
        }
    }

    fn has_changes(changed: &Blocks, offset: u64, length: u64) -> bool {
        let unit = byte_length(BLOCK_BYTES);
        let first = offset.quotient(unit);
        let end = offset.exact_add(length).div_ceil(unit);
        first < end && changed.range(first..end).next().is_some()
    }

    /// Reads the base by `read`, and replaces the changed bytes.
    fn read_with<T>(
        &self,
        offset: u64,
        buffers: &mut [&mut [u8]],
        read: impl FnOnce(&mut [&mut [u8]]) -> io::Result<T>,
    ) -> io::Result<T> {
        let total = buffers
            .iter()
            .fold(0, |sum: u64, buffer| sum.exact_add(byte_length(buffer.len())));
        let result = read(buffers)?;
        let changed = self.changed.read();
        if !Self::has_changes(&changed, offset, total) {
            return Ok(result);
        }
        let mut at = offset;
        for buffer in buffers {
            let mut rest: &mut [u8] = buffer;
            for part in parts(at, rest.len()) {
                let (to, after) = rest
                    .split_at_mut_checked(part.length)
                    .ok_or_else(|| out_of_range(self.size_bytes()))?;
                let end = part.inside.exact_add(part.length);
                let from = changed
                    .get(&part.block)
                    .and_then(|block| block.get(part.inside..end));
                if let Some(from) = from {
                    to.copy_from_slice(from);
                }
                rest = after;
            }
            at = at.exact_add(byte_length(buffer.len()));
        }
        Ok(result)
    }

    /// Returns the block of the base. If a block extends beyond the base's end, zeros fill the
    /// missing part.
    fn of_base(&self, block: u64) -> io::Result<Box<[u8]>> {
        let at = block.exact_mul(byte_length(BLOCK_BYTES));
        let length = at_most(self.size_bytes().exact_sub(at), BLOCK_BYTES);
        let mut bytes = vec![0; BLOCK_BYTES].into_boxed_slice();
        let inside = bytes
            .get_mut(..length)
            .ok_or_else(|| out_of_range(self.size_bytes()))?;
        self.base.read_vectored_at(at, &mut [inside])?;
        Ok(bytes)
    }

    fn change(&self, offset: u64, length: usize, fill: impl Fn(usize, &mut [u8])) -> io::Result<()> {
        check_range(self.size_bytes(), offset, byte_length(length))?;
        let mut changed = self.changed.write();
        let mut done = 0_usize;
        for part in parts(offset, length) {
            let block = match changed.entry(part.block) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => place.insert(match part.length {
                    BLOCK_BYTES => vec![0; BLOCK_BYTES].into_boxed_slice(),
                    _ => self.of_base(part.block)?,
                }),
            };
            let end = part.inside.exact_add(part.length);
            let place = block.get_mut(part.inside..end);
            fill(done, place.ok_or_else(|| out_of_range(self.size_bytes()))?);
            done = done.exact_add(part.length);
        }
        Ok(())
    }
}

impl Backend for VolatileOverlay {
    fn name(&self) -> &str {
        self.base.name()
    }

    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }

    fn is_rotational(&self) -> bool {
        self.base.is_rotational()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.read_with(offset_bytes, buffers, |buffers| {
            self.base.read_vectored_at(offset_bytes, buffers)
        })
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        self.read_with(offset_bytes, buffers, |buffers| {
            self.base.read_cached_vectored_at(offset_bytes, buffers)
        })
    }

    fn read_telling_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<Source> {
        self.read_with(offset_bytes, buffers, |buffers| {
            self.base.read_telling_at(offset_bytes, buffers)
        })
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(offset_bytes, bytes.len(), |done, place| {
            let end = done.exact_add(place.len());
            if let Some(from) = bytes.get(done..end) {
                place.copy_from_slice(from);
            }
        })
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Discarded bytes may keep their content.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset_bytes, length_bytes)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let length = usize::try_from(length_bytes).map_err(|_| out_of_range(self.size_bytes()))?;
        self.change(offset_bytes, length, |_, place| place.fill(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBackend;

    fn read(overlay: &VolatileOverlay, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let (first, second) = bytes.split_at_mut(length / 3);
        overlay.read_vectored_at(offset, &mut [first, second]).unwrap();
        bytes
    }

    #[test]
    fn changes_are_seen_and_the_base_stays() {
        let before: Vec<u8> = (0..20_000_u32).map(|number| (number % 251) as u8).collect();
        let base = Arc::new(MemoryBackend::new("base", before.clone()));
        let overlay = VolatileOverlay::new(Arc::clone(&base) as Arc<dyn Backend>);
        let mut expected = before.clone();
        for (offset, length) in [
            (10, 5),
            (4090, 12),
            (4096, 8192),
            (19_990, 10),
            (0, 20_000),
            (8191, 2),
        ] {
            let bytes = vec![length as u8; length];
            overlay.write_at(offset as u64, &bytes).unwrap();
            expected[offset..offset + length].copy_from_slice(&bytes);
            for (at, count) in [(0, 20_000), (offset, length), (offset / 2, 3000)] {
                assert_eq!(read(&overlay, at as u64, count), expected[at..at + count]);
            }
        }
        overlay.zero(4000, 200).unwrap();
        expected[4000..4200].fill(0);
        assert_eq!(read(&overlay, 0, 20_000), expected);
        assert!(overlay.write_at(19_999, &[1, 2]).is_err());
        assert!(overlay.read_vectored_at(19_999, &mut [&mut [0; 2]]).is_err());
        assert_eq!(base.snapshot(), before);
    }
}
