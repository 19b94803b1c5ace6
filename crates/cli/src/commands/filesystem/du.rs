//! `buttress filesystem du IMAGE[:/path]…`: space use and sharing of files, in the format of `btrfs
//! filesystem du`.
//!
//! Each file has a line. Each directory has a line after its entries. *Exclusive* is the space that
//! no other file uses. *Set shared* is the space that the files below an argument share with each
//! other or with other files, each extent counted once. Several names of a file count once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;

use anyhow::Result;
use buttress::{ByteCount, FileKind, Follow, Location, Logical, WalkItem, WalkOptions};
use clap::Args;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::opening::Images;
use crate::output::json::{ArrayWriter, insert_name};
use crate::output::size::{UnitFlags, Units};
use crate::output::terminal;
use crate::output::terminal::Stdout;
use crate::table::{MountView, Subcommand};
use crate::target::Target;

/// Show the space of files, and how much of it is shared
#[derive(Args, Debug)]
pub struct Du {
    /// Print only a total for each argument
    #[arg(short = 's', long)]
    summarize: bool,
    #[command(flatten)]
    units: UnitFlags,
    /// Do not descend into nested subvolumes
    #[arg(long)]
    one_file_system: bool,
    /// Files and directories to count
    #[arg(value_name = "IMAGE[:/path]", required = true)]
    targets: Vec<OsString>,
}

impl Subcommand for Du {
    const NAME: &'static str = "du";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress filesystem du -s backup.img:/home",
        "Shows the total and the shared space of a directory",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut images = Images::new(context);
        let mut sink = if context.json() {
            Sink::Json(ArrayWriter::begin(context.stdout(), "filesystem-du")?)
        } else {
            let mut out = context.stdout();
            writeln!(
                out,
                "{:>10}  {:>10}  {:>10}  Filename",
                "Total", "Exclusive", "Set shared"
            )?;
            Sink::Text {
                out,
                units: self.units.units(),
            }
        };
        for argument in &self.targets {
            let target = context.target(argument);
            if let Err(error) = self.measure(context, &mut images, &target, &mut sink) {
                if crate::exit::is_broken_pipe(&error) {
                    return Err(error);
                }
                context.lost(&target.name_in(error));
            }
        }
        match sink {
            Sink::Json(array) => array.finish()?,
            Sink::Text { mut out, .. } => out.flush()?,
        }
        Ok(Outcome::Done)
    }
}

/// Sink for the output lines of `du`.
enum Sink {
    Json(ArrayWriter<Stdout>),
    Text { out: Stdout, units: Units },
}

/// Space use of a file or directory.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    total: u64,
    shared: u64,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.shared = self.shared.saturating_add(other.shared);
    }
}

impl Du {
    fn measure(
        &self,
        context: &Context,
        images: &mut Images<'_>,
        target: &Target,
        sink: &mut Sink,
    ) -> Result<()> {
        let opened = images.open(&target.image)?;
        let start = opened.locate(&target.path, Follow::NotLast)?;
        let options = WalkOptions {
            one_file_system: self.one_file_system,
            progress: context.progress(),
            ..WalkOptions::without_content()
        };
        let mut sharing = opened.volume().sharing();
        let mut set = SharedSet::default();
        let mut seen: HashSet<Location> = HashSet::new();
        // Sums of the directories on the current path; the first one belongs to the argument.
        let mut stack = vec![Sums::default()];
        for item in opened.volume().walk(start, options) {
            match item {
                WalkItem::Entry(entry) => {
                    let metadata = entry.metadata();
                    if metadata.kind != FileKind::Regular
                        || (metadata.nlink > 1 && !seen.insert(metadata.location))
                    {
                        continue;
                    }
                    let space = match sharing.file_space(&entry.record) {
                        Ok(space) => space,
                        Err(error) => {
                            let place = format!("{}: {}", target.display(), entry.path().escape_ascii());
                            context.lost(&anyhow::Error::new(error).context(place));
                            continue;
                        }
                    };
                    let sums = Sums {
                        total: space.total.get(),
                        shared: space.shared.get(),
                    };
                    set.add(space.shared_ranges);
                    if let Some(directory) = stack.last_mut() {
                        directory.add(sums);
                    }
                    if !self.summarize && !entry.name.is_empty() {
                        sink.line(context, target, &entry.path(), sums, None)?;
                    }
                }
                WalkItem::Enter(_) => stack.push(Sums::default()),
                WalkItem::Leave(path) => {
                    let sums = stack.pop().unwrap_or_default();
                    if let Some(above) = stack.last_mut() {
                        above.add(sums);
                    }
                    if !self.summarize && !path.is_empty() {
                        sink.line(context, target, &path, sums, None)?;
                    }
                }
                WalkItem::Failed(error) => {
                    context.lost(&target.name_in(error));
                }
            }
        }
        let whole = stack.into_iter().next().unwrap_or_default();
        sink.line(context, target, b"", whole, Some(set.bytes()))
    }
}

impl Sink {
    /// Writes the line of a file; the line of an argument includes its set shared value.
    fn line(
        &mut self,
        context: &Context,
        target: &Target,
        inner: &[u8],
        sums: Sums,
        set_shared: Option<u64>,
    ) -> Result<()> {
        let mut path = if target.has_path {
            target.path.clone()
        } else {
            b"/".to_vec()
        };
        if !inner.is_empty() {
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(inner);
        }
        let exclusive = sums.total.saturating_sub(sums.shared);
        match self {
            Self::Json(array) => {
                let mut object = Map::new();
                object.insert("total".into(), sums.total.into());
                object.insert("exclusive".into(), exclusive.into());
                object.insert("set_shared".into(), set_shared.map_or(Value::Null, Value::from));
                insert_name(&mut object, "path", &path);
                array.element(&Value::Object(object))?;
            }
            Self::Text { out, units } => {
                let set_shared = set_shared.map_or_else(|| "-".to_owned(), |bytes| units.text(bytes));
                write!(
                    out,
                    "{:>10}  {:>10}  {set_shared:>10}  ",
                    units.text(sums.total),
                    units.text(exclusive),
                )?;
                if target.word.is_none() {
                    write!(out, "{}:", terminal::shown(target.image.display()))?;
                }
                out.write_all(&context.printable(&target.name_of(inner)))?;
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

/// Ranges of logical addresses, each byte counted once.
#[derive(Debug, Default)]
struct SharedSet {
    ranges: Vec<Range<Logical>>,
    /// Ranges of the list before this index are sorted and do not overlap.
    merged: usize,
}

/// Number of new ranges at which ranges are merged.
const MERGE_AT_LEAST: usize = 4096;

impl SharedSet {
    fn add(&mut self, ranges: Vec<Range<Logical>>) {
        self.ranges.extend(ranges);
        if self.ranges.len().saturating_sub(self.merged) > self.merged.max(MERGE_AT_LEAST) {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<Logical>> = Vec::new();
        for range in self.ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        self.merged = merged.len();
        self.ranges = merged;
    }

    fn bytes(&mut self) -> u64 {
        self.merge();
        self.ranges.iter().fold(0, |sum, range| {
            let length = range
                .end
                .checked_distance_from(range.start)
                .unwrap_or(ByteCount::ZERO);
            sum.saturating_add(length.get())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shared_byte_counts_once() {
        let range = |start, end| Logical::new(start)..Logical::new(end);
        let mut set = SharedSet::default();
        set.add(vec![range(10, 20), range(30, 40)]);
        set.add(vec![range(15, 35), range(100, 101), range(100, 101)]);
        assert_eq!(set.bytes(), 31);
        for start in 0..20_000 {
            set.add(vec![range(1000 + start, 1002 + start)]);
        }
        assert!(set.ranges.len() < 20_000);
        assert_eq!(set.bytes(), 31 + 20_001);
    }
}
