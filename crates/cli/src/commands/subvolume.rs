//! `buttress subvolume …`, in the words and formats of `btrfs subvolume`.

pub mod get_default;
pub mod list;
mod quota;
pub mod show;

use crate::table::{Row, leaf};

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<list::List>(),
    leaf::<show::Show>(),
    leaf::<get_default::GetDefault>(),
];

/// The path that stands for the top level where it has no name.
pub(crate) const TOP_LEVEL_NAME: &str = "<FS_TREE>";

/// A uuid as text, or `-`.
pub(crate) fn uuid_or_dash(uuid: Option<uuid::Uuid>) -> String {
    uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.hyphenated().to_string())
}
