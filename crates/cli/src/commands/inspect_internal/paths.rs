//! Paths of inodes from the top level of the volume.
//!
//! A subvolume without a location (it or its parent is deleted) has no path. If the subvolume has
//! no path, its files are named by its id, `<subvolume 257>/dir/file`. No path of a volume has this
//! form, because every path begins with `/`.

use std::collections::HashMap;

use anyhow::Result;
use buttress::unstable::fs::Filesystem;
use buttress::{Location, SubvolumeId};

/// Finder of paths, with a cache of subvolume paths.
#[derive(Debug)]
pub(crate) struct PathFinder<'a> {
    filesystem: &'a Filesystem,
    subvolumes: HashMap<SubvolumeId, Vec<u8>>,
}

impl<'a> PathFinder<'a> {
    /// Creates a finder for paths in this volume.
    pub(crate) fn new(filesystem: &'a Filesystem) -> Self {
        Self {
            filesystem,
            subvolumes: HashMap::new(),
        }
    }

    /// Returns all paths of an inode, one for each of its names.
    pub(crate) fn paths(&mut self, location: Location) -> Result<Vec<Vec<u8>>> {
        let within = self.filesystem.inode_paths(location)?;
        let subvolume = self.subvolume(location.subvolume);
        Ok(within.iter().map(|path| join(subvolume, path)).collect())
    }

    fn subvolume(&mut self, id: SubvolumeId) -> &[u8] {
        let filesystem = self.filesystem;
        self.subvolumes.entry(id).or_insert_with(|| {
            if id == SubvolumeId::TOP_LEVEL {
                return Vec::new();
            }
            match filesystem.subvolume_path(id) {
                Ok(path) => [b"/", path.strip_prefix(b"/").unwrap_or(&path)].concat(),
                Err(_) => format!("<subvolume {id}>").into_bytes(),
            }
        })
    }
}

/// Joins the path of a subvolume and a path in this subvolume with a slash.
fn join(subvolume: &[u8], path: &[u8]) -> Vec<u8> {
    match (subvolume, path) {
        ([], []) => b"/".to_vec(),
        (subvolume, []) => subvolume.to_vec(),
        (subvolume, path) => [subvolume, b"/", path].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn paths_begin_at_the_top_level() {
        assert_eq!(join(b"", b""), b"/");
        assert_eq!(join(b"", b"a/b"), b"/a/b");
        assert_eq!(join(b"/sub", b""), b"/sub");
        assert_eq!(join(b"/sub", b"a"), b"/sub/a");
    }
}
