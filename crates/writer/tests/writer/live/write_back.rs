//! Tests of reads and attribute changes during a write-back: none waits for the write-back's
//! device.

use super::{BYTES, create, new_volume};
use buttress_format::{ByteCount, FileOffset, Timestamp};
use buttress_lab::gate::{Request, WatchedThread};
use buttress_writer::DataOptions;
use buttress_writer::operations::AttributeChanges;

#[test]
fn reads_wait_for_no_write_back() {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'o'; BYTES])
        .unwrap();
    filesystem.commit().unwrap();
    filesystem
        .write_at(file, FileOffset::new(1000), &vec![b'n'; 50_000])
        .unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.writeback().write_all().unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let read = WatchedThread::start(move || {
        let mut content = vec![0; BYTES + 1];
        let read = of.live().read_at(file, FileOffset::MIN, &mut content).unwrap();
        content.truncate(read);
        (content, of.live().metadata(file).unwrap().size)
    })
    .unwrap();
    let waits = read.comes_to_wait();
    gate.open();
    let (content, size) = read.join().unwrap();
    assert!(!waits, "a read waited for a write-back");
    write_back.join().unwrap();
    let mut expected = vec![b'o'; BYTES];
    expected[1000..51_000].fill(b'n');
    assert!(content == expected);
    assert_eq!(size, ByteCount::of(BYTES));
    filesystem.close().unwrap();
}

#[test]
fn a_new_file_is_read_while_it_is_written_back() {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'n'; BYTES])
        .unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.writeback().write_file(file).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let mut content = vec![0; BYTES];
    let read = filesystem
        .live()
        .read_at(file, FileOffset::MIN, &mut content)
        .unwrap();
    gate.open();
    write_back.join().unwrap();
    assert_eq!(read, BYTES);
    assert!(content.iter().all(|byte| *byte == b'n'));
    filesystem.close().unwrap();
}

/// A call that sets one time neither waits for a write-back nor loses the times that the write set.
#[test]
fn times_set_during_a_write_back_stay() {
    let (gate, filesystem) = new_volume(DataOptions::default());
    let file = create(&filesystem, "file");
    let content = vec![b'n'; BYTES];
    filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
    let written = filesystem.live().metadata(file).unwrap();
    gate.close(|request| matches!(request, Request::Write { .. }));
    let of = filesystem.clone();
    let write_back = WatchedThread::start(move || of.writeback().write_file(file).unwrap()).unwrap();
    gate.wait_for_arrivals(1);
    let of = filesystem.clone();
    let given = Timestamp {
        seconds: 1_000_000,
        nanoseconds: 1,
    };
    let set = WatchedThread::start(move || {
        let accessed = AttributeChanges {
            accessed: Some(given),
            ..AttributeChanges::default()
        };
        of.set_attributes(file, &accessed).unwrap();
        let before = of.live().metadata(file).unwrap();
        let modified = AttributeChanges {
            modified: Some(given),
            ..AttributeChanges::default()
        };
        of.set_attributes(file, &modified).unwrap();
        before
    })
    .unwrap();
    let waits = set.comes_to_wait();
    gate.open();
    let before = set.join().unwrap();
    write_back.join().unwrap();
    assert!(!waits, "setting times waited for a write-back");
    assert_eq!((before.accessed, before.modified), (given, written.modified));
    for found in [
        filesystem.live().metadata(file).unwrap(),
        filesystem.view().metadata(file).unwrap(),
    ] {
        assert_eq!((found.accessed, found.modified), (given, given));
    }
    filesystem.close().unwrap();
}
