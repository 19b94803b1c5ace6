//! Inodes that are new or stay: creation, moves, links, renames.

use crate::command::Command;
use crate::send::error::{NamesProblem, Result};
use crate::send::names::{DEPTH_MAX, Directory, Fresh, Names};
use crate::send::output::Output;
use crate::send::snapshot::Link;
use buttress_format::InodeNumber;
use std::sync::Arc;

impl Names<'_> {
    /// Ensures that the receiver has the parent directory of a name.
    pub(super) fn ensure_parent(&mut self, link: &Link, output: &mut Output<'_>) -> Result<()> {
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
        // As in the kernel, the directory gets a temporary short name; the send moves it to its
        // final place at the directory's own turn.
        let name = self.free_name(number, item.generation)?;
        self.displaced.insert(Directory::new(number), Arc::clone(&name));
        self.times.touch(InodeNumber::ROOT_DIRECTORY);
        self.ahead.insert(number);
        output.command(&Command::Mkdir {
            path: &name,
            inode: Some(number),
        })
    }

    /// Handles the turn of a new directory.
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
        self.orphanize(target, output)?;
        self.make(inode, true, target, output, |path, output| {
            let inode = Some(number);
            output.command(&Command::Mkdir { path, inode })
        })
    }

    /// Creates a new inode at its place. If the target directory would pass attributes on to the
    /// inode, the send creates the inode in the root and moves it. The kernel's send does this with
    /// every inode.
    pub(super) fn make(
        &mut self,
        inode: &Fresh<'_>,
        is_directory: bool,
        target: &Link,
        output: &mut Output<'_>,
        make: impl FnOnce(&[u8], &mut Output<'_>) -> Result<()>,
    ) -> Result<()> {
        let path = self.new_path(target)?;
        self.touch(Directory::new(target.parent));
        let would_inherit =
            self.inherited
                .would_inherit(target.parent, is_directory, inode.xattrs, self.new, self.old)?;
        if !would_inherit {
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

    /// Handles the turn of a directory with a new name or parent.
    pub(crate) fn move_directory(&mut self, number: InodeNumber, output: &mut Output<'_>) -> Result<()> {
        if self.plan.is_moving(number) {
            self.settle(number, output)?;
        }
        Ok(())
    }

    /// Moves a directory to its new place, after moving the directories that occupy its new name or
    /// must come first.
    pub(super) fn settle(&mut self, number: InodeNumber, output: &mut Output<'_>) -> Result<()> {
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
            self.orphanize(&target, output)?;
            self.rename_directory(next, &target, output)?;
            waiting.pop();
        }
        Ok(())
    }

    pub(super) fn rename_directory(
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

    /// Returns a directory between `parent` and its ancestor `directory` that must move away first.
    pub(super) fn blocker(
        &mut self,
        directory: InodeNumber,
        parent: InodeNumber,
    ) -> Result<Option<InodeNumber>> {
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

    /// Handles the turn of a new inode other than a directory: `make` sends the command for its
    /// first name, links add the other names. Returns the path of the new inode.
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
            self.orphanize(link, output)?;
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

    pub(super) fn link(
        &mut self,
        existing: Option<&Link>,
        path: &[u8],
        output: &mut Output<'_>,
    ) -> Result<()> {
        let Some(existing) = existing else { return Ok(()) };
        let target = self.new_path(existing)?;
        output.command(&Command::Link {
            path,
            target: &target,
        })
    }

    /// Handles the turn of a file of both snapshots whose names differ.
    pub(crate) fn rename_file(
        &mut self,
        number: InodeNumber,
        removed: &[Link],
        added: &[Link],
        output: &mut Output<'_>,
    ) -> Result<()> {
        // A name of the file that it keeps, or already has.
        let mut settled: Option<Link> = None;
        for link in added {
            self.ensure_parent(link, output)?;
            self.orphanize(link, output)?;
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

    /// Returns the first of the removed names that the receiver still has.
    pub(super) fn held_name(&self, removed: &[Link]) -> Option<Link> {
        removed
            .iter()
            .find(|link| self.plan.occupant(link.parent, &link.name).is_some())
            .cloned()
    }

    /// Returns a name that both snapshots have.
    pub(super) fn kept_name(&self, number: InodeNumber, added: &[Link]) -> Result<Link> {
        self.new
            .links(number)?
            .into_iter()
            .find(|link| !added.contains(link))
            .ok_or_else(|| self.new.names_error(number, NamesProblem::None))
    }
}
