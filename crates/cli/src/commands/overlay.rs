//! `buttress overlay …`: commands for changes that `--overlay` stored beside an image.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::opening::numbered;
use crate::output::size::Units;
use crate::output::terminal;
use crate::sources::Role;
use crate::table::{Row, Subcommand, leaf};

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[leaf::<Commit>(), leaf::<Discard>()];

/// Write the changes of an overlay to the image, and delete the overlay
///
/// Give all images of a volume with several devices, in the order in which the overlay was made.
/// Superblocks are written last. If the command is interrupted, run it again. To discard the changes
/// instead, run `overlay discard`. See docs/overlay.md.
#[derive(Args, Debug)]
pub struct Commit {
    /// The overlay file; OVERLAY.2 is the overlay of the second image, and so on
    #[arg(value_name = "OVERLAY")]
    overlay: PathBuf,
    /// The images or devices of the overlay
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
}

/// Delete an overlay, and thereby its changes
///
/// The image keeps the state that it had before the overlay. See docs/overlay.md.
#[derive(Args, Debug)]
pub struct Discard {
    /// The overlay files
    #[arg(value_name = "OVERLAY", required = true)]
    overlays: Vec<PathBuf>,
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
        self.refuse_missing_image()?;
        // Messages must not be written to the overlay or the image.
        let mut pairs = Vec::new();
        for (index, image) in self.images.iter().enumerate() {
            let overlay = numbered(&self.overlay, index);
            if overlay.exists() {
                context.sources().add(&overlay, Role::Overlay)?;
            }
            context.sources().add(image, Role::Volume)?;
            pairs.push((overlay, image.clone()));
        }
        let applied = buttress::apply_overlays(&pairs, &context.device_options())?;
        if context.json() {
            context.print_json("overlay-commit", json!({ "bytes": applied.bytes }))?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            let bytes = Units::default().text(applied.bytes);
            let images: Vec<String> = self
                .images
                .iter()
                .map(|image| image.display().to_string())
                .collect();
            writeln!(out, "{bytes} written to {}", terminal::shown(images.join(", ")))?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}

impl Commit {
    /// Refuses fewer images than the overlay has files: the volume would be half of the new state.
    fn refuse_missing_image(&self) -> Result<()> {
        let further = numbered(&self.overlay, self.images.len());
        if !further.exists() {
            return Ok(());
        }
        let images = self.images.len();
        let further = further.display();
        Err(anyhow::anyhow!(
            "{further} exists: the overlay has more images (found {images} in the command)"
        ))
        .context(Advice::new(
            "give all images, in the order in which the overlay was made",
        ))
    }
}

impl Subcommand for Discard {
    const NAME: &'static str = "discard";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress overlay discard changes.overlay",
        "Deletes an overlay without writing its changes to the image",
    )];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        for overlay in &self.overlays {
            buttress::discard_overlay(overlay)?;
        }
        let names = || self.overlays.iter().map(|overlay| overlay.display().to_string());
        if context.json() {
            context.print_json(
                "overlay-discard",
                json!({ "discarded": names().collect::<Vec<_>>() }),
            )?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            let names: Vec<String> = names().collect();
            writeln!(out, "discarded {}", terminal::shown(names.join(", ")))?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
