//! Files that a command opens and locks, and passes to the server of a mount.
//!
//! The sandbox of a server refuses to open files. The client of a command that needs a further
//! image or device opens it, and sends the descriptors with its request. Both processes have the
//! same rights: the server accepts requests of its own user and of root only.
//!
//! Invariants:
//! - A received file that no command takes is closed when the command ends.
//! - A server never uses a file of its own mount as a device: its writes would wait for itself.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::LockedFile;
use parking_lot::Mutex;

use super::places::Below;
use crate::identity::Identity;
use crate::sources::{Role, Sources};

/// Largest number of files in a request. Linux passes up to 253 descriptors at once, and a file has
/// up to two.
pub const FILES_MAX: usize = 64;

/// Largest number of descriptors in a request: those of the files, and standard output.
pub const DESCRIPTORS_MAX: usize = 2 * FILES_MAX + 1;

/// A file that a client passes to a server.
#[derive(Debug)]
pub struct Passed {
    /// Name of the file in the request.
    pub name: Name,
    /// The open file.
    pub locked: LockedFile,
}

/// Names of a passed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Argument of the command line.
    pub word: OsString,
    /// Absolute path on the client's machine.
    pub path: PathBuf,
    /// True if the request has a second descriptor of the file, for direct writes.
    pub has_direct: bool,
}

impl Name {
    /// Returns the number of the file's descriptors.
    const fn descriptors(&self) -> usize {
        match self.has_direct {
            true => 2,
            false => 1,
        }
    }
}

impl Passed {
    /// Opens and locks a file for the server of the mount `below`.
    ///
    /// # Errors
    /// The file cannot be opened for writing, another program uses it, or it is a file of the mount
    /// itself.
    pub fn open(argument: &OsStr, below: &Below, sources: &Sources) -> Result<Self> {
        require_elsewhere(argument, below)?;
        Self::of(argument, LockedFile::open(argument)?, sources)
    }

    /// Opens and locks a file as [`open`](Self::open) does. Returns `None` if another program uses the
    /// file, which may be the server itself.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does.
    pub fn open_unless_in_use(argument: &OsStr, below: &Below, sources: &Sources) -> Result<Option<Self>> {
        require_elsewhere(argument, below)?;
        match LockedFile::open(argument) {
            Err(error) if error.kind == ErrorKind::ResourceBusy => Ok(None),
            opened => Self::of(argument, opened?, sources).map(Some),
        }
    }

    fn of(argument: &OsStr, locked: LockedFile, sources: &Sources) -> Result<Self> {
        let path = PathBuf::from(argument);
        let shown = || argument.display();
        sources.add(&path, Role::ChangedVolume)?;
        let path = path.canonicalize();
        let path = path.with_context(|| format!("resolving {}", shown()))?;
        Ok(Self {
            name: Name {
                word: argument.to_owned(),
                path,
                has_direct: locked.direct.is_some(),
            },
            locked,
        })
    }

    /// Returns the descriptors in the order of the request.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let direct = self.locked.direct.as_ref().map(|direct| direct.as_fd());
        std::iter::once(self.locked.file.as_fd()).chain(direct)
    }
}

/// Refuses a file of the mount itself.
fn require_elsewhere(argument: &OsStr, below: &Below) -> Result<()> {
    let identity = Identity::of_path(argument.as_ref());
    match identity.is_some_and(|identity| identity.is_on(&below.device)) {
        true => Err(refused_own(&argument.display().to_string())),
        false => Ok(()),
    }
}

/// Refuses a device that is a file of the mount.
pub fn refused_own(shown: &str) -> anyhow::Error {
    anyhow!("{shown}: the mounted volume contains this file, and cannot be stored in it")
}

/// The files that a server received with a request.
#[derive(Debug, Default)]
pub struct Received(Mutex<Vec<Passed>>);

impl Received {
    /// Pairs the names of a request with its descriptors.
    ///
    /// # Errors
    /// The numbers differ.
    pub fn pair(names: &[Name], descriptors: impl IntoIterator<Item = OwnedFd>) -> Result<Self> {
        let descriptors: Vec<OwnedFd> = descriptors.into_iter().collect();
        let expected: usize = names.iter().map(Name::descriptors).sum();
        if descriptors.len() != expected {
            let found = descriptors.len();
            return Err(anyhow!(
                "the request has another number of descriptors (found {found}, expected {expected})"
            ));
        }
        let mut descriptors = descriptors.into_iter();
        let mut files = Vec::new();
        for name in names {
            let (Some(file), direct) = (
                descriptors.next(),
                name.has_direct.then(|| descriptors.next()).flatten(),
            ) else {
                break;
            };
            let (name, locked) = (name.clone(), LockedFile { file, direct });
            files.push(Passed { name, locked });
        }
        Ok(Self(Mutex::new(files)))
    }

    /// Takes the file of an argument out of the request.
    ///
    /// # Errors
    /// The client did not pass the file.
    pub fn take(&self, argument: &OsStr) -> Result<Passed> {
        let mut files = self.0.lock();
        let at = files.iter().position(|passed| passed.name.word == argument);
        let at = at.with_context(|| {
            format!(
                "{} is in use by another program, or is already a device of the volume",
                argument.display()
            )
        })?;
        Ok(files.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(word: &str, has_direct: bool) -> Name {
        Name {
            word: word.into(),
            path: format!("/{word}").into(),
            has_direct,
        }
    }

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let open = |_| std::fs::File::open("/dev/null").unwrap().into();
        (0..count).map(open).collect()
    }

    #[test]
    fn descriptors_are_paired_with_their_names() {
        let names = [name("a", false), name("b", true)];
        for wrong in [0, 2, 4] {
            assert!(Received::pair(&names, descriptors(wrong)).is_err(), "{wrong}");
        }
        let received = Received::pair(&names, descriptors(3)).unwrap();
        let passed = received.take(OsStr::new("b")).unwrap();
        assert!(passed.locked.direct.is_some());
        assert!(received.take(OsStr::new("b")).is_err(), "each file is taken once");
        assert!(received.take(OsStr::new("a")).unwrap().locked.direct.is_none());
    }
}
