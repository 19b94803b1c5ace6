//! The checks of file extent items.

use super::{COMPRESSED_EXTENT_BYTES_MAX, Compression};

/// The check that a file extent item fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileExtentProblem {
    /// A number that stands for no form.
    #[error("file extent type {kind} is unknown")]
    KindUnknown {
        /// The number.
        kind: u8,
    },
    /// A number that stands for no compression.
    #[error("compression {compression} is unknown")]
    CompressionUnknown {
        /// The number.
        compression: u8,
    },
    /// The format reserves a field for encryption, but defines none.
    #[error("encryption is {encryption}, expected 0")]
    Encrypted {
        /// The number.
        encryption: u8,
    },
    /// Inline content stands for the beginning of a file only.
    #[error("inline content at file offset {file_offset}, expected 0")]
    InlineNotAtStart {
        /// The key's offset.
        file_offset: u64,
    },
    /// Plain inline content is not as long as the item says.
    #[error("{content_bytes} bytes of inline content, but ram_bytes is {ram_bytes}")]
    InlineLengthMismatch {
        /// Bytes after the head.
        content_bytes: usize,
        /// The stated length.
        ram_bytes: u64,
    },
    /// Compressed inline content is one sector at most.
    #[error("compressed inline content of {ram_bytes} bytes, at most a sector of {sector_bytes} is possible")]
    InlineTooLong {
        /// The stated length.
        ram_bytes: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// An address or length that is not whole sectors.
    #[error("{field} is {value}, not a multiple of the sector size {sector_bytes}")]
    FieldUnaligned {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// An extent that covers no byte of the file.
    #[error("num_bytes is 0")]
    CoversNothing,
    /// The covered part of the file ends beyond 2^63.
    #[error("covers {num_bytes} bytes from file offset {file_offset}: it ends beyond 2^63")]
    FileRangeOverflow {
        /// The key's offset.
        file_offset: u64,
        /// Length of the part.
        num_bytes: u64,
    },
    /// A compressed extent longer than any can be.
    #[error(
        "compressed extent of {disk_bytes} bytes on disk and {ram_bytes} in memory, at most \
         {COMPRESSED_EXTENT_BYTES_MAX} are possible"
    )]
    CompressedTooLong {
        /// Length on disk.
        disk_bytes: u64,
        /// Length after decompression.
        ram_bytes: u64,
    },
    /// The window reaches past the end of the extent.
    #[error("shows {num_bytes} bytes from {offset} of an extent of {extent_bytes} bytes")]
    WindowOutside {
        /// Where the window begins.
        offset: u64,
        /// Its length.
        num_bytes: u64,
        /// Length of the extent after decompression.
        extent_bytes: u64,
    },
    /// Space without content cannot be compressed.
    #[error("a preallocated extent with compression {compression}")]
    PreallocatedCompressed {
        /// The compression.
        compression: Compression,
    },
}
