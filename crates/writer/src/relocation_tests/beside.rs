//! Jobs beside writers, jobs that are cancelled, and jobs without space.

use super::{NEW, Random, contents, groups, offset, relocate, with_snapshots};
use crate::operations::tests::volume::{Image, ROOT};
use crate::{WritableFilesystem, WriteOptions};
use buttress_device::Device;
use buttress_engine::block_groups::Purpose;
use buttress_engine::relocation::{RelocationOptions, Removal};
use buttress_format::Logical;
use buttress_fs::error::Error;
use buttress_fs::inode::FileAttributes;
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_fs::progress::Progress;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// As a mount opens it: with threads of its own.
fn open_parallel(image: &Image) -> WritableFilesystem {
    let options = buttress_device::OpenOptions {
        write: true,
        ..buttress_device::OpenOptions::default()
    };
    let device = Device::open(&image.path, &options).unwrap();
    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap()
}

/// Overwrites files of its own until it is told to stop; some have no copy-on-write, some are preallocated.
fn write_on(filesystem: &WritableFilesystem, thread: u64, stop: &AtomicBool) -> Vec<(Location, Vec<u8>)> {
    let mut random = Random(thread);
    let mut files: Vec<(Location, Vec<u8>)> = (0..6_u64)
        .map(|number| {
            let name = format!("writer-{thread}-{number}");
            let file = filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap();
            if number % 3 == 0 {
                filesystem.set_flags(file, FileAttributes::NOCOW).unwrap();
            }
            if number % 3 == 1 {
                let mode = crate::AllocateMode::AllocateKeepSize;
                filesystem
                    .allocate(file, offset(0)..offset(300_000), mode)
                    .unwrap();
            }
            (file, Vec::new())
        })
        .collect();
    let mut rounds = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        rounds += 1;
        let index = (random.next() as usize) % files.len();
        let (file, model) = &mut files[index];
        let at = (random.next() % 200_000) as usize;
        let length = 1 + (random.next() % 30_000) as usize;
        let new = random.bytes(length);
        filesystem.write_at(*file, offset(at as u64), &new).unwrap();
        if model.len() < at + new.len() {
            model.resize(at + new.len(), 0);
        }
        model[at..at + new.len()].copy_from_slice(&new);
        if rounds.is_multiple_of(16) {
            let _synced = filesystem.log_tree().fsync(*file).unwrap();
        }
        if rounds.is_multiple_of(40) {
            let name = format!("snapshot-{thread}-{rounds}");
            let made = filesystem
                .subvolumes()
                .snapshot(ROOT.subvolume, ROOT, name.as_bytes(), false)
                .unwrap();
            if rounds.is_multiple_of(80) {
                filesystem.subvolumes().delete(made).unwrap();
            }
        }
        if rounds.is_multiple_of(11) {
            let mut found = vec![0; model.len()];
            assert_eq!(
                filesystem.live().read_at(*file, offset(0), &mut found).unwrap(),
                found.len()
            );
            assert!(found == *model, "a live read of {file} after {rounds} rounds");
        }
    }
    files
}

#[test]
fn groups_move_beside_writers() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    drop(with_snapshots(&image, 8));
    let filesystem = open_parallel(&image);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3)
            .map(|thread| {
                scope.spawn({
                    let (filesystem, stop) = (&filesystem, &stop);
                    move || write_on(filesystem, thread, stop)
                })
            })
            .collect();
        for _ in 0..2 {
            for purpose in [Purpose::Data, Purpose::Metadata, Purpose::System] {
                let before = groups(&filesystem, Some(purpose));
                let summary = relocate(&filesystem, &before).unwrap();
                assert_eq!(summary.groups, before.len() as u64, "{purpose:?}");
                eprintln!("{purpose:?}: {summary:?}");
            }
            filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    filesystem.commit().unwrap();
    let now = contents(&filesystem);
    for (file, model) in &written {
        let key = (file.subvolume.get(), file.inode.get());
        assert!(now.get(&key) == Some(model), "{file}");
    }
    image.check();
    drop(filesystem);
    let filesystem = image.open();
    assert!(contents(&filesystem) == now, "after opening again");
}

#[test]
fn cancelled_job_leaves_a_sound_volume_and_goes_on() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = with_snapshots(&image, 5);
    let content = contents(&filesystem);
    let data = groups(&filesystem, Some(Purpose::Metadata));
    let options = RelocationOptions {
        progress: Progress::new(),
        bytes_per_second: Some(1 << 20),
        ..RelocationOptions::default()
    };
    let cancelled = std::thread::scope(|scope| {
        let progress = options.progress.clone();
        scope.spawn(move || {
            while progress.snapshot().items == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            progress.cancel();
        });
        filesystem.relocations().relocate(&data, &options)
    });
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    image.commit_and_check(&filesystem);
    assert!(contents(&filesystem) == content);
    // The groups take extents again.
    let file = filesystem.create(ROOT, b"after", &NEW).unwrap();
    filesystem.write_at(file, offset(0), b"after").unwrap();
    relocate(&filesystem, &data).unwrap();
    image.commit_and_check(&filesystem);
}

#[test]
fn reader_of_old_content_does_not_stop_a_relocation() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    drop(with_snapshots(&image, 5));
    let filesystem = open_parallel(&image);
    let (content, reader) = (contents(&filesystem), filesystem.view());
    let before = groups(&filesystem, None);
    let options = RelocationOptions {
        removal: Removal::Left,
        ..RelocationOptions::default()
    };
    let mut left = 0;
    for group in &before {
        let summary = filesystem.relocations().relocate(&[*group], &options).unwrap();
        assert_eq!(summary.groups, 1);
        left += summary.left_groups;
    }
    assert!(left > 2, "{left} of {}", before.len());
    // The groups still exist, and the reader still reads them.
    let is_there = |group: &Logical| groups(&filesystem, None).contains(group);
    assert!(before.iter().filter(|group| is_there(group)).count() as u64 >= left);
    for ((subvolume, inode), bytes) in &content {
        let subvolume = buttress_format::SubvolumeId::new(*subvolume);
        let file = Location::new(subvolume, buttress_format::InodeNumber::new(*inode));
        let mut found = vec![0; bytes.len()];
        let file = reader.open_file(file).unwrap();
        assert_eq!(file.read_at(offset(0), &mut found).unwrap(), bytes.len());
        assert!(found == *bytes);
    }
    // Writers continue meanwhile, and a crash leaves a sound volume.
    let file = filesystem.create(ROOT, b"meanwhile", &NEW).unwrap();
    filesystem.write_at(file, offset(0), b"meanwhile").unwrap();
    image.commit_and_check(&filesystem);
    let crashed = image.copy();
    assert!(contents(&crashed.open()).len() == content.len() + 1);
    // Nothing commits after the reader but the volume's own thread.
    drop(reader);
    let mut waited = 0;
    while before.iter().any(is_there) {
        std::thread::sleep(Duration::from_millis(100));
        waited += 1;
        assert!(waited < 600, "the emptied groups stay");
    }
    image.commit_and_check(&filesystem);
}

#[test]
fn volume_without_space_stays_as_it_was() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let file = filesystem.create(ROOT, b"large", &NEW).unwrap();
    let mut random = Random(3);
    let mut at = 0_u64;
    while filesystem
        .write_at(file, offset(at), &random.bytes(1 << 20))
        .is_ok()
    {
        at += 1 << 20;
    }
    filesystem.commit().unwrap();
    let all = groups(&filesystem, Some(Purpose::Data));
    let full = relocate(&filesystem, &all);
    let Err(Error::NoSpace { wanted, .. }) = full else {
        panic!("{full:?}");
    };
    assert!(wanted.get() > 100 << 20, "{wanted} bytes are missing");
    assert_eq!(groups(&filesystem, Some(Purpose::Data)), all);
    image.commit_and_check(&filesystem);
}

#[test]
fn corrupt_extent_without_a_copy_is_named() {
    use std::os::unix::fs::FileExt as _;
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let file = filesystem.create(ROOT, b"precious", &NEW).unwrap();
    filesystem
        .write_at(file, offset(0), &Random(5).bytes(100_000))
        .unwrap();
    filesystem.commit().unwrap();
    let view = filesystem.view();
    let data = groups(&filesystem, Some(Purpose::Data));
    let extents = view.tree(buttress_format::TreeId::FS).unwrap();
    let disk = extents
        .range(.., buttress_tree::ReadAhead::None)
        .find_map(|item| {
            let item = item.unwrap();
            let key = item.key();
            if key.item_type != buttress_format::ItemType::EXTENT_DATA {
                return None;
            }
            let extent = buttress_format::FileExtent::parse(&key, item.data(), 4096).unwrap();
            extent.slice().map(|slice| slice.disk)
        })
        .unwrap();
    let place = view
        .volume()
        .map(disk, buttress_format::ByteCount::new(4096))
        .unwrap()[0]
        .physical;
    drop((extents, view));
    let device = std::fs::File::options().write(true).open(&image.path).unwrap();
    device.write_all_at(&[0xaa; 4096], place.get()).unwrap();
    let stopped = relocate(&filesystem, &data);
    let Err(Error::NotMoved { logical, users, .. }) = &stopped else {
        panic!("{stopped:?}");
    };
    assert_eq!((*logical, users.as_slice()), (disk, &[file][..]));
    // It can be written again, and then moves.
    filesystem
        .write_at(file, offset(0), &Random(6).bytes(100_000))
        .unwrap();
    filesystem.commit().unwrap();
    relocate(&filesystem, &data).unwrap();
    image.commit_and_check(&filesystem);
}

/// A live read follows a new address as soon as an item has it. The checksums must be there.
#[test]
fn live_reads_beside_moves_find_all_checksums() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = open_parallel(&image);
    let files: Vec<Location> = (0..400_u64)
        .map(|number| {
            let name = format!("file-{number}");
            let file = filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap();
            filesystem.write_at(file, offset(0), &[7; 8192]).unwrap();
            file
        })
        .collect();
    filesystem.commit().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (filesystem, files, stop) = (&filesystem, &files, &stop);
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut found = [0; 8192];
                while !stop.load(Ordering::Relaxed) {
                    let file = files[(random.next() as usize) % files.len()];
                    let read = filesystem.live().read_at(file, offset(0), &mut found);
                    if read.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    assert_eq!(read.unwrap(), found.len());
                    assert!(found == [7; 8192], "{file}");
                }
            });
        }
        for _ in 0..20 {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            relocate(&filesystem, &groups(&filesystem, Some(Purpose::Data))).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A batch of one data extent and one tree block, which together are too many blocks for one edit,
/// is divided by kind.
#[test]
fn extent_in_very_many_leaves_of_a_mixed_group_moves() {
    let Some(image) = Image::make(&["--mixed", "-n", "4096"]) else {
        return;
    };
    let filesystem = image.open();
    let first = filesystem.create(ROOT, b"first", &NEW).unwrap();
    filesystem.write_at(first, offset(0), &[9; 4096]).unwrap();
    for number in 0..700_u64 {
        let name = format!("clone-{number}");
        let clone = filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap();
        filesystem
            .clone_range(first, offset(0)..offset(4096), clone, offset(0))
            .unwrap();
        // With this attribute each leaf holds one file.
        filesystem
            .set_xattr(
                clone,
                b"user.long",
                &[1; 1500],
                crate::operations::SetXattr::CreateOrReplace,
            )
            .unwrap();
    }
    filesystem.commit().unwrap();
    let all = groups(&filesystem, None);
    assert_eq!(relocate(&filesystem, &all).unwrap().groups, all.len() as u64);
    filesystem.commit().unwrap();
    image.check();
}
