//! Names that went, and what must be logged with that.
//!
//! What loses a name by replaying, and lives, is in the log with where it is now; what has the name now comes with it. What does
//! not live loses all its names. Of a directory that is gone that holds for all that was in it.

use super::collecting::{Collector, Extent, Stop, Walk};
use super::statistics::CommitCause;
use buttress_engine::entry::Target;
use buttress_engine::removed_names::RemovedName;
use buttress_format::InodeNumber;

impl Collector<'_, '_> {
    /// A name went that the log may know.
    pub(super) fn follow_removal(&mut self, removed: &RemovedName) -> Walk {
        if self.log.has(removed.inode) {
            match self.living(removed.inode)? {
                Some(_) => self.want(removed.inode, Extent::Existence),
                None => {
                    self.batch.removed.push(removed.inode);
                    // What the last commit has of it is older than what was synced.
                    if removed.is_committed {
                        self.take_back(removed)?;
                    }
                    self.let_go(removed)?;
                }
            }
            self.want_successor(removed)?;
        }
        if self.log.has(removed.directory) && self.living(removed.directory)?.is_some() {
            self.want(removed.directory, Extent::Existence);
            self.batch_of(removed.directory).gone.push(removed.index);
            self.want_successor(removed)?;
        }
        Ok(())
    }

    /// A name is taken away. Whatever has it now came with that: the two are seen together, or neither.
    fn want_successor(&mut self, removed: &RemovedName) -> Walk {
        if self.living(removed.directory)?.is_none() || buttress_faults::on("log-forgets-successor") {
            return Ok(());
        }
        let directory = self.at(removed.directory);
        match self
            .operation
            .find_entry(directory, &removed.name)?
            .map(|entry| entry.target)
        {
            None => Ok(()),
            Some(Target::Inode(inode)) => {
                self.want(inode, Extent::Existence);
                Ok(())
            }
            Some(Target::Subvolume(_)) => Err(Stop::Commit(CommitCause::SubvolumeMoved)),
        }
    }

    /// Replaying is going to take away a name that the last commit has: what it led to must be somewhere else, if it lives.
    pub(super) fn let_go(&mut self, removed: &RemovedName) -> Walk {
        if self.living(removed.inode)?.is_some() {
            self.want(removed.inode, Extent::Existence);
            return Ok(());
        }
        if !self.gone.insert(removed.inode) {
            return Ok(());
        }
        // It is gone under its other names, too: with some of them it never was.
        let tree = self.tree();
        let names = self.operation.look().names().of(tree);
        let others: Vec<RemovedName> = names.map_or_else(Vec::new, |names| {
            let others = names.of_inode(removed.inode);
            others
                .filter(|other| other.is_committed && *other != removed)
                .cloned()
                .collect()
        });
        for other in others {
            self.take_back(&other)?;
        }
        if !removed.is_directory {
            return Ok(());
        }
        // It goes with all that it held.
        for held in self.names_of_directory(removed.inode, 0) {
            if held.is_committed {
                self.let_go(&held)?;
            }
        }
        Ok(())
    }

    pub(super) fn names_of_directory(&mut self, directory: InodeNumber, since: usize) -> Vec<RemovedName> {
        let tree = self.tree();
        let names = self.operation.look().names().of(tree);
        names.map_or_else(Vec::new, |names| {
            names.of_directory(directory, since).cloned().collect()
        })
    }

    /// The last commit has a name that replaying is to take away.
    pub(super) fn take_back(&mut self, lost: &RemovedName) -> Walk {
        if buttress_faults::on("log-keeps-old-names") {
            return Ok(());
        }
        if self.living(lost.directory)?.is_none() {
            return Err(Stop::Commit(CommitCause::DirectoryGone));
        }
        if !self.log.has(lost.directory) {
            self.want(lost.directory, Extent::Existence);
        }
        self.batch_of(lost.directory)
            .ranges
            .push((lost.index, lost.index));
        self.want_successor(lost)
    }
}
