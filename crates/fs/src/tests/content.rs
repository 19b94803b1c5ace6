//! Tests of reading files: checksums, damage, holes of any size, extents that violate the rules.

use crate::content::Content;
use crate::error::{Corruption, Error};
use crate::extents::RangeKind;
use crate::testing::{World, at, open_image};
use crate::walk::{WalkItem, WalkOptions};
use buttress_format::superblock::CompatRo;
use buttress_format::{FileOffset, ItemType};
use buttress_volume::Rescue;
use proptest::prelude::*;
use std::io::Read;

fn pattern(sectors: usize) -> Vec<u8> {
    (0..sectors * 4096)
        .map(|number| ((number / 4096 * 7 + number % 251) % 256).to_le_bytes()[0])
        .collect()
}

/// Returns `(offset, length, kind)` of all chunks. `kind` is `d` for data, `h` for a hole, or `x`
/// for damage.
fn chunks(filesystem: &crate::Filesystem, inode: u64) -> Vec<(u64, u64, char)> {
    let mut reader = filesystem.open_file(at(inode)).unwrap().reader();
    let mut found = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        let kind = match chunk.content {
            Content::Data(_) => 'd',
            Content::Hole => 'h',
            Content::Damaged(_) => 'x',
        };
        found.push((chunk.offset.get(), chunk.length.get(), kind));
    }
    found
}

fn read(filesystem: &crate::Filesystem, inode: u64, offset: u64, length: usize) -> crate::Result<Vec<u8>> {
    let mut buffer = vec![0xee; length];
    let read = filesystem
        .open_file(at(inode))?
        .read_at(FileOffset::new(offset), &mut buffer)?;
    buffer.truncate(read);
    Ok(buffer)
}

#[test]
fn plain_data_is_read_at_any_offset() {
    let content = pattern(300);
    let mut world = World::new();
    world.file(256, b"file", 257, 300 * 4096 - 1000);
    let extent = world.data(&content, 300);
    // The file's first range shows the middle of the extent, its second range the start.
    world.range(257, 0, extent, 100 * 4096, 200 * 4096);
    world.range(257, 200 * 4096, extent, 0, 100 * 4096);
    let expected = [&content[100 * 4096..], &content[..100 * 4096]].concat();
    let filesystem = world.open();
    for (offset, length) in [
        (0, 10),
        (4095, 2),
        (819_100, 300),
        (0, 2 << 20),
        (300 * 4096 - 1001, 50),
    ] {
        let end = (offset + length).min(300 * 4096 - 1000);
        assert_eq!(
            read(&filesystem, 257, offset as u64, length).unwrap(),
            &expected[offset..end]
        );
    }
    assert!(read(&filesystem, 257, 300 * 4096, 10).unwrap().is_empty());
    let total: u64 = chunks(&filesystem, 257).iter().map(|(_, length, _)| length).sum();
    assert_eq!(total, 300 * 4096 - 1000);
}

#[test]
fn a_bad_sector_costs_only_itself() {
    let mut world = World::new();
    world.file(256, b"file", 257, 8 * 4096);
    let extent = world.data(&pattern(8), 8);
    world.range(257, 0, extent, 0, 8 * 4096);
    let mut image = world.image();
    let content = pattern(8);
    let place = image
        .windows(4096)
        .position(|window| window == &content[3 * 4096..4 * 4096])
        .unwrap();
    image[place + 5] ^= 1;
    let filesystem = open_image(image.clone(), |options| options);
    assert_eq!(
        chunks(&filesystem, 257),
        [(0, 12_288, 'd'), (12_288, 4096, 'x'), (16_384, 16_384, 'd')]
    );
    let error = read(&filesystem, 257, 12_000, 1000).unwrap_err();
    let Error::Corrupt(corruption) = &error else {
        panic!("{error}")
    };
    assert!(
        matches!(**corruption, Corruption::DataChecksum { offset, .. } if offset.get() == 12_288),
        "{error}"
    );
    assert_eq!(error.errno(), 5);
    assert_eq!(
        read(&filesystem, 257, 16_384, 4096).unwrap(),
        &pattern(8)[16_384..20_480]
    );
    assert!(!filesystem.volume().faults().is_empty());

    let rescue = Rescue {
        ignore_data_checksums: true,
        ..Rescue::default()
    };
    let filesystem = open_image(image, |options| options.rescue(rescue));
    assert_eq!(chunks(&filesystem, 257), [(0, 8 * 4096, 'd')]);
    assert_eq!(filesystem.notices(), [crate::Notice::DataUnverified]);
}

#[test]
fn data_without_checksums_is_an_error_unless_the_inode_says_so() {
    let mut world = World::new();
    for inode in [257, 258] {
        world.file(256, format!("{inode}").as_bytes(), inode, 4 * 4096);
        let extent = world.data(&pattern(4), 2);
        world.range(inode, 0, extent, 0, 4 * 4096);
    }
    // NODATASUM is the lowest bit of the inode flags.
    let item = world
        .items(5)
        .get_mut(&crate::testing::key(258, ItemType::INODE_ITEM, 0))
        .unwrap();
    item[64] |= 1;
    let filesystem = world.open();
    assert_eq!(chunks(&filesystem, 257), [(0, 8192, 'd'), (8192, 8192, 'x')]);
    let error = read(&filesystem, 257, 8192, 1).unwrap_err();
    assert!(
        error.to_string().contains("no checksums for 4096 bytes"),
        "{error}"
    );
    assert_eq!(chunks(&filesystem, 258), [(0, 16_384, 'd')]);
}

#[test]
fn fs_verity_items_do_not_disturb_reading() {
    let mut world = World::new();
    let content = pattern(8);
    for inode in [257, 258] {
        world.file(256, format!("{inode}").as_bytes(), inode, 8 * 4096 - 100);
        let extent = world.data(&content, 8);
        world.range(inode, 0, extent, 0, 8 * 4096);
    }
    // The items are a head that states 300 bytes, the descriptor, and a Merkle tree of 5000 bytes
    // in three items.
    let head = [&300_u64.to_le_bytes()[..], &[0; 17]].concat();
    let verity = [
        (ItemType::VERITY_DESC_ITEM, 0, head),
        (ItemType::VERITY_DESC_ITEM, 1, vec![1; 300]),
        (ItemType::VERITY_MERKLE_ITEM, 0, vec![2; 2048]),
        (ItemType::VERITY_MERKLE_ITEM, 2048, vec![3; 2048]),
        (ItemType::VERITY_MERKLE_ITEM, 4096, vec![4; 904]),
    ];
    for (item_type, offset, bytes) in verity {
        world
            .items(5)
            .insert(crate::testing::key(257, item_type, offset), bytes);
    }
    // VERITY is the lowest flag in the upper half.
    let place = crate::testing::key(257, ItemType::INODE_ITEM, 0);
    world.items(5).get_mut(&place).unwrap()[68] |= 1;
    let mut image = world.image();
    crate::testing::edit_superblock(&mut image, |raw| raw.compat_ro_flags |= CompatRo::VERITY.bits());
    let filesystem = open_image(image, |options| options);
    for inode in [257, 258] {
        let bytes = read(&filesystem, inode, 0, 1 << 20).unwrap();
        assert!(bytes == content[..8 * 4096 - 100], "inode {inode}");
        assert_eq!(chunks(&filesystem, inode), [(0, 8 * 4096 - 100, 'd')]);
        assert!(filesystem.xattrs(at(inode)).unwrap().is_empty());
        assert_eq!(filesystem.metadata(at(inode)).unwrap().size.get(), 8 * 4096 - 100);
    }
    assert_eq!(filesystem.notices(), []);
    let mut walked = filesystem.walk(at(256), WalkOptions::default());
    assert!(!walked.any(|item| matches!(item, WalkItem::Failed(_))));
}

#[test]
fn holes_of_exabytes_take_no_memory() {
    let mut world = World::new();
    let size = u64::MAX >> 1;
    world.file(256, b"file", 257, size);
    let extent = world.data(&pattern(1), 1);
    let far = (1 << 62) & !4095;
    world.range(257, far, extent, 0, 4096);
    let filesystem = world.open();
    let rest = size - far - 4096;
    assert_eq!(
        chunks(&filesystem, 257),
        [(0, far, 'h'), (far, 4096, 'd'), (far + 4096, rest, 'h')]
    );
    assert_eq!(
        read(&filesystem, 257, far - 10, 20).unwrap(),
        [&[0; 10][..], &pattern(1)[..10]].concat()
    );
    assert_eq!(read(&filesystem, 257, size - 5, 100).unwrap(), [0; 5]);
}

#[test]
fn ranges_that_break_the_rules_are_damage_and_the_rest_is_read() {
    // Inside one leaf, the tree checker rejects such overlapping ranges. Range number 34 is the
    // first range in the second leaf.
    let mut world = World::new();
    world.file(256, b"file", 257, 60 * 8192);
    let extent = world.data(&pattern(4), 4);
    for number in 0..60_u64 {
        world.range(257, number * 8192, extent, 0, 4096);
    }
    world.range(257, 33 * 8192, extent, 0, 12_288);
    let filesystem = world.open();
    let file = filesystem.open_file(at(257)).unwrap();
    let errors = file.extents().unwrap().filter(Result::is_err).count();
    assert!(errors > 0);
    let chunks = chunks(&filesystem, 257);
    let total: u64 = chunks.iter().map(|(_, length, _)| length).sum();
    assert_eq!(total, 60 * 8192, "{chunks:?}");
    assert!(chunks.iter().any(|(_, _, kind)| *kind == 'x'));
    assert!(chunks.iter().filter(|(_, _, kind)| *kind == 'd').count() > 10);
}

#[test]
fn the_map_of_a_file_has_no_gaps() {
    let mut world = World::new();
    world.file(256, b"file", 257, 100_000);
    let extent = world.data(&pattern(2), 2);
    world.range(257, 8192, extent, 0, 8192);
    let filesystem = world.open();
    let file = filesystem.open_file(at(257)).unwrap();
    let map: Vec<(u64, u64, bool)> = file
        .extents()
        .unwrap()
        .map(|range| range.unwrap())
        .map(|range| {
            (
                range.offset.get(),
                range.length.get(),
                matches!(range.kind, RangeKind::Data(_)),
            )
        })
        .collect();
    assert_eq!(
        map,
        [(0, 8192, false), (8192, 8192, true), (16_384, 83_616, false)]
    );
    let from: Vec<u64> = file
        .extents_from(FileOffset::new(12_000))
        .unwrap()
        .map(|range| range.unwrap().offset.get())
        .collect();
    assert_eq!(from, [8192, 16_384]);
}

/// One extent of a random file, in sectors: a gap, then `length` sectors from sector `inside` of an
/// extent of eight.
#[derive(Clone, Debug)]
struct Run {
    gap: u64,
    length: u64,
    inside: u64,
    preallocated: bool,
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let run = (0..3_u64, 1..5_u64, 0..4_u64, proptest::bool::weighted(0.2)).prop_map(
        |(gap, length, inside, preallocated)| Run {
            gap,
            length,
            inside,
            preallocated,
        },
    );
    proptest::collection::vec(run, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any layout, reads at any offset, as a stream and by a walk return the bytes of a byte
    /// vector.
    #[test]
    fn files_of_any_layout_read_as_their_model(
        runs in runs(),
        cut in 0..5000_u64,
        reads in proptest::collection::vec((0..1_000_000_u64, 0..50_000_usize), 8),
    ) {
        let mut world = World::new();
        world.file(256, b"file", 257, 0);
        let content = pattern(8);
        let extent = world.data(&content, 8);
        let mut model: Vec<u8> = Vec::new();
        for run in &runs {
            model.resize(model.len() + usize::try_from(run.gap * 4096).unwrap(), 0);
            let at = model.len() as u64;
            world.range(257, at, extent, run.inside * 4096, run.length * 4096);
            if run.preallocated {
                // The form of the extent item is the byte after generation, size and three
                // encodings.
                let item = world.items(5).get_mut(&crate::testing::key(257, ItemType::EXTENT_DATA, at)).unwrap();
                item[20] = 2;
                model.resize(model.len() + usize::try_from(run.length * 4096).unwrap(), 0);
            } else {
                let start = usize::try_from(run.inside * 4096).unwrap();
                model.extend_from_slice(&content[start..start + usize::try_from(run.length * 4096).unwrap()]);
            }
        }
        // The file may end inside its last range or beyond it.
        let size = (model.len() as u64 + 2000).saturating_sub(cut);
        model.resize(usize::try_from(size).unwrap(), 0);
        world.inode(257, 0o100_644, size);
        let filesystem = world.open();
        for (offset, length) in reads {
            let start = usize::try_from(offset).unwrap().min(model.len());
            let end = (start + length).min(model.len());
            prop_assert_eq!(&read(&filesystem, 257, offset, length).unwrap(), &model[start..end]);
        }
        let mut streamed = Vec::new();
        filesystem.open_file(at(257)).unwrap().reader().read_to_end(&mut streamed).unwrap();
        prop_assert_eq!(&streamed, &model);
        let mut walked = Vec::new();
        for item in filesystem.walk(at(257), WalkOptions::default()) {
            let WalkItem::Entry(mut entry) = item else { panic!("{item:?}") };
            entry.reader().unwrap().read_to_end(&mut walked).unwrap();
        }
        prop_assert_eq!(&walked, &model);
    }
}
