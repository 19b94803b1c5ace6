//! The checks of file extent items.

use super::{COMPRESSED_EXTENT_BYTES_MAX, Compression};

/// The check that a file extent item fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileExtentProblem {
    /// The item's form is an unknown number.
    #[error("file extent type {kind} is unknown")]
    KindUnknown {
        /// The number that stands for the item's form.
        kind: u8,
    },
    /// The compression is an unknown number.
    #[error("compression {compression} is unknown")]
    CompressionUnknown {
        /// The number that stands for the compression.
        compression: u8,
    },
    /// The item's field for encryption is not zero. The format defines no encryption.
    #[error("encryption is {encryption}, expected 0")]
    Encrypted {
        /// The number in the field for encryption.
        encryption: u8,
    },
    /// Inline content is keyed at a file offset other than 0.
    #[error("inline content at file offset {file_offset}, expected 0")]
    InlineNotAtStart {
        /// The key's offset.
        file_offset: u64,
    },
    /// The length of plain inline content differs from the item's length field.
    #[error("ram_bytes is {ram_bytes}, expected {content_bytes} bytes of inline content")]
    InlineLengthMismatch {
        /// The number of bytes after the head.
        content_bytes: usize,
        /// The length in the item's length field.
        ram_bytes: u64,
    },
    /// Compressed inline content is longer than one sector.
    #[error(
        "compressed inline content is {ram_bytes} bytes long, expected at most a sector of {sector_bytes}"
    )]
    InlineTooLong {
        /// The length in the item's length field.
        ram_bytes: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// An address or length is not whole sectors.
    #[error("{field} is {value}, not a multiple of the sector size {sector_bytes}")]
    FieldUnaligned {
        /// The name of the field.
        field: &'static str,
        /// The value of the field.
        value: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// The extent covers no byte of the file.
    #[error("num_bytes is 0")]
    CoversNothing,
    /// The covered part of the file ends beyond 2^63.
    #[error("covers {num_bytes} bytes from file offset {file_offset}, which ends past 2^63")]
    FileRangeOverflow {
        /// The key's offset.
        file_offset: u64,
        /// The length in bytes of the part of the extent that the item uses.
        num_bytes: u64,
    },
    /// A compressed extent exceeds the maximum length.
    #[error(
        "compressed extent has {disk_bytes} bytes on disk and {ram_bytes} in memory, expected at most {COMPRESSED_EXTENT_BYTES_MAX}"
    )]
    CompressedTooLong {
        /// The length on disk in bytes.
        disk_bytes: u64,
        /// The length after decompression in bytes.
        ram_bytes: u64,
    },
    /// The window extends beyond the end of the extent.
    #[error("uses {num_bytes} bytes at {offset} of an extent of only {extent_bytes} bytes")]
    WindowOutside {
        /// The offset, in the extent, of the part that the item uses.
        offset: u64,
        /// The length of the window in bytes.
        num_bytes: u64,
        /// The length of the extent after decompression in bytes.
        extent_bytes: u64,
    },
    /// A preallocated extent is marked as compressed.
    #[error("a preallocated extent has compression {compression}, expected none")]
    PreallocatedCompressed {
        /// The compression in the item.
        compression: Compression,
    },
}
