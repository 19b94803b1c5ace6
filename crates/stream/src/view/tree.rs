//! A tree of inodes: the state of a subvolume after a stream.
//!
//! All maps are persistent: a copy of a [`Tree`] costs nothing, and shares with its original
//! everything that neither changes. The series therefore keeps the tree of every stream, as parent
//! and clone source of later streams.
//!
//! Invariants:
//! - Every name leads to an existing inode.
//! - Directories form a tree.
//! - [`Inode::links`] is the number of names of an inode other than a directory; an inode without
//!   names does not exist.
//! - Path resolution goes through directories only, never through a symbolic link and never
//!   upwards.

mod inode;
mod path;

pub use inode::{Directory, File, Inode, Node, Times};
pub(super) use path::Place;
pub(crate) use path::names;

use super::error::Problem;
use rpds::RedBlackTreeMapSync;
use std::collections::HashSet;
use std::sync::Arc;

/// Number of an inode in a [`Tree`], assigned by the view and stable across snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

impl NodeId {
    /// The subvolume's root directory.
    pub const ROOT: Self = Self(0);
}

/// The entries of a directory, sorted by the bytes of their names.
pub(super) type Entries = RedBlackTreeMapSync<Arc<[u8]>, NodeId>;

/// The state of a subvolume in a view of the stream. A copy shares everything with its original.
#[derive(Clone, Debug)]
pub struct Tree {
    inodes: RedBlackTreeMapSync<NodeId, Inode>,
    next: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let mut inodes = RedBlackTreeMapSync::new_sync();
        inodes.insert_mut(NodeId::ROOT, Inode::new(Node::directory(), 0o755, None));
        Self { inodes, next: 1 }
    }
}

impl Tree {
    /// Returns the inode with this number.
    #[must_use]
    pub fn inode(&self, id: NodeId) -> Option<&Inode> {
        self.inodes.get(&id)
    }

    pub(super) fn inode_mut(&mut self, id: NodeId) -> Option<&mut Inode> {
        self.inodes.get_mut(&id)
    }

    /// Returns the number of inodes, including the root directory.
    #[must_use]
    pub fn inode_count(&self) -> usize {
        self.inodes.size()
    }

    /// Returns all inodes, in creation order.
    pub fn inodes(&self) -> impl Iterator<Item = &Inode> {
        self.inodes.values()
    }

    /// Returns the entries of a directory, sorted by the bytes of their names. Inodes other than
    /// directories have no entries.
    pub fn entries(&self, directory: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
        let entries = self.inode(directory).and_then(|inode| match &inode.node {
            Node::Directory(entries) => Some(entries.0.iter()),
            _ => None,
        });
        entries
            .into_iter()
            .flatten()
            .map(|(name, id)| (name.as_ref(), *id))
    }

    /// Walks everything in and below a directory; each directory comes before its entries.
    #[must_use]
    pub fn walk(&self, start: NodeId) -> Walk<'_> {
        Walk::new(self, start)
    }

    /// Resolves `path`, which is relative, as in commands. Resolution does not follow symbolic
    /// links.
    ///
    /// # Errors
    /// The path has a form that streams do not allow, or does not exist.
    pub fn find(&self, path: &[u8]) -> Result<NodeId, Problem> {
        let mut found = NodeId::ROOT;
        for (name, end) in names(path)? {
            let (so_far, above) = path::up_to(path, name, end);
            found = self.child(found, name, so_far, above)?;
        }
        Ok(found)
    }

    /// Resolves `name` in a directory. `path` is the whole path up to the name, `above` is the path
    /// of the directory.
    fn child(&self, directory: NodeId, name: &[u8], path: &[u8], above: &[u8]) -> Result<NodeId, Problem> {
        let entries = self.entries_of(directory, above)?;
        entries
            .get(name)
            .copied()
            .ok_or_else(|| Problem::NotFound { path: path.to_vec() })
    }

    pub(super) fn entries_of(&self, directory: NodeId, path: &[u8]) -> Result<&Entries, Problem> {
        match self.inode(directory).map(|inode| &inode.node) {
            Some(Node::Directory(entries)) => Ok(&entries.0),
            other => Err(Problem::NotDirectory {
                path: path.to_vec(),
                found: other.map_or("nothing", Node::kind_name),
            }),
        }
    }

    /// Returns the parent directory of `path`, and the last name. Reports whether the walk passed
    /// `forbidden`.
    pub(super) fn place<'a>(&self, path: &'a [u8], forbidden: Option<NodeId>) -> Result<Place<'a>, Problem> {
        let mut directory = NodeId::ROOT;
        let mut within_forbidden = false;
        let mut names = names(path)?.peekable();
        while let Some((name, end)) = names.next() {
            let (so_far, above) = path::up_to(path, name, end);
            if names.peek().is_none() {
                let entries = self.entries_of(directory, above)?;
                return Ok(Place {
                    directory,
                    name,
                    existing: entries.get(name).copied(),
                    within_forbidden,
                });
            }
            directory = self.child(directory, name, so_far, above)?;
            within_forbidden |= forbidden == Some(directory);
        }
        Err(path::root(path))
    }

    /// Adds an inode under a name that is not in use.
    pub(super) fn add(&mut self, place: &Place<'_>, inode: Inode) {
        let id = NodeId(self.next);
        self.next = self.next.saturating_add(1);
        self.inodes.insert_mut(id, inode);
        self.set_name(place, id);
    }

    /// Makes the name lead to `id`, and replaces its old target.
    pub(super) fn set_name(&mut self, place: &Place<'_>, id: NodeId) {
        if let Some(Node::Directory(entries)) = self.inode_mut(place.directory).map(|inode| &mut inode.node) {
            entries.0.insert_mut(place.name.into(), id);
        }
    }

    /// Removes the name from its directory, and keeps the inode.
    pub(super) fn clear_name(&mut self, place: &Place<'_>) {
        if let Some(Node::Directory(entries)) = self.inode_mut(place.directory).map(|inode| &mut inode.node) {
            entries.0.remove_mut(place.name);
        }
    }

    /// Decrements the link count of an inode, and removes the inode with its last link.
    pub(super) fn drop_link(&mut self, id: NodeId) {
        let gone = self.inode_mut(id).is_none_or(|inode| {
            inode.links = inode.links.saturating_sub(1);
            inode.links == 0
        });
        if gone {
            self.inodes.remove_mut(&id);
        }
    }
}

/// An entry that [`Tree::walk`] visits.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// Path relative to the start of the walk; empty for the start itself.
    pub path: Vec<u8>,
    /// Number of the inode.
    pub id: NodeId,
    /// Offset in `path` at which the name begins.
    pub name_start: usize,
}

/// Iterator of [`Tree::walk`]. A directory comes before its entries, which are sorted by the bytes
/// of their names.
#[derive(Debug)]
pub struct Walk<'a> {
    tree: &'a Tree,
    start: Option<NodeId>,
    /// Open directories, each with the length of its path and the last visited name.
    stack: Vec<Open>,
    path: Vec<u8>,
    /// Visited inodes. These visited inodes stop the walk if directories ever fail to form a tree.
    met: HashSet<NodeId>,
}

#[derive(Debug)]
struct Open {
    directory: NodeId,
    path_bytes: usize,
    last: Option<Arc<[u8]>>,
}

impl<'a> Walk<'a> {
    fn new(tree: &'a Tree, start: NodeId) -> Self {
        Self {
            tree,
            start: Some(start),
            stack: Vec::new(),
            path: Vec::new(),
            met: HashSet::new(),
        }
    }

    fn open(&mut self, id: NodeId) {
        let is_directory = self
            .tree
            .inode(id)
            .is_some_and(|inode| matches!(inode.node, Node::Directory(_)));
        if is_directory && self.met.insert(id) {
            self.stack.push(Open {
                directory: id,
                path_bytes: self.path.len(),
                last: None,
            });
        }
    }

    /// Returns the next entry of the innermost open directory.
    fn next_name(&mut self) -> Option<(Arc<[u8]>, NodeId)> {
        use core::ops::Bound;
        let open = self.stack.last_mut()?;
        let Some(Node::Directory(entries)) = self.tree.inode(open.directory).map(|inode| &inode.node) else {
            return None;
        };
        let from = open.last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (name, id) = entries.0.range::<[u8], _>((from, Bound::Unbounded)).next()?;
        open.last = Some(Arc::clone(name));
        Some((Arc::clone(name), *id))
    }
}

impl Iterator for Walk<'_> {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        if let Some(id) = self.start.take() {
            self.open(id);
            return Some(WalkEntry {
                path: Vec::new(),
                id,
                name_start: 0,
            });
        }
        loop {
            self.path.truncate(self.stack.last()?.path_bytes);
            let Some((name, id)) = self.next_name() else {
                self.stack.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            let name_start = self.path.len();
            self.path.extend_from_slice(&name);
            self.open(id);
            return Some(WalkEntry {
                path: self.path.clone(),
                id,
                name_start,
            });
        }
    }
}
