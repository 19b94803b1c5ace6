//! Tests of opening volumes: pending logs, backup roots, missing trees, the default subvolume.

use crate::notice::Notice;
use crate::open::OpenOptions;
use crate::testing::{World, at, edit_superblock, key, open_image};
use buttress_device::Device;
use buttress_format::directory::RawDirItem;
use buttress_format::key::RawKey;
use buttress_format::{ErrorKind, FileKind, ItemType, SubvolumeId, TreeId, name_hash};
use buttress_volume::Rescue;
use zerocopy::{FromZeros, IntoBytes};

#[test]
fn a_pending_log_is_named_unless_that_is_not_wanted() {
    let mut image = World::new().image();
    edit_superblock(&mut image, |raw| raw.log_root = (20 << 20).into());
    let filesystem = open_image(image.clone(), |options| options);
    let notices = filesystem.notices();
    assert!(
        matches!(&notices[..], [Notice::PendingLog { logical, generation, .. }]
            if logical.get() == 20 << 20 && generation.get() == 7),
        "{notices:?}"
    );
    assert!(notices[0].to_string().contains("20971520"), "{}", notices[0]);
    assert!(filesystem.metadata(at(256)).is_ok());
    let rescue = Rescue {
        no_log_replay: true,
        ..Rescue::default()
    };
    assert_eq!(open_image(image, |options| options.rescue(rescue)).notices(), []);
}

#[test]
fn newest_readable_backup_root_is_used() {
    let mut image = World::new().image();
    edit_superblock(&mut image, |raw| {
        let good = raw.root;
        raw.root = (23 << 20).into();
        for (slot, generation) in [(0, 5_u64), (1, 7), (2, 6)] {
            let backup = &mut raw.super_roots[slot];
            backup.tree_root_gen = generation.into();
            backup.tree_root = if slot == 2 { (22_u64 << 20).into() } else { good };
            backup.tree_root_level = raw.root_level;
        }
    });
    let open = |rescue| {
        OpenOptions::new(vec![Device::memory(image.clone())])
            .rescue(rescue)
            .open()
    };
    let error = open(Rescue::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let rescue = Rescue {
        use_backup_root: true,
        ..Rescue::default()
    };
    let filesystem = open(rescue).unwrap();
    let notices = filesystem.notices();
    assert!(
        matches!(&notices[..], [Notice::BackupRootUsed { slot: 1, generation, .. }] if generation.get() == 7),
        "{notices:?}"
    );
    assert!(filesystem.metadata(at(256)).is_ok());
}

#[test]
fn a_missing_checksum_tree_is_named_and_costs_only_data() {
    let mut world = World::new();
    world.file(256, b"file", 257, 4096);
    let extent = world.data(&[7; 4096], 1);
    world.range(257, 0, extent, 0, 4096);
    world.trees.remove(&TreeId::CHECKSUM.get());
    let image = world.image();
    let filesystem = open_image(image.clone(), |options| options);
    assert!(matches!(
        &filesystem.notices()[..],
        [Notice::TreeUnreadable {
            tree: TreeId::CHECKSUM,
            ..
        }]
    ));
    let file = filesystem.open_file(at(257)).unwrap();
    assert!(
        file.read_at(buttress_format::FileOffset::MIN, &mut [0; 10])
            .is_err()
    );
    let rescue = Rescue {
        ignore_bad_roots: true,
        ..Rescue::default()
    };
    let filesystem = open_image(image, |options| options.rescue(rescue));
    let mut buffer = [0; 10];
    let file = filesystem.open_file(at(257)).unwrap();
    assert_eq!(
        file.read_at(buttress_format::FileOffset::MIN, &mut buffer)
            .unwrap(),
        10
    );
    assert_eq!(buffer, [7; 10]);
}

#[test]
fn the_default_subvolume_is_the_one_that_the_root_tree_names() {
    let mut world = World::new();
    world.subvolume(300, 256, b"sub");
    let mut raw = RawDirItem::new_zeroed();
    raw.location = RawKey::from(key(300, ItemType::ROOT_ITEM, u64::MAX));
    raw.name_bytes = 7.into();
    raw.kind = FileKind::Directory.to_raw();
    let bytes = [raw.as_bytes(), b"default"].concat();
    let directory = TreeId::ROOT_DIRECTORY.get();
    let roots = world.items(TreeId::ROOT.get());
    let mut inode = vec![0; 160];
    inode[52..56].copy_from_slice(&0o040_755_u32.to_le_bytes());
    inode[40..44].copy_from_slice(&1_u32.to_le_bytes());
    roots.insert(key(directory, ItemType::INODE_ITEM, 0), inode);
    roots.insert(key(directory, ItemType::DIR_ITEM, name_hash(b"default")), bytes);
    let filesystem = world.open();
    assert_eq!(filesystem.default_subvolume().unwrap(), SubvolumeId::new(300));
    assert_eq!(
        World::new().open().default_subvolume().unwrap(),
        SubvolumeId::TOP_LEVEL
    );
}
