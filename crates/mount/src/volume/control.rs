//! Control commands (`ioctl(2)`).
//!
//! Numbers and structures are the kernel's, for programs that issue them directly. A FUSE server
//! gets only commands whose data has one fixed size, and cannot follow pointers inside the data.
//!
//! | part | holds |
//! |---|---|
//! | `number`, `arguments` | numbers and structures |
//! | `rights` | permissions of callers |
//! | `subvolumes` | creation, deletion and changes of subvolumes |
//! | `information` | information about volume, devices and subvolumes; label and syncs |
//! | `search` | items of trees by their keys |
//! | `trimming` | discards of unused space |
//! | `defragmenting` | small extents of a file joined |
//! | `quotas` | quotas and quota groups |
//! | `shutdown` | stops the file system, as a power cut would |

pub use shutdown::Peek;

use super::MountedVolume;
use super::placeholders::refuse_placeholder;
use crate::vfs::{Answered, Control, Errno, Result, Stale};
use buttress::{FileAttributes, Location};

mod arguments;
mod defragmenting;
mod information;
mod number;
mod quotas;
mod rights;
mod search;
mod shutdown;
mod subvolumes;
mod trimming;

/// Size of `struct fsxattr` in bytes.
const FSXATTR_BYTES: usize = 28;

/// Inode flags and their bits in `struct fsxattr`.
const EXTENDED: [(FileAttributes, u32); 5] = [
    (FileAttributes::IMMUTABLE, 0x08),
    (FileAttributes::APPEND, 0x10),
    (FileAttributes::SYNC, 0x20),
    (FileAttributes::NOATIME, 0x40),
    (FileAttributes::NODUMP, 0x80),
];

fn extended_flags(attributes: FileAttributes) -> u32 {
    EXTENDED
        .iter()
        .filter(|(attribute, _)| attributes.contains(*attribute))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Returns whether a command depends on file content: of all files (true), of its own file (false),
/// or of none (`None`).
pub(super) const fn needs_content(command: u32) -> Option<bool> {
    match command {
        number::SNAP_CREATE
        | number::SNAP_CREATE_V2
        | number::SUBVOL_SETFLAGS
        | number::SYNC
        | number::START_SYNC
        | number::TREE_SEARCH
        | number::QUOTA_CTL
        | number::QUOTA_RESCAN
        | number::SHUTDOWN => Some(true),
        number::FS_IOC_SETFLAGS
        | number::FS_IOC32_SETFLAGS
        | number::FS_IOC_FSSETXATTR
        | number::DEFRAG
        | number::DEFRAG_RANGE => Some(false),
        _ => None,
    }
}

/// Returns whether a command changes the volume.
const fn changes_volume(command: u32) -> bool {
    matches!(
        command,
        number::FS_IOC_SETFLAGS
            | number::FS_IOC32_SETFLAGS
            | number::FS_IOC_FSSETXATTR
            | number::FITRIM
            | number::DEFRAG
            | number::DEFRAG_RANGE
            | number::SUBVOL_CREATE
            | number::SUBVOL_CREATE_V2
            | number::SNAP_CREATE
            | number::SNAP_CREATE_V2
            | number::SNAP_DESTROY
            | number::SNAP_DESTROY_V2
            | number::SUBVOL_SETFLAGS
            | number::DEFAULT_SUBVOL
            | number::QUOTA_CTL
            | number::QGROUP_ASSIGN
            | number::QGROUP_CREATE
            | number::QUOTA_RESCAN
            | number::SET_FSLABEL
    )
}

impl MountedVolume {
    pub(super) fn control_at(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        refuse_placeholder(location, Errno::NOTTY)?;
        // The kernel's FUSE passes commands on from read-only mounts, too.
        if self.is_read_only() && changes_volume(control.command) {
            return Err(Errno::ROFS);
        }
        match control.command {
            number::FS_IOC_GETFLAGS | number::FS_IOC32_GETFLAGS => {
                let flags = self.metadata(location)?.attributes().bits();
                Ok(flags.to_ne_bytes().to_vec().into())
            }
            number::FS_IOC_SETFLAGS | number::FS_IOC32_SETFLAGS => self.set_flags(location, control),
            // The kernel sends this command before it changes flags.
            number::FS_IOC_FSGETXATTR => {
                let flags = self.metadata(location)?.attributes();
                let mut answer = extended_flags(flags).to_ne_bytes().to_vec();
                answer.resize(FSXATTR_BYTES, 0);
                Ok(answer.into())
            }
            number::FS_IOC_FSSETXATTR => self.set_extended_flags(location, control),
            number::FITRIM => self.trim(control),
            number::SHUTDOWN => self.shut_down(control),
            number::FS_IOC_GETVERSION => {
                let generation = self.metadata(location)?.generation.get();
                let low = u32::try_from(generation & 0xffff_ffff).unwrap_or(0);
                Ok(low.to_ne_bytes().to_vec().into())
            }
            _ => self.command_of_btrfs(location, control),
        }
    }

    fn command_of_btrfs(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        match control.command {
            number::DEFRAG => self.defragment_all(location, control),
            number::DEFRAG_RANGE => self.defragment_range(location, control),
            number::SUBVOL_CREATE => self.make_subvolume(location, control, false),
            number::SUBVOL_CREATE_V2 => self.make_subvolume(location, control, true),
            number::SNAP_CREATE => self.make_snapshot(location, control, false),
            number::SNAP_CREATE_V2 => self.make_snapshot(location, control, true),
            number::SNAP_DESTROY => self.delete_subvolume(location, control, false),
            number::SNAP_DESTROY_V2 => self.delete_subvolume(location, control, true),
            number::SUBVOL_GETFLAGS => self.subvolume_flags(location),
            number::SUBVOL_SETFLAGS => self.set_subvolume_flags(location, control),
            number::DEFAULT_SUBVOL => self.set_default(control),
            number::GET_SUBVOL_INFO => self.subvolume_information(location),
            number::GET_SUBVOL_ROOTREF => self.root_references(location, control),
            number::INO_LOOKUP => self.inode_path(location, control),
            number::INO_LOOKUP_USER => self.subvolume_path(location, control),
            number::TREE_SEARCH => self.search(location, control),
            number::FS_INFO => self.information(),
            number::DEV_INFO => self.device_information(control),
            number::GET_DEV_STATS => self.device_statistics(control),
            number::GET_FEATURES => self.features(),
            number::SPACE_INFO => self.kinds_of_space(control),
            number::QUOTA_CTL => self.control_quotas(control),
            number::QGROUP_ASSIGN => self.assign_quota_group(control),
            number::QGROUP_CREATE => self.change_quota_group(control),
            number::QUOTA_RESCAN => self.rescan_quotas(control),
            number::QUOTA_RESCAN_STATUS => Self::rescan_status(control),
            number::QUOTA_RESCAN_WAIT => Self::wait_for_rescan(control),
            number::GET_FSLABEL => self.label(),
            number::SET_FSLABEL => self.set_label(control),
            number::START_SYNC => self.start_sync(),
            // A commit that the caller started has already ended.
            number::WAIT_SYNC => Ok(Answered::default()),
            number::SYNC => {
                self.committed()?;
                self.require_lasting()?;
                Ok(Answered::default())
            }
            number::TREE_SEARCH_V2 | number::QGROUP_LIMIT => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::NOTTY),
        }
    }

    fn set_flags(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let bits = control.input.first_chunk().ok_or(Errno::INVAL)?;
        let bits = u32::from_ne_bytes(*bits);
        let attributes = FileAttributes::from_bits(bits).ok_or(Errno::OPNOTSUPP)?;
        self.put_flags(location, control, attributes)
    }

    fn set_extended_flags(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        let (bits, others) = control.input.split_first_chunk().ok_or(Errno::INVAL)?;
        if others.iter().any(|byte| *byte != 0) {
            // The ioctl's extent sizes and projects belong to other file systems.
            return Err(Errno::OPNOTSUPP);
        }
        let bits = u32::from_ne_bytes(*bits);
        let known = EXTENDED.iter().fold(0, |known, (_, bit)| known | bit);
        if bits & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let mut attributes = self.metadata(location)?.attributes();
        for (attribute, bit) in EXTENDED {
            attributes.set(attribute, bits & bit != 0);
        }
        self.put_flags(location, control, attributes)
    }

    /// The command also changes the inode's change time, which the kernel has cached.
    fn put_flags(
        &self,
        location: Location,
        control: &Control<'_>,
        attributes: FileAttributes,
    ) -> Result<Answered> {
        let metadata = self.metadata(location)?;
        if control.caller.uid != 0 && control.caller.uid != metadata.uid {
            return Err(Errno::PERM);
        }
        let privileged = FileAttributes::IMMUTABLE | FileAttributes::APPEND;
        let changed = metadata.attributes().symmetric_difference(attributes);
        if control.caller.uid != 0 && changed.intersects(privileged) {
            return Err(Errno::PERM);
        }
        let set = self.writer()?.set_flags(location, attributes);
        set.map_err(|error| self.failed(&error))?;
        Ok(Answered {
            stale: self.numbers.of(location).map(Stale::Node).into_iter().collect(),
            ..Answered::default()
        })
    }
}
