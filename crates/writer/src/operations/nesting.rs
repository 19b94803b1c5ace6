//! Nesting of directories: a directory cannot be moved below itself.

use super::Operation;
use super::create::beside;
use buttress_format::{InodeNumber, InodeRefs, ItemType, Key, RootRef, SubvolumeId, TreeId};
use buttress_fs::error::{Corruption, Result};
use buttress_fs::location::Location;

/// The most directories above a directory that is moved.
const PARENTS_LIMIT: usize = 65_536;

impl Operation<'_> {
    /// Returns whether `directory` equals `above` or is below it.
    pub(super) fn lies_below(&mut self, directory: Location, above: Location) -> Result<bool> {
        let mut current = directory;
        for _ in 0..PARENTS_LIMIT {
            if current == above {
                return Ok(true);
            }
            match self.directory_above(current)? {
                Some(next) => current = next,
                None => return Ok(false),
            }
        }
        Err(Corruption::ParentLoop {
            location: directory,
            limit: PARENTS_LIMIT,
        }
        .into())
    }

    /// Returns the parent of a directory; `None` at the top level.
    fn directory_above(&mut self, directory: Location) -> Result<Option<Location>> {
        if directory.is_subvolume_root() {
            let tree = directory.subvolume.tree().object_id();
            let first = Key::new(tree, ItemType::ROOT_BACKREF, 0);
            let Some(item) = self.lookups().at_or_after(TreeId::ROOT, &first)? else {
                return Ok(None);
            };
            let key = item.key();
            if key.objectid != tree || key.item_type != ItemType::ROOT_BACKREF {
                return Ok(None);
            }
            let place = RootRef::parse(&key, item.data()).map_err(|error| Corruption::Item {
                tree: TreeId::ROOT,
                error,
            })?;
            let parent = SubvolumeId::new(key.offset);
            return Ok(Some(Location::new(parent, place.directory)));
        }
        let first = InodeRefs::key(directory.inode, InodeNumber::MIN);
        let found = self.lookups().at_or_after(directory.subvolume.tree(), &first)?;
        let key = found.map(|item| item.key());
        Ok(key
            .filter(|key| key.objectid == first.objectid && key.item_type == ItemType::INODE_REF)
            .map(|key| beside(directory, InodeNumber::new(key.offset))))
    }
}
