//! The standard streams as the process was started with them, and the errors that closing them gives.
//!
//! Before `main` Rust's runtime opens `/dev/null` in the place of a standard stream that is closed. A command that prints to
//! it would believe that its results arrived. [`was_closed`] knows better: a function that the loader calls before the
//! runtime looks at the descriptors first. By what the descriptor is afterwards it cannot be told: others start commands with
//! `/dev/null` opened for reading and writing, too.
//!
//! `unsafe` is here because this needs it: the section in which the loader looks, and calls on descriptors by number.
//! Invariants: the function that runs before the runtime calls `fcntl` and stores to an atomic, and does nothing else.
//! What it leaves out: systems other than Linux, where no stream counts as closed.

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
    /// A bit for each.
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

/// Has the loader call [`look`] before the runtime begins.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the loader calls every pointer in this section as a function; extra arguments are none of its business.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

/// Notes which streams are closed.
#[cfg(target_os = "linux")]
extern "C" fn look() {
    for (descriptor, stream) in [
        (libc::STDIN_FILENO, Stream::Input),
        (libc::STDOUT_FILENO, Stream::Output),
        (libc::STDERR_FILENO, Stream::Error),
    ] {
        // SAFETY: F_GETFD takes no argument and touches no memory; a closed descriptor is answered with -1.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(stream.bit(), Ordering::Relaxed);
        }
    }
}

/// Whether the stream was closed when the process began.
#[must_use]
pub fn was_closed(stream: Stream) -> bool {
    CLOSED.load(Ordering::Relaxed) & stream.bit() != 0
}

/// Closes a descriptor and gives the error of that, which `OwnedFd` drops: some file systems say only then that what was
/// written could not be kept.
///
/// # Errors
/// As `close(2)`. The descriptor is closed all the same.
pub fn close(descriptor: OwnedFd) -> io::Result<()> {
    let number = descriptor.into_raw_fd();
    // SAFETY: the number was owned by `descriptor`, which has let go of it, and is not used afterwards.
    match unsafe { libc::close(number) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux has closed it.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// The error that closing standard output would give. It stays open.
///
/// # Errors
/// As [`close`].
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
