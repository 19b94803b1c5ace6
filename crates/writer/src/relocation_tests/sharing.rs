//! Compares content and sharing before and after a relocation.

use super::{contents, groups, relocate, sharing, with_snapshots};
use crate::operations::tests::volume::{Image, ROOT};
use buttress_engine::block_groups::Purpose;

/// Relocates all groups of each purpose, one after another.
#[track_caller]
fn all_purposes_move(options: &[&str], snapshots: u64) {
    let Some(image) = Image::make(options) else {
        return;
    };
    let filesystem = with_snapshots(&image, snapshots);
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
    let file = filesystem.create(ROOT, b"inline", &super::NEW).unwrap();
    filesystem.write_at(file, super::offset(0), b"inline").unwrap();
    filesystem.commit().unwrap();
    let all = groups(&filesystem, None);
    let summary = relocate(&filesystem, &all).unwrap();
    assert_eq!(summary.groups, all.len() as u64);
    filesystem.commit().unwrap();
    image.check();
}
