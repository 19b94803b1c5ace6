//! `buttress fiemap IMAGE:/file…`: the extents of files, in the format of `filefrag` of e2fsprogs.
//!
//! Without `-v`, one line states the number of a file's pieces. This line needs no sharing
//! information, so the command reads only the file's leaves. With `-v`, `--summary` and in JSON
//! every extent has its flags. The command prints extents as it finds them, and a signal ends the
//! command between two extents.

pub mod columns;
pub mod filefrag;
pub mod summary;

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::{
    ByteCount, Fiemap, FiemapExtent, FiemapFlags, FileKind, FileOffset, Follow, Location, Progress, Volume,
};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::opening::Images;
use crate::output::json::{ArrayWriter, insert_name};
use crate::output::terminal::Stdout;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::{MountView, Subcommand};
use filefrag::{Filefrag, Sizes};
use summary::Summary;

/// Show the extents of files, and which of them are shared
#[derive(Args, Debug)]
pub struct FiemapCommand {
    #[command(flatten)]
    shown: Shown,
    /// Files in volumes
    #[arg(value_name = "IMAGE:/path", required = true)]
    files: Vec<OsString>,
}

/// The parts of the output that the options select for each file.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Shown {
    /// Print a line for each extent, with its flags
    #[arg(short = 'v')]
    extents: bool,
    /// Print sums of the extents by kind
    #[arg(long, conflicts_with = "extents")]
    summary: bool,
}

/// Flags and their names in `filefrag`.
pub const FLAG_NAMES: [(FiemapFlags, &str); 8] = [
    (FiemapFlags::LAST, "last"),
    (FiemapFlags::UNKNOWN, "unknown_loc"),
    (FiemapFlags::DELALLOC, "delalloc"),
    (FiemapFlags::ENCODED, "encoded"),
    (FiemapFlags::NOT_ALIGNED, "not_aligned"),
    (FiemapFlags::INLINE, "inline"),
    (FiemapFlags::UNWRITTEN, "unwritten"),
    (FiemapFlags::SHARED, "shared"),
];

impl Subcommand for FiemapCommand {
    const NAME: &'static str = "fiemap";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress fiemap -v backup.img:/home/letter",
            "Lists the extents of a file in the format of filefrag, with shared flags",
        ),
        example(
            "buttress fiemap --summary backup.img:/home/letter",
            "Prints sums of the extents by kind",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut images = Images::new(context);
        let progress = Progress::new();
        let _cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, "fiemap", progress.clone());
        let shown = Shown {
            extents: self.shown.extents || (context.globals().verbose > 0 && !self.shown.summary),
            ..self.shown
        };
        let mut printer = Printer::new(context, shown, &progress)?;
        for argument in &self.files {
            let target = context.target(argument);
            let printed = images.open(&target.image).and_then(|opened| {
                let location = opened.locate(&target.path, Follow::All)?;
                printer.file(
                    &Mapped::new(opened.volume(), location),
                    target.display().as_bytes(),
                )
            });
            if let Err(error) = printed {
                let ends = progress.is_cancelled() || crate::exit::is_broken_pipe(&error);
                if ends {
                    printer.finish()?;
                    return Err(error);
                }
                context.lost(&target.name_in(error));
            }
        }
        watch.end_as(context.losses() == 0);
        printer.finish()?;
        Ok(Outcome::Done)
    }
}

/// A file to map. On a volume that is open for writing, the map includes dirty data.
#[derive(Debug)]
pub struct Mapped {
    volume: Volume,
    location: Location,
}

impl Mapped {
    /// Creates a value for a file of a volume.
    pub fn new(volume: &Volume, location: Location) -> Self {
        let volume = volume.clone();
        Self { volume, location }
    }

    /// Returns the totals of the file's extents.
    pub fn summary(&self) -> Result<Summary> {
        let (sizes, map) = self.look()?;
        summarised(sizes, map.into_iter().flatten().map(|extent| Ok(extent?)))
    }

    /// Returns the size of the file and its extents; no extents for a directory.
    fn look(&self) -> Result<(Sizes, Option<Fiemap>)> {
        let all = FileOffset::MIN..FileOffset::new(u64::MAX);
        let Self { volume, location } = self;
        let metadata = volume.metadata(*location)?;
        let is_directory = metadata.kind == FileKind::Directory;
        let (size, map) = match is_directory {
            true => (ByteCount::ZERO, None),
            false => (metadata.size, Some(volume.open_file(*location)?.extents(all)?)),
        };
        let info = volume.info();
        let sizes = Sizes {
            file: size,
            block_bytes: info.sector_bytes.get(),
            volume: info.size,
        };
        Ok((sizes, map))
    }
}

/// Printer of maps.
pub struct Printer<'a> {
    context: &'a Context,
    shown: Shown,
    progress: &'a Progress,
    sink: Sink,
    has_title: bool,
}

/// Size of the text buffer, in bytes.
const TEXT_BYTES: usize = 16 << 10;

/// Destination of the printed maps.
enum Sink {
    Json(ArrayWriter<Stdout>),
    Text(Stdout),
}

impl<'a> Printer<'a> {
    /// Begins the output.
    pub fn new(context: &'a Context, shown: Shown, progress: &'a Progress) -> Result<Self> {
        let out = context.stdout();
        let sink = if context.json() {
            Sink::Json(ArrayWriter::begin(out, FiemapCommand::NAME)?)
        } else {
            Sink::Text(out)
        };
        Ok(Self {
            context,
            shown,
            progress,
            sink,
            has_title: false,
        })
    }

    /// Prints the map of a file under the name `name`.
    pub fn file(&mut self, mapped: &Mapped, name: &[u8]) -> Result<()> {
        let (sizes, map) = mapped.look()?;
        let wants_flags = self.shown.extents || self.shown.summary || self.context.json();
        let map = map.map(|map| {
            let map = map.with_progress(self.progress);
            if wants_flags { map } else { map.without_sharing() }
        });
        let extents = map.into_iter().flatten().map(|extent| Ok(extent?));
        match &mut self.sink {
            Sink::Json(array) if self.shown.summary => {
                let mut object = summarised(sizes, extents)?.as_json();
                insert_name(&mut object, "path", name);
                Ok(array.element(&Value::Object(object))?)
            }
            Sink::Json(array) => {
                for extent in extents {
                    self.progress.check()?;
                    array.element(&as_json(name, &extent?))?;
                }
                Ok(())
            }
            Sink::Text(out) => {
                let name = self.context.printable(name);
                if self.shown.summary {
                    return summarised(sizes, extents)?.print(&name, out);
                }
                if self.shown.extents {
                    filefrag::print_title(&sizes, &name, !self.has_title, out)?;
                    self.has_title = true;
                }
                let mut report = Filefrag::new(&sizes);
                if self.shown.extents {
                    print_lines(extents, &mut report, self.progress, out)?;
                } else {
                    for extent in extents {
                        report.count(&extent?);
                    }
                }
                Ok(report.print_end(&name, out)?)
            }
        }
    }

    /// Ends the output.
    pub fn finish(self) -> Result<()> {
        match self.sink {
            Sink::Json(array) => array.finish()?,
            Sink::Text(mut out) => out.flush()?,
        }
        Ok(())
    }
}

fn print_lines(
    mut extents: impl Iterator<Item = Result<FiemapExtent>>,
    report: &mut Filefrag,
    progress: &Progress,
    out: &mut impl Write,
) -> Result<()> {
    let mut text = Vec::new();
    let found = extents.try_for_each(|extent| {
        let extent = extent?;
        // After a cancellation, extents already found are not printed.
        progress.check()?;
        report.push_line(&extent, &mut text);
        if text.len() >= TEXT_BYTES {
            out.write_all(&text)?;
            text.clear();
        }
        Ok(())
    });
    // If an error occurs, print the extents that were found before.
    out.write_all(&text)?;
    found
}

fn summarised(sizes: Sizes, extents: impl Iterator<Item = Result<FiemapExtent>>) -> Result<Summary> {
    let mut summary = Summary::new(sizes);
    for extent in extents {
        summary.add(&extent?);
    }
    Ok(summary)
}

fn as_json(name: &[u8], extent: &FiemapExtent) -> Value {
    let mut object = Map::new();
    insert_name(&mut object, "path", name);
    object.insert("offset".into(), extent.offset.get().into());
    object.insert("length".into(), extent.length.get().into());
    let address = extent.address.map(buttress::Logical::get);
    object.insert("logical".into(), address.map_or(Value::Null, Value::from));
    let has = |(flag, name): &(FiemapFlags, &'static str)| extent.flags.contains(*flag).then_some(*name);
    object.insert(
        "flags".into(),
        json!(FLAG_NAMES.iter().filter_map(has).collect::<Vec<_>>()),
    );
    Value::Object(object)
}
