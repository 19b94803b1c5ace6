//! `buttress stream`: looks into send streams without receiving them.
//!
//! All of its commands take files in the order in which they would be received: a full stream and its incremental
//! successors, or several streams in one file. What is shown is what the last stream makes, or the one that
//! `--snapshot` names. As elsewhere a path follows its file, `FILE:/path`, here the last one's.
//!
//! Streams are read once to learn what they hold; file data is read from them again when it is wanted. So what is
//! no plain file (a pipe, or `-` for standard input) is first copied to a temporary file without a name.

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

/// The commands of the group.
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

/// Streams that were read.
struct Loaded {
    series: Series,
    /// Which snapshot to show.
    number: usize,
    /// The path that was given, from the root of the snapshot, and whether one was.
    path: Vec<u8>,
    has_path: bool,
    /// The last stream and the path, for messages.
    shown: String,
}

impl Streams {
    /// Reads all streams.
    fn load(&self, context: &Context, name: &'static str) -> Result<Loaded> {
        let mut targets: Vec<Target> = self.files.iter().map(|file| Target::parse(file)).collect();
        let last = targets.pop().context("a stream is missing")?;
        if let Some(early) = targets.iter().find(|target| target.has_path) {
            return Err(anyhow!("{}: only the last file can have a path", early.display())).context(
                Advice::new("what is shown is what all of the streams make together"),
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
                .context("there is no snapshot in the streams");
        };
        let found = snapshots.iter().rposition(|snapshot| {
            snapshot.name == wanted.as_bytes() || snapshot.uuid.to_string() == wanted.to_lowercase()
        });
        found
            .ok_or_else(|| anyhow!("no stream makes a snapshot {wanted}"))
            .context(Advice::new("`buttress stream verify FILE…` lists what there is"))
    }
}

impl Loaded {
    fn snapshot(&self) -> Result<&Snapshot> {
        let snapshot = self.series.snapshots().get(self.number);
        snapshot.context("there is no snapshot in the streams")
    }

    fn tree(&self) -> Result<&Tree> {
        Ok(&self.snapshot()?.tree)
    }

    /// What the path leads to, and the path without slashes around it.
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
        self.tree()?.inode(id).context("the inode is not there")
    }
}

/// Reads the streams of these files.
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

/// The file, or a copy of it where it can be read only once.
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
    // Standard input may be a file that was read from already, so it is copied from where it stands.
    if name != "-" && file.metadata().with_context(opening)?.is_file() {
        return Ok(file);
    }
    let mut copy = tempfile::tempfile().context("making a temporary file for the stream")?;
    io::copy(&mut file, &mut copy)
        .with_context(|| format!("copying {} to a temporary file", name.to_string_lossy()))?;
    Ok(copy)
}
