//! Tests of paths, listings and walks, on valid and hostile volumes.

use crate::error::{Corruption, Error};
use crate::location::Location;
use crate::lookup::Follow;
use crate::testing::{World, at, key, reference};
use crate::walk::{WalkItem, WalkOptions, WalkOrder};
use buttress_format::{FileKind, ItemType, SubvolumeId, name_hash};
use std::collections::HashMap;

/// Returns the paths of all entries and the failures of a walk, which must end.
fn walk(
    filesystem: &crate::Filesystem,
    start: Location,
    order: WalkOrder,
) -> (Vec<String>, Vec<(String, Error)>) {
    let (mut paths, mut failures) = (Vec::new(), Vec::new());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    for item in filesystem.walk(
        start,
        WalkOptions {
            order,
            ..WalkOptions::default()
        },
    ) {
        match item {
            WalkItem::Entry(entry) => paths.push(text(entry.path())),
            WalkItem::Failed(failed) => failures.push((text(failed.path), failed.error)),
            WalkItem::Enter(_) | WalkItem::Leave(_) => {}
        }
        assert!(paths.len() + failures.len() < 1000, "the walk does not end");
    }
    (paths, failures)
}

fn corruption(error: &Error) -> &Corruption {
    match error {
        Error::Corrupt(corruption) => corruption,
        other => panic!("not corruption: {other}"),
    }
}

#[test]
fn names_of_equal_hash_are_distinguished() {
    let mut seen: HashMap<u64, Vec<u8>> = HashMap::new();
    let (one, other) = (0_u64..)
        .find_map(|number| {
            let name = format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
            let hash = name_hash(&name);
            seen.insert(hash, name.clone()).map(|other| (other, name))
        })
        .unwrap();
    let mut world = World::new();
    world.file(256, &one, 257, 0);
    world.file(256, &other, 258, 0);
    let filesystem = world.open();
    assert_eq!(filesystem.resolve(at(256), &one, Follow::All).unwrap(), at(257));
    assert_eq!(filesystem.resolve(at(256), &other, Follow::All).unwrap(), at(258));
    assert!(filesystem.lookup(at(256), b"neither").unwrap().is_none());
}

#[test]
fn symlinks_stay_inside_and_are_limited() {
    let mut world = World::new();
    world.directory(256, b"a", 257);
    world.directory(257, b"b", 258);
    world.file(258, b"file", 259, 0);
    world.symlink(258, b"up", 260, b"../../../../../a/b/file");
    world.symlink(258, b"absolute", 261, b"/b/file");
    world.symlink(258, b"self", 262, b"self");
    world.symlink(256, b"dir", 263, b"a/b/");
    world.symlink(256, b"dangling", 264, b"nowhere");
    world.symlink(256, b"file-as-dir", 265, b"a/b/file/");
    let filesystem = world.open();
    let resolve = |root: u64, path: &str, follow| filesystem.resolve(at(root), path.as_bytes(), follow);
    assert_eq!(resolve(256, "a/b/up", Follow::All).unwrap(), at(259));
    // With another root, absolute targets and dots begin at that root.
    assert_eq!(resolve(257, "/b/absolute", Follow::All).unwrap(), at(259));
    assert!(matches!(
        resolve(256, "a/b/absolute", Follow::All),
        Err(Error::NotFound { .. })
    ));
    assert_eq!(resolve(257, "../../..", Follow::All).unwrap(), at(257));
    assert_eq!(resolve(256, "dir/file", Follow::NotLast).unwrap(), at(259));
    assert_eq!(resolve(256, "dir", Follow::NotLast).unwrap(), at(263));
    assert_eq!(resolve(256, "dir/", Follow::NotLast).unwrap(), at(258));
    assert_eq!(resolve(256, "dir/..", Follow::NotLast).unwrap(), at(257));
    assert_eq!(resolve(256, "a/b/self", Follow::NotLast).unwrap(), at(262));
    assert!(matches!(
        resolve(256, "a/b/self", Follow::All),
        Err(Error::TooManySymlinks { .. })
    ));
    assert!(matches!(
        resolve(256, "dangling", Follow::All),
        Err(Error::NotFound { .. })
    ));
    for path in [
        "a/b/file/",
        "a/b/file/.",
        "a/b/file/..",
        "file-as-dir",
        "a/b/file/x",
    ] {
        assert!(
            matches!(resolve(256, path, Follow::All), Err(Error::NotADirectory { .. })),
            "{path}"
        );
    }
    let long = "x".repeat(256);
    assert!(matches!(
        resolve(256, &long, Follow::All),
        Err(Error::NameTooLong { .. })
    ));
    assert_eq!(filesystem.read_link(at(263)).unwrap(), b"a/b/");
}

#[test]
fn a_directory_inside_itself_is_not_entered() {
    for order in [WalkOrder::Depth, WalkOrder::ByDirectory { sorted: true }] {
        let mut world = World::new();
        world.directory(256, b"a", 257);
        world.directory(257, b"b", 258);
        let child = key(257, ItemType::INODE_ITEM, 0);
        world.half_entry(258, b"back", child, FileKind::Directory);
        world.half_entry(
            258,
            b"top",
            key(256, ItemType::INODE_ITEM, 0),
            FileKind::Directory,
        );
        world.file(258, b"file", 259, 0);
        let (paths, failures) = walk(&world.open(), at(256), order);
        assert!(paths.contains(&"a/b/file".to_owned()));
        let failed: Vec<&str> = failures.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(failed, ["a/b/back", "a/b/top"]);
        for (_, error) in &failures {
            assert!(
                matches!(corruption(error), Corruption::DirectoryLinkedTwice { .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn a_circle_apart_from_the_root_ends() {
    let mut world = World::new();
    world.inode(300, 0o040_755, 0);
    world.inode(301, 0o040_755, 0);
    world.entry(300, b"down", 301, FileKind::Directory);
    world.entry(301, b"round", 300, FileKind::Directory);
    let filesystem = world.open();
    let (paths, failures) = walk(&filesystem, at(300), WalkOrder::Depth);
    assert_eq!(paths, ["", "down"]);
    assert_eq!(failures[0].0, "down/round");
    let error = filesystem.directory_path(at(300)).unwrap_err();
    assert!(matches!(corruption(&error), Corruption::ParentLoop { .. }));
}

#[test]
fn directories_that_share_children_do_not_multiply() {
    let mut world = World::new();
    for level in 0..30_u64 {
        world.directory(256 + level, b"one", 257 + level);
        let child = key(257 + level, ItemType::INODE_ITEM, 0);
        world.half_entry(256 + level, b"two", child, FileKind::Directory);
    }
    let (paths, failures) = walk(&world.open(), at(256), WalkOrder::Depth);
    assert_eq!((paths.len(), failures.len()), (31, 30));
}

#[test]
fn missing_halves_of_entries_are_reported_and_listed() {
    let mut world = World::new();
    let index = world.directory(256, b"without-index", 257);
    world.file(256, b"without-item", 258, 0);
    world.file(256, b"whole", 259, 0);
    let top = world.items(5);
    top.remove(&key(256, ItemType::DIR_INDEX, index));
    top.remove(&key(256, ItemType::DIR_ITEM, name_hash(b"without-item")));
    let filesystem = world.open();
    let (mut names, mut errors) = (Vec::new(), Vec::new());
    for entry in filesystem.read_dir(at(256)).unwrap() {
        match entry {
            Ok(entry) => names.push(entry.name),
            Err(error) => errors.push(error),
        }
    }
    assert_eq!(
        names,
        [
            b"without-item".to_vec(),
            b"whole".to_vec(),
            b"without-index".to_vec()
        ]
    );
    assert!(
        matches!(
            corruption(&errors[0]),
            Corruption::DirItemMissing { index: 3, .. }
        ),
        "{}",
        errors[0]
    );
    assert!(
        matches!(corruption(&errors[1]), Corruption::DirIndexMissing { .. }),
        "{}",
        errors[1]
    );
    assert_eq!(errors.len(), 2);
    // The kernel also does not find a name whose hashed entry is missing.
    assert!(filesystem.lookup(at(256), b"without-item").unwrap().is_none());
    let (paths, failures) = walk(&filesystem, at(256), WalkOrder::Depth);
    assert_eq!((paths.len(), failures.len()), (4, 2));
}

#[test]
fn invalid_entry_names_are_never_returned() {
    for name in [&b".."[..], b".", b"a/b", b"../../etc/passwd", b"a\0b"] {
        let mut world = World::new();
        world.half_entry(256, name, key(257, ItemType::INODE_ITEM, 0), FileKind::Regular);
        world.inode(257, 0o100_644, 0);
        world
            .items(5)
            .insert(key(257, ItemType::INODE_REF, 256), reference(2, b"x"));
        let (paths, failures) = walk(&world.open(), at(256), WalkOrder::Depth);
        assert!(paths.iter().all(String::is_empty), "{paths:?}");
        assert!(!failures.is_empty());
    }
}

#[test]
fn entries_whose_inode_is_missing_or_of_another_kind_fail_alone() {
    let mut world = World::new();
    world.half_entry(256, b"gone", key(300, ItemType::INODE_ITEM, 0), FileKind::Regular);
    world.file(256, b"good", 257, 0);
    world.inode(258, 0o100_644, 0);
    world.entry(256, b"lies", 258, FileKind::Directory);
    let (paths, failures) = walk(&world.open(), at(256), WalkOrder::Depth);
    assert_eq!(paths, ["", "good"]);
    assert_eq!(
        failures.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(),
        ["gone", "lies"]
    );
}

#[test]
fn nested_subvolumes_are_entered_in_their_own_place_only() {
    let mut world = World::new();
    world.directory(256, b"a", 257);
    world.subvolume(300, 257, b"nested");
    // A snapshot of the parent subvolume would hold the entry without the reference.
    let root = key(300, ItemType::ROOT_ITEM, u64::MAX);
    world.half_entry(256, b"copy", root, FileKind::Directory);
    let filesystem = world.open();
    let nested = filesystem.resolve(at(256), b"a/nested", Follow::All).unwrap();
    assert_eq!(nested, Location::root_of(SubvolumeId::new(300)));
    let copy = filesystem.resolve(at(256), b"copy", Follow::All).unwrap();
    assert_eq!((copy.inode.get(), copy.placeholder()), (2, Some(at(256))));
    let shown = filesystem.metadata(copy).unwrap();
    assert_eq!(
        (shown.mode, shown.nlink, shown.size.get(), shown.created),
        (0o040_755, 1, 0, None)
    );
    assert_eq!(filesystem.read_dir(copy).unwrap().count(), 0);
    let info = filesystem.subvolume(SubvolumeId::new(300)).unwrap();
    assert_eq!(info.path.as_deref(), Some(&b"a/nested"[..]));
    assert_eq!(filesystem.subvolumes().unwrap().len(), 2);
    let (paths, failures) = walk(&filesystem, at(256), WalkOrder::Depth);
    assert_eq!(paths, ["", "a", "a/nested", "copy"]);
    assert!(failures.is_empty());
}
