//! Standard output: for results ([`Raw`], below a buffer) and for contents ([`DirectOutput`], unbuffered, with a large pipe).
//!
//! What cannot be written is an error that says so, also where standard output was closed when the process began, which
//! Rust's own takes for success. Its errors name it; that its reader went away keeps its kind, for that is no failure.

use buttress_exact::at_most;
use std::fs::File;
use std::io::{self, StdoutLock, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_stdio::Stream;

use super::elsewhere;
use crate::signals::{Cancelling, waiting};

/// What the pipe is asked to hold; the kernel's limit for unprivileged users.
const PIPE_BYTES: usize = 1 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An error of standard output.
#[derive(Debug, thiserror::Error)]
#[error("writing to standard output: {0}")]
struct OutputError(io::Error);

/// The same error, which says where it occurred.
pub fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), OutputError(error))
}

/// The error of writing to a descriptor that is closed.
fn closed() -> io::Error {
    io::Error::other("standard output is closed")
}

/// Whether a reader that went away is passed over.
static READER_MAY_GO: AtomicBool = AtomicBool::new(false);

/// From now on results go nowhere once their reader went away, and are no error: for commands whose exit code is the answer,
/// which has to be found all the same.
pub fn go_on_unread() {
    READER_MAY_GO.store(true, Ordering::Relaxed);
}

/// Whether what is written goes nowhere.
static IS_DISCARDED: AtomicBool = AtomicBool::new(false);

/// Has results go nowhere, or out again: while a command ends whose work another process does, which prints them all.
pub fn discard(discard: bool) {
    IS_DISCARDED.store(discard, Ordering::Relaxed);
}

fn may_pass(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe && READER_MAY_GO.load(Ordering::Relaxed)
}

/// Standard output, or that there is none.
#[derive(Debug)]
pub enum Raw {
    /// It.
    Open(StdoutLock<'static>),
    /// That of who asked this process for something.
    Elsewhere(File),
    /// It was closed when the process began.
    Closed,
}

impl Raw {
    /// Standard output as this process has it.
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

/// To be called when everything was printed: what is still gathered is written, and what closing would say is said.
#[expect(clippy::disallowed_methods, reason = "nothing is printed")]
pub fn finish() -> io::Result<()> {
    if elsewhere::is_set() {
        // Who asked closes it himself.
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

/// Standard output without a buffer: for large pieces that are in memory already.
#[derive(Debug)]
pub struct DirectOutput {
    file: File,
    /// Instead of `file`: a signal ends its writes.
    waiting: Option<waiting::Output>,
}

impl DirectOutput {
    /// Standard output. A pipe is made as large as it may be, so that reader and writer seldom wait.
    #[expect(clippy::disallowed_methods, reason = "contents are given as they are")]
    pub fn stdout() -> io::Result<Self> {
        let file = match elsewhere::output() {
            Some(output) => output?.ok_or_else(closed)?,
            None if buttress_stdio::was_closed(Stream::Output) => return Err(closed()),
            None => File::from(io::stdout().as_fd().try_clone_to_owned()?),
        };
        // Only pipes have a size; elsewhere this fails and does not matter.
        let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
        Ok(Self { file, waiting: None })
    }

    /// Has signals end writes that wait for the reader.
    ///
    /// # Errors
    /// As for [`Cancelling::output`].
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
