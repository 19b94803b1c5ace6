//! Tests that compressed content decompresses to itself, with this decoder and others, and that it
//! saves a sector.

use super::*;
use crate::compression::decompress;
use crate::compression::tests::{SECTOR_SIZES, content, kernel_content};
use proptest::prelude::*;

const METHODS: [(Compression, i32); 8] = [
    (Compression::Zlib, 1),
    (Compression::Zlib, 0),
    (Compression::Zlib, 9),
    (Compression::Lzo, 0),
    (Compression::Zstd, -15),
    (Compression::Zstd, 1),
    (Compression::Zstd, 0),
    (Compression::Zstd, 15),
];

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn levels_are_the_kernels() {
    let level = |compression, level| CompressionMethod::with_level(compression, level).level();
    assert_eq!(
        [0, 1, 9, 12, -3].map(|of| level(Compression::Zlib, of)),
        [3, 1, 9, 9, 1]
    );
    assert_eq!(
        [0, 1, 15, 22, -15, -99].map(|of| level(Compression::Zstd, of)),
        [3, 1, 15, 15, -15, -15]
    );
    assert_eq!(level(Compression::Lzo, 7), 0);
}

#[test]
fn an_extent_must_save_a_sector() {
    let mut compressor = Compressor::new();
    for (compression, level) in METHODS {
        let method = CompressionMethod::with_level(compression, level);
        for length in [0, 1, 4096] {
            let zeros = vec![0; length];
            assert_eq!(
                compressor.compress(method, &zeros, 4096),
                None,
                "{method:?}, {length} bytes"
            );
        }
        let zeros = vec![0; 4097];
        assert_eq!(
            compressor.compress(method, &zeros, 4096).unwrap().len(),
            4096,
            "{method:?}"
        );
        assert_eq!(
            compressor.compress(method, &noise(131_072), 4096),
            None,
            "{method:?}"
        );
        assert_eq!(
            compressor.compress(method, &vec![0; 131_073], 4096),
            None,
            "{method:?}"
        );
    }
}

#[test]
fn inline_content_must_be_shorter() {
    let mut compressor = Compressor::new();
    let content = kernel_content(2, 1500);
    for (compression, level) in METHODS {
        let method = CompressionMethod::with_level(compression, level);
        let stored = compressor.compress_inline(method, &content, 4096, 2048).unwrap();
        assert!(stored.len() < content.len(), "{method:?}");
        let mut out = vec![1; 1500];
        assert_eq!(
            decompress(compression, &stored, &mut out, 4096, true),
            Ok(1500),
            "{method:?}"
        );
        assert_eq!(out, content);
        let limit = stored.len() - 1;
        assert_eq!(
            compressor.compress_inline(method, &content, 4096, limit),
            None,
            "{method:?}"
        );
        assert_eq!(
            compressor.compress_inline(method, &noise(1500), 4096, 2048),
            None,
            "{method:?}"
        );
    }
}

#[test]
fn the_content_of_the_kernels_extents_becomes_as_small_as_there() {
    let content = kernel_content(1, 65_536);
    let stored_bytes = |name| compressed_bytes(&content, name);
    let regular = |bytes: &[u8]| bytes.len();
    let kernel = [
        (
            Compression::Zlib,
            regular(include_bytes!("../../../tests/data/zlib-regular.bin")),
        ),
        (
            Compression::Lzo,
            regular(include_bytes!("../../../tests/data/lzo-regular.bin")),
        ),
        (
            Compression::Zstd,
            regular(include_bytes!("../../../tests/data/zstd-regular.bin")),
        ),
    ];
    for (compression, kernel_bytes) in kernel {
        let own_bytes = stored_bytes(compression);
        assert!(
            own_bytes <= kernel_bytes + 4096,
            "{compression}: {own_bytes} against {kernel_bytes}"
        );
    }
}

fn compressed_bytes(content: &[u8], compression: Compression) -> usize {
    let method = CompressionMethod::new(compression);
    Compressor::new()
        .compress(method, content, 4096)
        .map_or(usize::MAX, |stored| stored.len())
}

proptest! {
    #[test]
    fn compressed_content_decompresses_to_itself(
        content in content(1_usize..=131_072), sector in 0_usize..5, methods in prop::collection::vec(0_usize..8, 1..4),
    ) {
        let sector_bytes = SECTOR_SIZES[sector];
        let mut compressor = Compressor::new();
        for (compression, level) in methods.into_iter().map(|index| METHODS[index]) {
            let method = CompressionMethod::with_level(compression, level);
            let Some(stored) = compressor.compress(method, &content, sector_bytes) else { continue };
            prop_assert!(stored.len().is_multiple_of(sector_bytes));
            prop_assert!(stored.len() + sector_bytes <= content.len().next_multiple_of(sector_bytes));
            let mut out = vec![1; content.len()];
            prop_assert_eq!(
                decompress(compression, &stored, &mut out, sector_bytes, false),
                Ok(content.len()),
                "{:?}", method
            );
            prop_assert_eq!(&out, &content);
        }
    }

    #[test]
    fn lzo_streams_are_read_by_another_decoder(content in content(1_usize..=65_536)) {
        let mut encoder = lzo1x::Encoder::new();
        // The encoder leaves bytes before its stream unchanged.
        let mut stream = vec![7; 5];
        encoder.compress(&content, &mut stream);
        prop_assert_eq!(&stream[..5], [7; 5]);
        prop_assert!(stream.len() - 5 <= content.len() + content.len() / 16 + 67);
        let mut out = vec![0; content.len()];
        let length = lzallright::decompress(&stream[5..], &mut out);
        prop_assert!(length.is_ok_and(|length| length == content.len()));
        prop_assert_eq!(out, content);
    }
}
