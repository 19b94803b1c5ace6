//! A bounded cache of directory links.

use crate::send::error::Result;
use crate::send::names::Directory;
use crate::send::snapshot::{Link, Snapshot};
use std::collections::HashMap;

/// Largest number of cached links; above it the cache starts empty again.
const LINKS_MAX: usize = 1 << 16;

/// Cached links of directories: those of the parent snapshot until a directory moves, then those of
/// the new one.
#[derive(Debug, Default)]
pub(crate) struct LinkCache {
    links: HashMap<Directory, Link>,
}

impl LinkCache {
    pub(crate) fn get(&self, directory: Directory) -> Option<Link> {
        self.links.get(&directory).cloned()
    }

    pub(crate) fn insert(&mut self, directory: Directory, link: Link) {
        if self.links.len() >= LINKS_MAX {
            self.links.clear();
        }
        self.links.insert(directory, link);
    }

    /// Returns the name of a directory in a snapshot, from the cache if possible.
    pub(crate) fn look_up(&mut self, snapshot: &Snapshot, directory: Directory) -> Result<Link> {
        let link = snapshot.first_link(directory.number)?;
        self.insert(directory, link.clone());
        Ok(link)
    }
}
