//! Execution of the same script by the kernel and by Buttress.

use crate::script::Line;
use anyhow::{Context, Result, bail};
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer::operations::OpenInode;
use buttress::{
    AllocateMode, AttributeChanges, ByteCount, DeviceNumber, FileAttributes, FileOffset, Location, NewInode,
    NodeKind, RenameMode, SetXattr, SubvolumeId, Timestamp,
};
use buttress_oracle::history::apply::apply;
use buttress_oracle::history::operation::{Operation, Origin, Span, Special};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The kernel, on a mount.
#[derive(Debug)]
pub struct Kernel<'a> {
    top: &'a Path,
    held: Vec<File>,
}

impl<'a> Kernel<'a> {
    pub const fn new(top: &'a Path) -> Self {
        Self {
            top,
            held: Vec::new(),
        }
    }

    pub fn run(&mut self, line: &Line) -> Result<()> {
        let open = |path: &str| {
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
            rustix::fs::open(self.top.join(path), flags, rustix::fs::Mode::empty()).map(File::from)
        };
        match line {
            Line::Change(operation) => apply(self.top, &[], operation)?,
            Line::Fsync(path) => open(path)?.sync_all()?,
            Line::Fdatasync(path) => open(path)?.sync_data()?,
            Line::Snapshot(path) => {
                let name = OsStr::new(path).as_bytes();
                let top = File::open(self.top)?;
                buttress_oracle::ioctls::snapshot(&top, &top, name, false)?;
            }
            Line::DeleteSubvolume(path) => {
                let top = File::open(self.top)?;
                buttress_oracle::ioctls::delete_subvolume(&top, OsStr::new(path).as_bytes())?;
            }
            Line::Hold(path) => {
                let file = open(path)?;
                self.held.push(file);
            }
        }
        Ok(())
    }
}

/// Buttress, on an open volume.
#[derive(Debug)]
pub struct Ours<'a> {
    filesystem: &'a WritableFilesystem,
    held: Vec<OpenInode>,
}

impl<'a> Ours<'a> {
    pub const fn new(filesystem: &'a WritableFilesystem) -> Self {
        Self {
            filesystem,
            held: Vec::new(),
        }
    }

    /// Resolves a path.
    pub fn find(&self, path: &[u8]) -> Result<Location> {
        let mut at = Location::root_of(SubvolumeId::TOP_LEVEL);
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty() && *name != b".")
        {
            let entry = self.filesystem.live().lookup(at, name)?;
            at = entry
                .with_context(|| format!("{} is not there", path.escape_ascii()))?
                .target;
        }
        Ok(at)
    }

    fn parent<'p>(&self, path: &'p [u8]) -> Result<(Location, &'p [u8])> {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Ok((self.find(&path[..slash])?, &path[slash + 1..])),
            None => Ok((self.find(b"")?, path)),
        }
    }

    fn find_or_create(&self, path: &[u8]) -> Result<Location> {
        match self.find(path) {
            Ok(found) => Ok(found),
            Err(_) => {
                let (directory, name) = self.parent(path)?;
                Ok(self
                    .filesystem
                    .create(directory, name, &NewInode::of_root(0o644))?)
            }
        }
    }

    pub fn run(&mut self, line: &Line) -> Result<()> {
        match line {
            Line::Change(operation) => self.change(operation)?,
            Line::Fsync(path) => {
                self.filesystem.log_tree().fsync(self.find(path.as_bytes())?)?;
            }
            Line::Fdatasync(path) => {
                self.filesystem
                    .log_tree()
                    .fdatasync(self.find(path.as_bytes())?)?;
            }
            Line::Snapshot(path) => {
                let (directory, name) = self.parent(path.as_bytes())?;
                self.filesystem
                    .subvolumes()
                    .snapshot(SubvolumeId::TOP_LEVEL, directory, name, false)?;
            }
            Line::DeleteSubvolume(path) => {
                let subvolume = self.find(path.as_bytes())?.subvolume;
                self.filesystem.subvolumes().delete(subvolume)?;
            }
            Line::Hold(path) => {
                let held = self.filesystem.open_inode(self.find(path.as_bytes())?)?;
                self.held.push(held);
            }
        }
        Ok(())
    }

    fn change(&self, operation: &Operation) -> Result<()> {
        let filesystem = self.filesystem;
        let new = NewInode::of_root(0o644);
        match operation {
            Operation::File(path) => {
                let (directory, name) = self.parent(path)?;
                filesystem.create(directory, name, &new)?;
            }
            Operation::Directory(path) => {
                let (directory, name) = self.parent(path)?;
                filesystem.make_directory(directory, name, &NewInode::of_root(0o755))?;
            }
            Operation::Symlink(path, target) => {
                let (directory, name) = self.parent(path)?;
                filesystem.make_symlink(directory, name, &new, target)?;
            }
            Operation::Special(path, kind) => {
                let (directory, name) = self.parent(path)?;
                let number = |major, minor| DeviceNumber { major, minor };
                let kind = match kind {
                    Special::Fifo => NodeKind::Fifo,
                    Special::Socket => NodeKind::Socket,
                    Special::Character(major, minor) => NodeKind::CharacterDevice(number(*major, *minor)),
                    Special::Block(major, minor) => NodeKind::BlockDevice(number(*major, *minor)),
                };
                filesystem.make_node(directory, name, &new, kind)?;
            }
            Operation::Rename(from, to) => self.rename(from, to, RenameMode::Replace)?,
            Operation::Exchange(one, other) => self.rename(one, other, RenameMode::Exchange)?,
            Operation::Link(existing, path) => {
                let (directory, name) = self.parent(path)?;
                filesystem.link(self.find(existing)?, directory, name)?;
            }
            Operation::Remove(path) => self.remove(path)?,
            Operation::RemoveAll(path) => self.remove_all(path)?,
            Operation::Subvolume(path) => {
                let (directory, name) = self.parent(path)?;
                filesystem.subvolumes().create(directory, name)?;
            }
            Operation::Sync => drop(filesystem.commit()?),
            other => self.change_inode(other)?,
        }
        Ok(())
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let ((old, old_name), (new, new_name)) = (self.parent(from)?, self.parent(to)?);
        Ok(self.filesystem.rename(old, old_name, new, new_name, mode)?)
    }

    fn is_directory(&self, location: Location) -> Result<bool> {
        Ok(self.filesystem.live().metadata(location)?.is_directory())
    }

    fn remove(&self, path: &[u8]) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        let removed = match self.is_directory(self.find(path)?)? {
            true => self.filesystem.remove_directory(directory, name),
            false => self.filesystem.unlink(directory, name),
        };
        Ok(removed?)
    }

    fn remove_all(&self, path: &[u8]) -> Result<()> {
        let location = self.find(path)?;
        if self.is_directory(location)? {
            for entry in self.filesystem.live().list(location, 0, 1_000_000)? {
                self.remove_all(&[path, b"/", &entry.name].concat())?;
            }
        }
        self.remove(path)
    }

    fn change_inode(&self, operation: &Operation) -> Result<()> {
        let filesystem = self.filesystem;
        let end = |span: &Span| FileOffset::new(span.offset + span.length);
        let range = |span: &Span| FileOffset::new(span.offset)..end(span);
        let allocate = |path: &[u8], span: &Span, mode| -> Result<()> {
            Ok(filesystem.allocate(self.find_or_create(path)?, range(span), mode)?)
        };
        match operation {
            Operation::Write(path, span, content) => {
                let file = self.find_or_create(path)?;
                filesystem.write_at(file, FileOffset::new(span.offset), &content.bytes(span.length))?;
            }
            Operation::Truncate(path, size) => {
                filesystem.truncate(self.find(path)?, ByteCount::new(*size))?
            }
            Operation::Punch(path, span) => allocate(path, span, AllocateMode::PunchHole)?,
            Operation::Preallocate(path, span, true) => allocate(path, span, AllocateMode::AllocateKeepSize)?,
            Operation::Preallocate(path, span, false) => allocate(path, span, AllocateMode::Allocate)?,
            Operation::ZeroRange(path, span) => allocate(path, span, AllocateMode::ZeroRange)?,
            Operation::Reflink(Origin { path: from, span, .. }, to, at) => {
                let (source, target) = (self.find(from)?, self.find_or_create(to)?);
                filesystem.clone_range(source, range(span), target, FileOffset::new(*at))?;
            }
            Operation::ReflinkAll(_, from, to) => {
                let (source, target) = (self.find(from)?, self.find_or_create(to)?);
                let size = FileOffset::new(filesystem.contents().size_of(source)?);
                filesystem.clone_range(source, FileOffset::MIN..size, target, FileOffset::MIN)?;
            }
            Operation::SetXattr(path, name, value) => {
                filesystem.set_xattr(
                    self.find(path)?,
                    name.as_bytes(),
                    value,
                    SetXattr::CreateOrReplace,
                )?;
            }
            Operation::RemoveXattr(path, name) => {
                filesystem.remove_xattr(self.find(path)?, name.as_bytes())?
            }
            Operation::Owner(path, uid, gid) => {
                let changes = AttributeChanges {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..AttributeChanges::default()
                };
                filesystem.set_attributes(self.find(path)?, &changes)?;
            }
            Operation::Mode(path, mode) => {
                let changes = AttributeChanges {
                    mode: Some(*mode),
                    ..AttributeChanges::default()
                };
                filesystem.set_attributes(self.find(path)?, &changes)?;
            }
            Operation::Times(path, accessed, modified) => {
                let time = |(seconds, nanoseconds)| Some(Timestamp { seconds, nanoseconds });
                let changes = AttributeChanges {
                    accessed: time(*accessed),
                    modified: time(*modified),
                    ..AttributeChanges::default()
                };
                filesystem.set_attributes(self.find(path)?, &changes)?;
            }
            Operation::Compress(path, algorithm) => {
                let how = SetXattr::CreateOrReplace;
                filesystem.set_xattr(self.find(path)?, b"btrfs.compression", algorithm.as_bytes(), how)?;
            }
            Operation::NoCopyOnWrite(path) => {
                filesystem.set_flags(self.find_or_create(path)?, FileAttributes::NOCOW)?;
            }
            other => bail!("{other:?} has no call here"),
        }
        Ok(())
    }
}
