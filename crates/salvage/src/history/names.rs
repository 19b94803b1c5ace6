//! The paths of inodes in a state.
//!
//! If a directory above an inode cannot be read in the state, the newest state counts, and then a name
//! with the number of the directory. A path tells the place of a version, and is no part of the
//! verdict on its content.

use crate::view::View;
use buttress_format::{InodeNumber, SubvolumeId};
use buttress_fs::{InodeRecord, Location};
use std::collections::HashMap;
use std::sync::Arc;

/// The largest number of remembered directories of one state.
const DIRECTORIES_MAX: usize = 1 << 18;

/// The paths of one state.
pub(super) struct Names<'a> {
    pub(super) view: &'a View,
    newest: Option<&'a View>,
    directories: HashMap<Location, Arc<[u8]>>,
}

impl<'a> Names<'a> {
    pub(super) fn new(view: &'a View, newest: Option<&'a View>) -> Self {
        Self {
            view,
            newest,
            directories: HashMap::new(),
        }
    }

    /// Returns the views in the order in which names count.
    fn views(&self) -> impl Iterator<Item = &'a View> + use<'a> {
        core::iter::once(self.view).chain(self.newest)
    }

    /// Returns the path of a subvolume from the top level.
    pub(super) fn subvolume(&self, id: SubvolumeId) -> Vec<u8> {
        let mut known = self
            .views()
            .filter_map(|view| view.filesystem.subvolume_path(id).ok());
        known
            .next()
            .unwrap_or_else(|| format!("subvolume-{id}").into_bytes())
    }

    /// Returns the paths of an inode from the top level, below the path of its subvolume.
    pub(super) fn paths(&mut self, above: &[u8], record: &InodeRecord) -> Vec<Vec<u8>> {
        let subvolume = record.metadata.location.subvolume;
        let links = record.links.iter();
        let paths = links.map(|link| {
            let directory = self.directory(Location::new(subvolume, link.directory));
            join(&join(above, &directory), &link.name)
        });
        paths.collect()
    }

    /// Returns the paths of an inode whose subvolume and directory have a path.
    pub(super) fn known_paths(&self, record: &InodeRecord) -> Vec<Vec<u8>> {
        let filesystem = &self.view.filesystem;
        let subvolume = record.metadata.location.subvolume;
        let Ok(above) = filesystem.subvolume_path(subvolume) else {
            return Vec::new();
        };
        let links = record.links.iter();
        let paths = links.filter_map(|link| {
            let directory = Location::new(subvolume, link.directory);
            let directory = filesystem.directory_path(directory).ok()?;
            Some(join(&join(&above, &directory), &link.name))
        });
        paths.collect()
    }

    fn directory(&mut self, directory: Location) -> Arc<[u8]> {
        if let Some(known) = self.directories.get(&directory) {
            return Arc::clone(known);
        }
        let mut known = self
            .views()
            .filter_map(|view| view.filesystem.directory_path(directory).ok());
        let lost = |inode: InodeNumber| format!("directory-{inode}").into_bytes();
        let path: Arc<[u8]> = known.next().unwrap_or_else(|| lost(directory.inode)).into();
        if self.directories.len() < DIRECTORIES_MAX {
            self.directories.insert(directory, Arc::clone(&path));
        }
        path
    }
}

/// Joins two paths, each of which may be empty.
pub(super) fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    match (above.is_empty(), below.is_empty()) {
        (true, _) => below.to_vec(),
        (_, true) => above.to_vec(),
        _ => [above, b"/", below].concat(),
    }
}
