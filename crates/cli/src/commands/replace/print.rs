//! Output of a replacement's outcome and losses.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use buttress::ByteCount;
use buttress::scrub::{Lost, Replaced};
use serde_json::{Value, json};

use super::below::{DeviceSlot, Filesystem};
use crate::commands::scrub::files;
use crate::context::Context;
use crate::exit::Outcome;
use crate::output::json::insert_name;
use crate::output::terminal;

/// Largest number of files named per lost range.
const FILES_MAX: usize = 10;

/// Largest number of lost ranges with named files.
const PLACES_MAX: usize = 1000;

/// A lost range, and the files with data in it.
struct Affected<'a> {
    lost: &'a Lost,
    paths: Vec<Vec<u8>>,
}

/// Prints the outcome of a replacement; `filesystem` is the current state of the volume.
pub(super) fn ended(
    context: &Context,
    source: &DeviceSlot,
    target: &Path,
    filesystem: &Filesystem,
    ended: &Replaced,
) -> Result<Outcome> {
    let (id, shown) = (source.id(), terminal::shown(target.display()));
    let (is_finished, bytes, places, is_wiped) = match ended {
        Replaced::Suspended => (false, ByteCount::ZERO, Vec::new(), true),
        Replaced::Finished {
            lost,
            lost_places,
            unwiped,
            ..
        } => {
            if let Some(error) = unwiped {
                context.warn(format_args!(
                    "{}: its superblocks could not be wiped, and still name it as device {id}, which {shown} replaced (found {error}). Do not open the volume with both devices. Run `buttress check` with {shown}, then `wipefs -a` on the old device",
                    source.name()
                ));
            }
            (true, *lost, affected(filesystem, lost_places), unwiped.is_none())
        }
    };
    if context.json() {
        let document = json!({
            "devid": id.get(),
            "finished": is_finished,
            "lost_bytes": bytes.get(),
            "lost": places.iter().map(as_json).collect::<Vec<Value>>(),
            "process": null,
        });
        context.print_json("replace-start", document)?;
    } else if !context.globals().quiet {
        let mut out = context.stdout();
        match is_finished {
            true => writeln!(out, "{shown} replaced device {id}")?,
            false => writeln!(
                out,
                "the replacement of device {id} is pending; the same command continues it"
            )?,
        }
        out.flush()?;
    }
    for place in &places {
        warn(context, place);
    }
    if bytes > ByteCount::ZERO {
        context.warn(format_args!(
            "device {id}: {bytes} bytes of data have no good copy"
        ));
    }
    Ok(match is_finished && is_wiped && bytes == ByteCount::ZERO {
        true => Outcome::Done,
        false => Outcome::Negative,
    })
}

fn affected<'a>(filesystem: &Filesystem, places: &'a [Lost]) -> Vec<Affected<'a>> {
    let of = |lost: &'a Lost| Affected {
        paths: files::in_range(filesystem, lost.logical, lost.length, FILES_MAX),
        lost,
    };
    places.iter().take(PLACES_MAX).map(of).collect()
}

fn warn(context: &Context, place: &Affected<'_>) {
    let Lost { logical, length, .. } = place.lost;
    let reads = match place.lost.has_checksum {
        true => "reads fail",
        false => "reads return filler without an error, because there is no checksum",
    };
    let paths = place.paths.iter().map(|path| String::from_utf8_lossy(path));
    let files: Vec<String> = paths.map(std::borrow::Cow::into_owned).collect();
    let files = match files.is_empty() {
        true => String::new(),
        false => format!(": {}", files.join(", ")),
    };
    context.warn(format_args!(
        "{length} bytes of data at logical {logical} are lost ({reads}){files}"
    ));
}

fn as_json(place: &Affected<'_>) -> Value {
    let path = |path: &Vec<u8>| {
        let mut object = serde_json::Map::new();
        insert_name(&mut object, "path", path);
        Value::Object(object)
    };
    json!({
        "logical": place.lost.logical.get(),
        "length": place.lost.length.get(),
        "has_checksum": place.lost.has_checksum,
        "files": place.paths.iter().map(path).collect::<Vec<Value>>(),
    })
}
