//! Files that a command creates for a volume, and removes unless the volume was completed.
//!
//! A file that remains after a failure would make the next attempt fail, or look like a volume.
//! Invariant: only files that this command created are removed.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::context::Context;
use crate::exit::Advice;
use crate::globals::Offset;

/// Newly created image files, which are removed unless the volume was created.
#[derive(Debug, Default)]
pub struct NewFiles(Vec<PathBuf>);

impl NewFiles {
    /// Creates an empty file.
    pub fn create(&mut self, image: &Path) -> Result<File> {
        let file = File::create_new(image).with_context(|| format!("making {}", image.display()))?;
        self.0.push(image.to_owned());
        Ok(file)
    }

    /// Creates a sparse file of this size.
    pub fn make(&mut self, image: &Path, bytes: u64) -> Result<()> {
        let sized = self.create(image)?.set_len(bytes);
        sized
            .with_context(|| format!("making {}", image.display()))
            .with_context(|| {
                Advice::new(
                    "the host's file system may not support files of this size; choose a smaller size with --size",
                )
            })
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Returns the start of the volume in an image whose length may change. Returns `None` if other
    /// content may follow the volume: in an existing image with `--offset`.
    pub fn volume_start(&self, context: &Context, image: &Path) -> Option<u64> {
        match context.globals().offset {
            None => Some(0),
            Some(Offset::Bytes(start)) if self.0.iter().any(|new| new == image) => Some(start),
            Some(Offset::Bytes(_) | Offset::Partition(_)) => None,
        }
    }

    /// Keeps the files.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for image in &self.0 {
            // The new image file may already be deleted.
            let _ = std::fs::remove_file(image);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_created_files_of_a_failure_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("old"), "content").unwrap();
        let mut new = NewFiles::default();
        new.create(&path("empty")).unwrap();
        new.make(&path("sized"), 1 << 20).unwrap();
        new.create(&path("old")).unwrap_err();
        drop(new);
        assert!(!path("empty").exists() && !path("sized").exists());
        assert_eq!(std::fs::read(path("old")).unwrap(), b"content");
        let mut new = NewFiles::default();
        new.create(&path("kept")).unwrap();
        new.keep();
        assert!(path("kept").exists());
    }
}
