//! `buttress subvolume …`, with the commands and formats of `btrfs subvolume`.

pub mod create;
pub mod delete;
pub mod find_new;
pub mod get_default;
pub mod list;
mod quota;
pub mod set_default;
pub mod show;
pub mod snapshot;
pub mod sync;

use anyhow::{Context as _, Result};
use buttress::{Follow, SubvolumeId};

use crate::context::Context;
use crate::exit::Advice;
use crate::identity::Identity;
use crate::table::{Row, leaf};
use crate::target::Target;
use crate::writing::Writing;

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[
    leaf::<list::List>(),
    leaf::<show::Show>(),
    leaf::<create::Create>(),
    leaf::<snapshot::Snapshot>(),
    leaf::<delete::Delete>(),
    leaf::<get_default::GetDefault>(),
    leaf::<set_default::SetDefault>(),
    leaf::<find_new::FindNew>(),
    leaf::<sync::Sync>(),
];

/// Path that stands for the top level, which has no name.
pub(crate) const TOP_LEVEL_NAME: &str = "<FS_TREE>";

/// Formats a uuid as text, or as `-`.
pub(crate) fn uuid_or_dash(uuid: Option<uuid::Uuid>) -> String {
    uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.hyphenated().to_string())
}

/// Returns the subvolume whose root is at a path.
pub(super) fn subvolume_at(volume: &Writing, target: &Target, follow: Follow) -> Result<SubvolumeId> {
    let location = volume
        .resolve(&target.path, follow)
        .with_context(|| target.display())?;
    if !location.is_subvolume_root() {
        return Err(anyhow::anyhow!("{} is not a subvolume", target.display())).context(Advice::new(
            "`buttress subvolume list IMAGE` lists all subvolumes",
        ));
    }
    Ok(location.subvolume)
}

/// Opens the volume of targets for writing; all of them must be on one image.
pub(crate) fn open_one_volume(context: &Context, targets: &[Target]) -> Result<Writing> {
    let (first, others) = targets.split_first().context("no target")?;
    if !context.is_on_mount() {
        context.hand_on(&first.image)?;
    }
    let identity = Identity::of_path(&first.image);
    let is_other = |other: &&Target| {
        let same = match (&identity, Identity::of_path(&other.image)) {
            (Some(one), Some(other)) => one.is_same(&other),
            _ => other.image == first.image,
        };
        !same
    };
    if let Some(other) = others.iter().find(is_other) {
        return Err(anyhow::anyhow!(
            "{} and {} are different images",
            first.display(),
            other.display()
        ))
        .context(Advice::new("write IMAGE:/path for each, with one IMAGE"));
    }
    context.open_for_writing(&first.image)
}
