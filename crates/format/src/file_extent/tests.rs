//! Tests with one case for each check, and properties of items that pass.

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

/// The last sector of a file of 2^63 - 1 bytes ends at the limit.
#[test]
fn the_last_sector_of_the_largest_file_is_sound() {
    let last = (1 << 63) - 4096;
    assert_eq!(problem(last, &item(1, 0, 4096, [1 << 20, 4096, 0, 4096])), Ok(()));
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
    fn valid_file_extents_keep_their_invariants(
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
