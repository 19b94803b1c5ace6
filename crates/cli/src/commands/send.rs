//! `buttress send IMAGE:/snapshot…`: snapshots as a send stream, without mounting them.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress_fs::{Follow, Progress};
use buttress_stream::Version;
use buttress_stream::send::{self, Options, Snapshot};
use buttress_tree::ReadAhead;
use clap::{Args, ValueEnum};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::opening::Images;
use crate::output::stdout::DirectOutput;
use crate::progress::Watch;
use crate::table::Subcommand;
use crate::target::Target;

/// Write read-only snapshots as a send stream, to be received by `btrfs receive`
#[derive(Args, Debug)]
pub struct Send {
    /// The snapshots; they must be read-only
    #[arg(value_name = "IMAGE:/snapshot", required = true)]
    snapshots: Vec<OsString>,
    /// Write to this file instead of standard output
    #[arg(short = 'f', long = "output", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The receiver has this snapshot: send what differs. It may be in another image of the same history
    #[arg(short, long, value_name = "IMAGE:/snapshot")]
    parent: Option<OsString>,
    /// The receiver has this snapshot too: clone extents from it. Without --parent the best of them is the parent
    #[arg(short, long = "clone-source", value_name = "IMAGE:/snapshot")]
    clone_sources: Vec<OsString>,
    /// Between several snapshots leave out the end of the stream
    #[arg(short = 'e')]
    omit_ends: bool,
    /// Send which ranges of files changed, but not their content
    #[arg(long)]
    no_data: bool,
    /// Send compressed extents as they lie on disk; makes it version 2
    #[arg(long)]
    compressed_data: bool,
    /// Version of the stream; 0 is the newest
    #[arg(long, value_name = "N")]
    proto: Option<u32>,
    /// How the trees are read ahead
    #[arg(long, value_enum, default_value_t = Ahead::Sweep, value_name = "MODE")]
    read_ahead: Ahead,
}

/// The modes of read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ahead {
    /// Not at all
    None,
    /// Leaves that lie close by
    Forward,
    /// The next leaves, wherever they lie
    ForwardAlways,
    /// All leaves of a window in the order in which they lie on disk
    Sweep,
}

impl From<Ahead> for ReadAhead {
    fn from(ahead: Ahead) -> Self {
        match ahead {
            Ahead::None => Self::None,
            Ahead::Forward => Self::Forward,
            Ahead::ForwardAlways => Self::ForwardAlways,
            Ahead::Sweep => Self::sweep(),
        }
    }
}

impl Subcommand for Send {
    const NAME: &'static str = "send";

    fn run(self, context: &Context) -> Result<Outcome> {
        let version = self.version()?;
        if self.file.is_none() && io::stdout().is_terminal() {
            return Err(anyhow!("a send stream is not written to a terminal"))
                .context(Advice::new("redirect it, or name a file with -f"));
        }
        let mut images = Images::new(context);
        let mut open = |argument: &OsString| open_snapshot(&mut images, argument);
        let parent = self.parent.as_ref().map(&mut open).transpose()?;
        let mut sources: Vec<Snapshot> = self.clone_sources.iter().map(&mut open).collect::<Result<_>>()?;
        let snapshots: Vec<Snapshot> = self.snapshots.iter().map(&mut open).collect::<Result<_>>()?;
        let mut sink = self.sink()?;
        let progress = Progress::new();
        let watch = Watch::start(context, "send", progress.clone());
        for (number, snapshot) in snapshots.iter().enumerate() {
            let parent = match (&parent, self.clone_sources.is_empty()) {
                (None, false) => Some(good_parent(snapshot, &sources)?),
                _ => parent.clone(),
            };
            let options = Options {
                parent,
                clone_sources: sources.clone(),
                version,
                no_data: self.no_data,
                compressed_data: self.compressed_data,
                read_ahead: self.read_ahead.into(),
                omit_header: self.omit_ends && number > 0,
                omit_end: self.omit_ends && number.saturating_add(1) < snapshots.len(),
                ..Options::default()
            };
            let summary = send::send(snapshot, &options, sink.as_mut(), &progress);
            let summary = summary.with_context(|| name_of(snapshot))?;
            if context.globals().verbose > 0 {
                context.notice(format_args!(
                    "{}: {} inodes, {} commands, {} bytes",
                    name_of(snapshot),
                    summary.inodes,
                    summary.commands,
                    summary.stream_bytes
                ));
            }
            // What was sent can be cloned from.
            sources.push(snapshot.clone());
        }
        sink.flush()?;
        watch.end();
        Ok(Outcome::Done)
    }
}

impl Send {
    fn version(&self) -> Result<Version> {
        Ok(match self.proto {
            None if self.compressed_data => Version::V2,
            None | Some(1) => Version::V1,
            Some(0 | 2) => Version::V2,
            Some(other) => bail!("version {other} of the stream is unknown: versions 1 and 2 can be sent"),
        })
    }

    fn sink(&self) -> Result<Box<dyn Write + std::marker::Send>> {
        Ok(match &self.file {
            Some(path) => {
                Box::new(fs::File::create(path).with_context(|| format!("creating {}", path.display()))?)
            }
            None => Box::new(DirectOutput::stdout()?),
        })
    }
}

fn name_of(snapshot: &Snapshot) -> String {
    snapshot.name().escape_ascii().to_string()
}

/// The snapshot that an argument names.
fn open_snapshot(images: &mut Images<'_>, argument: &OsString) -> Result<Snapshot> {
    let target = Target::parse(argument);
    let mut open = || -> Result<Snapshot> {
        let opened = images.open(&target.image)?;
        let location = opened.resolve(&target.path, Follow::All)?;
        if !location.is_subvolume_root() {
            return Err(anyhow!("not a subvolume"))
                .context(Advice::new("`buttress subvolume list IMAGE` shows what there is"));
        }
        Ok(Snapshot::open(&opened.filesystem, location.subvolume)?)
    };
    open().map_err(|error| target.name_in(error))
}

/// The best parent among the clone sources: a snapshot of the same subvolume (or that subvolume itself), the one
/// that is closest to `snapshot` in time.
fn good_parent(snapshot: &Snapshot, sources: &[Snapshot]) -> Result<Snapshot> {
    let origin = snapshot.info().parent_uuid();
    let created = snapshot.info().created_generation();
    sources
        .iter()
        .filter(|source| source.id() != snapshot.id())
        .filter(|source| {
            origin.is_some() && (source.info().parent_uuid() == origin || source.info().uuid() == origin)
        })
        .min_by_key(|source| source.info().created_generation().get().abs_diff(created.get()))
        .cloned()
        .ok_or_else(|| {
            anyhow!(
                "{}: no clone source is a snapshot of the same subvolume",
                name_of(snapshot)
            )
        })
        .context(Advice::new("name the parent with -p"))
}
