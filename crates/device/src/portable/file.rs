//! Image files on systems other than Linux, with positioned reads and writes only.
//!
//! This backend has no `O_DIRECT`, block devices, side files, holes or access to the page cache's
//! state. The backend refuses options that need one of these features, except options that only
//! make a job faster. The backend zeroes a range by writing zeros. A discarded range keeps its
//! bytes.
//!
//! On Linux, this module is compiled only for its tests.

mod positioned;
#[cfg(test)]
mod tests;

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;

use buttress_exact::{Exact as _, at_most};

use crate::backend::Backend;
use crate::device::OpenOptions;
use crate::error::{IoError, Operation, byte_length, check_range, read_only};
use crate::partition;

/// The zeros that one write of this backend can hold.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// The result of [`open`]: the backend (of the partition, if the caller asked for one), and
/// messages for the user.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) notices: Vec<String>,
}

/// Opens the image file at `path`, with a shared lock for reading or with an exclusive lock for
/// writing.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Opened, IoError> {
    let name: Arc<str> = path.to_string_lossy().into();
    let fail = |cause: io::Error| IoError::new(&name, Operation::Open, 0, 0, &cause);
    let refused = [
        (options.direct, "reading and writing around the page cache"),
        (options.overlay.is_some(), "an overlay"),
    ];
    if let Some((_, what)) = refused.iter().find(|(is_asked, _)| *is_asked) {
        let what = format!("{what} needs Linux");
        return Err(fail(io::Error::new(io::ErrorKind::Unsupported, what)));
    }
    let backend = FileBackend::open(&name, path, options.write).map_err(fail)?;
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let backend = partition::window(backend, options.partition, None)
        .map_err(|cause| IoError::new(&name, Operation::Partition, 0, 0, &cause))?;
    Ok(Opened {
        backend,
        notices: Vec::new(),
    })
}

#[derive(Debug)]
struct FileBackend {
    name: Arc<str>,
    file: positioned::PositionedFile,
    writable: bool,
    size_bytes: u64,
}

impl FileBackend {
    fn open(name: &Arc<str>, path: &Path, write: bool) -> io::Result<Self> {
        let file = File::options().read(true).write(write).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            let what = "it is not a regular file; block devices need Linux";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        lock(&file, write)?;
        Ok(Self {
            name: Arc::clone(name),
            size_bytes: metadata.len(),
            file: positioned::PositionedFile::new(file),
            writable: write,
        })
    }

    fn check_write(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        check_range(self.size_bytes, offset, length)
    }
}

/// Acquires the lock. On a file system without locks, the file stays unlocked.
fn lock(file: &File, write: bool) -> io::Result<()> {
    let locked = match write {
        true => file.try_lock(),
        false => file.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            match write {
                true => "another process has it open; wait for this process, or open it read-only",
                false => "another process is writing to it; wait for this process",
            },
        )),
        Err(TryLockError::Error(cause)) if cause.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(cause)) => Err(cause),
    }
}

impl Backend for FileBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let lengths = buffers.iter().map(|buffer| byte_length(buffer.len()));
        check_range(self.size_bytes, offset_bytes, lengths.fold(0, u64::exact_add))?;
        let mut offset = offset_bytes;
        for buffer in buffers {
            self.file.read_exact_at(buffer, offset)?;
            offset = offset.exact_add(byte_length(buffer.len()));
        }
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_write(offset_bytes, byte_length(bytes.len()))?;
        self.file.write_all_at(bytes, offset_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        match self.writable {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }

    fn unlock(&self) {
        self.file.unlock();
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check_write(offset_bytes, length_bytes)?;
        let mut done = 0_u64;
        while done < length_bytes {
            let count = at_most(length_bytes.exact_sub(done), ZEROS.len());
            let (part, _) = ZEROS.split_at(count);
            self.write_at(offset_bytes.exact_add(done), part)?;
            done = done.exact_add(byte_length(count));
        }
        Ok(())
    }

    fn may_run_out(&self) -> bool {
        self.writable
    }
}
