//! A device in memory: for tests, for small images, and as the bytes under a simulated disk.

use std::io;

use buttress_locks::unscheduled::RwLock;
use buttress_locks::{Rank, lock_class};

use crate::backend::Backend;
use crate::error::{byte_length, check_range, out_of_range};

lock_class!(BytesLock, "bytes", Rank::LEAF);

/// Bytes in memory, writable, always durable.
pub struct MemoryBackend {
    name: String,
    size_bytes: u64,
    bytes: RwLock<Vec<u8>, BytesLock>,
}

impl MemoryBackend {
    /// A device that holds `bytes`.
    #[must_use]
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            name: name.into(),
            size_bytes: byte_length(bytes.len()),
            bytes: RwLock::new(bytes),
        }
    }

    /// A copy of what the device holds now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    fn with_range(&self, offset: u64, length: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let range = index_range(offset, length).and_then(|range| bytes.get_mut(range));
        fill(range.ok_or_else(|| out_of_range(self.size_bytes))?);
        Ok(())
    }

    fn length_of(&self, offset: u64, length: u64) -> io::Result<usize> {
        check_range(self.size_bytes, offset, length)?;
        usize::try_from(length).map_err(|_| out_of_range(self.size_bytes))
    }
}

impl std::fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBackend")
            .field("name", &self.name)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

fn index_range(offset: u64, length: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(length)?)
}

impl Backend for MemoryBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let bytes = self.bytes.read();
        let mut offset = offset_bytes;
        for buffer in buffers {
            let source = index_range(offset, buffer.len()).and_then(|range| bytes.get(range));
            buffer.copy_from_slice(source.ok_or_else(|| out_of_range(self.size_bytes))?);
            offset = offset.saturating_add(byte_length(buffer.len()));
        }
        Ok(())
    }

    fn read_cached_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<bool> {
        self.read_vectored_at(offset_bytes, buffers).map(|()| true)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_range(offset_bytes, bytes.len(), |range| range.copy_from_slice(bytes))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Fills the range with a pattern, so that nothing comes to rely on discarded bytes.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let length = self.length_of(offset_bytes, length_bytes)?;
        self.with_range(offset_bytes, length, |range| range.fill(0xd5))
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let length = self.length_of(offset_bytes, length_bytes)?;
        self.with_range(offset_bytes, length, |range| range.fill(0))
    }
}
