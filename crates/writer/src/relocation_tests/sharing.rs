//! Compares content and sharing before and after a relocation.

use super::{NEW, contents, groups, offset, relocate, sharing, with_snapshots};
use crate::operations::tests::volume::{Image, ROOT};
use crate::{AllocateMode, WritableFilesystem};
use buttress_engine::block_groups::Purpose;
use buttress_format::{InodeNumber, SubvolumeId};
use buttress_fs::location::Location;
use std::collections::BTreeSet;

/// Relocates all groups of each purpose, one after another.
#[track_caller]
fn all_purposes_move(options: &[&str], snapshots: u64) {
    all_purposes_move_of(options, |image| with_snapshots(image, snapshots));
}

#[track_caller]
fn all_purposes_move_of(options: &[&str], fill: impl FnOnce(&Image) -> WritableFilesystem) {
    let Some(image) = Image::make(options) else {
        return;
    };
    let filesystem = fill(&image);
    image.check();
    let (content, shares) = (contents(&filesystem), sharing(&filesystem));
    for purpose in [Purpose::Data, Purpose::Metadata, Purpose::System] {
        let before = groups(&filesystem, Some(purpose));
        let summary = relocate(&filesystem, &before).unwrap();
        assert_eq!(summary.groups, before.len() as u64, "{purpose:?}");
        let after = groups(&filesystem, Some(purpose));
        assert!(
            after.iter().all(|group| !before.contains(group)),
            "{before:?} {after:?}"
        );
        image.check();
        assert_eq!(sharing(&filesystem), shares, "{purpose:?}");
        assert!(contents(&filesystem) == content, "{purpose:?}: content changed");
    }
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = image.open();
    assert!(contents(&filesystem) == content, "after opening again");
}

#[test]
fn single_and_dup_groups_move() {
    all_purposes_move(&[], 0);
}

#[test]
fn groups_with_snapshots_move() {
    all_purposes_move(&[], 12);
}

#[test]
fn groups_of_small_nodes_with_many_snapshots_move() {
    all_purposes_move(&["-n", "4096"], 50);
}

#[test]
fn mixed_groups_move() {
    all_purposes_move(&["--mixed"], 6);
}

/// A volume without data has an empty checksum tree, whose only leaf holds no key.
#[test]
fn groups_with_empty_trees_move() {
    let Some(image) = Image::make(&["-m", "dup"]) else {
        return;
    };
    let filesystem = image.open();
    let file = filesystem.create(ROOT, b"inline", &NEW).unwrap();
    filesystem.write_at(file, offset(0), b"inline").unwrap();
    filesystem.commit().unwrap();
    let all = groups(&filesystem, None);
    let summary = relocate(&filesystem, &all).unwrap();
    assert_eq!(summary.groups, all.len() as u64);
    filesystem.commit().unwrap();
    image.check();
}

#[test]
fn empty_trees_move() {
    all_purposes_move_of(&[], |image| {
        let filesystem = image.open();
        filesystem.set_label(b"no data, so no checksums").unwrap();
        filesystem
    });
}

/// Changes to a subvolume after a relocation must copy what snapshots share.
#[test]
fn snapshots_diverge_after_a_relocation() {
    let Some(image) = Image::make(&["-n", "4096"]) else {
        return;
    };
    let filesystem = with_snapshots(&image, 6);
    for purpose in [Purpose::Data, Purpose::Metadata] {
        relocate(&filesystem, &groups(&filesystem, Some(purpose))).unwrap();
    }
    let before = contents(&filesystem);
    let subvolumes: BTreeSet<u64> = before.keys().map(|(subvolume, _)| *subvolume).collect();
    let changed = *subvolumes.iter().next().unwrap();
    for (subvolume, inode) in before.keys().filter(|(subvolume, _)| *subvolume == changed) {
        let file = Location::new(SubvolumeId::new(*subvolume), InodeNumber::new(*inode));
        filesystem.write_at(file, offset(0), b"changed").unwrap();
    }
    filesystem.commit().unwrap();
    image.check();
    let after = contents(&filesystem);
    for (key, content) in &before {
        let expected = key.0 != changed;
        assert_eq!(after.get(key) == Some(content), expected, "{key:?}");
    }
}

/// Punches a hole of one sector into a file.
fn punch(filesystem: &WritableFilesystem, file: Location, sector: u64) {
    let hole = offset(sector * 4096)..offset((sector + 1) * 4096);
    filesystem.allocate(file, hole, AllocateMode::PunchHole).unwrap();
}

/// Fills a file of 1 MiB with one extent, and makes every second sector a hole. The extent's items
/// fill several leaves, which refer to no other extent.
fn extent_in_many_leaves(filesystem: &WritableFilesystem) -> Location {
    let file = filesystem.create(ROOT, b"many leaves", &NEW).unwrap();
    filesystem.write_at(file, offset(0), &vec![1; 1 << 20]).unwrap();
    filesystem.commit().unwrap();
    for sector in (1..256).step_by(2) {
        punch(filesystem, file, sector);
    }
    filesystem.commit().unwrap();
    file
}

/// Moves an extent that a snapshot uses in a leaf of its own, and in leaves that others count.
/// `before` changes the volume between the snapshot and the snapshot's own change.
///
/// The volume has no other extent of data. A batch also copies the leaves of the batch's other
/// extents, and would thus change a leaf that the search misses.
#[track_caller]
fn extent_in_shared_and_own_leaves_moves(before: impl FnOnce(&WritableFilesystem, Location)) {
    let Some(image) = Image::make(&["-n", "4096"]) else {
        return;
    };
    let filesystem = image.open();
    let file = extent_in_many_leaves(&filesystem);
    let snapshot = filesystem
        .subvolumes()
        .snapshot(SubvolumeId::new(5), ROOT, b"snapshot", false)
        .unwrap();
    before(&filesystem, file);
    punch(&filesystem, Location::new(snapshot, file.inode), 254);
    filesystem.commit().unwrap();
    let content = contents(&filesystem);
    let summary = relocate(&filesystem, &groups(&filesystem, Some(Purpose::Data))).unwrap();
    assert_eq!(summary.data_extents, 1, "another extent moved too");
    filesystem.commit().unwrap();
    image.check();
    assert!(contents(&filesystem) == content, "content changed");
}

/// A search for a snapshot's items must not count items in leaves of the original.
#[test]
fn extent_in_leaves_of_the_original_and_the_snapshot_moves() {
    extent_in_shared_and_own_leaves_moves(|_, _| ());
}

/// A search for a snapshot's items must not count items in leaves with full back references.
#[test]
fn extent_in_leaves_with_full_references_and_own_leaves_moves() {
    extent_in_shared_and_own_leaves_moves(|filesystem, file| {
        for sector in (0..256).step_by(16) {
            punch(filesystem, file, sector);
        }
        filesystem.commit().unwrap();
    });
}
