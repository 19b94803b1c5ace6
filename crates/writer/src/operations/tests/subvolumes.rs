//! Tests of subvolume calls: create, fill, snapshot, change on both sides, delete and drop, checked
//! by btrfs-progs.

use super::volume::Image;
use crate::operations::{AttributeChanges, NewInode, ReceivedUuid, RenameMode, SetXattr};
use buttress_format::{FileOffset, ItemType, Key, SubvolumeId};
use buttress_fs::acl::DEFAULT_NAME;
use buttress_fs::error::Error;
use buttress_fs::inode::FileAttributes;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use buttress_fs::property::COMPRESSION_NAME;
use buttress_tree::ReadAhead;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

#[test]
fn subvolumes_live_and_die() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let subvolumes = filesystem.subvolumes();
    let file = NewInode::of_root(0o644);
    let home = subvolumes.create(TOP, b"home").unwrap();
    for number in 0..2000 {
        let name = format!("file-{number}");
        filesystem
            .create(Location::root_of(home), name.as_bytes(), &file)
            .unwrap();
    }
    let inner = subvolumes.create(Location::root_of(home), b"inner").unwrap();
    let monday = subvolumes.snapshot(home, TOP, b"monday", true).unwrap();
    let work = filesystem
        .subvolumes()
        .snapshot(monday, TOP, b"work", false)
        .unwrap();
    filesystem.commit().unwrap();
    image.check();
    for number in 0..1500 {
        let name = format!("file-{number}");
        filesystem
            .unlink(Location::root_of(home), name.as_bytes())
            .unwrap();
        filesystem
            .unlink(
                Location::root_of(work),
                format!("file-{}", 500 + number).as_bytes(),
            )
            .unwrap();
    }
    assert!(matches!(
        filesystem.create(Location::root_of(monday), b"new", &file),
        Err(Error::ReadOnlySubvolume { .. })
    ));
    filesystem
        .subvolumes()
        .set_read_only(monday, false, ReceivedUuid::Refuse)
        .unwrap();
    filesystem
        .create(Location::root_of(monday), b"new", &file)
        .unwrap();
    filesystem.subvolumes().set_default(work).unwrap();
    filesystem.set_label(b"a label").unwrap();
    assert!(matches!(
        filesystem.subvolumes().delete(home),
        Err(Error::HoldsSubvolume { subvolume, nested, name })
            if (subvolume, nested) == (home, inner) && name.0 == b"inner"
    ));
    assert!(matches!(
        filesystem.subvolumes().delete(work),
        Err(Error::NotPermitted { .. })
    ));
    filesystem.subvolumes().delete(inner).unwrap();
    filesystem.subvolumes().delete(home).unwrap();
    filesystem.commit().unwrap();
    image.check();
    drop(filesystem);

    // Deleted subvolumes remain across a new opening, and are then dropped.
    let filesystem = image.open();
    let subvolumes = filesystem.subvolumes();
    assert_eq!(filesystem.subvolumes().deleted().unwrap(), vec![home, inner]);
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    image.check();
    let view = filesystem.view();
    let names: Vec<_> = view
        .subvolumes()
        .unwrap()
        .into_iter()
        .filter_map(|info| info.path)
        .collect();
    assert_eq!(names, [&b""[..], b"monday", b"work"]);
    assert_eq!(view.default_subvolume().unwrap(), work);
    assert_eq!(view.superblock().label, b"a label");
    drop(view);
    subvolumes.set_default(SubvolumeId::TOP_LEVEL).unwrap();
    for id in [monday, work] {
        filesystem.subvolumes().delete(id).unwrap();
    }
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    image.check();
}

/// As in the kernel, the directory's default list limits the mode. The compression property comes
/// from the parent subvolume's root.
#[test]
fn new_subvolumes_inherit() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let around = filesystem
        .make_directory(TOP, b"around", &NewInode::of_root(0o777))
        .unwrap();
    let set = |location, name: &[u8], value: &[u8]| {
        filesystem
            .set_xattr(location, name, value, SetXattr::Create)
            .unwrap();
    };
    set(TOP, COMPRESSION_NAME, b"zstd");
    set(around, COMPRESSION_NAME, b"lzo");
    // The ACL's permissions are owner 7, user 1000 6, group 5, mask 3, others 0.
    let entries = [
        (1, 7, u32::MAX),
        (2, 6, 1000),
        (4, 5, u32::MAX),
        (16, 3, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut list = vec![2, 0, 0, 0];
    for (tag, permission, id) in entries {
        list.extend_from_slice(&[tag, 0, permission, 0]);
        list.extend_from_slice(&id.to_le_bytes());
    }
    set(around, DEFAULT_NAME, &list);
    let changes = AttributeChanges {
        mode: Some(0o2775),
        gid: Some(9),
        ..AttributeChanges::default()
    };
    filesystem.set_attributes(around, &changes).unwrap();
    let id = filesystem.subvolumes().create(around, b"subvolume").unwrap();
    filesystem.commit().unwrap();
    image.check();
    let view = filesystem.view();
    let root = Location::root_of(id);
    let metadata = view.metadata(root).unwrap();
    assert_eq!((metadata.mode, metadata.gid), (0o040_710, 0));
    assert_eq!(FileAttributes::from_inode_flags(metadata.flags).letters(), "c");
    let xattrs = view.xattrs(root).unwrap();
    let xattrs: Vec<_> = xattrs
        .iter()
        .map(|xattr| (xattr.name.as_slice(), xattr.value.as_slice()))
        .collect();
    assert_eq!(xattrs, [(COMPRESSION_NAME, &b"zstd"[..])]);
}

#[test]
fn flags_and_read_only_roots_keep_subvolumes_in_place() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let directory = filesystem
        .make_directory(TOP, b"directory", &NewInode::of_root(0o755))
        .unwrap();
    let id = filesystem.subvolumes().create(TOP, b"one").unwrap();
    let root = Location::root_of(id);
    let replace = RenameMode::Replace;
    for flag in [FileAttributes::IMMUTABLE, FileAttributes::APPEND] {
        filesystem.set_flags(root, flag).unwrap();
        let renamed = filesystem.rename(TOP, b"one", TOP, b"two", replace);
        for refused in [renamed, filesystem.subvolumes().delete(id)] {
            assert!(matches!(refused, Err(Error::NotPermitted { .. })), "{refused:?}");
        }
    }
    filesystem.set_flags(root, FileAttributes::empty()).unwrap();
    filesystem
        .subvolumes()
        .set_read_only(id, true, ReceivedUuid::Refuse)
        .unwrap();
    filesystem.rename(TOP, b"one", TOP, b"two", replace).unwrap();
    let refused = filesystem.rename(TOP, b"two", directory, b"three", replace);
    assert!(
        matches!(refused, Err(Error::ReadOnlySubvolume { .. })),
        "{refused:?}"
    );
    filesystem.subvolumes().create(directory, b"other").unwrap();
    let refused = filesystem.rename(directory, b"other", TOP, b"two", RenameMode::Exchange);
    assert!(
        matches!(refused, Err(Error::ReadOnlySubvolume { .. })),
        "{refused:?}"
    );
    filesystem.subvolumes().delete(id).unwrap();
    filesystem.commit().unwrap();
    image.check();
}

#[test]
fn nothing_of_a_deleted_subvolume_reaches_the_next_one() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let file = NewInode::of_root(0o644);
    let old = filesystem.subvolumes().create(TOP, b"old").unwrap();
    let waiting = filesystem
        .create(Location::root_of(old), b"waiting", &file)
        .unwrap();
    let held = filesystem.open_inode(waiting).unwrap();
    let unnamed = filesystem.make_unnamed(Location::root_of(old), &file).unwrap();
    filesystem
        .write_at(waiting, FileOffset::MIN, &vec![1; 100_000])
        .unwrap();
    filesystem.subvolumes().delete(old).unwrap();
    let refused = [
        filesystem.write_at(waiting, FileOffset::MIN, &[2; 10]),
        filesystem.create(Location::root_of(old), b"new", &file).map(drop),
        filesystem
            .subvolumes()
            .snapshot(old, TOP, b"copy", false)
            .map(drop),
    ];
    for result in refused {
        assert!(
            matches!(result, Err(Error::SubvolumeNotFound { .. })),
            "{result:?}"
        );
    }
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    let new = filesystem.subvolumes().create(TOP, b"new").unwrap();
    assert!(new > old, "{new} after {old}");
    filesystem
        .create(Location::root_of(new), b"another", &file)
        .unwrap();
    filesystem.commit().unwrap();
    // Dropping the handles that hold the inodes open removes the inodes completely.
    drop((held, unnamed));
    filesystem.commit().unwrap();
    image.check();
}

#[test]
fn an_entry_that_stands_for_a_subvolume_is_not_that_subvolume() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let outer = filesystem.subvolumes().create(TOP, b"outer").unwrap();
    let inside = Location::root_of(outer);
    filesystem.subvolumes().create(inside, b"inner").unwrap();
    let copy = filesystem
        .subvolumes()
        .snapshot(outer, TOP, b"copy", false)
        .unwrap();
    let copied = Location::root_of(copy);
    filesystem
        .rename(inside, b"inner", copied, b"real", RenameMode::NoReplace)
        .unwrap();
    // Now the snapshot has placeholders in place of both subvolumes.
    for (from, to, mode) in [
        (&b"inner"[..], &b"real"[..], RenameMode::Replace),
        (b"inner", b"real", RenameMode::Exchange),
        (b"real", b"inner", RenameMode::Exchange),
    ] {
        let refused = filesystem.rename(copied, from, copied, to, mode);
        assert!(matches!(refused, Err(Error::NotEmpty { .. })), "{refused:?}");
    }
    filesystem
        .rename(copied, b"real", copied, b"real", RenameMode::Replace)
        .unwrap();
    filesystem.commit().unwrap();
    image.check();
    // A directory replaces a placeholder entry, and so does the subvolume itself.
    filesystem
        .rename(copied, b"real", copied, b"inner", RenameMode::Replace)
        .unwrap();
    let found = filesystem.live().lookup(copied, b"inner").unwrap().unwrap();
    assert!(found.target.placeholder().is_none(), "{:?}", found.target);
    assert_eq!(filesystem.live().list(copied, 0, 10).unwrap().len(), 1);
    filesystem.commit().unwrap();
    image.check();
    let other = filesystem
        .subvolumes()
        .snapshot(copy, TOP, b"other", false)
        .unwrap();
    let other = Location::root_of(other);
    filesystem
        .rename(other, b"inner", TOP, b"moved", RenameMode::Replace)
        .map_or_else(
            |refused| assert!(matches!(refused, Error::CrossesSubvolumes), "{refused:?}"),
            |()| panic!("an entry that stands for a subvolume left its snapshot"),
        );
    filesystem
        .make_directory(other, b"full", &NewInode::of_root(0o755))
        .unwrap();
    filesystem
        .rename(other, b"full", other, b"inner", RenameMode::Replace)
        .unwrap();
    assert_eq!(filesystem.live().list(other, 0, 10).unwrap().len(), 1);
    filesystem.remove_directory(other, b"inner").unwrap();
    filesystem.commit().unwrap();
    image.check();
}

/// Blocks from the transaction that made a snapshot belong to the snapshot, and the snapshot holds
/// the references to their children. If a second snapshot shares the blocks of a dropped snapshot,
/// the blocks must hold the references themselves.
#[test]
fn blocks_of_dropped_snapshot_survive_in_second_snapshot() {
    let Some(image) = Image::make(&["-n", "4096"]) else {
        return;
    };
    let filesystem = image.open();
    let file = NewInode::of_root(0o644);
    let source = filesystem.subvolumes().create(TOP, b"source").unwrap();
    for number in 0..100 {
        let name = format!("file-{number}");
        filesystem
            .create(Location::root_of(source), name.as_bytes(), &file)
            .unwrap();
    }
    filesystem.commit().unwrap();
    let first = filesystem
        .subvolumes()
        .snapshot(source, TOP, b"first", false)
        .unwrap();
    let root = Location::root_of(first);
    for number in 0..100 {
        let name = format!("file-{number}");
        let found = filesystem.live().lookup(root, name.as_bytes()).unwrap().unwrap();
        filesystem
            .write_at(found.target, FileOffset::MIN, &[7; 4096])
            .unwrap();
    }
    filesystem.writeback().write_all().unwrap();
    filesystem.commit().unwrap();
    let second = filesystem
        .subvolumes()
        .snapshot(first, TOP, b"second", false)
        .unwrap();
    filesystem.commit().unwrap();
    filesystem.subvolumes().delete(first).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    image.check();
    filesystem.subvolumes().delete(second).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    image.check();
}

/// The kernel too treats blocks not newer than the key of a snapshot's root item as the source's.
#[test]
fn the_key_of_a_snapshot_is_older_than_all_that_it_makes() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let home = filesystem.subvolumes().create(TOP, b"home").unwrap();
    let snapshot = filesystem
        .subvolumes()
        .snapshot(home, TOP, b"snapshot", false)
        .unwrap();
    filesystem
        .create(Location::root_of(snapshot), b"new", &NewInode::of_root(0o644))
        .unwrap();
    filesystem.commit().unwrap();
    let view = filesystem.view();
    let first = Key::new(snapshot.tree().object_id(), ItemType::ROOT_ITEM, 0);
    let last = Key::new(snapshot.tree().object_id(), ItemType::ROOT_ITEM, u64::MAX);
    let mut found = view.root_tree().range(first..=last, ReadAhead::None);
    let key = found.next().unwrap().unwrap().key();
    let root = view.root_item(snapshot.tree()).unwrap();
    assert!(key.offset > 0 && key.offset < root.otransid.get());
    assert!(key.offset < root.generation.get());
}

/// Drops a tree of three levels in the smallest possible steps. After each step of the drop, the
/// volume is consistent.
#[test]
fn dropping_goes_on_where_it_was_cancelled() {
    let Some(image) = Image::make(&["-n", "4096"]) else {
        return;
    };
    let filesystem = image.open();
    let home = filesystem.subvolumes().create(TOP, b"home").unwrap();
    let inside = Location::root_of(home);
    for number in 0..4000 {
        let name = format!("{number:0>60}");
        filesystem
            .create(inside, name.as_bytes(), &NewInode::of_root(0o644))
            .unwrap();
    }
    filesystem
        .subvolumes()
        .snapshot(home, TOP, b"snapshot", false)
        .unwrap();
    for number in (0..4000).step_by(100) {
        let name = format!("{number:0>60}");
        filesystem.unlink(inside, name.as_bytes()).unwrap();
    }
    filesystem.commit().unwrap();
    assert!(filesystem.view().root_item(home.tree()).unwrap().level >= 2);
    filesystem.subvolumes().delete(home).unwrap();
    let cancelled = Progress::new();
    cancelled.cancel();
    let mut steps = 0_u32;
    while let Err(error) = filesystem.subvolumes().drop_deleted(&cancelled) {
        assert!(matches!(error, Error::Cancelled), "{error}");
        steps += 1;
        assert!(steps < 10_000, "dropping does not get on");
        if steps.is_multiple_of(50) {
            filesystem.commit().unwrap();
            image.check();
        }
    }
    assert!(steps > 100, "{steps}");
    filesystem.commit().unwrap();
    image.check();
}

/// The highest id is free again after its tree was dropped, and cached state of the old subvolume
/// may remain.
#[test]
fn a_dropped_subvolume_is_taken_for_no_later_one() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let old = filesystem.subvolumes().create(TOP, b"old").unwrap();
    let directory = filesystem
        .make_directory(Location::root_of(old), b"directory", &NewInode::of_root(0o755))
        .unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = image.open();
    filesystem.subvolumes().delete(old).unwrap();
    filesystem.unlink(directory, b"name").unwrap_err();
    filesystem.commit().unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    let new = filesystem.subvolumes().create(TOP, b"new").unwrap();
    assert_ne!(new, old);
    filesystem
        .create(directory, b"name", &NewInode::of_root(0o600))
        .unwrap_err();
    filesystem.commit().unwrap();
    drop(filesystem);
    image.check();
}
