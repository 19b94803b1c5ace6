//! Output of a command: standard output, or the file that an option names.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, anyhow};

use super::file::OutputFile;
use super::stdout::DirectOutput;
use super::terminal;
use crate::context::Context;
use crate::exit::Advice;
use crate::signals::Cancelling;

/// Destination of a command's output.
#[derive(Debug)]
pub enum Destination {
    /// Standard output.
    Stdout(DirectOutput),
    /// A file.
    File(OutputFile),
}

/// Names of standard output.
const STANDARD_OUTPUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Returns the file that an option names, unless the name means standard output.
pub fn named(file: Option<&Path>) -> Option<&Path> {
    file.filter(|path| !STANDARD_OUTPUT.iter().any(|name| path.as_os_str() == *name))
}

/// Refuses to write bytes to a terminal. `what` names the content that is written, such as "an
/// archive".
///
/// # Errors
/// No file is named, and standard output is a terminal.
pub fn refuse_terminal(file: Option<&Path>, what: &str) -> Result<()> {
    if named(file).is_none() && terminal::stdout_is_terminal() {
        let error = anyhow!("cannot write {what} to a terminal");
        return Err(error.context(Advice::new("redirect it, or name a file with -f")));
    }
    Ok(())
}

impl Destination {
    /// Opens the output. The command must have opened its sources before the output.
    ///
    /// # Errors
    /// The errors of [`Context::create_output`].
    pub fn open(context: &Context, file: Option<&Path>) -> Result<Self> {
        Ok(match named(file) {
            Some(path) => Self::File(context.create_output(path)?),
            None => Self::Stdout(DirectOutput::stdout()?),
        })
    }

    /// Makes signals interrupt writes that wait for a reader.
    ///
    /// # Errors
    /// The errors of [`Cancelling::output`].
    pub fn listen(&mut self, cancelling: &mut Cancelling) -> Result<()> {
        match self {
            Self::Stdout(out) => out.listen(cancelling),
            Self::File(file) => file.listen(cancelling),
        }
    }

    /// Completes the output: a file gets its name.
    ///
    /// # Errors
    /// The errors of [`OutputFile::finish`].
    pub fn finish(self) -> Result<()> {
        match self {
            Self::Stdout(mut out) => Ok(out.flush()?),
            Self::File(file) => file.finish(),
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File(file) => file.flush(),
        }
    }
}
