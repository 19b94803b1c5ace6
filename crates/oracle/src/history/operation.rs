//! The changes of a history.
//!
//! Paths are bytes, relative to the working subvolume. The functions are short names for writing
//! histories down; each returns the change that the command of this name makes.

/// The bytes of a relative path, with `/` between names.
pub type PathBytes = Vec<u8>;

/// The bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes that do not compress, from a seed.
    Noise(u64),
    /// Words that compress well, from a seed.
    Text(u64),
    /// A repeated byte.
    Byte(u8),
}

impl Content {
    /// Returns `length` bytes of this content.
    #[must_use]
    pub fn bytes(self, length: u64) -> Vec<u8> {
        let length = usize::try_from(length).unwrap_or(0);
        match self {
            Self::Noise(seed) => crate::content::Random::new(seed).bytes(length, false),
            Self::Text(seed) => crate::content::Random::new(seed).bytes(length, true),
            Self::Byte(byte) => vec![byte; length],
        }
    }
}

/// Inodes without data and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Character(u32, u32),
    /// A block device.
    Block(u32, u32),
}

/// A byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// The source of a reflink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The index of a snapshot of this history; `None` for the working subvolume.
    pub snapshot: Option<usize>,
    /// The path of the file.
    pub path: PathBytes,
    /// The byte range of the file.
    pub span: Span,
}

/// A change of the working subvolume.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Makes an empty file, which must not exist yet.
    File(PathBytes),
    /// Makes a directory.
    Directory(PathBytes),
    /// Makes a symbolic link: path, target.
    Symlink(PathBytes, Vec<u8>),
    /// Makes a fifo, a socket or a device node.
    Special(PathBytes, Special),
    /// Renames the first path to the second, and replaces an existing file there.
    Rename(PathBytes, PathBytes),
    /// Swaps two names in one system call.
    Exchange(PathBytes, PathBytes),
    /// Gives the first path a further name, the second path.
    Link(PathBytes, PathBytes),
    /// Removes a name, or an empty directory.
    Remove(PathBytes),
    /// Removes a directory with its content.
    RemoveAll(PathBytes),
    /// Writes bytes.
    Write(PathBytes, Span, Content),
    /// Sets the size in bytes.
    Truncate(PathBytes, u64),
    /// Makes a hole; the size stays.
    Punch(PathBytes, Span),
    /// Reserves extents; `true` keeps the size.
    Preallocate(PathBytes, Span, bool),
    /// Makes bytes zero by reserving extents.
    ZeroRange(PathBytes, Span),
    /// Shares extents: from the origin, with the file, at the offset in the file. Sharing needs
    /// aligned ends; the rest is copied.
    Reflink(Origin, PathBytes, u64),
    /// Shares all extents of the first file (in a snapshot, if one is given) with the second.
    ReflinkAll(Option<usize>, PathBytes, PathBytes),
    /// Sets an extended attribute: path, name, value.
    SetXattr(PathBytes, &'static str, Vec<u8>),
    /// Removes an extended attribute.
    RemoveXattr(PathBytes, &'static str),
    /// Sets user and group.
    Owner(PathBytes, u32, u32),
    /// Sets the permission bits.
    Mode(PathBytes, u32),
    /// Sets the times of access and of change, in seconds and nanoseconds.
    Times(PathBytes, (i64, u32), (i64, u32)),
    /// Compresses later writes with `zlib`, `lzo`, `zstd` or `none`.
    Compress(PathBytes, &'static str),
    /// Makes later writes overwrite in place; the file must be empty.
    NoCopyOnWrite(PathBytes),
    /// Makes a nested subvolume.
    Subvolume(PathBytes),
    /// Commits, so that later changes have their own extents and generation.
    Sync,
}

macro_rules! bytes {
    ($($path:expr),*) => { ($(AsRef::<[u8]>::as_ref($path).to_vec()),*) };
}

/// Makes an empty file in the history.
pub fn touch<P: AsRef<[u8]> + ?Sized>(path: &P) -> Operation {
    Operation::File(bytes!(path))
}

/// Makes a directory.
pub fn mkdir<P: AsRef<[u8]> + ?Sized>(path: &P) -> Operation {
    Operation::Directory(bytes!(path))
}

/// Makes a symbolic link to `target`.
pub fn symlink<P: AsRef<[u8]> + ?Sized>(target: &str, path: &P) -> Operation {
    Operation::Symlink(bytes!(path), bytes!(target))
}

/// Renames a path, and replaces an existing file.
pub fn mv<P: AsRef<[u8]> + ?Sized, Q: AsRef<[u8]> + ?Sized>(from: &P, to: &Q) -> Operation {
    Operation::Rename(bytes!(from), bytes!(to))
}

/// Swaps two names.
#[must_use]
pub fn swap(a: &str, b: &str) -> Operation {
    Operation::Exchange(bytes!(a), bytes!(b))
}

/// Gives `existing` the further name `new`.
pub fn link<P: AsRef<[u8]> + ?Sized, Q: AsRef<[u8]> + ?Sized>(existing: &P, new: &Q) -> Operation {
    Operation::Link(bytes!(existing), bytes!(new))
}

/// Removes a file's name or an empty directory.
pub fn rm<P: AsRef<[u8]> + ?Sized>(path: &P) -> Operation {
    Operation::Remove(bytes!(path))
}

/// Removes a directory with its content.
pub fn rm_r<P: AsRef<[u8]> + ?Sized>(path: &P) -> Operation {
    Operation::RemoveAll(bytes!(path))
}

/// Writes noise with the offset as the seed, so that no two places have equal bytes.
pub fn write<P: AsRef<[u8]> + ?Sized>(path: &P, offset: u64, length: u64) -> Operation {
    let path: PathBytes = bytes!(path);
    let seed = path.iter().fold(offset ^ length << 32, |seed, byte| {
        seed.rotate_left(7) ^ u64::from(*byte)
    });
    Operation::Write(path, Span { offset, length }, Content::Noise(seed))
}

/// Writes a repeated byte.
pub fn fill<P: AsRef<[u8]> + ?Sized>(path: &P, offset: u64, length: u64, byte: u8) -> Operation {
    Operation::Write(bytes!(path), Span { offset, length }, Content::Byte(byte))
}

/// Writes words that compress well.
#[must_use]
pub fn write_text(path: &str, offset: u64, length: u64) -> Operation {
    Operation::Write(
        bytes!(path),
        Span { offset, length },
        Content::Text(offset ^ length),
    )
}

/// Sets the size in bytes.
#[must_use]
pub fn truncate(path: &str, size: u64) -> Operation {
    Operation::Truncate(bytes!(path), size)
}

/// Makes a hole.
#[must_use]
pub fn punch(path: &str, offset: u64, length: u64) -> Operation {
    Operation::Punch(bytes!(path), Span { offset, length })
}

/// Reserves extents, also past the end of the file, and keeps the size.
#[must_use]
pub fn preallocate_keeping_size(path: &str, offset: u64, length: u64) -> Operation {
    Operation::Preallocate(bytes!(path), Span { offset, length }, true)
}

/// Reserves extents; the size grows to their end.
#[must_use]
pub fn preallocate(path: &str, offset: u64, length: u64) -> Operation {
    Operation::Preallocate(bytes!(path), Span { offset, length }, false)
}

/// Shares `length` bytes at `offset` of `from` with `to` at `to_offset`, in the working subvolume.
#[must_use]
pub fn reflink(from: &str, offset: u64, length: u64, to: &str, to_offset: u64) -> Operation {
    let origin = Origin {
        snapshot: None,
        path: bytes!(from),
        span: Span { offset, length },
    };
    Operation::Reflink(origin, bytes!(to), to_offset)
}

/// Shares all of `from` with the new file `to`.
#[must_use]
pub fn reflink_all(from: &str, to: &str) -> Operation {
    Operation::ReflinkAll(None, bytes!(from), bytes!(to))
}

/// Sets an extended attribute.
#[must_use]
pub fn set_xattr(path: &str, name: &'static str, value: &[u8]) -> Operation {
    Operation::SetXattr(bytes!(path), name, value.to_vec())
}

/// Removes an extended attribute.
#[must_use]
pub fn remove_xattr(path: &str, name: &'static str) -> Operation {
    Operation::RemoveXattr(bytes!(path), name)
}

/// Sets user and group.
#[must_use]
pub fn chown(path: &str, uid: u32, gid: u32) -> Operation {
    Operation::Owner(bytes!(path), uid, gid)
}

/// Sets the permission bits.
#[must_use]
pub fn chmod(path: &str, mode: u32) -> Operation {
    Operation::Mode(bytes!(path), mode)
}

/// Sets the access and modification times to `seconds`.
#[must_use]
pub fn set_times(path: &str, seconds: i64) -> Operation {
    Operation::Times(bytes!(path), (seconds, 1), (seconds, 999_999_999))
}

/// Compresses later writes.
#[must_use]
pub fn compress(path: &str, algorithm: &'static str) -> Operation {
    Operation::Compress(bytes!(path), algorithm)
}

/// Makes a nested subvolume.
#[must_use]
pub fn nested(path: &str) -> Operation {
    Operation::Subvolume(bytes!(path))
}

/// Makes a fifo, a socket or a device node.
#[must_use]
pub fn special(path: &str, kind: Special) -> Operation {
    Operation::Special(bytes!(path), kind)
}

/// Returns the effective capability to open raw sockets, as version 2 of the xattr.
#[must_use]
pub fn capability() -> Vec<u8> {
    vec![1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Returns a POSIX ACL in the kernel's xattr form: version 2, then (tag, permissions, id) entries.
#[must_use]
pub fn posix_acl(user: u32, permissions: u16) -> Vec<u8> {
    let undefined = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 0o7, undefined),
        (0x02, permissions, user),
        (0x04, 0o5, undefined),
        (0x10, 0o7, undefined),
        (0x20, 0o1, undefined),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}
