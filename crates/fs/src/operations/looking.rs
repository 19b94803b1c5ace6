//! Looking at single names and inodes of the running transaction, without a view.
//!
//! A view holds everything as it is, which makes the next edits copy what they touch. A caller that looks and changes by
//! turns is better off with these: they take the edit lock for the moment.

use super::entries::Target;
use crate::directory::{DirEntry, is_valid_name};
use crate::error::{Error, Result};
use crate::inode::Metadata;
use crate::location::Location;
use crate::transaction::WritableFilesystem;
use buttress_format::{ByteCount, FileKind};
use std::path::PathBuf;

impl WritableFilesystem {
    /// The entry `name` of a directory, or `None`; as [`Filesystem::lookup`](crate::Filesystem::lookup).
    ///
    /// # Errors
    /// [`Error::NotADirectory`], [`Error::InodeNotFound`], or that the tree cannot be read.
    pub fn lookup(&self, directory: Location, name: &[u8]) -> Result<Option<DirEntry>> {
        if directory.placeholder().is_some() || !is_valid_name(name) {
            return Ok(None);
        }
        self.look(|operation| {
            if operation.inode(directory)?.kind() != FileKind::Directory {
                return Err(Error::NotADirectory {
                    path: PathBuf::from(directory.to_string()),
                });
            }
            let Some(entry) = operation.find_entry(directory, name)? else {
                return Ok(None);
            };
            let target = match entry.target {
                Target::Subvolume(id) if operation.subvolume_index(directory, name, id)?.is_none() => {
                    Location::placeholder_in(directory)
                }
                target => target.location(directory),
            };
            Ok(Some(DirEntry {
                name: name.to_vec(),
                kind: entry.kind,
                index: 0,
                target,
            }))
        })
    }

    /// The inode as `stat(2)` shows it; as [`Filesystem::metadata`](crate::Filesystem::metadata). The size includes content
    /// that waits; times and allocated bytes follow when it is written back.
    ///
    /// # Errors
    /// [`Error::InodeNotFound`], [`Error::SubvolumeNotFound`], or that the tree cannot be read.
    pub fn metadata(&self, location: Location) -> Result<Metadata> {
        if location.placeholder().is_some() {
            return self.view().metadata(location);
        }
        let sector_bytes = self.forest().block_format().sector_bytes;
        let mut item = self.look(|operation| operation.inode(location))?;
        if item.kind() == FileKind::Regular {
            item.size = ByteCount::new(self.size_of(location)?);
        }
        Ok(Metadata::from_item(location, &item, sector_bytes))
    }
}
