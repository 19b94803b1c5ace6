//! `buttress receive --dump`: what a send stream does, one line a command, as btrfs-progs prints it.
//!
//! The stream comes from standard input or a file and is printed while it arrives; of the file data only the length
//! is shown. What is damaged ends the dump with an error that names the command and the byte; the lines before it
//! are printed. Receiving into a volume is refused: this version does not do it yet.

mod json;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::stream::{Decoder, Streams, TextDump};
use clap::Args;

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::manual::{Example, example};
use crate::output::json::ArrayWriter;
use crate::sources::Role;
use crate::table::Subcommand;

/// Lines are written in pieces of about this size, or when the input has to be waited for.
const OUTPUT_BYTES: usize = 64 << 10;

/// Print what a send stream does, one line for each command (--dump)
#[derive(Args, Debug)]
pub struct Receive {
    /// Print the stream instead of receiving it
    #[arg(long)]
    dump: bool,
    /// Read the stream from this file instead of standard input
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Stop at the end of the first stream, and read nothing beyond it
    #[arg(short = 'e')]
    end: bool,
    /// Where to receive into: not supported yet
    #[arg(value_name = "IMAGE:/path")]
    target: Option<PathBuf>,
}

impl Subcommand for Receive {
    const NAME: &'static str = "receive";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress receive --dump -f monday.stream",
        "Prints what a stream does, one line for each command",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        if !self.dump {
            return Err(anyhow!("receiving into a volume is not supported yet")).context(Advice::new(
                "`buttress receive --dump` prints what the stream does, `buttress stream` looks into it and takes files \
                 out of it, and `btrfs receive` receives it into a mounted volume",
            ));
        }
        if self.target.is_some() {
            return Err(usage("receive --dump receives nothing: it takes no target"));
        }
        let streams = if self.end { Streams::First } else { Streams::All };
        let (input, name) = self.input(context)?;
        let decoder = Decoder::with_streams(input, streams);
        if context.json() {
            dump_json(decoder, context)
        } else {
            dump_text(decoder, context)
        }
        .with_context(|| name.clone())?;
        Ok(Outcome::Done)
    }
}

impl Receive {
    /// The stream, and how to call it.
    fn input(&self, context: &Context) -> Result<(Box<dyn Read>, String)> {
        match &self.file {
            Some(path) if path.as_os_str() != "-" => {
                let name = path.display().to_string();
                let file = File::open(path).with_context(|| format!("opening {name}"))?;
                context.sources().add_open(&file, &name, Role::Stream)?;
                Ok((Box::new(file), name))
            }
            _ => {
                let input = io::stdin();
                if input.is_terminal() {
                    return Err(anyhow!("a send stream is not read from a terminal"))
                        .context(Advice::new("redirect it, or name a file with -f"));
                }
                // Without the library's buffer: it would take more than was asked for from whoever reads next.
                let input = File::from(input.as_fd().try_clone_to_owned()?);
                context
                    .sources()
                    .add_open(&input, "standard input", Role::Stream)?;
                Ok((Box::new(input), "standard input".to_owned()))
            }
        }
    }
}

fn dump_text(mut decoder: Decoder<Box<dyn Read>>, context: &Context) -> Result<()> {
    let mut out = context.stdout();
    let mut dump = TextDump::new();
    let mut lines = Vec::with_capacity(OUTPUT_BYTES.saturating_mul(2));
    loop {
        let next = decoder.next_command();
        let going_on = matches!(next, Ok(Some(_)));
        if let Ok(Some(frame)) = &next {
            dump.line(frame.command(), &mut lines);
        }
        if lines.len() >= OUTPUT_BYTES || !going_on {
            out.write_all(&lines)?;
            lines.clear();
        }
        if !going_on {
            out.flush()?;
            next?;
            return Ok(());
        }
    }
}

fn dump_json(mut decoder: Decoder<Box<dyn Read>>, context: &Context) -> Result<()> {
    let mut array = ArrayWriter::begin(context.stdout(), "receive-dump")?;
    loop {
        match decoder.next_command() {
            Ok(Some(frame)) => array.element(&json::element(&frame))?,
            Ok(None) => return Ok(array.finish()?),
            Err(error) => {
                // The document stays one that can be read; the exit code says that it is not all.
                array.finish()?;
                return Err(error.into());
            }
        }
    }
}
