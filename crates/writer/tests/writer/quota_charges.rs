//! Charges against quota limits: each byte is charged once, and only while it takes new space.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use super::quotas::{device, exceeded, file_in, group, limit_of, open, volume};
use buttress_accounts::Accounts as _;
use buttress_format::{ByteCount, Compression, FileOffset, QgroupId, SubvolumeId};
use buttress_fs::{Error, Location, OpenOptions, Progress};
use buttress_writer::data::{DefragmentOptions, EncodedExtent};
use buttress_writer::{AllocateMode, DataOptions, QuotaKind, WritableFilesystem, WriteOptions};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const KINDS: [QuotaKind; 2] = [QuotaKind::Classic, QuotaKind::Simple];

fn range(bytes: u64) -> core::ops::Range<FileOffset> {
    FileOffset::MIN..FileOffset::new(bytes)
}

/// Enables quotas and makes a subvolume, with current counters.
fn home_of(filesystem: &WritableFilesystem, kind: QuotaKind) -> (Location, QgroupId) {
    filesystem.quotas().enable(kind).unwrap();
    filesystem.commit().unwrap();
    let home = Location::root_of(filesystem.subvolumes().create(ROOT, b"work").unwrap());
    filesystem.commit().unwrap();
    if kind == QuotaKind::Classic {
        filesystem.quotas().rescan(&Progress::new()).unwrap();
    }
    (home, group(0, home.subvolume.get()))
}

/// Limits a group to its counted use and `more` bytes.
fn limit_to_use(filesystem: &WritableFilesystem, own: QgroupId, more: u64) {
    filesystem.commit().unwrap();
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    if !groups.is_simple() {
        filesystem.quotas().rescan(&Progress::new()).unwrap();
    }
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    let used = groups.groups[&own].info.referenced.get();
    filesystem
        .quotas()
        .limit_group(own, limit_of(used + more, false))
        .unwrap();
    filesystem.commit().unwrap();
}

#[test]
fn allocation_takes_its_space_once() {
    for kind in KINDS {
        let filesystem = open(vec![device(&volume())]).unwrap();
        let (home, own) = home_of(&filesystem, kind);
        let first = file_in(&filesystem, home, b"first").unwrap();
        let second = file_in(&filesystem, home, b"second").unwrap();
        filesystem.commit().unwrap();
        limit_to_use(&filesystem, own, 1_200_000);
        let too_much = filesystem.allocate(first, range(2 << 20), AllocateMode::Allocate);
        assert_eq!(exceeded(too_much).group, own);
        // A refused call leaves no charge, and a successful one leaves one.
        let counted = filesystem.committed_generation();
        filesystem
            .allocate(first, range(700_000), AllocateMode::Allocate)
            .unwrap();
        filesystem
            .write_at(second, FileOffset::MIN, &vec![7; 400_000])
            .unwrap();
        assert_eq!(filesystem.committed_generation(), counted, "{kind:?}");
        let all = filesystem.write_at(second, FileOffset::MIN, &vec![7; 700_000]);
        assert_eq!(exceeded(all).group, own);
        filesystem.commit().unwrap();
    }
}

#[test]
fn limit_allows_writes_in_place() {
    for data in [DataOptions::default(), nodatacow()] {
        let filesystem = OpenOptions::new(vec![device(&volume())]).open().unwrap();
        let options = WriteOptions {
            data,
            ..WriteOptions::default()
        };
        let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
        let (home, own) = home_of(&filesystem, QuotaKind::Simple);
        let file = file_in(&filesystem, home, b"file").unwrap();
        let bytes = vec![7; 1 << 20];
        match !data.copy_on_write {
            true => filesystem.write_at(file, FileOffset::MIN, &bytes).unwrap(),
            false => filesystem
                .allocate(file, range(1 << 20), AllocateMode::Allocate)
                .unwrap(),
        }
        filesystem.commit().unwrap();
        // Overwrites in place leave no charge.
        limit_to_use(&filesystem, own, 100_000);
        let counted = filesystem.committed_generation();
        filesystem
            .write_at(file, FileOffset::MIN, &bytes[..80_000])
            .unwrap();
        filesystem.writeback().write_file(file).unwrap();
        let other = file_in(&filesystem, home, b"other").unwrap();
        filesystem
            .write_at(other, FileOffset::MIN, &bytes[..60_000])
            .unwrap();
        assert_eq!(filesystem.committed_generation(), counted);
        // At the limit, overwrites in place take no space.
        filesystem
            .quotas()
            .limit_group(own, limit_of(500_000, false))
            .unwrap();
        let rest = FileOffset::new(128 << 10);
        filesystem.write_at(file, rest, &bytes[..800_000]).unwrap();
        // Unreserved data is given up and written back without a defect.
        filesystem.truncate(file, ByteCount::new(600_000)).unwrap();
        filesystem.commit().unwrap();
        // Written preallocated extents are copied on write.
        let again = filesystem.write_at(file, rest, &bytes[..80_000]);
        match data.copy_on_write {
            true => assert_eq!(exceeded(again).group, own),
            false => again.unwrap(),
        }
        filesystem.commit().unwrap();
        filesystem
            .subvolumes()
            .snapshot(home.subvolume, ROOT, b"snapshot", true)
            .unwrap();
        let refused = filesystem.write_at(file, rest, &bytes[..80_000]);
        assert_eq!(exceeded(refused).group, own);
        filesystem.commit().unwrap();
    }
}

fn nodatacow() -> DataOptions {
    DataOptions {
        copy_on_write: false,
        ..DataOptions::default()
    }
}

#[test]
fn writes_in_place_on_a_full_volume_are_given_up() {
    let filesystem = OpenOptions::new(vec![device(&volume())]).open().unwrap();
    let options = WriteOptions {
        data: nodatacow(),
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
    let file = file_in(&filesystem, ROOT, b"file").unwrap();
    let bytes = vec![7; 1 << 20];
    filesystem.write_at(file, FileOffset::MIN, &bytes).unwrap();
    filesystem.commit().unwrap();
    let rest = file_in(&filesystem, ROOT, b"rest").unwrap();
    let mut at = 0;
    for shift in (12..28).rev() {
        let end = at + (1_u64 << shift);
        let part = FileOffset::new(at)..FileOffset::new(end);
        match filesystem.allocate(rest, part, AllocateMode::Allocate) {
            Ok(()) => at = end,
            Err(Error::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    filesystem.write_at(file, FileOffset::MIN, &bytes).unwrap();
    filesystem.truncate(file, ByteCount::new(4096)).unwrap();
    filesystem.commit().unwrap();
}

#[test]
fn encoded_extents_are_charged_once() {
    for kind in KINDS {
        let filesystem = open(vec![device(&volume())]).unwrap();
        let (home, own) = home_of(&filesystem, kind);
        let file = file_in(&filesystem, home, b"file").unwrap();
        let other = file_in(&filesystem, home, b"other").unwrap();
        filesystem.commit().unwrap();
        limit_to_use(&filesystem, own, 1_000_000);
        let extent = EncodedExtent {
            offset: FileOffset::MIN,
            length: ByteCount::new(602_112),
            content_bytes: ByteCount::new(602_112),
            content_offset: ByteCount::ZERO,
            compression: Compression::None,
            stored: vec![9; 602_112].into(),
        };
        let extents = [extent];
        assert!(filesystem.encoded_writes().write(file, &extents).unwrap());
        assert_eq!(
            exceeded(filesystem.encoded_writes().write(other, &extents)).group,
            own
        );
        // A refusal counts again, so overwritten data is no longer charged.
        for byte in 0..4 {
            filesystem
                .write_at(file, FileOffset::MIN, &vec![byte; 100_000])
                .unwrap();
            filesystem.commit().unwrap();
        }
        filesystem.unlink(home, b"file").unwrap();
        assert!(filesystem.encoded_writes().write(other, &extents).unwrap());
        filesystem.commit().unwrap();
    }
}

#[test]
fn charges_without_a_change_end_at_the_next_count() {
    for kind in KINDS {
        let filesystem = open(vec![device(&volume())]).unwrap();
        let (home, own) = home_of(&filesystem, kind);
        let file = file_in(&filesystem, home, b"file").unwrap();
        filesystem.commit().unwrap();
        limit_to_use(&filesystem, own, 500_000);
        // A write-back in the background may land after the commit that counts its extents.
        let tree = home.subvolume.tree();
        filesystem.quota_limits().charge(tree, 400_000).unwrap();
        filesystem.quota_limits().land(tree, 400_000);
        filesystem
            .write_at(file, FileOffset::MIN, &vec![7; 300_000])
            .unwrap();
        filesystem.commit().unwrap();
    }
}

#[test]
fn defragmentation_is_charged() {
    let filesystem = open(vec![device(&volume())]).unwrap();
    let (home, own) = home_of(&filesystem, QuotaKind::Simple);
    let file = file_in(&filesystem, home, b"file").unwrap();
    for part in 0..16_u64 {
        let at = FileOffset::new(part * 40_960);
        filesystem.write_at(file, at, &vec![7; 40_960]).unwrap();
        filesystem.writeback().write_file(file).unwrap();
        let between = file_in(&filesystem, ROOT, format!("between{part}").as_bytes()).unwrap();
        filesystem
            .write_at(between, FileOffset::MIN, &vec![8; 40_960])
            .unwrap();
        filesystem.writeback().write_file(between).unwrap();
    }
    // The snapshot keeps the old extents, and the file's subvolume counts them.
    filesystem
        .subvolumes()
        .snapshot(home.subvolume, ROOT, b"snapshot", true)
        .unwrap();
    filesystem.commit().unwrap();
    limit_to_use(&filesystem, own, 300_000);
    let options = DefragmentOptions::default();
    let refused = filesystem.defragment(file, &options, &Progress::new());
    assert_eq!(exceeded(refused).group, own);
    limit_to_use(&filesystem, own, 900_000);
    let done = filesystem.defragment(file, &options, &Progress::new()).unwrap();
    assert!(done.rewritten.get() > 0, "{done:?}");
    // The new extents stay charged until the commit.
    let more = filesystem.write_at(file, FileOffset::new(1 << 20), &vec![7; 400_000]);
    assert_eq!(exceeded(more).group, own);
    filesystem.commit().unwrap();
}
