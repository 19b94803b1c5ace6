//! Tests of syncs of file ranges: their cost, and the durable content afterwards.

use super::{MIB, NEW, ROOT, made, open, write};
use crate::WritableFilesystem;
use crate::log_tree::Synced;
use buttress_format::FileOffset;

/// A sync of a clean range costs nothing, whatever else of the file is dirty.
#[test]
fn a_range_with_nothing_new_is_durable() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    write(&filesystem, file, b'a', MIB);
    let range = |start: u64, end: u64| FileOffset::new(start)..FileOffset::new(end);
    assert_eq!(
        filesystem.log_tree().sync_range(file, range(0, 4096)).unwrap(),
        Synced::Logged
    );
    filesystem
        .write_at(file, FileOffset::new(500_000), &[b'b'; 5000])
        .unwrap();
    let writes = backends[0].request_counts().1;
    for clean in [range(0, 4096), range(600_000, 1 << 20)] {
        assert_eq!(
            filesystem.log_tree().sync_range(file, clean).unwrap(),
            Synced::Unneeded
        );
    }
    assert_eq!(backends[0].request_counts().1, writes);
    assert_eq!(
        filesystem
            .log_tree()
            .sync_range(file, range(504_000, 504_001))
            .unwrap(),
        Synced::Logged
    );
    // Content after the logged end does not survive a crash.
    filesystem
        .write_at(file, FileOffset::new(2 << 20), &[b'c'; 4096])
        .unwrap();
    filesystem.writeback().write_all().unwrap();
    assert_eq!(
        filesystem
            .log_tree()
            .sync_range(file, range(1 << 20, 3 << 20))
            .unwrap(),
        Synced::Logged
    );
    let end = FileOffset::new((2 << 20) + 4096);
    let durably = filesystem.log_tree().write_durably_at(file, end, b"end").unwrap();
    assert_eq!(durably, Synced::Logged);
    filesystem.abandon();
    let filesystem = open(&backends);
    let mut content = vec![0; 4 << 20];
    let read = filesystem
        .live()
        .read_at(file, FileOffset::MIN, &mut content)
        .unwrap();
    assert_eq!(read, (2 << 20) + 4096 + 3);
    assert_eq!((content[504_000], content[read - 1]), (b'b', b'd'));
    filesystem.close().unwrap();
}

/// Syncing a range leaves dirty data outside the range in memory, and a sync of the whole file
/// writes it.
#[test]
fn a_range_costs_the_range() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    // The write's length fits into the existing chunk.
    let length = 2 * MIB;
    write(&filesystem, file, b'a', length);
    filesystem.commit().unwrap();
    write(&filesystem, file, b'b', length);
    let before = backends[0].written_bytes();
    let range = |start: u64, end: u64| FileOffset::new(start)..FileOffset::new(end);
    let middle = MIB as u64;
    // The range ends inside sectors: these sectors are written.
    let synced = filesystem
        .log_tree()
        .sync_range(file, range(middle + 5, middle + 8195));
    assert_eq!(synced.unwrap(), Synced::Logged);
    let written = backends[0].written_bytes() - before;
    assert!(written < MIB as u64 / 2, "{written} bytes for three sectors");
    let mut content = vec![0; length];
    let mut read = |filesystem: &WritableFilesystem| {
        let bytes = filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap();
        assert_eq!(bytes, length);
        content.clone()
    };
    assert!(read(&filesystem).iter().all(|byte| *byte == b'b'));
    // Sync the same range again with dirty data around it, then sync the remaining ranges.
    filesystem
        .write_at(file, FileOffset::new(middle), &[b'c'; 4096])
        .unwrap();
    let synced = filesystem
        .log_tree()
        .sync_range(file, range(middle, middle + 1))
        .unwrap();
    assert_eq!(synced, Synced::Logged);
    filesystem.abandon();
    let filesystem = open(&backends);
    let survived = read(&filesystem);
    let (at, sector) = (MIB, 4096);
    let expected = |number: usize| match number {
        number if (at..at + sector).contains(&number) => b'c',
        number if (at + sector..at + 3 * sector).contains(&number) => b'b',
        _ => b'a',
    };
    let wrong = (0..length).find(|number| survived[*number] != expected(*number));
    assert_eq!(wrong, None);
    write(&filesystem, file, b'd', length);
    filesystem.log_tree().sync_range(file, range(0, 4096)).unwrap();
    filesystem.log_tree().fsync(file).unwrap();
    filesystem.abandon();
    let filesystem = open(&backends);
    assert!(read(&filesystem).iter().all(|byte| *byte == b'd'));
    filesystem.close().unwrap();
}
