//! Owner, mode, times, flags and extended attributes.
//!
//! The order matters to the receiver. Changing the owner clears set-user-id bits and removes
//! capabilities. Writing removes capabilities. Every change of names or content changes times. The
//! order is therefore content, owner, mode, capabilities, times.
//!
//! Version 2 also sends inode flags. Flags that affect content come before the content of a new
//! file. The other inode flags come after the content, since they may forbid writing.

use crate::command::Command;
use crate::send::error::Result;
use crate::send::inode::{Attribute, InodeState};
use crate::send::output::Output;
use buttress_format::{InodeFlags, InodeItem, Timestamp};

/// Extended attribute that a change of owner or content removes.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Value that the receiver sets for an access list attribute without value: the header of an empty
/// access list.
const EMPTY_ACCESS_LIST: [u8; 4] = [2, 0, 0, 0];

/// Flags of a new inode that a stream contains.
const SENT_FLAGS: InodeFlags = InodeFlags::OF_CONTENT.union(InodeFlags::OF_CHATTR);

const KIND: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;

/// The times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    accessed: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
    created: Timestamp,
}

impl Times {
    pub(crate) const fn of(item: &InodeItem) -> Self {
        Self {
            accessed: item.atime,
            modified: item.mtime,
            changed: item.ctime,
            created: item.otime,
        }
    }

    pub(crate) fn send(&self, path: &[u8], output: &mut Output<'_>) -> Result<()> {
        let otime = output.is_version_2().then_some(self.created);
        output.command(&Command::Utimes {
            path,
            atime: self.accessed,
            mtime: self.modified,
            ctime: self.changed,
            otime,
        })
    }
}

/// Sends the extended attributes that differ, without capabilities that [`send_owner_and_mode`]
/// will send.
pub(crate) fn send_xattrs(
    inode: &InodeState,
    path: &[u8],
    with_capability: bool,
    output: &mut Output<'_>,
) -> Result<()> {
    for attribute in &inode.old_xattrs {
        if !inode.new_xattrs.iter().any(|new| new.name == attribute.name) {
            output.command(&Command::RemoveXattr {
                path,
                name: &attribute.name,
            })?;
        }
    }
    for attribute in &inode.new_xattrs {
        if (with_capability || attribute.name != CAPABILITY) && !inode.old_xattrs.contains(attribute) {
            send_xattr(attribute, path, output)?;
        }
    }
    Ok(())
}

pub(crate) fn send_xattr(attribute: &Attribute, path: &[u8], output: &mut Output<'_>) -> Result<()> {
    let is_access_list = attribute.name.starts_with(b"system.posix_acl_");
    let value = if attribute.value.is_empty() && is_access_list {
        &EMPTY_ACCESS_LIST
    } else {
        attribute.value.as_slice()
    };
    output.command(&Command::SetXattr {
        path,
        name: &attribute.name,
        value,
    })
}

/// Returns whether the stream must set the owner.
pub(crate) fn owner_differs(old: Option<&InodeItem>, new: &InodeItem) -> bool {
    old.is_none_or(|old| old.uid != new.uid || old.gid != new.gid)
}

/// Sends owner, mode and flags that differ from `old`; all of them if `old` is `None`.
pub(crate) fn send_owner_and_mode(
    old: Option<&InodeItem>,
    new: &InodeItem,
    path: &[u8],
    output: &mut Output<'_>,
) -> Result<()> {
    const SET_ID: u32 = 0o6_000;
    let owner = owner_differs(old, new);
    if owner {
        output.command(&Command::Chown {
            path,
            uid: u64::from(new.uid),
            gid: u64::from(new.gid),
        })?;
    }
    let mode_spoilt = owner && new.mode & SET_ID != 0;
    if new.mode & KIND != SYMLINK && (mode_spoilt || old.is_none_or(|old| old.mode != new.mode)) {
        output.command(&Command::Chmod {
            path,
            mode: u64::from(new.mode & 0o7_777),
        })?;
    }
    let flags = match old {
        Some(old) => (old.flags != new.flags).then_some(new.flags),
        None => {
            let before = if new.mode & KIND == REGULAR {
                InodeFlags::OF_CONTENT
            } else {
                InodeFlags::empty()
            };
            let sent = new.flags & SENT_FLAGS;
            (!sent.difference(before).is_empty()).then_some(sent)
        }
    };
    match flags {
        Some(flags) if output.is_version_2() => output.command(&Command::FileAttributes {
            path,
            attributes: flags.bits(),
        }),
        _ => Ok(()),
    }
}

/// Sends the flags of a new file that its content requires.
pub(crate) fn send_content_flags(new: &InodeItem, path: &[u8], output: &mut Output<'_>) -> Result<()> {
    let flags = new.flags & InodeFlags::OF_CONTENT;
    if flags.is_empty() || new.mode & KIND != REGULAR || !output.is_version_2() {
        return Ok(());
    }
    output.command(&Command::FileAttributes {
        path,
        attributes: flags.bits(),
    })
}

/// Returns the flags of a new file that a stream must set before its content.
pub(crate) fn content_flags(flags: u64) -> Option<u64> {
    let flags = InodeFlags::from_bits_truncate(flags) & InodeFlags::OF_CONTENT;
    (!flags.is_empty()).then_some(flags.bits())
}
