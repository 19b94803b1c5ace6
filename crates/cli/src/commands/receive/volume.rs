//! Receiving into a volume.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use buttress::stream::receive::{Event, Kept, Options, ReceivedSubvolume};
use buttress::stream::trail::Trail;
use buttress::stream::{ReadAhead, Streams};
use buttress::unstable::stream::receive;
use buttress::unstable::{filesystem_of, writer_of};
use buttress::{ByteCount, Follow, Generation, Location, Progress};
use serde_json::{Map, Value};

use super::{Receive, open};
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::output::json::insert_name;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::target::Target;
use crate::writing::Writing;

/// Default interval, in bytes of the stream, at which the received part is saved.
const KEEP_EVERY_BYTES: u64 = 256 << 20;

pub(super) fn receive(arguments: &Receive, context: &Context) -> Result<Outcome> {
    let Some(target) = &arguments.target else {
        return Err(usage(
            "receive: the target is missing: give IMAGE:/directory, or --dump to print the stream",
        ));
    };
    let target = Target::parse(target);
    let files: Vec<Option<&Path>> = match arguments.files.as_slice() {
        [] => vec![None],
        files => files.iter().map(|file| Some(file.as_path())).collect(),
    };
    // Open all streams first, so that an unreadable stream leaves the volume untouched.
    let mut inputs = Vec::with_capacity(files.len());
    for file in files {
        inputs.push(open(context, file)?);
    }
    let writing = context.open_for_writing(&target.image)?;
    let directory = writing
        .resolve(&target.path, Follow::All)
        .with_context(|| target.display())?;
    if !writing.volume().metadata(directory)?.is_directory() {
        return Err(anyhow!("{} is not a directory", target.display()));
    }
    let resume = match &arguments.resume {
        None => None,
        Some(name) => chosen(
            receive::kept(&filesystem_of(writing.volume()), directory)?,
            name.as_bytes(),
            &target,
        )?,
    };
    if arguments.token {
        let trail = resume.as_ref().map_or(Trail::default(), |kept| kept.trail);
        let mut out = context.stdout();
        writeln!(out, "{trail}")?;
        out.flush()?;
    }
    let keeps = arguments.keep_partial.is_some() || arguments.resume.is_some();
    let progress = Progress::new();
    let mut options = Options {
        streams: arguments.streams(),
        force_decompress: arguments.force_decompress,
        skip_unknown: arguments.skip_unknown,
        errors_max: arguments.max_errors.unwrap_or(1),
        keep_every: keeps.then(|| ByteCount::new(arguments.keep_partial.unwrap_or(KEEP_EVERY_BYTES))),
        resume,
        progress: progress.clone(),
    };
    let mut cancelling = Cancelling::start(&progress)?;
    let watch = Watch::start(context, "receive", progress);
    let mut received = Vec::new();
    for (input, name) in inputs {
        let before = writing.volume().committed_generation();
        let mut skipped = |event: &Event<'_>| tell(context, event);
        let begins = options.streams == Streams::All && options.resume.is_none();
        let ahead = begins.then(|| read_ahead(&input)).flatten();
        let filesystem = writer_of(writing.volume());
        let result = match ahead {
            Some(ahead) => receive::receive_ahead(filesystem, directory, ahead, &options, &mut skipped),
            None => {
                let input = cancelling.input(input)?;
                receive::receive(filesystem, directory, input, &options, &mut skipped)
            }
        };
        // Streams after the first one start at their beginnings.
        options.resume = None;
        match result {
            Ok(summary) => received.extend(summary.subvolumes),
            Err(error) => {
                watch.end_as(false);
                let kept = keeps
                    .then(|| what_is_kept(&writing, directory, &target))
                    .flatten();
                give_up(context, writing, before);
                let error = anyhow::Error::from(error);
                let told = match kept {
                    Some(kept) => error.context(kept),
                    None => advised(error),
                };
                return Err(told).with_context(|| name);
            }
        }
    }
    watch.end_as(true);
    drop(cancelling);
    if context.json() {
        let list = received.iter().map(|one| as_json(one, &target)).collect();
        context.print_json("receive", list)?;
    }
    Ok(Outcome::Done)
}

/// Starts readahead of a file in a separate thread. Returns `None` if reads could block on another
/// process.
fn read_ahead(input: &File) -> Option<ReadAhead> {
    let is_file = input.metadata().is_ok_and(|found| found.is_file());
    let input = input.try_clone().ok().filter(|_| is_file)?;
    ReadAhead::start(input).ok()
}

/// Returns the kept stream with this name, or the only kept stream.
fn chosen(kept: Vec<Kept>, name: &[u8], target: &Target) -> Result<Option<Kept>> {
    let mut found: Vec<Kept> = kept;
    if !name.is_empty() {
        found.retain(|kept| kept.name == name);
        if found.is_empty() {
            return Err(anyhow!(
                "{}: no part of a stream of {} is kept",
                target.display(),
                name.escape_ascii()
            ));
        }
    }
    if found.len() > 1 {
        let names: Vec<String> = found
            .iter()
            .map(|kept| kept.name.escape_ascii().to_string())
            .collect();
        return Err(anyhow!(
            "{}: parts of several streams are kept: {}",
            target.display(),
            names.join(", ")
        ))
        .context(Advice::new("select one with --resume=NAME"));
    }
    Ok(found.pop())
}

/// Executes `--token`: prints the positions at which senders resume kept streams.
pub(super) fn tokens(arguments: &Receive, context: &Context) -> Result<Outcome> {
    let Some(target) = &arguments.target else {
        return Err(usage(
            "receive --token: the directory of the kept part is missing: give IMAGE:/directory",
        ));
    };
    let target = Target::parse(target);
    let opened = context.open_volume(&target.image)?;
    let directory = opened
        .locate(&target.path, Follow::All)
        .with_context(|| target.display())?;
    let kept = receive::kept(&filesystem_of(opened.volume()), directory).with_context(|| target.display())?;
    if context.json() {
        let list = kept.iter().map(|kept| {
            let mut object = Map::new();
            insert_name(&mut object, "name", &kept.name);
            object.insert("uuid".into(), kept.uuid.to_string().into());
            object.insert("bytes".into(), kept.trail.bytes().into());
            object.insert("token".into(), kept.trail.to_string().into());
            Value::Object(object)
        });
        context.print_json("receive-token", list.collect())?;
        return Ok(Outcome::Done);
    }
    if kept.is_empty() {
        return Err(anyhow!("{}: no part of a stream is kept", target.display())).context(Advice::new(
            "to keep the received part of an interrupted stream, receive with --keep-partial",
        ));
    }
    let mut out = context.stdout();
    for one in &kept {
        match kept.len() {
            1 => writeln!(out, "{}", one.trail)?,
            _ => writeln!(out, "{} {}", one.trail, one.name.escape_ascii())?,
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// Returns advice that names the kept streams and how to resume them.
fn what_is_kept(writing: &Writing, directory: Location, target: &Target) -> Option<Advice> {
    // If the volume is unreadable, the error itself already reports this.
    let kept = receive::kept(&filesystem_of(writing.volume()), directory).unwrap_or_default();
    let told: Vec<String> = kept
        .iter()
        .map(|one| {
            format!(
                "{} bytes of the stream of {} are kept. To continue, pipe `send --resume {}` of the same snapshot into `receive --resume {}`",
                one.trail.bytes(),
                one.name.escape_ascii(),
                one.trail,
                target.display()
            )
        })
        .collect();
    (!told.is_empty()).then(|| Advice::new(told.join("; ")))
}

/// Prints the beginning of a subvolume in the wording of btrfs-progs, or what was left out.
fn tell(context: &Context, event: &Event<'_>) {
    match event {
        Event::Subvolume { name, .. } => at(context, "subvol", name),
        Event::Snapshot { name, .. } => at(context, "snapshot", name),
        Event::Skipped(error) => context.lost(&anyhow!("{error}")),
        Event::Note(note) if !context.globals().quiet => context.tell(note),
        _ => {}
    }
}

fn at(context: &Context, what: &str, name: &[u8]) {
    if !context.globals().quiet && !crate::output::events::are_wanted() {
        let name = terminal::shown(String::from_utf8_lossy(name));
        terminal::line(&format_args!("At {what} {name}"));
    }
}

/// Restores the volume to its state before the stream.
fn give_up(context: &Context, writing: Writing, before: Generation) {
    let filesystem = writing.volume().clone();
    drop(writing);
    if filesystem.committed_generation() == before {
        // Nothing of the stream was written to a device.
        filesystem.abandon();
        return;
    }
    let dropped = filesystem.drop_deleted_subvolumes(&Progress::new());
    // Commit the drops that succeeded, even if others failed.
    let committed = filesystem.sync().map(drop);
    if let Err(error) = dropped.and(committed) {
        context.warn(format_args!(
            "the received part of the stream is still in the volume, without a name: the next command that writes to the volume, or the kernel's next mount, removes it ({error})"
        ));
        filesystem.abandon();
    }
}

fn advised(error: anyhow::Error) -> anyhow::Error {
    let is_cut_short = error.downcast_ref::<receive::Error>().is_some_and(|error| {
        matches!(
            error,
            receive::Error::Stream(buttress::stream::Error::Corrupt { .. })
        )
    });
    if is_cut_short {
        return error.context(Advice::new(
            "nothing of this stream was received. Send it again, or inspect it with `buttress stream verify`",
        ));
    }
    let is_unknown = error.downcast_ref::<receive::Error>().is_some_and(|error| {
        matches!(
            error,
            receive::Error::Stream(buttress::stream::Error::CommandUnknown { .. })
        )
    });
    if is_unknown {
        return error.context(Advice::new(
            "nothing of this stream was received. To receive it without such commands, use --skip-unknown",
        ));
    }
    error
}

fn as_json(received: &ReceivedSubvolume, target: &Target) -> Value {
    let mut object = Map::new();
    insert_name(&mut object, "name", &received.name);
    insert_name(&mut object, "directory", &target.path);
    object.insert("id".into(), received.id.get().into());
    object.insert("received_uuid".into(), received.uuid.to_string().into());
    object.insert("stransid".into(), received.transid.get().into());
    Value::Object(object)
}
