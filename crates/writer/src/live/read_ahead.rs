//! Reading ahead of changes: who knows which inodes it is going to change next has what that takes read at once, side by side,
//! instead of block after block as each change comes to it.
//!
//! It is a hint. What cannot be read, or is not there, is met by the change itself. The cache keeps what is read as it keeps
//! everything else, so that it should be for no more than is changed soon.

use crate::WritableFilesystem;
use buttress_engine::fault_in::FaultIn;
use buttress_format::{DirItem, FileExtent, FileOffset, InodeItem, Key, TreeId};
use buttress_fs::directory::DirEntry;
use buttress_fs::error::Result;
use buttress_fs::location::Location;

impl WritableFilesystem {
    /// Looks up names of one subvolume, and reads in what changes of the inodes will need that they lead to. Gives the entries
    /// that were found, in the order of the names.
    ///
    /// # Errors
    /// Those of [`lookup`](Self::lookup).
    pub fn read_ahead(&self, names: &[(Location, &[u8])]) -> Result<Vec<Option<DirEntry>>> {
        let Some((first, _)) = names.first() else {
            return Ok(Vec::new());
        };
        let subvolume = first.subvolume;
        let mut keys: Vec<Key> = names
            .iter()
            .filter(|(directory, _)| directory.subvolume == subvolume)
            .map(|(directory, name)| DirItem::key(directory.inode, name))
            .collect();
        keys.sort_unstable();
        self.fault_in_to_look(subvolume.tree(), &keys)?;
        let entries: Vec<Option<DirEntry>> = names
            .iter()
            .map(|(directory, name)| self.lookup(*directory, name))
            .collect::<Result<_>>()?;
        let mut inodes: Vec<(Key, Key)> = entries
            .iter()
            .flatten()
            .filter(|entry| entry.target.subvolume == subvolume)
            .map(|entry| {
                let inode = entry.target.inode;
                (InodeItem::key(inode), FileExtent::key(inode, FileOffset::MIN))
            })
            .collect();
        inodes.sort_unstable();
        self.fault_in_places(subvolume.tree(), &inodes)?;
        Ok(entries)
    }

    /// Faults in what look-ups at these keys of a tree will need. They are in order.
    fn fault_in_to_look(&self, id: TreeId, keys: &[Key]) -> Result<()> {
        let tree = self.live_tree(id)?;
        let mut reads = FaultIn::default();
        loop {
            let missing = reads.missing_for(|| Ok(tree.missing_along(keys)?))?;
            if missing.is_empty() {
                return Ok(());
            }
            reads.read(self, missing);
        }
    }
}
