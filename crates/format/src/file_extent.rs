//! The file extent item, `EXTENT_DATA`: where a part of a file's content is.
//!
//! The key's offset is the file offset at which the part begins. Three forms:
//!
//! - inline: the content itself follows the head of 21 bytes, compressed or not; only at file offset 0;
//! - regular: a window of an extent on disk. `disk_bytes` at `disk` hold the extent as it is stored,
//!   `ram_bytes` is its length after decompression, and the file shows `[offset, offset + num_bytes)` of that.
//!   With `disk` zero it is a hole;
//! - preallocated: as regular, but nothing has been written there: it reads as zeros.
//!
//! For example, a 128 KiB extent compressed into 20 KiB, whose first 4 KiB were overwritten later:
//! `ram_bytes` 131072, `disk_bytes` 20480, `offset` 4096, `num_bytes` 126976, key offset 4096.
//!
//! After the check, `offset + num_bytes` is within the extent, all of them are whole sectors, and key offset plus
//! `num_bytes` does not overflow. Compressed extents are at most [`COMPRESSED_EXTENT_BYTES_MAX`] long on either
//! side, so a reader may allocate what they ask for.
//!
//! Source: on-disk format documentation, section "EXTENT_DATA"; the limit of compressed extents: btrfs(5),
//! section "Compression".

use crate::item_error::{ItemError, ItemProblem};
use crate::key::Key;
use crate::raw;
use crate::units::{ByteCount, FileOffset, Generation, Logical};
use core::fmt;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest that a compressed extent is, before or after compression.
pub const COMPRESSED_EXTENT_BYTES_MAX: u64 = 128 * 1024;

/// The head of a file extent item; inline content follows it directly.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawFileExtentHead {
    /// The transaction that wrote the extent.
    pub generation: U64,
    /// Length of the whole extent after decompression.
    pub ram_bytes: U64,
    /// See [`Compression`].
    pub compression: u8,
    /// Always 0.
    pub encryption: u8,
    /// Always 0 so far.
    pub other_encoding: U16,
    /// 0 inline, 1 regular, 2 preallocated.
    pub kind: u8,
}

const _: () = assert!(size_of::<RawFileExtentHead>() == 21);

/// What follows the head of a regular or preallocated file extent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtentSlice {
    /// Logical address of the extent; 0 for a hole.
    pub disk: U64,
    /// Length of the extent as it is stored.
    pub disk_bytes: U64,
    /// Where in the decompressed extent the part begins.
    pub offset: U64,
    /// Length of the part.
    pub num_bytes: U64,
}

const _: () = assert!(size_of::<RawExtentSlice>() == 32);

/// How the bytes of an extent are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    None = 0,
    /// A zlib stream.
    Zlib = 1,
    /// LZO1X, sector by sector, in btrfs's own framing.
    Lzo = 2,
    /// A zstd frame.
    Zstd = 3,
}

impl Compression {
    /// The kind with this number, or `None` for a number without a meaning.
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

/// A window of an extent on disk, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentSlice {
    /// Where the extent begins; zero for a hole.
    pub disk: Logical,
    /// Length of the extent as it is stored; zero for a hole.
    pub disk_bytes: ByteCount,
    /// Where in the decompressed extent the window begins.
    pub offset: ByteCount,
    /// Length of the window: the bytes of the file that it covers. Never zero.
    pub num_bytes: ByteCount,
}

impl ExtentSlice {
    /// Whether there is nothing on disk behind it.
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        self.disk.get() == 0
    }
}

/// The content behind a file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtentBody<'a> {
    /// The content, compressed as the item says, borrowed from the leaf.
    Inline(&'a [u8]),
    /// Written content, or a hole.
    Regular(ExtentSlice),
    /// Space without content: reads as zeros.
    Preallocated(ExtentSlice),
}

/// A checked file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent<'a> {
    /// The transaction that wrote the extent.
    pub generation: Generation,
    /// Length of the whole extent after decompression; of inline content: its length.
    pub ram_bytes: ByteCount,
    /// How inline content or the extent on disk is compressed.
    pub compression: Compression,
    /// Unused so far; kept for display.
    pub other_encoding: u16,
    /// The content.
    pub body: FileExtentBody<'a>,
}

impl<'a> FileExtent<'a> {
    /// Checks an `EXTENT_DATA` of a volume with this sector size.
    ///
    /// # Errors
    /// An [`ItemError`] with the first check that fails.
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

    /// The number on disk of the item's form: 0 inline, 1 regular, 2 preallocated.
    #[must_use]
    pub const fn kind_raw(&self) -> u8 {
        match self.body {
            FileExtentBody::Inline(_) => 0,
            FileExtentBody::Regular(_) => 1,
            FileExtentBody::Preallocated(_) => 2,
        }
    }

    /// The window on disk of a regular or preallocated extent; `None` for inline content.
    #[must_use]
    pub const fn slice(&self) -> Option<&ExtentSlice> {
        match &self.body {
            FileExtentBody::Inline(_) => None,
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => Some(slice),
        }
    }

    /// Where in the file the part ends (exclusive), for an item under `key`. Inline content ends with the sector
    /// that it is in, as it takes the place of a whole one.
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
        // Content and length say the same thing twice, so they must agree.
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
    // File offsets are signed in every interface, so a part must end below 2^63.
    if key
        .offset
        .checked_add(num_bytes)
        .is_none_or(|end| i64::try_from(end).is_err())
    {
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
    // Older kernels left a smaller ram_bytes in plain extents that were cut short, but never so small that
    // the window did not fit; what is on disk bounds plain extents as well.
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
    #[error("covers {num_bytes} bytes from file offset {file_offset}: it ends beyond 2^63 - 1")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ItemType;
    use crate::units::ObjectId;
    use proptest::prelude::*;

    const SECTOR: u32 = 4096;

    fn key(offset: u64) -> Key {
        Key::new(ObjectId::new(257), ItemType::EXTENT_DATA, offset)
    }

    fn head(kind: u8, compression: u8, ram_bytes: u64) -> RawFileExtentHead {
        RawFileExtentHead {
            generation: U64::new(7),
            ram_bytes: U64::new(ram_bytes),
            compression,
            encryption: 0,
            other_encoding: U16::new(0),
            kind,
        }
    }

    fn item(kind: u8, compression: u8, ram_bytes: u64, slice: [u64; 4]) -> Vec<u8> {
        let [disk, disk_bytes, offset, num_bytes] = slice.map(U64::new);
        let slice = RawExtentSlice {
            disk,
            disk_bytes,
            offset,
            num_bytes,
        };
        [head(kind, compression, ram_bytes).as_bytes(), slice.as_bytes()].concat()
    }

    fn inline(compression: u8, ram_bytes: u64, content: &[u8]) -> Vec<u8> {
        [head(0, compression, ram_bytes).as_bytes(), content].concat()
    }

    fn problem(offset: u64, data: &[u8]) -> Result<(), ItemProblem> {
        FileExtent::parse(&key(offset), data, SECTOR)
            .map(|_| ())
            .map_err(|error| error.problem)
    }

    #[test]
    fn the_example_of_the_header() {
        let data = item(1, 3, 131_072, [1 << 20, 20_480, 4096, 126_976]);
        let extent = FileExtent::parse(&key(4096), &data, SECTOR).unwrap();
        assert_eq!(extent.compression, Compression::Zstd);
        assert_eq!(extent.file_end(&key(4096), SECTOR), FileOffset::new(131_072));
        let slice = extent.slice().unwrap();
        assert_eq!(
            (slice.disk.get(), slice.offset.get(), slice.is_hole()),
            (1 << 20, 4096, false)
        );
    }

    #[test]
    fn inline_content() {
        let plain = inline(0, 5, b"hello");
        let extent = FileExtent::parse(&key(0), &plain, SECTOR).unwrap();
        assert_eq!(extent.body, FileExtentBody::Inline(b"hello"));
        assert_eq!(extent.file_end(&key(0), SECTOR), FileOffset::new(4096));
        assert_eq!(problem(0, &inline(1, 4096, b"x")), Ok(()));
        assert_eq!(
            problem(0, &inline(1, 4097, b"x")),
            Err(FileExtentProblem::InlineTooLong {
                ram_bytes: 4097,
                sector_bytes: SECTOR
            }
            .into())
        );
        assert_eq!(
            problem(0, &inline(0, 6, b"hello")),
            Err(FileExtentProblem::InlineLengthMismatch {
                content_bytes: 5,
                ram_bytes: 6
            }
            .into())
        );
        assert_eq!(
            problem(4096, &plain),
            Err(FileExtentProblem::InlineNotAtStart { file_offset: 4096 }.into())
        );
    }

    #[test]
    fn holes_and_preallocation() {
        assert_eq!(problem(0, &item(1, 0, 8192, [0, 0, 0, 8192])), Ok(()));
        assert_eq!(problem(0, &item(2, 0, 8192, [4096, 8192, 4096, 4096])), Ok(()));
        assert_eq!(
            problem(0, &item(2, 1, 8192, [4096, 8192, 0, 8192])),
            Err(FileExtentProblem::PreallocatedCompressed {
                compression: Compression::Zlib
            }
            .into())
        );
    }

    #[test]
    fn each_check_of_regular_extents_has_its_error() {
        let sound = [1 << 20, 8192, 0, 8192];
        assert_eq!(problem(0, &item(1, 0, 8192, sound)), Ok(()));
        assert_eq!(
            problem(1, &item(1, 0, 8192, sound)),
            Err(ItemProblem::OffsetUnaligned {
                offset: 1,
                sector_bytes: SECTOR
            })
        );
        assert_eq!(
            problem(0, &item(3, 0, 8192, sound)),
            Err(FileExtentProblem::KindUnknown { kind: 3 }.into())
        );
        assert_eq!(
            problem(0, &item(1, 4, 8192, sound)),
            Err(FileExtentProblem::CompressionUnknown { compression: 4 }.into())
        );
        for (field, slice, ram_bytes) in [
            ("ram_bytes", sound, 8191),
            ("disk_bytenr", [1, 8192, 0, 8192], 8192),
            ("disk_num_bytes", [1 << 20, 1, 0, 8192], 8192),
            ("offset", [1 << 20, 8192, 1, 4096], 8192),
            ("num_bytes", [1 << 20, 8192, 0, 1], 8192),
        ] {
            let found = problem(0, &item(1, 0, ram_bytes, slice));
            let Err(ItemProblem::FileExtent(FileExtentProblem::FieldUnaligned { field: named, .. })) = found
            else {
                panic!("{field}: {found:?}");
            };
            assert_eq!(named, field);
        }
        assert_eq!(
            problem(0, &item(1, 0, 8192, [1 << 20, 8192, 0, 0])),
            Err(FileExtentProblem::CoversNothing.into())
        );
        let last = (1 << 63) - 4096;
        assert_eq!(
            problem(last, &item(1, 0, 8192, sound)),
            Err(FileExtentProblem::FileRangeOverflow {
                file_offset: last,
                num_bytes: 8192
            }
            .into())
        );
        let high = 0_u64.wrapping_sub(4096);
        assert_eq!(
            problem(0, &item(1, 0, 8192, [high, 8192, 0, 8192])),
            Err(ItemProblem::RangeOverflow {
                start: high,
                length_bytes: 8192
            })
        );
        assert_eq!(
            problem(0, &item(1, 2, 135_168, [1 << 20, 8192, 0, 4096])),
            Err(FileExtentProblem::CompressedTooLong {
                disk_bytes: 8192,
                ram_bytes: 135_168
            }
            .into())
        );
        assert_eq!(
            problem(0, &item(1, 0, 8192, [1 << 20, 8192, 4096, 8192])),
            Err(FileExtentProblem::WindowOutside {
                offset: 4096,
                num_bytes: 8192,
                extent_bytes: 8192
            }
            .into())
        );
        let mut encrypted = item(1, 0, 8192, sound);
        encrypted[17] = 1;
        assert_eq!(
            problem(0, &encrypted),
            Err(FileExtentProblem::Encrypted { encryption: 1 }.into())
        );
        assert_eq!(
            problem(0, &item(1, 0, 8192, sound)[..52]),
            Err(ItemProblem::SizeWrong {
                size_bytes: 52,
                expected_bytes: 53
            })
        );
        assert_eq!(
            problem(0, &[0; 20]),
            Err(ItemProblem::SizeTooSmall {
                size_bytes: 20,
                needed_bytes: 21
            })
        );
    }

    proptest! {
        #[test]
        fn what_passes_keeps_the_promises(
            file_sectors in 0_u64..1 << 52, kind in 0_u8..4, compression in 0_u8..5,
            sectors in proptest::array::uniform5(0_u64..40), shift in 0_u32..53,
        ) {
            let [ram, disk, disk_bytes, offset, num_bytes] = sectors.map(|count| (count << 12) << (shift / 8));
            let data = item(kind, compression, ram, [disk, disk_bytes, offset, num_bytes]);
            let key = key((file_sectors << 12) >> shift << 12);
            if let Ok(extent) = FileExtent::parse(&key, &data, SECTOR)
                && let Some(slice) = extent.slice()
            {
                prop_assert!(slice.num_bytes.get() > 0);
                prop_assert!(extent.file_end(&key, SECTOR).get() < 1 << 63);
                prop_assert!(slice.is_hole() || offset + num_bytes <= ram);
            }
        }

        #[test]
        fn any_bytes_give_an_answer(data: Vec<u8>) {
            let _ = FileExtent::parse(&key(0), &data, SECTOR);
        }
    }
}
