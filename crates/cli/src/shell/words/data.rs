//! File content: writing, reading, truncating and preallocating, in the syntax of xfs_io with the
//! file last.

use buttress_exact::Exact as _;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use buttress::{AllocateMode, ByteCount, FileOffset, Follow, Location};
use clap::Args;

use crate::identity::Identity;
use crate::shell::Session;
use crate::shell::number::{Byte, Bytes};
use crate::shell::table::Word;

/// Size of one read or write in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// Default byte that xfs_io writes.
const PATTERN: Byte = Byte(0xcd);

/// Write a pattern, or a file of the host, at an offset; a missing file is created
#[derive(Args, Debug)]
pub struct Pwrite {
    /// The byte to write, 0xcd if none is given
    #[arg(short = 'S', value_name = "BYTE", conflicts_with = "input")]
    seed: Option<Byte>,
    /// Write what this file of the host holds
    #[arg(short = 'i', value_name = "FILE")]
    input: Option<PathBuf>,
    /// Begin at this offset of that file
    #[arg(short = 's', value_name = "OFFSET", requires = "input")]
    skip: Option<Bytes>,
    /// Largest size of a single write
    #[arg(short = 'b', value_name = "BYTES")]
    block: Option<Bytes>,
    /// Make the file durable after the write (fsync)
    #[arg(short = 'W', short_alias = 'w')]
    sync: bool,
    /// Do not print the amount of written data
    #[arg(short = 'q')]
    quiet: bool,
    /// Where to begin
    #[arg(value_name = "OFFSET")]
    offset: Bytes,
    /// Number of bytes to write
    #[arg(value_name = "LENGTH")]
    length: Bytes,
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Word for Pwrite {
    const NAME: &'static str = "pwrite";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let input = match &self.input {
            Some(path) => {
                let file = File::open(path).with_context(|| path.display().to_string())?;
                let identity = Identity::of_open(&file);
                if identity.is_some_and(|identity| session.context().sources().has(&identity)) {
                    bail!(
                        "{}: it is an image or device of the volume, and cannot be copied into itself",
                        path.display()
                    );
                }
                Some(file)
            }
            None => None,
        };
        let location = writing.create_if_missing(&session.path(&self.file))?;
        let written = writing.volume().open_file(location)?;
        let step = self
            .block
            .map_or(STEP_BYTES, |Bytes(bytes)| bytes.clamp(1, STEP_BYTES));
        let mut buffer = vec![self.seed.unwrap_or(PATTERN).0; step.narrow::<usize>()];
        let (Bytes(offset), Bytes(length)) = (self.offset, self.length);
        let mut done = 0;
        while done < length {
            session.check_cancelled()?;
            let count = length.saturating_sub(done).min(step).narrow::<usize>();
            let part = buffer.get_mut(..count).unwrap_or_default();
            let count = match &input {
                Some(file) => {
                    let at = self.skip.map_or(0, |Bytes(skip)| skip).saturating_add(done);
                    file.read_at(part, at).context("reading what to write")?
                }
                None => count,
            };
            if count == 0 {
                break;
            }
            let at = FileOffset::new(offset.saturating_add(done));
            written.write_at(at, part.get(..count).unwrap_or_default())?;
            done = done.saturating_add(u64::try_from(count).unwrap_or(0));
        }
        if self.sync {
            writing.volume().sync_inode(location)?;
        }
        if !self.quiet {
            let mut out = session.context().stdout();
            writeln!(out, "wrote {done}/{length} bytes at offset {offset}")?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Read at an offset; -v shows the content
#[derive(Args, Debug)]
pub struct Pread {
    /// Print the bytes that are read
    #[arg(short = 'v')]
    verbose: bool,
    /// Do not say how much was read
    #[arg(short = 'q')]
    quiet: bool,
    /// Offset at which to begin
    #[arg(value_name = "OFFSET")]
    offset: Bytes,
    /// Number of bytes to read
    #[arg(value_name = "LENGTH")]
    length: Bytes,
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Word for Pread {
    const NAME: &'static str = "pread";
    const ALIASES: &'static [&'static str] = &["read"];

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let location = session.resolve(&self.file, Follow::All)?;
        let (Bytes(offset), Bytes(length)) = (self.offset, self.length);
        let mut out = session.context().stdout();
        let mut buffer = vec![0; STEP_BYTES.narrow::<usize>()];
        let mut done = 0;
        while done < length {
            session.check_cancelled()?;
            let count = length.saturating_sub(done).min(STEP_BYTES).narrow::<usize>();
            let at = offset.saturating_add(done);
            let count = read(session, location, at, buffer.get_mut(..count).unwrap_or_default())?;
            if count == 0 {
                break;
            }
            if self.verbose {
                dump(&mut out, at, buffer.get(..count).unwrap_or_default())?;
            }
            done = done.saturating_add(u64::try_from(count).unwrap_or(0));
        }
        if !self.quiet {
            writeln!(out, "read {done}/{length} bytes at offset {offset}")?;
        }
        Ok(out.flush()?)
    }
}

fn read(session: &Session<'_>, location: Location, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let offset = FileOffset::new(offset);
    Ok(session
        .view()
        .volume()
        .open_file(location)?
        .read_at(offset, buffer)?)
}

/// Prints sixteen bytes per line, as xfs_io does.
fn dump(out: &mut impl Write, offset: u64, bytes: &[u8]) -> Result<()> {
    for (number, line) in bytes.chunks(16).enumerate() {
        let at = offset.saturating_add(u64::try_from(number).unwrap_or(0).saturating_mul(16));
        write!(out, "{at:08x}:  ")?;
        for byte in line {
            write!(out, "{byte:02x} ")?;
        }
        write!(
            out,
            "{:1$} ",
            "",
            16_usize.saturating_sub(line.len()).saturating_mul(3)
        )?;
        for byte in line {
            let shown = if byte.is_ascii_graphic() {
                char::from(*byte)
            } else {
                '.'
            };
            write!(out, "{shown}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Change the size of a file; a missing file is created
#[derive(Args, Debug)]
pub struct Truncate {
    /// The size
    #[arg(value_name = "SIZE")]
    size: Bytes,
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Word for Truncate {
    const NAME: &'static str = "truncate";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let location = writing.create_if_missing(&session.path(&self.file))?;
        let file = writing.volume().open_file(location)?;
        file.set_size(ByteCount::new(self.size.0))?;
        Ok(())
    }
}

/// A range of a file.
#[derive(Args, Debug)]
struct Range {
    /// Where to begin
    #[arg(value_name = "OFFSET")]
    offset: Bytes,
    /// How much
    #[arg(value_name = "LENGTH")]
    length: Bytes,
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Range {
    fn allocate(&self, session: &Session<'_>, mode: AllocateMode) -> Result<()> {
        let writing = session.require_writing()?;
        let path = session.path(&self.file);
        let location = match mode {
            AllocateMode::PunchHole => writing.resolve(&path, Follow::All)?,
            _ => writing.create_if_missing(&path)?,
        };
        let (Bytes(offset), Bytes(length)) = (self.offset, self.length);
        let Some(end) = offset.checked_add(length) else {
            bail!("the range ends past 16 EiB");
        };
        let range = FileOffset::new(offset)..FileOffset::new(end);
        writing.volume().open_file(location)?.allocate(range, mode)?;
        Ok(())
    }
}

/// Preallocate a range; a missing file is created
#[derive(Args, Debug)]
pub struct Fallocate {
    /// Keep the file's size
    #[arg(short = 'k')]
    keep_size: bool,
    #[command(flatten)]
    range: Range,
}

impl Word for Fallocate {
    const NAME: &'static str = "fallocate";
    const ALIASES: &'static [&'static str] = &["falloc"];
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let mode = if self.keep_size {
            AllocateMode::AllocateKeepSize
        } else {
            AllocateMode::Allocate
        };
        self.range.allocate(session, mode)
    }
}

/// Punch a hole into a range
#[derive(Args, Debug)]
pub struct Fpunch {
    #[command(flatten)]
    range: Range,
}

impl Word for Fpunch {
    const NAME: &'static str = "fpunch";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        self.range.allocate(session, AllocateMode::PunchHole)
    }
}

/// Zero a range, and preallocate it
#[derive(Args, Debug)]
pub struct Fzero {
    /// Keep the file's size
    #[arg(short = 'k')]
    keep_size: bool,
    #[command(flatten)]
    range: Range,
}

impl Word for Fzero {
    const NAME: &'static str = "fzero";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let mode = if self.keep_size {
            AllocateMode::ZeroRangeKeepSize
        } else {
            AllocateMode::ZeroRange
        };
        self.range.allocate(session, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_xfs_io_shows_them() {
        let mut out = Vec::new();
        dump(&mut out, 16, b"0123456789abcdef\n\xff").unwrap();
        let expected = "\
00000010:  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef
00000020:  0a ff                                            ..
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
