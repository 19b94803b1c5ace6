//! Gathered files that are not created yet. The receiver creates them in one operation.
//!
//! Invariants: a gathered file has its whole content and all attributes. Number and content of the
//! files are limited.

use super::new_file::NewFile;
use buttress_exact::Exact as _;
use buttress_fs::Location;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Limits for files that are created together: the number of files, and their content in bytes.
const FILES_MAX: usize = 64;
const FILES_BYTES_MAX: usize = 1 << 20;

/// Gathered files that are not created yet.
#[derive(Debug, Default)]
pub(super) struct NewFiles {
    pub(super) files: Vec<NewFile>,
    /// Hashes of directory and name of each gathered file.
    names: Vec<u64>,
    content_bytes: usize,
}

fn hash(directory: Location, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (directory, name).hash(&mut hasher);
    hasher.finish()
}

impl NewFiles {
    /// Returns whether the files are to be created now.
    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= FILES_MAX || self.content_bytes >= FILES_BYTES_MAX
    }

    /// Adds a file.
    pub(super) fn push(&mut self, file: NewFile) {
        self.content_bytes = self.content_bytes.exact_add(file.content_bytes());
        self.names.push(hash(file.directory, &file.name));
        self.files.push(file);
    }

    /// Returns whether no file is gathered.
    pub(super) const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns whether a gathered file may have this name.
    pub(super) fn may_have(&self, directory: Location, name: &[u8]) -> bool {
        self.names.contains(&hash(directory, name))
    }
}
