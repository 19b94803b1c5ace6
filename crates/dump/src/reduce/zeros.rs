//! A device of zeros without any storage. Changes over it stay in memory.

use buttress_device::{Backend, Device, Engine};
use core::ops::Range;
use std::io;
use std::sync::Arc;

/// A backend of zeros.
#[derive(Debug)]
struct Zeros {
    size_bytes: u64,
}

/// Returns an empty device of this size, which keeps what is written to it in memory.
pub(super) fn device(size_bytes: u64) -> Device {
    Device::with_backend(Arc::new(Zeros { size_bytes }), Engine::Inline).with_changes_in_memory()
}

fn read_only() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

impl Backend for Zeros {
    fn name(&self) -> &str {
        "a device in memory"
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let mut end = offset_bytes;
        for buffer in buffers {
            end = end
                .checked_add(buffer.len() as u64)
                .filter(|end| *end <= self.size_bytes)
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.fill(0);
        }
        Ok(())
    }

    fn next_data(&self, _: u64) -> io::Result<Option<Range<u64>>> {
        Ok(None)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(read_only())
    }
}
