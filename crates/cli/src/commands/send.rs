//! `buttress send IMAGE:/snapshot…`: sends snapshots as a stream, without mounting them.

use std::ffi::OsString;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress::stream::send::resume::{Digest, Token, TokenError};
use buttress::stream::send::{Following, Options, Snapshot, estimate};
use buttress::stream::trail::{Trail, TrailError};
use buttress::stream::{Version, send};
use buttress::{ByteCount, Follow, Progress, ReadAhead};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::manual::{Example, example};
use crate::opening::Images;
use crate::output::destination::{Destination, named, refuse_terminal};
use crate::output::file::beside;
use crate::output::json::written_file;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;

/// Write read-only snapshots as a send stream, for `btrfs receive` or `buttress receive`
#[derive(Args, Debug)]
pub struct Send {
    /// Read-only snapshots
    #[arg(value_name = "IMAGE:/snapshot", required = true)]
    snapshots: Vec<OsString>,
    /// Write to this file instead of standard output. The file gets its name when it is complete.
    /// If the stream is interrupted, its first part is kept beside the file, and --resume continues
    /// it
    #[arg(short = 'f', long = "output", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Parent snapshot, which the receiver has: send only the differences from it. It may be in
    /// another image with the same history
    #[arg(short, long, value_name = "IMAGE:/snapshot")]
    parent: Option<OsString>,
    /// Clone source, which the receiver has: clone extents from this snapshot. Without --parent,
    /// the best clone source becomes the parent
    #[arg(short, long = "clone-source", value_name = "IMAGE:/snapshot")]
    clone_sources: Vec<OsString>,
    /// Leave out the end command between several snapshots
    #[arg(short = 'e')]
    omit_ends: bool,
    /// Send the changed ranges of files without their content
    #[arg(long)]
    no_data: bool,
    /// Send compressed extents as they are on disk; the stream then has version 2
    #[arg(long)]
    compressed_data: bool,
    /// Version of the stream; 0 is the newest
    #[arg(long, value_name = "N")]
    proto: Option<u32>,
    /// Send nothing; print the length of the stream and its number of inodes. By default, the
    /// estimate uses a sample of the metadata and is right to about two percent; `exact` reads all
    /// metadata, but no data
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "sample",
        conflicts_with_all = ["file", "omit_ends"])]
    estimate: Option<How>,
    /// Continue an interrupted send. The interrupted send prints the token, or `receive --token`
    /// does. The last number in a token of send is the number of bytes that the receiver has:
    /// correct it if fewer bytes arrived. With -f, the first part beside the file is continued, or
    /// else the file itself; with a token of a receiver, the rest of the stream goes to the file.
    /// `-` reads the token from standard input, where a receiver on a two-way connection prints it
    #[arg(long, value_name = "TOKEN", conflicts_with = "estimate")]
    resume: Option<Resume>,
    /// Read-ahead of tree blocks
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

/// Method of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// From a part of the metadata
    Sample,
    /// From all of the metadata
    Exact,
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
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress send backup.img:/monday > monday.stream",
            "Writes a full stream of a read-only snapshot",
        ),
        example(
            "buttress send -p backup.img:/monday backup.img:/tuesday | btrfs receive /mnt",
            "Sends the changes since another snapshot to a mounted volume",
        ),
        example(
            "buttress send --estimate -p backup.img:/monday backup.img:/tuesday",
            "Prints the length of this stream",
        ),
    ];

    fn writes_contents(&self) -> bool {
        self.estimate.is_none() && named(self.file.as_deref()).is_none()
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let version = self.version()?;
        if self.estimate.is_none() {
            refuse_terminal(self.file.as_deref(), "a send stream")?;
        }
        let sends = self.plan(context, version)?;
        let progress = Progress::new();
        if let Some(how) = self.estimate {
            return estimate(context, how, &sends, &progress);
        }
        let digest = Digest::of(sends.iter().map(|(snapshot, options)| (snapshot, options)));
        let (offset, following) = self.place(digest)?;
        let mut sink = self.sink(context, digest, offset)?;
        expect(context, &sends, offset, &progress);
        let mut cancelling = Cancelling::start(&progress)?;
        sink.listen(&mut cancelling)?;
        let watch = Watch::start(context, "send", progress.clone());
        let result = send_all(context, sends, (offset, following), &mut sink, &progress);
        watch.end_as(result.is_ok());
        match result {
            Ok(()) => sink.finish()?,
            Err(error) => {
                let offset = offset.saturating_add(progress.snapshot().bytes.get());
                self.tell_how_to_go_on(context, sink, Token { digest, offset });
                return Err(error);
            }
        }
        if let Some(file) = named(self.file.as_deref()).filter(|_| context.json()) {
            context.print_json("send", written_file(file, &progress.snapshot()))?;
        }
        Ok(Outcome::Done)
    }
}

impl Send {
    fn version(&self) -> Result<Version> {
        Ok(match self.proto {
            None if self.compressed_data => Version::V2,
            None | Some(1) => Version::V1,
            Some(0 | 2) => Version::V2,
            Some(other) => {
                return Err(usage(format_args!(
                    "--proto: unknown stream version (found {other}, expected 1 or 2)"
                )));
            }
        })
    }

    /// Returns the snapshots to send, in order, each with its options.
    fn plan(&self, context: &Context, version: Version) -> Result<Vec<(Snapshot, Options)>> {
        let mut images = Images::for_one_pass(context);
        let mut open = |argument: &OsString| open_snapshot(context, &mut images, argument);
        let parent = self.parent.as_ref().map(&mut open).transpose()?;
        let mut sources: Vec<Snapshot> = self.clone_sources.iter().map(&mut open).collect::<Result<_>>()?;
        let snapshots: Vec<Snapshot> = self.snapshots.iter().map(&mut open).collect::<Result<_>>()?;
        let count = snapshots.len();
        let mut sends = Vec::with_capacity(count);
        for (number, snapshot) in snapshots.into_iter().enumerate() {
            let parent = match (&parent, self.clone_sources.is_empty()) {
                (None, false) => Some(good_parent(&snapshot, &sources)?),
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
                omit_end: self.omit_ends && number.saturating_add(1) < count,
                ..Options::default()
            };
            // A later snapshot can clone from earlier snapshots of the same command.
            sources.push(snapshot.clone());
            sends.push((snapshot, options));
        }
        Ok(sends)
    }

    /// Returns the number of bytes that the receiver already has, and its trail, which proves that
    /// they belong to this stream.
    fn place(&self, digest: Digest) -> Result<(u64, Option<Following>)> {
        let resume = match self.resume {
            Some(Resume::Asked) => read_token()?,
            other => other.unwrap_or(Resume::Receiver(Trail::default())),
        };
        match resume {
            Resume::Sender(token) if token.digest == digest => Ok((token.offset, None)),
            Resume::Sender(_) => {
                Err(anyhow!("--resume: the token belongs to another stream")).context(Advice::new(SAME_AGAIN))
            }
            Resume::Receiver(wanted) => {
                let so_far = Trail::default();
                Ok((wanted.bytes(), Some(Following { so_far, wanted })))
            }
            Resume::Asked => Err(anyhow!("--resume: standard input has no token")),
        }
    }

    /// Returns whether --resume contains a receiver's trail instead of a token.
    fn follows_receiver(&self) -> bool {
        !matches!(self.resume, None | Some(Resume::Sender(_)))
    }

    /// Returns the name of a partial stream, beside the file for the complete stream. The name
    /// contains the token's digest, so it never collides with a part of another stream.
    fn partial(file: &Path, digest: Digest) -> PathBuf {
        beside(file, &format!(".part-{digest}"))
    }

    /// After an early end of the stream, prints the location of its part and how to resume.
    fn tell_how_to_go_on(&self, context: &Context, sink: Destination, token: Token) {
        let Token { digest, offset } = token;
        let kept = match (named(self.file.as_deref()), sink) {
            (Some(path), Destination::File(file)) if offset > 0 && !self.follows_receiver() => {
                let partial = Self::partial(path, digest);
                match file.keep_as(&partial) {
                    Ok(kept) => kept.then_some(partial),
                    Err(error) => return context.lost(&error),
                }
            }
            _ => None,
        };
        match kept {
            Some(partial) => context.warn(format_args!(
                "the stream was interrupted after {offset} bytes, which are kept in {}. To continue, repeat the command with --resume {token}",
                partial.display()
            )),
            None => context.warn(format_args!(
                "the stream was interrupted after {offset} bytes. To continue, repeat the command with --resume {token} (if fewer bytes arrived, put their number in place of {offset})"
            )),
        }
    }

    /// Opens the output of the stream for its bytes from `offset` on.
    fn sink(&self, context: &Context, digest: Digest, offset: u64) -> Result<Destination> {
        match named(self.file.as_deref()) {
            Some(path) if offset > 0 && !self.follows_receiver() => {
                let partial = Self::partial(path, digest);
                Ok(Destination::File(
                    context.continue_output(path, &partial, offset)?,
                ))
            }
            Some(path) => Ok(Destination::File(context.create_output_to_keep(path)?)),
            None => Destination::open(context, None),
        }
    }
}

/// Position at which --resume continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    /// Position at which a sender stopped.
    Sender(Token),
    /// Trail of a receiver, from which a send resumes.
    Receiver(Trail),
    /// The position is on standard input.
    Asked,
}

impl FromStr for Resume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" {
            return Ok(Self::Asked);
        }
        let of_receiver = text.parse().map(Self::Receiver);
        of_receiver.or_else(|other: TrailError| {
            let of_sender = text.parse().map(Self::Sender);
            of_sender.map_err(|error: TokenError| format!("{error}; {other}"))
        })
    }
}

/// Advice if the token does not match the stream.
const SAME_AGAIN: &str =
    "give the same snapshots and options as before; the snapshots must not have been created again since";

/// Longest line that is read for a token, in bytes.
const TOKEN_BYTES_MAX: usize = 128;

/// Reads a token from the first line of standard input, and nothing after this line.
fn read_token() -> Result<Resume> {
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < TOKEN_BYTES_MAX
        && input.read(&mut byte).context("standard input")? == 1
        && byte != *b"\n"
    {
        line.extend_from_slice(&byte);
    }
    let text = String::from_utf8_lossy(&line);
    let token = text.trim().parse::<Resume>();
    token.map_err(|error| anyhow!("--resume -: standard input: {error}"))
}

/// Sends the snapshots in order, and omits the first `skip_bytes` bytes of the whole output.
fn send_all(
    context: &Context,
    sends: Vec<(Snapshot, Options)>,
    (skip_bytes, mut following): (u64, Option<Following>),
    sink: &mut (dyn Write + std::marker::Send),
    progress: &Progress,
) -> Result<()> {
    let mut total_bytes = 0_u64;
    for (snapshot, mut options) in sends {
        options.skip_bytes = skip_bytes.saturating_sub(total_bytes);
        options.following = following;
        let sent = send::send(&snapshot, &options, sink, progress).map_err(|error| {
            let is_other = matches!(error, send::Error::OtherStream { .. });
            let error = anyhow::Error::from(error);
            if is_other {
                error.context(Advice::new(SAME_AGAIN))
            } else {
                error
            }
        });
        let summary = sent.with_context(|| name_of(&snapshot))?;
        following = summary.following;
        if context.globals().verbose > 0 {
            context.notice(format_args!(
                "{}: {} inodes, {} commands, {} bytes",
                name_of(&snapshot),
                summary.inodes,
                summary.commands,
                summary.stream_bytes
            ));
        }
        total_bytes = total_bytes.saturating_add(summary.stream_bytes.get());
    }
    if total_bytes < skip_bytes {
        bail!(
            "--resume: the token is past the end of the stream (found {skip_bytes} bytes, expected at most {total_bytes})"
        );
    }
    Ok(())
}

/// Sets the expected length of the progress from a quick estimate, if the progress is displayed.
fn expect(context: &Context, sends: &[(Snapshot, Options)], offset: u64, progress: &Progress) {
    if !Watch::is_wanted(context) || sends.iter().any(|(_, options)| options.parent.is_some()) {
        return;
    }
    let guess =
        |(snapshot, options): &(Snapshot, Options)| estimate::sample(snapshot, options, &Progress::new());
    let estimates: Result<Vec<_>, _> = sends.iter().map(guess).collect();
    // The send itself reports an unreadable volume.
    if let Ok(estimates) = estimates {
        let bytes: u64 = estimates.iter().map(|estimate| estimate.stream_bytes.get()).sum();
        progress.expect(ByteCount::new(bytes.saturating_sub(offset)));
    }
}

/// Prints the length that the stream would have.
fn estimate(
    context: &Context,
    how: How,
    sends: &[(Snapshot, Options)],
    progress: &Progress,
) -> Result<Outcome> {
    let mut rows = Vec::new();
    for (snapshot, options) in sends {
        let estimate = match how {
            How::Sample => estimate::sample(snapshot, options, progress),
            How::Exact => estimate::exact(snapshot, options, progress),
        };
        rows.push((name_of(snapshot), estimate.with_context(|| name_of(snapshot))?));
    }
    if context.json() {
        let rows = rows.iter().map(|(name, estimate)| {
            json!({
                "snapshot": name,
                "stream-bytes": estimate.stream_bytes.get(),
                "inodes": estimate.inodes,
                "uncertainty": estimate.uncertainty,
            })
        });
        context.print_json("send-estimate", rows.collect())?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    for (name, estimate) in rows {
        let percent = estimate.uncertainty * 100.0;
        let exactness = if estimate.uncertainty > 0.0 {
            format!(" (within about {percent:.1} %)")
        } else {
            String::new()
        };
        writeln!(
            out,
            "{name}: {} bytes of stream, {} inodes{exactness}",
            estimate.stream_bytes, estimate.inodes
        )?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

fn name_of(snapshot: &Snapshot) -> String {
    snapshot.name().escape_ascii().to_string()
}

/// Opens the snapshot that an argument names.
fn open_snapshot(context: &Context, images: &mut Images<'_>, argument: &OsString) -> Result<Snapshot> {
    let target = context.target(argument);
    let mut open = || -> Result<Snapshot> {
        let opened = images.open(&target.image)?;
        let location = opened.locate(&target.path, Follow::All)?;
        if !location.is_subvolume_root() {
            return Err(anyhow!("not a subvolume")).context(Advice::new(
                "`buttress subvolume list IMAGE` lists all subvolumes",
            ));
        }
        Ok(opened.volume().subvolume_by_id(location.subvolume)?.to_send()?)
    };
    open().map_err(|error| target.name_in(error))
}

/// Chooses the best parent among the clone sources: a snapshot of the same subvolume (or this
/// subvolume itself), the one closest to `snapshot` in time.
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
                "{}: none of the clone sources is a snapshot of this subvolume",
                name_of(snapshot)
            )
        })
        .context(Advice::new("name the parent with -p"))
}
