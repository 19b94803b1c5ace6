//! Standard output for contents: unbuffered, with a large pipe.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// What the pipe is asked to hold; the kernel's limit for unprivileged users.
const PIPE_BYTES: usize = 1 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Standard output without a buffer: for large pieces that are in memory already.
#[derive(Debug)]
pub struct DirectOutput {
    file: File,
}

impl DirectOutput {
    /// Standard output. A pipe is made as large as it may be, so that reader and writer seldom wait.
    pub fn stdout() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        // Only pipes have a size; elsewhere this fails and does not matter.
        let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
        Ok(Self { file })
    }

    /// Writes `count` zeros.
    pub fn zeros(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.len());
            self.file.write_all(ZEROS.get(..length).unwrap_or(&ZEROS))?;
            left = left.saturating_sub(length as u64);
        }
        Ok(())
    }
}

impl Write for DirectOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
