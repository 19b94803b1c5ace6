//! The overlay with a side file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use buttress_exact::Exact as _;
use buttress_locks::unscheduled::{Mutex, RwLock};
use buttress_locks::{Rank, lock_class};

use super::identity::Identity;
use super::side::{BLOCK_BYTES, BaseState, Map, SideFile};
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::error::{byte_length, check_range, read_only};

lock_class!(OrderLock, "order", Rank::new(92).over_device());
lock_class!(MapLock, "map", Rank::LEAF);

/// A base and its side file.
#[derive(Debug)]
pub(crate) struct Overlay {
    name: String,
    base: Arc<dyn Backend>,
    side: SideFile,
    writable: bool,
    /// The blocks that the side file holds.
    map: RwLock<Map, MapLock>,
    /// A lock that orders flushes, and copies of partial blocks, which read before they write.
    order: Mutex<(), OrderLock>,
}

/// A run of bytes in either the base or the side file.
struct Run {
    start: u64,
    length: usize,
    changed: bool,
}

/// Returns the identity of the volume at byte `start` of a base.
fn identity(base: &dyn Backend, start: u64) -> io::Result<Identity> {
    Identity::read(start, base.size_bytes(), |at, bytes| {
        base.read_vectored_at(at, &mut [bytes])
    })
}

impl Overlay {
    /// Opens the side file at `path` over `base`, whose state is `state`. Creates the file if it
    /// does not exist and `writable` is set.
    pub(crate) fn open(
        base: Arc<dyn Backend>,
        state: &BaseState,
        path: &Path,
        writable: bool,
    ) -> io::Result<Self> {
        let side = SideFile::open(path, state, writable)?;
        let replaced = side.replaced_volume(|start, recorded| Ok(identity(&*base, start)? == recorded))?;
        if let Some(start) = replaced {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "overlay {}: the superblock of the volume at byte {start} of the device has changed since the overlay was created. Its changes do not fit this state; to discard them, delete {}",
                    path.display(),
                    path.display()
                ),
            ));
        }
        let map = side.load_map()?;
        Ok(Self {
            name: format!("{} (overlay {})", base.name(), path.display()),
            base,
            side,
            writable,
            map: RwLock::new(map),
            order: Mutex::new(()),
        })
    }

    /// Records that a volume begins at byte `start` of the base. An overlay that is open for reading
    /// changes nothing.
    pub(crate) fn record_volume(&mut self, start: u64) -> io::Result<()> {
        if !self.writable || self.side.has_volume(start) {
            return Ok(());
        }
        // Clamp: a volume whose superblock cannot be read has no identity.
        let identity = identity(&*self.base, start).unwrap_or(Identity::UNKNOWN);
        self.side.record_volume(start, identity)
    }

    /// Splits `[start, start + length)` at changes between base and side file.
    fn runs(&self, start: u64, length: usize) -> Vec<Run> {
        let map = self.map.read();
        let end = start.exact_add(byte_length(length));
        let mut runs: Vec<Run> = Vec::new();
        let mut position = start;
        while position < end {
            let block = position.quotient(BLOCK_BYTES);
            let next = block.exact_add(1).exact_mul(BLOCK_BYTES).min(end);
            let changed = map.has(block);
            let count = next.exact_sub(position).narrow();
            match runs.last_mut() {
                Some(last) if last.changed == changed => last.length = last.length.exact_add(count),
                _ => runs.push(Run {
                    start: position,
                    length: count,
                    changed,
                }),
            }
            position = next;
        }
        runs
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut rest = buffer;
        for run in self.runs(offset, rest.len()) {
            let Some((part, after)) = rest.split_at_mut_checked(run.length) else {
                return Err(crate::error::out_of_range(self.size_bytes()));
            };
            if run.changed {
                self.side.read(run.start, part)?;
            } else {
                self.base.read_vectored_at(run.start, &mut [part])?;
            }
            rest = after;
        }
        Ok(())
    }

    fn check_write(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        check_range(self.size_bytes(), offset, length)
    }

    /// Copies the partially covered blocks at the ends of `[start, end)` into the side file.
    fn copy_up_ends(&self, start: u64, end: u64) -> io::Result<()> {
        for at in [start, end] {
            let block = at.quotient(BLOCK_BYTES);
            let first = block.exact_mul(BLOCK_BYTES);
            let inside = at != first && first < self.size_bytes();
            if inside && !self.map.read().has(block) {
                let length = self.size_bytes().exact_sub(first).min(BLOCK_BYTES);
                let mut bytes = Buffer::zeroed(length.narrow());
                self.base.read_vectored_at(first, &mut [&mut bytes[..]])?;
                self.side.write(first, &bytes)?;
                self.map.write().add(block..block.exact_add(1));
            }
        }
        Ok(())
    }

    /// Returns the blocks that `[start, end)` touches.
    fn blocks(start: u64, end: u64) -> std::ops::Range<u64> {
        start.quotient(BLOCK_BYTES)..end.div_ceil(BLOCK_BYTES)
    }

    /// Changes `[start, start + length)` of the side file by `change`, and marks its blocks.
    fn change(&self, start: u64, length: u64, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let end = start.exact_add(length);
        let whole = start.checked_rem(BLOCK_BYTES) == Some(0) && end.checked_rem(BLOCK_BYTES) == Some(0);
        let alone = (!whole).then(|| self.order.lock());
        if !whole {
            self.copy_up_ends(start, end)?;
        }
        change()?;
        drop(alone);
        self.map.write().add(Self::blocks(start, end));
        Ok(())
    }
}

impl Backend for Overlay {
    fn name(&self) -> &str {
        &self.name
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
        self.writable
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let total = buffers
            .iter()
            .fold(0, |sum: u64, buffer| sum.exact_add(byte_length(buffer.len())));
        check_range(self.size_bytes(), offset_bytes, total)?;
        let mut offset = offset_bytes;
        for buffer in buffers {
            self.read(offset, buffer)?;
            offset = offset.exact_add(byte_length(buffer.len()));
        }
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let length = byte_length(bytes.len());
        self.check_write(offset_bytes, length)?;
        self.change(offset_bytes, length, || self.side.write(offset_bytes, bytes))
    }

    /// Writes the side file's blocks first, then the map that makes these blocks valid.
    fn flush(&self) -> io::Result<()> {
        if !self.writable {
            return Ok(());
        }
        let _alone = self.order.lock();
        let dirty = self.map.write().take_dirty();
        let flushed = self
            .side
            .sync()
            .and_then(|()| self.side.write_map(&dirty))
            .and_then(|()| self.side.sync());
        if flushed.is_err() {
            // The map on disk is older than the map in memory, so a later flush must write these
            // parts again.
            self.map.write().give_back(dirty);
        }
        flushed
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)?;
        // The old content of a whole block need not be kept. The overlay's base keeps its bytes.
        let end = offset_bytes.exact_add(length_bytes);
        let first = offset_bytes.div_ceil(BLOCK_BYTES);
        let last = end.quotient(BLOCK_BYTES);
        let start = first.exact_mul(BLOCK_BYTES);
        // Clamp: a range that is inside one block covers no whole block.
        let length = last.exact_mul(BLOCK_BYTES).saturating_sub(start);
        for run in self.runs(start, length.narrow()) {
            if run.changed {
                self.side.zero(run.start, byte_length(run.length))?;
            }
        }
        Ok(())
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)?;
        self.change(offset_bytes, length_bytes, || {
            self.side.zero(offset_bytes, length_bytes)
        })
    }
}
