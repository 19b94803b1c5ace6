//! Tests against extents that the kernel compressed, against other encoders, and against a model of
//! LZO1X.

use super::*;
use proptest::prelude::*;

mod lzo1x_model;

pub(super) const SECTOR_SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// Returns the content of the extents in `tests/data`, which the kernel wrote.
pub(super) fn kernel_content(seed: u64, length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "extent ", "tree ", "node ", "leaf ", "the ", "of ", "chunk ", "block ", "group ", "a ", "inode ",
        "log ", "root ", "key ", "item ", "\n",
    ];
    let mut state = seed;
    let mut content = Vec::new();
    let mut count = 0;
    while content.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bytes = state.to_le_bytes();
        content.extend_from_slice(WORDS[usize::from(bytes[7] >> 4)].as_bytes());
        count += 1;
        if count % 8 == 0 {
            content.extend_from_slice(&bytes[3..7]);
        }
        if count % 300 == 0 {
            let repeats = usize::from(u16::from_le_bytes([bytes[5], bytes[6]]) & 0x3ff);
            content.resize(content.len() + repeats, bytes[7]);
        }
    }
    content.truncate(length);
    content
}

fn kernel_extents() -> [(Compression, &'static [u8], &'static [u8]); 3] {
    [
        (
            Compression::Zlib,
            include_bytes!("../../tests/data/zlib-regular.bin"),
            include_bytes!("../../tests/data/zlib-inline.bin"),
        ),
        (
            Compression::Lzo,
            include_bytes!("../../tests/data/lzo-regular.bin"),
            include_bytes!("../../tests/data/lzo-inline.bin"),
        ),
        (
            Compression::Zstd,
            include_bytes!("../../tests/data/zstd-regular.bin"),
            include_bytes!("../../tests/data/zstd-inline.bin"),
        ),
    ]
}

#[test]
fn extents_of_the_kernel() {
    for (compression, regular, inline) in kernel_extents() {
        for (stored, seed, length, is_inline) in [(regular, 1, 65_536, false), (inline, 2, 1500, true)] {
            let content = kernel_content(seed, length);
            // Buffers shorter than the content receive its beginning. A buffer longer than the
            // content is zeroed after the content.
            for wanted in [0, 1, 1499, length - 1, length, length + 4096] {
                let mut out = vec![0xaa; wanted];
                let filled = decompress(compression, stored, &mut out, 4096, is_inline).unwrap();
                assert_eq!(filled, wanted.min(length), "{compression}, {wanted} bytes wanted");
                assert_eq!(out[..filled], content[..filled]);
                assert!(out[filled..].iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn a_cut_at_any_byte_is_an_error_or_only_cuts_padding() {
    for (compression, regular, inline) in kernel_extents() {
        for (stored, seed, length, is_inline) in [(regular, 1, 65_536, false), (inline, 2, 1500, true)] {
            let content = kernel_content(seed, length);
            let used = stored.len() - stored.iter().rev().take_while(|byte| **byte == 0).count();
            for cut in (0..stored.len()).step_by(if is_inline { 1 } else { 97 }) {
                let mut out = vec![0; length];
                let result = decompress(compression, &stored[..cut], &mut out, 4096, is_inline);
                // The last bytes of a stream form its end mark and hold no content.
                if cut < used - 64 {
                    assert!(result.is_err(), "{compression} cut to {cut} of {used} bytes");
                }
                if result.is_ok() {
                    assert_eq!(out, content, "{compression} cut to {cut} of {used} bytes");
                }
            }
        }
    }
}

/// Frames LZO segments as a regular extent of the test, for any sector size.
fn frame(segments: &[Vec<u8>], sector_bytes: usize) -> Vec<u8> {
    let mut framed = vec![0; 4];
    for segment in segments {
        let left = sector_bytes - framed.len() % sector_bytes;
        if left < 4 {
            framed.resize(framed.len() + left, 0);
        }
        framed.extend_from_slice(&u32::try_from(segment.len()).unwrap().to_le_bytes());
        framed.extend_from_slice(segment);
    }
    let total = u32::try_from(framed.len()).unwrap();
    framed[..4].copy_from_slice(&total.to_le_bytes());
    framed.resize(framed.len().next_multiple_of(sector_bytes), 0);
    framed
}

fn lzo_encode(content: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; lzallright::worst_case_len(content.len())];
    let length = lzallright::compress(content, &mut stream, &mut lzallright::Dict::default()).unwrap();
    stream.truncate(length);
    stream
}

/// Generates content with near and far repetitions, runs and noise, so that encoders use every
/// instruction.
pub(super) fn content(length: impl Strategy<Value = usize>) -> impl Strategy<Value = Vec<u8>> {
    (
        length,
        proptest::collection::vec((any::<u8>(), any::<u16>(), 1_usize..600), 1..200),
    )
        .prop_map(|(length, steps)| {
            let mut content: Vec<u8> = Vec::with_capacity(length);
            for (kind, number, count) in steps.into_iter().cycle() {
                let distance = usize::from(number) + 1;
                if kind < 100 && distance <= content.len() {
                    for _ in 0..count {
                        content.push(content[content.len() - distance]);
                    }
                } else if kind < 130 {
                    content.resize(content.len() + count, kind);
                } else {
                    let mut state = u32::from(number) | 1;
                    for _ in 0..count / 8 + 1 {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        content.push(state.to_le_bytes()[3]);
                    }
                }
                if content.len() >= length {
                    break;
                }
            }
            content.truncate(length);
            content
        })
}

fn push_extension(stream: &mut Vec<u8>, mut number: usize) {
    while number > 255 {
        stream.push(0);
        number -= 255;
    }
    stream.push(u8::try_from(number).unwrap());
}

proptest! {
    #[test]
    fn lzo_extents_of_another_encoder(content in content(1_usize..131_072), sector in 0_usize..5) {
        let sector_bytes = SECTOR_SIZES[sector];
        let segments: Vec<_> = content.chunks(sector_bytes).map(lzo_encode).collect();
        let framed = frame(&segments, sector_bytes);
        prop_assume!(framed.len() <= 131_072);
        let mut out = vec![1; content.len()];
        let filled = decompress(Compression::Lzo, &framed, &mut out, sector_bytes, false);
        prop_assert_eq!(filled, Ok(content.len()));
        prop_assert_eq!(out, content);
    }

    #[test]
    fn zlib_and_zstd_streams_of_any_level(content in content(0_usize..131_072), level in 1_i32..10) {
        let zlib_level = flate2::Compression::new(u32::try_from(level).unwrap());
        let mut zlib = Vec::with_capacity(content.len() * 2 + 100);
        flate2::Compress::new(zlib_level, true)
            .compress_vec(&content, &mut zlib, flate2::FlushCompress::Finish)
            .unwrap();
        let zstd = ::zstd::bulk::compress(&content, level).unwrap();
        for (compression, mut stored) in [(Compression::Zlib, zlib), (Compression::Zstd, zstd)] {
            stored.resize(stored.len().next_multiple_of(4096), 0);
            let mut out = vec![1; content.len() + 1];
            let filled = decompress(compression, &stored, &mut out, 4096, false);
            prop_assert_eq!(filled, Ok(content.len()));
            prop_assert_eq!(&out[..content.len()], &content[..]);
        }
    }

    #[test]
    fn any_bytes_give_an_answer_and_stay_inside_the_buffer(
        mut stored in proptest::collection::vec(any::<u8>(), 0..5000),
        with_head in any::<bool>(), room in 0_usize..9000, sector in 0_usize..5, inline: bool,
    ) {
        if with_head && stored.len() > 8 {
            // Random bytes follow valid framing, so that the LZO1X decoder receives them.
            let total = u32::try_from(stored.len()).unwrap();
            stored[..4].copy_from_slice(&total.to_le_bytes());
            stored[4..8].copy_from_slice(&(total - 8).to_le_bytes());
        }
        for compression in [Compression::None, Compression::Zlib, Compression::Lzo, Compression::Zstd] {
            let mut out = vec![0; room];
            if let Ok(filled) = decompress(compression, &stored, &mut out, SECTOR_SIZES[sector], inline) {
                prop_assert!(filled <= room);
            }
        }
    }
}

#[test]
fn lzo_lengths_never_cross_a_sector_boundary() {
    // The compressed segments of this test leave 0 to 4 bytes before the boundary of the first
    // sector.
    for left in 0..=4_usize {
        let content: Vec<u8> = kernel_content(3, 8192);
        let first = lzo_encode(&content[..4096]);
        let tail = 4096 - left - 8 - first.len() - 4;
        let filler = literal_stream(tail);
        let filler_content = tail - literal_overhead(tail);
        let segments = vec![first, filler, lzo_encode(&content[4096..])];
        let framed = frame(&segments, 4096);
        let mut out = vec![0; 8192 + filler_content];
        assert_eq!(
            decompress(Compression::Lzo, &framed, &mut out, 4096, false),
            Ok(out.len()),
            "{left} left"
        );
        assert_eq!(out[..4096], content[..4096]);
        assert_eq!(out[4096 + filler_content..], content[4096..]);
    }
}

/// Returns an LZO1X stream of `length` bytes in total, whose literals are zeros.
fn literal_stream(length: usize) -> Vec<u8> {
    let count = length - literal_overhead(length);
    let mut stream = vec![0];
    push_extension(&mut stream, count - 18);
    stream.resize(stream.len() + count, 0);
    stream.extend_from_slice(&[17, 0, 0]);
    assert_eq!(stream.len(), length);
    stream
}

/// Returns the number of bytes that are not literals in a stream of `length` bytes.
fn literal_overhead(length: usize) -> usize {
    (5..60)
        .find(|overhead| 4 + (length - overhead - 18).div_ceil(255) == *overhead)
        .unwrap()
}

#[test]
fn each_fault_of_the_lzo_framing_has_its_error() {
    let content = kernel_content(4, 8192);
    let segments: Vec<_> = content.chunks(4096).map(lzo_encode).collect();
    let sound = frame(&segments, 4096);
    let stored_bytes = sound.len();
    let fault = |offset: usize, number: u32| {
        let mut framed = sound.clone();
        framed[offset..offset + 4].copy_from_slice(&number.to_le_bytes());
        decompress(Compression::Lzo, &framed, &mut vec![0; 8192], 4096, false)
    };
    for total_bytes in [0, 3, u32::try_from(stored_bytes).unwrap() + 1, u32::MAX] {
        assert_eq!(
            fault(0, total_bytes),
            Err(CompressionError::LzoTotalLength {
                total_bytes,
                stored_bytes
            })
        );
    }
    assert_eq!(
        decompress(
            Compression::Lzo,
            &[&sound[..], &[0; 4096]].concat(),
            &mut [0; 8192],
            4096,
            false
        ),
        Err(CompressionError::LzoTotalLength {
            total_bytes: u32::from_le_bytes(sound[..4].try_into().unwrap()),
            stored_bytes: stored_bytes + 4096
        }),
        "a sector that the total length does not reach"
    );
    let limit_bytes = (4096 + 256 + 69)
        .min(usize::try_from(u32::from_le_bytes(sound[..4].try_into().unwrap())).unwrap() - 8);
    assert_eq!(
        fault(4, 5000),
        Err(CompressionError::LzoSegmentLength {
            offset: 8,
            segment_bytes: 5000,
            limit_bytes
        })
    );
    assert_eq!(
        fault(4, 0),
        Err(CompressionError::LzoSegment {
            offset: 8,
            error: Lzo1xError::InputCut { offset: 0 }
        })
    );
    assert_eq!(
        decompress(Compression::Lzo, b"", &mut [0], 4096, false),
        Err(CompressionError::LzoTotalLength {
            total_bytes: 0,
            stored_bytes: 0
        })
    );
    // In this stream, the total length ends inside the length field of a segment.
    let mut cut = vec![0; 4096];
    cut[0] = 6;
    assert_eq!(
        decompress(Compression::Lzo, &cut, &mut [0], 4096, false),
        Err(CompressionError::LzoHeaderCut {
            offset: 4,
            total_bytes: 6
        })
    );
}

#[test]
fn each_fault_of_zlib_and_zstd_has_its_error() {
    let run = |compression, stored: &[u8]| decompress(compression, stored, &mut [0; 100], 4096, false);
    for (stored, header) in [
        (&b"\x78"[..], 0),
        (b"\x00\x00", 0),
        (b"\x79\x9c", 0x799c),
        (b"\x78\xbb", 0x78bb),
    ] {
        assert_eq!(
            run(Compression::Zlib, stored),
            Err(CompressionError::ZlibHeader { header })
        );
    }
    assert_eq!(
        run(Compression::Zlib, b"\x78\x9c"),
        Err(CompressionError::ZlibCut {
            stored_bytes: 2,
            content_bytes: 0
        })
    );
    assert!(matches!(
        run(Compression::Zlib, b"\x78\x9c\xff\xff\xff\xff"),
        Err(CompressionError::ZlibDamaged {
            stored_bytes: 6,
            content_bytes: 0,
            ..
        })
    ));
    assert!(matches!(
        run(Compression::Zstd, b"not a frame"),
        Err(CompressionError::ZstdDamaged { stored_bytes: 11, .. })
    ));
    assert_eq!(
        run(Compression::Zstd, b""),
        Err(CompressionError::ZstdCut {
            stored_bytes: 0,
            content_bytes: 0
        })
    );
}

#[test]
fn a_zstd_window_beyond_128_kib_is_refused() {
    let content = kernel_content(5, 1 << 20);
    let encode = |window_log| {
        let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(window_log).unwrap();
        std::io::Write::write_all(&mut encoder, &content).unwrap();
        encoder.finish().unwrap()
    };
    let mut out = vec![0; 131_072];
    assert_eq!(
        decompress(Compression::Zstd, &encode(17), &mut out, 4096, false),
        Ok(131_072)
    );
    assert_eq!(out, content[..131_072]);
    assert!(matches!(
        decompress(Compression::Zstd, &encode(18), &mut out, 4096, false),
        Err(CompressionError::ZstdDamaged { content_bytes: 0, .. })
    ));
}
