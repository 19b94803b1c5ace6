//! From paths of a stream to inodes, without a walk for each command.
//!
//! The cache holds created names and looked-up names by directory, up to a fixed number. The cache
//! of names also holds the complete path of the last command, because most commands change the file
//! of the previous command.
//!
//! The receiver does not trust the paths of commands. Each path component must be a valid name and
//! neither `.` nor `..`. The walk never follows symbolic links and never enters another subvolume.

use super::error::Problem;
use crate::view::Problem as TreeProblem;
use crate::view::tree::names;
use buttress_format::FileKind;
use buttress_fs::Location;
use buttress_fs::directory::DirEntry;
use buttress_fs::inode::kind_name;
use buttress_writer::WritableFilesystem;
use std::collections::HashMap;

/// Largest number of cached names. Above this size the name cache starts empty again.
const KNOWN_MAX: usize = 1 << 15;

/// An inode that a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) location: Location,
    pub(super) kind: FileKind,
}

impl Node {
    pub(super) const fn directory(location: Location) -> Self {
        Self {
            location,
            kind: FileKind::Directory,
        }
    }
}

/// The cache of names.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<Location, HashMap<Box<[u8]>, Node>>,
    count: usize,
    last: Option<(Location, Vec<u8>, Node)>,
}

impl Names {
    /// Resolves `path` in the subvolume with this root.
    pub(super) fn find(
        &mut self,
        filesystem: &WritableFilesystem,
        root: Location,
        path: &[u8],
    ) -> Result<Node, Problem> {
        if let Some((of, last, node)) = &self.last
            && *of == root
            && last == path
        {
            return Ok(*node);
        }
        let mut node = Node::directory(root);
        for (name, end) in names(path)? {
            node = self.child(filesystem, node, name, path, end)?;
        }
        self.remember(root, path, node);
        Ok(node)
    }

    /// Returns the parent directory of a path's last name, and the last name. The last name of the
    /// path need not exist.
    pub(super) fn place<'p>(
        &mut self,
        filesystem: &WritableFilesystem,
        root: Location,
        path: &'p [u8],
    ) -> Result<(Location, &'p [u8]), Problem> {
        let mut directory = Node::directory(root);
        let mut last: Option<(&[u8], usize)> = None;
        for (name, end) in names(path)? {
            if let Some((name, end)) = last.replace((name, end)) {
                directory = self.child(filesystem, directory, name, path, end)?;
            }
        }
        let Some((name, _)) = last else {
            return Err(TreeProblem::PathInvalid {
                path: path.to_vec(),
                problem: crate::view::PathProblem::Root,
            }
            .into());
        };
        let above = path.len().saturating_sub(name.len()).saturating_sub(1);
        require_directory(directory, path.get(..above).unwrap_or_default())?;
        Ok((directory.location, name))
    }

    /// Resolves `name` in a directory; `end` is the end of the name in the path.
    fn child(
        &mut self,
        filesystem: &WritableFilesystem,
        directory: Node,
        name: &[u8],
        path: &[u8],
        end: usize,
    ) -> Result<Node, Problem> {
        let above = end.saturating_sub(name.len()).saturating_sub(1);
        require_directory(directory, path.get(..above).unwrap_or_default())?;
        let directory = directory.location;
        if let Some(node) = self.known.get(&directory).and_then(|known| known.get(name)) {
            return Ok(*node);
        }
        let here = || path.get(..end).unwrap_or(path).to_vec();
        let found = filesystem
            .live()
            .lookup(directory, name)
            .map_err(|error| Problem::Filesystem { path: here(), error })?;
        let Some(entry) = found else {
            return Err(TreeProblem::NotFound { path: here() }.into());
        };
        if entry.target.subvolume != directory.subvolume {
            return Err(TreeProblem::WrongKind {
                path: here(),
                found: "another subvolume",
                wanted: "something of this one",
            }
            .into());
        }
        let node = Node {
            location: entry.target,
            kind: entry.kind,
        };
        self.insert(directory, name, node);
        Ok(node)
    }

    /// Returns whether the cache holds a name.
    pub(super) fn knows(&self, directory: Location, name: &[u8]) -> bool {
        self.known
            .get(&directory)
            .is_some_and(|known| known.contains_key(name))
    }

    /// Caches a looked-up directory entry.
    pub(super) fn learn(&mut self, directory: Location, name: &[u8], entry: &DirEntry) {
        if entry.target.subvolume == directory.subvolume {
            let node = Node {
                location: entry.target,
                kind: entry.kind,
            };
            self.insert(directory, name, node);
        }
    }

    /// Caches the inode of a name.
    pub(super) fn insert(&mut self, directory: Location, name: &[u8], node: Node) {
        if self.count >= KNOWN_MAX {
            self.known.clear();
            self.count = 0;
        }
        let known = self.known.entry(directory).or_default();
        if known.insert(name.into(), node).is_none() {
            self.count = self.count.saturating_add(1);
        }
    }

    /// Removes a name from the cache because it is gone or leads to another inode.
    pub(super) fn forget(&mut self, directory: Location, name: &[u8]) {
        self.last = None;
        let Some(known) = self.known.get_mut(&directory) else {
            return;
        };
        if known.remove(name).is_some() {
            self.count = self.count.saturating_sub(1);
        }
        if known.is_empty() {
            self.known.remove(&directory);
        }
    }

    /// Caches the path of the last command.
    pub(super) fn remember(&mut self, root: Location, path: &[u8], node: Node) {
        match &mut self.last {
            Some((of, last, known)) => {
                *of = root;
                last.clear();
                last.extend_from_slice(path);
                *known = node;
            }
            none => *none = Some((root, path.to_vec(), node)),
        }
    }
}

fn require_directory(node: Node, path: &[u8]) -> Result<(), Problem> {
    if node.kind == FileKind::Directory {
        return Ok(());
    }
    Err(TreeProblem::NotDirectory {
        path: path.to_vec(),
        found: kind_name(node.kind),
    }
    .into())
}
