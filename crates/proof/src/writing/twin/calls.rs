//! Changes as system calls on a mount.

use super::Twin;
use crate::writing::access_list::AccessList;
use crate::writing::content::Change;
use crate::writing::model::{Inode, Model};
use crate::writing::newborn::COMPRESSION;
use crate::writing::operation::{Mode, Operation};
use anyhow::{Context, Result};
use buttress::unstable::fs::acl::{ACCESS_NAME, DEFAULT_NAME};
use buttress::{AllocateMode, FileAttributes, Location, SubvolumeId};
use buttress_oracle::ioctls;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode as Permissions, OFlags, RenameFlags, Timespec,
    Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Result as Answer;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Path of an inode on the mount.
struct Place {
    path: PathBuf,
    /// True if the path is a link to an open file, which calls must follow.
    is_open: bool,
}

impl Place {
    /// Returns the flags of `…at` calls for the path.
    const fn flags(&self) -> AtFlags {
        if self.is_open {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        }
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Answer<()> {
        let name = OsStr::from_bytes(name);
        if self.is_open {
            rustix::fs::setxattr(&self.path, name, value, XattrFlags::empty())
        } else {
            rustix::fs::lsetxattr(&self.path, name, value, XattrFlags::empty())
        }
    }

    fn remove_xattr(&self, name: &[u8]) -> Answer<()> {
        let name = OsStr::from_bytes(name);
        if self.is_open {
            rustix::fs::removexattr(&self.path, name)
        } else {
            rustix::fs::lremovexattr(&self.path, name)
        }
    }

    fn open(&self, flags: OFlags) -> Answer<File> {
        rustix::fs::open(&self.path, flags | OFlags::CLOEXEC, Permissions::empty()).map(File::from)
    }
}

impl Twin {
    fn place(&self, model: &Model, location: Location) -> Result<Place> {
        if let Some(path) = model.path_of(location) {
            return Ok(Place {
                path: self.top()?.join(OsStr::from_bytes(&path)),
                is_open: false,
            });
        }
        let file = self
            .held
            .get(&location)
            .context("an inode without a name, and not held")?;
        Ok(Place {
            path: PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            is_open: true,
        })
    }

    fn entry(&self, model: &Model, directory: Location, name: &[u8]) -> Result<PathBuf> {
        Ok(self.place(model, directory)?.path.join(OsStr::from_bytes(name)))
    }

    fn directory(&self, model: &Model, directory: Location) -> Result<File> {
        Ok(self
            .place(model, directory)?
            .open(OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    fn root(&self, model: &Model, id: SubvolumeId) -> Result<File> {
        self.directory(model, Location::root_of(id))
    }

    /// Returns whether an inode lacks the compression property.
    pub(super) fn lacks_property(&self, model: &Model, location: Location) -> Result<bool> {
        let mut value = [0; 16];
        let name = OsStr::from_bytes(COMPRESSION);
        // Only files and directories have the property.
        match rustix::fs::getxattr(&self.place(model, location)?.path, name, &mut value) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::NODATA) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the compression property.
    pub(super) fn set_property(&self, model: &Model, location: Location, value: &[u8]) -> Result<()> {
        Ok(self.place(model, location)?.set_xattr(COMPRESSION, value)?)
    }

    /// Makes a change on the twin; returns the file that the change opened to hold.
    pub(super) fn call(&self, model: &Model, operation: &Operation) -> Result<Option<File>> {
        match operation {
            Operation::MakeUnnamed(directory, mode) => {
                let path = self.place(model, *directory)?.path;
                let mode = Permissions::from_raw_mode(*mode);
                let file = rustix::fs::open(path, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
                return Ok(Some(File::from(file)));
            }
            Operation::Hold(file) => return Ok(Some(self.place(model, *file)?.open(OFlags::RDONLY)?)),
            Operation::Content(file, change) => self.change_content(model, *file, change)?,
            _ => self.call_by_name(model, operation)?,
        }
        Ok(None)
    }

    fn call_by_name(&self, model: &Model, operation: &Operation) -> Result<()> {
        let entry = |directory: &Location, name: &[u8]| self.entry(model, *directory, name);
        let mode = |bits: u32| Permissions::from_raw_mode(bits);
        match operation {
            Operation::Create(directory, name, bits) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::open(entry(directory, name)?, flags, mode(*bits))?;
            }
            Operation::MakeDirectory(directory, name, bits) => {
                rustix::fs::mkdir(entry(directory, name)?, mode(*bits))?;
            }
            Operation::MakeSymlink(directory, name, target) => {
                rustix::fs::symlink(OsStr::from_bytes(target), entry(directory, name)?)?;
            }
            Operation::MakeNode(directory, name, kind) => {
                let (kind, device) = match kind {
                    0 => (FileType::Fifo, 0),
                    1 => (FileType::Socket, 0),
                    2 => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
                    _ => (FileType::BlockDevice, rustix::fs::makedev(7, 300)),
                };
                rustix::fs::mknodat(CWD, entry(directory, name)?, kind, mode(0o666), device)?;
            }
            Operation::Link(inode, directory, name) => {
                let from = self.place(model, *inode)?;
                let follow = if from.is_open {
                    AtFlags::SYMLINK_FOLLOW
                } else {
                    AtFlags::empty()
                };
                rustix::fs::linkat(CWD, from.path, CWD, entry(directory, name)?, follow)?;
            }
            Operation::Unlink(directory, name) => rustix::fs::unlink(entry(directory, name)?)?,
            Operation::RemoveDirectory(directory, name) => rustix::fs::rmdir(entry(directory, name)?)?,
            Operation::Rename(from, old, to, new, how) => {
                let flags = match how {
                    Mode::Replace => RenameFlags::empty(),
                    Mode::NoReplace => RenameFlags::NOREPLACE,
                    Mode::Exchange => RenameFlags::EXCHANGE,
                    Mode::Whiteout => RenameFlags::WHITEOUT,
                };
                rustix::fs::renameat_with(CWD, entry(from, old)?, CWD, entry(to, new)?, flags)?;
            }
            _ => self.call_by_ioctl(model, operation)?,
        }
        Ok(())
    }

    fn call_by_ioctl(&self, model: &Model, operation: &Operation) -> Result<()> {
        match operation {
            Operation::CreateSubvolume(directory, name) => {
                ioctls::create_subvolume(&self.directory(model, *directory)?, name)?;
            }
            Operation::Snapshot(source, directory, name, read_only) => {
                let source = self.root(model, *source)?;
                ioctls::snapshot(&source, &self.directory(model, *directory)?, name, *read_only)?;
            }
            Operation::DeleteSubvolume(id) => {
                let place = model
                    .subvolumes
                    .get(id)
                    .and_then(|subvolume| subvolume.place.as_ref());
                let (directory, name) = place.context("the top level has no place")?;
                ioctls::delete_subvolume(&self.directory(model, *directory)?, name)?;
            }
            Operation::SetReadOnly(id, read_only) => {
                ioctls::set_read_only(&self.root(model, *id)?, *read_only)?;
            }
            Operation::SetDefault(id) => ioctls::set_default(&self.root(model, *id)?)?,
            Operation::SetLabel(label) => ioctls::set_label(&File::open(self.top()?)?, label)?,
            Operation::SetFlags(inode, flags) => {
                let file = self
                    .place(model, *inode)?
                    .open(OFlags::RDONLY | OFlags::NONBLOCK)?;
                rustix::fs::ioctl_setflags(&file, IFlags::from_bits_retain(flags.bits()))?;
            }
            // Closing the file on the mount releases it.
            Operation::Release(_) => {}
            _ => self.change_attributes(model, operation)?,
        }
        Ok(())
    }

    fn change_attributes(&self, model: &Model, operation: &Operation) -> Result<()> {
        let place = |inode: &Location| self.place(model, *inode);
        let set_list = |inode: &Location, name: &[u8], list: &Option<AccessList>| match list {
            Some(list) => Ok::<_, anyhow::Error>(place(inode)?.set_xattr(name, &list.value())?),
            None => Ok(place(inode)?.remove_xattr(name)?),
        };
        match operation {
            Operation::SetXattr(inode, name, value) => place(inode)?.set_xattr(name, value)?,
            Operation::RemoveXattr(inode, name) => place(inode)?.remove_xattr(name)?,
            Operation::SetAccessList(inode, list) => set_list(inode, ACCESS_NAME, list)?,
            Operation::SetDefaultList(inode, list) => set_list(inode, DEFAULT_NAME, list)?,
            Operation::SetCompression(inode, Some(value)) => {
                place(inode)?.set_xattr(COMPRESSION, value.as_bytes())?;
            }
            Operation::SetCompression(inode, None) => place(inode)?.remove_xattr(COMPRESSION)?,
            Operation::SetMode(inode, mode) => {
                rustix::fs::chmod(place(inode)?.path, Permissions::from_raw_mode(*mode))?;
            }
            Operation::SetOwner(inode, uid, gid) => {
                let place = place(inode)?;
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                rustix::fs::chownat(CWD, &place.path, Some(uid), Some(gid), place.flags())?;
            }
            Operation::SetModified(inode, seconds) => {
                let place = place(inode)?;
                let times = Timestamps {
                    last_access: Timespec {
                        tv_sec: 0,
                        tv_nsec: UTIME_OMIT,
                    },
                    last_modification: Timespec {
                        tv_sec: *seconds,
                        tv_nsec: 0,
                    },
                };
                rustix::fs::utimensat(CWD, &place.path, &times, place.flags())?;
            }
            other => anyhow::bail!("{other} has no call"),
        }
        Ok(())
    }

    fn change_content(&self, model: &Model, location: Location, change: &Change) -> Result<()> {
        let inode = model.inode(location).context("a file that is there")?;
        let place = self.place(model, location)?;
        let range =
            |(source, at, length, to)| Ok::<_, anyhow::Error>((self.source(model, source)?, at, length, to));
        let open = || place.open(write_flags(inode, change));
        match change {
            Change::Write(offset, bytes) => open()?.write_all_at(bytes, *offset)?,
            Change::Append(bytes) => {
                let mut file = place.open(OFlags::WRONLY | OFlags::APPEND)?;
                file.write_all(bytes)?;
            }
            Change::Truncate(size) => rustix::fs::ftruncate(open()?, *size)?,
            Change::Allocate(offset, length, mode) => {
                let keep = FallocateFlags::KEEP_SIZE;
                let flags = match mode {
                    AllocateMode::Allocate => FallocateFlags::empty(),
                    AllocateMode::AllocateKeepSize => keep,
                    AllocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
                    AllocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
                    AllocateMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
                };
                rustix::fs::fallocate(open()?, flags, *offset, *length)?;
            }
            Change::Clone(source, at, length, to) => {
                let (source, at, length, to) = range((*source, *at, *length, *to))?;
                ioctls::clone_range(&source, at, length, &open()?, to)?;
            }
            Change::Copy(source, at, length, to) => {
                let (source, at, length, to) = range((*source, *at, *length, *to))?;
                copy(&source, at, length, &open()?, to)?;
            }
            // The kernel lets root deduplicate files that it opened for reading.
            Change::Dedupe(source, at, length, to) => {
                let (source, at, length, to) = range((*source, *at, *length, *to))?;
                ioctls::dedupe_range(&source, at, length, &place.open(OFlags::RDONLY)?, to)?;
            }
        }
        Ok(())
    }

    fn source(&self, model: &Model, source: Location) -> Result<File> {
        Ok(self.place(model, source)?.open(OFlags::RDONLY)?)
    }
}

/// Returns the open flags for a change: an append-only file allows only appending.
fn write_flags(inode: &Inode, change: &Change) -> OFlags {
    let is_append_only = inode.flags.contains(FileAttributes::APPEND);
    if is_append_only && change.only_adds(inode.content.len() as u64) {
        return OFlags::RDWR | OFlags::APPEND;
    }
    OFlags::RDWR
}

/// Copies until the source's current range is copied; the source may be the target, and grow.
fn copy(source: &File, at: u64, length: u64, target: &File, to: u64) -> Result<()> {
    let (mut from, mut into) = (at, to);
    let end = source.metadata()?.len().min(at + length);
    loop {
        let rest = usize::try_from(end.saturating_sub(from))?;
        if rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut into), rest)? == 0 {
            break;
        }
    }
    Ok(())
}
