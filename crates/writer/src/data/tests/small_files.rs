//! Tests of small files: written back together, and made at once.

use super::*;
use crate::operations::AttributeChanges;
use buttress_format::Timestamp;
use buttress_fs::error::Error;

/// A batch of small files keeps each file's content independent of the other files.
#[test]
fn batched_small_files_keep_their_content() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let mut random = Random(7);
    let name = |number: usize| format!("file-{number}").into_bytes();
    let mut expected: Vec<Option<(Location, Vec<u8>)>> = Vec::new();
    for number in 0..300 {
        let file = filesystem.create(ROOT, &name(number), &NEW).unwrap();
        let length = 1 + usize::try_from(random.below(20_000)).unwrap();
        let mut bytes = random.bytes(length);
        filesystem.write_at(file, offset(0), &bytes).unwrap();
        match number % 7 {
            // The file of this test has content in several ranges, with a hole between two ranges.
            0 => {
                let at = length.next_multiple_of(4096) + 8192;
                bytes.resize(at, 0);
                bytes.extend_from_slice(b"behind a hole");
                let at = u64::try_from(at).unwrap();
                filesystem.write_at(file, offset(at), b"behind a hole").unwrap();
            }
            // This write of the test covers existing extents, and keeps the file's size.
            1 => {
                filesystem.writeback().write_file(file).unwrap();
                let end = bytes.len().min(5000);
                bytes[..end].fill(7);
                filesystem.write_at(file, offset(0), &bytes[..end]).unwrap();
            }
            // This file is removed together with its dirty data.
            2 => {
                filesystem.unlink(ROOT, &name(number)).unwrap();
                expected.push(None);
                continue;
            }
            _ => {}
        }
        expected.push(Some((file, bytes)));
    }
    filesystem.writeback().write_all().unwrap();
    assert_eq!(
        (
            filesystem.data().dirty_files(),
            filesystem.data().delalloc_bytes()
        ),
        (0, 0)
    );
    for (file, bytes) in expected.iter().flatten() {
        assert!(written(&filesystem, *file) == *bytes, "{file}");
    }
    image.commit_and_check(&filesystem);
}

/// Many small files need few requests: a separate write-back would need one request for each file.
#[test]
fn small_files_are_written_back_with_few_requests() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let files = 200;
    for number in 0..files {
        let file = filesystem
            .create(ROOT, format!("file-{number}").as_bytes(), &NEW)
            .unwrap();
        filesystem.write_at(file, offset(0), &[1; 10_000]).unwrap();
    }
    let requests = || {
        let devices = filesystem.forest().volume().devices();
        let figures = devices
            .iter()
            .filter_map(|slot| slot.device().map(|device| device.statistics()));
        figures.map(|figures| figures.writes.requests).sum::<u64>()
    };
    let before = requests();
    filesystem.writeback().write_all().unwrap();
    let made = requests() - before;
    assert!(made > 0 && made < files / 4, "{made} requests for {files} files");
}

/// The parts of a file made at once appear together, or the file does not exist.
#[test]
fn a_file_that_is_made_at_once_has_its_content_and_its_times() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = open(&image, DataOptions::default());
    let time = |seconds| {
        Some(Timestamp {
            seconds,
            nanoseconds: 5,
        })
    };
    let attributes = AttributeChanges {
        mode: Some(0o640),
        uid: Some(7),
        accessed: time(1),
        modified: time(2),
        changed: time(3),
        created: time(4),
        ..AttributeChanges::default()
    };
    for length in [0, 1, 2048, 2049, 4096, 5000, 100_000, (1 << 20) + 1] {
        let bytes = Random(9).bytes(length);
        let mut taken = bytes.clone();
        let name = format!("file-{length}");
        let file = filesystem
            .create_whole(ROOT, name.as_bytes(), &NEW, &attributes, &mut taken)
            .unwrap();
        assert!(taken.is_empty());
        assert!(content(&filesystem, file) == bytes, "{length}");
        filesystem.writeback().write_file(file).unwrap();
        assert!(written(&filesystem, file) == bytes, "{length}");
        let (item, _) = filesystem.live().inode(file).unwrap();
        assert_eq!((item.mode & 0o7777, item.uid), (0o640, 7));
        assert_eq!(
            [item.atime, item.mtime, item.ctime, item.otime].map(Some),
            [time(1), time(2), time(3), time(4)],
            "{length}"
        );
    }
    // The test's content exceeds the volume's space.
    let mut much = vec![1; 600 << 20];
    let made = filesystem.create_whole(ROOT, b"much", &NEW, &attributes, &mut much);
    assert!(matches!(made, Err(Error::NoSpace { .. })), "{made:?}");
    assert_eq!(much.len(), 600 << 20);
    assert_eq!(filesystem.live().lookup(ROOT, b"much").unwrap(), None);
    // The name of the new file exists already.
    let mut bytes = vec![1; 5000];
    let made = filesystem.create_whole(ROOT, b"file-5000", &NEW, &attributes, &mut bytes);
    assert!(matches!(made, Err(Error::Exists { .. })), "{made:?}");
    assert_eq!(bytes.len(), 5000);
    image.commit_and_check(&filesystem);
}
