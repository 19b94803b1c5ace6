//! Items of every type, with values that a kernel seldom or never writes.

use super::bytes::{Bytes, bytes};

/// Returns the stored form of -n.
pub const fn minus(number: u64) -> u64 {
    0u64.wrapping_sub(number)
}

/// A key and its item data.
pub type Item = ((u64, u8, u64), Bytes);

fn inode(flags: u64, mode: u32, times: [(u64, u32); 4]) -> Bytes {
    let inode = bytes()
        .u64s(&[1, 2, 3, 4, 5])
        .u32s(&[6, u32::MAX, 7, mode])
        .u64s(&[259 << 20 | 700, flags, 9]);
    times
        .iter()
        .fold(inode.raw(&[0; 32]), |inode, (seconds, nanoseconds)| {
            inode.u64s(&[*seconds]).u32s(&[*nanoseconds])
        })
}

const TIMES: [(u64, u32); 4] = [
    (0, 0),
    (1_795_225_818, 999_999_999),
    (minus(1), 5),
    (minus(1 << 40), 7),
];

fn entry(location: (u64, u8, u64), kind: u8, name: &[u8], value: &[u8]) -> Bytes {
    bytes()
        .key(location.0, location.1, location.2)
        .u64s(&[9])
        .u16(value.len() as u16)
        .u16(name.len() as u16)
        .u8(kind)
        .raw(name)
        .raw(value)
}

pub fn names() -> Vec<Item> {
    let every_byte: Vec<u8> = (0..=u8::MAX).chain(0..10).collect();
    let mut items = vec![
        ((300, 1, 0), inode(0xfff, 0o100_644, TIMES)),
        ((301, 1, 0), inode(u64::MAX, 0o040_755, TIMES)),
        ((302, 1, 0), inode(1 << 31, 0, TIMES)),
        ((303, 1, 0), inode(1 << 20, 0o170_000, TIMES)),
        (
            (303, 12, 5),
            bytes()
                .u64s(&[3])
                .u16(2)
                .raw(b"ab")
                .u64s(&[4])
                .u16(3)
                .raw(b"a\x80d"),
        ),
        (
            (303, 13, 5),
            bytes()
                .u64s(&[3, 7])
                .u16(2)
                .raw(b"ab")
                .u64s(&[4, 9])
                .u16(3)
                .raw(b"c\\d"),
        ),
        (
            (303, 24, 3),
            entry((0, 0, 0), 8, b"user.x", b"\n\0v\\w \"\x7f\xff"),
        ),
        ((303, 24, 4), entry((0, 0, 0), 8, b"user.empty", b"")),
        ((303, 24, 5), entry((0, 0, 0), 8, b"user.every byte", &every_byte)),
        (
            (303, 84, 1),
            Bytes(
                [
                    entry((300, 1, 0), 0, b"ab", b"").0,
                    entry(
                        (256, 132, u64::MAX),
                        9,
                        b"c\x01\x7f\x80\r\x0b\x0c\x07\x08\0z \"'\\\n\t",
                        b"data",
                    )
                    .0,
                ]
                .concat(),
            ),
        ),
        ((304, 36, 0), bytes().raw(&[0; 20])),
        ((304, 37, 0), bytes().raw(b"merkle")),
        ((304, 48, 5), bytes()),
        ((304, 60, 3), bytes().u64s(&[9])),
        ((304, 72, 3), bytes().u64s(&[u64::MAX])),
        ((minus(5), 48, 300), bytes()),
    ];
    items.extend((0..11).map(|kind| ((305, 96, u64::from(kind)), entry((300, 1, 0), kind, b"n", b""))));
    items
}

pub fn file_extents() -> Vec<Item> {
    let head = |kind: u8, compression: u8| bytes().u64s(&[9, 100]).u8(compression).u8(1).u16(2).u8(kind);
    vec![
        ((300, 108, 0), head(0, 1).raw(b"abc")),
        ((300, 108, 4096), head(1, 2).u64s(&[0, 0, 0, 4096])),
        ((300, 108, 8192), head(2, 3).u64s(&[1, 2, 3, 4096])),
        ((300, 108, 16384), head(3, 9).u64s(&[1, 2, 3, 4096])),
        ((300, 108, 20000), head(1, 4).u64s(&[1, 2, 3, u64::MAX])),
        ((minus(10), 128, 8192), bytes().raw(&[1; 36])),
        ((minus(10), 128, 80192), bytes().raw(&[0xab; 16])),
    ]
}

pub fn roots() -> Vec<Item> {
    let first = |flags: u64, drop: (u64, u8, u64)| {
        inode(0, 0, TIMES)
            .u64s(&[1, 256, 4096, 5, 6, 7, flags])
            .u32s(&[2])
            .key(drop.0, drop.1, drop.2)
            .raw(&[1, 2])
    };
    let second = |first: Bytes, generation: u64| {
        let first = first
            .u64s(&[generation])
            .uuid(0)
            .uuid(16)
            .uuid(32)
            .u64s(&[1, 2, 3, 4]);
        TIMES
            .iter()
            .fold(first, |item, (seconds, nanoseconds)| {
                item.u64s(&[*seconds]).u32s(&[*nanoseconds])
            })
            .raw(&[0; 64])
    };
    vec![
        ((300, 132, 0), first(0, (0, 0, 0))),
        ((301, 132, 0), second(first(1, (257, 84, 9)), 1)),
        ((302, 132, 0), second(first(1 << 48, (0, 0, 0)), 2)),
        (
            (303, 132, u64::MAX),
            second(first(0xff, (u64::MAX, 108, u64::MAX)), 1),
        ),
        ((303, 144, 5), bytes().u64s(&[1, 2]).u16(4).raw(b"a b\xff")),
        ((303, 156, u64::MAX), bytes().u64s(&[1, 2]).u16(4).raw(b"name")),
        ((303, 251, 9), bytes().u64s(&[1, 2])),
        ((303, 252, 10), bytes().u64s(&[300])),
        ((303, 253, 0), bytes().raw(b"some\nstring")),
        ((minus(8), 132, 5), second(first(0, (0, 0, 0)), 1)),
        ((minus(8), 132, 300), second(first(0, (0, 0, 0)), 1)),
        ((minus(6), 132, minus(7)), second(first(0, (0, 0, 0)), 1)),
    ]
}

pub fn extents() -> Vec<Item> {
    let head = |flags: u64| bytes().u64s(&[7, 8, flags]);
    let data_reference =
        |item: Bytes, root: u64, offset: u64| item.u8(178).u64s(&[root, 257, offset]).u32s(&[3]);
    vec![
        (
            (8192, 168, 4096),
            data_reference(data_reference(head(1), 5, 0), minus(9), minus(4096))
                .u8(184)
                .u64s(&[99])
                .u32s(&[7]),
        ),
        (
            (12288, 168, 16384),
            head(2)
                .key(256, 1, 0)
                .u8(1)
                .u8(176)
                .u64s(&[5])
                .u8(182)
                .u64s(&[777]),
        ),
        ((16384, 168, 16384), head(0x102).key(256, 1, 0).u8(1)),
        (
            (20480, 169, 2),
            head(2).u8(176).u64s(&[minus(8)]).u8(182).u64s(&[5]),
        ),
        ((24576, 169, 0), head(0x102)),
        (
            (28672, 168, 4096),
            data_reference(head(1).u8(172).u64s(&[256]), 256, 0),
        ),
        ((32768, 168, 4096), head(0)),
        ((40960, 172, 0), bytes().u64s(&[256])),
        ((40960, 176, 5), bytes()),
        ((40960, 178, 99), bytes().u64s(&[5, 257, 0]).u32s(&[3])),
        ((40960, 180, 0), bytes().raw(&[0; 28])),
        ((40960, 182, 7), bytes()),
        ((40960, 184, 5), bytes().u32s(&[9])),
    ]
}

pub fn block_groups() -> Vec<Item> {
    let kinds = [0, 1, 2, 4, 5, 7, 1 | 1 << 48, 1 << 11];
    let profiles = (3..11).map(|bit| 1 | 1 << bit);
    let flags = kinds.into_iter().chain(profiles).chain([1 | 2 | 64]);
    (1u64..)
        .zip(flags)
        .map(|(number, flags)| ((number << 20, 192, 1 << 20), bytes().u64s(&[number, 256, flags])))
        .collect()
}

pub fn space_and_chunks() -> Vec<Item> {
    let stripe = |item: Bytes| item.u64s(&[1, 4096]).uuid(100);
    let chunk = bytes()
        .u64s(&[1 << 20, 2, 65536, 17])
        .u32s(&[4096, 4097, 4098])
        .u16(2)
        .u16(1);
    let device: Vec<u8> = (0..98).collect();
    vec![
        ((1, 204, 5), bytes().u64s(&[3, 256, 7, 8]).uuid(9)),
        ((1, 216, 5), bytes().raw(&device)),
        ((256, 228, 1 << 20), stripe(stripe(chunk))),
        ((4096, 198, 4096), bytes().u32s(&[5, 1])),
        ((4096, 199, 4096), bytes()),
        ((4096, 200, 4096), bytes().raw(&[0xff; 16])),
        ((8192, 230, 4096), bytes().u64s(&[1, 2, 3, 4])),
        ((minus(11), 0, 1 << 20), bytes().key(256, 1, 0).u64s(&[1, 2, 3])),
    ]
}

pub fn quotas() -> Vec<Item> {
    let flags = [0, 1, 8, 0xb, u64::MAX];
    let mut items: Vec<Item> = (0..)
        .zip(flags)
        .map(|(offset, flags)| ((0, 240, offset), bytes().u64s(&[1, 2, flags, 3, 4])))
        .collect();
    items.extend([
        ((0, 240, 9), bytes().u64s(&[1, 2, 1, 3])),
        ((0, 242, 1 << 48 | 5), bytes().u64s(&[1, 2, 3, 4, 5])),
        ((0, 244, 1 << 48 | 5), bytes().u64s(&[u64::MAX; 5])),
        ((1 << 48 | 100, 246, 5), bytes()),
    ]);
    items
}

pub fn jobs() -> Vec<Item> {
    let arguments = |item: Bytes, first: u64| {
        let numbers: Vec<u64> = (first..first.saturating_add(17)).collect();
        item.u64s(&numbers)
    };
    let balance = [100, 200, 300]
        .into_iter()
        .fold(bytes().u64s(&[0x17]), arguments)
        .raw(&[0; 32]);
    let mut items = vec![
        ((0, 248, 1), bytes().u64s(&[0])),
        ((0, 249, 2), bytes().u64s(&[1, 2, 3, 4, 5])),
        ((0, 249, 3), bytes().u64s(&[1, 2, 3, 4, 5, 6, 7])),
        ((3, 249, 4), bytes().u64s(&[1, 2, 3, 4, 5])),
        ((minus(13), 248, 0), bytes().u64s(&[0])),
        ((minus(13), 248, 2), bytes().u64s(&[0])),
        ((minus(13), 248, 7), bytes().u64s(&[0])),
        ((minus(4), 248, 0), balance),
    ];
    items.extend((0..7).map(|state| {
        (
            (0, 250, state),
            bytes().u64s(&[minus(1), 6, 7, state % 3, state, 1_795_225_818, 9, 10, 11]),
        )
    }));
    items
}

/// Returns items with known and unknown types and object ids.
pub fn keys() -> Vec<Item> {
    let known = (0..15)
        .chain([255, 256, 300])
        .chain((1..15).map(minus))
        .chain([minus(255), minus(256)]);
    let mut items = Vec::new();
    for objectid in known {
        for item_type in [15, 120, 122, 233, 254] {
            items.push(((objectid, item_type, u64::from(item_type)), bytes()));
        }
        items.push(((objectid, 48, u64::MAX), bytes()));
        items.push(((objectid, 199, 5), bytes()));
        items.push(((objectid, 246, objectid), bytes()));
    }
    items
}
