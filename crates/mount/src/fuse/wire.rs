//! The bytes of FUSE: numbers of operations and flags, parsing of requests, building of answers.
//!
//! Kernel and server run on one machine, so numbers are in native byte order. Requests come from
//! the kernel, but parsing still checks all bounds and returns `EINVAL` for a request that is too
//! short.
//!
//! Source: `linux/fuse.h`, the kernel's interface to servers, which defines each structure and the
//! FUSE protocol version that added it.

use crate::vfs::{Errno, Result};
use buttress::{FileKind, Metadata, Timestamp};

/// Version of the interface: 7.42, or the kernel's version if that is lower.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 42;
/// Oldest supported minor version. This version has all structures in the sizes used here.
pub(super) const MINOR_MIN: u32 = 33;

pub(super) const ROOT: u64 = 1;
pub(super) const IN_HEADER: usize = 40;
pub(super) const OUT_HEADER: usize = 16;

/// Declares constants.
macro_rules! numbers {
    ($kind:ty: $($name:ident = $value:expr),+ $(,)?) => {
        $(pub(in crate::fuse) const $name: $kind = $value;)+
    };
}

/// Numbers of operations.
pub(super) mod operation {
    numbers! { u32:
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17,
        RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25,
        INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, CREATE = 35, INTERRUPT = 36,
        DESTROY = 38, IOCTL = 39, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45,
        LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
}

/// Capabilities that kernel and server exchange.
pub(super) mod capability {
    numbers! { u64:
        ASYNC_READ = 1 << 0,
        EXPORT_SUPPORT = 1 << 4,
        BIG_WRITES = 1 << 5,
        DONT_MASK = 1 << 6,
        HAS_IOCTL_DIR = 1 << 11,
        DO_READDIRPLUS = 1 << 13,
        READDIRPLUS_AUTO = 1 << 14,
        ASYNC_DIO = 1 << 15,
        WRITEBACK_CACHE = 1 << 16,
        PARALLEL_DIROPS = 1 << 18,
        POSIX_ACL = 1 << 20,
        MAX_PAGES = 1 << 22,
        CACHE_SYMLINKS = 1 << 23,
        EXPLICIT_INVAL_DATA = 1 << 25,
        HANDLE_KILLPRIV_V2 = 1 << 28,
        SETXATTR_EXT = 1 << 29,
        INIT_EXT = 1 << 30,
        DIRECT_IO_ALLOW_MMAP = 1 << 36,
        OVER_IO_URING = 1 << 41,
    }
}

/// Bits of flag fields.
pub(super) mod bit {
    numbers! { u32:
        SET_MODE = 1 << 0, SET_UID = 1 << 1, SET_GID = 1 << 2, SET_SIZE = 1 << 3, SET_ATIME = 1 << 4,
        SET_MTIME = 1 << 5, SET_HANDLE = 1 << 6, SET_ATIME_NOW = 1 << 7, SET_MTIME_NOW = 1 << 8,
        SET_CTIME = 1 << 10, SET_KILL_PRIVILEGES = 1 << 11,
        OPEN_KEEP_CACHE = 1 << 1, OPEN_CACHE_DIRECTORY = 1 << 3, OPEN_PARALLEL_DIRECT_WRITES = 1 << 6,
        OPEN_IN_KILL_PRIVILEGES = 1 << 0,
        READ_LOCK_OWNER = 1 << 1,
        WRITE_CACHE = 1 << 0, WRITE_KILL_PRIVILEGES = 1 << 2,
        FSYNC_DATA = 1 << 0,
        SETXATTR_KILL_SET_GROUP = 1 << 0,
    }
}

/// Parser of a request. The request is in one buffer, or in two buffers with no field across both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    piece: &'a [u8],
    next: &'a [u8],
}

impl<'a> Input<'a> {
    pub(super) const fn of(piece: &'a [u8]) -> Self {
        Self { piece, next: &[] }
    }

    pub(super) const fn of_two(piece: &'a [u8], next: &'a [u8]) -> Self {
        Self { piece, next }
    }

    /// Returns the buffer that holds the next field.
    fn piece(&mut self) -> &mut &'a [u8] {
        if self.piece.is_empty() {
            self.piece = core::mem::take(&mut self.next);
        }
        &mut self.piece
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let piece = self.piece();
        let (first, rest) = piece.split_first_chunk().ok_or(Errno::INVAL)?;
        *piece = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Result<()> {
        self.bytes(bytes).map(drop)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let piece = self.piece();
        let (first, rest) = piece.split_at_checked(count).ok_or(Errno::INVAL)?;
        *piece = rest;
        Ok(first)
    }

    /// Parses a name that ends with a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a [u8]> {
        let end = self
            .piece()
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Errno::INVAL)?;
        let name = self.bytes(end)?;
        self.skip(1)?;
        Ok(name)
    }
}

/// Header of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) bytes: usize,
    pub(super) operation: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
}

impl Header {
    pub(super) fn parse(input: &mut Input<'_>) -> Result<Self> {
        let bytes = usize::try_from(input.u32()?).map_err(|_| Errno::INVAL)?;
        let header = Self {
            bytes,
            operation: input.u32()?,
            unique: input.u64()?,
            node: input.u64()?,
            uid: input.u32()?,
            gid: input.u32()?,
            pid: input.u32()?,
        };
        // The server requested no extensions, so the kernel sends none.
        let _extensions = input.u16()?;
        input.skip(2)?;
        Ok(header)
    }
}

/// Content of an answer, in reused memory that is not cleared: own memory, or the memory of the
/// request.
#[derive(Debug, Default)]
pub(super) struct Following<'a> {
    memory: Vec<u8>,
    lent: Option<&'a mut [u8]>,
    length: usize,
}

impl<'a> Following<'a> {
    /// Creates content in lent memory.
    pub(super) fn within(lent: &'a mut [u8]) -> Self {
        Self {
            lent: Some(lent),
            ..Self::default()
        }
    }

    /// Returns a buffer of `bytes` bytes. The caller overwrites all of the lent memory, or calls
    /// [`Following::keep`] with the number of written bytes.
    pub(super) fn take(&mut self, bytes: usize) -> &mut [u8] {
        self.length = bytes;
        // If the memory that the caller lends is too small, it stays unused.
        self.lent = self.lent.take().filter(|lent| lent.len() >= bytes);
        if self.lent.is_none() && self.memory.len() < bytes {
            self.memory.resize(bytes, 0);
        }
        let memory = self.lent.as_deref_mut().unwrap_or(&mut self.memory);
        memory.get_mut(..bytes).unwrap_or_default()
    }

    /// Sets the number of written bytes.
    pub(super) fn keep(&mut self, bytes: usize) {
        self.length = bytes;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let memory = self.lent.as_deref().unwrap_or(&self.memory);
        memory.get(..self.length).unwrap_or_default()
    }

    /// Returns the location of the content.
    pub(super) fn into_kept(self) -> Kept {
        if self.lent.is_some() {
            return Kept::InPlace(self.length);
        }
        let mut memory = self.memory;
        memory.truncate(self.length);
        Kept::Apart(memory)
    }
}

/// Location of the content of an answer to the kernel.
#[derive(Debug)]
pub(super) enum Kept {
    /// The answer is this number of bytes at the beginning of the lent memory.
    InPlace(usize),
    /// Bytes in own memory.
    Apart(Vec<u8>),
}

/// Builder of an answer to the kernel.
#[derive(Debug, Default)]
pub(super) struct Output<'a> {
    pub(super) body: Vec<u8>,
    pub(super) content: Following<'a>,
}

impl Output<'_> {
    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(bytes);
        self
    }

    pub(super) fn zeros(&mut self, count: usize) -> &mut Self {
        self.body.resize(self.body.len().saturating_add(count), 0);
        self
    }

    /// Pads the answer to a multiple of eight bytes.
    pub(super) fn align(&mut self) -> &mut Self {
        let whole = self.body.len().checked_next_multiple_of(8).unwrap_or(0);
        self.body.resize(whole.max(self.body.len()), 0);
        self
    }

    /// Appends a `fuse_attr` structure.
    pub(super) fn attributes(&mut self, number: u64, metadata: &Metadata) -> &mut Self {
        self.u64(number)
            .u64(metadata.size.get())
            .u64(metadata.blocks_512())
            .i64(metadata.accessed.seconds)
            .i64(metadata.modified.seconds)
            .i64(metadata.changed.seconds)
            .u32(nanoseconds(metadata.accessed))
            .u32(nanoseconds(metadata.modified))
            .u32(nanoseconds(metadata.changed))
            .u32(shown_mode(metadata))
            .u32(metadata.nlink)
            .u32(metadata.uid)
            .u32(metadata.gid)
            .u32(device_of(metadata))
            .u32(metadata.block_bytes)
            .u32(0)
    }

    /// Appends a `fuse_entry_out` structure.
    pub(super) fn entry(
        &mut self,
        node: u64,
        generation: u64,
        (name_lasts, lasts): (u64, u64),
        number: u64,
        metadata: &Metadata,
    ) -> &mut Self {
        self.u64(node)
            .u64(generation)
            .u64(name_lasts)
            .u64(lasts)
            .u32(0)
            .u32(0)
            .attributes(number, metadata)
    }

    fn statx_time(&mut self, time: Timestamp) -> &mut Self {
        self.i64(time.seconds).u32(nanoseconds(time)).u32(0)
    }

    /// Appends a `fuse_statx_out` structure.
    pub(super) fn statx(&mut self, lasts: u64, number: u64, metadata: &Metadata) -> &mut Self {
        const BASIC: u32 = 0x7ff;
        const BIRTH: u32 = 0x800;
        let mode = u16::try_from(shown_mode(metadata) & 0xffff).unwrap_or(0);
        let mask = if metadata.created.is_some() {
            BASIC | BIRTH
        } else {
            BASIC
        };
        let device = metadata.device;
        self.u64(lasts).u32(0).u32(0).zeros(16);
        self.u32(mask)
            .u32(metadata.block_bytes)
            .u64(0)
            .u32(metadata.nlink)
            .u32(metadata.uid)
            .u32(metadata.gid)
            .u16(mode)
            .u16(0)
            .u64(number)
            .u64(metadata.size.get())
            .u64(metadata.blocks_512())
            .u64(0)
            .statx_time(metadata.accessed)
            .statx_time(metadata.created.unwrap_or_default())
            .statx_time(metadata.changed)
            .statx_time(metadata.modified)
            .u32(device.map_or(0, |device| device.major))
            .u32(device.map_or(0, |device| device.minor))
            .zeros(8)
            .zeros(14 * 8)
    }
}

/// Returns the nanoseconds of a time. The kernel refuses values of a second or more.
const fn nanoseconds(time: Timestamp) -> u32 {
    if time.nanoseconds < 1_000_000_000 {
        time.nanoseconds
    } else {
        0
    }
}

/// Returns the mode with a type that the kernel knows. The kernel closes the connection for any
/// other type.
fn shown_mode(metadata: &Metadata) -> u32 {
    match metadata.kind {
        FileKind::Unknown | FileKind::Xattr => libc::S_IFREG,
        _ => metadata.mode & 0xffff,
    }
}

/// Returns a device number in the form that the kernel shows to programs.
fn device_of(metadata: &Metadata) -> u32 {
    let Some(device) = metadata.device else { return 0 };
    (device.minor & 0xff) | (device.major << 8) | ((device.minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_short_input_is_invalid() {
        let mut input = Input::of(&[1, 2, 3]);
        assert_eq!(input.u32(), Err(Errno::INVAL));
        assert_eq!(input.name(), Err(Errno::INVAL));
        assert_eq!(input.bytes(4), Err(Errno::INVAL));
        assert_eq!(input.bytes(3), Ok(&[1, 2, 3][..]));
        assert!(matches!(
            Header::parse(&mut Input::of(&[0; IN_HEADER - 1])),
            Err(Errno::INVAL)
        ));
        assert!(Header::parse(&mut Input::of(&[0; IN_HEADER])).is_ok());
    }

    #[test]
    fn a_request_may_lie_in_two_pieces() {
        let mut input = Input::of_two(&[1, 0, 0, 0], b"name\0rest");
        assert_eq!(input.u32(), Ok(1));
        assert_eq!(input.name(), Ok(&b"name"[..]));
        assert_eq!(input.bytes(4), Ok(&b"rest"[..]));
        assert_eq!(input.u16(), Err(Errno::INVAL));
        // A request field must not cross both buffers.
        assert_eq!(Input::of_two(&[1, 0], &[0, 0]).u32(), Err(Errno::INVAL));
    }

    #[test]
    fn content_is_written_into_memory_that_is_lent_if_it_fits() {
        let mut memory = [0; 4];
        let mut content = Following::within(&mut memory);
        content.take(3).copy_from_slice(b"abc");
        content.keep(2);
        assert_eq!(content.bytes(), b"ab");
        assert!(matches!(content.into_kept(), Kept::InPlace(2)));
        assert_eq!(&memory, b"abc\0");
        let mut content = Following::within(&mut memory);
        content.take(5).copy_from_slice(b"fghij");
        assert!(matches!(content.into_kept(), Kept::Apart(kept) if kept == b"fghij"));
    }

    #[test]
    fn names_end_with_a_zero_byte() {
        let mut input = Input::of(b"one\0two\0three");
        assert_eq!(input.name(), Ok(&b"one"[..]));
        assert_eq!(input.name(), Ok(&b"two"[..]));
        assert_eq!(input.name(), Err(Errno::INVAL));
    }
}
