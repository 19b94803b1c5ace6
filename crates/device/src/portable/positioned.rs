//! A file that several threads read and write at positions of their own.

use std::fs::File;
use std::io;

#[cfg(not(any(unix, windows)))]
use buttress_locks::unscheduled::Mutex;
#[cfg(not(any(unix, windows)))]
use buttress_locks::{Rank, lock_class};

#[cfg(not(any(unix, windows)))]
lock_class!(PositionLock, "position", Rank::new(94).over_device());

/// An open file.
#[derive(Debug)]
pub(super) struct PositionedFile {
    file: File,
    /// Protects the file's own position, on systems without positioned reads and writes.
    #[cfg(not(any(unix, windows)))]
    position: Mutex<(), PositionLock>,
}

impl PositionedFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(not(any(unix, windows)))]
            position: Mutex::new(()),
        }
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Releases the lock. A file that cannot be unlocked was not locked; closing it releases any
    /// lock.
    pub(super) fn unlock(&self) {
        let _unlocked = self.file.unlock();
    }
}

#[cfg(unix)]
impl PositionedFile {
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, bytes, offset)
    }

    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, offset)
    }
}

#[cfg(windows)]
impl PositionedFile {
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        use buttress_exact::Exact as _;
        use std::os::windows::fs::FileExt as _;
        let (mut rest, mut offset) = (bytes, offset);
        while !rest.is_empty() {
            match self.file.seek_read(rest, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    rest = rest.split_at_mut(count).1;
                    offset = offset.exact_add(crate::error::byte_length(count));
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use buttress_exact::Exact as _;
        use std::os::windows::fs::FileExt as _;
        let (mut rest, mut offset) = (bytes, offset);
        while !rest.is_empty() {
            match self.file.seek_write(rest, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = rest.split_at(count).1;
                    offset = offset.exact_add(crate::error::byte_length(count));
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }
}

#[cfg(not(any(unix, windows)))]
impl PositionedFile {
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read as _, Seek as _};
        let _alone = self.position.lock();
        let mut file = &self.file;
        file.seek(io::SeekFrom::Start(offset))?;
        file.read_exact(bytes)
    }

    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek as _, Write as _};
        let _alone = self.position.lock();
        let mut file = &self.file;
        file.seek(io::SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }
}
