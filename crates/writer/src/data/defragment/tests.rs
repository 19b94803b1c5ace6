//! Files that are fragmented, defragmented and compared, on volumes that btrfs-progs makes and checks.

use super::choice::{Rule, Wanted, fragments_of, place_of};
use super::{DefragmentCompression, DefragmentOptions, DefragmentSummary};
use crate::WritableFilesystem;
use crate::data::AllocateMode;
use crate::data::allocation::writes_of;
use crate::data::stored::Stored;
use crate::operations::NewInode;
use crate::operations::tests::volume::{Image, ROOT};
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, Compression, FileOffset, Logical};
use buttress_fs::error::Error;
use buttress_fs::inode::{FileAttributes, Metadata};
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use bytes::Bytes;
use std::collections::BTreeMap;

const NEW: NewInode = NewInode::of_root(0o644);

fn offset(at: u64) -> FileOffset {
    FileOffset::new(at)
}

/// Content that compresses, and that differs in every sector.
fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let line = |number: u64| format!("{seed} sheep {number} jump over the lazy dog\n").into_bytes();
    (0_u64..).flat_map(line).take(bytes).collect()
}

/// Writes a file sector by sector, every second sector first. Nearly every sector becomes an
/// extent of its own.
fn fragmented(filesystem: &WritableFilesystem, name: &str, content: &[u8], nocow: bool) -> Location {
    let file = filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap();
    if nocow {
        filesystem.set_flags(file, FileAttributes::NOCOW).unwrap();
    }
    for first in [0, 1] {
        for (number, sector) in content.chunks(4096).enumerate().skip(first).step_by(2) {
            filesystem
                .write_at(file, offset(number as u64 * 4096), sector)
                .unwrap();
            filesystem.writeback().write_file(file).unwrap();
        }
    }
    file
}

fn content(filesystem: &WritableFilesystem, file: Location) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(filesystem.contents().size_of(file).unwrap()).unwrap()];
    assert_eq!(
        filesystem.live().read_at(file, offset(0), &mut bytes).unwrap(),
        bytes.len()
    );
    bytes
}

fn items(filesystem: &WritableFilesystem, file: Location) -> Vec<Stored> {
    filesystem.items_of(file, &(0..u64::MAX), 1 << 20).unwrap()
}

fn fragments(filesystem: &WritableFilesystem, file: Location) -> usize {
    fragments_of(items(filesystem, file).iter().map(place_of))
}

fn run(filesystem: &WritableFilesystem, file: Location, options: &DefragmentOptions) -> DefragmentSummary {
    filesystem.defragment(file, options, &Progress::new()).unwrap()
}

const fn compressed(compression: Compression) -> DefragmentOptions {
    DefragmentOptions {
        compression: DefragmentCompression::With(CompressionMethod::new(compression)),
        ..defaults()
    }
}

const fn defaults() -> DefragmentOptions {
    DefragmentOptions {
        start: FileOffset::MIN,
        length: ByteCount::MAX,
        target: DefragmentOptions::TARGET,
        step: ByteCount::new(32 << 20),
        compression: DefragmentCompression::Keep,
        keeps_sharing: false,
    }
}

#[test]
fn fragments_become_one_extent_and_times_stay() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(1, 1_000_000);
    let file = fragmented(&filesystem, "file", &model, false);
    filesystem.commit().unwrap();
    let before = filesystem.live().metadata(file).unwrap();
    assert!(
        fragments(&filesystem, file) > 100,
        "{}",
        fragments(&filesystem, file)
    );
    let summary = run(&filesystem, file, &defaults());
    assert_eq!(summary.new_extents, 1, "{summary:?}");
    assert_eq!(items(&filesystem, file).len(), 1);
    let after = filesystem.live().metadata(file).unwrap();
    let times = |of: &Metadata| (of.modified, of.changed, of.size);
    assert_eq!(times(&before), times(&after));
    assert_eq!(content(&filesystem, file), model);
    assert_eq!(run(&filesystem, file, &defaults()), DefragmentSummary::default());
    image.commit_and_check(&filesystem);
    drop(filesystem);
    assert_eq!(content(&image.open(), file), model);
}

#[test]
fn holes_inline_and_preallocated_extents_stay() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let small = filesystem.create(ROOT, b"inline", &NEW).unwrap();
    filesystem.write_at(small, offset(0), b"inline").unwrap();
    let file = filesystem.create(ROOT, b"mixed", &NEW).unwrap();
    filesystem
        .allocate(file, offset(0)..offset(64 << 10), AllocateMode::Allocate)
        .unwrap();
    let mut model = vec![0; 300 << 10];
    for at in (128 << 10..200 << 10).step_by(4096).chain([40 << 10, 280 << 10]) {
        model[at..at + 4096].copy_from_slice(&text(at as u64, 4096));
        filesystem
            .write_at(file, offset(at as u64), &model[at..at + 4096])
            .unwrap();
        filesystem.writeback().write_file(file).unwrap();
        // Another file's extent parts the extents of this file.
        let name = format!("between-{at}");
        let other = filesystem.create(ROOT, name.as_bytes(), &NEW).unwrap();
        filesystem.write_at(other, offset(0), &[1; 4096]).unwrap();
        filesystem.writeback().write_file(other).unwrap();
    }
    filesystem.truncate(file, ByteCount::new(300 << 10)).unwrap();
    filesystem.commit().unwrap();
    let kept: Vec<Stored> = items(&filesystem, file)
        .into_iter()
        .filter(|item| item.end <= 64 << 10 || item.start >= 280 << 10)
        .collect();
    run(&filesystem, file, &defaults());
    run(&filesystem, small, &compressed(Compression::Zstd));
    let now = items(&filesystem, file);
    let middle = |item: &&Stored| item.slice().is_some() && item.start >= 128 << 10 && item.end <= 200 << 10;
    assert_eq!(now.iter().filter(middle).count(), 1, "{now:?}");
    assert!(kept.iter().all(|item| now.contains(item)), "{now:?}");
    assert!(items(&filesystem, small)[0].inline_bytes.is_some());
    assert!(content(&filesystem, file) == model);
    image.commit_and_check(&filesystem);
}

#[test]
fn content_is_compressed_and_decompressed() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(2, 700_001);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem.write_at(file, offset(0), &model).unwrap();
    filesystem.commit().unwrap();
    let kinds = |file| {
        let items = items(&filesystem, file);
        items
            .iter()
            .map(|item| item.extent.compression)
            .collect::<Vec<_>>()
    };
    for compression in [Compression::Zstd, Compression::Lzo, Compression::Zlib] {
        let summary = run(&filesystem, file, &compressed(compression));
        assert_eq!(summary.new_extents, 6, "{compression:?}: {summary:?}");
        assert_eq!(kinds(file), [compression; 6]);
        assert_eq!(content(&filesystem, file), model);
        assert_eq!(
            run(&filesystem, file, &compressed(compression)),
            DefragmentSummary::default()
        );
    }
    // Compressed extents of the full length are not fragments.
    assert_eq!(run(&filesystem, file, &defaults()), DefragmentSummary::default());
    let never = DefragmentOptions {
        compression: DefragmentCompression::Never,
        ..defaults()
    };
    assert_eq!(run(&filesystem, file, &never).new_extents, 1);
    assert_eq!(kinds(file), [Compression::None]);
    let nocow = fragmented(&filesystem, "nocow", &model, true);
    run(&filesystem, nocow, &compressed(Compression::Zstd));
    assert_eq!(kinds(nocow), [Compression::None]);
    assert!(content(&filesystem, file) == model && content(&filesystem, nocow) == model);
    image.commit_and_check(&filesystem);
}

#[test]
fn content_that_does_not_shrink_stays() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let file = filesystem.create(ROOT, b"noise", &NEW).unwrap();
    let mut word = 1_u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (word >> 56) as u8
    };
    let model: Vec<u8> = core::iter::repeat_with(&mut next).take(6 << 20).collect();
    // Two extents, neither of which is small.
    for half in [0, 3 << 20] {
        filesystem
            .write_at(file, offset(half as u64), &model[half..half + (3 << 20)])
            .unwrap();
        filesystem.writeback().write_file(file).unwrap();
    }
    let before = items(&filesystem, file);
    let options = DefragmentOptions {
        target: ByteCount::new(1 << 20),
        ..compressed(Compression::Zstd)
    };
    assert_eq!(run(&filesystem, file, &options), DefragmentSummary::default());
    assert_eq!(items(&filesystem, file), before);
    assert!(content(&filesystem, file) == model);
}

#[test]
fn small_compressed_extents_are_joined_and_stay_compressed() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(3, 512 << 10);
    let file = fragmented(&filesystem, "file", &model, false);
    run(&filesystem, file, &compressed(Compression::Zstd));
    // Overwrites leave compressed extents of less than the full length.
    let mut model = model;
    for at in (32 << 10..512 << 10).step_by(64 << 10) {
        model[at..at + 8192].fill(7);
        filesystem
            .write_at(file, offset(at as u64), &model[at..at + 8192])
            .unwrap();
        filesystem.writeback().write_file(file).unwrap();
    }
    let before = items(&filesystem, file).len();
    run(&filesystem, file, &defaults());
    let after = items(&filesystem, file);
    assert!(after.len() == 4 && before > 16, "{before}: {after:?}");
    assert!(
        after
            .iter()
            .all(|item| item.extent.compression == Compression::Zstd)
    );
    assert!(content(&filesystem, file) == model);
    image.commit_and_check(&filesystem);
}

#[test]
fn snapshots_keep_their_extents() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(4, 400_000);
    let file = fragmented(&filesystem, "file", &model, false);
    let snapshot = filesystem
        .subvolumes()
        .snapshot(ROOT.subvolume, ROOT, b"snapshot", true)
        .unwrap();
    let of_snapshot = Location::new(snapshot, file.inode);
    let before = items(&filesystem, of_snapshot);
    run(&filesystem, file, &defaults());
    assert_eq!(items(&filesystem, file).len(), 1);
    assert_eq!(items(&filesystem, of_snapshot), before);
    let read_only = filesystem.defragment(of_snapshot, &defaults(), &Progress::new());
    assert!(
        matches!(read_only, Err(Error::ReadOnlySubvolume { .. })),
        "{read_only:?}"
    );
    assert!(content(&filesystem, file) == model && content(&filesystem, of_snapshot) == model);
    image.commit_and_check(&filesystem);
}

#[test]
fn shared_extents_move_together_and_stay_shared() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(5, 400_000);
    let file = fragmented(&filesystem, "file", &model, false);
    let clone = filesystem.create(ROOT, b"clone", &NEW).unwrap();
    let whole = offset(0)..offset(model.len() as u64);
    filesystem.clone_range(file, whole, clone, offset(0)).unwrap();
    let snapshot = filesystem
        .subvolumes()
        .snapshot(ROOT.subvolume, ROOT, b"snapshot", true)
        .unwrap();
    // The start of the file is its own again, and becomes an extent of its own.
    let mut own = model.clone();
    for at in (0..64 << 10).step_by(4096).rev() {
        own[at..at + 4096].fill(9);
        filesystem
            .write_at(file, offset(at as u64), &own[at..at + 4096])
            .unwrap();
        filesystem.writeback().write_file(file).unwrap();
    }
    filesystem.commit().unwrap();
    let users = [file, clone, Location::new(snapshot, file.inode)];
    let used = || -> u64 {
        let disks = users.iter().flat_map(|user| items(&filesystem, *user));
        let disks: BTreeMap<Logical, u64> = disks
            .filter_map(|item| item.disk())
            .map(|disk| (disk.logical, disk.length.get()))
            .collect();
        disks.values().sum()
    };
    let used_before = used();
    let keep = DefragmentOptions {
        keeps_sharing: true,
        ..defaults()
    };
    let before = fragments(&filesystem, file);
    let summary = run(&filesystem, file, &keep);
    filesystem.commit().unwrap();
    assert!(
        before > 50 && summary.moved.get() >= 300_000,
        "{before}: {summary:?}"
    );
    assert_eq!(fragments(&filesystem, file), 1, "{:?}", items(&filesystem, file));
    for other in [clone, Location::new(snapshot, file.inode)] {
        assert!(fragments(&filesystem, other) < before / 2);
        let tail = |file| -> Vec<_> {
            let items = items(&filesystem, file);
            items
                .iter()
                .filter(|item| item.start >= 64 << 10)
                .map(Stored::disk)
                .collect()
        };
        assert_eq!(tail(other), tail(file));
        assert!(content(&filesystem, other) == model);
    }
    assert_eq!(used(), used_before);
    assert!(content(&filesystem, file) == own);
    assert_eq!(run(&filesystem, file, &keep), DefragmentSummary::default());
    image.commit_and_check(&filesystem);
}

#[test]
fn range_target_and_cancellation_bound_the_job() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(6, 256 << 10);
    let file = fragmented(&filesystem, "file", &model, false);
    let part = DefragmentOptions {
        start: offset(65_000),
        length: ByteCount::new(64 << 10),
        ..defaults()
    };
    let outside = |items: Vec<Stored>| -> Vec<Stored> {
        items
            .into_iter()
            .filter(|item| item.end <= 61_440 || item.start >= 131_072)
            .collect()
    };
    let before = outside(items(&filesystem, file));
    assert!(run(&filesystem, file, &part).new_extents == 1);
    assert_eq!(outside(items(&filesystem, file)), before);
    let small = DefragmentOptions {
        target: ByteCount::new(4096),
        ..defaults()
    };
    assert_eq!(run(&filesystem, file, &small), DefragmentSummary::default());
    let cancelled = Progress::new();
    cancelled.cancel();
    let ended = filesystem.defragment(file, &defaults(), &cancelled);
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    let past = DefragmentOptions {
        start: offset(1 << 30),
        ..defaults()
    };
    let refused = filesystem.defragment(file, &past, &Progress::new());
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    let directory = filesystem.defragment(ROOT, &defaults(), &Progress::new());
    assert!(
        matches!(directory, Err(Error::IsADirectory { .. })),
        "{directory:?}"
    );
    let empty = filesystem.create(ROOT, b"empty", &NEW).unwrap();
    assert_eq!(run(&filesystem, empty, &defaults()), DefragmentSummary::default());
    assert!(content(&filesystem, file) == model);
}

#[test]
fn writers_beside_the_job_lose_nothing() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    for (seed, nocow) in [(7, false), (8, true)] {
        let mut model = text(seed, 600_000);
        let name = format!("file-{seed}");
        let file = fragmented(&filesystem, &name, &model, nocow);
        std::thread::scope(|scope| {
            let job = scope.spawn(|| {
                for round in 0..12 {
                    let options = match round % 3 {
                        0 => defaults(),
                        1 => compressed(Compression::Zstd),
                        _ => DefragmentOptions {
                            keeps_sharing: true,
                            ..defaults()
                        },
                    };
                    run(&filesystem, file, &options);
                }
            });
            let mut random = 99_u64 + seed;
            let mut next = move || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) as usize
            };
            let mut rounds = 0_usize;
            while !job.is_finished() || rounds < 50 {
                rounds += 1;
                let at = next() % 590_000;
                let length = 1 + next() % 9000;
                let byte = (next() % 251) as u8;
                model[at..at + length].fill(byte);
                filesystem
                    .write_at(file, offset(at as u64), &model[at..at + length])
                    .unwrap();
                if rounds.is_multiple_of(5) {
                    filesystem.writeback().write_file(file).unwrap();
                }
                if rounds.is_multiple_of(50) {
                    let name = format!("snapshot-{seed}-{rounds}");
                    let made = filesystem
                        .subvolumes()
                        .snapshot(ROOT.subvolume, ROOT, name.as_bytes(), false)
                        .unwrap();
                    filesystem.subvolumes().delete(made).unwrap();
                }
            }
            job.join().unwrap();
        });
        assert!(content(&filesystem, file) == model, "{seed}");
        filesystem.commit().unwrap();
        let view = filesystem.view();
        let mut found = vec![0; model.len()];
        assert_eq!(
            view.open_file(file)
                .unwrap()
                .read_at(offset(0), &mut found)
                .unwrap(),
            found.len()
        );
        assert!(found == model, "{seed} after a commit");
    }
    image.check();
}

#[test]
fn piece_that_changed_is_not_replaced() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    for (name, nocow) in [("file", false), ("in place", true)] {
        let mut model = text(11, 100_000);
        let file = fragmented(&filesystem, name, &model, nocow);
        let progress = Progress::new();
        let described = filesystem
            .contents()
            .with(file, |content| content.describe())
            .unwrap();
        let job = described.job(&filesystem, file, &defaults(), &progress);
        let (pieces, _) = job.rule.choose(&items(&filesystem, file), false, &|_| false);
        let piece = &pieces[0];
        let writes = job.count_of_writes().unwrap().unwrap();
        let mut old = model.clone();
        old.resize(usize::try_from(piece.bytes()).unwrap(), 0);
        let (extents, _) = filesystem
            .writeback()
            .make_extents(&[(0, Bytes::from(old))], None);
        let placed = filesystem.writeback().place_extents(&extents).unwrap();
        let written = filesystem
            .writeback()
            .write_extents_out(&writes_of(&placed), job.has_checksums);
        model[5000..5100].fill(b'!');
        filesystem
            .write_at(file, offset(5000), &model[5000..5100])
            .unwrap();
        filesystem.writeback().write_file(file).unwrap();
        assert!(
            !job.replace(piece, placed, written.unwrap(), writes).unwrap(),
            "{name}"
        );
        assert!(content(&filesystem, file) == model, "{name}");
    }
    image.commit_and_check(&filesystem);
}

#[test]
fn volume_without_space_stays_whole() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let model = text(9, 8 << 20);
    let file = fragmented(&filesystem, "file", &model, false);
    let snapshot = filesystem
        .subvolumes()
        .snapshot(ROOT.subvolume, ROOT, b"snapshot", true)
        .unwrap();
    let filler = filesystem.create(ROOT, b"filler", &NEW).unwrap();
    let megabyte = vec![5; 1 << 20];
    let mut at = 0;
    while filesystem.write_at(filler, offset(at), &megabyte).is_ok() {
        at += 1 << 20;
    }
    let full = filesystem.commit();
    assert!(
        full.is_ok() || matches!(full, Err(Error::NoSpace { .. })),
        "{full:?}"
    );
    let ended = filesystem.defragment(file, &defaults(), &Progress::new());
    assert!(matches!(ended, Err(Error::NoSpace { .. })) || ended.is_ok_and(|done| done.left.get() > 0));
    assert!(content(&filesystem, file) == model);
    filesystem.truncate(filler, ByteCount::ZERO).unwrap();
    assert!(content(&filesystem, Location::new(snapshot, file.inode)) == model);
    image.commit_and_check(&filesystem);
    run(&filesystem, file, &defaults());
    assert!(content(&filesystem, file) == model);
    image.commit_and_check(&filesystem);
}

#[test]
fn run_longer_than_the_window_is_cut() {
    let rule = Rule {
        target: 1 << 20,
        piece: 64 << 10,
        wanted: Wanted::Any,
    };
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let file = fragmented(&filesystem, "file", &text(10, 200 << 10), false);
    let items = items(&filesystem, file);
    let (pieces, resume) = rule.choose(&items, false, &|_| false);
    assert_eq!((pieces.len(), resume), (4, None));
    assert!(
        pieces
            .windows(2)
            .all(|pair| pair[0].range.end == pair[1].range.start)
    );
    // The last item belongs to the next call.
    let (_, resume) = rule.choose(&items, true, &|_| false);
    assert_eq!(resume, items.last().map(|item| item.start));
    let (pieces, _) = rule.choose(&items, false, &|index| index % 2 == 0);
    assert!(pieces.is_empty());
}
