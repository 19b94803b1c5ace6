//! `buttress version`: the same as `--version`.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Print the version
#[derive(Args, Debug)]
pub struct Version {}

impl Subcommand for Version {
    const NAME: &'static str = "version";
    const EXAMPLES: &'static [Example] = &[example("buttress version", "Prints the version")];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let version = env!("CARGO_PKG_VERSION");
        if context.json() {
            context.print_json(Self::NAME, json!({ "version": version }))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        writeln!(out, "buttress {version}")?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
