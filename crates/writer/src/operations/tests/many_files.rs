//! Tests of files made together: they equal files made one by one, and an error leaves none of
//! them.

use super::volume::Image;
use crate::WritableFilesystem;
use crate::operations::{AttributeChanges, FinishedSubvolume, NewFile, NewInode};
use buttress_format::{ByteCount, FileKind, FileOffset, SubvolumeId, Timestamp};
use buttress_fs::error::Error;
use buttress_fs::location::Location;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const NEW: NewInode = NewInode::of_root(0o600);

/// Returns directory, name, attributes and content of the files: some inline, some in extents, one
/// empty.
fn files(directories: [Location; 2]) -> Vec<(Location, Vec<u8>, AttributeChanges, Vec<u8>)> {
    let time = |seconds| {
        Some(Timestamp {
            seconds,
            nanoseconds: 1,
        })
    };
    (0_usize..200)
        .map(|number| {
            let length = [0, 1, 900, 2048, 2049, 5000, 70_000][number % 7];
            let attributes = AttributeChanges {
                mode: (!number.is_multiple_of(3)).then_some(0o640),
                uid: Some(u32::try_from(number).unwrap()),
                accessed: time(1),
                modified: time(2),
                changed: time(3),
                ..AttributeChanges::default()
            };
            let name = format!("file {number}").into_bytes();
            let byte = u8::try_from(number % 251).unwrap();
            (directories[number % 2], name, attributes, vec![byte; length])
        })
        .collect()
}

fn begin(filesystem: &WritableFilesystem) -> (SubvolumeId, [Location; 2]) {
    let id = filesystem.subvolumes().begin().unwrap();
    filesystem.subvolumes().defer_names(id).unwrap();
    let root = Location::root_of(id);
    let below = filesystem.make_directory(root, b"below", &NEW).unwrap();
    (id, [root, below])
}

fn finish(filesystem: &WritableFilesystem, id: SubvolumeId, name: &[u8]) {
    let finished = FinishedSubvolume {
        id,
        directory: TOP,
        name: name.to_vec(),
        parent: None,
        received: None,
    };
    filesystem.subvolumes().finish(&[finished]).unwrap();
}

/// Returns names, indexes, inode numbers, attributes and contents of all files in two directories.
fn all_of(filesystem: &WritableFilesystem, directories: [Location; 2]) -> Vec<String> {
    let mut all = Vec::new();
    for directory in directories {
        let (item, _) = filesystem.live().inode(directory).unwrap();
        all.push(format!("{} {} {}", directory.inode, item.size, item.sequence));
        for entry in filesystem.live().list(directory, 0, usize::MAX).unwrap() {
            let (item, _) = filesystem.live().inode(entry.target).unwrap();
            let mut content = vec![0; 80_000];
            let read = match entry.kind {
                FileKind::Directory => 0,
                _ => filesystem
                    .live()
                    .read_at(entry.target, FileOffset::MIN, &mut content)
                    .unwrap(),
            };
            content.truncate(read);
            let name = entry.name.escape_ascii();
            let times = [item.atime, item.mtime, item.ctime].map(|time| time.seconds);
            let times = times.iter().filter(|seconds| **seconds < 10);
            all.push(format!(
                "{name} {} {:o} {} {} {} {} {:?} {content:?}",
                entry.target.inode,
                item.mode,
                item.uid,
                item.nlink,
                item.size,
                item.sequence,
                times.collect::<Vec<_>>(),
            ));
        }
    }
    all
}

#[test]
fn files_made_together_equal_files_made_one_by_one() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let mut found = Vec::new();
    for together in [1_usize, 64, 200] {
        let (id, directories) = begin(&filesystem);
        let mut wanted = files(directories);
        for part in wanted.chunks_mut(together) {
            if let [(directory, name, attributes, content)] = part {
                let made = filesystem.create_whole(*directory, name, &NEW, attributes, content);
                made.unwrap();
                continue;
            }
            let mut part: Vec<NewFile<'_>> = part
                .iter_mut()
                .map(|(directory, name, attributes, content)| NewFile {
                    encoded: &[],
                    directory: *directory,
                    name,
                    attributes: *attributes,
                    content,
                })
                .collect();
            let made = filesystem.create_many(&NEW, &mut part).unwrap();
            for (file, location) in part.iter().zip(made) {
                let entry = filesystem.live().lookup(file.directory, file.name).unwrap();
                assert_eq!(entry.map(|entry| entry.target), Some(location));
            }
        }
        assert!(wanted.iter().all(|(_, _, _, content)| content.is_empty()));
        finish(&filesystem, id, format!("by {together}").as_bytes());
        found.push(all_of(&filesystem, directories));
    }
    assert_eq!(found[0].len(), 203);
    assert!(found[0] == found[1] && found[0] == found[2]);
    image.commit_and_check(&filesystem);
}

#[test]
fn of_files_that_cannot_all_be_made_none_is() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let (id, [root, below]) = begin(&filesystem);
    filesystem.create(root, b"there", &NEW).unwrap();
    let try_to_make = |directories: [Location; 2], names: [&[u8]; 2], length: usize| {
        let mut contents = [vec![1; 10], vec![2; length]];
        let [one, other] = &mut contents;
        let mut files = [(directories[0], names[0], one), (directories[1], names[1], other)].map(
            |(directory, name, content)| NewFile {
                encoded: &[],
                directory,
                name,
                attributes: AttributeChanges::default(),
                content,
            },
        );
        let made = filesystem.create_many(&NEW, &mut files);
        assert_eq!([contents[0].len(), contents[1].len()], [10, length]);
        made.unwrap_err()
    };
    for (directories, names) in [
        // One name is already deferred, and another name occurs twice.
        ([below, root], [&b"new"[..], b"there"]),
        ([below, below], [b"new", b"new"]),
    ] {
        let error = try_to_make(directories, names, 10);
        assert!(matches!(error, Error::Exists { .. }), "{error:?}");
    }
    // The content exceeds the free space, and the directory's names are not deferred.
    let error = try_to_make([below, below], [b"new", b"large"], 600 << 20);
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    let error = try_to_make([below, TOP], [b"new", b"elsewhere"], 10);
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    for directory in [below, TOP] {
        assert_eq!(filesystem.live().list(directory, 0, usize::MAX).unwrap(), []);
    }
    finish(&filesystem, id, b"whole");
    let used = filesystem.data().delalloc_bytes();
    assert_eq!(ByteCount::new(used), ByteCount::ZERO);
    image.commit_and_check(&filesystem);
}
