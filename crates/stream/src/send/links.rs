//! A bounded memory of where directories are linked.

use crate::send::error::Result;
use crate::send::names::Directory;
use crate::send::snapshot::{Link, Snapshot};
use std::collections::HashMap;

/// How many directories are remembered; above that the memory starts afresh.
const LINKS_MAX: usize = 1 << 16;

/// Where directories are linked: in the parent snapshot until they move, in the new one after that.
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

    /// The name of a directory in a snapshot, remembered.
    pub(crate) fn look_up(&mut self, snapshot: &Snapshot, directory: Directory) -> Result<Link> {
        let link = snapshot.first_link(directory.number)?;
        self.insert(directory, link.clone());
        Ok(link)
    }
}
