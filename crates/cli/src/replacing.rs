//! What a copy does with what is there already, for both directions; as GNU cp.
//!
//! - A regular file keeps its inode: it is opened and gets the new content, so that its owner, mode and further names stay.
//!   A symbolic link that stands where the copy is to be is followed, unless it leads nowhere.
//! - What is copied as something else than a regular file (links and special files, with -r, -P, -d or -a) takes the place
//!   of what was there.
//! - With -a and -d a file with several names keeps its content, and loses this name to the copy.
//! - A directory never takes the place of something else, nor the other way round.
//!
//! Not as GNU cp: below the directory that is copied, no link in the destination is followed; it is replaced. The volume may
//! be hostile, or the destination another user's, and what is written through such a link could be anywhere.

use buttress::FileKind;

/// See the module. The default is that of a plain `cp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replacing {
    /// What is there stays, and nothing is copied in its place (-n).
    pub no_clobber: bool,
    /// It is removed first (--remove-destination).
    pub remove: bool,
    /// It is removed if it cannot be written to (-f).
    pub force: bool,
    /// What is copied as something else than a regular file takes its place (-P, and with it -r and -a).
    pub by_others: bool,
    /// Names of one file stay names of one file (-a, -d).
    pub keep_links: bool,
}

/// A kind of file in GNU's words.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharacterDevice | FileKind::BlockDevice => "special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Unknown | FileKind::Xattr => "file of unknown kind",
    }
}

/// The error of a file that would be copied onto itself.
pub fn same_file(source: &str, destination: &str) -> anyhow::Error {
    anyhow::anyhow!("'{source}' and '{destination}' are the same file")
}

/// The error of a directory that would be copied into itself.
pub fn into_itself(source: &str, destination: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot copy a directory, '{source}', into itself, '{destination}'")
}

/// The error of a directory that would take the place of something else.
pub fn non_directory_in_the_way(destination: &str, source: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot overwrite non-directory '{destination}' with directory '{source}'")
}

/// The error of something else that would take the place of a directory.
pub fn directory_in_the_way(destination: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot overwrite directory '{destination}' with non-directory")
}

/// The error of a link that leads nowhere, in the place of a copy.
pub fn dangling(destination: &str) -> anyhow::Error {
    anyhow::anyhow!("not writing through dangling symlink '{destination}'").context(crate::exit::Advice::new(
        "--remove-destination puts the copy in its place",
    ))
}
