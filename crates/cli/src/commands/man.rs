//! `buttress man DIR`: man pages, one for each command, generated from the command table.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{self, Example, example};
use crate::output::json::insert_name;
use crate::table::Subcommand;

/// Write man pages, one for each command, into a directory
#[derive(Args, Debug)]
pub struct Man {
    /// Directory for the pages; created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Subcommand for Man {
    const NAME: &'static str = "man";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress man pages",
        "Writes a man page for each command into a directory",
    )];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        fs::create_dir_all(&self.directory)
            .with_context(|| format!("making the directory {}", self.directory.display()))?;
        for page in manual::pages() {
            let path = self.directory.join(&page.file_name);
            let mut file = context.create_output(&path)?;
            file.write_all(page.text.as_bytes())
                .with_context(|| format!("writing {}", path.display()))?;
            file.finish()?;
        }
        if context.json() {
            let mut object = Map::new();
            insert_name(&mut object, "directory", self.directory.as_os_str().as_bytes());
            context.print_json("man", Value::Object(object))?;
        }
        Ok(Outcome::Done)
    }
}
