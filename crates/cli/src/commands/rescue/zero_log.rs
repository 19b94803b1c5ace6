//! `buttress rescue zero-log IMAGE`: discards the pending log tree.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::unstable::filesystem_of;
use buttress::unstable::writer::log_tree::drop_log;
use buttress::{DeviceOptions, Logical};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;
use crate::target::Target;

/// Delete the pending log; changes synced after the last commit are lost
#[derive(Args, Debug)]
pub struct ZeroLog {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for ZeroLog {
    const NAME: &'static str = "zero-log";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress rescue zero-log backup.img",
        "Makes a volume with a damaged log writable again",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let options = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        let opened = context.open_volume_with(&target.image, &options)?;
        let generation = opened.volume().info().generation.get();
        let dropped = drop_log(&filesystem_of(opened.volume()))
            .with_context(|| format!("deleting the log of {}", target.image.display()))?;
        if context.json() {
            let mut object = target.as_json();
            object.insert("log-root".to_owned(), json!(dropped.map(Logical::get)));
            context.print_json("rescue-zero-log", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        match dropped {
            Some(root) => writeln!(
                out,
                "deleted the log at {root}: the volume has the state of generation {generation}"
            )?,
            None => writeln!(out, "the volume has no log")?,
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
