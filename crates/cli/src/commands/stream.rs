//! `buttress stream`: inspects send streams without receiving them.
//!
//! All commands of the group take files in receive order: a full stream and its incremental
//! successors, or several streams in one file. The commands show the last stream's snapshot, or the
//! one that `--snapshot` names. A path follows the last file: `FILE:/path`.
//!
//! The command reads streams once to learn their structure, and reads file data again on demand. An
//! input that is no regular file (a pipe, or `-` for standard input) is therefore first copied to
//! an unnamed temporary file.

mod cat;
mod ls;
mod merge;
mod rebase;
mod tar;
mod verify;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result, anyhow};
use buttress::stream::view::{Inode, NodeId, Options, Series, Snapshot, Tree};
use clap::Args;

use crate::context::Context;
use crate::exit::Advice;
use crate::progress::Watch;
use crate::sources::Role;
use crate::table::{Row, leaf};
use crate::target::Target;

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<ls::Ls>(),
    leaf::<cat::Cat>(),
    leaf::<tar::Tar>(),
    leaf::<merge::Merge>(),
    leaf::<rebase::Rebase>(),
    leaf::<verify::Verify>(),
];

/// Streams, and what of them to show.
#[derive(Args, Debug)]
struct Streams {
    /// Show this snapshot of the chain, by name or uuid [default: the last one]
    #[arg(long, value_name = "NAME|UUID")]
    snapshot: Option<String>,
    /// A stream and its incremental streams, in order; a path follows the last one. - is standard
    /// input; with a path, write /dev/stdin:/path
    #[arg(value_name = "FILE[:/path]", required = true)]
    files: Vec<OsString>,
}

/// A loaded series of streams, with the selected snapshot.
struct Loaded {
    series: Series,
    /// Index of the snapshot to show.
    number: usize,
    /// Path from the root of the snapshot; the next field states whether the user gave one.
    path: Vec<u8>,
    has_path: bool,
    /// Name of the last stream and the path, for messages.
    shown: String,
}

impl Streams {
    /// Loads all streams.
    fn load(&self, context: &Context, name: &'static str) -> Result<Loaded> {
        let mut targets: Vec<Target> = self.files.iter().map(|file| Target::parse(file)).collect();
        let last = targets.pop().context("the stream is missing")?;
        if let Some(early) = targets.iter().find(|target| target.has_path) {
            return Err(anyhow!("{}: only the last file can have a path", early.display())).context(
                Advice::new("the command shows the result of all streams together"),
            );
        }
        let files = targets
            .iter()
            .chain([&last])
            .map(|target| target.image.as_os_str());
        let series = read(context, name, Options::default(), files)?;
        let number = self.choose(series.snapshots())?;
        Ok(Loaded {
            series,
            number,
            shown: last.display(),
            path: last.path,
            has_path: last.has_path,
        })
    }

    fn choose(&self, snapshots: &[Snapshot]) -> Result<usize> {
        let Some(wanted) = &self.snapshot else {
            return snapshots
                .len()
                .checked_sub(1)
                .context("the streams contain no snapshot");
        };
        let found = snapshots.iter().rposition(|snapshot| {
            snapshot.name == wanted.as_bytes() || snapshot.uuid.to_string() == wanted.to_lowercase()
        });
        found
            .ok_or_else(|| anyhow!("the streams contain no snapshot {wanted}"))
            .context(Advice::new("`buttress stream verify FILE…` lists all snapshots"))
    }
}

impl Loaded {
    fn snapshot(&self) -> Result<&Snapshot> {
        let snapshot = self.series.snapshots().get(self.number);
        snapshot.context("the streams contain no snapshot")
    }

    fn tree(&self) -> Result<&Tree> {
        Ok(&self.snapshot()?.tree)
    }

    /// Resolves the path, and returns it without leading and trailing slashes.
    fn start(&self) -> Result<(NodeId, Vec<u8>)> {
        let names = self
            .path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty());
        let path = names.collect::<Vec<_>>().join(&b'/');
        let id = self.tree()?.find(&path).with_context(|| self.shown.clone())?;
        Ok((id, path))
    }

    fn inode(&self, id: NodeId) -> Result<&Inode> {
        self.tree()?.inode(id).context("the inode is missing")
    }
}

/// Loads the streams of these files.
fn read<'a>(
    context: &Context,
    name: &'static str,
    options: Options,
    files: impl Iterator<Item = &'a OsStr>,
) -> Result<Series> {
    let mut series = Series::new(options.clone());
    let watch = Watch::start(context, name, options.progress);
    for file in files {
        series.add(file.to_string_lossy(), Box::new(open(context, file)?))?;
    }
    watch.end();
    Ok(series)
}

/// Opens the file, or a copy of it if it can be read only once.
fn open(context: &Context, name: &OsStr) -> Result<File> {
    let opening = || format!("opening {}", name.to_string_lossy());
    let mut file = if name == "-" {
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        File::open(name).with_context(opening)?
    };
    context
        .sources()
        .add_open(&file, &name.to_string_lossy(), Role::Stream)?;
    // Another reader may have consumed part of standard input, so copy it from its current
    // position.
    if name != "-" && file.metadata().with_context(opening)?.is_file() {
        return Ok(file);
    }
    let mut copy = tempfile::tempfile().context("making a temporary file for the stream")?;
    io::copy(&mut file, &mut copy)
        .with_context(|| format!("copying {} to a temporary file", name.to_string_lossy()))?;
    Ok(copy)
}
