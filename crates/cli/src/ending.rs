//! Errors that end a job over many files, because every further file would fail in the same way.
//!
//! A copy onto a full disk or volume reports the first failure with its path and stops. In a large
//! copy, it does not print a line for each of thousands of files.

use std::io;

use buttress::unstable::fs::Error as Cause;
use buttress::{Error, ErrorKind};
use rustix::io::Errno;

/// Returns whether everything after this error would fail: no space is left, nothing can be written
/// any more, or the job was cancelled.
pub fn ends_the_job(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let is_io = cause.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem
            )
        });
        let is_errno = cause
            .downcast_ref::<Errno>()
            .is_some_and(|errno| matches!(*errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS));
        let is_volume = cause.downcast_ref::<Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::NoSpace | ErrorKind::WritingStopped | ErrorKind::Cancelled
            )
        });
        // The cause may be the cancellation that `Progress::check` reports without a volume.
        let is_cancelled = matches!(cause.downcast_ref(), Some(Cause::Cancelled));
        is_io || is_errno || is_volume || is_cancelled
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use buttress::ByteCount;

    #[test]
    fn a_lack_of_room_ends_a_job_and_a_single_bad_file_does_not() {
        let below = |error: anyhow::Error| Err::<(), _>(error).context("making a").unwrap_err();
        let no_room = Cause::NoSpace {
            what: "data",
            wanted: ByteCount::new(1),
            pinned_by_readers: ByteCount::ZERO,
            reclaimable: None,
        };
        for error in [
            below(Error::from(no_room).into()),
            below(Error::from(Cause::Cancelled).into()),
            below(Cause::Cancelled.into()),
            below(Errno::NOSPC.into()),
            below(io::Error::from_raw_os_error(28).into()),
            below(io::Error::from_raw_os_error(122).into()),
        ] {
            assert!(ends_the_job(&error), "{error:#}");
        }
        for error in [
            below(Errno::ACCESS.into()),
            below(io::Error::from_raw_os_error(5).into()),
        ] {
            assert!(!ends_the_job(&error), "{error:#}");
        }
    }
}
