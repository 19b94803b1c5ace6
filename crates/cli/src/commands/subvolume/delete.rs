//! `buttress subvolume delete IMAGE:/path …`.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::Error;
use buttress::unstable::filesystem_error_of;
use buttress::unstable::fs::Error as Cause;
use buttress::{Follow, Progress, SubvolumeId};
use clap::Args;

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::table::Subcommand;
use crate::target::Target;
use crate::writing::Writing;

/// Delete subvolumes and snapshots, and free their space
#[derive(Args, Debug)]
pub struct Delete {
    /// Delete the subvolume with this id; --subvolid does the same
    #[arg(short = 'i', value_name = "ID")]
    id: Option<u64>,
    /// For compatibility: deletions are always committed
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// For compatibility: deletions are always committed
    #[arg(short = 'C', long)]
    commit_each: bool,
    /// Subvolumes, all in one volume; with -i, the image
    #[arg(value_name = "IMAGE:/PATH", required = true)]
    targets: Vec<OsString>,
}

impl Subcommand for Delete {
    const NAME: &'static str = "delete";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress subvolume delete new.img:/home-monday",
            "Deletes a snapshot and frees its space",
        ),
        example(
            "buttress subvolume delete -i 257 new.img",
            "Sets the default subvolume by its id",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let targets: Vec<Target> = self.targets.iter().map(|target| context.target(target)).collect();
        let has_path = |target: &Target| target.path.iter().any(|byte| *byte != b'/');
        if self.id.is_some() && (targets.len() > 1 || targets.iter().any(has_path)) {
            return Err(usage(
                "-i selects the subvolume by id: give one image, without a path",
            ));
        }
        let volume = super::open_one_volume(context, &targets)?;
        let mut deleted = Vec::new();
        for target in &targets {
            let id = match self.id.or(context.globals().subvolume_id) {
                Some(id) => SubvolumeId::new(id),
                None => super::subvolume_at(&volume, target, Follow::NotLast)?,
            };
            volume
                .volume()
                .delete_subvolume(id)
                .map_err(|error| explained(&volume, target, error))?;
            deleted.push((id, target));
        }
        volume.commit()?;
        let dropped = volume.volume().drop_deleted_subvolumes(&Progress::new());
        // Commit the dropped subvolumes, even if the rest failed.
        volume.commit()?;
        if context.json() {
            let deleted = deleted.iter().map(|(id, target)| target.with_id(*id));
            context.print_json("subvolume-delete", deleted.collect())?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            for (id, target) in &deleted {
                writeln!(
                    out,
                    "Delete subvolume {id} (commit): '{}'",
                    terminal::shown(target.display())
                )?;
            }
            out.flush()?;
        }
        dropped.context("freeing the space of deleted subvolumes")?;
        Ok(Outcome::Done)
    }
}

/// Explains the error of a deletion: it names a nested subvolume that prevents the deletion by its
/// path.
fn explained(volume: &Writing, target: &Target, error: Error) -> anyhow::Error {
    let nested = match filesystem_error_of(&error) {
        Some(Cause::HoldsSubvolume { nested, .. }) => volume.volume().subvolume_path(*nested).ok(),
        _ => None,
    };
    let error = anyhow::Error::new(error).context(target.display());
    match nested {
        None => error,
        Some(path) => {
            let path = String::from_utf8_lossy(&path).into_owned();
            let image = target.image.display();
            error.context(Advice::new(format!("delete {image}:/{path} first")))
        }
    }
}
