//! Blocks and superblocks made by hand: every type of item, with values that a kernel seldom or never writes.
//!
//! A leaf of a real volume is overwritten, on all its copies, with items of our own and a right checksum.
//! `dump-tree -b` prints it in both programs, though it belongs in no tree. Items are as long as their fields:
//! shorter ones make the reference read past their end, where there is nothing to compare.

use crate::compare::{equal, equal_but_wrong, equal_output, missing, shows};
use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{buttress, newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NODE_BYTES: usize = 16384;
const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const ADDRESS_OFFSET: usize = 48;

/// -n as it is stored.
const fn minus(number: u64) -> u64 {
    0u64.wrapping_sub(number)
}

/// Bytes of an item, put together field by field.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u32s(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    fn u64s(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn key(self, objectid: u64, item_type: u8, offset: u64) -> Self {
        self.u64s(&[objectid]).u8(item_type).u64s(&[offset])
    }
    fn uuid(self, first: u8) -> Self {
        let bytes: Vec<u8> = (first..first.saturating_add(16)).collect();
        self.raw(&bytes)
    }
}

fn bytes() -> Bytes {
    Bytes::default()
}

type Item = ((u64, u8, u64), Bytes);

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

fn names() -> Vec<Item> {
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

fn file_extents() -> Vec<Item> {
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

fn roots() -> Vec<Item> {
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

fn extents() -> Vec<Item> {
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

fn block_groups() -> Vec<Item> {
    let kinds = [0, 1, 2, 4, 5, 7, 1 | 1 << 48, 1 << 11];
    let profiles = (3..11).map(|bit| 1 | 1 << bit);
    let flags = kinds.into_iter().chain(profiles).chain([1 | 2 | 64]);
    (1u64..)
        .zip(flags)
        .map(|(number, flags)| ((number << 20, 192, 1 << 20), bytes().u64s(&[number, 256, flags])))
        .collect()
}

fn space_and_chunks() -> Vec<Item> {
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

fn quotas() -> Vec<Item> {
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

fn jobs() -> Vec<Item> {
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

/// Types and object ids, known and unknown.
fn keys() -> Vec<Item> {
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

/// A small volume, the address of its uuid tree's root, and where that block lies in the image.
struct Target {
    _folder: tempfile::TempDir,
    images: Vec<PathBuf>,
    address: u64,
    places: Vec<u64>,
}

impl Target {
    fn make() -> Result<Self> {
        let (folder, images) = format(&Specification {
            fill: Fill::Empty,
            device_mib: 256,
            ..Specification::default()
        })?;
        let image = images.first().context("an image")?;
        let dump = run(Command::new(newest("btrfs"))
            .args(["inspect-internal", "dump-tree", "-r"])
            .arg(image))?;
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        let line = dump
            .lines()
            .find(|line| line.starts_with("uuid tree"))
            .context("a uuid tree")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let address: u64 = words.iter().rev().nth(2).context("an address")?.parse()?;
        let places = places(image, address)?;
        ensure!(
            places.len() == 2,
            "the uuid tree's root should have two copies, found at {places:?}"
        );
        Ok(Self {
            _folder: folder,
            images,
            address,
            places,
        })
    }

    /// Overwrites the leaf with these items.
    fn write(&self, mut items: Vec<Item>, flags: u64) -> Result<()> {
        items.sort_by_key(|(key, _)| *key);
        let image = File::options()
            .read(true)
            .write(true)
            .open(self.images.first().context("an image")?)?;
        let mut block = vec![0; NODE_BYTES];
        image.read_exact_at(&mut block, *self.places.first().context("a copy")?)?;
        block[56..64].copy_from_slice(&flags.to_le_bytes());
        block[96..100].copy_from_slice(&(items.len() as u32).to_le_bytes());
        block[HEADER_BYTES..].fill(0);
        let mut end = NODE_BYTES - HEADER_BYTES;
        for (number, ((objectid, item_type, offset), Bytes(data))) in items.iter().enumerate() {
            end -= data.len();
            let head = bytes()
                .key(*objectid, *item_type, *offset)
                .u32s(&[end as u32, data.len() as u32]);
            let at = HEADER_BYTES + number * ITEM_BYTES;
            ensure!(at + ITEM_BYTES <= HEADER_BYTES + end, "too many items for a leaf");
            block[at..at + ITEM_BYTES].copy_from_slice(&head.0);
            block[HEADER_BYTES + end..][..data.len()].copy_from_slice(data);
        }
        let checksum = crc32c::crc32c(&block[32..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        for place in &self.places {
            image.write_all_at(&block, *place)?;
        }
        Ok(())
    }
}

/// Where blocks with this address lie in an image.
fn places(image: &Path, address: u64) -> Result<Vec<u64>> {
    let file = File::open(image)?;
    let size = file.metadata()?.len();
    let mut places = Vec::new();
    let mut head = [0; ADDRESS_OFFSET + 8];
    // Superblocks carry an address in the same place, so equal numbers are told apart by distance.
    for place in (0..size.saturating_sub(NODE_BYTES as u64)).step_by(4096) {
        file.read_exact_at(&mut head, place)?;
        if head[ADDRESS_OFFSET..] == address.to_le_bytes() {
            places.push(place);
        }
    }
    Ok(places)
}

const WRITTEN: u64 = 1 | 1 << 56;

fn leaf(items: fn() -> Vec<Item>) -> Result<Outcome> {
    let target = Target::make()?;
    target.write(items(), WRITTEN)?;
    let address = target.address.to_string();
    for words in [
        &["dump-tree", "-b", &address][..],
        &["dump-tree", "--hide-names", "--csum-headers", "-b", &address],
        &["dump-tree", "--csum-items", "-b", &address],
    ] {
        equal_output(words, &target.images)?;
    }
    Ok(Outcome::Passed)
}

/// The reference prints the start of a replacement in place of its end: what it really says.
fn end_of_replacement() -> Result<Outcome> {
    let target = Target::make()?;
    let replacement = bytes().u64s(&[1, 2, 3, 0, 2, 100, 200, 0, 0]);
    target.write(vec![((0, 250, 0), replacement)], WRITTEN)?;
    let words = ["dump-tree", "-b", &target.address.to_string()];
    shows(
        &words,
        &target.images,
        "\t\tstop time 200 (1970-01-01 01:03:20)\n",
    )?;
    Ok(Outcome::Passed)
}

fn header_flags() -> Result<Outcome> {
    let target = Target::make()?;
    let address = target.address.to_string();
    for flags in [0, 1, 2, 3, 0x21, WRITTEN, 3 | 2 << 56, 1 << 55] {
        target.write(vec![((300, 48, 5), bytes())], flags)?;
        equal_output(&["dump-tree", "-b", &address], &target.images)?;
    }
    Ok(Outcome::Passed)
}

/// Changes of the primary superblock: an offset and bytes.
fn superblock_changes() -> Vec<(&'static str, usize, Vec<u8>, bool)> {
    let all = u64::MAX.to_le_bytes().to_vec();
    vec![
        ("checksum", 72, vec![99], false),
        ("magic", 64, b"_BH\xffa\0bc".to_vec(), true),
        ("fsid", 32, (0..16).collect(), true),
        ("flags", 56, all.clone(), true),
        ("checksum type 1", 196, vec![1, 0], true),
        ("checksum type 7", 196, vec![7, 0], true),
        ("incompat", 188, all.clone(), true),
        ("no features", 180, vec![0; 16], true),
        ("label", 299, b"a\nb\xff\x01\"\\t\0zz".to_vec(), true),
        ("long label", 299, vec![b'x'; 256], true),
        ("array of 5000", 160, 5000u32.to_le_bytes().to_vec(), true),
        ("array of 100", 160, 100u32.to_le_bytes().to_vec(), true),
        ("array of 10", 160, 10u32.to_le_bytes().to_vec(), true),
        ("array of 0", 160, vec![0; 4], true),
        ("array type", 811 + 8, vec![9], true),
        ("array stripes 0", 811 + 17 + 44, vec![0, 0], true),
        ("array stripes 90", 811 + 17 + 44, vec![90, 0], true),
        ("device fsid", 201 + 82, (0..16).collect(), true),
        ("address", 48, vec![1], true),
        ("levels", 198, vec![201, 202, 203], true),
        ("numbers", 80, all.repeat(7), true),
    ]
}

fn superblocks() -> Result<Outcome> {
    let target = Target::make()?;
    let image = target.images.first().context("an image")?;
    let file = File::options().read(true).write(true).open(image)?;
    let mut original = vec![0; 4096];
    file.read_exact_at(&mut original, 65536)?;
    for (name, offset, change, mend) in superblock_changes() {
        let mut changed = original.clone();
        changed[offset..offset + change.len()].copy_from_slice(&change);
        if mend {
            let checksum = crc32c::crc32c(&changed[32..]);
            changed[..4].copy_from_slice(&checksum.to_le_bytes());
        }
        file.write_all_at(&changed, 65536)?;
        let words = ["dump-super", "-f", "-F"];
        let broken_array = name.starts_with("array") && name != "array of 0";
        let result = if broken_array {
            equal_but_wrong(&words, &target.images).map(drop)
        } else {
            equal(&words, &target.images)
        };
        result.with_context(|| format!("superblock with another {name}"))?;
    }
    Ok(Outcome::Passed)
}

/// A leaf that is lost costs what it held, an error and the exit code; everything else is printed.
fn lost_leaf() -> Result<Outcome> {
    let specification = Specification {
        fill: Fill::Kinds,
        ..Specification::default()
    };
    let (_folder, images) = format(&specification)?;
    let mount = Mount::new(&images, "")?;
    for number in 0..500 {
        std::fs::write(mount.path().join(format!("file-{number}")), [7; 100])?;
    }
    mount.close()?;
    let image = images.first().context("an image")?;
    let dump = run(Command::new(newest("btrfs"))
        .args(["inspect-internal", "dump-tree", "-t", "5"])
        .arg(image))?;
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let pointers: Vec<&str> = dump.lines().filter(|line| line.starts_with("\tkey (")).collect();
    let pointer = pointers.get(pointers.len() / 2).context("a node")?;
    let words: Vec<&str> = pointer.split_whitespace().collect();
    let address: u64 = words.iter().rev().nth(2).context("an address")?.parse()?;
    let file = File::options().write(true).open(image)?;
    for place in places(image, address)? {
        file.write_all_at(b"damage", place + 9000)?;
    }
    // The reference goes on past a lost leaf only in this order.
    let said = equal_but_wrong(&["dump-tree", "--dfs", "-t", "5"], &images)?;
    ensure!(
        said.contains(&address.to_string()),
        "no message names block {address}:\n{said}"
    );
    shows(&["dump-tree", "-t", "5"], &images, "total bytes")?;
    let leaves = |order: &str| -> Result<usize> {
        let output = Command::new(buttress()?)
            .args(["inspect-internal", "dump-tree", order, "-t", "5"])
            .arg(image)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter(|line| line.starts_with("leaf ")).count())
    };
    ensure!(leaves("--bfs")? == leaves("--dfs")? && leaves("--dfs")? > 4);
    Ok(Outcome::Passed)
}

fn case(name: &str, body: impl Fn() -> Result<Outcome> + Send + Sync + 'static) -> Case {
    Case::new(format!("crafted::{name}"), move || match missing() {
        Some(reason) => Ok(Outcome::Skipped(reason)),
        None => body(),
    })
}

type MakeItems = fn() -> Vec<Item>;

pub fn cases() -> Vec<Case> {
    let leaves: [(&str, MakeItems); 9] = [
        ("names", names),
        ("file_extents", file_extents),
        ("roots", roots),
        ("extents", extents),
        ("block_groups", block_groups),
        ("space_and_chunks", space_and_chunks),
        ("quotas", quotas),
        ("jobs", jobs),
        ("keys", keys),
    ];
    let mut cases: Vec<Case> = leaves
        .into_iter()
        .map(|(name, items)| case(name, move || leaf(items)))
        .collect();
    cases.push(case("end_of_replacement", end_of_replacement));
    cases.push(case("header_flags", header_flags));
    cases.push(case("superblocks", superblocks));
    cases.push(case("lost_leaf", lost_leaf));
    cases
}
