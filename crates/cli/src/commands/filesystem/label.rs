//! `buttress filesystem label IMAGE [LABEL]`: shows or sets the label.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::table::Subcommand;
use crate::target::Target;

/// Show or set the label
#[derive(Args, Debug)]
pub struct Label {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// New label; an empty label removes it
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
}

impl Subcommand for Label {
    const NAME: &'static str = "label";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example("buttress filesystem label backup.img", "Prints the label"),
        example("buttress filesystem label backup.img archive", "Sets the label"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        if let Some(label) = &self.label {
            let volume = context.open_for_writing(&target.image)?;
            volume.volume().set_label(label.as_bytes())?;
            volume.commit()?;
            if context.json() {
                print_json(context, &target, label.as_bytes())?;
            }
            return Ok(Outcome::Done);
        }
        let label = context.open_volume(&target.image)?.volume().label();
        if context.json() {
            print_json(context, &target, &label)?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        out.write_all(&context.printable(&label))?;
        writeln!(out)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn print_json(context: &Context, target: &Target, label: &[u8]) -> Result<()> {
    let mut object = target.as_json();
    insert_name(&mut object, "label", label);
    context.print_json("filesystem-label", Value::Object(object))
}
