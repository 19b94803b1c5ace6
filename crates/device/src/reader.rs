//! A device over any reader: a file in an archive, a decompressed stream, an object of a store.
//!
//! [`ReaderBackend`] reads at offsets through a closure. [`ReaderBackend::seeking`] makes a device
//! backend from a [`Read`] and [`Seek`], which serves one request at a time.
//!
//! Left out of this backend: writes. A device over a reader is read-only.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use crate::backend::Backend;
use crate::error::{byte_length, check_range, out_of_range};

lock_class!(ReaderLock, "reader", Rank::LEAF);

/// A closure that fills a buffer from an offset on, in bytes.
type ReadExactAt = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync;

/// A device that reads through a closure; see the module's documentation.
pub struct ReaderBackend {
    name: String,
    size_bytes: u64,
    read: Box<ReadExactAt>,
}

impl ReaderBackend {
    /// Makes a device of `size_bytes`. `read` fills a buffer from an offset on. Several threads may
    /// call `read` at once.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        size_bytes: u64,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            read: Box::new(read),
        }
    }

    /// Makes a device over a reader that seeks. The device's size is the reader's end.
    ///
    /// # Errors
    /// Fails if the reader cannot seek to its end.
    pub fn seeking(
        name: impl Into<String>,
        mut reader: impl Read + Seek + Send + 'static,
    ) -> io::Result<Self> {
        let size_bytes = reader.seek(SeekFrom::End(0))?;
        let reader: Mutex<_, ReaderLock> = Mutex::new(reader);
        Ok(Self::new(name, size_bytes, move |offset, buffer: &mut [u8]| {
            let mut reader = reader.lock();
            reader.seek(SeekFrom::Start(offset))?;
            reader.read_exact(buffer)
        }))
    }
}

impl fmt::Debug for ReaderBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderBackend")
            .field("name", &self.name)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device can only be read")
}

impl Backend for ReaderBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let mut offset = offset_bytes;
        for buffer in buffers {
            let length = byte_length(buffer.len());
            check_range(self.size_bytes, offset, length)?;
            (self.read)(offset, buffer)?;
            offset = offset
                .checked_add(length)
                .ok_or_else(|| out_of_range(self.size_bytes))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn reader_device_never_reads_beyond_its_end() {
        let bytes: Vec<u8> = (0..=255).collect();
        let device = ReaderBackend::seeking("cursor", Cursor::new(bytes)).unwrap();
        assert_eq!((device.size_bytes(), device.is_writable()), (256, false));
        let (mut first, mut second) = ([0; 2], [0; 3]);
        let mut buffers: [&mut [u8]; 2] = [&mut first, &mut second];
        device.read_vectored_at(250, &mut buffers).unwrap();
        assert_eq!((first, second), ([250, 251], [252, 253, 254]));
        for offset in [254, 256, u64::MAX] {
            let error = device.read_vectored_at(offset, &mut [&mut [0; 3]]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
        let refused = [device.write_at(0, &[1]), device.discard(0, 1), device.zero(0, 1)];
        for result in refused {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
    }
}
