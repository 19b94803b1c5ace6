//! Readahead for changes: a caller that knows which inodes it will change reads their blocks at
//! once, side by side. Without readahead, each change would read its blocks one after another.
//!
//! Readahead for changes is a hint, so callers may ignore its errors. The change itself returns
//! errors of unreadable or missing blocks. The cache keeps read-ahead blocks like any others, so
//! callers should read ahead only for changes that follow soon.

use crate::areas::LiveReads;
use buttress_engine::fault_in::FaultIn;
use buttress_format::{DirItem, FileExtent, FileOffset, InodeItem, Key, TreeId};
use buttress_fs::directory::DirEntry;
use buttress_fs::error::Result;
use buttress_fs::location::Location;

impl LiveReads<'_> {
    /// Looks up names of one subvolume, and faults in the blocks that changes of the named inodes
    /// will need. Returns the entries found, in the order of the names.
    ///
    /// # Errors
    /// Fails as [`lookup`](Self::lookup) does.
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
        self.fault_in_for_reads(subvolume.tree(), &keys)?;
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
        self.filesystem.fault_in_places(subvolume.tree(), &inodes)?;
        Ok(entries)
    }

    /// Faults in the blocks that lookups of these keys of a tree will need. The keys must be in
    /// order.
    fn fault_in_for_reads(&self, id: TreeId, keys: &[Key]) -> Result<()> {
        let tree = self.tree(id)?;
        let mut reads = FaultIn::default();
        loop {
            let missing = reads.missing_for(|| Ok(tree.missing_along(keys)?))?;
            if missing.is_empty() {
                return Ok(());
            }
            reads.read(self.filesystem, missing);
        }
    }
}
