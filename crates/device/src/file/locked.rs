//! Files that one process opens and locks for writing, and another process uses.
//!
//! A confined process cannot open files. Another process opens the file, with the locks and checks
//! of [`open`](super::open), and passes its descriptors. A lock belongs to the open file, not to
//! the process, so it lasts until the receiver closes the file.
//!
//! The receiver trusts only what a descriptor itself proves: the kind of the file, the access, and
//! the lock. Nothing proves to the receiver that a block device was opened exclusively.
//!
//! Left out: overlays and partitions; the space of the file below a loop device ([`HostSpace`]).
//!
//! [`HostSpace`]: super::host::HostSpace

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::large::{LARGE_WRITE_BYTES, LargeWrites};
use super::{FileBackend, guard, opening};
use crate::backend::Backend;
use crate::device::OpenOptions;
use crate::error::{IoError, Operation};

/// An image file or block device that is open and locked for writing, to be passed to another
/// process.
#[derive(Debug)]
pub struct LockedFile {
    /// The open file, which holds the lock.
    pub file: OwnedFd,
    /// A second opening of the file with `O_DIRECT`, for large writes. `None` if the file system does not
    /// support `O_DIRECT`.
    pub direct: Option<OwnedFd>,
}

impl LockedFile {
    /// Opens and locks the image file or block device at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be opened for writing, or if another program uses it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, IoError> {
        let path = path.as_ref();
        let name: Arc<str> = path.to_string_lossy().into();
        let fail = |cause: io::Error| IoError::new(&name, Operation::Open, 0, 0, &cause);
        let options = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let (file, is_block_device) = opening::open_file(path, &options).map_err(fail)?;
        guard::claim(&file, path, is_block_device, true).map_err(fail)?;
        let direct = LargeWrites::of(&file, is_block_device, LARGE_WRITE_BYTES);
        Ok(Self {
            direct: direct.map(|large| large.into_file().into()),
            file: file.into(),
        })
    }

    /// Verifies received descriptors, and returns the backend of their file.
    pub(crate) fn into_backend(self, name: &Path) -> Result<Arc<dyn Backend>, IoError> {
        let shown: Arc<str> = name.to_string_lossy().into();
        let fail = |cause: io::Error| IoError::new(&shown, Operation::Open, 0, 0, &cause);
        let (file, is_block_device) = verified(self.file).map_err(fail)?;
        // If the sender locked the file, this call acquires its lock again.
        guard::lock(&file, true).map_err(fail)?;
        let options = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let large = self.direct.map(|direct| large_of(&file, direct)).transpose();
        let large = large.map_err(fail)?;
        let mut backend = FileBackend::new(&shown, file, name, is_block_device, &options).map_err(fail)?;
        backend.large = large;
        Ok(Arc::new(backend))
    }
}

/// Verifies that a descriptor is an image file or block device, open for reading and writing.
fn verified(descriptor: OwnedFd) -> io::Result<(File, bool)> {
    let file = File::from(descriptor);
    let kind = file.metadata()?.file_type();
    let is_block_device = kind.is_block_device();
    if !(kind.is_file() || is_block_device) {
        return Err(opening::wrong_kind());
    }
    let flags = rustix::fs::fcntl_getfl(&file)?;
    if flags & OFlags::RWMODE != OFlags::RDWR || flags.intersects(OFlags::PATH | OFlags::APPEND) {
        let what = "its descriptor is not open for reading and writing";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok((file, is_block_device))
}

/// Verifies that `direct` is a second opening of `file` that bypasses the page cache.
fn large_of(file: &File, direct: OwnedFd) -> io::Result<LargeWrites> {
    let direct = File::from(direct);
    let (own, other) = (file.metadata()?, direct.metadata()?);
    let flags = rustix::fs::fcntl_getfl(&direct)?;
    let is_writable = matches!(flags & OFlags::RWMODE, OFlags::RDWR | OFlags::WRONLY);
    let is_same = (own.dev(), own.ino(), own.rdev()) == (other.dev(), other.ino(), other.rdev());
    if !is_same || !is_writable || !flags.contains(OFlags::DIRECT) || flags.contains(OFlags::APPEND) {
        let what = "its second descriptor is not open for direct writes of the same file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let is_block_device = own.file_type().is_block_device();
    LargeWrites::over(file, direct, is_block_device, LARGE_WRITE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    fn image() -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        image
    }

    #[test]
    fn passed_file_stays_locked_until_its_device_is_dropped() {
        let image = image();
        let writing = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let locked = LockedFile::open(image.path()).unwrap();
        Device::open(image.path(), &writing).unwrap_err();
        LockedFile::open(image.path()).unwrap_err();
        // A passed descriptor is a copy; the sender closes its own.
        let passed = LockedFile {
            file: locked.file.try_clone().unwrap(),
            direct: locked.direct.as_ref().map(|direct| direct.try_clone().unwrap()),
        };
        drop(locked);
        let device = Device::from_locked(image.path(), passed).unwrap();
        device.write(4096, &vec![7; 256 << 10]).unwrap();
        device.flush().unwrap();
        assert_eq!(device.read(4096, 3).unwrap().as_ref(), [7; 3]);
        Device::open(image.path(), &writing).unwrap_err();
        drop(device);
        Device::open(image.path(), &writing).unwrap();
    }

    #[test]
    fn received_descriptors_are_verified() {
        let (image, other) = (image(), image());
        let open = |path: &Path, write: bool| -> OwnedFd {
            File::options().read(true).write(write).open(path).unwrap().into()
        };
        let pair = |file: OwnedFd, direct: Option<OwnedFd>| LockedFile { file, direct };
        let told = |passed: LockedFile| Device::from_locked("it", passed).unwrap_err().to_string();
        let error = told(pair(open(image.path(), false), None));
        assert!(error.contains("not open for reading and writing"), "{error}");
        let error = told(pair(open(Path::new("/dev/null"), true), None));
        assert!(
            error.contains("neither a regular file nor a block device"),
            "{error}"
        );
        let error = told(pair(open(image.path(), true), Some(open(image.path(), true))));
        assert!(error.contains("not open for direct writes"), "{error}");
        let direct = LockedFile::open(other.path()).unwrap().direct;
        if direct.is_some() {
            let error = told(pair(open(image.path(), true), direct));
            assert!(error.contains("not open for direct writes"), "{error}");
        }
        // The receiver acquires a lock that the sender left out.
        let unlocked = pair(open(image.path(), true), None);
        let device = Device::from_locked(image.path(), unlocked).unwrap();
        LockedFile::open(image.path()).unwrap_err();
        drop(device);
    }
}
