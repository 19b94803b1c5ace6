//! Extents and holes of a file, including dirty data.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Result, bail};
use buttress::{DataRuns, FileOffset, Follow};
use clap::Args;

use crate::commands::fiemap::{Mapped, Printer, Shown};
use crate::shell::Session;
use crate::shell::number::Bytes;
use crate::shell::table::Word;
use crate::signals::Cancelling;

/// Show the extents of a file in the format of filefrag, with dirty data
#[derive(Args, Debug)]
pub struct Fiemap {
    #[command(flatten)]
    shown: Shown,
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

impl Word for Fiemap {
    const NAME: &'static str = "fiemap";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let location = session.resolve(&self.file, Follow::All)?;
        let mapped = Mapped::new(session.view().volume(), location);
        let progress = session.context().progress();
        let _cancelling = Cancelling::start_reading(&progress)?;
        let mut printer = Printer::new(session.context(), self.shown, &progress)?;
        let name = std::os::unix::ffi::OsStrExt::as_bytes(self.file.as_os_str());
        let printed = printer.file(&mapped, name);
        printer.finish()?;
        printed
    }
}

/// Find the next data or hole at or after an offset
#[derive(Args, Debug)]
pub struct Seek {
    /// The next data and the next hole
    #[arg(short = 'a')]
    both: bool,
    /// The next data
    #[arg(short = 'd')]
    data: bool,
    /// The next hole
    #[arg(short = 'h')]
    hole: bool,
    /// Show all following extents, too
    #[arg(short = 'r')]
    all: bool,
    /// Show where looking began, too
    #[arg(short = 's')]
    starts: bool,
    /// Where to begin
    #[arg(value_name = "OFFSET")]
    offset: Bytes,
    /// The file
    #[arg(value_name = "FILE")]
    file: OsString,
}

/// Start of data or of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    Data(u64),
    Hole(u64),
}

impl Word for Seek {
    const NAME: &'static str = "seek";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let wanted = (self.both || self.data, self.both || self.hole);
        if wanted == (false, false) {
            bail!("give -a, -d or -h");
        }
        let location = session.resolve(&self.file, Follow::All)?;
        let Bytes(start) = self.offset;
        let offset = FileOffset::new(start);
        let file = session.view().volume().open_file(location)?;
        let (runs, size) = (file.data_runs(offset)?, file.size()?.get());
        let progress = session.context().progress();
        let _cancelling = Cancelling::start_reading(&progress)?;
        let runs = runs.with_progress(&progress);
        let mut out = session.context().stdout();
        writeln!(out, "Whence\t{}Result", if self.starts { "Start\t" } else { "" })?;
        let mut print = |name: &str, from: u64, result: &str| {
            let from = if self.starts {
                format!("{from}\t")
            } else {
                String::new()
            };
            writeln!(out, "{name}\t{from}{result}")
        };
        let mut from = start;
        let (mut seen_data, mut seen_hole) = (!wanted.0, !wanted.1);
        if start < size {
            for point in points(runs, start) {
                progress.check()?;
                let (name, at, seen, is_wanted) = match point? {
                    Point::Data(at) => ("DATA", at, &mut seen_data, wanted.0),
                    Point::Hole(at) => ("HOLE", at, &mut seen_hole, wanted.1),
                };
                if is_wanted && (self.all || !*seen) {
                    print(name, from, &at.to_string())?;
                    *seen = true;
                }
                from = at;
                if seen_data && seen_hole && !self.all {
                    break;
                }
            }
        }
        if (seen_data, seen_hole) == (!wanted.0, !wanted.1) {
            print(if wanted.0 { "DATA" } else { "HOLE" }, start, "EOF")?;
        }
        out.flush()?;
        Ok(())
    }
}

/// Returns the starts of data and holes, alternating, from `start` on; the first one is clipped to
/// `start`.
fn points(runs: DataRuns, start: u64) -> impl Iterator<Item = Result<Point>> {
    let mut runs = runs.peekable();
    let in_data = matches!(runs.peek(), Some(Ok(run)) if run.start.get() == start);
    let first = (!in_data).then_some(Ok(Point::Hole(start)));
    first.into_iter().chain(runs.flat_map(|run| match run {
        Ok(run) => vec![Ok(Point::Data(run.start.get())), Ok(Point::Hole(run.end.get()))],
        Err(error) => vec![Err(error.into())],
    }))
}
