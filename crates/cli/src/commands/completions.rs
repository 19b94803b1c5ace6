//! `buttress completions SHELL`: a completion script, generated from the command table.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::{self, Subcommand};

/// Print a completion script for a shell
#[derive(Args, Debug)]
pub struct Completions {
    /// Target shell
    shell: Shell,
}

impl Subcommand for Completions {
    const NAME: &'static str = "completions";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress completions bash > buttress.bash",
        "Writes a script that completes commands and options",
    )];

    fn writes_contents(&self) -> bool {
        true
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut table::command(), "buttress", &mut script);
        let mut out = context.stdout();
        out.write_all(&script)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
