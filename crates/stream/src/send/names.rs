//! The names as the receiver has them while the stream is on its way, and the commands that change them.
//!
//! The receiver begins with a snapshot of the parent (or with nothing) and must end with the new snapshot's
//! names. Commands name files by paths, so every path must be the one that the receiver has at that moment.
//! Inodes come in the order of their numbers, as in the kernel; each gets its names when it comes. Three things
//! can stand in the way, and each has one answer:
//!
//! - *The directory does not exist yet* (its number is higher): it is made ahead.
//! - *The name is taken* by somebody whose own turn comes later. A file that goes away is removed then and there;
//!   everybody else steps aside under a name of its own in the root, `o<inode>-<generation>-<n>`, and leaves
//!   from there when its turn comes.
//! - *A directory would move below itself*, as one on the way from its new parent up to it moves only later: that
//!   one is moved first.
//!
//! A directory that goes away is removed when its turn has come and its last name has gone.
//!
//! Invariant: at any moment the path of an inode is made of links that each are its old one (not moved yet), its
//! new one (moved, made, or never changed), or the one in `displaced`.

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

/// The longest path that fits into an attribute of a stream.
const PATH_BYTES_MAX: usize = 65_535;

/// How many steps up a path may take: more than names fit into the longest path.
const DEPTH_MAX: usize = 1 << 16;

/// How many paths of directories are kept.
const PATHS_MAX: usize = 4096;

/// A directory, of the parent snapshot only or (also) of the new one.
///
/// A number that both snapshots use for directories is one directory here, even if it was used again: the
/// receiver ends with the same names and attributes. A number that was used again for something else is told
/// apart by `gone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    pub(crate) number: InodeNumber,
    /// Whether only the parent snapshot has it.
    pub(crate) gone: bool,
}

impl Directory {
    pub(crate) const fn new(number: InodeNumber) -> Self {
        Self { number, gone: false }
    }
}

/// An inode that the receiver does not have yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh<'i> {
    pub(crate) number: InodeNumber,
    pub(crate) generation: Generation,
    pub(crate) xattrs: &'i [Attribute],
}

/// The receiver's names. See the module.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    new: &'a Snapshot,
    old: Option<&'a Snapshot>,
    plan: Plan,
    /// Directories at neither their old nor their new place: their name in the root.
    displaced: HashMap<Directory, Arc<[u8]>>,
    /// Files of both snapshots that stepped aside: their name in the root.
    displaced_files: HashMap<InodeNumber, Arc<[u8]>>,
    /// Directories that were made before their turn.
    ahead: HashSet<InodeNumber>,
    /// New inodes up to this number exist, if the new snapshot has them.
    created_to: InodeNumber,
    /// Directories whose turn to go away has come, but which are not empty.
    doomed: HashSet<InodeNumber>,
    links: LinkCache,
    inherited: InheritedAttributes,
    /// Paths of directories; they hold as long as no directory moves.
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

    /// Remembers the name of a new directory that was met, and whether it passes attributes on, which saves
    /// looking them up.
    pub(crate) fn remember(&mut self, directory: InodeNumber, link: &Link, xattrs: &[Attribute]) {
        self.links.insert(Directory::new(directory), link.clone());
        self.inherited.remember(directory, xattrs);
    }

    /// Whether the receiver has a directory of the new snapshot.
    fn exists(&self, directory: InodeNumber) -> bool {
        let created = self.old.is_none() || self.plan.is_created(directory);
        !created || directory <= self.created_to || self.ahead.contains(&directory)
    }

    /// The directory that holds a name of the parent snapshot.
    fn old_directory(&self, number: InodeNumber) -> Directory {
        Directory {
            number,
            gone: self.plan.is_gone(number),
        }
    }

    /// Where the receiver has a directory now, and what kind of directory holds it; `None` for the root.
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

    /// The path of a directory as the receiver has it; empty for the root.
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

    /// The path of a name in a directory.
    fn path_in(&mut self, directory: Directory, name: &[u8]) -> Result<Vec<u8>> {
        let above = self.directory_path(directory)?;
        let bytes = above.len().saturating_add(name.len()).saturating_add(1);
        self.check_path_bytes(directory.number, bytes)?;
        let mut path = Vec::with_capacity(bytes);
        path.extend_from_slice(&above);
        push_name(&mut path, name);
        Ok(path)
    }

    /// The path of a name that the new snapshot has, and the receiver by now as well.
    pub(crate) fn new_path(&mut self, link: &Link) -> Result<Vec<u8>> {
        self.path_in(Directory::new(link.parent), &link.name)
    }

    /// The path of any inode of the new snapshot whose names are settled.
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

    /// A name in the root that nobody has, before or after.
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
