//! The commands of a send stream as one enum, generated from one table of their fields.
//!
//! [`Command`] borrows its paths, names and data from their owner: the buffer of a decoder, or the blocks of a tree.
//! Paths are bytes, relative to the subvolume, without a slash at either end; the empty path means the subvolume
//! itself. Numbers are as wide as on the wire, so every decoded command encodes again to the same bytes.
//!
//! The table below lists the fields of each command in the order in which the kernel writes their attributes. The
//! enum, [`Command::kind`], the visitor of all attributes and the decoder are generated from the table. An `Option`
//! field is an attribute that a stream may lack; re-encoding does not add it. The compiler checks that the type of
//! each field fits its attribute.
//!
//! Source: developer documentation, "Send stream format", sections "Stream version 1" and "Stream version 2". The
//! attributes that the documentation leaves out (the inode number and the device of pipes and sockets), and version
//! 3, follow what kernels write.

mod plain;
mod value;

pub use plain::PathForm;
pub use value::{Field, Value};

use crate::error::CommandProblem;
use buttress_format::send::{AttributeKind, CommandKind};
use buttress_format::{ByteCount, FileOffset, Generation, InodeNumber, Timestamp, Uuid};

/// Source of the attributes of one command, by kind; decoders implement it.
pub trait AttributeSource<'a> {
    /// Returns the value of the attribute of this kind, if the command has one.
    fn attribute(&self, kind: AttributeKind) -> Option<&'a [u8]>;
}

/// Receiver that takes the attributes of a command, one after another.
pub trait AttributeSink {
    /// Error with which the sink ends a visit.
    type Error;

    /// Accepts the next attribute of the stream command.
    ///
    /// # Errors
    /// Any error of the sink. The visitor stops at the first error.
    fn attribute(&mut self, kind: AttributeKind, value: Value<'_>) -> Result<(), Self::Error>;
}

macro_rules! commands {
    ($(
        $(#[$meta:meta])*
        $variant:ident {$(
            $(#[$field_meta:meta])*
            $field:ident: $type:ty = $attribute:ident,
        )*}
    )* ; $(
        $(#[$unit_meta:meta])*
        $unit:ident
    )*) => {
        /// One command of a send stream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command<'a> {
            $($(#[$meta])* $variant {$($(#[$field_meta])* $field: $type,)*},)*
            $($(#[$unit_meta])* $unit,)*
        }

        impl<'a> Command<'a> {
            /// Returns the kind of this command.
            #[must_use]
            pub const fn kind(&self) -> CommandKind {
                match self {
                    $(Self::$variant { .. } => CommandKind::$variant,)*
                    $(Self::$unit => CommandKind::$unit,)*
                }
            }

            /// Lists the attributes that a command of this kind may have, in wire order.
            #[must_use]
            pub const fn attributes_of(kind: CommandKind) -> &'static [AttributeKind] {
                match kind {
                    $(CommandKind::$variant => &[$(AttributeKind::$attribute,)*],)*
                    $(CommandKind::$unit => &[],)*
                }
            }

            /// Returns [`Command::attributes_of`] as a bit set: bit N stands for the attribute with
            /// number N.
            pub(crate) const fn attribute_set(kind: CommandKind) -> u64 {
                match kind {
                    $(CommandKind::$variant => 0 $(| (1 << AttributeKind::$attribute.to_raw()))*,)*
                    $(CommandKind::$unit => 0,)*
                }
            }

            /// Passes each attribute of this command to `sink`, in wire order.
            ///
            /// # Errors
            /// Returns the first error of `sink`.
            #[inline]
            pub fn visit<S: AttributeSink>(&self, sink: &mut S) -> Result<(), S::Error> {
                match *self {
                    $(Self::$variant { $($field,)* } => {
                        $(if let Some(value) = Field::value($field) {
                            sink.attribute(AttributeKind::$attribute, value)?;
                        })*
                    })*
                    $(Self::$unit => {})*
                }
                Ok(())
            }

            /// Returns the command with `map` applied to each path inside the subvolume, except the target of a link.
            fn map_most_paths(self, map: &mut impl FnMut(&'a [u8]) -> &'a [u8]) -> Self {
                match self {
                    $(Self::$variant { $($field,)* } => Self::$variant {
                        $($field: Field::map_path($field, AttributeKind::$attribute, map),)*
                    },)*
                    $(Self::$unit => Self::$unit,)*
                }
            }

            /// Builds a command of `kind` from its attributes.
            ///
            /// # Errors
            /// [`CommandProblem::AttributeMissing`] or [`CommandProblem::AttributeLength`].
            #[inline]
            pub fn from_attributes(
                kind: CommandKind,
                source: &impl AttributeSource<'a>,
            ) -> Result<Self, CommandProblem> {
                Ok(match kind {
                    $(CommandKind::$variant => Self::$variant {
                        $($field: Field::from_bytes(
                            AttributeKind::$attribute,
                            source.attribute(AttributeKind::$attribute),
                        )?,)*
                    },)*
                    $(CommandKind::$unit => Self::$unit,)*
                })
            }
        }

        impl<'a> Command<'a> {
            /// Compile-time check that each field fits its attribute; a `const` below evaluates it.
            const FIELDS_FIT: () = {
                $($(assert!(
                    value::fits(<$type as Field<'a>>::SIZE_BYTES, AttributeKind::$attribute),
                    "the type of a field does not fit its attribute"
                );)*)*
            };
        }

        const _: () = Command::<'static>::FIELDS_FIT;
    };
}

commands! {
    /// Begins a subvolume that starts empty.
    Subvolume {
        /// Name of the new subvolume.
        path: &'a [u8] = Path,
        /// UUID of the subvolume at the sender, or of the subvolume that the sender received it
        /// from.
        uuid: Uuid = Uuid,
        /// Generation at which the subvolume last changed.
        transid: Generation = Transid,
    }
    /// Begins a subvolume that starts as a snapshot of an earlier one.
    Snapshot {
        /// Name of the new subvolume.
        path: &'a [u8] = Path,
        /// UUID of the new subvolume at the sender, or of the subvolume that the sender received it
        /// from.
        uuid: Uuid = Uuid,
        /// Generation at which the new subvolume last changed.
        transid: Generation = Transid,
        /// UUID of the earlier subvolume.
        clone_uuid: Uuid = CloneUuid,
        /// Generation at which the earlier subvolume last changed.
        clone_transid: Generation = CloneTransid,
    }
    /// Creates an empty regular file.
    Mkfile {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
    }
    /// Creates a directory.
    Mkdir {
        /// Path of the directory.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
    }
    /// Creates a device node.
    Mknod {
        /// Path of the device node.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Device number in the kernel's wide form: minor in bits 0-7 and 20-31, major in bits 8-19.
        device: u64 = Device,
        /// Type and permission bits.
        mode: u64 = Mode,
    }
    /// Creates a named pipe.
    Mkfifo {
        /// Path of the named pipe.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Device number of the pipe's inode item. A device number has no meaning for a pipe; the
        /// kernel sends the number anyway.
        device: Option<u64> = Device,
        /// Type and permission bits.
        mode: Option<u64> = Mode,
    }
    /// Creates a socket.
    Mksock {
        /// Path of the socket.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Device number of the socket's inode item. It has no meaning for a socket; the kernel
        /// sends it anyway.
        device: Option<u64> = Device,
        /// Type and permission bits.
        mode: Option<u64> = Mode,
    }
    /// Creates a symbolic link.
    Symlink {
        /// Path of the symbolic link.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Target path that the symbolic link contains.
        target: &'a [u8] = PathLink,
    }
    /// Renames a file or directory.
    Rename {
        /// Old path of the file or directory.
        from: &'a [u8] = Path,
        /// New path of the file or directory.
        to: &'a [u8] = PathTo,
    }
    /// Adds a hard link to a file.
    Link {
        /// New path of the file.
        path: &'a [u8] = Path,
        /// Existing path of the file.
        target: &'a [u8] = PathLink,
    }
    /// Removes a name of anything but a directory.
    Unlink {
        /// Path to remove.
        path: &'a [u8] = Path,
    }
    /// Removes an empty directory.
    Rmdir {
        /// Path of the directory to remove.
        path: &'a [u8] = Path,
    }
    /// Sets an extended attribute.
    SetXattr {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Name of the extended attribute with its prefix: `user.…`.
        name: &'a [u8] = XattrName,
        /// Value of the extended attribute.
        value: &'a [u8] = XattrData,
    }
    /// Removes an extended attribute.
    RemoveXattr {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Name of the extended attribute with its prefix.
        name: &'a [u8] = XattrName,
    }
    /// Writes file data.
    Write {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Byte offset of the data in the file.
        offset: FileOffset = FileOffset,
        /// Bytes to write.
        data: &'a [u8] = Data,
    }
    /// Clones a range of another file, or another range of the same file.
    Clone {
        /// Byte offset of the clone in the target file.
        offset: FileOffset = FileOffset,
        /// Length of the cloned range in bytes.
        length: ByteCount = CloneLength,
        /// Path of the target file.
        path: &'a [u8] = Path,
        /// UUID of the subvolume to clone from.
        source_uuid: Uuid = CloneUuid,
        /// Generation at which that subvolume last changed.
        source_transid: Generation = CloneTransid,
        /// Path of the source file in that subvolume.
        source_path: &'a [u8] = ClonePath,
        /// Byte offset of the range in the source file.
        source_offset: FileOffset = CloneOffset,
    }
    /// Sets the size of a file.
    Truncate {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// New size of the file in bytes.
        size: ByteCount = Size,
    }
    /// Sets the permissions of a file.
    Chmod {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Permission bits, with set-user-id, set-group-id and sticky.
        mode: u64 = Mode,
    }
    /// Sets owner and group of a file.
    Chown {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// User id of the owner.
        uid: u64 = Uid,
        /// Group id.
        gid: u64 = Gid,
    }
    /// Sets the timestamps of a file.
    Utimes {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Last access.
        atime: Timestamp = Atime,
        /// Time of the last access.
        mtime: Timestamp = Mtime,
        /// Time of the last change of the content.
        ctime: Timestamp = Ctime,
        /// Creation time; present from stream version 2 on.
        otime: Option<Timestamp> = Otime,
    }
    /// Marks a range of a file as changed, in a stream without file data.
    UpdateExtent {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Byte offset of the changed range in the file.
        offset: FileOffset = FileOffset,
        /// Length of the changed range in bytes.
        length: ByteCount = Size,
    }
    /// Preallocates, punches or zeroes a range of a file.
    Fallocate {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Mode of fallocate(2).
        mode: u32 = FallocateMode,
        /// Byte offset of the range in the file.
        offset: FileOffset = FileOffset,
        /// Length of the range in bytes.
        length: ByteCount = Size,
    }
    /// Sets the flags of an inode.
    FileAttributes {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Flags in the form of the inode item.
        attributes: u64 = FileAttributes,
    }
    /// Writes file data in the compressed form that the extent has on disk.
    EncodedWrite {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Byte offset of the data in the file.
        offset: FileOffset = FileOffset,
        /// Number of decoded bytes that belong to the file.
        unencoded_file_bytes: ByteCount = UnencodedFileBytes,
        /// Length of the decoded content in bytes.
        unencoded_bytes: ByteCount = UnencodedBytes,
        /// Offset in the decoded content at which the file's part begins.
        unencoded_offset: ByteCount = UnencodedOffset,
        /// Compression of the data, as the number of an
        /// [`EncodedCompression`](buttress_format::send::EncodedCompression). A command without
        /// this attribute holds uncompressed data.
        compression: Option<u32> = Compression,
        /// Encryption of the data. A command without this attribute holds unencrypted data, as does
        /// the value 0.
        encryption: Option<u32> = Encryption,
        /// The encoded bytes of the extent.
        data: &'a [u8] = Data,
    }
    /// Enables fs-verity for a file.
    EnableVerity {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Number of the hash algorithm.
        algorithm: u8 = VerityAlgorithm,
        /// Block size of the Merkle tree in bytes.
        block_size: u32 = VerityBlockSize,
        /// Salt of the Merkle tree.
        salt: &'a [u8] = VeritySalt,
        /// Signature of the file's digest.
        signature: &'a [u8] = VeritySignature,
    }
    ;
    /// Ends a stream.
    End
}

impl<'a> Command<'a> {
    /// Returns the path that the command changes: for a rename, the old path. The end command has
    /// no path.
    #[must_use]
    pub const fn path(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Subvolume { path, .. }
            | Self::Snapshot { path, .. }
            | Self::Mkfile { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Mknod { path, .. }
            | Self::Mkfifo { path, .. }
            | Self::Mksock { path, .. }
            | Self::Symlink { path, .. }
            | Self::Rename { from: path, .. }
            | Self::Link { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::Write { path, .. }
            | Self::Clone { path, .. }
            | Self::Truncate { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimes { path, .. }
            | Self::UpdateExtent { path, .. }
            | Self::Fallocate { path, .. }
            | Self::FileAttributes { path, .. }
            | Self::EncodedWrite { path, .. }
            | Self::EnableVerity { path, .. } => Some(path),
            Self::End => None,
        }
    }
}
