//! Removed names, and the inodes that must be logged with each removal.
//!
//! If a replay removes a name of an inode that still exists, the log also has the inode's current
//! names. The log also has the inode that now has the removed name. A deleted inode loses all its
//! names in a replay. For a deleted directory, a log must likewise contain the inodes that lost
//! entries in it.

use super::collecting::{Collector, Extent, Stop, Walk};
use super::statistics::CommitCause;
use buttress_engine::entry::Target;
use buttress_engine::removed_names::RemovedName;
use buttress_format::InodeNumber;

impl Collector<'_, '_> {
    /// Handles a removed name that the subvolume's log may contain.
    pub(super) fn follow_removal(&mut self, removed: &RemovedName) -> Walk {
        if self.log.has(removed.inode) {
            match self.living(removed.inode)? {
                Some(_) => self.want(removed.inode, Extent::Existence),
                None => {
                    self.batch.removed.push(removed.inode);
                    // If the last commit has the name, the inode's committed state is older than
                    // the synced state.
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

    /// Adds the inode that now has a removed name: readers saw both changes together, or neither.
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

    /// Handles a name of the last commit that a replay will remove: if the name's inode still
    /// exists, the log must have another name of it.
    pub(super) fn let_go(&mut self, removed: &RemovedName) -> Walk {
        if self.living(removed.inode)?.is_some() {
            self.want(removed.inode, Extent::Existence);
            return Ok(());
        }
        if !self.gone.insert(removed.inode) {
            return Ok(());
        }
        // A replay also removes the inode's other names, since the inode never had only some of
        // them.
        let tree = self.tree();
        let names = self.operation.lookups().names().of(tree);
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
        // The removal of a directory also affects all entries of this directory.
        for held in self.names_of_directory(removed.inode, 0) {
            if held.is_committed {
                self.let_go(&held)?;
            }
        }
        Ok(())
    }

    pub(super) fn names_of_directory(&mut self, directory: InodeNumber, since: usize) -> Vec<RemovedName> {
        let tree = self.tree();
        let names = self.operation.lookups().names().of(tree);
        names.map_or_else(Vec::new, |names| {
            names.of_directory(directory, since).cloned().collect()
        })
    }

    /// Records that a log replay must remove a name that the last commit has.
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
