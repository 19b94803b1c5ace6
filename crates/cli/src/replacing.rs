//! Treatment of existing files by a copy, in both directions, as in GNU cp.
//!
//! - When a copy replaces a regular file, the file keeps its inode. The copy opens the existing
//!   file and replaces its content, so owner, mode and further names stay. The copy follows a
//!   symbolic link at the target name, unless the link is dangling.
//! - An item that is not copied as a regular file (links and special files, with -r, -P, -d or -a)
//!   replaces the existing file.
//! - With -a and -d, an existing file with several names keeps its content under the other names,
//!   and the copy takes over this name.
//! - A directory never replaces another kind of file, and no other kind replaces a directory.
//!
//! One rule differs from GNU cp: below the copied directory, no link in the destination is
//! followed; it is replaced. The copied volume may be hostile, or the destination may belong to
//! another user. A write through a symbolic link could reach any file.

use buttress::FileKind;

/// Treatment of existing files. By default, existing files are treated as by a plain `cp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replacing {
    /// Keeps existing files, and copies nothing to their names (-n).
    pub no_clobber: bool,
    /// Removes existing files first (--remove-destination).
    pub remove: bool,
    /// If an existing file cannot be written to, removes it (-f).
    pub force: bool,
    /// Replaces existing files with items that are not copied as regular files (-P, and with it -r
    /// and -a).
    pub by_others: bool,
    /// Preserves hard links (-a, -d).
    pub keep_links: bool,
    /// The treatment of directories.
    pub directories: DirectoryFinish,
}

/// The treatment of directories by an extraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectoryFinish {
    /// New directories get their attributes after their last file. Existing ones get them with -p.
    #[default]
    AfterFiles,
    /// A later extraction gives the attributes. Until then, the owner can write to new directories.
    Later,
    /// The extraction gives attributes to existing directories.
    Now,
}

/// Returns the name of a file kind as GNU tools print it.
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

/// Builds the error for copying a file onto itself.
pub fn same_file(source: &str, destination: &str) -> anyhow::Error {
    anyhow::anyhow!("'{source}' and '{destination}' are the same file")
}

/// Builds the error for copying a directory into itself.
pub fn into_itself(source: &str, destination: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot copy a directory, '{source}', into itself, '{destination}'")
}

/// Builds the error for a directory that would replace another kind of file.
pub fn non_directory_in_the_way(destination: &str, source: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot overwrite non-directory '{destination}' with directory '{source}'")
}

/// Builds the error for another kind of file that would replace a directory.
pub fn directory_in_the_way(destination: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot overwrite directory '{destination}' with non-directory")
}

/// Builds the error for a dangling link at the target name of a copy.
pub fn dangling(destination: &str) -> anyhow::Error {
    anyhow::anyhow!("not writing through dangling symlink '{destination}'").context(crate::exit::Advice::new(
        "to replace the link, give --remove-destination",
    ))
}
