//! `buttress cat IMAGE:/file…`: contents to standard output.
//!
//! Chunks go from the reader to the output without another copy. Holes are written as zeros.
//! Unreadable ranges are written as zeros too, so that later content keeps its offset. The command
//! reports unreadable ranges and exits with 1.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::{Content, File, Follow};
use clap::Args;

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::opening::Images;
use crate::output::stdout::DirectOutput;
use crate::table::Subcommand;
use crate::target::Target;

/// Number of zeros of a hole written between checks for cancellation.
const ZEROS_AT_ONCE: u64 = 1 << 20;

/// Write the contents of files to standard output
#[derive(Args, Debug)]
pub struct Cat {
    /// Files in volumes
    #[arg(value_name = "IMAGE:/path", required = true)]
    files: Vec<OsString>,
}

impl Subcommand for Cat {
    const NAME: &'static str = "cat";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress cat backup.img:/etc/fstab",
            "Prints a file of a volume that is not mounted",
        ),
        example(
            "buttress cat --offset part=2 disk.img:/etc/hostname",
            "Prints a file of the volume in the second partition of a disk image",
        ),
    ];

    fn writes_contents(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut out = DirectOutput::stdout()?;
        let mut images = Images::new(context);
        for argument in &self.files {
            let target = context.target(argument);
            let copied = images.open(&target.image).and_then(|opened| {
                let location = opened.locate(&target.path, Follow::All)?;
                Ok(opened.volume().open_file(location)?)
            });
            match copied {
                Ok(file) => copy(&file, &target, context, &mut out)?,
                Err(error) => context.lost(&target.name_in(error)),
            }
        }
        Ok(Outcome::Done)
    }
}

/// Copies a file to the output. The copy stops only at an error of the output.
fn copy(file: &File, target: &Target, context: &Context, out: &mut DirectOutput) -> Result<()> {
    let mut reader = match file.chunks() {
        Ok(reader) => reader,
        Err(error) => {
            context.lost(&target.name_in(error));
            return Ok(());
        }
    };
    let progress = context.progress();
    loop {
        progress.check()?;
        let chunk = match reader.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(()),
            Err(error) => {
                context.lost(&target.name_in(error));
                return Ok(());
            }
        };
        match chunk.content {
            Content::Data(bytes) => out.write_all(&bytes)?,
            Content::Hole => {
                let mut left = chunk.length.get();
                while left > 0 {
                    progress.check()?;
                    let count = left.min(ZEROS_AT_ONCE);
                    out.zeros(count)?;
                    left = left.saturating_sub(count);
                }
            }
            Content::Damaged(error) => {
                context.lost(&target.name_in(error));
                out.zeros(chunk.length.get())?;
            }
        }
    }
}
