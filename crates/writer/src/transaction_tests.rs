//! Tests that build transactions from single items (files, data, snapshots, drops), checked by
//! btrfs-progs.

mod devices;
mod dirty_data_space;
mod failing;
mod ledgers;
mod uncommitted;
mod waiting;

use crate::subvolume::making::{self, NewSubvolume};
use crate::{WritableFilesystem, WriteOptions};
use buttress_device::Device;
use buttress_engine::data_extents::DataOwner;
use buttress_engine::lookups::Lookups;
use buttress_engine::reservation::Need;
use buttress_engine::running::Running;
use buttress_format::{
    ByteCount, DirItem, FileKind, Generation, InodeItem, InodeNumber, InodeRefs, ItemType, Key, RootRef,
    SubvolumeId, Timestamp, TreeId, Uuid, name_hash,
};
use buttress_fs::open::OpenOptions;
use buttress_fs::progress::Progress;
use buttress_locks::Excused;
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{newest, run};
use buttress_volume::ExtentWrite;
use bytes::Bytes;
use std::path::Path;
use std::process::Command;

/// Makes an image of a new volume. Without mkfs.btrfs, the caller skips the test.
#[track_caller]
fn image(directory: &Path, size: &str, options: &[&str]) -> Option<std::path::PathBuf> {
    if skips(any_missing(&["mkfs.btrfs", "btrfs"])) {
        return None;
    }
    let path = directory.join("image");
    run(Command::new("truncate").args(["-s", size]).arg(&path)).unwrap();
    run(Command::new(newest("mkfs.btrfs"))
        .args(["-q", "-f"])
        .args(options)
        .arg(&path))
    .unwrap();
    Some(path)
}

fn open(path: &Path) -> WritableFilesystem {
    let options = buttress_device::OpenOptions {
        write: true,
        ..buttress_device::OpenOptions::default()
    };
    let device = Device::open(path, &options).unwrap();
    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap()
}

#[track_caller]
fn check(path: &Path) {
    let output = Command::new(newest("btrfs"))
        .args(["check", "--force", "--check-data-csum"])
        .arg(path)
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && text.contains("no error found"),
        "{text}"
    );
}

fn root_key(inode: u64, item_type: ItemType, offset: u64) -> Key {
    Key::new(InodeNumber::new(inode).object_id(), item_type, offset)
}

fn inode(generation: Generation, mode: u32, size: u64, nbytes: u64) -> InodeItem {
    InodeItem {
        generation,
        transid: generation,
        size: ByteCount::new(size),
        nbytes: ByteCount::new(nbytes),
        block_group: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        mode,
        rdev: 0,
        flags: buttress_format::InodeFlags::empty(),
        sequence: 0,
        atime: Timestamp::default(),
        ctime: Timestamp::default(),
        mtime: Timestamp::default(),
        otime: Timestamp::default(),
    }
}

/// Inserts an entry of the root directory.
fn entry(running: &mut Running, tree: TreeId, index: u64, name: &str, target: Key, kind: FileKind) {
    let item = DirItem {
        location: target,
        transid: running.core.generation,
        kind,
        name: name.as_bytes(),
        data: &[],
    };
    let bytes = item.encode().unwrap();
    let hash = name_hash(name.as_bytes());
    running
        .insert(tree, &root_key(256, ItemType::DIR_ITEM, hash), &bytes)
        .unwrap();
    running
        .insert(tree, &root_key(256, ItemType::DIR_INDEX, index), &bytes)
        .unwrap();
    grow_directory(running, tree, i64::try_from(name.len() * 2).unwrap());
}

fn grow_directory(running: &mut Running, tree: TreeId, by: i64) {
    let key = InodeItem::key(InodeNumber::new(256));
    let found = running.get(tree, &key).unwrap().unwrap();
    let mut item = InodeItem::parse(&key, found.data()).unwrap();
    item.size = ByteCount::new(item.size.get().saturating_add_signed(by));
    running.put(tree, &key, &item.to_bytes()).unwrap();
}

fn file(running: &mut Running, tree: TreeId, number: u64, name: &str, nbytes: u64) {
    let item = inode(running.core.generation, 0o100_644, nbytes, nbytes);
    running
        .insert(tree, &InodeItem::key(InodeNumber::new(number)), &item.to_bytes())
        .unwrap();
    let mut names = Vec::new();
    InodeRefs::push(&mut names, number, name.as_bytes()).unwrap();
    running
        .insert(tree, &root_key(number, ItemType::INODE_REF, 256), &names)
        .unwrap();
    entry(
        running,
        tree,
        number,
        name,
        InodeItem::key(InodeNumber::new(number)),
        FileKind::Regular,
    );
}

fn remove_file(running: &mut Running, tree: TreeId, number: u64, name: &str) {
    let hash = name_hash(name.as_bytes());
    for key in [
        root_key(256, ItemType::DIR_ITEM, hash),
        root_key(256, ItemType::DIR_INDEX, number),
    ] {
        assert!(running.remove(tree, &key).unwrap());
    }
    let mut extents = Vec::new();
    running
        .remove_range(
            tree,
            root_key(number, ItemType(0), 0)..root_key(number + 1, ItemType(0), 0),
            &mut |key, data| {
                if key.item_type == ItemType::EXTENT_DATA {
                    extents.push((*key, data.to_vec()));
                }
            },
        )
        .unwrap();
    for (key, data) in extents {
        let extent = buttress_format::FileExtent::parse(&key, &data, 4096).unwrap();
        let slice = *extent.slice().unwrap();
        let range = buttress_engine::data_extents::DataRange {
            logical: slice.disk,
            length: slice.disk_bytes,
        };
        running.core.drop_data_reference(
            range,
            DataOwner {
                root: tree,
                inode: InodeNumber::new(number),
                offset: key.offset,
            },
        );
    }
    grow_directory(running, tree, -i64::try_from(name.len() * 2).unwrap());
}

/// Inserts a file with one extent of data.
fn file_with_data(filesystem: &WritableFilesystem, tree: TreeId, number: u64, name: &str, bytes: usize) {
    let range = filesystem
        .start(Need::places(16))
        .unwrap()
        .data_space()
        .allocate(ByteCount::of(bytes));
    let range = range.unwrap();
    assert_eq!(range.length, ByteCount::of(bytes));
    let content: Vec<u8> = (0..bytes).map(|at| (at as u64 * number % 251) as u8).collect();
    let sums: Vec<u8> = content
        .chunks(4096)
        .flat_map(|sector| crc32c::crc32c(sector).to_le_bytes())
        .collect();
    filesystem
        .forest()
        .volume()
        .write(&[ExtentWrite {
            logical: range.logical,
            bytes: Bytes::from(content),
        }])
        .unwrap();
    let mut handle = filesystem.start(Need::places(16)).unwrap();
    file(&mut handle, tree, number, name, bytes as u64);
    let item = buttress_format::FileExtent {
        generation: handle.core.generation,
        ram_bytes: ByteCount::of(bytes),
        compression: buttress_format::Compression::None,
        other_encoding: 0,
        body: buttress_format::FileExtentBody::Regular(buttress_format::ExtentSlice {
            disk: range.logical,
            disk_bytes: range.length,
            offset: ByteCount::ZERO,
            num_bytes: ByteCount::of(bytes),
        }),
    };
    let bytes = item.encode();
    handle
        .insert(tree, &root_key(number, ItemType::EXTENT_DATA, 0), &bytes)
        .unwrap();
    handle.core.create_data_extent(
        range,
        DataOwner {
            root: tree,
            inode: InodeNumber::new(number),
            offset: 0,
        },
    );
    handle.checksum_tree().insert(range.logical, &sums).unwrap();
}

fn snapshot(filesystem: &WritableFilesystem, source: SubvolumeId, index: u64, name: &str) -> SubvolumeId {
    let new = NewSubvolume {
        uuid: Uuid::from_u128(u128::from(index)),
        now: Timestamp::default(),
    };
    let (_, id) = filesystem
        .commit_then(|mut handle, prepared| {
            let root = making::committed_root(Lookups::new(&mut handle), source, prepared).unwrap();
            let id = making::make_snapshot_tree(&mut handle, source, &root, &new, false).unwrap();
            making::add_uuids(&mut handle, id).unwrap();
            id
        })
        .unwrap();
    let mut handle = filesystem.start(Need::places(600)).unwrap();
    let reference = RootRef {
        directory: InodeNumber::new(256),
        sequence: index,
        name: name.as_bytes(),
    };
    making::add_root_reference(&mut handle, id, SubvolumeId::TOP_LEVEL, &reference).unwrap();
    let target = Key::new(id.tree().object_id(), ItemType::ROOT_ITEM, u64::MAX);
    entry(&mut handle, TreeId::FS, index, name, target, FileKind::Directory);
    id
}

fn delete_subvolume(filesystem: &WritableFilesystem, id: SubvolumeId, index: u64, name: &str) {
    let mut handle = filesystem.start(Need::freeing(32)).unwrap();
    let hash = name_hash(name.as_bytes());
    for key in [
        root_key(256, ItemType::DIR_ITEM, hash),
        root_key(256, ItemType::DIR_INDEX, index),
    ] {
        assert!(handle.remove(TreeId::FS, &key).unwrap());
    }
    grow_directory(&mut handle, TreeId::FS, -i64::try_from(name.len() * 2).unwrap());
    making::remove_root_reference(&mut handle, id, SubvolumeId::TOP_LEVEL).unwrap();
    making::kill_root(&mut handle, id).unwrap();
}

#[test]
fn files_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = image(directory.path(), "512M", &[]) else {
        return;
    };
    let filesystem = open(&path);
    for number in 1000..9000 {
        let mut handle = filesystem.start(Need::places(8)).unwrap();
        file(&mut handle, TreeId::FS, number, &format!("file-{number}"), 0);
        drop(handle);
        if number % 3000 == 0 {
            filesystem.commit().unwrap();
            check(&path);
        }
    }
    filesystem.commit().unwrap();
    check(&path);
    for number in 1000..9000 {
        let mut handle = filesystem.start(Need::freeing(8)).unwrap();
        remove_file(&mut handle, TreeId::FS, number, &format!("file-{number}"));
        drop(handle);
        if number % 3000 == 0 {
            filesystem.commit().unwrap();
            check(&path);
        }
    }
    filesystem.commit().unwrap();
    check(&path);
}

#[test]
fn data_is_allocated_shared_and_freed() {
    let features: [&[&str]; 9] = [
        &["-m", "single"],
        &["-m", "dup", "-d", "dup"],
        &["-n", "4096"],
        &["-n", "65536"],
        &["-M"],
        &["-O", "^block-group-tree,^no-holes"],
        &["-O", "^free-space-tree,^block-group-tree"],
        &["-O", "squota"],
        &["-O", "quota"],
    ];
    for options in features {
        eprintln!("{options:?}");
        data_and_snapshots(options);
    }
}

fn data_and_snapshots(options: &[&str]) {
    // These edits look up their blocks under the edit lock.
    let _excused = Excused::from_device_rule();
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = image(directory.path(), "512M", options) else {
        return;
    };
    let filesystem = open(&path);
    for number in 1000..1400 {
        file_with_data(&filesystem, TreeId::FS, number, &format!("data-{number}"), 65536);
    }
    filesystem.commit().unwrap();
    check(&path);
    let first = snapshot(&filesystem, SubvolumeId::TOP_LEVEL, 5000, "first");
    filesystem.commit().unwrap();
    check(&path);
    for number in 1000..1200 {
        let mut handle = filesystem.start(Need::freeing(8)).unwrap();
        remove_file(&mut handle, TreeId::FS, number, &format!("data-{number}"));
    }
    filesystem.commit().unwrap();
    check(&path);
    let second = snapshot(&filesystem, first, 5001, "second");
    for number in 1100..1300 {
        let mut handle = filesystem.start(Need::freeing(8)).unwrap();
        remove_file(&mut handle, first.tree(), number, &format!("data-{number}"));
    }
    filesystem.commit().unwrap();
    check(&path);
    delete_subvolume(&filesystem, first, 5000, "first");
    filesystem.commit().unwrap();
    check(&path);
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    check(&path);
    delete_subvolume(&filesystem, second, 5001, "second");
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    check(&path);
    assert_eq!(filesystem.subvolumes().deleted().unwrap(), vec![]);
}

/// Rounds that fill a small volume with metadata until it has no space, and then empty it.
#[test]
fn a_full_volume_says_so_and_can_be_emptied() {
    // The edits of these tests look up their blocks under the edit lock.
    let _excused = Excused::from_device_rule();
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = image(directory.path(), "64M", &["-M"]) else {
        return;
    };
    let filesystem = open(&path);
    let mut most = Vec::new();
    for round in 0..3 {
        let mut number = 1000;
        loop {
            let mut handle = match filesystem.start(Need::places(8)) {
                Ok(handle) => handle,
                Err(buttress_fs::Error::NoSpace { .. }) => break,
                Err(error) => panic!("round {round}: {error}"),
            };
            file(
                &mut handle,
                TreeId::FS,
                number,
                &format!("file-{number}-{}", "x".repeat(200)),
                0,
            );
            number += 1;
        }
        filesystem.commit().unwrap();
        check(&path);
        most.push(number - 1000);
        for number in 1000..number {
            let mut handle = filesystem.start(Need::freeing(8)).unwrap();
            remove_file(
                &mut handle,
                TreeId::FS,
                number,
                &format!("file-{number}-{}", "x".repeat(200)),
            );
        }
        filesystem.commit().unwrap();
        check(&path);
    }
    // Each round of the test must write nearly as much as the first round.
    assert!(
        most.iter()
            .all(|files| files * 10 > most[0] * 9 && *files > 10_000),
        "{most:?}"
    );
}
