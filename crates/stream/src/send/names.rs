//! The receiver's names during a send, and the commands that change them.
//!
//! The receiver begins with a snapshot of the parent (or with nothing) and must end with the new
//! snapshot's names. Commands name files by paths, so every path must be the receiver's path at
//! that moment. As in the kernel, a send handles inodes in the order of their numbers; each inode
//! gets its names at its turn. Three obstacles can occur, each with one solution:
//!
//! - *The parent directory does not exist yet* (its inode number is higher): the send creates the
//!   directory ahead of its turn.
//! - *The name is taken* by an inode that the send handles later. If this inode is a removed file,
//!   the send removes the name at once. Any other inode moves out of the way to a unique name in
//!   the root, `o<inode>-<generation>-<n>`, and gets its new name at its own turn.
//! - *A directory would move below itself*, because a directory on the path to its new parent moves
//!   only later: the send moves this other directory first.
//!
//! A removed directory disappears at its turn or, if later, with its last entry.
//!
//! Invariant: at any moment the path of an inode consists of links that are each its old link (not
//! moved yet), its new link (moved, created, or never changed), or the link in `displaced`.

mod change;
mod orphanize;
mod removal;

use crate::send::error::{NamesProblem, Result};
use crate::send::inherited_attributes::InheritedAttributes;
use crate::send::inode::Attribute;
use crate::send::links::LinkCache;
use crate::send::plan::Plan;
use crate::send::snapshot::{Link, Snapshot};
use crate::send::times::DirectoryTimes;
use buttress_format::{Generation, InodeNumber};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Largest length of a path in a stream attribute, in bytes.
const PATH_BYTES_MAX: usize = 65_535;

/// Largest number of directories on a path, more than the longest path has names.
const DEPTH_MAX: usize = 1 << 16;

/// Largest number of cached directory paths.
const PATHS_MAX: usize = 4096;

/// A directory of the new snapshot, or of the parent snapshot only.
///
/// A number that both snapshots use for directories counts as one directory, even if the number was
/// reused: the receiver ends with the same names and attributes. `gone` marks a number that was
/// reused for another kind of inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    pub(crate) number: InodeNumber,
    /// True if only the parent snapshot has this directory.
    pub(crate) gone: bool,
}

impl Directory {
    pub(crate) const fn new(number: InodeNumber) -> Self {
        Self { number, gone: false }
    }
}

/// A new inode that the receiver has not created so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh<'i> {
    pub(crate) number: InodeNumber,
    pub(crate) generation: Generation,
    pub(crate) xattrs: &'i [Attribute],
}

/// The receiver's names.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    new: &'a Snapshot,
    old: Option<&'a Snapshot>,
    plan: Plan,
    /// Directories that are at neither their old nor their new place, with their temporary name in
    /// the root.
    displaced: HashMap<Directory, Arc<[u8]>>,
    /// Files of both snapshots that were moved out of the way, with their temporary name in the
    /// root.
    displaced_files: HashMap<InodeNumber, Arc<[u8]>>,
    /// Directories that were created ahead of their turn.
    ahead: HashSet<InodeNumber>,
    /// Highest inode number whose turn has come: the receiver has all new inodes up to it.
    created_to: InodeNumber,
    /// Removed directories that the send has reached in its order, but which still have entries at
    /// the receiver.
    doomed: HashSet<InodeNumber>,
    links: LinkCache,
    inherited: InheritedAttributes,
    /// Cached paths of directories; any move of a directory invalidates them.
    paths: HashMap<Directory, Arc<[u8]>>,
    pub(crate) times: DirectoryTimes,
}

impl<'a> Names<'a> {
    pub(crate) fn new(new: &'a Snapshot, old: Option<&'a Snapshot>, plan: Plan) -> Self {
        Self {
            new,
            old,
            plan,
            displaced: HashMap::new(),
            displaced_files: HashMap::new(),
            ahead: HashSet::new(),
            created_to: InodeNumber::ROOT_DIRECTORY,
            doomed: HashSet::new(),
            links: LinkCache::default(),
            inherited: InheritedAttributes::default(),
            paths: HashMap::new(),
            times: DirectoryTimes::default(),
        }
    }

    /// Caches the name of a new directory, and whether it passes attributes on, which saves
    /// lookups.
    pub(crate) fn remember(&mut self, directory: InodeNumber, link: &Link, xattrs: &[Attribute]) {
        self.links.insert(Directory::new(directory), link.clone());
        self.inherited.remember(directory, xattrs);
    }

    /// Returns whether the receiver has a directory of the new snapshot.
    fn exists(&self, directory: InodeNumber) -> bool {
        let created = self.old.is_none() || self.plan.is_created(directory);
        !created || directory <= self.created_to || self.ahead.contains(&directory)
    }

    /// Returns the directory that holds a name of the parent snapshot.
    fn old_directory(&self, number: InodeNumber) -> Directory {
        Directory {
            number,
            gone: self.plan.is_gone(number),
        }
    }

    /// Returns the directory's current parent and name at the receiver; `None` for the root.
    fn place(&mut self, directory: Directory) -> Result<Option<(Directory, Arc<[u8]>)>> {
        if directory.number == InodeNumber::ROOT_DIRECTORY {
            return Ok(None);
        }
        if let Some(name) = self.displaced.get(&directory)
            && !buttress_faults::on("send-forgets-moved-aside")
        {
            let root = Directory::new(InodeNumber::ROOT_DIRECTORY);
            return Ok(Some((root, Arc::clone(name))));
        }
        let at_old = directory.gone || self.plan.is_moving(directory.number);
        let link = match (self.links.get(directory), self.old) {
            (Some(link), _) => link,
            (None, Some(old)) if at_old => self.links.look_up(old, directory)?,
            _ => self.links.look_up(self.new, directory)?,
        };
        let parent = if at_old {
            self.old_directory(link.parent)
        } else {
            Directory::new(link.parent)
        };
        Ok(Some((parent, link.name)))
    }

    /// Returns the receiver's current path of a directory; empty for the root.
    pub(crate) fn directory_path(&mut self, directory: Directory) -> Result<Arc<[u8]>> {
        if let Some(path) = self.paths.get(&directory) {
            return Ok(Arc::clone(path));
        }
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut bytes = 0_usize;
        let mut current = directory;
        while let Some((parent, name)) = self.place(current)? {
            bytes = bytes.saturating_add(name.len()).saturating_add(1);
            if names.len() >= DEPTH_MAX {
                return Err(self.new.names_error(directory.number, NamesProblem::Loop));
            }
            self.check_path_bytes(directory.number, bytes)?;
            names.push(name);
            current = parent;
        }
        let mut path = Vec::with_capacity(bytes);
        for name in names.iter().rev() {
            push_name(&mut path, name);
        }
        let path: Arc<[u8]> = path.into();
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
        }
        self.paths.insert(directory, Arc::clone(&path));
        Ok(path)
    }

    fn check_path_bytes(&self, inode: InodeNumber, bytes: usize) -> Result<()> {
        if bytes <= PATH_BYTES_MAX {
            return Ok(());
        }
        Err(crate::send::error::Error::PathTooLong {
            subvolume: self.new.id(),
            inode,
            limit_bytes: PATH_BYTES_MAX,
        })
    }

    /// Returns the receiver's current path of a name in a directory.
    fn path_in(&mut self, directory: Directory, name: &[u8]) -> Result<Vec<u8>> {
        let above = self.directory_path(directory)?;
        let bytes = above.len().saturating_add(name.len()).saturating_add(1);
        self.check_path_bytes(directory.number, bytes)?;
        let mut path = Vec::with_capacity(bytes);
        path.extend_from_slice(&above);
        push_name(&mut path, name);
        Ok(path)
    }

    /// Returns the path of a name of the new snapshot that the receiver already has.
    pub(crate) fn new_path(&mut self, link: &Link) -> Result<Vec<u8>> {
        self.path_in(Directory::new(link.parent), &link.name)
    }

    /// Returns the path of an inode of the new snapshot whose names are final.
    pub(crate) fn settled_path(&mut self, inode: InodeNumber) -> Result<Vec<u8>> {
        if inode == InodeNumber::ROOT_DIRECTORY {
            return Ok(Vec::new());
        }
        let link = self.new.first_link(inode)?;
        self.new_path(&link)
    }

    fn touch(&mut self, directory: Directory) {
        if !directory.gone {
            self.times.touch(directory.number);
        }
    }

    /// Returns a temporary name in the root that exists in neither snapshot.
    fn free_name(&self, inode: InodeNumber, generation: Generation) -> Result<Arc<[u8]>> {
        let root = InodeNumber::ROOT_DIRECTORY;
        let mut number = 0_u64;
        loop {
            let name = format!("o{inode}-{generation}-{number}").into_bytes();
            let taken = self.new.may_hold(root, &name)?
                || self.old.map_or(Ok(false), |old| old.may_hold(root, &name))?;
            if !taken {
                return Ok(name.into());
            }
            number = number.saturating_add(1);
        }
    }
}

/// Appends a name to a path.
fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
