//! From paths of a stream to inodes, without a walk for each command.
//!
//! The names that were made, and those that were looked up, are kept by directory, up to a number of them; the path of the
//! last command is kept whole, since most commands are about the file of the one before.
//!
//! Paths are hostile: each of their names is one that a directory can have, none is `.` or `..`, symbolic links are never
//! followed, and what lies in another subvolume than the one that was asked about is not gone into.

use super::error::Problem;
use crate::view::Problem as TreeProblem;
use crate::view::tree::names;
use buttress_format::FileKind;
use buttress_fs::Location;
use buttress_fs::directory::DirEntry;
use buttress_fs::inode::kind_name;
use buttress_writer::WritableFilesystem;
use std::collections::HashMap;

/// How many names are kept. With more they are all forgotten, and looked up again.
const KNOWN_MAX: usize = 1 << 15;

/// What a path leads to.
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

/// Known names. See the module.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<Location, HashMap<Box<[u8]>, Node>>,
    count: usize,
    last: Option<(Location, Vec<u8>, Node)>,
}

impl Names {
    /// What `path` leads to in the subvolume with this root.
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

    /// The directory that a path's last name stands in, or is to stand in, and the name.
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

    /// What has `name` in a directory; `end` is where the name ends in the path.
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

    /// Whether a name need not be looked up.
    pub(super) fn knows(&self, directory: Location, name: &[u8]) -> bool {
        self.known
            .get(&directory)
            .is_some_and(|known| known.contains_key(name))
    }

    /// Takes note of what was looked up.
    pub(super) fn learn(&mut self, directory: Location, name: &[u8], entry: &DirEntry) {
        if entry.target.subvolume == directory.subvolume {
            let node = Node {
                location: entry.target,
                kind: entry.kind,
            };
            self.insert(directory, name, node);
        }
    }

    /// Takes note of a name.
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

    /// A name is gone, or means something else.
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

    /// The path of the last command.
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
