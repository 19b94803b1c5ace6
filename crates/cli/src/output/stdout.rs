//! Standard output: for results ([`Raw`], under a buffer) and for contents ([`DirectOutput`],
//! unbuffered, with a large pipe).
//!
//! Every failed write is an error, even if standard output was already closed at the start, which
//! Rust's type hides. Errors of writing name standard output. A closed pipe keeps its error kind,
//! because it is no failure.

use buttress_exact::at_most;
use std::fs::File;
use std::io::{self, StdoutLock, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_stdio::Stream;

use super::elsewhere;
use crate::signals::{Cancelling, waiting};

/// Requested capacity of the pipe; the kernel's limit for unprivileged users.
const PIPE_BYTES: usize = 1 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An error of standard output.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {0}")]
struct OutputError(io::Error);

/// Adds the name of standard output to an error.
pub fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), OutputError(error))
}

/// Returns the error of writing to a closed descriptor.
fn closed() -> io::Error {
    io::Error::other("standard output is closed")
}

/// True if the program discards results after their reader closed the pipe.
static READER_MAY_GO: AtomicBool = AtomicBool::new(false);

/// Discards results after their reader closed the pipe, without an error. Commands whose exit code
/// is the answer need this, because they must compute it anyway.
pub fn go_on_unread() {
    READER_MAY_GO.store(true, Ordering::Relaxed);
}

/// True if all output is discarded.
static IS_DISCARDED: AtomicBool = AtomicBool::new(false);

/// Discards results, or stops doing so, while another process executes the command and prints all
/// results.
pub fn discard(discard: bool) {
    IS_DISCARDED.store(discard, Ordering::Relaxed);
}

fn may_pass(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe && READER_MAY_GO.load(Ordering::Relaxed)
}

/// State of standard output.
#[derive(Debug)]
pub enum Raw {
    /// Standard output of this process.
    Open(StdoutLock<'static>),
    /// Standard output of the client that this process works for.
    Elsewhere(File),
    /// Standard output was closed at the start of the process.
    Closed,
}

impl Raw {
    /// Opens standard output of this process.
    #[expect(
        clippy::disallowed_methods,
        reason = "what commands print goes through `Context::stdout`, which is over this"
    )]
    pub fn stdout() -> Self {
        if let Some(output) = elsewhere::output() {
            return output.ok().flatten().map_or(Self::Closed, Self::Elsewhere);
        }
        if buttress_stdio::was_closed(Stream::Output) {
            Self::Closed
        } else {
            Self::Open(io::stdout().lock())
        }
    }
}

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Open(_) | Self::Closed if IS_DISCARDED.load(Ordering::Relaxed) => Ok(bytes.len()),
            Self::Open(out) => match out.write(bytes) {
                Err(error) if may_pass(&error) => Ok(bytes.len()),
                written => written.map_err(named),
            },
            Self::Elsewhere(out) => out.write(bytes).map_err(named),
            Self::Closed if bytes.is_empty() => Ok(0),
            Self::Closed => Err(closed()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Open(out) => match out.flush() {
                Err(error) if may_pass(&error) => Ok(()),
                flushed => flushed.map_err(named),
            },
            Self::Elsewhere(_) | Self::Closed => Ok(()),
        }
    }
}

/// Flushes and closes standard output after all output, and reports errors of the close.
#[expect(clippy::disallowed_methods, reason = "nothing is printed")]
pub fn finish() -> io::Result<()> {
    if elsewhere::is_set() {
        // The client itself closes its standard output.
        return Ok(());
    }
    if buttress_stdio::was_closed(Stream::Output) {
        return Ok(());
    }
    match io::stdout().flush() {
        Err(error) if may_pass(&error) => return Ok(()),
        flushed => flushed.map_err(named)?,
    }
    buttress_stdio::check_output().map_err(named)
}

/// Unbuffered standard output, for large pieces that are already in memory.
#[derive(Debug)]
pub struct DirectOutput {
    file: File,
    /// Interruptible output that replaces `file`.
    waiting: Option<waiting::Output>,
}

impl DirectOutput {
    /// Opens standard output. A pipe gets its largest capacity, so that reader and writer seldom
    /// wait.
    #[expect(clippy::disallowed_methods, reason = "contents are given as they are")]
    pub fn stdout() -> io::Result<Self> {
        let file = match elsewhere::output() {
            Some(output) => output?.ok_or_else(closed)?,
            None if buttress_stdio::was_closed(Stream::Output) => return Err(closed()),
            None => File::from(io::stdout().as_fd().try_clone_to_owned()?),
        };
        // Only pipes have a capacity; other files return an error, which is ignored.
        let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
        Ok(Self { file, waiting: None })
    }

    /// Makes signals interrupt writes that wait for the reader.
    ///
    /// # Errors
    /// The errors of [`Cancelling::output`].
    pub fn listen(&mut self, cancelling: &mut Cancelling) -> anyhow::Result<()> {
        self.waiting = cancelling.output(&self.file)?;
        Ok(())
    }

    /// Writes `count` zeros.
    pub fn zeros(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let length = at_most(left, ZEROS.len());
            self.write_all(ZEROS.get(..length).unwrap_or(&ZEROS))?;
            left = left.saturating_sub(length as u64);
        }
        Ok(())
    }
}

impl Write for DirectOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.waiting {
            Some(waiting) => waiting.write(bytes),
            None => self.file.write(bytes),
        }
        .map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
