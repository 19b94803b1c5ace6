//! The paths of inodes in a state.
//!
//! If the name of a directory cannot be read in the state, the newest state counts, and then a name
//! with the number of the directory. A path tells the place of a version, and is no part of the
//! verdict on its content.
//!
//! # Bounds
//!
//! A path has at most [`PATH_LIMIT`] bytes in its subvolume, and begins at a numbered directory if the
//! image has a longer one. The remembered paths have at most [`REMEMBERED_MAX`] bytes.

use crate::error::Result;
use crate::view::View;
use buttress_exact::Exact as _;
use buttress_format::{InodeNumber, SubvolumeId};
use buttress_fs::lookup::PATH_LIMIT;
use buttress_fs::{InodeRecord, Location, Progress};
use std::collections::HashMap;
use std::sync::Arc;

/// The largest number of bytes of remembered paths of one state.
const REMEMBERED_MAX: usize = 64 << 20;

/// The memory of a remembered path beside its bytes.
const OVERHEAD_BYTES: usize = 128;

/// The path of a directory in its subvolume.
#[derive(Clone, Debug)]
struct DirectoryPath {
    path: Arc<[u8]>,
    /// False if the path begins at a numbered directory.
    is_known: bool,
}

/// The paths of one state.
pub(super) struct Names<'a> {
    pub(super) view: &'a View,
    newest: Option<&'a View>,
    directories: HashMap<Location, DirectoryPath>,
    remembered_bytes: usize,
}

impl<'a> Names<'a> {
    pub(super) fn new(view: &'a View, newest: Option<&'a View>) -> Self {
        Self {
            view,
            newest,
            directories: HashMap::new(),
            remembered_bytes: 0,
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
    pub(super) fn paths(
        &mut self,
        above: &[u8],
        record: &InodeRecord,
        progress: &Progress,
    ) -> Result<Vec<Vec<u8>>> {
        let paths = self.links(record, progress)?.into_iter();
        Ok(paths
            .map(|(directory, name)| join(&join(above, &directory.path), &name))
            .collect())
    }

    /// Returns the paths of an inode whose subvolume and directory have a path.
    pub(super) fn known_paths(&mut self, record: &InodeRecord, progress: &Progress) -> Result<Vec<Vec<u8>>> {
        let subvolume = record.metadata.location.subvolume;
        let Ok(above) = self.view.filesystem.subvolume_path(subvolume) else {
            return Ok(Vec::new());
        };
        let known = self.links(record, progress)?.into_iter();
        let known = known.filter(|(directory, _)| directory.is_known);
        Ok(known
            .map(|(directory, name)| join(&join(&above, &directory.path), &name))
            .collect())
    }

    /// Returns the names of an inode with their directories.
    fn links(&mut self, record: &InodeRecord, progress: &Progress) -> Result<Vec<(DirectoryPath, Vec<u8>)>> {
        let subvolume = record.metadata.location.subvolume;
        let links = record.links.iter();
        let links = links.map(|link| {
            let directory = self.directory(Location::new(subvolume, link.directory), progress)?;
            Ok((directory, link.name.to_vec()))
        });
        links.collect()
    }

    fn directory(&mut self, directory: Location, progress: &Progress) -> Result<DirectoryPath> {
        // The directories from the given one upwards, with their names, as far as no path is known.
        let mut steps: Vec<(Location, Vec<u8>)> = Vec::new();
        let (mut current, mut bytes) = (directory, 0_usize);
        let mut reached = loop {
            progress.check()?;
            if let Some(known) = self.directories.get(&current) {
                break known.clone();
            }
            let named = self
                .views()
                .find_map(|view| view.filesystem.directory_name(current).ok());
            let named = named.filter(|_| bytes <= PATH_LIMIT);
            match named {
                Some(Some((parent, name))) => {
                    bytes = bytes.exact_add(name.len()).exact_add(1);
                    steps.push((current, name));
                    current = Location::new(directory.subvolume, parent);
                }
                Some(None) => break self.remember(current, Vec::new(), true),
                None => break self.remember(current, numbered(current.inode), false),
            }
        };
        for (location, name) in steps.into_iter().rev() {
            let path = join(&reached.path, &name);
            reached = match path.len() <= PATH_LIMIT {
                true => self.remember(location, path, reached.is_known),
                false => self.remember(location, numbered(location.inode), false),
            };
        }
        Ok(reached)
    }

    fn remember(&mut self, directory: Location, path: Vec<u8>, is_known: bool) -> DirectoryPath {
        let bytes = path.len().exact_add(OVERHEAD_BYTES);
        let path = DirectoryPath {
            path: path.into(),
            is_known,
        };
        let total = self.remembered_bytes.exact_add(bytes);
        if total <= REMEMBERED_MAX {
            self.remembered_bytes = total;
            self.directories.insert(directory, path.clone());
        }
        path
    }
}

fn numbered(inode: InodeNumber) -> Vec<u8> {
    format!("directory-{inode}").into_bytes()
}

/// Joins two paths, each of which may be empty.
pub(super) fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    match (above.is_empty(), below.is_empty()) {
        (true, _) => below.to_vec(),
        (_, true) => above.to_vec(),
        _ => [above, b"/", below].concat(),
    }
}
