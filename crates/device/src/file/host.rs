//! The file system that provides the space of an image file: its name, and the space reserved on
//! it.
//!
//! A sparse image file can be written only while its file system has space. A loop device over a
//! sparse image file depends on the same free space. This module opens that file by its name and
//! verifies its inode.
//!
//! A reservation is `fallocate(2)`: it allocates the holes of a range and changes no byte. On a
//! file system without this call, nothing is reserved. Some file systems (btrfs, XFS with shared
//! blocks) write each change to a new place. On such file systems, a reserved range that was
//! written once takes new space at its next write.

use buttress_exact::Exact as _;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::system;

/// The major number of loop devices.
const LOOP_MAJOR: u32 = 7;

/// The file system that provides the space of an open file or loop device.
#[derive(Debug)]
pub(super) struct HostSpace {
    /// The file below a loop device; `None` for an image file, which is the file itself.
    below: Option<Below>,
    /// The file system, for messages: "/srv (ext4)".
    name: String,
    is_sparse: bool,
}

/// The file below a loop device.
#[derive(Debug)]
struct Below {
    file: File,
    /// The offset in the file at which the loop device begins.
    start_bytes: u64,
}

impl HostSpace {
    /// Finds the file system that provides the space of `file`. Returns `None` for a block device
    /// that is no loop device, or whose file cannot be opened.
    pub(super) fn of(file: &File, path: &Path, is_block_device: bool) -> Option<Self> {
        let below = match is_block_device {
            true => Some(Below::of(file)?),
            false => None,
        };
        let holder = below.as_ref().map_or(file, |below| &below.file);
        let metadata = holder.metadata().ok()?;
        let path = match &below {
            Some(below) => below.path()?,
            None => std::fs::canonicalize(path).ok()?,
        };
        Some(Self {
            name: file_system_of(metadata.dev(), &path).unwrap_or_else(|| "the host's".to_owned()),
            is_sparse: metadata.blocks().exact_mul(512) < metadata.len(),
            below,
        })
    }

    /// Returns true if a write can fail because the host has no space.
    pub(super) const fn may_run_out(&self) -> bool {
        self.is_sparse
    }

    /// Returns true if this file system provides the space of a file below a loop device.
    pub(super) const fn is_below_device(&self) -> bool {
        self.below.is_some()
    }

    fn holder<'a>(&'a self, file: &'a File) -> &'a File {
        self.below.as_ref().map_or(file, |below| &below.file)
    }

    /// Allocates the holes of a range. Does nothing if the file system cannot.
    pub(super) fn reserve(&self, file: &File, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 || !self.is_sparse {
            return Ok(());
        }
        let start = self.below.as_ref().map_or(0, |below| below.start_bytes);
        let offset = offset.checked_add(start).ok_or(Errno::OVERFLOW)?;
        loop {
            match rustix::fs::fallocate(self.holder(file), FallocateFlags::KEEP_SIZE, offset, length) {
                Err(Errno::INTR) => {}
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(cause) => return Err(cause.into()),
            }
        }
    }

    /// Returns the number of bytes that the file system has free for this process.
    fn free_bytes(&self, file: &File) -> Option<u64> {
        let found = rustix::fs::fstatvfs(self.holder(file)).ok()?;
        Some(found.f_bavail.exact_mul(found.f_frsize))
    }

    /// Returns true if a failed write to a loop device means that the file system below is full.
    /// The driver returns EIO for every failure of the file.
    pub(super) fn is_full_below(&self, file: &File, cause: &io::Error, length: u64) -> bool {
        self.is_below_device()
            && cause.raw_os_error() == Some(libc::EIO)
            && self
                .free_bytes(file)
                .is_some_and(|free| free < length.max(FULL_BYTES))
    }

    /// Describes the file system and its free space, for the message of a write that found no
    /// space.
    pub(super) fn describe(&self, file: &File) -> String {
        let name = &self.name;
        match self.free_bytes(file) {
            Some(free) => format!("the host file system {name} has {free} bytes free"),
            None => format!("the host file system {name}"),
        }
    }
}

/// The free space in bytes below which a file system counts as full.
const FULL_BYTES: u64 = 1 << 20;

impl Below {
    fn of(device: &File) -> Option<Self> {
        let number = device.metadata().ok()?.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        if major != LOOP_MAJOR {
            return None;
        }
        let folder = format!("/sys/dev/block/{major}:{minor}");
        let read = |name: &str| std::fs::read(format!("{folder}/{name}")).ok();
        let number = |bytes: Vec<u8>| String::from_utf8(bytes).ok()?.trim().parse::<u64>().ok();
        // The first sector of a partition of a loop device, counted from the device's start.
        let first_sector = match read("partition") {
            Some(_) => number(read("start")?)?,
            None => 0,
        };
        let mut path = read("loop/backing_file").or_else(|| read("../loop/backing_file"))?;
        while path.last() == Some(&b'\n') {
            path.pop();
        }
        let status = system::loop_status(device)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        let file = File::options().write(true).open(path).ok()?;
        let metadata = file.metadata().ok()?;
        let start_bytes = status.start_bytes.checked_add(first_sector.checked_mul(512)?)?;
        // The file's name may lead to another file by now.
        ((metadata.dev(), metadata.ino()) == (status.device, status.inode))
            .then_some(Self { file, start_bytes })
    }

    fn path(&self) -> Option<PathBuf> {
        use std::os::fd::AsRawFd;
        std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()
    }
}

/// Returns the mount point and the type of the file system with a device number. If the file system
/// has several mounts, chooses the mount that contains `path`.
///
/// Source: the manual page proc_pid_mountinfo(5).
fn file_system_of(device: u64, path: &Path) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let found = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = unescape(fields.nth(4)?);
        let own = line.split(|byte| *byte == b' ').nth(2)?;
        let kind = line
            .split(|byte| *byte == b' ')
            .skip_while(|field| *field != b"-")
            .nth(1)?;
        let kind = String::from_utf8_lossy(kind).into_owned();
        let is_above = path.starts_with(&point);
        // The mount table has no line for the device number that btrfs assigns to each subvolume.
        let is_same = own == number.as_bytes();
        is_above.then_some((is_same, point.as_os_str().as_bytes().len(), point, kind))
    });
    let (_, _, point, kind) = found.max_by_key(|(is_same, length, _, _)| (*is_same, *length))?;
    Some(format!("{} ({kind})", point.display()))
}

/// Decodes the octal escapes of a field of mountinfo.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        let octal = others.split_first_chunk::<3>().filter(|_| *first == b'\\');
        let octal = octal.and_then(|(digits, after)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 8).ok()?, after))
        });
        match octal {
            Some((byte, after)) => {
                bytes.push(byte);
                rest = after;
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Returns true if a write failed because the host has no space.
pub(super) fn is_out_of_space(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_mount_points_are_undone() {
        assert_eq!(unescape(b"/a\\040b\\134c\\04"), PathBuf::from("/a b\\c\\04"));
    }

    #[test]
    fn file_system_of_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(folder.path()).unwrap();
        let name = file_system_of(path.metadata().unwrap().dev(), &path).unwrap();
        assert!(name.starts_with('/') && name.ends_with(')'), "{name}");
    }

    #[test]
    fn reserving_allocates_holes_and_changes_no_byte() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"begin").unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let before = std::fs::read(file.path()).unwrap();
        let host = HostSpace::of(file.as_file(), file.path(), false).unwrap();
        assert!(host.may_run_out());
        host.reserve(file.as_file(), 0, 1 << 20).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), before);
        let after = HostSpace::of(file.as_file(), file.path(), false).unwrap();
        assert!(!after.may_run_out(), "{after:?}");
    }
}
