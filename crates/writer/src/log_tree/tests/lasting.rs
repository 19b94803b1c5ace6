//! Small cases of crash rules that random histories reach only rarely.

use super::{MIB, NEW, ROOT, made, open, write};
use crate::AllocateMode;
use crate::log_tree::Synced;
use crate::operations::{RenameMode, SetXattr};
use buttress_format::{ByteCount, FileOffset};
use buttress_lab::Fault;

/// The last commit has content where the file has a hole, so the log must contain a hole item.
#[test]
fn what_was_punched_out_stays_out() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let (punched, cut) = (
        filesystem.create(ROOT, b"punched", &NEW).unwrap(),
        filesystem.create(ROOT, b"cut", &NEW).unwrap(),
    );
    write(&filesystem, punched, b'a', 40_960);
    write(&filesystem, cut, b'a', 40_960);
    filesystem.commit().unwrap();
    let hole = FileOffset::new(8192)..FileOffset::new(16_384);
    filesystem
        .allocate(punched, hole, AllocateMode::PunchHole)
        .unwrap();
    assert_eq!(filesystem.log_tree().fsync(punched).unwrap(), Synced::Logged);
    // The file is cut and grows again. The content that was cut off must not return.
    filesystem.truncate(cut, ByteCount::new(4096)).unwrap();
    filesystem.truncate(cut, ByteCount::new(40_960)).unwrap();
    assert_eq!(filesystem.log_tree().fsync(cut).unwrap(), Synced::Logged);
    filesystem.abandon();

    let filesystem = open(&backends);
    let mut content = vec![0; 40_960];
    let read = filesystem
        .live()
        .read_at(punched, FileOffset::MIN, &mut content)
        .unwrap();
    let zeros = content.iter().filter(|byte| **byte == 0).count();
    assert_eq!((read, zeros), (40_960, 8192));
    let read = filesystem
        .live()
        .read_at(cut, FileOffset::MIN, &mut content)
        .unwrap();
    let zeros = content.iter().filter(|byte| **byte == 0).count();
    assert_eq!((read, zeros), (40_960, 40_960 - 4096));
    filesystem.close().unwrap();
}

/// A rename gave a name to another file. A log that removes the name from the old file must contain
/// the new one. The file name exists at every moment of the test.
#[test]
fn a_name_that_was_taken_over_is_always_there() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let old = filesystem.create(ROOT, b"name", &NEW).unwrap();
    let new = filesystem.create(ROOT, b"temporary", &NEW).unwrap();
    let other = filesystem.create(ROOT, b"other", &NEW).unwrap();
    write(&filesystem, old, b'o', 5000);
    write(&filesystem, new, b'n', 5000);
    filesystem.commit().unwrap();
    // The log contains the file that the next step of this test removes.
    write(&filesystem, old, b'p', 5000);
    assert_eq!(filesystem.log_tree().fsync(old).unwrap(), Synced::Logged);
    filesystem
        .rename(ROOT, b"temporary", ROOT, b"name", RenameMode::Replace)
        .unwrap();
    // A sync of another file must log the removal.
    write(&filesystem, other, b'q', 5000);
    assert_eq!(filesystem.log_tree().fsync(other).unwrap(), Synced::Logged);
    filesystem.abandon();

    let filesystem = open(&backends);
    let found = filesystem.live().lookup(ROOT, b"name").unwrap();
    assert!(found.is_some(), "the name is gone");
    let mut content = vec![0; 5000];
    filesystem
        .live()
        .read_at(new, FileOffset::MIN, &mut content)
        .unwrap();
    assert!(content.iter().all(|byte| *byte == b'n'));
    filesystem.close().unwrap();
}

/// A file with two names is removed, and another file has one of the names. A log with the second
/// file removes both names of the first file. After a crash, the first file must never exist with
/// only one of its names.
#[test]
fn deleted_file_loses_all_its_names_after_crash() {
    for first in [&b"one"[..], b"two"] {
        let backends = made(&[160 * MIB], None);
        let filesystem = open(&backends);
        let old = filesystem.create(ROOT, b"one", &NEW).unwrap();
        filesystem.link(old, ROOT, b"two").unwrap();
        filesystem.commit().unwrap();
        let second = if first == b"one" { &b"two"[..] } else { b"one" };
        for name in [first, second] {
            filesystem.unlink(ROOT, name).unwrap();
        }
        let new = filesystem.create(ROOT, b"two", &NEW).unwrap();
        assert_eq!(filesystem.log_tree().fsync(new).unwrap(), Synced::Logged);
        filesystem.abandon();

        let filesystem = open(&backends);
        assert!(filesystem.live().lookup(ROOT, b"two").unwrap().is_some());
        assert!(filesystem.live().lookup(ROOT, b"one").unwrap().is_none());
        filesystem.close().unwrap();
    }
}

/// Linux does not mount a volume whose log gives a new name an index that the last commit uses.
#[test]
fn the_index_of_a_name_that_was_removed_is_not_given_again() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let directory = filesystem.make_directory(ROOT, b"directory", &NEW).unwrap();
    for name in [&b"first"[..], b"last"] {
        filesystem.create(directory, name, &NEW).unwrap();
    }
    filesystem.commit().unwrap();
    let after = filesystem.live().next_index(directory).unwrap();
    drop(filesystem);
    // After the new opening, nothing about the directory is in memory.
    let filesystem = open(&backends);
    filesystem.unlink(directory, b"last").unwrap();
    assert_eq!(filesystem.live().next_index(directory).unwrap(), after);
    let new = filesystem.create(directory, b"new", &NEW).unwrap();
    assert_eq!(filesystem.live().next_index(directory).unwrap(), after + 1);
    assert_eq!(filesystem.log_tree().fsync(new).unwrap(), Synced::Logged);
    filesystem.abandon();
    let filesystem = open(&backends);
    let found = filesystem.live().lookup(directory, b"new").unwrap();
    assert_eq!(found.map(|entry| entry.target), Some(new));
    filesystem.abandon();
}

/// A crash does not restore a removed attribute that the last commit has.
#[test]
fn a_removed_attribute_is_not_back() {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    for name in [&b"user.kept"[..], b"user.removed"] {
        filesystem
            .set_xattr(file, name, b"value", SetXattr::CreateOrReplace)
            .unwrap();
    }
    filesystem.commit().unwrap();
    filesystem.remove_xattr(file, b"user.removed").unwrap();
    assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Logged);
    filesystem.abandon();

    let filesystem = open(&backends);
    assert_eq!(
        filesystem.live().xattr(file, b"user.kept").unwrap().as_deref(),
        Some(&b"value"[..])
    );
    assert_eq!(filesystem.live().xattr(file, b"user.removed").unwrap(), None);
    filesystem.close().unwrap();
}

/// The copies of the superblock do not name the log, so a commit writes them before the primary
/// superblock. In this test the power fails in each write of a commit, and tears the write.
#[test]
fn commit_that_is_cut_off_in_a_torn_write_keeps_what_was_synced() {
    for number in 0.. {
        let backends = made(&[160 * MIB], None);
        let filesystem = open(&backends);
        let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
        filesystem.commit().unwrap();
        write(&filesystem, file, b's', 40_960);
        assert_eq!(filesystem.log_tree().fsync(file).unwrap(), Synced::Logged);
        let torn = backends[0].request_counts().1 + number;
        backends[0].inject(Fault::TearWriteNumber {
            number: torn,
            kept_bytes: 512,
        });
        backends[0].inject(Fault::FailWritesFrom(torn + 1));
        let committed = filesystem.commit();
        filesystem.abandon();
        let is_cut_off = backends[0].struck() > 0;
        assert!(is_cut_off || committed.is_ok());
        backends[0].heal();

        let filesystem = open(&backends);
        let mut content = vec![0; 40_960];
        let read = filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap();
        assert!(read == 40_960 && content == vec![b's'; 40_960], "write {number}");
        filesystem.close().unwrap();
        if !is_cut_off {
            assert!(
                number >= 4,
                "blocks, a primary superblock and its copy, in {number} writes"
            );
            return;
        }
    }
}
