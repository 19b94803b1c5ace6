//! `buttress help [COMMAND…]`: the same as `--help`, with the spelling of `btrfs help`.

use std::io::Write;

use anyhow::{Context as _, Result};
use clap::Args;

use super::reference;
use crate::context::Context;
use crate::exit::{self, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::{self, Subcommand};

/// Print the help of a command, of a group, or of all commands
#[derive(Args, Debug)]
pub struct Help {
    /// Print the reference of all commands
    #[arg(long, conflicts_with = "words")]
    full: bool,
    /// A command, with its group before it
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

impl Subcommand for Help {
    const NAME: &'static str = "help";
    const EXAMPLES: &'static [Example] = &[
        example("buttress help", "Lists all commands"),
        example("buttress help subvolume list", "Prints the help of a command"),
    ];

    fn writes_contents(&self) -> bool {
        true
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut out = context.stdout();
        if self.full {
            out.write_all(reference::markdown().as_bytes())?;
            out.flush()?;
            return Ok(Outcome::Done);
        }
        let mut root = table::command();
        root.build();
        let mut command = &mut root;
        for word in &self.words {
            let found = table::subcommand_named(command, word);
            let name = found.ok_or_else(|| exit::usage(format_args!("no command {word:?} exists")))?;
            command = command
                .find_subcommand_mut(&name)
                .context("the command was found")?;
        }
        let help = command.render_long_help().to_string();
        out.write_all(help.as_bytes())?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
