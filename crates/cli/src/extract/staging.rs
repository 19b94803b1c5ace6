//! Restored files: written under a temporary name, and renamed once their content was judged.
//!
//! Invariants: an existing file stays until its replacement is complete. A failed restoration leaves
//! no file, except a temporary one if the process is killed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use rustix::fs::{AtFlags, OFlags, RawMode, RenameFlags};
use rustix::io::Errno;

use super::beneath;
use super::destination::Directory;

/// The largest number of temporary names that are tried for one file.
const NAMES_MAX: u32 = 1000;

/// The number of the next temporary name of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Creates a file with a temporary name, fills it with `write`, and renames it to `name`. Replaces an
/// existing file only with `replaces`.
///
/// # Errors
/// Fails if the file cannot be created or renamed, or as `write` does; the file is then removed.
pub(super) fn stage<T>(
    directory: &Directory,
    name: &OsStr,
    mode: RawMode,
    replaces: bool,
    write: impl FnOnce(&File) -> Result<T>,
) -> Result<T> {
    let (temporary, file) = create(directory, mode)?;
    let made = write(&file).and_then(|made| {
        rename(directory, &temporary, name, replaces)
            .with_context(|| format!("renaming it to '{}'", name.display()))?;
        Ok(made)
    });
    if made.is_err() {
        let _ = rustix::fs::unlinkat(directory.fd(), &temporary, AtFlags::empty());
    }
    made
}

fn create(directory: &Directory, mode: RawMode) -> Result<(OsString, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    for _ in 0..NAMES_MAX {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!(".buttress-{}-{number}", std::process::id()));
        match beneath::open(directory.fd(), &name, flags, mode) {
            Err(Errno::EXIST) => {}
            opened => return Ok((name, File::from(opened?))),
        }
    }
    Err(Errno::EXIST).context("making a temporary file")
}

fn rename(directory: &Directory, from: &OsStr, to: &OsStr, replaces: bool) -> Result<(), Errno> {
    let at = directory.fd();
    if !replaces {
        match rustix::fs::renameat_with(at, from, at, to, RenameFlags::NOREPLACE) {
            // File systems without this flag return these errors.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            renamed => return renamed,
        }
    }
    rustix::fs::renameat(at, from, at, to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn names(folder: &std::path::Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn existing_file_stays_until_its_replacement_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("photo");
        std::fs::write(&path, "good").unwrap();
        let directory = Directory::destination(folder.path()).unwrap();
        let name = OsStr::new("photo");
        let failed = stage(&directory, name, 0o600, true, |mut file| {
            file.write_all(b"bad").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"good");
            anyhow::bail!("not verified")
        });
        let failed: Result<()> = failed;
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"good");
        let kept = stage(&directory, name, 0o600, false, |_| Ok(()));
        assert!(kept.is_err(), "without -o, the file is not replaced");
        assert_eq!(std::fs::read(&path).unwrap(), b"good");
        stage(&directory, name, 0o600, true, |mut file| {
            Ok(file.write_all(b"new")?)
        })
        .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["photo"]);
    }
}
