//! `buttress subvolume sync IMAGE [ID…]`: drops deleted subvolumes until they are gone.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::{Progress, SubvolumeId};
use clap::Args;
use serde_json::Value;

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Drop deleted subvolumes, and return when their space is free
#[derive(Args, Debug)]
pub struct Sync {
    /// For compatibility: the command does not poll
    #[arg(short = 's', value_name = "SECONDS")]
    interval: Option<u64>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Ids of deleted subvolumes to wait for [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<u64>,
}

impl Subcommand for Sync {
    const NAME: &'static str = "sync";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress subvolume sync backup.img",
        "Drops deleted subvolumes",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        let mut wanted: Vec<SubvolumeId> = self.ids.iter().copied().map(SubvolumeId::new).collect();
        let deleted = volume.volume().deleted_subvolumes()?;
        for id in &wanted {
            if !deleted.contains(id) && volume.volume().subvolume_by_id(*id).is_ok() {
                return Err(anyhow::anyhow!(
                    "{}: subvolume {id} is not deleted",
                    target.display()
                ))
                .context(Advice::new(
                    "delete it with `buttress subvolume delete -i ID IMAGE`",
                ));
            }
        }
        if self.ids.is_empty() {
            wanted.clone_from(&deleted);
        }
        let mut out = context.stdout();
        let (count, s) = (wanted.len(), if wanted.len() == 1 { "" } else { "s" });
        let prints = !context.json() && !context.globals().quiet && count > 0;
        if prints {
            writeln!(out, "Waiting for {count} subvolume{s}")?;
        }
        let dropped = volume.volume().drop_deleted_subvolumes(&Progress::new());
        // Commit the drops that succeeded, even if a later drop failed.
        volume.commit()?;
        let left = volume.volume().deleted_subvolumes()?;
        let gone = wanted.iter().filter(|id| !left.contains(id));
        for (number, id) in (1_usize..).zip(gone.clone()) {
            if prints {
                writeln!(out, "Subvolume id {id} is gone ({number}/{count})")?;
            }
        }
        if context.json() {
            let gone = gone.map(|id| Value::from(id.get()));
            context.print_json("subvolume-sync", gone.collect())?;
        }
        out.flush()?;
        dropped.with_context(|| format!("dropping deleted subvolumes of {}", target.display()))?;
        Ok(Outcome::Done)
    }
}
