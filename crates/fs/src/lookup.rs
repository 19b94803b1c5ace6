//! Resolution of paths to inodes, and of inodes to paths.
//!
//! Resolving a path never leaves the volume: an absolute symlink begins at the caller's root, and
//! `..` does not ascend above that root. A path crosses nested subvolumes like mounts. A lookup
//! keeps the path from the root as a stack, so `..` needs no reads and trusts no bytes.
//!
//! Limits are those of the kernel: 255 bytes for a name, 4095 for a path, 40 symlinks for a path.
//!
//! The lookup of an inode's names follows `INODE_REF` and `INODE_EXTREF` items upwards. Inode names
//! on disk may form a cycle. The ascent to an inode's path stops after as many steps as a path can
//! have names.

use crate::directory::DirEntry;
use crate::error::{Corruption, Error, Result};
use crate::filesystem::Filesystem;
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, FileKind, FileOffset, InodeExtrefs, InodeNumber, InodeRefs, ItemType, Key, extref_hash,
};
use buttress_tree::{ReadAhead, Tree};
use std::path::PathBuf;

/// The maximum length of an entry's name in bytes.
pub const NAME_LIMIT: usize = 255;

/// The maximum length of a path, and of a symlink's target.
pub const PATH_LIMIT: usize = 4095;

/// The maximum number of symlinks that one path may contain.
pub const SYMLINK_LIMIT: u32 = 40;

/// The maximum number of directories above an inode before the ascent stops.
const PARENTS_LIMIT: usize = 65_536;

/// The maximum total length of all paths of one inode: 65,535 names, the maximum of an inode, of a
/// thousand bytes each.
const PATHS_BYTES_MAX: usize = 64 << 20;

/// The treatment of a symlink at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// At the end of a path, follows a symlink, as `stat(2)` does.
    All,
    /// The path leads to the symlink itself, as in `lstat(2)`. A slash at the end of the path
    /// follows the symlink nevertheless.
    NotLast,
}

/// The source of names for path resolution: a fixed state, or the current names.
pub trait Names {
    /// Returns the entry `name` of a directory, or `None`.
    ///
    /// # Errors
    /// Returns [`Error::NotADirectory`] or [`Error::InodeNotFound`]. Also fails if the directory
    /// cannot be read.
    fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>>;

    /// Returns the target of a symlink as stored.
    ///
    /// # Errors
    /// Returns [`Error::NotASymlink`] or [`Corruption::SymlinkLength`]. Also fails if the symlink
    /// cannot be read.
    fn read_link(&self, location: Location) -> Result<Vec<u8>>;

    /// Returns the kind of an inode.
    ///
    /// # Errors
    /// Returns [`Error::InodeNotFound`] or [`Error::SubvolumeNotFound`]. Also fails if the inode
    /// cannot be read.
    fn kind_of(&self, location: Location) -> Result<FileKind>;
}

/// The state of a path resolution.
struct Walk<'a, N> {
    names: &'a N,
    /// The inodes on the path from the caller's root down to the current position; never empty.
    stack: Vec<(Location, FileKind)>,
    /// The names of the path that are not resolved yet, in reverse order.
    rest: Vec<Vec<u8>>,
    symlinks: u32,
    asked: &'a [u8],
}

/// Returns a path of the volume as a path of the standard library, for messages.
///
/// Paths of systems other than Unix are Unicode. In such a path, U+FFFD replaces bytes that are not
/// UTF-8.
#[must_use]
pub fn display_path(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt as _;
        PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
    }
    #[cfg(not(unix))]
    PathBuf::from(String::from_utf8_lossy(bytes).into_owned())
}

fn names_of(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
}

/// Returns true if a path requires its target to be a directory.
fn demands_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.") || path == b"." || path.ends_with(b"/..") || path == b".."
}

impl<N: Names> Walk<'_, N> {
    fn here(&self) -> (Location, FileKind) {
        // Clamp: the parent of the root is the root.
        self.stack.last().copied().unwrap_or((
            Location::root_of(buttress_format::SubvolumeId::TOP_LEVEL),
            FileKind::Directory,
        ))
    }

    fn not_found(&self) -> Error {
        Error::NotFound {
            path: display_path(self.asked),
        }
    }

    fn not_a_directory(&self) -> Error {
        Error::NotADirectory {
            path: display_path(self.asked),
        }
    }

    /// Descends by one name.
    fn step(&mut self, name: &[u8], follow: bool) -> Result<()> {
        let (directory, kind) = self.here();
        if kind != FileKind::Directory {
            return Err(self.not_a_directory());
        }
        if name == b".." {
            if self.stack.len() > 1 {
                self.stack.pop();
            }
            return Ok(());
        }
        if name.len() > NAME_LIMIT {
            return Err(Error::NameTooLong {
                length_bytes: name.len(),
                limit_bytes: NAME_LIMIT,
            });
        }
        let entry = self
            .names
            .lookup(directory, name)?
            .ok_or_else(|| self.not_found())?;
        if entry.kind == FileKind::Symlink && (follow || !self.rest.is_empty()) {
            return self.follow(&entry);
        }
        self.stack.push((entry.target, entry.kind));
        Ok(())
    }

    /// Puts the names of a symlink's target before the remaining names of the path.
    fn follow(&mut self, entry: &DirEntry) -> Result<()> {
        self.symlinks = self.symlinks.exact_add(1);
        if self.symlinks > SYMLINK_LIMIT {
            return Err(Error::TooManySymlinks {
                path: display_path(self.asked),
                limit: SYMLINK_LIMIT,
            });
        }
        let target = self.names.read_link(entry.target)?;
        if target.starts_with(b"/") {
            self.stack.truncate(1);
        }
        if demands_directory(&target) && self.rest.is_empty() {
            // The name `.` keeps the position, but requires a directory.
            self.rest.push(b".".to_vec());
        }
        self.rest.extend(names_of(&target).rev());
        Ok(())
    }

    fn run(mut self, follow: Follow) -> Result<Location> {
        while let Some(name) = self.rest.pop() {
            if name == b"." {
                if self.here().1 != FileKind::Directory {
                    return Err(self.not_a_directory());
                }
            } else {
                self.step(&name, follow == Follow::All)?;
            }
        }
        Ok(self.here().0)
    }
}

/// Returns the target of `path`, relative to the directory `root`. A slash at the start also means
/// `root`.
///
/// # Errors
/// Returns [`Error::NotFound`], [`Error::NotADirectory`], [`Error::TooManySymlinks`] or
/// [`Error::NameTooLong`]. Also fails if a directory cannot be read.
pub fn resolve(names: &impl Names, root: Location, path: &[u8], follow: Follow) -> Result<Location> {
    if path.len() > PATH_LIMIT {
        return Err(Error::NameTooLong {
            length_bytes: path.len(),
            limit_bytes: PATH_LIMIT,
        });
    }
    let mut rest: Vec<Vec<u8>> = Vec::new();
    if demands_directory(path) {
        rest.push(b".".to_vec());
    }
    rest.extend(names_of(path).rev());
    let kind = names.kind_of(root)?;
    let walk = Walk {
        names,
        stack: vec![(root, kind)],
        rest,
        symlinks: 0,
        asked: path,
    };
    walk.run(follow)
}

impl Names for Filesystem {
    fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        Self::lookup(self, directory, name)
    }

    fn read_link(&self, location: Location) -> Result<Vec<u8>> {
        Self::read_link(self, location)
    }

    fn kind_of(&self, location: Location) -> Result<FileKind> {
        Ok(self.metadata(location)?.kind)
    }
}

impl Filesystem {
    /// Returns the target of `path`, relative to the directory `root`. A slash at the start also
    /// means `root`.
    ///
    /// # Errors
    /// Fails as [`resolve`] does.
    pub fn resolve(&self, root: Location, path: &[u8], follow: Follow) -> Result<Location> {
        resolve(self, root, path, follow)
    }

    /// Returns the target of a symlink as stored.
    ///
    /// # Errors
    /// Returns [`Error::NotASymlink`] or [`Corruption::SymlinkLength`]. Also fails if the target
    /// cannot be read.
    pub fn read_link(&self, location: Location) -> Result<Vec<u8>> {
        let metadata = self.metadata(location)?;
        if metadata.kind != FileKind::Symlink {
            return Err(Error::NotASymlink { location });
        }
        let limit = ByteCount::of(PATH_LIMIT);
        let length = match metadata.size.to_usize() {
            Some(length) if length > 0 && length <= PATH_LIMIT => length,
            _ => {
                return Err(Corruption::SymlinkLength {
                    location,
                    length: metadata.size,
                    limit,
                }
                .into());
            }
        };
        let mut target = vec![0; length];
        let file = self.file_of(metadata)?;
        let read = file.read_at(FileOffset::MIN, &mut target)?;
        target.truncate(read);
        Ok(target)
    }

    /// Returns the index in the inode's own record of its name `name` in `directory`, or `None`.
    pub fn link_index(
        &self,
        tree: &Tree,
        location: Location,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<u64>> {
        let key = Key::new(location.inode.object_id(), ItemType::INODE_REF, directory.get());
        if let Some(item) = tree.get(&key)?
            && let Some(link) = InodeRefs::parse(&key, item.data())
                .into_iter()
                .flatten()
                .find(|link| link.name == name)
        {
            return Ok(Some(link.index));
        }
        let key = Key::new(
            location.inode.object_id(),
            ItemType::INODE_EXTREF,
            extref_hash(directory, name),
        );
        Ok(tree.get(&key)?.and_then(|item| {
            InodeExtrefs::parse(&key, item.data())
                .into_iter()
                .flatten()
                .find(|link| link.parent == directory && link.name == name)
                .map(|link| link.index)
        }))
    }

    /// Returns the directory that holds a directory, and its name there; `None` for the root of a
    /// subvolume.
    fn parent_of(&self, tree: &Tree, location: Location) -> Result<Option<(InodeNumber, Vec<u8>)>> {
        if location.is_subvolume_root() {
            return Ok(None);
        }
        let object_id = location.inode.object_id();
        let first = Key::new(object_id, ItemType::INODE_REF, 0);
        let last = Key::new(object_id, ItemType::INODE_EXTREF, u64::MAX);
        let broken = |error| {
            Error::from(Corruption::Item {
                tree: location.subvolume.tree(),
                error,
            })
        };
        if let Some(item) = tree.range(first..=last, ReadAhead::None).next() {
            let item = item?;
            let key = item.key();
            let link = if key.item_type == ItemType::INODE_REF {
                InodeRefs::parse(&key, item.data()).map_err(broken)?.next()
            } else {
                InodeExtrefs::parse(&key, item.data()).map_err(broken)?.next()
            };
            if let Some(link) = link {
                return Ok(Some((link.parent, link.name.to_vec())));
            }
        }
        Err(Corruption::ItemMissing {
            tree: location.subvolume.tree(),
            key: first,
            what: "the name of a directory",
        }
        .into())
    }

    /// Returns the parent of a directory in its subvolume, and its name there; `None` for the root.
    ///
    /// # Errors
    /// Fails if the directory has no name that can be read.
    pub fn directory_name(&self, directory: Location) -> Result<Option<(InodeNumber, Vec<u8>)>> {
        self.parent_of(&self.subvolume_tree(directory.subvolume)?, directory)
    }

    /// Returns the path of a directory in its subvolume, without a slash at its start; empty for
    /// the root.
    ///
    /// # Errors
    /// Returns [`Corruption::ParentLoop`] if the ascent does not end. Also fails if the tree cannot
    /// be read.
    pub fn directory_path(&self, directory: Location) -> Result<Vec<u8>> {
        let tree = self.subvolume_tree(directory.subvolume)?;
        let mut names = Vec::new();
        let mut current = directory;
        while let Some((parent, name)) = self.parent_of(&tree, current)? {
            if names.len() >= PARENTS_LIMIT {
                return Err(Corruption::ParentLoop {
                    location: directory,
                    limit: PARENTS_LIMIT,
                }
                .into());
            }
            names.push(name);
            current = Location::new(directory.subvolume, parent);
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// Returns all paths of an inode in its subvolume, without a slash at their start: one for each
    /// of its names. The root directory has one path, the empty one.
    ///
    /// # Errors
    /// Returns [`Error::InodeNotFound`], or [`Error::TooBig`] for more than 64 MiB of paths. Also
    /// fails if the walk from one of the names up to the root cannot be read.
    pub fn inode_paths(&self, location: Location) -> Result<Vec<Vec<u8>>> {
        if location.is_subvolume_root() {
            return Ok(vec![Vec::new()]);
        }
        let tree = self.subvolume_tree(location.subvolume)?;
        self.metadata_in(&tree, location)?;
        let object_id = location.inode.object_id();
        let first = Key::new(object_id, ItemType::INODE_REF, 0);
        let last = Key::new(object_id, ItemType::INODE_EXTREF, u64::MAX);
        let broken = |error| {
            Error::from(Corruption::Item {
                tree: location.subvolume.tree(),
                error,
            })
        };
        let mut paths = Vec::new();
        let mut bytes = 0_usize;
        let mut known: Option<(InodeNumber, Vec<u8>)> = None;
        for item in tree.range(first..=last, ReadAhead::None) {
            let item = item?;
            let key = item.key();
            let mut links: Vec<(InodeNumber, Vec<u8>)> = Vec::new();
            match key.item_type {
                ItemType::INODE_REF => {
                    for link in InodeRefs::parse(&key, item.data()).map_err(broken)? {
                        links.push((link.parent, link.name.to_vec()));
                    }
                }
                _ => {
                    for link in InodeExtrefs::parse(&key, item.data()).map_err(broken)? {
                        links.push((link.parent, link.name.to_vec()));
                    }
                }
            }
            for (directory, name) in links {
                let above = match known.take() {
                    Some((number, path)) if number == directory => path,
                    _ => self.directory_path(Location::new(location.subvolume, directory))?,
                };
                let mut path = above.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                bytes = bytes.exact_add(path.len());
                if bytes > PATHS_BYTES_MAX {
                    return Err(Error::TooBig {
                        what: "the paths",
                        location,
                        limit: ByteCount::of(PATHS_BYTES_MAX),
                    });
                }
                paths.push(path);
                known = Some((directory, above));
            }
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_skip_dots_and_empty_parts() {
        let names: Vec<Vec<u8>> = names_of(b"//a/./b//..").collect();
        assert_eq!(names, [b"a".to_vec(), b"b".to_vec(), b"..".to_vec()]);
    }

    #[test]
    fn slashes_at_the_end_demand_a_directory() {
        for (path, demands) in [
            (&b"a"[..], false),
            (b"a/", true),
            (b"a/.", true),
            (b".", true),
            (b"a.", false),
        ] {
            assert_eq!(demands_directory(path), demands, "{path:?}");
        }
    }
}
