//! Requests about attributes, and control commands.

use super::{Reply, Request, Server, shown_number};
use crate::fuse::wire::{Output, bit};
use crate::vfs::{Changes, Control, Errno, HandleId, NewTime, Result, SetHow, Shown};
use buttress::Timestamp;

/// Prefix of extended attributes that only root can access.
const TRUSTED: &[u8] = b"trusted.";

impl Server {
    pub(super) fn attributes(&self, request: &Request<'_>, out: &mut Output) -> Result<()> {
        let node = self.node_of(request);
        let shown = self.vfs.attributes(node)?;
        self.put_attributes(node, &shown, out);
        Ok(())
    }

    pub(super) fn statx(&self, request: &Request<'_>, out: &mut Output) -> Result<()> {
        let node = self.node_of(request);
        let Shown { metadata, lasts_s } = self.vfs.attributes(node)?;
        out.statx(lasts_s, shown_number(node, &metadata), &metadata);
        Ok(())
    }

    pub(super) fn set_attributes(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let node = self.node_of(request);
        let changes = changes_in(request)?;
        let shown = self.vfs.change(node, &changes)?;
        self.put_attributes(node, &shown, out);
        Ok(())
    }

    pub(super) fn read_link(&self, request: &Request<'_>, out: &mut Output) -> Result<()> {
        out.bytes(&self.vfs.read_link(self.node_of(request))?);
        Ok(())
    }

    pub(super) fn statistics(&self, out: &mut Output) -> Result<()> {
        let statistics = self.vfs.statistics()?;
        out.u64(statistics.blocks)
            .u64(statistics.free)
            .u64(statistics.available)
            .u64(0)
            .u64(0)
            .u32(statistics.block_bytes)
            .u32(statistics.name_bytes_max)
            .u32(statistics.block_bytes)
            .zeros(28);
        Ok(())
    }

    pub(super) fn xattr(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let room = request.input.u32()?;
        request.input.skip(4)?;
        let value = self.vfs.xattr(self.node_of(request), request.input.name()?)?;
        put_sized(&value, room, out)
    }

    pub(super) fn xattr_names(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let room = request.input.u32()?;
        let mut list = Vec::new();
        for name in self.vfs.xattr_names(self.node_of(request))? {
            if request.header.uid == 0 || !name.starts_with(TRUSTED) {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        put_sized(&list, room, out)
    }

    pub(super) fn set_xattr(&self, request: &mut Request<'_>) -> Result<()> {
        let bytes = usize::try_from(request.input.u32()?).map_err(|_| Errno::INVAL)?;
        let (flags, further) = (request.input.u32()?, request.input.u32()?);
        request.input.skip(4)?;
        let name = request.input.name()?;
        let value = request.input.bytes(bytes)?;
        let how = match i32::try_from(flags).map_err(|_| Errno::INVAL)? {
            0 => SetHow::CreateOrReplace,
            libc::XATTR_CREATE => SetHow::Create,
            libc::XATTR_REPLACE => SetHow::Replace,
            _ => return Err(Errno::INVAL),
        };
        let drop_set_group = further & bit::SETXATTR_KILL_SET_GROUP != 0;
        self.vfs
            .set_xattr(self.node_of(request), name, value, how, drop_set_group)
    }

    pub(super) fn remove_xattr(&self, request: &mut Request<'_>) -> Result<()> {
        let name = request.input.name()?;
        self.vfs.remove_xattr(self.node_of(request), name)
    }

    pub(super) fn control(&self, request: &mut Request<'_>, out: &mut Output) -> Result<Reply> {
        let _handle = request.input.u64()?;
        let _flags = request.input.u32()?;
        let command = request.input.u32()?;
        let argument = request.input.u64()?;
        let size = |bytes: u32| usize::try_from(bytes).map_err(|_| Errno::INVAL);
        let (input_bytes, output_bytes) = (size(request.input.u32()?)?, size(request.input.u32()?)?);
        let interruptible = self.interrupts.begin(request.header.unique);
        let control = Control {
            command,
            input: request.input.bytes(input_bytes)?,
            output_bytes,
            argument,
            caller: request.caller(),
            progress: &interruptible.progress,
        };
        let answered = self.vfs.control(self.node_of(request), &control)?;
        let bytes = answered.bytes.get(..output_bytes).unwrap_or(&answered.bytes);
        out.bytes(&answered.result.wrapping_neg().to_ne_bytes())
            .u32(0)
            .u32(0)
            .u32(0)
            .bytes(bytes);
        Ok(match answered.stale.is_empty() {
            true => Reply::Answer,
            false => Reply::After(answered.stale),
        })
    }
}

/// Returns whether a request sets the modification time but not the size. A change of size is
/// itself a change of content.
pub(super) fn sets_modification_time(request: &Request<'_>) -> Result<bool> {
    let mut input = request.input;
    let valid = input.u32()?;
    Ok(valid & bit::SET_MTIME != 0 && valid & bit::SET_SIZE == 0)
}

/// Parses the number of a control command.
pub(super) fn command_in(request: &Request<'_>) -> Result<u32> {
    let mut input = request.input;
    input.skip(12)?;
    input.u32()
}

/// Writes a value, or its length if the caller's buffer has no space.
fn put_sized(value: &[u8], room: u32, out: &mut Output) -> Result<()> {
    let length = u32::try_from(value.len()).map_err(|_| Errno::RANGE)?;
    if room == 0 {
        out.u32(length).u32(0);
        return Ok(());
    }
    if length > room {
        return Err(Errno::RANGE);
    }
    out.bytes(value);
    Ok(())
}

fn changes_in(request: &mut Request<'_>) -> Result<Changes> {
    let input = &mut request.input;
    let valid = input.u32()?;
    input.skip(4)?;
    let handle = input.u64()?;
    let size = input.u64()?;
    input.skip(8)?;
    let mut seconds = || input.u64().map(u64::cast_signed);
    let (accessed, modified, changed) = (seconds()?, seconds()?, seconds()?);
    let mut parts = || input.u32();
    let (accessed_parts, modified_parts, changed_parts) = (parts()?, parts()?, parts()?);
    let mode = input.u32()?;
    input.skip(4)?;
    let (uid, gid) = (input.u32()?, input.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |seconds: i64, nanoseconds: u32| Timestamp { seconds, nanoseconds };
    let new_time = |is_given: u32, is_now: u32, time: Timestamp| match (has(is_given), has(is_now)) {
        (_, true) => Some(NewTime::Now),
        (true, false) => Some(NewTime::At(time)),
        (false, false) => None,
    };
    Ok(Changes {
        mode: has(bit::SET_MODE).then_some(mode),
        uid: has(bit::SET_UID).then_some(uid),
        gid: has(bit::SET_GID).then_some(gid),
        size: has(bit::SET_SIZE).then_some(size),
        accessed: new_time(bit::SET_ATIME, bit::SET_ATIME_NOW, time(accessed, accessed_parts)),
        modified: new_time(bit::SET_MTIME, bit::SET_MTIME_NOW, time(modified, modified_parts)),
        changed: has(bit::SET_CTIME).then(|| time(changed, changed_parts)),
        drop_privileges: has(bit::SET_KILL_PRIVILEGES),
        handle: has(bit::SET_HANDLE).then_some(HandleId(handle)),
    })
}
