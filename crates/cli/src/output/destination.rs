//! Where a command writes its bytes: standard output, or the file that an option names.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, anyhow};

use super::file::OutputFile;
use super::stdout::DirectOutput;
use super::terminal;
use crate::context::Context;
use crate::exit::Advice;
use crate::signals::Cancelling;

/// See the module.
#[derive(Debug)]
pub enum Destination {
    /// Standard output.
    Stdout(DirectOutput),
    /// A file.
    File(OutputFile),
}

/// Names of standard output.
const STANDARD_OUTPUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// The file that an option names, unless it stands for standard output.
pub fn named(file: Option<&Path>) -> Option<&Path> {
    file.filter(|path| !STANDARD_OUTPUT.iter().any(|name| path.as_os_str() == *name))
}

/// Refuses to write bytes to a terminal. `what` is written: "an archive".
///
/// # Errors
/// That there is no file and standard output is a terminal.
pub fn refuse_terminal(file: Option<&Path>, what: &str) -> Result<()> {
    if named(file).is_none() && terminal::stdout_is_terminal() {
        let error = anyhow!("cannot write {what} to a terminal");
        return Err(error.context(Advice::new("redirect it, or name a file with -f")));
    }
    Ok(())
}

impl Destination {
    /// Opens it. Sources must have been opened before.
    ///
    /// # Errors
    /// As for [`Context::create_output`].
    pub fn open(context: &Context, file: Option<&Path>) -> Result<Self> {
        Ok(match named(file) {
            Some(path) => Self::File(context.create_output(path)?),
            None => Self::Stdout(DirectOutput::stdout()?),
        })
    }

    /// Has signals end writes that wait for a reader.
    ///
    /// # Errors
    /// As for [`Cancelling::output`].
    pub fn listen(&mut self, cancelling: &mut Cancelling) -> Result<()> {
        match self {
            Self::Stdout(out) => out.listen(cancelling),
            Self::File(file) => file.listen(cancelling),
        }
    }

    /// All is written: a file gets its name.
    ///
    /// # Errors
    /// As for [`OutputFile::finish`].
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
