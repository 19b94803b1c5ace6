//! Tests of broken items with correct checksums: nothing panics, and every operation ends.

use crate::location::Location;
use crate::lookup::Follow;
use crate::open::OpenOptions;
use crate::testing::{World, at, key};
use crate::walk::{WalkItem, WalkOptions, WalkOrder};
use buttress_device::Device;
use buttress_format::{ByteCount, FileKind, ItemType, Key, ObjectId, SubvolumeId, TreeId};
use proptest::prelude::*;

/// Returns a volume with some items of every type.
fn world() -> World {
    let mut world = World::new();
    world.directory(256, b"a", 257);
    world.directory(257, b"b", 258);
    world.symlink(258, b"link", 259, b"../b/link2");
    world.symlink(258, b"link2", 260, b"/a/b/file");
    world.file(258, b"file", 261, 40_000);
    let extent = world.data(&vec![9; 32_768], 8);
    world.range(261, 0, extent, 0, 16_384);
    world.range(261, 20_480, extent, 8192, 16_384);
    world.file(256, b"small", 262, 11);
    world.inline(262, b"hello world");
    world.subvolume(300, 257, b"nested");
    world.half_entry(
        256,
        b"copy",
        key(300, ItemType::ROOT_ITEM, u64::MAX),
        FileKind::Directory,
    );
    // The extent item has one reference by tree: count, generation, data; then its type and fields.
    let mut item = [1, 7, 1_u64].map(u64::to_le_bytes).concat();
    item.push(178);
    item.extend([5, 261, 0_u64].map(u64::to_le_bytes).concat());
    item.extend(2_u32.to_le_bytes());
    item[0] = 2;
    let place = Key::new(ObjectId::new(extent.0.get()), ItemType::EXTENT_ITEM, extent.1);
    world.items(TreeId::EXTENT.get()).insert(place, item);
    world
}

/// A change: the index of the tree, of the item, and of the byte, and the new byte.
type Change = (usize, usize, usize, u8);

fn apply(world: &mut World, changes: &[Change]) {
    let trees: Vec<u64> = world.trees.keys().copied().collect();
    for (tree, item, byte, value) in changes {
        let items = world.items(trees[tree % trees.len()]);
        let count = items.len().max(1);
        if let Some(data) = items.values_mut().nth(item % count)
            && !data.is_empty()
        {
            let place = byte % data.len();
            data[place] = *value;
        }
    }
}

/// Calls all readers of the `fs` crate on an image. Returns the number of directory entries found.
fn exercise(image: Vec<u8>) -> usize {
    let Ok(filesystem) = OpenOptions::new(vec![Device::memory(image)])
        .cache(ByteCount::new(4 << 20))
        .open()
    else {
        return 0;
    };
    let mut entries = 0_usize;
    for order in [WalkOrder::Depth, WalkOrder::ByDirectory { sorted: true }] {
        for item in filesystem.walk(
            at(256),
            WalkOptions {
                order,
                ..WalkOptions::default()
            },
        ) {
            entries += 1;
            assert!(entries < 10_000, "the walk does not end");
            let WalkItem::Entry(mut entry) = item else {
                continue;
            };
            let _ = (entry.link_target(), entry.path());
            let _ = filesystem.inode_paths(entry.location());
            let Ok(mut reader) = entry.reader() else { continue };
            for _ in 0..1000 {
                if !matches!(reader.next_chunk(), Ok(Some(_))) {
                    break;
                }
            }
        }
    }
    for path in [&b"a/b/link"[..], b"a/nested", b"copy", b"a/b/../../small"] {
        if let Ok(location) = filesystem.resolve(at(256), path, Follow::All) {
            let _ = (filesystem.metadata(location), filesystem.xattrs(location));
            let _ = filesystem
                .read_dir(location)
                .map(|entries| entries.take(1000).count());
        }
    }
    let _ = (filesystem.subvolumes(), filesystem.default_subvolume());
    let _ = filesystem.metadata(Location::root_of(SubvolumeId::new(300)));
    entries
}

#[test]
fn a_sound_volume_gives_everything() {
    assert!(exercise(world().image()) > 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn broken_items_never_panic_and_everything_ends(
        changes in proptest::collection::vec((0..8_usize, 0..64_usize, 0..512_usize, any::<u8>()), 1..6),
    ) {
        let mut world = world();
        apply(&mut world, &changes);
        exercise(world.image());
    }
}
