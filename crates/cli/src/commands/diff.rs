//! `buttress diff A B`: what differs between two directory trees, each in a volume or on the host.
//!
//! Both are gone through side by side in the order of their names. For each difference a line is printed:
//!
//! ```text
//! added           etc/new
//! removed         etc/old
//! modified        etc/passwd (content, mtime)
//! type changed    etc/mtab (file -> symlink)
//! ```
//!
//! Of a directory that is only on one side everything below is listed too. Content is compared where sizes are
//! equal; in one volume, files that use the same extents are equal without reading, and holes are never read.
//! As with `diff(1)` the exit code is 0 when there is no difference, 1 when there is one, 2 when something could
//! not be compared.

mod compare;
mod content;
mod host;
mod side;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress_fs::Follow;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::context::{Context, allow_deep_trees};
use crate::exit::{Outcome, USAGE};
use crate::opening::Images;
use crate::output::json::{ArrayWriter, insert_name};
use crate::table::Subcommand;
use crate::target::Target;
use compare::{Comparison, Difference};
use side::{Root, Side};

/// Show what differs between two directory trees
#[derive(Args, Debug)]
pub struct Diff {
    /// What is not to be compared
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    ignore: Vec<Aspect>,
    /// Compare where holes are, too
    #[arg(long)]
    holes: bool,
    /// Print nothing; the exit code tells
    #[arg(long)]
    brief: bool,
    /// Do not descend into nested subvolumes and other file systems
    #[arg(long)]
    one_file_system: bool,
    /// The old state: a path in an image, or a directory
    #[arg(value_name = "OLD")]
    old: OsString,
    /// The new state: a path in an image, or a directory
    #[arg(value_name = "NEW")]
    new: OsString,
}

/// What can differ in two files of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Aspect {
    /// Content, and targets of symbolic links
    Content,
    /// Permission bits
    Mode,
    /// Owner and group
    Owner,
    /// The time of the last change of content
    Mtime,
    /// Extended attributes and ACLs
    Xattrs,
    /// Which names are the same file
    Links,
    /// Numbers of devices
    Device,
    /// Where holes are (compared only with --holes)
    #[value(skip)]
    Holes,
}

impl Aspect {
    /// The word in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Mode => "mode",
            Self::Owner => "owner",
            Self::Mtime => "mtime",
            Self::Xattrs => "xattrs",
            Self::Links => "links",
            Self::Device => "device",
            Self::Holes => "holes",
        }
    }
}

impl Subcommand for Diff {
    const NAME: &'static str = "diff";
    const TROUBLE: u8 = USAGE;

    fn run(self, context: &Context) -> Result<Outcome> {
        allow_deep_trees();
        let mut images = Images::new(context);
        let mut root = |argument: &OsStr| root(&mut images, argument, self.one_file_system);
        let (old, new) = (root(&self.old)?, root(&self.new)?);
        let mut comparison = Comparison::new(&self.ignore, self.holes);
        let mut differences = 0u64;
        if context.json() {
            let mut array = ArrayWriter::begin(context.stdout(), "diff")?;
            comparison.run(
                &old,
                &new,
                &mut |path, difference| {
                    differences = differences.saturating_add(1);
                    Ok(array.element(&as_json(path, difference))?)
                },
                &mut |error| context.lost(&error),
            )?;
            array.finish()?;
        } else {
            let mut out = context.stdout();
            comparison.run(
                &old,
                &new,
                &mut |path, difference| {
                    differences = differences.saturating_add(1);
                    if self.brief {
                        Ok(())
                    } else {
                        write_line(&mut out, context, path, difference)
                    }
                },
                &mut |error| context.lost(&error),
            )?;
            out.flush()?;
        }
        Ok(if differences == 0 {
            Outcome::Done
        } else {
            Outcome::Negative
        })
    }
}

/// A directory of the host, if there is one of that name; else something in an image.
fn root(images: &mut Images<'_>, argument: &OsStr, one_file_system: bool) -> Result<Root> {
    if Path::new(argument).is_dir() {
        return Ok(Root {
            side: Side::host(Path::new(argument), one_file_system)?,
            name: argument.to_owned(),
        });
    }
    let target = Target::parse(argument);
    let opened = images.open(&target.image)?;
    let start = opened
        .resolve(&target.path, Follow::All)
        .with_context(|| target.display())?;
    Ok(Root {
        side: Side::image(opened.filesystem, start, one_file_system),
        name: argument.to_owned(),
    })
}

fn write_line(out: &mut impl Write, context: &Context, path: &[u8], difference: &Difference) -> Result<()> {
    write!(out, "{:<15} ", difference.word())?;
    out.write_all(&context.printable(path))?;
    match difference {
        Difference::Added(_) | Difference::Removed(_) => {}
        Difference::Modified(aspects) => {
            let names: Vec<&str> = aspects.iter().map(|aspect| aspect.name()).collect();
            write!(out, " ({})", names.join(", "))?;
        }
        Difference::TypeChanged { old, new } => write!(out, " ({old} -> {new})")?,
    }
    Ok(writeln!(out)?)
}

fn as_json(path: &[u8], difference: &Difference) -> Value {
    let mut object = Map::new();
    insert_name(&mut object, "path", path);
    object.insert("change".into(), difference.word().replace(' ', "-").into());
    match difference {
        Difference::Added(kind) | Difference::Removed(kind) => {
            object.insert("type".into(), (*kind).into());
        }
        Difference::Modified(aspects) => {
            object.insert(
                "aspects".into(),
                aspects.iter().map(|aspect| aspect.name()).collect(),
            );
        }
        Difference::TypeChanged { old, new } => {
            object.insert("old_type".into(), (*old).into());
            object.insert("new_type".into(), (*new).into());
        }
    }
    Value::Object(object)
}
