//! The identity of a file or device on this machine, to detect that two names refer to the same
//! bytes.
//!
//! An image can have many names: symbolic and hard links, a bind mount, a loop device over it, a
//! partition of that device. A file or block device is therefore identified as a range of bytes of
//! its backing storage: a file by device and inode number, a disk by its number. A partition is a
//! range of its disk, a loop device a range of its file. Two names refer to the same bytes if their
//! ranges of the same storage overlap. Other stacked devices (device mapper, md) overlap all of
//! their components.
//!
//! Pipes, terminals and other character devices hold no data that could be lost, and have no
//! identity here.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress::{FileKind, kind_of_mode};
use rustix::fs::Stat;

/// Largest depth of stacked devices that is resolved.
const DEPTH_MAX: u32 = 16;

/// Unit of sizes in sysfs, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Storage with its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    /// A file, by its file system's device number and its inode number.
    File(u64, u64),
    /// A block device without known backing storage, by its device number.
    Block(u64),
}

/// A range of bytes of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    thing: Thing,
    start: u64,
    end: u64,
}

impl Range {
    const fn whole(thing: Thing) -> Self {
        Self {
            thing,
            start: 0,
            end: u64::MAX,
        }
    }

    /// Returns a part of the byte range; a length of 0 extends to the range's end.
    fn part(self, start: u64, length: u64) -> Self {
        let start = self.start.saturating_add(start).min(self.end);
        let end = if length == 0 {
            self.end
        } else {
            start.saturating_add(length).min(self.end)
        };
        Self { start, end, ..self }
    }

    fn overlaps(self, other: Self) -> bool {
        self.thing == other.thing && self.start < other.end && other.start < self.end
    }
}

/// Identity of a file or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    own: Range,
    /// Components of a stacked device.
    below: Vec<Range>,
}

impl Identity {
    /// Returns the identity of a path's target; `None` if it does not exist, or is neither a file
    /// nor a block device.
    pub fn of_path(path: &Path) -> Option<Self> {
        Self::of_stat(&rustix::fs::stat(path).ok()?)
    }

    /// Returns the identity of an open descriptor.
    pub fn of_open(descriptor: impl AsFd) -> Option<Self> {
        Self::of_stat(&rustix::fs::fstat(descriptor).ok()?)
    }

    /// Returns the identity of an inode.
    pub fn of_stat(stat: &Stat) -> Option<Self> {
        match kind_of_mode(stat.st_mode) {
            FileKind::Regular => Some(Self::file(stat.st_dev, stat.st_ino)),
            FileKind::BlockDevice => Some(Self::block(stat.st_rdev, DEPTH_MAX)),
            _ => None,
        }
    }

    /// Returns whether a write to one of the two storages changes the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.own.overlaps(other.own)
            || self.below.iter().any(|range| range.overlaps(other.own))
            || other.below.iter().any(|range| range.overlaps(self.own))
    }

    /// Returns whether the bytes are in a file of a file system, or below such a file's loop device.
    /// `device` is the file system's number in the table of mounts.
    pub fn is_on(&self, device: &str) -> bool {
        let is_there = |range: &Range| match range.thing {
            Thing::File(number, _) => {
                let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
                format!("{major}:{minor}") == device
            }
            Thing::Block(_) => false,
        };
        is_there(&self.own) || self.below.iter().any(is_there)
    }

    /// Returns whether both identities refer to the same bytes.
    pub fn is_same(&self, other: &Self) -> bool {
        self.own == other.own
    }

    const fn file(device: u64, inode: u64) -> Self {
        Self {
            own: Range::whole(Thing::File(device, inode)),
            below: Vec::new(),
        }
    }

    fn block(number: u64, depth: u32) -> Self {
        let unknown = Self {
            own: Range::whole(Thing::Block(number)),
            below: Vec::new(),
        };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let directory = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
        let (Ok(directory), Some(depth)) = (directory, depth.checked_sub(1)) else {
            return unknown;
        };
        Self::partition(&directory, depth)
            .or_else(|| Self::loop_device(&directory))
            .unwrap_or_else(|| Self {
                below: Self::stacked_on(&directory, depth),
                ..unknown
            })
    }

    /// Returns the identity of a partition, by its sysfs directory inside its disk's directory.
    fn partition(directory: &Path, depth: u32) -> Option<Self> {
        number(&directory.join("partition"))?;
        let start = number(&directory.join("start"))?.saturating_mul(SECTOR_BYTES);
        let length = number(&directory.join("size"))?.saturating_mul(SECTOR_BYTES);
        let mut disk = Self::block(device_number(directory.parent()?)?, depth);
        disk.own = disk.own.part(start, length.max(1));
        Some(disk)
    }

    /// Returns the identity of a loop device. If the loop device's file was deleted, no other name
    /// can refer to that file.
    fn loop_device(directory: &Path) -> Option<Self> {
        let directory = directory.join("loop");
        let file = fs::read(directory.join("backing_file")).ok()?;
        let file = file.strip_suffix(b"\n").unwrap_or(&file);
        let mut identity = Self::of_path(Path::new(OsStr::from_bytes(file)))?;
        let start = number(&directory.join("offset")).unwrap_or(0);
        let length = number(&directory.join("sizelimit")).unwrap_or(0);
        identity.own = identity.own.part(start, length);
        Some(identity)
    }

    /// Lists the components of a stacked device, by its sysfs directory.
    fn stacked_on(directory: &Path, depth: u32) -> Vec<Range> {
        let parts = fs::read_dir(directory.join("slaves"))
            .into_iter()
            .flatten()
            .flatten();
        let parts = parts.filter_map(|part| device_number(&part.path()));
        parts
            .flat_map(|part| {
                let Self { own, below } = Self::block(part, depth);
                below.into_iter().chain([own])
            })
            .collect()
    }
}

/// Reads a number from a sysfs file.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the number of a block device, by its sysfs directory.
fn device_number(directory: &Path) -> Option<u64> {
    let text = fs::read_to_string(directory.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the identities of standard output and standard error, if they are writable and refer to
/// data that could be lost.
#[expect(clippy::disallowed_methods, reason = "nothing is printed")]
pub(crate) fn of_standard_streams() -> [Option<Identity>; 2] {
    fn written(descriptor: impl AsFd) -> Option<Identity> {
        let flags = rustix::fs::fcntl_getfl(&descriptor).ok()?;
        let reads_only = flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDONLY;
        (!reads_only).then(|| Identity::of_open(descriptor)).flatten()
    }
    [written(io::stdout()), written(io::stderr())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_of_a_file_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a", "b"] {
            fs::write(path(name), b"x").unwrap();
        }
        fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink("a", path("soft")).unwrap();
        let of = |name: &str| Identity::of_path(&path(name)).unwrap();
        for name in ["hard", "soft", "./a"] {
            assert!(
                of(name).overlaps(&of("a")) && of(name).is_same(&of("a")),
                "{name}"
            );
        }
        assert!(!of("a").overlaps(&of("b")));
        assert_eq!(Identity::of_path(folder.path()), None);
        assert_eq!(Identity::of_path(Path::new("/dev/null")), None);
        assert_eq!(Identity::of_path(&path("missing")), None);
    }

    #[test]
    fn ranges_of_one_disk() {
        let disk = Range::whole(Thing::Block(7));
        let (first, second) = (disk.part(100, 50), disk.part(150, 0));
        assert!(disk.overlaps(first) && second.overlaps(disk));
        assert!(!first.overlaps(second));
        assert!(disk.part(120, 40).overlaps(first) && disk.part(120, 40).overlaps(second));
        assert!(!Range::whole(Thing::Block(8)).overlaps(first));
        assert_eq!(first.part(10, 100).end, 150);
        assert_eq!(second.end, u64::MAX);
    }
}
