//! Freeing names for their new owners: the inode with such a name is orphanized (renamed out of the
//! way until its own turn) or removed. A freed name may also allow the removal of a directory.

use crate::command::Command;
use crate::send::error::Result;
use crate::send::names::{Directory, Names};
use crate::send::output::Output;
use crate::send::plan::Occupant;
use crate::send::snapshot::Link;
use buttress_format::{Generation, InodeNumber};
use std::sync::Arc;

impl Names<'_> {
    /// Returns the inode that still has a name that belongs to another inode.
    pub(super) fn occupant(&self, link: &Link) -> Option<Occupant> {
        if self.old.is_none() || self.plan.is_created(link.parent) {
            return None;
        }
        self.plan.occupant(link.parent, &link.name)
    }

    /// Frees a name for its new owner.
    pub(super) fn orphanize(&mut self, link: &Link, output: &mut Output<'_>) -> Result<()> {
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

    pub(super) fn displace_directory(
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
            // At its own turn, the directory must need no further work.
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

    pub(super) fn old_generation(&self, inode: InodeNumber) -> Result<Generation> {
        let item = self.old.map_or(Ok(None), |old| old.inode(inode))?;
        Ok(item.map_or(Generation::MIN, |item| item.generation))
    }

    /// Marks a name of the parent snapshot as removed, and removes directories that became empty.
    pub(super) fn vacate(&mut self, parent: Directory, name: &[u8], output: &mut Output<'_>) -> Result<()> {
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

    /// Removes an empty directory. Returns the directory's parent at its old place, and whether
    /// this name was the last one to be removed from that parent.
    pub(super) fn remove_directory(
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
}
