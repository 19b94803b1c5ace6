//! `buttress overlay …`: commands for changes that `--overlay` stored beside an image.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::output::terminal;
use crate::sources::Role;
use crate::table::{Row, Subcommand, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[leaf::<Commit>()];

/// Write the changes of an overlay to the image, and delete the overlay
///
/// To discard the changes, delete the overlay file instead. See docs/overlay.md.
#[derive(Args, Debug)]
pub struct Commit {
    /// The overlay file
    #[arg(value_name = "OVERLAY")]
    overlay: PathBuf,
    /// The image or device of the overlay
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

impl Subcommand for Commit {
    const NAME: &'static str = "commit";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress overlay commit changes.overlay backup.img",
        "Writes the changes of an overlay to its image",
    )];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        // Messages must not be written to the overlay or the image.
        context.sources().add(&self.overlay, Role::Overlay)?;
        context.sources().add(&self.image, Role::Volume)?;
        let applied = buttress::apply_overlay(&self.overlay, &self.image, &context.device_options())?;
        if context.json() {
            context.print_json("overlay-commit", json!({ "bytes": applied.bytes }))?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            let bytes = Units::default().text(applied.bytes);
            writeln!(
                out,
                "{bytes} written to {}",
                terminal::shown(self.image.display())
            )?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
