//! `buttress receive IMAGE:/directory`: receives streams as read-only subvolumes of an unmounted
//! volume.
//!
//! - `volume`: receiving
//! - `dump`, `json`: the commands of streams, without receiving them
//!
//! The command receives each stream completely or not at all, and several streams in the given
//! order.

mod dump;
mod json;
mod volume;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::stream::{Decoder, Streams};
use clap::Args;

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, example};
use crate::sources::Role;
use crate::table::Subcommand;

/// Receive subvolumes from send streams
#[derive(Args, Debug)]
pub struct Receive {
    /// Read the stream from this file instead of standard input. If repeated, the streams are
    /// received in this order, each completely or not at all
    #[arg(short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Stop at the end of the first stream, and read nothing beyond it
    #[arg(short = 'e')]
    end: bool,
    /// Skip commands that fail, and stop at the Nth failure; 0 never stops. The exit code is 1 if a
    /// command was skipped [default: 1]
    #[arg(short = 'E', long = "max-errors", value_name = "N")]
    max_errors: Option<u64>,
    /// Skip commands with unknown numbers, except those that would change the content of a file. Not together with
    /// --keep-partial, --resume or --dump
    #[arg(long)]
    skip_unknown: bool,
    /// Keep the received part of an interrupted stream for --resume, in the directory of the new
    /// subvolume. While the stream arrives, this part is committed after every SIZE bytes
    #[arg(
        long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "256M",
        value_parser = parse_size
    )]
    keep_partial: Option<u64>,
    /// Continue the kept part of a stream; NAME selects one of several. The input is the output of
    /// `send --resume` with the receiver's token, or the complete stream. If no part is kept, the
    /// stream is received from its beginning. Another interruption keeps the part again
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    resume: Option<OsString>,
    /// Print the token for `send --resume`, one line for each kept stream. With --resume, the token
    /// is printed before the stream is read, so that a waiting sender can read it
    #[arg(long)]
    token: bool,
    /// Decompress compressed data instead of storing it as it is
    #[arg(long)]
    force_decompress: bool,
    /// For compatibility: paths in a stream never lead out of the new subvolume
    #[arg(short = 'C', long = "chroot")]
    chroot: bool,
    /// For compatibility: the whole volume is searched for parents and clone sources
    #[arg(short = 'm', value_name = "ROOTMOUNT")]
    root_mount: Option<PathBuf>,
    /// Print the commands of the stream, one on each line, instead of receiving it
    #[arg(long)]
    dump: bool,
    /// Directory for the new subvolumes
    #[arg(value_name = "IMAGE:/directory")]
    target: Option<OsString>,
}

impl Subcommand for Receive {
    const NAME: &'static str = "receive";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress receive -f monday.stream backup.img:/snapshots",
            "Receives a stream into an image, without mounting it",
        ),
        example(
            "buttress send home.img:/monday | buttress receive backup.img:/",
            "Copies a snapshot from one image to another",
        ),
        example(
            "buttress receive -f monday.stream -f tuesday.stream backup.img:/",
            "Receives a full stream, and then an incremental stream",
        ),
        example(
            "buttress receive --dump -f monday.stream",
            "Prints the commands of a stream",
        ),
        example(
            "buttress receive --token backup.img:/",
            "Prints the token of an interrupted stream, for `send --resume`",
        ),
    ];

    fn uses(&self) -> Uses {
        if self.dump { Uses::NOTHING } else { Uses::PATHS }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if self.dump && (self.token || self.resume.is_some() || self.keep_partial.is_some()) {
            return Err(usage(
                "receive --dump cannot be combined with --keep-partial, --resume or --token",
            ));
        }
        if self.token && self.resume.is_some() && context.json() {
            return Err(usage(
                "receive --token --resume cannot be combined with --format json, because the token is printed before the stream is read",
            ));
        }
        let keeps = self.keep_partial.is_some() || self.resume.is_some();
        if self.skip_unknown && (self.dump || self.token || keeps) {
            return Err(usage(
                "receive --skip-unknown cannot be combined with --dump, --keep-partial, --resume or --token",
            ));
        }
        if self.dump && (self.max_errors.is_some() || self.force_decompress) {
            return Err(usage(
                "receive --dump cannot be combined with --max-errors or --force-decompress",
            ));
        }
        if self.token && self.resume.is_none() {
            if let Some(option) = self.unused_by_token() {
                return Err(usage(format_args!(
                    "receive --token without --resume reads no stream, so it cannot be combined with {option}"
                )));
            }
            return volume::tokens(&self, context);
        }
        if !self.dump {
            // Share one arena: memory that one thread allocates and another frees would otherwise
            // stay in separate arenas.
            buttress::unstable::device::arenas::share_one();
            return volume::receive(&self, context);
        }
        if self.target.is_some() {
            return Err(usage("receive --dump takes no target"));
        }
        let file = match self.files.as_slice() {
            [] => None,
            [file] => Some(file.as_path()),
            _ => return Err(usage("receive --dump takes a single file: give -f once")),
        };
        let (input, name) = open(context, file)?;
        let decoder = Decoder::with_streams(input, self.streams());
        if context.json() {
            dump::as_json(decoder, context)
        } else {
            dump::text(decoder, context)
        }
        .with_context(|| name.clone())?;
        Ok(Outcome::Done)
    }
}

impl Receive {
    /// Returns an option about a stream, if the user gave one.
    fn unused_by_token(&self) -> Option<&'static str> {
        let given = [
            (!self.files.is_empty(), "-f"),
            (self.end, "-e"),
            (self.max_errors.is_some(), "--max-errors"),
            (self.keep_partial.is_some(), "--keep-partial"),
            (self.force_decompress, "--force-decompress"),
        ];
        given
            .into_iter()
            .find(|(given, _)| *given)
            .map(|(_, option)| option)
    }

    const fn streams(&self) -> Streams {
        if self.end { Streams::First } else { Streams::All }
    }
}

/// Opens a stream, and returns its name for messages.
fn open(context: &Context, file: Option<&Path>) -> Result<(File, String)> {
    match file {
        Some(path) if path.as_os_str() != "-" => {
            let name = path.display().to_string();
            let file = File::open(path).with_context(|| format!("opening {name}"))?;
            context.sources().add_open(&file, &name, Role::Stream)?;
            Ok((file, name))
        }
        _ => {
            let input = io::stdin();
            if input.is_terminal() {
                return Err(anyhow!("cannot read a send stream from a terminal"))
                    .context(Advice::new("redirect it, or name a file with -f"));
            }
            // Avoid the standard library's buffer, which would consume input beyond the requested
            // bytes.
            let input = File::from(input.as_fd().try_clone_to_owned()?);
            context
                .sources()
                .add_open(&input, "standard input", Role::Stream)?;
            Ok((input, "standard input".to_owned()))
        }
    }
}
