//! The send stream format: header, framing, commands and attributes, with their numbers and limits.
//!
//! A stream is a header and a sequence of commands. The header is [`MAGIC`] and the version as a
//! little-endian 32-bit number. A command is a header of [`COMMAND_HEADER_BYTES`] (payload length,
//! command number, CRC-32C) and a payload of attributes. An attribute is its number, a length of 16
//! bits, and its value. All numbers are little-endian. The checksum covers header and payload, with
//! the checksum field as zero. The checksum is raw: it starts at 0 and is not inverted.
//!
//! From version 2 on, the attribute [`AttributeKind::Data`] has no length. `Data` is the last
//! attribute of its command and extends to the end of the payload, so its data can exceed 64 KiB.
//!
//! [`CommandKind`] and [`AttributeKind`] are the only tables of numbers, names and types. A table
//! in `buttress-stream` lists the attributes of each command in their order, next to the types that
//! hold them.
//!
//! Source: developer documentation, "Send stream format"; limits in sections "Special cases". The
//! documentation gives the numbers for versions 1 and 2. The kernel's user interface has the same
//! numbers for version 3.

use core::fmt;

/// The magic at the beginning of a stream: 13 bytes, the last of them zero.
pub const MAGIC: [u8; 13] = *b"btrfs-stream\0";

/// The length of a stream's header in bytes: magic and version.
pub const STREAM_HEADER_BYTES: usize = 17;

/// The length of a command's header in bytes: payload length (32 bits), command number (16),
/// checksum (32).
pub const COMMAND_HEADER_BYTES: usize = 10;

/// The offset of the checksum in a command.
pub const COMMAND_CHECKSUM_OFFSET: usize = 6;

/// The bytes before an attribute's value: its number and its length, 16 bits each.
pub const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// The bytes before the value of [`AttributeKind::Data`] from version 2 on: only the attribute's
/// number.
pub const UNSIZED_ATTRIBUTE_HEADER_BYTES: usize = 2;

/// The maximum length of an attribute's value that has a length field.
pub const ATTRIBUTE_BYTES_MAX: usize = u16::MAX as usize;

/// The version of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Version 1, which every kernel and btrfs-progs read.
    V1,
    /// Version 2, of Linux 6.0. Version 2 adds data without a length, encoded writes,
    /// preallocation, file attributes and creation times.
    V2,
    /// Version 3, which adds fs-verity. Version 3 is not final: only kernels built for experiments
    /// write it.
    V3,
}

impl Version {
    /// Every version of the send stream format, in order.
    pub const ALL: [Self; 3] = [Self::V1, Self::V2, Self::V3];

    /// Returns the version with this number, or `None` if it is unknown.
    #[must_use]
    pub const fn from_raw(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            3 => Some(Self::V3),
            _ => None,
        }
    }

    /// The number of the version.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// Returns true if [`AttributeKind::Data`] has no length in this version.
    #[must_use]
    pub const fn has_unsized_data(self) -> bool {
        !matches!(self, Self::V1)
    }

    /// Returns the maximum payload of one command in bytes.
    ///
    /// In version 1, a command with its header fits 64 KiB. Versions after 1 set no limit. The
    /// limit here is far above the 144 KiB that the kernel writes at most, so that a damaged length
    /// cannot cause a huge allocation.
    #[must_use]
    pub const fn payload_bytes_max(self) -> usize {
        match self {
            Self::V1 => (64 << 10) - COMMAND_HEADER_BYTES,
            Self::V2 | Self::V3 => 16 << 20,
        }
    }

    /// Returns the maximum file data, in bytes, that the kernel puts into one write command.
    #[must_use]
    pub const fn write_bytes_max(self) -> usize {
        match self {
            Self::V1 => 48 << 10,
            Self::V2 | Self::V3 => 128 << 10,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_raw(), f)
    }
}

/// The type of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// A byte.
    U8,
    /// 4 bytes.
    U32,
    /// 8 bytes.
    U64,
    /// 16 bytes.
    Uuid,
    /// Seconds in 8 bytes, nanoseconds in 4.
    Time,
    /// A string, such as a path or a name, without a terminating zero.
    String,
    /// Arbitrary bytes.
    Binary,
}

impl ValueType {
    /// Returns the length of a value in bytes, or `None` for strings and binary data, which have
    /// any length.
    #[must_use]
    pub const fn size_bytes(self) -> Option<usize> {
        match self {
            Self::U8 => Some(1),
            Self::U32 => Some(4),
            Self::U64 => Some(8),
            Self::Uuid => Some(16),
            Self::Time => Some(12),
            Self::String | Self::Binary => None,
        }
    }
}

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident, $count:literal {
        $($(#[$doc:meta])* $variant:ident = $number:literal, $text:literal, $version:ident $(, $type:ident)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum $name {
            $($(#[$doc])* $variant = $number,)*
        }

        impl $name {
            /// All values, ordered by their numbers, which count up from 1 without a gap.
            pub const ALL: [Self; $count] = [$(Self::$variant,)*];

            /// Returns the value with this number, or `None`.
            #[must_use]
            pub const fn from_raw(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the number of this value in a send stream.
            #[must_use]
            pub const fn to_raw(self) -> u16 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            /// Returns the name in lower case, as the format's documentation spells it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// Returns the first version of the stream that has this value.
            #[must_use]
            pub const fn version(self) -> Version {
                match self {
                    $(Self::$variant => Version::$version,)*
                }
            }

            numbered!(@types $($variant $($type)?;)*);
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
    (@types $($variant:ident $type:ident;)*) => {
        /// Returns the type of the attribute's value.
        #[must_use]
        pub const fn value_type(self) -> ValueType {
            match self {
                $(Self::$variant => ValueType::$type,)*
            }
        }
    };
    (@types $($variant:ident;)*) => {};
}

numbered! {
    /// A command of a stream.
    CommandKind, 26 {
        /// Begins a full stream of a subvolume.
        Subvolume = 1, "subvol", V1;
        /// Begins a snapshot of a subvolume that the receiver already has.
        Snapshot = 2, "snapshot", V1;
        /// Makes an empty regular file.
        Mkfile = 3, "mkfile", V1;
        /// Makes a directory.
        Mkdir = 4, "mkdir", V1;
        /// Makes a device node.
        Mknod = 5, "mknod", V1;
        /// Makes a named pipe.
        Mkfifo = 6, "mkfifo", V1;
        /// Makes a socket.
        Mksock = 7, "mksock", V1;
        /// Makes a symbolic link.
        Symlink = 8, "symlink", V1;
        /// Renames a file or directory.
        Rename = 9, "rename", V1;
        /// Adds a hard link.
        Link = 10, "link", V1;
        /// Removes a name of an inode that is not a directory.
        Unlink = 11, "unlink", V1;
        /// Removes an empty directory.
        Rmdir = 12, "rmdir", V1;
        /// Sets an extended attribute.
        SetXattr = 13, "set_xattr", V1;
        /// Removes an extended attribute.
        RemoveXattr = 14, "remove_xattr", V1;
        /// Writes file data.
        Write = 15, "write", V1;
        /// Shares a range of another file.
        Clone = 16, "clone", V1;
        /// Sets the size of a file.
        Truncate = 17, "truncate", V1;
        /// Sets the permissions of an inode.
        Chmod = 18, "chmod", V1;
        /// Sets owner and group of an inode.
        Chown = 19, "chown", V1;
        /// Sets the times of an inode.
        Utimes = 20, "utimes", V1;
        /// Ends a stream.
        End = 21, "end", V1;
        /// Reports that a range changed, in a stream without file data.
        UpdateExtent = 22, "update_extent", V1;
        /// Preallocates a range or punches a hole.
        Fallocate = 23, "fallocate", V2;
        /// Sets the inode flags.
        FileAttributes = 24, "fileattr", V2;
        /// Writes compressed file data.
        EncodedWrite = 25, "encoded_write", V2;
        /// Enables fs-verity for a file.
        EnableVerity = 26, "enable_verity", V3;
    }
}

numbered! {
    /// An attribute of a command.
    AttributeKind, 35 {
        /// UUID of the sent subvolume.
        Uuid = 1, "uuid", V1, Uuid;
        /// Generation of the sent subvolume.
        Transid = 2, "ctransid", V1, U64;
        /// Inode number at the sender.
        Inode = 3, "ino", V1, U64;
        /// A size or the length of a range, in bytes.
        Size = 4, "size", V1, U64;
        /// Type and permission bits, or permission bits alone.
        Mode = 5, "mode", V1, U64;
        /// Owner.
        Uid = 6, "uid", V1, U64;
        /// Group.
        Gid = 7, "gid", V1, U64;
        /// Device number.
        Device = 8, "rdev", V1, U64;
        /// Time of the last change of the inode.
        Ctime = 9, "ctime", V1, Time;
        /// Time of the last change of the content.
        Mtime = 10, "mtime", V1, Time;
        /// Time of the last access.
        Atime = 11, "atime", V1, Time;
        /// Time of creation. The format has this number since version 1, but streams use it from
        /// version 2 on.
        Otime = 12, "otime", V2, Time;
        /// Name of an extended attribute.
        XattrName = 13, "xattr_name", V1, String;
        /// Value of an extended attribute.
        XattrData = 14, "xattr_data", V1, Binary;
        /// Path of the command's target, relative to the subvolume.
        Path = 15, "path", V1, String;
        /// New path of a rename.
        PathTo = 16, "path_to", V1, String;
        /// Existing path to which a hard link is made, or target of a symbolic link.
        PathLink = 17, "path_link", V1, String;
        /// Offset in the file.
        FileOffset = 18, "file_offset", V1, U64;
        /// File data; without a length from version 2 on.
        Data = 19, "data", V1, Binary;
        /// UUID of the subvolume from which to clone or snapshot.
        CloneUuid = 20, "clone_uuid", V1, Uuid;
        /// Generation of the subvolume from which to clone or snapshot.
        CloneTransid = 21, "clone_ctransid", V1, U64;
        /// Path of the file from which to clone.
        ClonePath = 22, "clone_path", V1, String;
        /// Offset in the file from which to clone.
        CloneOffset = 23, "clone_offset", V1, U64;
        /// Length of the range to clone.
        CloneLength = 24, "clone_len", V1, U64;
        /// Mode, as fallocate(2) defines it.
        FallocateMode = 25, "fallocate_mode", V2, U32;
        /// Inode flags, with the numbers that btrfs uses on disk.
        FileAttributes = 26, "fileattr", V2, U64;
        /// The bytes of the decompressed content that belong to the file.
        UnencodedFileBytes = 27, "unencoded_file_len", V2, U64;
        /// Length in bytes of the decompressed content of an encoded write.
        UnencodedBytes = 28, "unencoded_len", V2, U64;
        /// Offset in the decompressed content at which the file's part begins.
        UnencodedOffset = 29, "unencoded_offset", V2, U64;
        /// Compression of an encoded write; see [`EncodedCompression`].
        Compression = 30, "compression", V2, U32;
        /// Encryption of an encoded write. The only defined number is 0, for none.
        Encryption = 31, "encryption", V2, U32;
        /// The attribute holds the hash algorithm of fs-verity.
        VerityAlgorithm = 32, "verity_algorithm", V3, U8;
        /// Block size in bytes of fs-verity's Merkle tree.
        VerityBlockSize = 33, "verity_block_size", V3, U32;
        /// Salt of fs-verity.
        VeritySalt = 34, "verity_salt_data", V3, Binary;
        /// The attribute holds the signature of fs-verity.
        VeritySignature = 35, "verity_sig_data", V3, Binary;
    }
}

/// The compression of an encoded write's data. Other numbers have no meaning today.
///
/// Source: the encoded I/O interface, `BTRFS_ENCODED_IO_COMPRESSION_*` of the kernel's user
/// interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EncodedCompression {
    /// Not compressed.
    None = 0,
    /// zlib.
    Zlib = 1,
    /// zstd.
    Zstd = 2,
    /// LZO in btrfs's framing with sectors of 4 KiB.
    Lzo4K = 3,
    /// LZO in btrfs's framing with sectors of 8 KiB.
    Lzo8K = 4,
    /// LZO in btrfs's framing with sectors of 16 KiB.
    Lzo16K = 5,
    /// LZO in btrfs's framing with sectors of 32 KiB.
    Lzo32K = 6,
    /// LZO in btrfs's framing with sectors of 64 KiB.
    Lzo64K = 7,
}

impl EncodedCompression {
    /// All compressions, ordered by number.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Zlib,
        Self::Zstd,
        Self::Lzo4K,
        Self::Lzo8K,
        Self::Lzo16K,
        Self::Lzo32K,
        Self::Lzo64K,
    ];

    /// Returns the number of this compression in a send stream.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        self as u32
    }

    /// Returns the compression with this number, or `None`.
    #[must_use]
    pub fn from_raw(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.to_raw() == number)
    }

    /// Returns LZO with this sector size in bytes, or `None` if the format has no number for it.
    #[must_use]
    pub const fn lzo(sector_bytes: u32) -> Option<Self> {
        match sector_bytes {
            0x1000 => Some(Self::Lzo4K),
            0x2000 => Some(Self::Lzo8K),
            0x4000 => Some(Self::Lzo16K),
            0x8000 => Some(Self::Lzo32K),
            0x1_0000 => Some(Self::Lzo64K),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_are_dense_and_reversible() {
        for (index, kind) in (1_u16..).zip(CommandKind::ALL) {
            assert_eq!(kind.to_raw(), index);
            assert_eq!(CommandKind::from_raw(index), Some(kind));
        }
        for (index, kind) in (1_u16..).zip(AttributeKind::ALL) {
            assert_eq!(kind.to_raw(), index);
            assert_eq!(AttributeKind::from_raw(index), Some(kind));
        }
        for unknown in [0, 27, 36, u16::MAX] {
            assert_eq!(CommandKind::from_raw(unknown), None);
        }
        for unknown in [0, 36, u16::MAX] {
            assert_eq!(AttributeKind::from_raw(unknown), None);
        }
        for compression in EncodedCompression::ALL {
            assert_eq!(
                EncodedCompression::from_raw(compression.to_raw()),
                Some(compression)
            );
        }
        assert_eq!(EncodedCompression::from_raw(8), None);
    }

    #[test]
    fn versions_begin_at_the_documented_numbers() {
        let first = |version| {
            CommandKind::ALL
                .into_iter()
                .find(|kind| kind.version() == version)
        };
        assert_eq!(first(Version::V2), Some(CommandKind::Fallocate));
        assert_eq!(first(Version::V3), Some(CommandKind::EnableVerity));
        for kind in AttributeKind::ALL {
            let expected = match kind.to_raw() {
                12 | 25..=31 => Version::V2,
                32.. => Version::V3,
                _ => Version::V1,
            };
            assert_eq!(kind.version(), expected, "{kind}");
        }
    }

    #[test]
    fn the_largest_write_fits_a_command_with_the_longest_path() {
        for version in Version::ALL {
            let rest = version.payload_bytes_max() - version.write_bytes_max();
            assert!(rest > 4096 + 3 * ATTRIBUTE_HEADER_BYTES + 8);
        }
    }
}
