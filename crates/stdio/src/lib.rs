//! The initial state of the standard streams, and the errors of closing them.
//!
//! Before `main`, Rust's runtime opens `/dev/null` in place of a closed standard stream. A command
//! that prints to this stream would believe that its results arrived. [`was_closed`] reports the
//! original state. The dynamic loader calls a function of this crate before the runtime checks the
//! descriptors. The later state of a descriptor does not reveal the difference, because some
//! programs start commands with `/dev/null` opened for reading and writing.
//!
//! `unsafe` is needed for the section that the loader reads, and for calls on descriptors by
//! number. Invariants: the function that runs before the runtime calls `fcntl` and stores to an
//! atomic, and does nothing else. Left out: systems other than Linux, where no stream counts as
//! closed.

use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl Stream {
    /// Returns the bit that stands for this standard stream.
    const fn bit(self) -> u8 {
        match self {
            Self::Input => 1,
            Self::Output => 2,
            Self::Error => 4,
        }
    }
}

/// The streams that were closed when the process began.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Makes the loader call [`look`] before the runtime begins.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the dynamic loader calls every pointer in this section as a function; extra arguments do
// no harm.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

/// Records which standard streams are closed.
#[cfg(target_os = "linux")]
extern "C" fn look() {
    for (descriptor, stream) in [
        (libc::STDIN_FILENO, Stream::Input),
        (libc::STDOUT_FILENO, Stream::Output),
        (libc::STDERR_FILENO, Stream::Error),
    ] {
        // SAFETY: F_GETFD takes no argument and touches no memory; a closed descriptor is answered
        // with -1.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(stream.bit(), Ordering::Relaxed);
        }
    }
}

/// Returns true if the stream was closed when the process began.
#[must_use]
pub fn was_closed(stream: Stream) -> bool {
    CLOSED.load(Ordering::Relaxed) & stream.bit() != 0
}

/// Closes a descriptor and returns the error, which `OwnedFd` ignores. On some file systems, only
/// this error reports that written data was lost.
///
/// # Errors
/// Fails as `close(2)` does. The descriptor is closed in any case.
pub fn close(descriptor: OwnedFd) -> io::Result<()> {
    let number = descriptor.into_raw_fd();
    // SAFETY: the number was owned by `descriptor`, which has released it, and is not used
    // afterwards.
    match unsafe { libc::close(number) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux has closed the descriptor.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// Returns the error that closing standard output would return. Standard output stays open.
///
/// # Errors
/// Fails as [`close`] does.
pub fn check_output() -> io::Result<()> {
    close(io::stdout().as_fd().try_clone_to_owned()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_run_with_open_streams_and_closing_works() {
        assert!(!was_closed(Stream::Output) && !was_closed(Stream::Error));
        let (reader, writer) = io::pipe().unwrap();
        close(writer.into()).unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "");
        check_output().unwrap();
    }
}
