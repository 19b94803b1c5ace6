//! `buttress stream cat FILE… FILE:/path`: prints the content of a file in a stream.
//!
//! Unreadable ranges of the stream become zeros, so that later content keeps its offset. The
//! command reports unreadable ranges and exits with 1. `stream cat` refuses a file whose content
//! was not sent.

use std::io::Write;

use anyhow::{Result, anyhow};
use buttress::stream::view::Content;
use clap::Args;

use super::Streams;
use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::stdout::DirectOutput;
use crate::table::Subcommand;

/// Write the content of a file in a stream to standard output
#[derive(Args, Debug)]
pub(super) struct Cat {
    #[command(flatten)]
    streams: Streams,
}

impl Subcommand for Cat {
    const NAME: &'static str = "cat";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress stream cat monday.stream:/letter",
        "Prints a file of a stream",
    )];

    fn writes_contents(&self) -> bool {
        true
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let loaded = self.streams.load(context, "stream cat")?;
        if !loaded.has_path {
            return Err(usage(
                "the path of a file is missing: write it after the last stream, as FILE:/path",
            ));
        }
        let (id, path) = loaded.start()?;
        let mut reader = loaded.series.content(loaded.tree()?, id, &path)?;
        let mut out = DirectOutput::stdout()?;
        while let Some(chunk) = reader.next_chunk() {
            match chunk.content {
                Content::Data(bytes) => out.write_all(bytes)?,
                Content::Hole => out.zeros(chunk.length.get())?,
                Content::Damaged(error) => {
                    context.lost(&anyhow!(error).context(format!("/{}", path.escape_ascii())));
                    out.zeros(chunk.length.get())?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}
