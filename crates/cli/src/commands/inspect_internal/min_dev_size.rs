//! `buttress inspect-internal min-dev-size`: the smallest size to which a device can shrink.
//!
//! btrfs-progs estimates this size. Here it is the result of the plan that `filesystem shrink` and
//! `filesystem resize` carry out.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::ByteCount;
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::{self, Outcome};
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::table::Subcommand;

/// Print the smallest size to which a device can shrink
#[derive(Args, Debug)]
pub struct MinDevSize {
    /// Id of the device
    #[arg(long, value_name = "ID", default_value_t = 1)]
    id: u64,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for MinDevSize {
    const NAME: &'static str = "min-dev-size";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal min-dev-size backup.img",
        "Prints the smallest size of the first device",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let opened = context.open_volume(&target.image)?;
        let name = || target.display().to_string();
        let plan = opened.volume().plan_shrink(ByteCount::ZERO).with_context(name)?;
        let device = plan.devices.iter().find(|device| device.device.get() == self.id);
        let Some(size) = device.map(|device| device.after.get()) else {
            return Err(exit::usage(format_args!(
                "{}: no device {} exists",
                target.display(),
                self.id
            )));
        };
        if context.json() {
            context.print_json(Self::NAME, json!({ "devid": self.id, "bytes": size }))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        writeln!(out, "{size} bytes ({})", Units::default().text(size))?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
