//! Access to a name in an open directory, without following any path.
//!
//! Every access to the destination is a single name in an open directory. The system enforces this,
//! too (`openat2` with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_MAGICLINKS`): if
//! another process replaces a directory with a link, the access fails. On systems without `openat2`
//! (kernels before 5.6, some containers), a single name with `O_NOFOLLOW` is equivalent.
//!
//! A file that was created by name is opened ([`Node`]) and checked before it gets an owner or a
//! mode. A file that has replaced the created file under its name gets no owner and no mode.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use buttress::is_valid_name;
use rustix::fs::{FileType, Mode, OFlags, RawMode, ResolveFlags, Stat};
use rustix::io::Errno;

/// True if the system has refused `openat2`.
static WITHOUT_OPENAT2: AtomicBool = AtomicBool::new(false);

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Opens `name` in `directory`, without following a symbolic link.
///
/// # Errors
/// The error of the system; `EINVAL` for an invalid name.
pub(super) fn open(
    directory: impl AsFd,
    name: &OsStr,
    flags: OFlags,
    permissions: RawMode,
) -> Result<OwnedFd, Errno> {
    open_by(&WITHOUT_OPENAT2, directory, name, flags, permissions)
}

fn open_by(
    without: &AtomicBool,
    directory: impl AsFd,
    name: &OsStr,
    flags: OFlags,
    permissions: RawMode,
) -> Result<OwnedFd, Errno> {
    if !is_valid_name(name.as_bytes()) {
        return Err(Errno::INVAL);
    }
    let flags = flags.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let mode = Mode::from_raw_mode(permissions);
    if !without.load(Ordering::Relaxed) {
        match rustix::fs::openat2(&directory, name, flags, mode, RESOLVE) {
            Err(Errno::NOSYS) => without.store(true, Ordering::Relaxed),
            // Seccomp filters of containers that do not know `openat2` return this error. If the
            // error of `openat2` is genuine, the fallback returns it too.
            Err(Errno::PERM) => {}
            other => return other,
        }
    }
    rustix::fs::openat(&directory, name, flags, mode)
}

/// The identity of a file of the host: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// A file that cannot be opened for reading or writing without side effects: a link, a pipe, a
/// socket, a device.
#[derive(Debug)]
pub(super) struct Node {
    fd: OwnedFd,
    stat: Stat,
}

impl Node {
    /// Opens the file with this name in the directory.
    pub(super) fn open(directory: impl AsFd, name: &OsStr) -> Result<Self, Errno> {
        let fd = open(directory, name, OFlags::PATH, 0)?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Self { fd, stat })
    }

    /// Returns whether this is the file that was just created: the right kind, and a single link.
    pub(super) fn is(&self, kind: FileType, device: u64) -> bool {
        let is_device = matches!(kind, FileType::BlockDevice | FileType::CharacterDevice);
        FileType::from_raw_mode(self.stat.st_mode) == kind
            && self.stat.st_nlink == 1
            && (!is_device || self.stat.st_rdev == device)
    }

    pub(super) fn identity(&self) -> Identity {
        Identity::from(&self.stat)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns a path that refers only to this file, for system calls that need one. For a link,
    /// the path refers to the link itself, not to its target.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;

    const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

    #[test]
    fn only_a_name_in_the_directory_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        symlink("/etc", folder.path().join("link")).unwrap();
        let directory = File::open(folder.path()).unwrap();
        for without in [false, true] {
            let without = AtomicBool::new(without);
            let open = |name: &str, flags| open_by(&without, &directory, OsStr::new(name), flags, 0);
            assert!(open("inner", DIRECTORY).is_ok());
            for name in ["link", "..", ".", "", "inner/..", "/etc", "link/passwd", "a\0b"] {
                assert!(open(name, DIRECTORY).is_err(), "{name:?}");
            }
            assert!(open("link", OFlags::RDONLY).is_err());
            let made = open_by(
                &without,
                &directory,
                OsStr::new("link"),
                OFlags::WRONLY | OFlags::CREATE,
                0o600,
            );
            assert!(made.is_err());
        }
    }

    #[test]
    fn a_node_is_what_was_made() {
        let folder = tempfile::tempdir().unwrap();
        symlink("/etc", folder.path().join("link")).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        std::fs::hard_link(folder.path().join("file"), folder.path().join("second")).unwrap();
        let directory = File::open(folder.path()).unwrap();
        let node = |name: &str| Node::open(&directory, OsStr::new(name)).unwrap();
        assert!(node("link").is(FileType::Symlink, 0));
        assert!(!node("link").is(FileType::Fifo, 0));
        assert!(!node("second").is(FileType::RegularFile, 0));
    }
}
