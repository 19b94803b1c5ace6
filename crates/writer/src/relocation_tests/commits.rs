//! The commits of a job: few if there is space, and enough of them on a volume that is nearly full.

use super::{NEW, Random, contents, groups, offset, sharing};
use crate::WritableFilesystem;
use crate::operations::tests::volume::{Image, ROOT};
use buttress_engine::block_groups::Purpose;
use buttress_engine::relocation::{RelocationOptions, RelocationSummary};
use buttress_format::{ByteCount, DeviceId, ItemType, Logical, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;

/// A volume with small nodes, thousands of leaves, and snapshots that share them. Each batch copies
/// the roots of all snapshots again.
fn many_leaves(snapshots: u64) -> Option<Image> {
    let image = Image::make(&["-n", "4096", "-m", "single"])?;
    let filesystem = image.open();
    let mut random = Random(5);
    let home = filesystem.subvolumes().create(ROOT, b"home").unwrap();
    let mut files = Vec::new();
    for number in 0..2500 {
        let name = format!("file-{number}");
        let file = filesystem.create(Location::root_of(home), name.as_bytes(), &NEW);
        let file = file.unwrap();
        filesystem.write_at(file, offset(0), &random.bytes(1500)).unwrap();
        files.push(file);
    }
    for number in 0..snapshots {
        let name = format!("snapshot-{number}");
        filesystem
            .subvolumes()
            .snapshot(home, ROOT, name.as_bytes(), true)
            .unwrap();
        for _ in 0..20 {
            let file = files[(random.next() as usize) % files.len()];
            filesystem.write_at(file, offset(0), &random.bytes(100)).unwrap();
        }
    }
    filesystem.commit().unwrap();
    Some(image)
}

/// Moves the metadata. Returns also the number of moved extents.
fn relocate_metadata(filesystem: &WritableFilesystem) -> (Result<RelocationSummary>, u64) {
    let options = RelocationOptions {
        progress: Progress::new(),
        ..RelocationOptions::default()
    };
    let moved = filesystem
        .relocations()
        .relocate(&groups(filesystem, Some(Purpose::Metadata)), &options);
    (moved, options.progress.snapshot().items)
}

#[test]
fn job_with_space_commits_less_often_than_its_batches() {
    let Some(image) = many_leaves(12) else {
        return;
    };
    let filesystem = image.open();
    let (content, shares) = (contents(&filesystem), sharing(&filesystem));
    let before = filesystem.committed_generation();
    let summary = relocate_metadata(&filesystem).0.unwrap();
    let commits = filesystem.committed_generation().get() - before.get();
    assert!(summary.batches >= 4, "{summary:?}");
    // The start, the end of the pass, and the removal of the group commit.
    assert!(commits <= 6, "{commits} commits of {summary:?}");
    // The job has committed what it moved.
    let crashed = image.copy();
    crashed.check();
    assert!(contents(&crashed.open()) == content);
    assert_eq!(sharing(&filesystem), shares);
    image.commit_and_check(&filesystem);
}

/// The end of the last device extent.
fn end_of_device(filesystem: &WritableFilesystem) -> u64 {
    let map = filesystem.view().volume().chunk_map();
    let ends = map.chunks().iter().flat_map(|chunk| {
        let length = chunk.layout().device_extent_bytes().get();
        let stripes = chunk.chunk().stripes.iter();
        stripes.map(move |stripe| stripe.physical.get() + length)
    });
    ends.max().unwrap()
}

/// The bytes of all tree blocks.
fn tree_block_bytes(filesystem: &WritableFilesystem) -> u64 {
    let view = filesystem.view();
    let extents = view.tree(TreeId::EXTENT).unwrap();
    let items = extents.range(.., buttress_tree::ReadAhead::None);
    let blocks = items.filter(|item| item.as_ref().unwrap().key().item_type == ItemType::METADATA_ITEM);
    4096 * blocks.count() as u64
}

/// A job that begins has space to its end: a lack of space is known before the first batch.
#[test]
fn job_on_a_nearly_full_volume_ends() {
    let Some(image) = many_leaves(40) else {
        return;
    };
    let first = image.open();
    let metadata = groups(&first, Some(Purpose::Metadata));
    let used = tree_block_bytes(&first);
    let end = end_of_device(&first);
    drop(first);
    let (mut ended, mut refused) = (0, 0);
    // The space for the new block group, beside the content that moves there.
    for spare_kib in [0, 2048, 4096, 6144, 9216, 16384] {
        let image = image.copy();
        let filesystem = image.open();
        let size = ByteCount::new((end + used + (spare_kib << 10)).next_multiple_of(64 << 10));
        let device = DeviceId::new(1);
        filesystem
            .devices()
            .begin_cut(device, size)
            .unwrap()
            .cut()
            .unwrap();
        let (moved, items) = relocate_metadata(&filesystem);
        match moved {
            Ok(_) => {
                ended += 1;
                let left = groups(&filesystem, Some(Purpose::Metadata));
                assert!(left.iter().all(|group: &Logical| !metadata.contains(group)));
            }
            Err(Error::NoSpace { .. }) if items == 0 => refused += 1,
            other => panic!("with {spare_kib} KiB after {items} extents: {other:?}"),
        }
        image.commit_and_check(&filesystem);
    }
    assert!(ended > 0 && refused > 0, "{ended} ended, {refused} were refused");
}
