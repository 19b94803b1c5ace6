//! Commands that create, delete and change subvolumes.
//!
//! A snapshot command names its source by a descriptor of the calling process. The server resolves
//! the descriptor by the caller's process id. If the server may not inspect that process, the
//! caller gets `EPERM`.

use super::super::MountedVolume;
use super::arguments::Fields;
use super::rights::{is_privileged, require_owner, require_privileged};
use crate::vfs::{Answered, Caller, Control, Errno, NodeId, Result};
use buttress::{AttributeChanges, Location, ReceivedUuid, SubvolumeId};
use rustix::fs::{AtFlags, CWD, StatxFlags};

pub(super) const READ_ONLY: u64 = 1 << 1;
const BY_ID: u64 = 1 << 4;
const NAME_BYTES_MAX: usize = 255;
/// Size of the union between flags and name in bytes: a size and a pointer, which the server cannot
/// follow.
const UNION_BYTES: usize = 32;

/// Arguments of a command of the first or second version.
struct Arguments<'a> {
    descriptor: u64,
    flags: u64,
    name: &'a [u8],
    /// Subvolume id in the field of the name, if the flags say so.
    id: u64,
}

impl<'a> Arguments<'a> {
    fn old(control: &Control<'a>) -> Result<Self> {
        let mut fields = Fields(control.input);
        Ok(Self {
            descriptor: fields.u64()?,
            flags: 0,
            name: fields.text()?,
            id: 0,
        })
    }

    fn new(control: &Control<'a>, allowed: u64) -> Result<Self> {
        let mut fields = Fields(control.input);
        let descriptor = fields.u64()?;
        let _generation = fields.u64()?;
        let flags = fields.u64()?;
        if flags & !allowed != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        fields.bytes(UNION_BYTES)?;
        let id = fields.clone().u64()?;
        let name = if flags & BY_ID != 0 { &[] } else { fields.text()? };
        Ok(Self {
            descriptor,
            flags,
            name,
            id,
        })
    }
}

/// Refuses a name that is not valid for a directory entry.
fn require_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::ACCES),
        b"." | b".." => Err(Errno::EXIST),
        name if name.contains(&b'/') => Err(Errno::INVAL),
        name if name.len() > NAME_BYTES_MAX => Err(Errno(libc::ENAMETOOLONG)),
        _ => Ok(()),
    }
}

fn require_root(location: Location) -> Result<SubvolumeId> {
    match location.is_subvolume_root() {
        true => Ok(location.subvolume),
        false => Err(Errno::INVAL),
    }
}

impl MountedVolume {
    pub(super) fn make_subvolume(
        &self,
        directory: Location,
        control: &Control<'_>,
        is_new: bool,
    ) -> Result<Answered> {
        let arguments = match is_new {
            true => Arguments::new(control, 0)?,
            false => Arguments::old(control)?,
        };
        let writer = self.writer()?;
        require_name(arguments.name)?;
        self.require_no_entry(directory, arguments.name)?;
        self.require_making(control.caller, directory)?;
        let made = writer.subvolumes().create(directory, arguments.name);
        let id = made.map_err(|error| self.failed(&error))?;
        self.give(Location::root_of(id), control.caller)?;
        self.committed()?;
        Ok(self.changed_name(directory, arguments.name))
    }

    pub(super) fn make_snapshot(
        &self,
        directory: Location,
        control: &Control<'_>,
        is_new: bool,
    ) -> Result<Answered> {
        let arguments = match is_new {
            true => Arguments::new(control, READ_ONLY)?,
            false => Arguments::old(control)?,
        };
        let writer = self.writer()?;
        require_name(arguments.name)?;
        let source = self.behind(control.caller, arguments.descriptor)?;
        if source.inode == buttress::unstable::fs::location::PLACEHOLDER_INODE {
            return Err(Errno::INVAL);
        }
        require_owner(control.caller, &self.metadata(source)?)?;
        let source = require_root(source)?;
        self.require_no_entry(directory, arguments.name)?;
        self.require_making(control.caller, directory)?;
        let read_only = arguments.flags & READ_ONLY != 0;
        let made = writer
            .subvolumes()
            .snapshot(source, directory, arguments.name, read_only);
        made.map_err(|error| self.failed(&error))?;
        Ok(self.changed_name(directory, arguments.name))
    }

    pub(super) fn delete_subvolume(
        &self,
        directory: Location,
        control: &Control<'_>,
        is_new: bool,
    ) -> Result<Answered> {
        let arguments = match is_new {
            true => Arguments::new(control, BY_ID)?,
            false => Arguments::old(control)?,
        };
        let writer = self.writer()?;
        let view = self.access.view();
        let (directory, name, id) = if arguments.flags & BY_ID != 0 {
            require_privileged(control.caller)?;
            let id = SubvolumeId::new(arguments.id);
            let place = view.subvolume_place(id).map_err(|error| self.failed(&error))?;
            let place = place.ok_or(Errno::NOENT)?;
            (Location::new(place.parent, place.directory), place.name, id)
        } else {
            if !self.metadata(directory)?.is_directory() {
                return Err(Errno::NOTDIR);
            }
            if arguments.name.contains(&b'/') {
                return Err(Errno::INVAL);
            }
            let found = view.lookup(directory, arguments.name);
            let found = found.map_err(|error| self.failed(&error))?.ok_or(Errno::NOENT)?;
            if !is_privileged(control.caller) {
                return Err(Errno::PERM);
            }
            let holder = view.subvolume(directory.subvolume);
            if holder.map_err(|error| self.failed(&error))?.is_read_only() {
                return Err(Errno::ROFS);
            }
            if !self.metadata(found.target)?.is_directory() {
                return Err(Errno::NOTDIR);
            }
            (directory, arguments.name.to_vec(), require_root(found.target)?)
        };
        let deleted = writer.subvolumes().delete(id);
        deleted.map_err(|error| self.failed(&error))?;
        self.has_deleted();
        Ok(self.changed_name(directory, &name))
    }

    pub(super) fn subvolume_flags(&self, location: Location) -> Result<Answered> {
        let id = require_root(location)?;
        let found = self.access.view().subvolume(id);
        let found = found.map_err(|error| self.failed(&error))?;
        let flags = if found.is_read_only() { READ_ONLY } else { 0 };
        Ok(flags.to_ne_bytes().to_vec().into())
    }

    pub(super) fn set_subvolume_flags(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        require_owner(control.caller, &self.metadata(location)?)?;
        let writer = self.writer()?;
        let id = require_root(location)?;
        let flags = Fields(control.input).u64()?;
        if flags & !READ_ONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let set = writer
            .subvolumes()
            .set_read_only(id, flags & READ_ONLY != 0, ReceivedUuid::Clear);
        set.map_err(|error| self.failed(&error))?;
        self.committed()?;
        Ok(Answered::default())
    }

    pub(super) fn set_default(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let writer = self.writer()?;
        let id = match Fields(control.input).u64()? {
            0 => SubvolumeId::TOP_LEVEL,
            id => SubvolumeId::new(id),
        };
        let set = writer.subvolumes().set_default(id);
        set.map_err(|error| self.failed(&error))?;
        Ok(Answered::default())
    }

    fn require_no_entry(&self, directory: Location, name: &[u8]) -> Result<()> {
        if !self.metadata(directory)?.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let found = self.access.view().lookup(directory, name);
        match found.map_err(|error| self.failed(&error))? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(()),
        }
    }

    pub(super) fn committed(&self) -> Result<()> {
        let committed = self.writer()?.commit();
        committed.map(drop).map_err(|error| self.failed(&error))
    }

    /// Gives a new subvolume to its creator. Requests do not contain the creator's umask.
    fn give(&self, root: Location, caller: Caller) -> Result<()> {
        let changes = AttributeChanges {
            uid: Some(caller.uid),
            gid: Some(caller.gid),
            ..AttributeChanges::default()
        };
        let set = self.writer()?.set_attributes(root, &changes);
        set.map_err(|error| self.failed(&error))
    }

    fn changed_name(&self, directory: Location, name: &[u8]) -> Answered {
        let mut answered = Answered::default();
        self.add_stale(&mut answered.stale, directory, name);
        answered
    }

    /// Returns the inode that a descriptor of a process refers to.
    fn behind(&self, caller: Caller, descriptor: u64) -> Result<Location> {
        let descriptor = i32::try_from(descriptor.cast_signed()).map_err(|_| Errno::INVAL)?;
        if caller.pid == 0 || descriptor < 0 {
            return Err(Errno::INVAL);
        }
        let path = format!("/proc/{}/fd/{descriptor}", caller.pid);
        // This call must not send a request to this server: the answering thread may be waiting
        // here.
        let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
        let found = found.map_err(|error| match error {
            rustix::io::Errno::NOENT => Errno::INVAL,
            _ => Errno::PERM,
        })?;
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        if Some(device) != self.device() {
            return Err(Errno::XDEV);
        }
        self.location(NodeId(found.stx_ino))
    }
}
