//! Tests of a pending log tree that is opened as a tree.

use crate::error::Error;
use crate::testing::{World, edit_superblock, key, open_image};
use buttress_format::root::{RawRootItem, RawRootItemExtension};
use buttress_format::{FileKind, Generation, ItemType, Key, ObjectId, RootItem, TreeId, name_hash};
use buttress_tree::ReadAhead;
use buttress_tree::testing::{CHUNK_LOGICAL, ImageBuilder, ImageOptions, Written};
use zerocopy::{FromZeros, IntoBytes};

/// The number of the volume's blocks before the log's: more than the volume's trees and data take.
const BLOCKS_BEFORE_LOG: usize = 1500;

/// The physical address of the chunk on the device.
const CHUNK_PHYSICAL: u64 = 1 << 20;

/// Makes a volume whose superblock names a log with one subvolume's log. Both logs are written in
/// `generation`, after the commit of generation 7. Returns the volume's devices with the roots of
/// the log tree and of the subvolume's log.
fn volume_with_log(generation: u64) -> (Vec<u8>, Written, Written) {
    let mut image = World::new().image();
    let mut builder = ImageBuilder::new(ImageOptions {
        generation: Generation::new(generation),
        ..ImageOptions::default()
    });
    for _ in 0..BLOCKS_BEFORE_LOG {
        builder.leaf(TreeId::FS, &[]);
    }
    // Items of files in a log need not follow their inode item, unlike in a subvolume.
    let logged = (
        key(257, ItemType::XATTR_ITEM, name_hash(b"user.a")),
        xattr(b"user.a", b"1"),
    );
    let subvolume_log = builder.leaf(TreeId::TREE_LOG, &[logged]);
    let mut raw = RawRootItem::new_zeroed();
    raw.generation = generation.into();
    raw.logical = subvolume_log.logical.get().into();
    raw.references = 1.into();
    raw.root_directory = 256.into();
    let root = [raw.as_bytes(), RawRootItemExtension::new_zeroed().as_bytes()].concat();
    let place = Key::new(
        TreeId::TREE_LOG.object_id(),
        ItemType::ROOT_ITEM,
        TreeId::FS.get(),
    );
    let log = builder.leaf(TreeId::TREE_LOG, &[(place, root)]);
    for written in [&subvolume_log, &log] {
        let at = written.logical.get() - CHUNK_LOGICAL.get() + CHUNK_PHYSICAL;
        let at = usize::try_from(at).unwrap();
        image[at..at + 4096].copy_from_slice(builder.block_mut(written.logical));
    }
    edit_superblock(&mut image, |raw| raw.log_root = log.logical.get().into());
    (image, log, subvolume_log)
}

fn xattr(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut raw = buttress_format::directory::RawDirItem::new_zeroed();
    raw.transid = 8.into();
    raw.name_bytes = u16::try_from(name.len()).unwrap().into();
    raw.data_bytes = u16::try_from(value.len()).unwrap().into();
    raw.kind = FileKind::Xattr.to_raw();
    [raw.as_bytes(), name, value].concat()
}

#[test]
fn a_pending_log_is_opened_by_its_tree_id() {
    let (image, log, subvolume_log) = volume_with_log(8);
    let filesystem = open_image(image, |options| options);
    let tree = filesystem.tree(TreeId::TREE_LOG).unwrap();
    assert_eq!(tree.root().logical, log.logical);
    let items: Vec<_> = tree
        .range(Key::MIN..=Key::MAX, ReadAhead::None)
        .map(|item| item.unwrap())
        .collect();
    let [item] = &items[..] else {
        panic!("{} items", items.len())
    };
    assert_eq!(item.key().objectid, TreeId::TREE_LOG.object_id());
    let root = RootItem::parse(&item.key(), item.data(), 4096).unwrap();
    assert_eq!(root.logical, subvolume_log.logical);

    // A subvolume's log has the same tree id as the tree of log roots.
    let logged = filesystem.forest().tree(subvolume_log.root(TreeId::TREE_LOG));
    let first = logged.range(Key::MIN..=Key::MAX, ReadAhead::None).next();
    assert_eq!(first.unwrap().unwrap().key().objectid, ObjectId::new(257));
    // Without a replay of the log, the volume has the state of the last commit.
    assert!(filesystem.metadata(crate::testing::at(257)).is_err());
    assert_eq!(filesystem.notices().len(), 1);
}

#[test]
fn a_log_of_another_commit_or_none_is_an_error() {
    let filesystem = World::new().open();
    let error = filesystem.tree(TreeId::TREE_LOG).unwrap_err();
    assert!(
        matches!(
            error,
            Error::TreeNotFound {
                tree: TreeId::TREE_LOG
            }
        ),
        "{error}"
    );
    let (image, ..) = volume_with_log(7);
    let filesystem = open_image(image, |options| options);
    let tree = filesystem.tree(TreeId::TREE_LOG).unwrap();
    let error = tree.range(Key::MIN..=Key::MAX, ReadAhead::None).next();
    let error = error.unwrap().unwrap_err().to_string();
    assert!(error.contains("generation"), "{error}");
}
