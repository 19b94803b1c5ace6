//! `receive --dump`: what a stream does, one line a command, as btrfs-progs prints it.
//!
//! It is printed while it arrives; of the file data only the length is shown. What is damaged ends the dump with an error that
//! names the command and the byte; the lines before it are printed.

use std::fs::File;
use std::io::Write;

use anyhow::Result;
use buttress::stream::{Decoder, TextDump};

use super::json;
use crate::context::Context;
use crate::output::json::ArrayWriter;

/// Lines are written in pieces of about this size, or when the input has to be waited for.
const OUTPUT_BYTES: usize = 64 << 10;

pub(super) fn text(mut decoder: Decoder<File>, context: &Context) -> Result<()> {
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

pub(super) fn as_json(mut decoder: Decoder<File>, context: &Context) -> Result<()> {
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
