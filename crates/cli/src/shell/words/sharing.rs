//! Shared extents: reflink, dedupe, copies of ranges.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result, bail};
use buttress::{ByteCount, FileOffset, Follow, Location, WritableFile};
use clap::Args;

use crate::replacing::same_file;
use crate::shell::Session;
use crate::shell::number::Bytes;
use crate::shell::table::Word;
use crate::writing::Writing;

/// A range of one file, and its target in another file.
struct Pair {
    writing: Writing,
    source: Location,
    range: std::ops::Range<FileOffset>,
    target: Location,
    target_offset: FileOffset,
    /// Path of the target, if this command created the file.
    made: Option<Vec<u8>>,
}

impl Pair {
    /// Parses `SOURCE [SOURCE_OFFSET OFFSET LENGTH] FILE`. If the command gives no numbers, the
    /// range is the whole source; a length of 0 extends to its end.
    fn of(session: &Session<'_>, places: &[OsString], make: bool) -> Result<Self> {
        let writing = session.require_writing()?;
        let number = |text: &OsString| -> Result<u64> {
            let text = text.to_string_lossy();
            let Bytes(number) = text.parse().map_err(anyhow::Error::msg)?;
            Ok(number)
        };
        let (source, numbers, target) = match places {
            [source, target] => (source, [0, 0, 0], target),
            [source, source_offset, offset, length, target] => {
                let numbers = [number(source_offset)?, number(offset)?, number(length)?];
                (source, numbers, target)
            }
            _ => bail!(
                "wrong number of arguments (expected SOURCE FILE, or SOURCE SOURCE_OFFSET OFFSET LENGTH FILE)"
            ),
        };
        let names = [source, target];
        let source = session.resolve(source, Follow::All).context("the source")?;
        let path = session.path(target);
        let [source_offset, offset, length] = numbers;
        let length = if length == 0 {
            writing
                .volume()
                .metadata(source)?
                .size
                .get()
                .saturating_sub(source_offset)
        } else {
            length
        };
        let end = source_offset
            .checked_add(length)
            .context("the range ends past 16 EiB")?;
        let there = writing.resolve(&path, Follow::All);
        if there.as_ref().is_ok_and(|target| *target == source)
            && source_offset.abs_diff(offset) < length.max(1)
        {
            let shown = names.map(|name| name.to_string_lossy().into_owned());
            return Err(same_file(&shown[0], &shown[1]).context("the ranges overlap"));
        }
        let (target, made) = match there {
            Err(_) if make => (writing.create_if_missing(&path)?, Some(path)),
            there => (there?, None),
        };
        Ok(Self {
            writing,
            source,
            range: FileOffset::new(source_offset)..FileOffset::new(end),
            target,
            target_offset: FileOffset::new(offset),
            made,
        })
    }

    /// Removes the target file if the failed operation created it.
    fn settle<T>(&self, done: buttress::Result<T>) -> Result<T> {
        if done.is_err()
            && let Some(path) = &self.made
        {
            let (directory, name) = self.writing.place(path)?;
            self.writing.volume().unlink(directory, &name)?;
        }
        Ok(done?)
    }

    /// Opens source and target.
    fn files(&self) -> buttress::Result<(WritableFile, WritableFile)> {
        let volume = self.writing.volume();
        Ok((volume.open_file(self.source)?, volume.open_file(self.target)?))
    }

    fn length(&self) -> u64 {
        self.range.end.get().saturating_sub(self.range.start.get())
    }
}

/// Clone a range of the source by sharing its extents; a missing file is created
#[derive(Args, Debug)]
pub struct Reflink {
    /// Do not say what was shared
    #[arg(short = 'q')]
    quiet: bool,
    /// Source, source offset, target offset and length (omitted: all of the source), then target
    /// file
    #[arg(value_name = "SOURCE [SOURCE_OFFSET OFFSET LENGTH] FILE", required = true, num_args = 2..=5)]
    places: Vec<OsString>,
}

impl Word for Reflink {
    const NAME: &'static str = "reflink";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let pair = Pair::of(session, &self.places, true)?;
        let length = pair.length();
        if length > 0 {
            let cloned = pair.files().and_then(|(source, target)| {
                target.clone_range(&source, pair.range.clone(), pair.target_offset)
            });
            pair.settle(cloned)?;
        }
        say(session, self.quiet, "linked", length, length, pair.target_offset)
    }
}

/// Prints `linked 4096/4096 bytes at offset 0`, as xfs_io does.
fn say(
    session: &Session<'_>,
    quiet: bool,
    what: &str,
    done: u64,
    asked: u64,
    offset: FileOffset,
) -> Result<()> {
    if !quiet {
        let mut out = session.context().stdout();
        writeln!(out, "{what} {done}/{asked} bytes at offset {}", offset.get())?;
        out.flush()?;
    }
    Ok(())
}

/// Share the extents of ranges with equal content, after comparing them
#[derive(Args, Debug)]
pub struct Dedupe {
    /// Do not say what was shared
    #[arg(short = 'q')]
    quiet: bool,
    /// The source, its offset, the offset in the file and the length (all of it without these), the file
    #[arg(value_name = "SOURCE [SOURCE_OFFSET OFFSET LENGTH] FILE", required = true, num_args = 2..=5)]
    places: Vec<OsString>,
}

impl Word for Dedupe {
    const NAME: &'static str = "dedupe";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let pair = Pair::of(session, &self.places, false)?;
        let length = pair.length();
        let same = length == 0
            || pair.files().and_then(|(source, target)| {
                target.dedupe_range(&source, pair.range.clone(), pair.target_offset)
            })?;
        if !same {
            bail!("the contents differ");
        }
        say(session, self.quiet, "deduped", length, length, pair.target_offset)
    }
}

/// Copy a range within the volume, by sharing extents if possible
#[derive(Args, Debug)]
pub struct CopyRange {
    /// Do not say what was copied
    #[arg(short = 'q')]
    quiet: bool,
    /// Source, source offset, target offset and length (omitted: all of the source), then target
    /// file
    #[arg(value_name = "SOURCE [SOURCE_OFFSET OFFSET LENGTH] FILE", required = true, num_args = 2..=5)]
    places: Vec<OsString>,
}

impl Word for CopyRange {
    const NAME: &'static str = "copy_range";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let pair = Pair::of(session, &self.places, true)?;
        let asked = pair.length();
        let copied = pair.files().and_then(|(source, target)| {
            let (start, length) = (pair.range.start, ByteCount::new(asked));
            target.copy_range(&source, start, length, pair.target_offset)
        });
        let copied = pair.settle(copied)?;
        say(
            session,
            self.quiet,
            "copied",
            copied.get(),
            asked,
            pair.target_offset,
        )
    }
}
