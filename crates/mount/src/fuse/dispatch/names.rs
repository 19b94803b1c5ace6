//! Requests about names.

use super::{Request, Server};
use crate::fuse::wire::{OUT_HEADER, Output, bit, operation};
use crate::vfs::{Entry, Errno, Listed, NewKind, NewNode, RenameHow, Result};
use buttress::{DeviceNumber, NodeKind};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;
const WHITEOUT_NOREPLACE: u32 = WHITEOUT | NOREPLACE;

/// Length of an entry's header in a listing; the next constant is the length with attributes.
const LISTED_HEAD: usize = 24;
const ENTRY: usize = 128;

/// Number of entries per directory read.
const LISTED_AT_ONCE: usize = 256;

fn device_number(number: u32) -> DeviceNumber {
    DeviceNumber {
        major: (number >> 8) & 0xfff,
        minor: (number & 0xff) | ((number >> 12) & 0xf_ff00),
    }
}

impl Server {
    pub(super) fn forget(&self, request: &mut Request<'_>) -> Result<()> {
        if request.header.operation == operation::FORGET {
            let references = request.input.u64()?;
            self.vfs.forget(self.node_of(request), references);
            return Ok(());
        }
        let count = request.input.u32()?;
        request.input.skip(4)?;
        for _ in 0..count {
            let (node, references) = (request.input.u64()?, request.input.u64()?);
            self.vfs.forget(self.node(node), references);
        }
        Ok(())
    }

    pub(super) fn lookup(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let directory = self.node_of(request);
        let name = request.input.name()?;
        let found = match name {
            b"." => self.vfs.revive(directory, None),
            b".." => self.vfs.parent(directory),
            name => self.vfs.lookup(directory, name),
        };
        match found {
            Ok(entry) => self.put_entry(&entry, out),
            // Node 0 is a negative entry, which the kernel may cache.
            Err(Errno::NOENT) if name != b"." && name != b".." => {
                out.u64(0).u64(0).u64(super::NAMES_LAST).zeros(ENTRY - 24);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn new_node(request: &Request<'_>, mode: u32, umask: u32) -> NewNode {
        NewNode {
            mode,
            umask,
            uid: request.header.uid,
            gid: request.header.gid,
        }
    }

    pub(super) fn make_node(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let (mode, device, umask) = (request.input.u32()?, request.input.u32()?, request.input.u32()?);
        request.input.skip(4)?;
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewKind::File,
            libc::S_IFIFO => NewKind::Node(NodeKind::Fifo),
            libc::S_IFSOCK => NewKind::Node(NodeKind::Socket),
            libc::S_IFCHR => NewKind::Node(NodeKind::CharacterDevice(device_number(device))),
            libc::S_IFBLK => NewKind::Node(NodeKind::BlockDevice(device_number(device))),
            _ => return Err(Errno::INVAL),
        };
        self.make(request, mode, umask, kind, out)
    }

    pub(super) fn make_directory(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let (mode, umask) = (request.input.u32()?, request.input.u32()?);
        self.make(request, mode, umask, NewKind::Directory, out)
    }

    pub(super) fn make_symlink(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let name = request.input.name()?;
        let target = request.input.name()?;
        let new = Self::new_node(request, 0o777, 0);
        let made = self
            .vfs
            .make(self.node_of(request), name, &new, NewKind::Symlink(target))?;
        self.put_entry(&made, out);
        Ok(())
    }

    fn make(
        &self,
        request: &mut Request<'_>,
        mode: u32,
        umask: u32,
        kind: NewKind<'_>,
        out: &mut Output,
    ) -> Result<()> {
        let name = request.input.name()?;
        let new = Self::new_node(request, mode, umask);
        let made = self.vfs.make(self.node_of(request), name, &new, kind)?;
        self.put_entry(&made, out);
        Ok(())
    }

    pub(super) fn link(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let node = self.node(request.input.u64()?);
        let name = request.input.name()?;
        let linked = self.vfs.link(node, self.node_of(request), name)?;
        self.put_entry(&linked, out);
        Ok(())
    }

    pub(super) fn unlink(&self, request: &mut Request<'_>) -> Result<()> {
        let name = request.input.name()?;
        self.vfs.unlink(self.node_of(request), name)
    }

    pub(super) fn remove_directory(&self, request: &mut Request<'_>) -> Result<()> {
        let name = request.input.name()?;
        self.vfs.remove_directory(self.node_of(request), name)
    }

    pub(super) fn rename(&self, request: &mut Request<'_>) -> Result<()> {
        let to = self.node(request.input.u64()?);
        let how = if request.header.operation == operation::RENAME2 {
            let flags = request.input.u32()?;
            request.input.skip(4)?;
            match flags {
                0 => RenameHow::Replace,
                NOREPLACE => RenameHow::NoReplace,
                EXCHANGE => RenameHow::Exchange,
                WHITEOUT => RenameHow::Whiteout,
                WHITEOUT_NOREPLACE => RenameHow::WhiteoutNoReplace,
                _ => return Err(Errno::INVAL),
            }
        } else {
            RenameHow::Replace
        };
        let old_name = request.input.name()?;
        let new_name = request.input.name()?;
        let from = self.node_of(request);
        self.vfs
            .rename((from, old_name), (to, new_name), how, request.caller())
    }

    pub(super) fn open_directory(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let handle = self.vfs.open_directory(self.node_of(request))?;
        // The kernel knows every change of names, from its own calls or from notifications.
        out.u64(handle.0)
            .u32(bit::OPEN_KEEP_CACHE | bit::OPEN_CACHE_DIRECTORY)
            .u32(0);
        Ok(())
    }

    pub(super) fn list(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        self.list_while(request, out, &mut |out, entry, room| {
            let fits = listed_bytes(entry) <= room;
            if fits {
                put_listed(out, entry);
            }
            fits
        })
    }

    pub(super) fn list_plus(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let directory = self.node_of(request);
        self.list_while(request, out, &mut |out, entry, room| {
            if ENTRY.saturating_add(listed_bytes(entry)) > room {
                return false;
            }
            // An entry with attributes counts as a reference; the kernel takes none for `.` and
            // `..`.
            let known: Option<Entry> = if entry.is_dot {
                None
            } else {
                // The node may be gone already; the entry then has no attributes.
                self.vfs.revive(entry.node, Some(directory)).ok()
            };
            match known {
                Some(known) => self.put_entry(&known, out),
                None => {
                    out.zeros(ENTRY);
                }
            }
            put_listed(out, entry);
            true
        })
    }

    fn list_while(
        &self,
        request: &mut Request<'_>,
        out: &mut Output,
        put: &mut dyn FnMut(&mut Output, &Listed, usize) -> bool,
    ) -> Result<()> {
        let directory = self.opened(request)?;
        let mut position = request.input.u64()?;
        let most = usize::try_from(request.input.u32()?).map_err(|_| Errno::INVAL)?;
        let most = most.min(super::super::CONTENT_BYTES_MAX);
        loop {
            let used = out.body.len().saturating_sub(OUT_HEADER);
            let could_fit = most.saturating_sub(used) / 32;
            if could_fit == 0 {
                return Ok(());
            }
            let listed = match self.vfs.list(directory, position, could_fit.min(LISTED_AT_ONCE)) {
                Ok(listed) => listed,
                // Return the entries before the error first.
                Err(_) if used > 0 => return Ok(()),
                Err(error) => return Err(error),
            };
            if listed.is_empty() {
                return Ok(());
            }
            for entry in &listed {
                let room = most.saturating_sub(out.body.len().saturating_sub(OUT_HEADER));
                if !put(out, entry, room) {
                    return Ok(());
                }
                position = entry.next;
            }
        }
    }
}

fn listed_bytes(entry: &Listed) -> usize {
    let bytes = LISTED_HEAD.saturating_add(entry.name.len());
    bytes.checked_next_multiple_of(8).unwrap_or(usize::MAX)
}

fn put_listed(out: &mut Output, entry: &Listed) {
    out.u64(entry.node.0)
        .u64(entry.next)
        .u32(u32::try_from(entry.name.len()).unwrap_or(u32::MAX))
        .u32(entry.type_bits >> 12)
        .bytes(&entry.name)
        .align();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_taken_apart() {
        assert_eq!(device_number(0x0103), DeviceNumber { major: 1, minor: 3 });
        // The kernel's form of a device number, as glibc's makedev builds it: 12 bits major, 20
        // bits minor.
        let large = (259 << 8) | 0xde | (0xabc00 << 12);
        assert_eq!(
            device_number(large),
            DeviceNumber {
                major: 259,
                minor: 0xabcde
            }
        );
    }
}
