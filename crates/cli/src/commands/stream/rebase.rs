//! `buttress stream rebase --onto FILE STREAM`: gives an incremental stream another parent with the
//! same content.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::stream::merge;
use buttress::{ByteCount, Progress};
use clap::Args;

use super::merge::tell;
use super::open;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::destination::{Destination, named, refuse_terminal};
use crate::progress::Watch;
use crate::table::Subcommand;

/// Change the parent of an incremental stream to another snapshot with the same content
#[derive(Args, Debug)]
pub(super) struct Rebase {
    /// New parent: the last snapshot of this stream. The command does not verify that it has the
    /// content of the previous parent
    #[arg(long, value_name = "FILE")]
    onto: OsString,
    /// Write to this file instead of standard output
    #[arg(short = 'f', long = "output", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The stream, or several streams in one file; - is standard input
    #[arg(value_name = "STREAM")]
    stream: OsString,
}

impl Subcommand for Rebase {
    const NAME: &'static str = "rebase";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress stream rebase --onto copy.stream -f new.stream tuesday.stream",
        "Changes the parent of a stream to a copy of this parent",
    )];

    fn writes_contents(&self) -> bool {
        named(self.file.as_deref()).is_none()
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        refuse_terminal(self.file.as_deref(), "a send stream")?;
        let name = |file: &OsString| file.to_string_lossy().into_owned();
        let parent = merge::last_subvolume(open(context, &self.onto)?).with_context(|| name(&self.onto))?;
        let parent = parent
            .ok_or_else(|| anyhow!("the stream contains no subvolume"))
            .with_context(|| name(&self.onto))?;
        let input = open(context, &self.stream)?;
        let mut out = Destination::open(context, self.file.as_deref())?;
        let progress = Progress::new();
        // The output is as long as the input, because only uuids and numbers differ.
        progress.expect(ByteCount::new(input.metadata()?.len()));
        let watch = Watch::start(context, "stream rebase", progress.clone());
        merge::rebase(input, parent, &mut out, &progress).with_context(|| name(&self.stream))?;
        out.finish()?;
        watch.end();
        tell(context, self.file.as_deref(), "stream-rebase")
    }
}
