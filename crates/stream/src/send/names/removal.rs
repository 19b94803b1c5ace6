//! Removed inodes: files lose their names, directories stay until they are empty.

use crate::command::Command;
use crate::send::error::Result;
use crate::send::names::{Directory, Names};
use crate::send::output::Output;
use crate::send::plan::Occupant;
use crate::send::snapshot::Link;
use buttress_format::InodeNumber;

impl Names<'_> {
    /// Handles the turn of a removed inode.
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
                // Move the directory to the root, as in the kernel, so that its remaining entries
                // get shorter paths.
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

    /// Moves a removed directory that is not empty yet to a temporary name in the root.
    pub(super) fn step_aside(&mut self, directory: Directory, output: &mut Output<'_>) -> Result<()> {
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

    /// Removes an empty directory, and its ancestors that become empty and are to be removed.
    pub(super) fn remove_upwards(&mut self, mut directory: Directory, output: &mut Output<'_>) -> Result<()> {
        while let Some((parent, Some(true))) = self.remove_directory(directory, output)? {
            if !parent.gone || !self.doomed.remove(&parent.number) {
                break;
            }
            directory = parent;
        }
        Ok(())
    }
}
