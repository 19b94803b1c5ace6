//! The file extent item, `EXTENT_DATA`: the location of a part of a file's content.
//!
//! The key's offset is the file offset at which the item's range begins. A file extent item has
//! three forms:
//!
//! - inline: the content follows the item's head of 21 bytes, compressed or not. Only the part of a
//!   file at offset 0 can be inline;
//! - regular: a window of an extent on disk. `disk_bytes` at `disk` hold the extent as it is
//!   stored, and `ram_bytes` is its length after decompression. The file shows `[offset, offset +
//!   num_bytes)` of the decompressed extent. If `disk` is zero, the part of the file is a hole;
//! - preallocated: has the same layout as regular, but the extent has no content yet and reads as
//!   zeros.
//!
//! For example, a 128 KiB extent is compressed into 20 KiB, and its first 4 KiB are overwritten
//! later. The item of the remaining part has `ram_bytes` 131072, `disk_bytes` 20480, `offset` 4096,
//! `num_bytes` 126976, and 4096 as the key's offset.
//!
//! A checked item guarantees: `offset + num_bytes` is within the extent, all these lengths are
//! whole sectors, and the key's offset plus `num_bytes` does not overflow. Compressed extents are
//! at most [`COMPRESSED_EXTENT_BYTES_MAX`] long, before and after compression, so a reader may
//! allocate the lengths that an item states.
//!
//! Source: on-disk format documentation, section "EXTENT_DATA"; the limit of compressed extents:
//! btrfs(5), section "Compression".

mod problem;
#[cfg(test)]
mod tests;

pub use problem::FileExtentProblem;

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ByteCount, FileOffset, Generation, InodeNumber, Logical};
use core::fmt;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The maximum length of a compressed extent, before and after compression.
pub const COMPRESSED_EXTENT_BYTES_MAX: u64 = 128 * 1024;

/// The head of a file extent item. If the content is inline, it follows this head directly.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFileExtentHead {
    /// The transaction that wrote the extent.
    pub generation: U64,
    /// Length of the whole extent after decompression.
    pub ram_bytes: U64,
    /// See [`Compression`].
    pub compression: u8,
    /// The encryption, which is always 0.
    pub encryption: u8,
    /// Other encodings, always 0 in all versions so far.
    pub other_encoding: U16,
    /// 0 inline, 1 regular, 2 preallocated.
    pub kind: u8,
}

const _: () = assert!(size_of::<RawFileExtentHead>() == 21);

/// The fields after the head of a regular or preallocated file extent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtentSlice {
    /// Logical address of the extent; 0 for a hole.
    pub disk: U64,
    /// Length of the extent as it is stored.
    pub disk_bytes: U64,
    /// The offset in the decompressed extent at which the part of the file begins.
    pub offset: U64,
    /// Length of the part of the extent that the item uses.
    pub num_bytes: U64,
}

const _: () = assert!(size_of::<RawExtentSlice>() == 32);

/// The compression of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// No compression.
    None = 0,
    /// A zlib stream.
    Zlib = 1,
    /// LZO1X, sector by sector, in btrfs's own framing.
    Lzo = 2,
    /// A zstd frame.
    Zstd = 3,
}

impl Compression {
    /// Returns the compression with this number, or `None` if no compression has this number.
    #[must_use]
    pub const fn from_raw(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Zlib,
            2 => Self::Lzo,
            3 => Self::Zstd,
            _ => return None,
        })
    }

    /// The number on disk.
    #[must_use]
    pub const fn to_raw(self) -> u8 {
        self as u8
    }

    /// The name that btrfs-progs prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Changes the extent's address in a regular or preallocated file extent item. Returns false and
/// changes nothing if the item is too short.
#[must_use]
pub fn set_disk(item: &mut [u8], disk: Logical) -> bool {
    let slice = item.get_mut(size_of::<RawFileExtentHead>()..);
    match slice.map(RawExtentSlice::mut_from_prefix) {
        Some(Ok((slice, _))) => {
            slice.disk = U64::new(disk.get());
            true
        }
        Some(Err(_)) | None => false,
    }
}

/// A window of an extent on disk, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentSlice {
    /// The address of the extent; zero for a hole.
    pub disk: Logical,
    /// Length of the extent as it is stored; zero for a hole.
    pub disk_bytes: ByteCount,
    /// The offset in the decompressed extent at which the window begins.
    pub offset: ByteCount,
    /// Length of the window: the bytes of the file that it covers. Never zero.
    pub num_bytes: ByteCount,
}

impl ExtentSlice {
    /// Returns true if the window is a hole, which has no extent on disk.
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        self.disk.get() == 0
    }
}

/// The content that a file extent item describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtentBody<'a> {
    /// The content, compressed as the item says, borrowed from the leaf.
    Inline(&'a [u8]),
    /// Written content, or a hole.
    Regular(ExtentSlice),
    /// An extent without content, which reads as zeros.
    Preallocated(ExtentSlice),
}

/// A checked file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent<'a> {
    /// The transaction that wrote the extent.
    pub generation: Generation,
    /// The length of the whole extent after decompression, or the length of inline content.
    pub ram_bytes: ByteCount,
    /// The compression of inline content or of the extent on disk.
    pub compression: Compression,
    /// An unused field, kept for display.
    pub other_encoding: u16,
    /// The content.
    pub body: FileExtentBody<'a>,
}

impl<'a> FileExtent<'a> {
    /// Checks an `EXTENT_DATA` of a volume with this sector size.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8], sector_bytes: u32) -> Result<Self, ItemError> {
        raw::require_aligned_offset(key, sector_bytes)?;
        let (head, rest): (&RawFileExtentHead, _) = raw::prefix(key, data)?;
        let fail = |problem: FileExtentProblem| ItemError::new(key, problem);
        if head.kind > 2 {
            return Err(fail(FileExtentProblem::KindUnknown { kind: head.kind }));
        }
        let Some(compression) = Compression::from_raw(head.compression) else {
            return Err(fail(FileExtentProblem::CompressionUnknown {
                compression: head.compression,
            }));
        };
        if head.encryption != 0 {
            return Err(fail(FileExtentProblem::Encrypted {
                encryption: head.encryption,
            }));
        }
        let ram_bytes = head.ram_bytes.get();
        let body = if head.kind == 0 {
            check_inline(key, ram_bytes, compression, rest, sector_bytes).map_err(fail)?;
            FileExtentBody::Inline(rest)
        } else {
            let stored = RawExtentSlice::ref_from_bytes(rest).map_err(|_| {
                let expected_bytes =
                    size_of::<RawFileExtentHead>().saturating_add(size_of::<RawExtentSlice>());
                ItemError::new(
                    key,
                    ItemProblem::SizeWrong {
                        size_bytes: data.len(),
                        expected_bytes,
                    },
                )
            })?;
            check_slice(key, ram_bytes, compression, stored, sector_bytes)?;
            let slice = ExtentSlice::from(stored);
            if head.kind == 1 {
                FileExtentBody::Regular(slice)
            } else if compression == Compression::None {
                FileExtentBody::Preallocated(slice)
            } else {
                return Err(fail(FileExtentProblem::PreallocatedCompressed { compression }));
            }
        };
        Ok(Self {
            generation: Generation::new(head.generation.get()),
            ram_bytes: ByteCount::new(ram_bytes),
            compression,
            other_encoding: head.other_encoding.get(),
            body,
        })
    }

    /// Returns the number that stands for the item's form on disk: 0 inline, 1 regular, 2
    /// preallocated.
    #[must_use]
    pub const fn kind_raw(&self) -> u8 {
        match self.body {
            FileExtentBody::Inline(_) => 0,
            FileExtentBody::Regular(_) => 1,
            FileExtentBody::Preallocated(_) => 2,
        }
    }

    /// Returns the window of a regular or preallocated extent, or `None` for inline content.
    #[must_use]
    pub const fn slice(&self) -> Option<&ExtentSlice> {
        match &self.body {
            FileExtentBody::Inline(_) => None,
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => Some(slice),
        }
    }

    /// Returns the exclusive end of the part in the file, for an item under `key`. Inline content
    /// counts as a whole sector, so its file range ends with a sector.
    #[must_use]
    pub fn file_end(&self, key: &Key, sector_bytes: u32) -> FileOffset {
        let length = match &self.body {
            FileExtentBody::Inline(_) => self
                .ram_bytes
                .checked_align_up(u64::from(sector_bytes))
                .unwrap_or(self.ram_bytes),
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => slice.num_bytes,
        };
        FileOffset::new(key.offset.saturating_add(length.get()))
    }
}

impl FileExtent<'_> {
    /// Returns the key `(inode EXTENT_DATA offset)`.
    #[must_use]
    pub const fn key(inode: InodeNumber, offset: FileOffset) -> Key {
        Key::new(inode.object_id(), ItemType::EXTENT_DATA, offset.get())
    }

    /// The length in bytes of an inline item without its content.
    pub const INLINE_HEAD_BYTES: usize = size_of::<RawFileExtentHead>();
    /// The length in bytes of a regular or preallocated item.
    pub const REGULAR_BYTES: usize = size_of::<RawFileExtentHead>() + size_of::<RawExtentSlice>();

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = RawFileExtentHead {
            generation: U64::new(self.generation.get()),
            ram_bytes: U64::new(self.ram_bytes.get()),
            compression: self.compression.to_raw(),
            encryption: 0,
            other_encoding: U16::new(self.other_encoding),
            kind: self.kind_raw(),
        };
        match &self.body {
            FileExtentBody::Inline(content) => [head.as_bytes(), content].concat(),
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => {
                [head.as_bytes(), RawExtentSlice::from(slice).as_bytes()].concat()
            }
        }
    }
}

impl From<&ExtentSlice> for RawExtentSlice {
    fn from(slice: &ExtentSlice) -> Self {
        Self {
            disk: U64::new(slice.disk.get()),
            disk_bytes: U64::new(slice.disk_bytes.get()),
            offset: U64::new(slice.offset.get()),
            num_bytes: U64::new(slice.num_bytes.get()),
        }
    }
}

impl From<&RawExtentSlice> for ExtentSlice {
    fn from(raw: &RawExtentSlice) -> Self {
        Self {
            disk: Logical::new(raw.disk.get()),
            disk_bytes: ByteCount::new(raw.disk_bytes.get()),
            offset: ByteCount::new(raw.offset.get()),
            num_bytes: ByteCount::new(raw.num_bytes.get()),
        }
    }
}

fn check_inline(
    key: &Key,
    ram_bytes: u64,
    compression: Compression,
    content: &[u8],
    sector_bytes: u32,
) -> Result<(), FileExtentProblem> {
    if key.offset != 0 {
        return Err(FileExtentProblem::InlineNotAtStart {
            file_offset: key.offset,
        });
    }
    if compression == Compression::None {
        // The item states the length of plain content twice, so both must agree.
        if ByteCount::of(content.len()).get() != ram_bytes {
            return Err(FileExtentProblem::InlineLengthMismatch {
                content_bytes: content.len(),
                ram_bytes,
            });
        }
    } else if ram_bytes > u64::from(sector_bytes) {
        return Err(FileExtentProblem::InlineTooLong {
            ram_bytes,
            sector_bytes,
        });
    }
    Ok(())
}

fn check_slice(
    key: &Key,
    ram_bytes: u64,
    compression: Compression,
    stored: &RawExtentSlice,
    sector_bytes: u32,
) -> Result<(), ItemError> {
    let fail = |problem: FileExtentProblem| Err(ItemError::new(key, problem));
    let (disk, disk_bytes) = (stored.disk.get(), stored.disk_bytes.get());
    let (offset, num_bytes) = (stored.offset.get(), stored.num_bytes.get());
    let fields = [
        ("ram_bytes", ram_bytes),
        ("disk_bytenr", disk),
        ("disk_num_bytes", disk_bytes),
        ("offset", offset),
        ("num_bytes", num_bytes),
    ];
    for (field, value) in fields {
        if !raw::is_aligned(value, sector_bytes) {
            return fail(FileExtentProblem::FieldUnaligned {
                field,
                value,
                sector_bytes,
            });
        }
    }
    if num_bytes == 0 {
        return fail(FileExtentProblem::CoversNothing);
    }
    // File offsets are signed in every interface. The last sector of the largest file ends at 2^63.
    const END_MAX: u64 = 1 << 63;
    if key.offset.checked_add(num_bytes).is_none_or(|end| end > END_MAX) {
        return fail(FileExtentProblem::FileRangeOverflow {
            file_offset: key.offset,
            num_bytes,
        });
    }
    if disk == 0 {
        return Ok(());
    }
    raw::range_end(key, disk, disk_bytes)?;
    let is_compressed = compression != Compression::None;
    if is_compressed && disk_bytes.max(ram_bytes) > COMPRESSED_EXTENT_BYTES_MAX {
        return fail(FileExtentProblem::CompressedTooLong {
            disk_bytes,
            ram_bytes,
        });
    }
    // Older kernels left a smaller `ram_bytes` in plain extents that were cut short, but never
    // below the end of the window. The length on disk bounds plain extents as well.
    let extent_bytes = if is_compressed {
        ram_bytes
    } else {
        ram_bytes.min(disk_bytes)
    };
    if offset.checked_add(num_bytes).is_none_or(|end| end > extent_bytes) {
        return fail(FileExtentProblem::WindowOutside {
            offset,
            num_bytes,
            extent_bytes,
        });
    }
    Ok(())
}
