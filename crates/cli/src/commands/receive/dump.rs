//! `receive --dump`: the commands of a stream, one line each, in the format of btrfs-progs.
//!
//! Lines are printed while the stream arrives; for file data, only the length is shown. Damage ends
//! the dump with an error that names the command and the byte; the previous lines are printed.

use std::fs::File;
use std::io::Write;

use anyhow::Result;
use buttress::stream::{Decoder, TextDump};

use super::json;
use crate::context::Context;
use crate::output::json::ArrayWriter;

/// Approximate number of bytes after which lines are written; a wait for input also causes a write.
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
                // The JSON document stays valid; the exit code reports that the document is
                // incomplete.
                array.finish()?;
                return Err(error.into());
            }
        }
    }
}
