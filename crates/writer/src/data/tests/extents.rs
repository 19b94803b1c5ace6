//! Tests of the extents that hold written file content.

use super::*;
use crate::data::AllocateMode;
use buttress_accounts::Accounts as _;
use buttress_engine::data_table::FILES_MAX;
use buttress_format::Compression;
use buttress_format::compression::CompressionMethod;
use buttress_fs::error::Error;
use buttress_fs::extents::{FileRange, RangeKind};
use buttress_fs::inode::FileAttributes;

fn ranges(filesystem: &WritableFilesystem, file: Location) -> Vec<FileRange> {
    filesystem.writeback().write_file(file).unwrap();
    let view = filesystem.view();
    let file = view.open_file(file).unwrap();
    file.extents().unwrap().collect::<Result<_, _>>().unwrap()
}

/// Returns the kinds of a file's ranges, with their lengths.
fn shape(filesystem: &WritableFilesystem, file: Location) -> String {
    let words: Vec<String> = ranges(filesystem, file)
        .iter()
        .map(|range| {
            let kind = match &range.kind {
                RangeKind::Hole => "hole",
                RangeKind::Inline(inline) if inline.compression != Compression::None => "inline-compressed",
                RangeKind::Inline(_) => "inline",
                RangeKind::Data(extent) if extent.compression != Compression::None => "compressed",
                RangeKind::Data(_) => "data",
                RangeKind::Preallocated(_) => "room",
            };
            format!("{kind} {}", range.length.get() / 4096)
        })
        .collect();
    words.join(", ")
}

fn places(filesystem: &WritableFilesystem, file: Location) -> Vec<u64> {
    ranges(filesystem, file)
        .iter()
        .filter_map(|range| match &range.kind {
            RangeKind::Data(extent) | RangeKind::Preallocated(extent) => Some(extent.logical.get()),
            _ => None,
        })
        .collect()
}

fn metadata(filesystem: &WritableFilesystem, file: Location) -> (u64, u64) {
    let metadata = filesystem.view().metadata(file).unwrap();
    (metadata.size.get(), metadata.allocated.get())
}

/// Dirty data of very many files is tiny for each file, so keeping it dirty gains nothing.
#[test]
fn content_of_very_many_files_does_not_wait() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let mut most = 0;
    let count = FILES_MAX * 3;
    let name = |number: usize| format!("file-{number}").into_bytes();
    for number in 0..count {
        let file = filesystem.create(ROOT, &name(number), &NEW).unwrap();
        filesystem.write_at(file, offset(0), &name(number)).unwrap();
        most = most.max(filesystem.data().dirty_files());
    }
    assert!(most > FILES_MAX / 2 && most <= FILES_MAX + 1, "{most} files");
    filesystem.commit().unwrap();
    let view = filesystem.view();
    for number in 0..count {
        let file = view.lookup(ROOT, &name(number)).unwrap().unwrap().target;
        let mut content = [0; 100];
        let length = view
            .open_file(file)
            .unwrap()
            .read_at(offset(0), &mut content)
            .unwrap();
        assert_eq!(content[..length], name(number)[..]);
    }
}

#[test]
fn small_files_lie_in_the_tree_and_leave_it() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let noise = Random(1).bytes(3000);
    filesystem.write_at(file, offset(0), &noise[..2048]).unwrap();
    assert_eq!(shape(&filesystem, file), "inline 1");
    filesystem.append(file, &[1]).unwrap();
    assert_eq!(shape(&filesystem, file), "data 1");
    filesystem.truncate(file, ByteCount::new(100)).unwrap();
    filesystem.write_at(file, offset(50), &[9]).unwrap();
    assert_eq!(shape(&filesystem, file), "inline 1");
    filesystem.write_at(file, offset(20_000), &[9]).unwrap();
    assert_eq!(shape(&filesystem, file), "data 1, hole 3, data 1");
    filesystem.truncate(file, ByteCount::new(0)).unwrap();
    assert_eq!(shape(&filesystem, file), "");
    image.commit_and_check(&filesystem);
}

#[test]
fn content_is_compressed_as_the_kernel_would() {
    let Some(image) = Image::make(&[]) else { return };
    let options = DataOptions {
        compression: Some(CompressionMethod::new(Compression::Zstd)),
        ..DataOptions::default()
    };
    let filesystem = open(&image, options);
    let text = b"the quick brown fox jumps over the lazy dog\n".repeat(10_000);
    let file = filesystem.create(ROOT, b"text", &NEW).unwrap();
    filesystem.write_at(file, offset(0), &text).unwrap();
    assert_eq!(
        shape(&filesystem, file),
        "compressed 32, compressed 32, compressed 32, compressed 12"
    );
    let small = filesystem.create(ROOT, b"small", &NEW).unwrap();
    filesystem.write_at(small, offset(0), &text[..4000]).unwrap();
    assert_eq!(shape(&filesystem, small), "inline-compressed 1");
    let noise = filesystem.create(ROOT, b"noise", &NEW).unwrap();
    let mut random = Random(3);
    let bytes: Vec<u8> = (0..300_000)
        .map(|_| u8::try_from(random.below(256)).unwrap())
        .collect();
    filesystem.write_at(noise, offset(0), &bytes).unwrap();
    assert_eq!(shape(&filesystem, noise), "data 74");
    filesystem.set_flags(small, FileAttributes::NOCOMPRESS).unwrap();
    filesystem.write_at(small, offset(0), &text[..8192]).unwrap();
    assert_eq!(shape(&filesystem, small), "data 2");
    image.commit_and_check(&filesystem);
    assert_eq!(content(&filesystem, file), text);
}

#[test]
fn preallocated_room_is_written_where_it_lies() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let range = offset(0)..offset(100 * 4096);
    filesystem
        .allocate(file, range.clone(), AllocateMode::AllocateKeepSize)
        .unwrap();
    assert_eq!(metadata(&filesystem, file), (0, 100 * 4096));
    filesystem.allocate(file, range, AllocateMode::Allocate).unwrap();
    let place = places(&filesystem, file)[0];
    for at in [40, 41, 90, 10] {
        filesystem.write_at(file, offset(at * 4096), &[7; 4096]).unwrap();
        filesystem.writeback().write_file(file).unwrap();
    }
    filesystem
        .write_at(file, offset(60 * 4096 + 5), &[7; 100])
        .unwrap();
    image.commit_and_check(&filesystem);
    assert!(places(&filesystem, file).iter().all(|other| *other == place));
    assert_eq!(
        shape(&filesystem, file),
        "room 10, data 1, room 29, data 1, data 1, room 18, data 1, room 29, data 1, room 9"
    );
    // An extent that another file shares is not overwritten.
    let other = filesystem.create(ROOT, b"other", &NEW).unwrap();
    filesystem
        .clone_range(file, offset(0)..offset(100 * 4096), other, offset(0))
        .unwrap();
    filesystem.write_at(file, offset(0), &[8; 4096]).unwrap();
    assert_ne!(places(&filesystem, file)[0], place);
    assert_eq!(&content(&filesystem, other)[..4096], &[0; 4096]);
    image.commit_and_check(&filesystem);
}

#[test]
fn files_without_copy_on_write_are_overwritten_in_place() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.set_flags(file, FileAttributes::NOCOW).unwrap();
    filesystem.write_at(file, offset(0), &vec![1; 40_960]).unwrap();
    filesystem.commit().unwrap();
    let before = places(&filesystem, file);
    filesystem.write_at(file, offset(4000), &[2; 5000]).unwrap();
    assert_eq!(places(&filesystem, file), before);
    image.commit_and_check(&filesystem);
    let bytes = content(&filesystem, file);
    assert_eq!((bytes[3999], bytes[4000], bytes[8999], bytes[9000]), (1, 2, 2, 1));
}

/// An extent that a snapshot shares is not overwritten, also if it is preallocated.
#[test]
fn snapshots_keep_their_content_without_copy_on_write() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.set_flags(file, FileAttributes::NOCOW).unwrap();
    filesystem.write_at(file, offset(0), &vec![1; 40_960]).unwrap();
    let room = offset(40_960)..offset(81_920);
    filesystem.allocate(file, room, AllocateMode::Allocate).unwrap();
    let (before, bytes) = (places(&filesystem, file), content(&filesystem, file));
    let snapshot = filesystem
        .subvolumes()
        .snapshot(ROOT.subvolume, ROOT, b"snapshot", true)
        .unwrap();
    filesystem.write_at(file, offset(8192), &vec![2; 50_000]).unwrap();
    let after = places(&filesystem, file);
    assert!(after.iter().any(|place| !before.contains(place)));
    image.commit_and_check(&filesystem);
    assert_eq!(written(&filesystem, Location::new(snapshot, file.inode)), bytes);
    // Content that the file wrote in a later transaction than the snapshot's belongs to the file
    // alone, and is overwritten in place.
    filesystem.write_at(file, offset(8192), &[3; 4096]).unwrap();
    let own = places(&filesystem, file);
    filesystem.write_at(file, offset(8192), &[4; 4096]).unwrap();
    assert_eq!(places(&filesystem, file), own);
    image.commit_and_check(&filesystem);
    assert_eq!(written(&filesystem, Location::new(snapshot, file.inode)), bytes);
}

#[test]
fn new_files_have_the_flags_of_the_options() {
    let Some(image) = Image::make(&[]) else { return };
    for (options, expected) in [
        (DataOptions::default(), "data 3"),
        (
            DataOptions {
                checksums: false,
                ..DataOptions::default()
            },
            "data 3",
        ),
        (
            DataOptions {
                copy_on_write: false,
                ..DataOptions::default()
            },
            "data 3",
        ),
    ] {
        let filesystem = open(&image, options);
        let name = format!("{}{}", options.checksums, options.copy_on_write);
        let file = filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap();
        filesystem.write_at(file, offset(0), &vec![1; 12_288]).unwrap();
        assert_eq!(shape(&filesystem, file), expected);
        let attributes = filesystem.view().metadata(file).unwrap().attributes();
        assert_eq!(attributes.contains(FileAttributes::NOCOW), !options.copy_on_write);
        image.commit_and_check(&filesystem);
    }
}

/// Threads that write, share, truncate and commit at the same time never block each other forever.
#[test]
fn many_threads_write_and_commit() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, small_memory());
    let files: Vec<Location> = (0..4)
        .map(|number| {
            filesystem
                .create(ROOT, format!("file{number}").as_bytes(), &NEW)
                .unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for (number, file) in files.iter().copied().enumerate() {
            let (filesystem, files) = (filesystem.clone(), files.clone());
            scope.spawn(move || {
                let mut random = Random(number as u64);
                for _ in 0..60 {
                    let at = random.below(500_000);
                    let bytes = random.bytes(50_000);
                    filesystem.write_at(file, offset(at), &bytes).unwrap();
                    let other = files[random.below(4) as usize];
                    match random.below(8) {
                        0 => drop(filesystem.commit().unwrap()),
                        1 => filesystem.truncate(file, ByteCount::new(at)).unwrap(),
                        // For these steps, an error is expected if the other file is shorter.
                        2 | 3 => {
                            drop(filesystem.clone_range(other, offset(0)..offset(8192), file, offset(16_384)))
                        }
                        4 => {
                            drop(filesystem.copy_range(other, offset(0)..offset(9000), file, offset(100_000)))
                        }
                        // Another thread may change the file's size during this call.
                        _ => {
                            let size = filesystem.contents().size_of(other).unwrap();
                            let mut bytes = vec![0; usize::try_from(size).unwrap()];
                            filesystem.live().read_at(other, offset(0), &mut bytes).unwrap();
                        }
                    }
                }
            });
        }
    });
    image.commit_and_check(&filesystem);
}

#[test]
fn what_is_shared_takes_no_room_and_stays_apart() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let [one, other] = [b"a", b"b"].map(|name| filesystem.create(ROOT, name, &NEW).unwrap());
    let bytes = Random(5).bytes(200_001);
    filesystem.write_at(one, offset(0), &bytes).unwrap();
    filesystem
        .clone_range(one, offset(0)..offset(200_001), other, offset(0))
        .unwrap();
    assert_eq!(places(&filesystem, one), places(&filesystem, other));
    image.commit_and_check(&filesystem);
    assert!(
        filesystem
            .dedupe_range(one, offset(0)..offset(8192), other, offset(0))
            .unwrap()
    );
    filesystem.write_at(other, offset(0), &[1]).unwrap();
    assert!(
        !filesystem
            .dedupe_range(one, offset(0)..offset(8192), other, offset(0))
            .unwrap()
    );
    assert_eq!(content(&filesystem, one), bytes);
    // These ranges of the source are not whole sectors, end past the source, overlap, or are empty.
    for (range, to) in [(1..4097, 0), (0..300_000, 0), (0..8192, 5), (0..0, 0)] {
        let range = offset(range.start)..offset(range.end);
        let result = filesystem.clone_range(one, range, other, offset(to));
        assert!(matches!(result, Err(Error::Invalid { .. })));
    }
    let overlap = filesystem.clone_range(one, offset(0)..offset(8192), one, offset(4096));
    assert!(matches!(overlap, Err(Error::Invalid { .. })));
    // A range is shared within one file.
    filesystem
        .clone_range(one, offset(0)..offset(8192), one, offset(16_384))
        .unwrap();
    assert_eq!(content(&filesystem, one)[16_384..24_576], bytes[..8192]);
    image.commit_and_check(&filesystem);
}

#[test]
fn refused_writes_leave_files_as_they_were() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.write_at(file, offset(0), b"content").unwrap();
    filesystem.set_flags(file, FileAttributes::APPEND).unwrap();
    assert!(matches!(
        filesystem.write_at(file, offset(0), b"x"),
        Err(Error::NotPermitted { .. })
    ));
    assert!(matches!(
        filesystem.truncate(file, ByteCount::ZERO),
        Err(Error::NotPermitted { .. })
    ));
    filesystem.append(file, b"!").unwrap();
    filesystem.set_flags(file, FileAttributes::IMMUTABLE).unwrap();
    assert!(matches!(
        filesystem.append(file, b"x"),
        Err(Error::NotPermitted { .. })
    ));
    assert!(matches!(
        filesystem.write_at(ROOT, offset(0), b"x"),
        Err(Error::IsADirectory { .. })
    ));
    filesystem.set_flags(file, FileAttributes::empty()).unwrap();
    assert!(matches!(
        filesystem.write_at(file, offset(u64::MAX - 3), b"long"),
        Err(Error::Invalid { .. })
    ));
    assert_eq!(content(&filesystem, file), b"content!");
    image.commit_and_check(&filesystem);
}

/// A full volume returns an error to the write call, and accepts content again after a removal.
#[test]
fn a_full_volume_refuses_early_and_recovers() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, small_memory());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let mut random = Random(9);
    let piece: Vec<u8> = (0..1 << 20)
        .map(|_| u8::try_from(random.below(256)).unwrap())
        .collect();
    let mut written = 0_u64;
    let error = loop {
        match filesystem.append(file, &piece) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 600);
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(written > 200, "{written} MiB");
    image.commit_and_check(&filesystem);
    filesystem.truncate(file, ByteCount::new(1 << 20)).unwrap();
    filesystem.commit().unwrap();
    filesystem.append(file, &piece).unwrap();
    image.commit_and_check(&filesystem);
    assert_eq!(content(&filesystem, file), piece.repeat(2));
}

/// Dirty data of an unnamed file is not written once the last handle of the file is dropped.
#[test]
fn content_of_removed_files_is_forgotten() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.write_at(file, offset(0), &vec![1; 100_000]).unwrap();
    filesystem.unlink(ROOT, b"file").unwrap();
    image.commit_and_check(&filesystem);
    filesystem.writeback().write_all().unwrap();
}

#[test]
fn only_files_have_content_to_share() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let directory = filesystem.make_directory(ROOT, b"directory", &NEW).unwrap();
    let symlink = filesystem.make_symlink(ROOT, b"symlink", &NEW, b"file").unwrap();
    let range = || offset(0)..offset(4096);
    for (source, is_expected) in [
        (
            directory,
            (|error| matches!(error, Error::IsADirectory { .. })) as fn(&Error) -> bool,
        ),
        (symlink, |error| matches!(error, Error::NotAFile { .. })),
    ] {
        let results = [
            filesystem.copy_range(source, range(), file, offset(0)).map(drop),
            filesystem.clone_range(source, range(), file, offset(0)),
            filesystem
                .dedupe_range(source, range(), file, offset(0))
                .map(drop),
        ];
        for result in results {
            assert!(result.as_ref().is_err_and(is_expected), "{result:?}");
        }
    }
}

#[test]
fn clone_of_preallocated_extent_sets_prealloc_flag() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let source = filesystem.create(ROOT, b"source", &NEW).unwrap();
    filesystem
        .allocate(source, offset(0)..offset(8192), AllocateMode::Allocate)
        .unwrap();
    let target = filesystem.create(ROOT, b"target", &NEW).unwrap();
    filesystem
        .clone_range(source, offset(0)..offset(8192), target, offset(0))
        .unwrap();
    filesystem.commit().unwrap();
    let flags = filesystem.view().metadata(target).unwrap().flags;
    assert!(flags.contains(buttress_format::InodeFlags::PREALLOC), "{flags:?}");
    image.check();
}

/// A preallocated range is one extent, so no metadata is reserved for one extent in each sector.
#[test]
fn all_that_is_available_can_be_preallocated() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let available = filesystem.view().space().unwrap().available().get();
    let wanted = (available - (1 << 20)) & !4095;
    let range = FileOffset::MIN..FileOffset::new(wanted);
    filesystem.allocate(file, range, AllocateMode::Allocate).unwrap();
    assert_eq!(metadata(&filesystem, file), (wanted, wanted));
    image.commit_and_check(&filesystem);
}

/// The last sector of this file ends one byte after the largest file size.
#[test]
fn the_largest_file_has_a_last_sector() {
    for features in [&[][..], &["-O", "^no-holes"]] {
        let Some(image) = Image::make(features) else {
            return;
        };
        let filesystem = open(&image, DataOptions::default());
        let size = i64::MAX.cast_unsigned();
        let full = filesystem.create(ROOT, b"full", &NEW).unwrap();
        filesystem.write_at(full, offset(size - 10), &[7; 10]).unwrap();
        let hollow = filesystem.create(ROOT, b"hollow", &NEW).unwrap();
        filesystem.truncate(hollow, ByteCount::new(size)).unwrap();
        image.commit_and_check(&filesystem);
        drop(filesystem);
        let filesystem = open(&image, DataOptions::default());
        let mut end = [0; 20];
        let read = filesystem
            .live()
            .read_at(full, offset(size - 20), &mut end)
            .unwrap();
        assert_eq!((read, &end[..10], &end[10..]), (20, &[0; 10][..], &[7; 10][..]));
        assert_eq!(filesystem.contents().size_of(hollow).unwrap(), size);
    }
}
