//! The bytes of a saved image as a device that cannot be written.

use buttress_device::{Backend, Device, Engine};
use buttress_exact::{Exact as _, u64_of};
use std::io;
use std::sync::Arc;

/// A range of the image, and its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) physical: u64,
}

/// A saved image: ranges of a device, and zeros between them.
#[derive(Debug)]
pub(super) struct ImageView {
    device: Arc<dyn Backend>,
    /// Ranges in order that do not overlap.
    mapped: Vec<Mapped>,
    size_bytes: u64,
}

impl ImageView {
    /// Makes a device of the image.
    pub(super) fn device(device: &Device, mapped: Vec<Mapped>, size_bytes: u64) -> Device {
        let device = Arc::clone(device.backend());
        let view = Self {
            device,
            mapped,
            size_bytes,
        };
        Device::with_backend(Arc::new(view), Engine::Inline)
    }

    fn fill(&self, mut at: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(0);
        while !bytes.is_empty() {
            let index = self
                .mapped
                .partition_point(|range| range.offset.exact_add(range.length) <= at);
            let Some(range) = self.mapped.get(index) else {
                return Ok(());
            };
            let left = u64_of(bytes.len());
            let hole = range.offset.checked_sub(at).filter(|hole| *hole > 0);
            let length = match hole {
                Some(hole) => hole.min(left),
                None => range.offset.exact_add(range.length).exact_sub(at).min(left),
            };
            let (now, later) = bytes.split_at_mut(length.narrow());
            if hole.is_none() {
                let physical = range.physical.exact_add(at.exact_sub(range.offset));
                self.device.read_vectored_at(physical, &mut [now])?;
            }
            at = at.exact_add(length);
            bytes = later;
        }
        Ok(())
    }
}

fn read_only() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

impl Backend for ImageView {
    fn name(&self) -> &str {
        "the saved image"
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let mut at = offset_bytes;
        for buffer in buffers {
            let end = at.checked_add(u64_of(buffer.len()));
            if end.is_none_or(|end| end > self.size_bytes) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.fill(at, buffer)?;
            at = at.exact_add(u64_of(buffer.len()));
        }
        Ok(())
    }

    fn write_at(&self, _offset_bytes: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset_bytes: u64, _length_bytes: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn zero(&self, _offset_bytes: u64, _length_bytes: u64) -> io::Result<()> {
        Err(read_only())
    }
}
