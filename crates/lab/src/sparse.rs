//! An image file with holes on a file system that becomes full: a model in memory for tests.
//!
//! Each block of the image has space on the host or is a hole. A write to a hole takes space, and a
//! discard returns space. A write to a block with space never fails for lack of space. Reads return
//! the bytes of the backend below and do not depend on space.
//!
//! As on a real file system, a write with too little space still writes its first blocks.

use buttress_exact::Exact as _;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use buttress_device::{Backend, out_of_range};

use crate::layer::{geometry_of_inner, range_of};
use buttress_exact::u64_of;

lock_class!(SparseLock, "space", Rank::LEAF);

/// The unit in which the host allocates space.
const BLOCK_BYTES: u64 = BLOCK_LENGTH as u64;
const BLOCK_LENGTH: usize = 4096;

/// A backend whose space comes from a host with a limit. A clone of the image's `Arc` can change
/// the limit while the backend is in use.
#[derive(Debug)]
pub struct SparseBackend {
    inner: Arc<dyn Backend>,
    space: Mutex<Space, SparseLock>,
}

#[derive(Debug)]
struct Space {
    /// The blocks with space.
    held: BTreeSet<u64>,
    free_blocks: u64,
    /// The number of writes and reservations so far that needed space, failed ones included.
    takes: u64,
    /// The number, as in `takes`, of the write or reservation that finds the host full.
    full_at: Option<u64>,
    errno: i32,
}

impl Space {
    /// Allocates space for the blocks of a range until the host is full. If the host is full,
    /// returns the first byte without space.
    fn take(&mut self, range: &Range<u64>) -> Result<(), u64> {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let holes: Vec<u64> = blocks.filter(|block| !self.held.contains(block)).collect();
        if holes.is_empty() {
            return Ok(());
        }
        if self.full_at.is_some_and(|full_at| self.takes >= full_at) {
            self.free_blocks = 0;
        }
        self.takes = self.takes.exact_add(1);
        for block in holes {
            let Some(left) = self.free_blocks.checked_sub(1) else {
                return Err(block.exact_mul(BLOCK_BYTES).max(range.start));
            };
            self.free_blocks = left;
            self.held.insert(block);
        }
        Ok(())
    }

    /// Frees the space of the whole blocks of a range.
    fn give_back(&mut self, range: &Range<u64>) {
        let blocks = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        for block in blocks {
            if self.held.remove(&block) {
                self.free_blocks = self.free_blocks.exact_add(1);
            }
        }
    }
}

impl SparseBackend {
    /// Returns the backend `inner` on a host with `free_bytes` left. Blocks of `inner` whose bytes
    /// are all equal, as in discarded blocks, are holes. All other blocks have space.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, free_bytes: u64) -> Arc<Self> {
        let mut held = BTreeSet::new();
        let mut block = vec![0; BLOCK_LENGTH];
        for number in 0..inner.size_bytes() / BLOCK_BYTES {
            let read = inner.read_vectored_at(number.exact_mul(BLOCK_BYTES), &mut [&mut block]);
            let first = block.first().copied();
            if read.is_ok() && block.iter().any(|byte| Some(*byte) != first) {
                held.insert(number);
            }
        }
        Arc::new(Self {
            inner,
            space: Mutex::new(Space {
                held,
                free_blocks: free_bytes / BLOCK_BYTES,
                takes: 0,
                full_at: None,
                errno: libc::ENOSPC,
            }),
        })
    }

    /// Sets the host's remaining space, and cancels a pending [`fill_at`](Self::fill_at).
    pub fn set_free_bytes(&self, free_bytes: u64) {
        let mut space = self.space.lock();
        space.free_blocks = free_bytes / BLOCK_BYTES;
        space.full_at = None;
    }

    /// Fills the host at the write or reservation that needs space with number `number` from now
    /// on, counted from 0.
    pub fn fill_at(&self, number: u64) {
        let mut space = self.space.lock();
        space.full_at = Some(space.takes.exact_add(number));
    }

    /// Sets the error number of writes without space: `EDQUOT` models a used-up quota of the host.
    pub fn fail_with(&self, errno: i32) {
        self.space.lock().errno = errno;
    }

    /// Returns the number of writes and reservations so far that needed space, failed ones
    /// included.
    #[must_use]
    pub fn takes(&self) -> u64 {
        self.space.lock().takes
    }

    /// Returns the bytes of space that the image has.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        u64_of(self.space.lock().held.len()).exact_mul(BLOCK_BYTES)
    }
}

impl Backend for SparseBackend {
    geometry_of_inner!();

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        self.inner.read_vectored_at(offset_bytes, buffers)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let (taken, errno) = {
            let mut space = self.space.lock();
            let taken = space.take(&range_of(offset_bytes, u64_of(bytes.len())));
            (taken, space.errno)
        };
        match taken {
            Ok(()) => self.inner.write_at(offset_bytes, bytes),
            Err(end) => {
                let length = end.checked_sub(offset_bytes);
                let length = length.and_then(|length| usize::try_from(length).ok());
                let written = length.and_then(|length| bytes.get(..length));
                let written = written.ok_or_else(|| out_of_range(self.size_bytes()))?;
                self.inner.write_at(offset_bytes, written)?;
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.space.lock().give_back(&range_of(offset_bytes, length_bytes));
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn may_run_out(&self) -> bool {
        true
    }

    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let mut space = self.space.lock();
        let taken = space.take(&range_of(offset_bytes, length_bytes));
        taken.map_err(|_end| io::Error::from_raw_os_error(space.errno))
    }

    fn describe_space(&self) -> Option<String> {
        let free = self.space.lock().free_blocks.exact_mul(BLOCK_BYTES);
        Some(format!("the host file system of the model has {free} bytes free"))
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.space.lock().give_back(&range_of(offset_bytes, length_bytes));
        self.inner.zero(offset_bytes, length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_device::MemoryBackend;

    #[test]
    fn holes_take_space_and_written_blocks_do_not() {
        let mut bytes = vec![0; 10 * 4096];
        bytes[4096] = 1;
        let sparse = SparseBackend::new(Arc::new(MemoryBackend::new("m", bytes)), 3 * BLOCK_BYTES);
        assert_eq!(sparse.held_bytes(), BLOCK_BYTES);
        sparse.write_at(4096, &[2; 4096]).unwrap();
        sparse.reserve(0, 3 * 4096).unwrap();
        assert_eq!(sparse.held_bytes(), 3 * BLOCK_BYTES);
        let error = sparse.write_at(8 * 4096 - 1, &[3; 4098]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let mut begun = [0; 2];
        sparse.read_vectored_at(8 * 4096 - 1, &mut [&mut begun]).unwrap();
        assert_eq!(begun, [3, 0], "what found space is written");
        sparse.discard(0, 2 * 4096).unwrap();
        sparse.write_at(9 * 4096, &[4]).unwrap();
        sparse.fill_at(0);
        sparse.fail_with(libc::EDQUOT);
        let error = sparse.write_at(0, &[5]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EDQUOT));
        sparse.write_at(9 * 4096, &[6]).unwrap();
        sparse.set_free_bytes(BLOCK_BYTES);
        sparse.write_at(0, &[5]).unwrap();
    }
}
