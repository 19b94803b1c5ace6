//! Reads and writes of pipes that a signal can interrupt.
//!
//! Invariants:
//! - A signal before or during a read or write ends the read or write. The signal handler writes to
//!   a pipe that the read or write polls, so no signal is lost between a check of a flag and the
//!   system call.
//! - No call blocks after `poll`. A read returns the available bytes. A write uses a non-blocking
//!   descriptor of its own, or has at most as many bytes as a pipe accepts atomically.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use anyhow::Result;
use buttress::unstable::fs::Error;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use signal_hook::low_level::pipe;

use super::{ALL, Cancelling};

/// Number of bytes that a pipe accepts without blocking if `poll` reports space (`PIPE_BUF`).
const PIPE_BYTES_AT_ONCE: usize = 4096;

/// File that becomes readable after a signal.
#[derive(Debug)]
struct WakeUp(PipeReader);

impl WakeUp {
    /// Waits until the file is ready, or until a signal. Returns an error after a signal.
    fn wait(&self, file: &File, ready: PollFlags) -> io::Result<()> {
        loop {
            let mut waiting = [PollFd::new(file, ready), PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [file, signal] = waiting;
            if !signal.revents().is_empty() {
                return Err(io::Error::other(Error::Cancelled));
            }
            if !file.revents().is_empty() {
                return Ok(());
            }
        }
    }
}

/// An input whose reads a signal can interrupt.
#[derive(Debug)]
pub struct Input {
    file: File,
    /// File that a signal makes readable; `None` if reads of the input never block.
    wake_up: Option<WakeUp>,
}

/// Method of writing without blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// The descriptor is non-blocking.
    NonBlocking,
    /// Writes use `send`.
    Socket,
    /// Each write has few bytes.
    Pieces,
}

/// An output whose writes a signal can interrupt.
#[derive(Debug)]
pub struct Output {
    file: File,
    wake_up: WakeUp,
    means: Means,
}

impl Cancelling {
    fn wake_up(&mut self) -> Result<WakeUp> {
        // Use a pipe, because the server of a mount may not create sockets.
        let (woken, wakes) = io::pipe()?;
        for signal in ALL {
            self.actions.push(pipe::register(signal, wakes.try_clone()?)?);
        }
        Ok(WakeUp(woken))
    }

    /// Makes signals interrupt reads of this input, until `self` is dropped. Reads of a regular
    /// file are never interrupted.
    ///
    /// # Errors
    /// An error of the system call that fails.
    pub fn input(&mut self, file: File) -> Result<Input> {
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let wake_up = if is_file { None } else { Some(self.wake_up()?) };
        Ok(Input { file, wake_up })
    }

    /// Makes signals interrupt writes to this output, until `self` is dropped. Returns `None` if
    /// writes never block.
    ///
    /// # Errors
    /// Fails with the error of the system call that fails.
    pub fn output(&mut self, file: &File) -> Result<Option<Output>> {
        let kind = file.metadata()?.file_type();
        let (file, means) = if kind.is_socket() {
            (file.try_clone()?, Means::Socket)
        } else if kind.is_fifo() {
            // Open a separate file description, because the flag of the shared one must stay
            // unchanged.
            let own = OpenOptions::new()
                .write(true)
                .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            match own {
                Ok(own) => (own, Means::NonBlocking),
                // The pipe may belong to another user.
                Err(_) => (file.try_clone()?, Means::Pieces),
            }
        } else {
            return Ok(None);
        };
        let wake_up = self.wake_up()?;
        Ok(Some(Output { file, wake_up, means }))
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(wake_up) = &self.wake_up {
            wake_up.wait(&self.file, PollFlags::IN)?;
        }
        self.file.read(into)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wake_up.wait(&self.file, PollFlags::OUT)?;
            let written = match self.means {
                Means::NonBlocking => self.file.write(bytes),
                Means::Socket => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    rustix::net::send(self.file.as_fd(), bytes, flags).map_err(io::Error::from)
                }
                Means::Pieces => {
                    let few = bytes.len().min(PIPE_BYTES_AT_ONCE);
                    self.file.write(bytes.get(..few).unwrap_or(bytes))
                }
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
