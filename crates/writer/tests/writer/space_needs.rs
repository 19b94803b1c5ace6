//! Every operation, in trees of growing height: none takes more nodes than its need, and no commit
//! more than was reserved.
//!
//! In builds with debug assertions, the engine compares these numbers at the end of each edit and
//! of each commit. The volume has the smallest node size, so few files make high trees. Tests of
//! the engine compute the heights that no volume of these tests reaches (`worst_case`).

use crate::live::identity;
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, SubvolumeId};
use buttress_fs::{Location, OpenOptions, Progress};
use buttress_mkfs as mkfs;
use buttress_writer::operations::{AttributeChanges, NewFile, NewInode, RenameMode, SetXattr};
use buttress_writer::{AllocateMode, WritableFilesystem, WriteOptions};
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const SECTOR: u64 = 4096;

fn new_volume() -> WritableFilesystem {
    let memory: Arc<dyn Backend> = Arc::new(MemoryBackend::new("memory", vec![0; 700 << 20]));
    let device = || Device::with_backend(Arc::clone(&memory), Engine::Inline);
    let options = mkfs::Options {
        node_bytes: Some(4096),
        ..mkfs::Options::default()
    };
    mkfs::make(&[device()], &options, &identity()).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    WritableFilesystem::new(filesystem, WriteOptions::default()).unwrap()
}

/// Makes a directory with `files` files, whose name hashes are spread over all its leaves.
fn fill(filesystem: &WritableFilesystem, files: u64) -> Location {
    let directory = NewInode::of_root(0o755);
    let directory = filesystem.make_directory(ROOT, b"filled", &directory).unwrap();
    let new = NewInode::of_root(0o644);
    for number in 0..files {
        let name = format!("{}-{number}", "n".repeat(200));
        filesystem.create(directory, name.as_bytes(), &new).unwrap();
    }
    directory
}

fn names_and_attributes(filesystem: &WritableFilesystem, directory: Location) {
    let new = NewInode::of_root(0o644);
    let create = |name: &[u8]| filesystem.create(directory, name, &new).unwrap();
    let (one, two) = (create(b"one"), create(b"two"));
    filesystem
        .make_symlink(directory, b"symlink", &new, &[b't'; 1000])
        .unwrap();
    for number in 0..30 {
        let name = format!("link-{number}-{}", "l".repeat(200));
        filesystem.link(one, directory, name.as_bytes()).unwrap();
    }
    for number in 0..20 {
        let name = format!("user.{number}");
        filesystem
            .set_xattr(two, name.as_bytes(), &[7; 900], SetXattr::default())
            .unwrap();
    }
    filesystem.remove_xattr(two, b"user.3").unwrap();
    let changes = AttributeChanges {
        mode: Some(0o600),
        ..AttributeChanges::default()
    };
    filesystem.set_attributes(one, &changes).unwrap();
    filesystem.commit().unwrap();
    let below = filesystem
        .make_directory(directory, b"below", &NewInode::of_root(0o755))
        .unwrap();
    let rename =
        |from, old: &[u8], to, new: &[u8], mode| filesystem.rename(from, old, to, new, mode).unwrap();
    rename(directory, b"one", below, b"moved", RenameMode::NoReplace);
    rename(below, b"moved", directory, b"two", RenameMode::Exchange);
    create(b"three");
    rename(directory, b"three", below, b"moved", RenameMode::Replace);
    rename(below, b"moved", directory, b"symlink", RenameMode::Whiteout(new));
    filesystem.unlink(below, b"moved").unwrap();
    filesystem.remove_directory(directory, b"below").unwrap();
    for number in 0..30 {
        let name = format!("link-{number}-{}", "l".repeat(200));
        filesystem.unlink(directory, name.as_bytes()).unwrap();
    }
    filesystem.unlink(directory, b"two").unwrap();
    filesystem.unlink(directory, b"symlink").unwrap();
}

fn content(filesystem: &WritableFilesystem, directory: Location) {
    let new = NewInode::of_root(0o644);
    let file = filesystem.create(directory, b"content", &new).unwrap();
    let other = filesystem.create(directory, b"other", &new).unwrap();
    let range = |from: u64, to: u64| FileOffset::new(from * SECTOR)..FileOffset::new(to * SECTOR);
    filesystem
        .allocate(file, range(0, 400), AllocateMode::Allocate)
        .unwrap();
    for number in 0..200_u64 {
        filesystem
            .write_at(file, FileOffset::new(number * 2 * SECTOR), &[1; 4096])
            .unwrap();
    }
    filesystem.writeback().write_all().unwrap();
    for number in 0..200_u64 {
        let at = number * 3;
        filesystem
            .allocate(file, range(at, at + 1), AllocateMode::PunchHole)
            .unwrap();
    }
    filesystem
        .clone_range(file, range(0, 300), other, FileOffset::MIN)
        .unwrap();
    filesystem.commit().unwrap();
    filesystem
        .allocate(file, range(10, 90), AllocateMode::ZeroRange)
        .unwrap();
    filesystem.truncate(other, ByteCount::new(77_777)).unwrap();
    filesystem.truncate(file, ByteCount::ZERO).unwrap();
    filesystem.unlink(directory, b"content").unwrap();
    filesystem.unlink(directory, b"other").unwrap();
}

fn many_small_files(filesystem: &WritableFilesystem, _: Location) {
    let new = NewInode::of_root(0o644);
    let subvolume = filesystem.subvolumes().begin().unwrap();
    filesystem.subvolumes().defer_names(subvolume).unwrap();
    let directory = Location::root_of(subvolume);
    let names: Vec<String> = (0..200).map(|number| format!("many-{number}")).collect();
    let mut contents = vec![vec![3; 3000]; names.len()];
    let mut files: Vec<NewFile<'_>> = names
        .iter()
        .zip(&mut contents)
        .map(|(name, content)| NewFile {
            directory,
            name: name.as_bytes(),
            attributes: AttributeChanges::default(),
            content,
            encoded: &[],
        })
        .collect();
    filesystem.create_many(&new, &mut files).unwrap();
    filesystem.writeback().write_all().unwrap();
    assert!(filesystem.subvolumes().put_names(subvolume).unwrap().is_none());
    filesystem.subvolumes().discard(subvolume).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
}

fn subvolumes(filesystem: &WritableFilesystem, directory: Location) {
    let made = filesystem.subvolumes().create(directory, b"subvolume").unwrap();
    let snapshot = filesystem
        .subvolumes()
        .snapshot(SubvolumeId::TOP_LEVEL, directory, b"snapshot", false)
        .unwrap();
    filesystem.commit().unwrap();
    // In this edit, each changed block of a shared tree is copied, and its children get one more
    // reference.
    filesystem
        .create(
            Location::root_of(snapshot),
            b"in-snapshot",
            &NewInode::of_root(0o600),
        )
        .unwrap();
    filesystem
        .create(ROOT, b"beside-snapshot", &NewInode::of_root(0o600))
        .unwrap();
    filesystem.commit().unwrap();
    filesystem.subvolumes().set_default(snapshot).unwrap();
    filesystem
        .subvolumes()
        .set_default(SubvolumeId::TOP_LEVEL)
        .unwrap();
    filesystem.unlink(ROOT, b"beside-snapshot").unwrap();
    filesystem.subvolumes().delete(made).unwrap();
    filesystem.subvolumes().delete(snapshot).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
}

#[test]
fn no_operation_takes_more_nodes_than_it_asked_for() {
    for files in [0, 100, 3000, 60_000] {
        let filesystem = new_volume();
        let directory = fill(&filesystem, files);
        for operations in [names_and_attributes, content, many_small_files, subvolumes] {
            operations(&filesystem, directory);
            filesystem.commit().unwrap();
        }
        filesystem.close().unwrap();
    }
}
