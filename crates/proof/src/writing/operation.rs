//! A change: drawn from a seed (`drawing`), judged by the model (`judging`), made on the volume
//! (`calling`) and on the model (`following`), and described briefly (`telling`).

mod calling;
pub mod drawing;
mod following;
mod judging;
mod telling;

pub use judging::{SUBVOLUMES_MAX, can_be_drawn};

use super::access_list::AccessList;
use super::content::Change;
use super::model::Model;
use anyhow::{Context, Result, ensure};
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer::operations::OpenInode;
use buttress::{FileAttributes, Location, SubvolumeId};

/// A change. A change names directories by location, so that its text alone identifies it.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it; the words are those of the calls")]
pub enum Operation {
    Create(Location, Vec<u8>, u32),
    MakeDirectory(Location, Vec<u8>, u32),
    MakeSymlink(Location, Vec<u8>, Vec<u8>),
    MakeNode(Location, Vec<u8>, u8),
    Link(Location, Location, Vec<u8>),
    Unlink(Location, Vec<u8>),
    RemoveDirectory(Location, Vec<u8>),
    Rename(Location, Vec<u8>, Location, Vec<u8>, Mode),
    SetXattr(Location, Vec<u8>, Vec<u8>),
    RemoveXattr(Location, Vec<u8>),
    SetAccessList(Location, Option<AccessList>),
    SetDefaultList(Location, Option<AccessList>),
    /// Sets the compression property; `None` removes its attribute.
    SetCompression(Location, Option<&'static str>),
    SetFlags(Location, FileAttributes),
    SetMode(Location, u32),
    SetOwner(Location, u32, u32),
    SetModified(Location, i64),
    /// Creates a held file without a name.
    MakeUnnamed(Location, u32),
    /// Opens a file to hold it.
    Hold(Location),
    /// Releases a held file.
    Release(Location),
    CreateSubvolume(Location, Vec<u8>),
    Snapshot(SubvolumeId, Location, Vec<u8>, bool),
    DeleteSubvolume(SubvolumeId),
    DropDeleted,
    SetReadOnly(SubvolumeId, bool),
    SetDefault(SubvolumeId),
    SetLabel(Vec<u8>),
    Content(Location, Change),
}

/// Mode of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in RenameMode")]
pub enum Mode {
    Replace,
    NoReplace,
    Exchange,
    Whiteout,
}

/// Answer of the volume.
#[derive(Debug)]
pub enum Made {
    /// Success without a result.
    Nothing,
    /// A new inode.
    Inode(Location),
    /// A newly held inode.
    Held(OpenInode),
    /// A new subvolume.
    Subvolume(SubvolumeId),
    /// No change, because the requested state already exists.
    Unchanged,
    /// The change was refused, as the model expected.
    Refused,
}

impl Made {
    /// Returns the new or newly held inode, or the root of the new subvolume.
    #[must_use]
    pub const fn location(&self) -> Option<Location> {
        match self {
            Self::Inode(location) => Some(*location),
            Self::Held(held) => Some(held.location()),
            Self::Subvolume(id) => Some(Location::root_of(*id)),
            Self::Nothing | Self::Unchanged | Self::Refused => None,
        }
    }
}

impl Operation {
    /// Makes the change on the model and the volume, or on neither. Fails if the model and the
    /// volume disagree on whether the change is possible.
    pub fn apply(&self, model: &mut Model, filesystem: &WritableFilesystem, now: i64) -> Result<Made> {
        let possible = self.is_possible(model);
        let done = self.write(model, filesystem);
        match (possible, done) {
            (true, Ok(made)) => {
                self.follow(model, &made, now);
                Ok(made)
            }
            (false, Err(error)) => {
                ensure!(
                    error.kind() == buttress::unstable::format::ErrorKind::Caller,
                    "{self} is refused by {error}, which is no fault of the caller"
                );
                Ok(Made::Refused)
            }
            (true, Err(error)) => {
                Err(anyhow::Error::from(error)).with_context(|| format!("{self} should succeed"))
            }
            (false, Ok(_)) => anyhow::bail!("{self} should be refused"),
        }
    }
}
