//! `buttress diff A B`: the differences of two directory trees, each in a volume, on the host, in a
//! tar archive or in a plan.
//!
//! The command walks both trees in parallel, in the order of their names. Each difference is one
//! line:
//!
//! ```text
//! added           etc/new
//! removed         etc/old
//! modified        etc/passwd (content, mtime)
//! type changed    etc/mtab (file -> symlink)
//! moved           etc/motd -> etc/motd.old (mode)
//! ```
//!
//! For a directory on only one side, the command lists everything below it, too. The comparison
//! reads content only if sizes are equal. Files of one volume with the same extents are equal, and
//! are not read. The comparison never reads holes. `moves` detects moved files. If both sides are
//! snapshots of one volume, it reads only the parts that they do not share. As in `diff(1)`, the
//! exit code is 0 without differences, 1 with differences, and 2 if a comparison failed.

mod compare;
mod content;
mod difference;
mod host;
mod moves;
mod planned;
mod side;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress::{ChangedInodes, Follow, Progress};
use clap::{Args, ValueEnum};

use crate::context::{Context, allow_deep_trees};
use crate::exit::{Outcome, USAGE};
use crate::manual::{Example, ExitCode, example};
use crate::opening::{Images, generation};
use crate::output::json::ArrayWriter;
use crate::table::Subcommand;
use compare::Options;
use side::{Root, Side};

/// Show the differences between two directory trees
#[derive(Args, Debug)]
pub struct Diff {
    /// Attributes to ignore
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    ignore: Vec<Aspect>,
    /// Compare the positions of holes, too
    #[arg(long)]
    holes: bool,
    /// Print nothing, and report the result only by the exit code
    #[arg(long, conflicts_with = "name_only")]
    brief: bool,
    /// Print only the paths of differing entries; for a moved entry, the new path
    #[arg(long)]
    name_only: bool,
    /// Look at everything, also where snapshots share it: for tests and measurements
    #[arg(long, hide = true)]
    no_sharing: bool,
    /// Do not descend into nested subvolumes or other file systems
    #[arg(long)]
    one_file_system: bool,
    /// The old state: a path in an image, a directory, a tar archive, or a manifest (NAME.toml)
    #[arg(value_name = "OLD")]
    old: OsString,
    /// The new state: a path in an image, a directory, a tar archive, or a manifest (NAME.toml)
    #[arg(value_name = "NEW")]
    new: OsString,
}

/// An aspect in which two files of the same kind can differ.
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
    /// Returns the aspect's name in the output.
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
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress diff backup.img:/monday backup.img:/tuesday",
            "Lists the changes between two snapshots",
        ),
        example(
            "buttress diff --ignore mtime,owner backup.img:/etc /etc",
            "Compares a directory of a volume with a directory of the host",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "Both sides are equal"),
        (1, "The sides differ"),
        (2, "The comparison failed, or the command line is wrong"),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        allow_deep_trees();
        let mut images = Images::new(context);
        let mut root = |argument: &OsStr| root(context, &mut images, argument, self.one_file_system);
        let (old, new) = (root(&self.old)?, root(&self.new)?);
        let mut options = Options::without(&self.ignore, self.holes);
        if !self.no_sharing {
            options.changed = not_shared(&old.side, &new.side);
        }
        let found = compare::run(&old, &new, &options, &mut |error| context.lost(&error))?;
        if context.json() {
            let mut array = ArrayWriter::begin(context.stdout(), "diff")?;
            for found in &found {
                array.element(&found.json())?;
            }
            array.finish()?;
        } else if !self.brief {
            let mut out = context.stdout();
            for found in &found {
                if self.name_only {
                    found.write_name(&mut out, context)?;
                } else {
                    found.write(&mut out, context)?;
                }
            }
            out.flush()?;
        }
        Ok(if found.is_empty() {
            Outcome::Done
        } else {
            Outcome::Negative
        })
    }
}

/// Returns the inodes that two sides in one volume do not share. Returns `None` if the differing
/// inodes are unknown. In this case, the caller compares all files, and reports unreadable parts at
/// that point.
fn not_shared(old: &Side, new: &Side) -> Option<ChangedInodes> {
    let ((filesystem, old), (other, new)) = (old.volume()?, new.volume()?);
    if !filesystem.is_same(other) {
        return None;
    }
    if old.subvolume == new.subvolume {
        return Some(ChangedInodes::default());
    }
    filesystem
        .changed_inodes(old.subvolume, new.subvolume, &Progress::new())
        .unwrap_or(None)
}

/// Opens a side: a directory of the host, an archive or a manifest of that name if it exists, else
/// a target in an image.
fn root(context: &Context, images: &mut Images<'_>, argument: &OsStr, one_file_system: bool) -> Result<Root> {
    if Path::new(argument).is_dir() {
        return Ok(Root {
            side: Side::host(Path::new(argument), one_file_system)?,
            name: argument.to_owned(),
        });
    }
    if let Some(tree) = planned::open(context, Path::new(argument))? {
        return Ok(Root {
            side: Side::Planned(tree),
            name: argument.to_owned(),
        });
    }
    let target = generation::parsed(context, argument);
    let opened = images.open(&target.image)?;
    let start = opened
        .locate(&target.path, Follow::All)
        .with_context(|| target.display())?;
    Ok(Root {
        side: Side::image(opened.volume().clone(), start, one_file_system),
        name: argument.to_owned(),
    })
}
