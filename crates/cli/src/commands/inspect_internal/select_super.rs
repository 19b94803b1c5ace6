//! `buttress inspect-internal select-super`: a superblock copy becomes the primary superblock.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use buttress::DeviceOptions;
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Overwrite the primary superblock by a copy
///
/// The volume then has the state of the copy. If the copy is older than the last commit, blocks of
/// its state may be gone: try it with --overlay first.
#[derive(Args, Debug)]
pub struct SelectSuper {
    /// The number of the copy: 1 or 2; with 0, nothing changes
    #[arg(short = 's', value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(0..=2))]
    copy: u8,
    /// The image or device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// The offsets of the superblocks.
const OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];

impl Subcommand for SelectSuper {
    const NAME: &'static str = "select-super";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal select-super -s 1 --overlay tried.overlay broken.img",
        "Tries the copy at 64 MiB, and leaves the image as it is",
    )];

    fn uses(&self) -> Uses {
        Uses::DEVICE
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let options = DeviceOptions {
            write: true,
            overlay: context.overlay_of(0),
            ..context.device_options()
        };
        let device = context.open_device(&self.device, &options)?;
        let copy = usize::from(self.copy);
        let generation = buttress::select_superblock(&device, copy)?;
        let offset = OFFSETS.get(copy).copied();
        if context.json() {
            let document = json!({ "copy": copy, "bytenr": offset, "generation": generation.get() });
            context.print_json(Self::NAME, document)?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        // Clamp: the argument is at most 2.
        let offset = offset.map(|offset| offset.to_string());
        writeln!(
            out,
            "using SB copy {copy}, bytenr {}",
            offset.as_deref().unwrap_or("?") // Clamp: see above.
        )?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
