//! Tests of a write beside a defragmentation: the job does not replace the newer content.
//!
//! The critical moment: the job has read the old content, and its new extent is in flight to the
//! device. Meanwhile the test writes to the file and writes it back.

use crate::live::{create, new_volume};
use buttress_format::FileOffset;
use buttress_fs::Location;
use buttress_fs::inode::FileAttributes;
use buttress_fs::progress::Progress;
use buttress_lab::gate::{Request, WatchedThread};
use buttress_writer::data::DefragmentOptions;
use buttress_writer::{DataOptions, WritableFilesystem};

const SECTOR: usize = 4096;
const SECTORS: usize = 32;
const OLD: u8 = b'o';
const NEW: u8 = b'n';

/// Writes every second sector first, so that each sector becomes an extent.
fn fill(filesystem: &WritableFilesystem, file: Location) {
    for first in [0, 1] {
        for sector in (first..SECTORS).step_by(2) {
            let at = FileOffset::new((sector * SECTOR) as u64);
            filesystem.write_at(file, at, &[OLD; SECTOR]).unwrap();
            filesystem.writeback().write_file(file).unwrap();
        }
    }
}

fn write_comes_between(attributes: FileAttributes) {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    filesystem.set_flags(file, attributes).unwrap();
    fill(&filesystem, file);
    gate.close(|request| match request {
        Request::Write { bytes, .. } => bytes.len() > SECTOR && bytes.iter().all(|byte| *byte == OLD),
        Request::Read { .. } | Request::Flush | Request::Discard { .. } => false,
    });
    let of = filesystem.clone();
    let job = WatchedThread::start(move || {
        of.defragment(file, &DefragmentOptions::default(), &Progress::new())
            .unwrap()
    })
    .unwrap();
    gate.wait_for_arrivals(1);
    filesystem
        .write_at(file, FileOffset::new(5000), &[NEW; 100])
        .unwrap();
    filesystem.writeback().write_file(file).unwrap();
    gate.open();
    let summary = job.join().unwrap();
    assert!(summary.new_extents > 0, "{summary:?}");
    let mut expected = vec![OLD; SECTORS * SECTOR];
    expected[5000..5100].fill(NEW);
    let mut content = vec![0; SECTORS * SECTOR];
    filesystem
        .live()
        .read_at(file, FileOffset::MIN, &mut content)
        .unwrap();
    assert!(content == expected, "old content replaced newer content");
    filesystem.close().unwrap();
}

#[test]
fn write_beside_a_defragmentation_stays() {
    write_comes_between(FileAttributes::empty());
}

#[test]
fn overwrite_in_place_beside_a_defragmentation_stays() {
    write_comes_between(FileAttributes::NOCOW);
}
