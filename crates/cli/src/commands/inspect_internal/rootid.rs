//! `buttress inspect-internal rootid`: the subvolume that contains a path.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::Follow;
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Print the id of the subvolume that contains a path
#[derive(Args, Debug)]
pub struct RootId {
    /// A path in a volume
    #[arg(value_name = "IMAGE:/PATH")]
    target: OsString,
}

impl Subcommand for RootId {
    const NAME: &'static str = "rootid";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal rootid backup.img:/home",
        "Prints the id of the subvolume that contains a path",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let (_, location) = context.open_target(&context.target(&self.target), Follow::All)?;
        let id = location.subvolume.get();
        if context.json() {
            context.print_json(Self::NAME, json!({ "id": id }))?;
        } else {
            let mut out = context.stdout();
            writeln!(out, "{id}")?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
