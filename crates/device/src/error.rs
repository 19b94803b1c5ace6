//! The error type of this crate: a failed operation on a device, with its place and cause.
//!
//! The error is cheap to clone, because several readers may receive the error of one request. The
//! error keeps the operating system's error number, so that a mount can return it.

use buttress_exact::{Exact as _, u64_of};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The operation on a device that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening the device, finding its size, or acquiring its lock.
    Open,
    /// Reading the partition table.
    Partition,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making written bytes durable.
    Flush,
    /// Discarding bytes that are no longer needed.
    Discard,
    /// Filling a range with zeros.
    Zero,
    /// Sharing a file's blocks with a range.
    Share,
    /// Reserving the space that a range will need.
    Reserve,
    /// Changing the size of the device.
    Resize,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Partition => "read partition table of",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Zero => "zero",
            Self::Share => "share blocks with",
            Self::Reserve => "reserve space for",
            Self::Resize => "resize",
        })
    }
}

/// A failed operation: device, operation, byte range `[offset_bytes, offset_bytes + length_bytes)`
/// and cause.
///
/// Operations without a range (open, flush) have a length of zero.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.describe())]
pub struct IoError {
    /// The device's name: its path, or the name that it was given.
    pub device: Arc<str>,
    /// The operation that failed.
    pub operation: Operation,
    /// First byte of the range, counted from the start of the device (of the partition, if one was
    /// chosen).
    pub offset_bytes: u64,
    /// Length of the range in bytes.
    pub length_bytes: u64,
    /// The kind of failure.
    pub kind: io::ErrorKind,
    /// The operating system's error number, if it returned one.
    pub errno: Option<i32>,
    /// The cause as text, and a remedy if one is known.
    pub message: Arc<str>,
}

impl IoError {
    /// Makes an error on the range `[offset_bytes, offset_bytes + length_bytes)` with the cause
    /// `cause`.
    #[must_use]
    pub fn new(
        device: &Arc<str>,
        operation: Operation,
        offset_bytes: u64,
        length_bytes: u64,
        cause: &io::Error,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            operation,
            offset_bytes,
            length_bytes,
            kind: cause.kind(),
            errno: cause.raw_os_error(),
            message: cause.to_string().into(),
        }
    }

    /// Returns true if the request found no space: the host's disk is full, or a quota is
    /// exhausted.
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        #[cfg(unix)]
        if matches!(self.errno, Some(libc::ENOSPC | libc::EDQUOT)) {
            return true;
        }
        matches!(
            self.kind,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }

    /// Adds the name of the full file system to an error for lack of space.
    pub(crate) fn with_space(mut self, space: Option<String>) -> Self {
        if let Some(space) = space.filter(|_| self.is_out_of_space()) {
            self.message = format!("{}; {space}", self.message).into();
        }
        self
    }

    fn describe(&self) -> String {
        let Self {
            device,
            operation,
            offset_bytes,
            length_bytes,
            message,
            ..
        } = self;
        if *length_bytes == 0 {
            format!("cannot {operation} {device}: {message}")
        } else {
            let end = offset_bytes.exact_add(*length_bytes);
            format!("cannot {operation} {device} at bytes [{offset_bytes}, {end}): {message}")
        }
    }
}

/// Makes the error that a [`Backend`](crate::Backend) of `size_bytes` returns for a range outside
/// it.
#[must_use]
pub fn out_of_range(size_bytes: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the range exceeds the device's {size_bytes} bytes"),
    )
}

/// Refuses a range that is not within `[0, size_bytes)`, for a [`Backend`](crate::Backend) of that
/// size.
///
/// # Errors
/// Returns [`out_of_range`].
pub fn check_range(size_bytes: u64, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
    match offset_bytes.checked_add(length_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(out_of_range(size_bytes)),
    }
}

/// Returns the error of a write to a backend that was opened for reading.
pub(crate) fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "it was opened read-only")
}

/// Returns the length of a slice as a number of bytes. No slice is longer than `isize::MAX`, so the
/// conversion is exact.
pub(crate) fn byte_length(length: usize) -> u64 {
    u64_of(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_device_range_and_cause() {
        let cause = io::Error::from_raw_os_error(5);
        let error = IoError::new(&"/dev/sdx".into(), Operation::Read, 4096, 512, &cause);
        let text = error.to_string();
        assert!(
            text.starts_with("cannot read /dev/sdx at bytes [4096, 4608): "),
            "{text}"
        );
        assert_eq!(error.errno, Some(5));
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        assert!(check_range(100, 0, 100).is_ok());
        assert!(check_range(100, 100, 0).is_ok());
        assert!(check_range(100, 1, 100).is_err());
        assert!(check_range(100, u64::MAX, 2).is_err());
    }
}
