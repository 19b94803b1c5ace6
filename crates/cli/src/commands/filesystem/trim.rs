//! `buttress filesystem trim IMAGE`: discards unused space, as fstrim(8) does for a mount. On an
//! image file the command punches holes, on a device it issues discards.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::{Context as _, Result};
use buttress::{ByteCount, Logical};
use clap::Args;
use serde_json::Value;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, example};
use crate::output::size::UnitFlags;
use crate::table::{MountView, Subcommand};

/// Discard the unused space of an image or device
#[derive(Args, Debug)]
pub struct Trim {
    /// Skip free ranges that are shorter than this
    #[arg(short, long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    minimum: u64,
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Trim {
    const NAME: &'static str = "trim";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress filesystem trim system.img",
        "Frees the disk space of deleted files in the image",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        let all = Logical::MIN..Logical::new(u64::MAX);
        let trimmed = volume
            .volume()
            .trim(all, ByteCount::new(self.minimum))
            .with_context(|| format!("trimming {}", target.display()))?;
        volume.commit()?;
        if context.json() {
            let mut object = target.as_json();
            object.insert("block_groups".into(), trimmed.block_groups.get().into());
            object.insert("unallocated".into(), trimmed.unallocated.get().into());
            context.print_json("filesystem-trim", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let units = self.units.units();
        let shown = |bytes: ByteCount| units.text(bytes.get());
        let mut out = context.stdout();
        out.write_all(&context.printable(self.image.as_bytes()))?;
        writeln!(
            out,
            ": {} trimmed, {} of it in no chunk",
            shown(trimmed.total()),
            shown(trimmed.unallocated)
        )?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
