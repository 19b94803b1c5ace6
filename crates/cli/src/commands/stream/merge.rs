//! `buttress stream merge FILE…`: merges a chain of streams into one full stream.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::Result;
use buttress::Progress;
use buttress::stream::merge;
use clap::Args;
use serde_json::{Map, Value};

use super::Streams;
use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::destination::{Destination, named, refuse_terminal};
use crate::output::json::insert_name;
use crate::table::Subcommand;

/// Merge a full stream and its incremental streams into one full stream
#[derive(Args, Debug)]
pub(super) struct Merge {
    /// Write to this file instead of standard output
    #[arg(short = 'f', long = "output", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Merge up to this snapshot, by name or uuid [default: the last one]
    #[arg(long, value_name = "NAME|UUID")]
    snapshot: Option<String>,
    /// A full stream and its incremental streams, in order; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Subcommand for Merge {
    const NAME: &'static str = "merge";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress stream merge -f full.stream monday.stream tuesday.stream",
        "Merges a full and an incremental stream into one full stream",
    )];

    fn writes_contents(&self) -> bool {
        named(self.file.as_deref()).is_none()
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        refuse_terminal(self.file.as_deref(), "a send stream")?;
        let streams = Streams {
            snapshot: self.snapshot,
            files: self.files,
        };
        let loaded = streams.load(context, "stream merge")?;
        if loaded.has_path {
            return Err(usage("stream merge takes streams without paths"));
        }
        let mut out = Destination::open(context, self.file.as_deref())?;
        merge::merge(&loaded.series, loaded.snapshot()?, &mut out, &Progress::new())?;
        out.finish()?;
        tell(context, self.file.as_deref(), "stream-merge")
    }
}

/// With JSON, prints the name of the written stream file.
pub(super) fn tell(context: &Context, file: Option<&std::path::Path>, name: &str) -> Result<Outcome> {
    if let Some(file) = named(file).filter(|_| context.json()) {
        let mut written = Map::new();
        insert_name(&mut written, "file", file.as_os_str().as_bytes());
        context.print_json(name, Value::Object(written))?;
    }
    Ok(Outcome::Done)
}
