//! Output of a replacement's outcome and losses.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use buttress::scrub::{Lost, Replaced};
use buttress::{ByteCount, DeviceId};
use serde_json::{Value, json};

use super::below::{DeviceSlot, WritableFilesystem};
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
struct Affected {
    lost: Lost,
    paths: Vec<Vec<u8>>,
}

/// The outcome of a replacement. It needs no open volume.
pub(super) struct Summary {
    id: DeviceId,
    source: String,
    target: String,
    ending: Ending,
}

/// How a replacement ended.
enum Ending {
    Suspended,
    Finished {
        lost_bytes: ByteCount,
        places: Vec<Affected>,
        /// The error that kept the source's superblocks.
        unwiped: Option<String>,
    },
}

impl Summary {
    /// Collects the outcome of a replacement, with the files in lost ranges of the committed state.
    pub(super) fn new(
        source: &DeviceSlot,
        target: &Path,
        filesystem: &WritableFilesystem,
        ended: Replaced,
    ) -> Self {
        Self {
            id: source.id(),
            source: source.name().to_string(),
            target: terminal::shown(target.display()).to_string(),
            ending: match ended {
                Replaced::Suspended => Ending::Suspended,
                Replaced::Finished {
                    lost,
                    lost_places,
                    unwiped,
                    ..
                } => Ending::Finished {
                    lost_bytes: lost,
                    places: affected(filesystem, lost_places),
                    unwiped: unwiped.map(|error| error.to_string()),
                },
            },
        }
    }

    /// Prints the outcome, and returns it.
    pub(super) fn print(&self, context: &Context) -> Result<Outcome> {
        let Self { id, target, .. } = self;
        let Ending::Finished {
            lost_bytes,
            places,
            unwiped,
        } = &self.ending
        else {
            self.print_line(context, false, ByteCount::ZERO, &[])?;
            return Ok(Outcome::Negative);
        };
        if let Some(error) = unwiped {
            context.warn(format_args!(
                "{}: its superblocks could not be wiped, and still name it as device {id}, which {target} replaced (found {error}). Do not open the volume with both devices. Run `buttress check` with {target}, then `wipefs -a` on the old device",
                self.source
            ));
        }
        self.print_line(context, true, *lost_bytes, places)?;
        for place in places {
            warn(context, place);
        }
        if *lost_bytes > ByteCount::ZERO {
            context.warn(format_args!(
                "device {id}: {lost_bytes} bytes of data have no good copy"
            ));
        }
        Ok(match unwiped.is_none() && *lost_bytes == ByteCount::ZERO {
            true => Outcome::Done,
            false => Outcome::Negative,
        })
    }

    /// Prints the line or the JSON document on standard output.
    fn print_line(
        &self,
        context: &Context,
        is_finished: bool,
        lost_bytes: ByteCount,
        places: &[Affected],
    ) -> Result<()> {
        let Self { id, target, .. } = self;
        if context.json() {
            let document = json!({
                "devid": id.get(),
                "finished": is_finished,
                "lost_bytes": lost_bytes.get(),
                "lost": places.iter().map(as_json).collect::<Vec<Value>>(),
                "process": null,
            });
            context.print_json("replace-start", document)?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            match is_finished {
                true => writeln!(out, "{target} replaced device {id}")?,
                false => writeln!(
                    out,
                    "the replacement of device {id} is pending; the same command continues it"
                )?,
            }
            out.flush()?;
        }
        Ok(())
    }
}

fn affected(filesystem: &WritableFilesystem, places: Vec<Lost>) -> Vec<Affected> {
    let view = filesystem.committed_view();
    let of = |lost: Lost| Affected {
        paths: files::in_range(&view, lost.logical, lost.length, FILES_MAX),
        lost,
    };
    places.into_iter().take(PLACES_MAX).map(of).collect()
}

fn warn(context: &Context, place: &Affected) {
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

fn as_json(place: &Affected) -> Value {
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
