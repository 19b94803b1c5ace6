//! Tests of directories with many new names, whose inodes are read and logged together.

use super::{MIB, NEW, ROOT, made, open, write};
use crate::log_tree::Synced;
use crate::operations::SetXattr;
use buttress_engine::block_groups::Purpose;
use buttress_format::FileOffset;
use buttress_fs::Location;

/// New inodes and names of all kinds survive a crash: files with attributes or many extents,
/// directories, and second names of old files.
#[test]
fn a_row_of_new_names_of_all_kinds_is_there_after_a_crash() {
    let backends = made(&[256 * MIB], None);
    let filesystem = open(&backends);
    let (directory, elsewhere) = (
        filesystem.make_directory(ROOT, b"directory", &NEW).unwrap(),
        filesystem.make_directory(ROOT, b"elsewhere", &NEW).unwrap(),
    );
    let name = |kind: &str, number: u64| format!("{kind}-{number:03}").into_bytes();
    let old: Vec<Location> = (0..60)
        .map(|number| filesystem.create(elsewhere, &name("old", number), &NEW).unwrap())
        .collect();
    filesystem.commit().unwrap();
    let mut expected = Vec::new();
    for round in 0..4_u64 {
        for number in round * 30..round * 30 + 30 {
            let file = filesystem.create(directory, &name("file", number), &NEW).unwrap();
            expected.push((name("file", number), file));
            match number % 6 {
                0 => {
                    for attribute in 0..=number % 40 {
                        let key = format!("user.attribute-{attribute}");
                        let value = vec![b'v'; 40];
                        filesystem
                            .set_xattr(file, key.as_bytes(), &value, SetXattr::CreateOrReplace)
                            .unwrap();
                    }
                }
                1 => {
                    // In this test, many items follow the inode's names.
                    for extent in 0..30 {
                        let offset = FileOffset::new(extent * 8192);
                        filesystem.write_at(file, offset, &[b'e'; 4096]).unwrap();
                    }
                    filesystem.log_tree().fsync(file).unwrap();
                }
                2 => {
                    let made = filesystem
                        .make_directory(directory, &name("made", number), &NEW)
                        .unwrap();
                    expected.push((name("made", number), made));
                    for held in 0..number % 30 {
                        filesystem.create(made, &name("held", held), &NEW).unwrap();
                    }
                }
                3 => {
                    let linked = old[usize::try_from(59 - number / 2).unwrap()];
                    filesystem
                        .link(linked, directory, &name("linked", number))
                        .unwrap();
                    expected.push((name("linked", number), linked));
                }
                4 => {
                    // The inodes of this step have numbers between those of the directory's other
                    // inodes.
                    filesystem
                        .create(elsewhere, &name("other", number), &NEW)
                        .unwrap();
                    filesystem.link(file, directory, &name("second", number)).unwrap();
                    expected.push((name("second", number), file));
                }
                _ => write(&filesystem, file, b'x', 5000),
            }
        }
        assert_eq!(filesystem.log_tree().fsync(directory).unwrap(), Synced::Logged);
    }
    filesystem.abandon();

    let filesystem = open(&backends);
    for (name, inode) in &expected {
        let found = filesystem.live().lookup(directory, name).unwrap();
        assert_eq!(
            found.map(|entry| entry.target),
            Some(*inode),
            "{}",
            name.escape_ascii()
        );
    }
    for number in (0..120_u64).step_by(6) {
        let file = expected
            .iter()
            .find(|(known, _)| *known == name("file", number))
            .unwrap()
            .1;
        let attributes = filesystem.live().xattrs(file).unwrap();
        assert_eq!(attributes.len() as u64, number % 40 + 1, "file {number}");
    }
    filesystem.close().unwrap();
}

/// On devices that do not spin, a log reuses addresses of earlier logs: syncs use little more space
/// than the last log.
#[test]
fn logs_reuse_addresses_of_earlier_logs() {
    let backends = made(&[512 * MIB], None);
    let filesystem = open(&backends);
    let directory = filesystem.make_directory(ROOT, b"directory", &NEW).unwrap();
    filesystem.commit().unwrap();
    let pinned = || {
        let handle = filesystem.start_reading();
        let room = handle.core.groups.room(Purpose::Metadata);
        room.pinned_bytes / handle.core.node_bytes().get()
    };
    let before = (pinned(), filesystem.log_tree().statistics().blocks);
    for number in 0..4000 {
        let name = format!("file-{number}");
        filesystem.create(directory, name.as_bytes(), &NEW).unwrap();
        if number % 100 == 99 {
            assert_eq!(filesystem.log_tree().fsync(directory).unwrap(), Synced::Logged);
        }
    }
    let (taken, written) = (
        pinned() - before.0,
        filesystem.log_tree().statistics().blocks - before.1,
    );
    assert!(written > 200 && taken * 2 < written, "{taken} of {written}");
    filesystem.abandon();
}
