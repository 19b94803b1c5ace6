//! The commands of a stream as one type, and the one table of what each is made of.
//!
//! [`Command`] borrows paths, names and data from wherever they lie: the buffer of a decoder, the blocks of a
//! tree. Paths are bytes, relative to the subvolume, without a slash at either end; the subvolume itself is the
//! empty path. Numbers are as wide as on the wire, so that every command that can be decoded is encoded again
//! to the same bytes.
//!
//! The table below gives for each command its fields in the order in which the kernel writes their attributes;
//! the enum, [`Command::kind`], the visit of all attributes and decoding come from it. An `Option` is what a
//! stream may lack, which is kept as it is. That a field's type fits its attribute's is checked when this
//! compiles.
//!
//! Source: developer documentation, "Send stream format", sections "Stream version 1" and "Stream version 2";
//! what the documentation leaves out of a command (the inode number and the device of pipes and sockets), and
//! version 3, as kernels write them.

mod plain;
mod value;

pub use plain::PathForm;
pub use value::{Field, Value};

use crate::error::CommandProblem;
use buttress_format::send::{AttributeKind, CommandKind};
use buttress_format::{ByteCount, FileOffset, Generation, InodeNumber, Timestamp, Uuid};

/// Where the attributes of one command are found by kind. What a decoder fills.
pub trait AttributeSource<'a> {
    /// The value of an attribute of this kind, if the command has it.
    fn attribute(&self, kind: AttributeKind) -> Option<&'a [u8]>;
}

/// What is done with each attribute of a command in turn.
pub trait AttributeSink {
    /// What it may fail with.
    type Error;

    /// Takes the next attribute.
    ///
    /// # Errors
    /// Whatever the sink fails with; the visit ends there.
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
        /// One command of a stream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command<'a> {
            $($(#[$meta])* $variant {$($(#[$field_meta])* $field: $type,)*},)*
            $($(#[$unit_meta])* $unit,)*
        }

        impl<'a> Command<'a> {
            /// Which command it is.
            #[must_use]
            pub const fn kind(&self) -> CommandKind {
                match self {
                    $(Self::$variant { .. } => CommandKind::$variant,)*
                    $(Self::$unit => CommandKind::$unit,)*
                }
            }

            /// The attributes that a command of this kind may have, in the order of the wire.
            #[must_use]
            pub const fn attributes_of(kind: CommandKind) -> &'static [AttributeKind] {
                match kind {
                    $(CommandKind::$variant => &[$(AttributeKind::$attribute,)*],)*
                    $(CommandKind::$unit => &[],)*
                }
            }

            /// [`Command::attributes_of`] as a set: bit N is the attribute with number N.
            pub(crate) const fn attribute_set(kind: CommandKind) -> u64 {
                match kind {
                    $(CommandKind::$variant => 0 $(| (1 << AttributeKind::$attribute.to_raw()))*,)*
                    $(CommandKind::$unit => 0,)*
                }
            }

            /// Hands each attribute that the command has to `sink`, in the order of the wire.
            ///
            /// # Errors
            /// The first error of `sink`.
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

            /// Makes a command of `kind` from its attributes.
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
            /// Evaluated below: a field that does not fit its attribute does not compile.
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
    /// Begins a subvolume that is made from nothing.
    Subvolume {
        /// Name of the subvolume.
        path: &'a [u8] = Path,
        /// UUID of the subvolume at the sender, or what it was received from.
        uuid: Uuid = Uuid,
        /// Generation at which it last changed.
        transid: Generation = Transid,
    }
    /// Begins a subvolume that is made from a snapshot of an earlier one.
    Snapshot {
        /// Name of the new subvolume.
        path: &'a [u8] = Path,
        /// UUID of the new subvolume at the sender, or what it was received from.
        uuid: Uuid = Uuid,
        /// Generation at which it last changed.
        transid: Generation = Transid,
        /// UUID of the earlier subvolume.
        clone_uuid: Uuid = CloneUuid,
        /// Generation at which the earlier one last changed.
        clone_transid: Generation = CloneTransid,
    }
    /// Makes an empty regular file.
    Mkfile {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
    }
    /// Makes a directory.
    Mkdir {
        /// Path of the directory.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
    }
    /// Makes a device node.
    Mknod {
        /// Path of the node.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Device number in the kernel's wide form: minor in bits 0-7 and 20-31, major in bits 8-19.
        device: u64 = Device,
        /// Type and permission bits.
        mode: u64 = Mode,
    }
    /// Makes a named pipe.
    Mkfifo {
        /// Path of the pipe.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Device number, without meaning here; the kernel writes what the inode holds.
        device: Option<u64> = Device,
        /// Type and permission bits.
        mode: Option<u64> = Mode,
    }
    /// Makes a socket.
    Mksock {
        /// Path of the socket.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Device number, without meaning here; the kernel writes what the inode holds.
        device: Option<u64> = Device,
        /// Type and permission bits.
        mode: Option<u64> = Mode,
    }
    /// Makes a symbolic link.
    Symlink {
        /// Path of the link.
        path: &'a [u8] = Path,
        /// Inode number at the sender.
        inode: Option<InodeNumber> = Inode,
        /// Where it points.
        target: &'a [u8] = PathLink,
    }
    /// Renames anything.
    Rename {
        /// Path up to now.
        from: &'a [u8] = Path,
        /// Path from now on.
        to: &'a [u8] = PathTo,
    }
    /// Gives a file another name.
    Link {
        /// The new path.
        path: &'a [u8] = Path,
        /// A path that the file has already.
        target: &'a [u8] = PathLink,
    }
    /// Takes away a name of anything but a directory.
    Unlink {
        /// The path.
        path: &'a [u8] = Path,
    }
    /// Takes away an empty directory.
    Rmdir {
        /// The path.
        path: &'a [u8] = Path,
    }
    /// Sets an extended attribute.
    SetXattr {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Name with its prefix: `user.…`.
        name: &'a [u8] = XattrName,
        /// Value.
        value: &'a [u8] = XattrData,
    }
    /// Takes away an extended attribute.
    RemoveXattr {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Name with its prefix.
        name: &'a [u8] = XattrName,
    }
    /// Writes file data.
    Write {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Where in the file.
        offset: FileOffset = FileOffset,
        /// What.
        data: &'a [u8] = Data,
    }
    /// Shares a range of another file, or of another place in the same one.
    Clone {
        /// Where in the file.
        offset: FileOffset = FileOffset,
        /// How much.
        length: ByteCount = CloneLength,
        /// Path of the file.
        path: &'a [u8] = Path,
        /// UUID of the subvolume to share from.
        source_uuid: Uuid = CloneUuid,
        /// Generation at which that subvolume last changed.
        source_transid: Generation = CloneTransid,
        /// Path in that subvolume.
        source_path: &'a [u8] = ClonePath,
        /// Where in that file.
        source_offset: FileOffset = CloneOffset,
    }
    /// Sets the size of a file.
    Truncate {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// New size.
        size: ByteCount = Size,
    }
    /// Sets the permissions.
    Chmod {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Permission bits, with set-user-id, set-group-id and sticky.
        mode: u64 = Mode,
    }
    /// Sets owner and group.
    Chown {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Owner.
        uid: u64 = Uid,
        /// Group.
        gid: u64 = Gid,
    }
    /// Sets the times.
    Utimes {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Last access.
        atime: Timestamp = Atime,
        /// Last change of the content.
        mtime: Timestamp = Mtime,
        /// Last change of the inode.
        ctime: Timestamp = Ctime,
        /// Creation; from version 2 on.
        otime: Option<Timestamp> = Otime,
    }
    /// Says that a range of a file changed, in a stream without file data.
    UpdateExtent {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Where in the file.
        offset: FileOffset = FileOffset,
        /// How much.
        length: ByteCount = Size,
    }
    /// Preallocates, punches or zeroes a range.
    Fallocate {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Mode of fallocate(2).
        mode: u32 = FallocateMode,
        /// Where in the file.
        offset: FileOffset = FileOffset,
        /// How much.
        length: ByteCount = Size,
    }
    /// Sets the inode flags.
    FileAttributes {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Flags as the inode item has them.
        attributes: u64 = FileAttributes,
    }
    /// Writes file data as it lies compressed on disk.
    EncodedWrite {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Where in the file.
        offset: FileOffset = FileOffset,
        /// How much of the decoded content is the file's.
        unencoded_file_bytes: ByteCount = UnencodedFileBytes,
        /// How long the decoded content is.
        unencoded_bytes: ByteCount = UnencodedBytes,
        /// Where in the decoded content the file's part begins.
        unencoded_offset: ByteCount = UnencodedOffset,
        /// How the data is compressed, an [`EncodedCompression`](buttress_format::send::EncodedCompression) as
        /// number; a stream without it means not at all.
        compression: Option<u32> = Compression,
        /// How the data is encrypted; a stream without it means not at all, as 0 does.
        encryption: Option<u32> = Encryption,
        /// The encoded bytes.
        data: &'a [u8] = Data,
    }
    /// Turns fs-verity on.
    EnableVerity {
        /// Path of the file.
        path: &'a [u8] = Path,
        /// Number of the hash.
        algorithm: u8 = VerityAlgorithm,
        /// Bytes of a block of the tree.
        block_size: u32 = VerityBlockSize,
        /// Salt.
        salt: &'a [u8] = VeritySalt,
        /// Signature.
        signature: &'a [u8] = VeritySignature,
    }
    ;
    /// Ends a stream.
    End
}

impl<'a> Command<'a> {
    /// The path that the command works on: of a rename, the one up to now. The end has none.
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
