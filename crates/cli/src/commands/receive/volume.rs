//! Receiving into a volume.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use buttress::format::Generation;
use buttress::fs::{Follow, Progress};
use buttress::stream::receive::{self, Event, Options, ReceivedSubvolume};
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

pub(super) fn receive(arguments: &Receive, context: &Context) -> Result<Outcome> {
    let Some(target) = &arguments.target else {
        return Err(usage(
            "receive: where to receive into is missing: give IMAGE:/directory, or --dump to print the stream",
        ));
    };
    let target = Target::parse(target);
    let files: Vec<Option<&Path>> = match arguments.files.as_slice() {
        [] => vec![None],
        files => files.iter().map(|file| Some(file.as_path())).collect(),
    };
    // A stream that cannot be read is found before the volume is touched.
    let mut inputs = Vec::with_capacity(files.len());
    for file in files {
        inputs.push(open(context, file)?);
    }
    let writing = context.open_for_writing(&target.image)?;
    let directory = writing
        .resolve(&target.path, Follow::All)
        .with_context(|| target.display())?;
    if !writing.filesystem.metadata(directory)?.is_directory() {
        return Err(anyhow!("{} is not a directory", target.display()));
    }
    let progress = Progress::new();
    let options = Options {
        streams: arguments.streams(),
        force_decompress: arguments.force_decompress,
        errors_max: arguments.max_errors,
        progress: progress.clone(),
        ..Options::default()
    };
    let _cancelling = Cancelling::start(&progress)?;
    let watch = Watch::start(context, "receive", progress);
    let mut received = Vec::new();
    for (input, name) in inputs {
        let before = writing.filesystem.committed_generation();
        let mut skipped = |event: &Event<'_>| tell(context, event);
        let result = receive::receive(&writing.filesystem, directory, input, &options, &mut skipped);
        match result {
            Ok(summary) => received.extend(summary.subvolumes),
            Err(error) => {
                watch.end_as(false);
                give_up(context, writing, before);
                return Err(advised(error.into())).with_context(|| name);
            }
        }
    }
    watch.end_as(true);
    if context.json() {
        let list = received.iter().map(|one| as_json(one, &target)).collect();
        context.print_json("receive", list)?;
    }
    Ok(Outcome::Done)
}

/// Says what begins, in the words of btrfs-progs, and what was left out.
fn tell(context: &Context, event: &Event<'_>) {
    match event {
        Event::Subvolume { name, .. } => at(context, "subvol", name),
        Event::Snapshot { name, .. } => at(context, "snapshot", name),
        Event::Skipped(error) => context.lost(&anyhow!("{error}")),
        _ => {}
    }
}

fn at(context: &Context, what: &str, name: &[u8]) {
    if !context.globals().quiet && !crate::output::events::are_wanted() {
        let name = terminal::shown(String::from_utf8_lossy(name));
        terminal::line(&format_args!("At {what} {name}"));
    }
}

/// Has the volume be what it was before the stream.
fn give_up(context: &Context, writing: Writing, before: Generation) {
    let Writing { filesystem, .. } = writing;
    if filesystem.committed_generation() == before {
        // Nothing of it was ever written down.
        filesystem.abandon();
        return;
    }
    let dropped = filesystem
        .drop_deleted_subvolumes(&Progress::new())
        .and_then(|()| filesystem.commit().map(drop));
    if let Err(error) = dropped {
        context.warn(format_args!(
            "what was received of the stream is still in the volume, but has no name: the next command that writes to it, or \
             the kernel's next mount, removes it ({error})"
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
            "nothing of this stream was received: send it again, or look at it with `buttress stream verify`",
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
