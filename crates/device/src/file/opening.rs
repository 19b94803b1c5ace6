//! Opening of image files and block devices: kinds of files, locks against other users, overlays
//! and partitions.
//!
//! An image file or device is opened once. If the page cache holds nothing of an opened file, the
//! file may be opened again to bypass the page cache. The open file is locked before its first
//! read. An overlay and a partition are backends over the file's backend.
//!
//! Left out: the size and the calls of a file ([`FileBackend`]), and the rules of the locks
//! ([`guard`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::{FileBackend, guard, system};
use crate::backend::Backend;
use crate::device::OpenOptions;
use crate::error::{IoError, Operation};
use crate::overlay::{BaseState, Overlay};
use crate::partition;

/// The result of [`open`]: the backend (of the partition, if the caller asked for one), and
/// messages for the user.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) notices: Vec<String>,
    /// The state of the file that an overlay over this file would record.
    pub(crate) state: BaseState,
}

/// Opens the image file or block device at `path`.
///
/// For reading, it acquires a shared lock, and reports a mounted device. For writing, the call
/// acquires an exclusive lock, and refuses a device that is mounted or in use.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Opened, IoError> {
    let name: Arc<str> = path.to_string_lossy().into();
    let fail = |cause: io::Error| IoError::new(&name, Operation::Open, 0, 0, &cause);
    // With an overlay, the base file is only read.
    let over = options.overlay.as_deref();
    let writes_overlay = options.write && over.is_some();
    let options = &OpenOptions {
        write: options.write && over.is_none(),
        ..options.clone()
    };
    let around = OpenOptions {
        direct: true,
        ..options.clone()
    };
    let (file, is_block_device) = open_file(path, options).map_err(fail)?;
    let when_cold = match options.write {
        true => options.direct_when_cold_to_write,
        false => options.direct_when_cold,
    };
    let wanted = when_cold && !options.direct;
    let again = (wanted && system::is_cold(&file)).then(|| open_file(path, &around));
    // If the file system refuses O_DIRECT, the cold file is read through the page cache.
    let (file, options) = match again {
        Some(Ok((file, _))) => (file, &around),
        Some(Err(_)) | None => (file, options),
    };
    let notices = guard::claim(&file, path, is_block_device, options.write).map_err(fail)?;
    if writes_overlay && let Some(notice) = notices.first() {
        let what = format!("cannot write an overlay over a device that can change: {notice}");
        return Err(fail(io::Error::new(io::ErrorKind::ResourceBusy, what)));
    }
    let backend = FileBackend::new(&name, file, path, is_block_device, options).map_err(fail)?;
    let table_sector_bytes = is_block_device.then_some(backend.sector_bytes);
    let state = BaseState::of(&backend.file, backend.size()).map_err(fail)?;
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let backend = match over {
        Some(path) => {
            let mut overlay = Overlay::open(backend, &state, path, writes_overlay).map_err(fail)?;
            let range = partition::range_of(&overlay, options.partition, table_sector_bytes)
                .map_err(|cause| IoError::new(&name, Operation::Partition, 0, 0, &cause))?;
            overlay.record_volume(range.start).map_err(fail)?;
            Arc::new(overlay)
        }
        None => backend,
    };
    let backend = partition::window(backend, options.partition, table_sector_bytes)
        .map_err(|cause| IoError::new(&name, Operation::Partition, 0, 0, &cause))?;
    Ok(Opened {
        backend,
        notices,
        state,
    })
}

pub(super) fn open_file(path: &Path, options: &OpenOptions) -> io::Result<(File, bool)> {
    let kind = std::fs::metadata(path)?.file_type();
    let is_block_device = kind.is_block_device();
    if !(kind.is_file() || is_block_device) {
        return Err(wrong_kind());
    }
    let mut flags = libc::O_CLOEXEC;
    if options.direct {
        flags |= libc::O_DIRECT;
    }
    if is_block_device && options.write && options.claimed.as_deref() != Some(path) {
        // On a block device, an open with this flag fails if the device has a mount or another
        // exclusive user.
        flags |= libc::O_EXCL;
    }
    let opened = File::options()
        .read(true)
        .write(options.write)
        .custom_flags(flags)
        .open(path);
    let file = opened.map_err(|cause| match cause.raw_os_error() {
        Some(libc::EBUSY) => io::Error::new(
            io::ErrorKind::ResourceBusy,
            "it is mounted or in use by another program; unmount it, or open it read-only",
        ),
        Some(libc::EINVAL) if options.direct => io::Error::new(
            io::ErrorKind::Unsupported,
            "its file system does not support O_DIRECT; open it without --direct",
        ),
        _ => cause,
    })?;
    Ok((file, is_block_device))
}

/// The error for a file that is neither an image file nor a block device.
pub(super) fn wrong_kind() -> io::Error {
    let what = "it is neither a regular file nor a block device";
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
