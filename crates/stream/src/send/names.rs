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

use crate::command::Command;
use crate::send::error::{NamesProblem, Result};
use crate::send::heirs::Heirs;
use crate::send::inode::Attribute;
use crate::send::links::LinkCache;
use crate::send::output::Output;
use crate::send::plan::{Occupant, Plan};
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
    heirs: Heirs,
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
            heirs: Heirs::default(),
            paths: HashMap::new(),
            times: DirectoryTimes::default(),
        }
    }

    /// Remembers the name of a new directory that was met, and whether it passes attributes on, which saves
    /// looking them up.
    pub(crate) fn remember(&mut self, directory: InodeNumber, link: &Link, xattrs: &[Attribute]) {
        self.links.insert(Directory::new(directory), link.clone());
        self.heirs.remember(directory, xattrs);
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
        if let Some(name) = self.displaced.get(&directory) {
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

    /// Who still has a name that somebody else is to have.
    fn occupant(&self, link: &Link) -> Option<Occupant> {
        if self.old.is_none() || self.plan.is_created(link.parent) {
            return None;
        }
        self.plan.occupant(link.parent, &link.name)
    }

    /// Makes a name free for its new owner.
    fn make_way(&mut self, link: &Link, output: &mut Output<'_>) -> Result<()> {
        let Some(occupant) = self.occupant(link) else {
            return Ok(());
        };
        if occupant.directory {
            let parent = Directory::new(link.parent);
            return self.displace_directory(parent, &link.name, occupant, output);
        }
        let parent = Directory::new(link.parent);
        let path = self.path_in(parent, &link.name)?;
        let displaced = self.displaced_files.contains_key(&occupant.inode);
        if occupant.gone || displaced {
            output.command(&Command::Unlink { path: &path })?;
        } else {
            let generation = self.old_generation(occupant.inode)?;
            let name = self.free_name(occupant.inode, generation)?;
            output.command(&Command::Rename {
                from: &path,
                to: &name,
            })?;
            self.displaced_files.insert(occupant.inode, name);
            self.times.touch(InodeNumber::ROOT_DIRECTORY);
        }
        self.vacate(parent, &link.name, output)
    }

    fn displace_directory(
        &mut self,
        parent: Directory,
        old_name: &[u8],
        occupant: Occupant,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let directory = Directory {
            number: occupant.inode,
            gone: occupant.gone,
        };
        let path = self.path_in(parent, old_name)?;
        if occupant.gone && !self.plan.holds_names(occupant.inode) {
            self.doomed.remove(&occupant.inode);
            output.command(&Command::Rmdir { path: &path })?;
            // Its own turn must find nothing to do.
            self.displaced.insert(directory, Arc::from(&b""[..]));
        } else {
            let generation = self.old_generation(occupant.inode)?;
            let name = self.free_name(occupant.inode, generation)?;
            output.command(&Command::Rename {
                from: &path,
                to: &name,
            })?;
            self.displaced.insert(directory, name);
            self.times.touch(InodeNumber::ROOT_DIRECTORY);
        }
        self.paths.clear();
        self.vacate(parent, old_name, output)
    }

    fn old_generation(&self, inode: InodeNumber) -> Result<Generation> {
        let item = self.old.map_or(Ok(None), |old| old.inode(inode))?;
        Ok(item.map_or(Generation::MIN, |item| item.generation))
    }

    /// Notes that a name of the parent snapshot is gone, and removes directories that were waiting for that.
    fn vacate(&mut self, parent: Directory, name: &[u8], output: &mut Output<'_>) -> Result<()> {
        self.touch(parent);
        let mut emptied = self.plan.vacate(parent.number, name);
        let mut directory = parent;
        while emptied == Some(true) && directory.gone && self.doomed.remove(&directory.number) {
            match self.remove_directory(directory, output)? {
                Some((above, removed)) => {
                    directory = above;
                    emptied = removed;
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Removes an empty directory. Returns the directory that held it at its old place, and whether it was the
    /// last name that had to go from there.
    fn remove_directory(
        &mut self,
        directory: Directory,
        output: &mut Output<'_>,
    ) -> Result<Option<(Directory, Option<bool>)>> {
        let path = self.directory_path(directory)?;
        let displaced = self.displaced.contains_key(&directory);
        let place = self.place(directory)?;
        output.command(&Command::Rmdir { path: &path })?;
        self.paths.clear();
        let Some((parent, name)) = place else {
            return Ok(None);
        };
        self.touch(parent);
        if displaced {
            self.displaced.insert(directory, Arc::from(&b""[..]));
            return Ok(None);
        }
        let emptied = self.plan.vacate(parent.number, &name);
        Ok(Some((parent, emptied)))
    }

    /// The turn of an inode that goes away.
    pub(crate) fn remove(
        &mut self,
        inode: InodeNumber,
        directory: bool,
        links: &[Link],
        output: &mut Output<'_>,
    ) -> Result<()> {
        if directory {
            let directory = Directory {
                number: inode,
                gone: true,
            };
            if self.displaced.get(&directory).is_some_and(|name| name.is_empty()) {
                return Ok(());
            }
            if self.plan.holds_names(inode) {
                self.doomed.insert(inode);
                // As in the kernel: what is left in it gets shorter paths.
                return self.step_aside(directory, output);
            }
            if let Some((parent, Some(true))) = self.remove_directory(directory, output)?
                && parent.gone
                && self.doomed.remove(&parent.number)
            {
                return self.remove_upwards(parent, output);
            }
            return Ok(());
        }
        for link in links {
            if self.plan.occupant(link.parent, &link.name).is_none() {
                continue;
            }
            let parent = self.old_directory(link.parent);
            let path = self.path_in(parent, &link.name)?;
            output.command(&Command::Unlink { path: &path })?;
            self.vacate(parent, &link.name, output)?;
        }
        Ok(())
    }

    /// Moves a directory that is to go, but is not empty yet, out of the way.
    fn step_aside(&mut self, directory: Directory, output: &mut Output<'_>) -> Result<()> {
        if self.displaced.contains_key(&directory) {
            return Ok(());
        }
        let Some((parent, name)) = self.place(directory)? else {
            return Ok(());
        };
        let occupant = Occupant {
            inode: directory.number,
            directory: true,
            gone: directory.gone,
        };
        self.displace_directory(parent, &name, occupant, output)
    }

    /// Removes a directory that became empty, and those above it that this empties.
    fn remove_upwards(&mut self, mut directory: Directory, output: &mut Output<'_>) -> Result<()> {
        while let Some((parent, Some(true))) = self.remove_directory(directory, output)? {
            if !parent.gone || !self.doomed.remove(&parent.number) {
                break;
            }
            directory = parent;
        }
        Ok(())
    }

    /// Makes sure that the receiver has the directory that is to hold a name.
    fn ensure_parent(&mut self, link: &Link, output: &mut Output<'_>) -> Result<()> {
        if self.exists(link.parent) {
            return Ok(());
        }
        let number = link.parent;
        let Some(item) = self.new.inode(number)? else {
            return Err(self.new.names_error(number, NamesProblem::NoParent));
        };
        if !crate::send::plan::is_directory(item.mode) {
            return Err(self.new.names_error(number, NamesProblem::NoParent));
        }
        // As in the kernel, under a short name of its own: its turn brings it to its place.
        let name = self.free_name(number, item.generation)?;
        self.displaced.insert(Directory::new(number), Arc::clone(&name));
        self.times.touch(InodeNumber::ROOT_DIRECTORY);
        self.ahead.insert(number);
        output.command(&Command::Mkdir {
            path: &name,
            inode: Some(number),
        })
    }

    /// The turn of a directory that is new.
    pub(crate) fn create_directory(
        &mut self,
        inode: &Fresh<'_>,
        target: &Link,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let number = inode.number;
        self.created_to = number;
        if self.ahead.remove(&number) {
            return self.settle(number, output);
        }
        self.ensure_parent(target, output)?;
        self.make_way(target, output)?;
        self.make(inode, true, target, output, |path, output| {
            let inode = Some(number);
            output.command(&Command::Mkdir { path, inode })
        })
    }

    /// Makes a new inode at its place. Where the directory would pass attributes on to it, it is made in the root
    /// and moved, as the kernel's send does with everything.
    fn make(
        &mut self,
        inode: &Fresh<'_>,
        is_directory: bool,
        target: &Link,
        output: &mut Output<'_>,
        make: impl FnOnce(&[u8], &mut Output<'_>) -> Result<()>,
    ) -> Result<()> {
        let path = self.new_path(target)?;
        self.touch(Directory::new(target.parent));
        let spoils = self
            .heirs
            .spoils(target.parent, is_directory, inode.xattrs, self.new, self.old)?;
        if !spoils {
            return make(&path, output);
        }
        let name = self.free_name(inode.number, inode.generation)?;
        self.times.touch(InodeNumber::ROOT_DIRECTORY);
        make(&name, output)?;
        output.command(&Command::Rename {
            from: &name,
            to: &path,
        })
    }

    /// The turn of a directory whose name or parent changed.
    pub(crate) fn move_directory(&mut self, number: InodeNumber, output: &mut Output<'_>) -> Result<()> {
        if self.plan.is_moving(number) {
            self.settle(number, output)?;
        }
        Ok(())
    }

    /// Brings a directory to its new place; before it, those that stand between.
    fn settle(&mut self, number: InodeNumber, output: &mut Output<'_>) -> Result<()> {
        let mut waiting = vec![number];
        while let Some(&next) = waiting.last() {
            let target = self.new.first_link(next)?;
            self.ensure_parent(&target, output)?;
            if let Some(blocker) = self.blocker(next, target.parent)? {
                if waiting.contains(&blocker) {
                    return Err(self.new.names_error(next, NamesProblem::Loop));
                }
                waiting.push(blocker);
                continue;
            }
            self.make_way(&target, output)?;
            self.rename_directory(next, &target, output)?;
            waiting.pop();
        }
        Ok(())
    }

    fn rename_directory(
        &mut self,
        number: InodeNumber,
        target: &Link,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let directory = Directory::new(number);
        let from = self.directory_path(directory)?;
        let to = self.new_path(target)?;
        let place = self.place(directory)?;
        output.command(&Command::Rename { from: &from, to: &to })?;
        let displaced = self.displaced.remove(&directory).is_some();
        self.plan.moved(number);
        self.links.insert(directory, target.clone());
        self.paths.clear();
        self.touch(Directory::new(target.parent));
        match place {
            Some((parent, name)) if !displaced => self.vacate(parent, &name, output),
            _ => {
                self.times.touch(InodeNumber::ROOT_DIRECTORY);
                Ok(())
            }
        }
    }

    /// A directory between `parent` and `directory`, which is above it now, that has yet to move away.
    fn blocker(&mut self, directory: InodeNumber, parent: InodeNumber) -> Result<Option<InodeNumber>> {
        let mut current = Directory::new(parent);
        let mut unsettled = None;
        let mut steps = 0_usize;
        loop {
            if current == Directory::new(directory) {
                return unsettled
                    .map(Some)
                    .ok_or_else(|| self.new.names_error(directory, NamesProblem::Loop));
            }
            if unsettled.is_none() && !current.gone && self.plan.is_moving(current.number) {
                unsettled = Some(current.number);
            }
            match self.place(current)? {
                Some((above, _)) => current = above,
                None => return Ok(None),
            }
            steps = steps.saturating_add(1);
            if steps > DEPTH_MAX {
                return Err(self.new.names_error(directory, NamesProblem::Loop));
            }
        }
    }

    /// The turn of a new inode that is no directory: `make` writes the command for its first name, the others are
    /// links. Returns its path.
    pub(crate) fn create_file(
        &mut self,
        inode: &Fresh<'_>,
        links: &[Link],
        output: &mut Output<'_>,
        make: impl FnOnce(&[u8], &mut Output<'_>) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let number = inode.number;
        self.created_to = number;
        let mut make = Some(make);
        let mut first = None;
        for link in links {
            self.ensure_parent(link, output)?;
            self.make_way(link, output)?;
            match make.take() {
                Some(make) => {
                    self.make(inode, false, link, output, make)?;
                    first = Some(link);
                }
                None => {
                    let path = self.new_path(link)?;
                    self.link(first, &path, output)?;
                }
            }
            self.touch(Directory::new(link.parent));
        }
        match first {
            Some(link) => self.new_path(link),
            None => Err(self.new.names_error(number, NamesProblem::None)),
        }
    }

    fn link(&mut self, existing: Option<&Link>, path: &[u8], output: &mut Output<'_>) -> Result<()> {
        let Some(existing) = existing else { return Ok(()) };
        let target = self.new_path(existing)?;
        output.command(&Command::Link {
            path,
            target: &target,
        })
    }

    /// The turn of a file of both snapshots whose names differ.
    pub(crate) fn rename_file(
        &mut self,
        number: InodeNumber,
        removed: &[Link],
        added: &[Link],
        output: &mut Output<'_>,
    ) -> Result<()> {
        // A name that the file has all along, or has got by now.
        let mut settled: Option<Link> = None;
        for link in added {
            self.ensure_parent(link, output)?;
            self.make_way(link, output)?;
            if let Some(name) = self.displaced_files.remove(&number) {
                let to = self.new_path(link)?;
                output.command(&Command::Rename { from: &name, to: &to })?;
                self.times.touch(InodeNumber::ROOT_DIRECTORY);
            } else if let Some(old) = self.held_name(removed) {
                let parent = self.old_directory(old.parent);
                let from = self.path_in(parent, &old.name)?;
                let to = self.new_path(link)?;
                output.command(&Command::Rename { from: &from, to: &to })?;
                self.vacate(parent, &old.name, output)?;
            } else {
                let existing = match &settled {
                    Some(link) => link.clone(),
                    None => self.kept_name(number, added)?,
                };
                let path = self.new_path(link)?;
                self.link(Some(&existing), &path, output)?;
            }
            self.touch(Directory::new(link.parent));
            settled = Some(link.clone());
        }
        while let Some(old) = self.held_name(removed) {
            let parent = self.old_directory(old.parent);
            let path = self.path_in(parent, &old.name)?;
            output.command(&Command::Unlink { path: &path })?;
            self.vacate(parent, &old.name, output)?;
        }
        if let Some(name) = self.displaced_files.remove(&number) {
            output.command(&Command::Unlink { path: &name })?;
            self.times.touch(InodeNumber::ROOT_DIRECTORY);
        }
        Ok(())
    }

    /// The first of the names that go away which is still there.
    fn held_name(&self, removed: &[Link]) -> Option<Link> {
        removed
            .iter()
            .find(|link| self.plan.occupant(link.parent, &link.name).is_some())
            .cloned()
    }

    /// A name that both snapshots have.
    fn kept_name(&self, number: InodeNumber, added: &[Link]) -> Result<Link> {
        self.new
            .links(number)?
            .into_iter()
            .find(|link| !added.contains(link))
            .ok_or_else(|| self.new.names_error(number, NamesProblem::None))
    }
}

/// Appends a name to a path.
fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
