//! Brief descriptions of changes: `rename 256:257/old 256:260/new`.

use super::Operation;
use buttress::Location;
use std::fmt;

/// Largest number of shown characters of a name.
const SHOWN_MAX: usize = 20;

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.word())?;
        match self {
            Self::Create(directory, own, mode) | Self::MakeDirectory(directory, own, mode) => {
                write!(f, "{} {mode:o}", place(directory, own))
            }
            Self::MakeSymlink(directory, own, to) => {
                write!(f, "{} of {} bytes", place(directory, own), to.len())
            }
            Self::MakeNode(directory, own, kind) => write!(f, "{} {kind}", place(directory, own)),
            Self::Link(inode, directory, own) => write!(f, "{} {}", at(inode), place(directory, own)),
            Self::Unlink(directory, own)
            | Self::RemoveDirectory(directory, own)
            | Self::CreateSubvolume(directory, own) => f.write_str(&place(directory, own)),
            Self::Rename(from, old, to, new, mode) => {
                write!(f, "{} {} {mode:?}", place(from, old), place(to, new))
            }
            Self::SetXattr(inode, own, value) => {
                write!(f, "{} {} of {} bytes", at(inode), name(own), value.len())
            }
            Self::RemoveXattr(inode, own) => write!(f, "{} {}", at(inode), name(own)),
            Self::SetAccessList(inode, list) | Self::SetDefaultList(inode, list) => {
                write!(f, "{} {list:?}", at(inode))
            }
            Self::SetCompression(inode, value) => write!(f, "{} {value:?}", at(inode)),
            Self::SetFlags(inode, flags) => write!(f, "{} [{}]", at(inode), flags.letters()),
            Self::SetMode(inode, mode) | Self::MakeUnnamed(inode, mode) => {
                write!(f, "{} {mode:o}", at(inode))
            }
            Self::SetOwner(inode, uid, gid) => write!(f, "{} {uid}:{gid}", at(inode)),
            Self::SetModified(inode, seconds) => write!(f, "{} {seconds}", at(inode)),
            Self::Hold(inode) | Self::Release(inode) => f.write_str(&at(inode)),
            Self::Snapshot(source, directory, own, read_only) => {
                write!(f, "{source} {} read-only {read_only}", place(directory, own))
            }
            Self::DeleteSubvolume(id) | Self::SetDefault(id) => write!(f, "{id}"),
            Self::DropDeleted => Ok(()),
            Self::SetReadOnly(id, read_only) => write!(f, "{id} {read_only}"),
            Self::SetLabel(label) => f.write_str(&name(label)),
            Self::Content(inode, change) => write!(f, "{change} of {}", at(inode)),
        }
    }
}

fn at(location: &Location) -> String {
    format!("{}:{}", location.subvolume, location.inode)
}

/// Formats a name; for a long one, only both ends, in which long names differ.
fn name(name: &[u8]) -> String {
    let text = name.escape_ascii().to_string();
    let count = text.chars().count();
    if count <= SHOWN_MAX {
        return text;
    }
    let first: String = text.chars().take(SHOWN_MAX / 2).collect();
    let last: String = text.chars().skip(count - SHOWN_MAX / 2).collect();
    format!("{first}…{last}")
}

fn place(directory: &Location, own: &[u8]) -> String {
    format!("{}/{}", at(directory), name(own))
}

impl Operation {
    /// Returns the name of the change's kind.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::MakeDirectory(..) => "mkdir",
            Self::MakeSymlink(..) => "symlink",
            Self::MakeNode(..) => "mknod",
            Self::Link(..) => "link",
            Self::Unlink(..) => "unlink",
            Self::RemoveDirectory(..) => "rmdir",
            Self::Rename(.., mode) => mode.word(),
            Self::SetXattr(..) => "setxattr",
            Self::RemoveXattr(..) => "removexattr",
            Self::SetAccessList(..) => "set access list",
            Self::SetDefaultList(..) => "set default list",
            Self::SetCompression(..) => "set compression",
            Self::SetFlags(..) => "chattr",
            Self::SetMode(..) => "chmod",
            Self::SetOwner(..) => "chown",
            Self::SetModified(..) => "touch",
            Self::MakeUnnamed(..) => "make unnamed",
            Self::Hold(..) => "hold",
            Self::Release(..) => "release",
            Self::CreateSubvolume(..) => "subvolume",
            Self::Snapshot(..) => "snapshot",
            Self::DeleteSubvolume(..) => "delete subvolume",
            Self::DropDeleted => "drop deleted subvolumes",
            Self::SetReadOnly(..) => "set read-only",
            Self::SetDefault(..) => "set default subvolume",
            Self::SetLabel(..) => "set label",
            Self::Content(_, change) => change.word(),
        }
    }
}
