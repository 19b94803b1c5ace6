//! The shell commands, in groups.

pub mod attributes;
pub mod data;
pub mod extents;
pub mod flags;
pub mod host;
pub mod looking;
pub mod mode;
pub mod names;
pub mod navigate;
pub mod sharing;
pub mod subvolumes;
pub mod volume;

use super::table::{Row, group, looking as command, word};
use crate::commands;

/// Rows of the table of shell commands.
pub const ROWS: &[Row] = &[
    command::<commands::ls::Ls>(),
    command::<commands::tree::Tree>(),
    word::<navigate::Cd>(),
    word::<navigate::Pwd>(),
    command::<commands::cat::Cat>(),
    command::<commands::stat::Stat>(),
    command::<commands::filesystem::du::Du>(),
    command::<commands::filesystem::df::Df>(),
    word::<host::Get>(),
    word::<host::Put>(),
    word::<host::Cp>(),
    word::<names::Mkdir>(),
    word::<names::Rmdir>(),
    word::<names::Rm>(),
    word::<names::Mv>(),
    word::<names::Ln>(),
    word::<names::Mknod>(),
    word::<attributes::Touch>(),
    word::<attributes::Chmod>(),
    word::<attributes::Chown>(),
    word::<attributes::Getfattr>(),
    word::<attributes::Setfattr>(),
    word::<flags::Lsattr>(),
    word::<flags::Chattr>(),
    word::<data::Pwrite>(),
    word::<data::Pread>(),
    word::<data::Truncate>(),
    word::<data::Fallocate>(),
    word::<data::Fpunch>(),
    word::<data::Fzero>(),
    word::<sharing::Reflink>(),
    word::<sharing::Dedupe>(),
    word::<sharing::CopyRange>(),
    word::<extents::Fiemap>(),
    word::<extents::Seek>(),
    word::<volume::Fsync>(),
    word::<volume::Fdatasync>(),
    word::<volume::Sync>(),
    word::<subvolumes::Snapshot>(),
    group(
        "subvolume",
        "Create, list and delete subvolumes",
        &[
            command::<commands::subvolume::list::List>(),
            command::<commands::subvolume::show::Show>(),
            word::<subvolumes::Create>(),
            word::<subvolumes::Snapshot>(),
            word::<subvolumes::Delete>(),
            command::<commands::subvolume::get_default::GetDefault>(),
            word::<subvolumes::SetDefault>(),
        ],
    ),
    word::<volume::Stats>(),
    word::<volume::Label>(),
    word::<navigate::Help>(),
    word::<volume::Abort>(),
    word::<volume::Quit>(),
];
