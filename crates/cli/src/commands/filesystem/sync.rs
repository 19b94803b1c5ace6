//! `buttress filesystem sync IMAGE`: completes unfinished work, and commits everything.

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use buttress::Progress;
use clap::Args;
use serde_json::Value;

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Drop deleted subvolumes, commit, and flush the devices
#[derive(Args, Debug)]
pub struct Sync {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Sync {
    const NAME: &'static str = "sync";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress filesystem sync backup.img",
        "Drops deleted subvolumes and commits; rewrites a damaged primary superblock",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        let dropped = volume.volume().drop_deleted_subvolumes(&Progress::new());
        // Commit the dropped subvolumes, even if the rest failed.
        volume.commit()?;
        volume
            .volume()
            .flush_devices()
            .with_context(|| format!("flushing {}", target.display()))?;
        if context.json() {
            let mut object = target.as_json();
            let generation = volume.volume().committed_generation();
            object.insert("generation".into(), generation.get().into());
            context.print_json("filesystem-sync", Value::Object(object))?;
        }
        if let Some(why) = context.place().and_then(|place| place.mount?.doomed) {
            context.lost(&anyhow::anyhow!(why));
        }
        dropped.with_context(|| format!("dropping deleted subvolumes of {}", target.display()))?;
        Ok(Outcome::Done)
    }
}
