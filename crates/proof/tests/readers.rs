//! Tests of readers beside a writer: their view never changes, and exactly the space that they need
//! is kept.

use anyhow::Result;
use buttress::mkfs::Options;
use buttress::unstable::format::ErrorKind;
use buttress::unstable::format::block_group::Profile;
use buttress::unstable::fs::{Error, Filesystem};
use buttress::unstable::writer::WritableFilesystem;
use buttress::{
    AllocateMode, AttributeChanges, ByteCount, FileOffset, Location, NewInode, Progress, SetXattr,
    SubvolumeId,
};
use buttress_lab::gate::SetOnDrop;
use buttress_oracle::content::Random;
use buttress_proof::writing::fill::{FILE_BYTES, Filling, TOP, filler_bytes};
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing, open_for_writing_with_cache};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn an_old_state_stays_whole_through_a_thousand_commits() {
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = empty(&[72 << 20], &options).unwrap();
    let filesystem = open_for_writing(&base).unwrap();
    let files = Filling::Metadata.fill(&filesystem, "old", u64::MAX).unwrap();
    assert!(files > 1500, "only {files} files fit");
    // The volume is nearly full: an eighth is free.
    for number in 0..files / 8 {
        filesystem
            .unlink(TOP, &Filling::Metadata.name("old", number))
            .unwrap();
    }
    filesystem.commit().unwrap();
    let view = filesystem.view();
    let seen = describe(&view).unwrap();
    let file = NewInode::of_root(0o600);
    for round in 0..1000 {
        let name = format!("round-{}", round % 7);
        filesystem.create(TOP, name.as_bytes(), &file).unwrap();
        filesystem.commit().unwrap();
        filesystem.unlink(TOP, name.as_bytes()).unwrap();
    }
    // The test removes everything else; the removed space stays unavailable while the reader
    // exists.
    for number in files / 8..files {
        filesystem
            .unlink(TOP, &Filling::Metadata.name("old", number))
            .unwrap();
    }
    filesystem.commit().unwrap();
    let with_reader = Filling::Metadata.fill(&filesystem, "new", u64::MAX).unwrap();
    let refused = filesystem.create(TOP, b"one-more", &file).and_then(|location| {
        let value = vec![b'f'; filler_bytes(&filesystem)];
        filesystem.set_xattr(location, b"user.filler", &value, SetXattr::Create)
    });
    let error = refused.expect_err("the volume is full");
    assert_eq!(error.kind(), ErrorKind::Caller);
    assert!(error.to_string().contains("pinned by readers"), "{error}");
    assert_eq!(describe(&view).unwrap(), seen);
    drop(view);
    let without_reader = Filling::Metadata.fill(&filesystem, "newer", u64::MAX).unwrap();
    assert!(
        with_reader + without_reader > files * 8 / 10 && without_reader > files / 2,
        "{files} files at first, {with_reader} beside the reader, {without_reader} after it"
    );
    filesystem.commit().unwrap();
    drop(filesystem);
    open_checked(&base).unwrap();
}

/// Content that is written back and deleted within one transaction belongs to no commit. A view of
/// that transaction still reads the extent, so its place must not be reused while the view is held.
#[test]
fn a_view_keeps_content_deleted_within_its_transaction() {
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = empty(&[128 << 20], &options).unwrap();
    let filesystem = open_for_writing(&base).unwrap();
    let file = NewInode::of_root(0o600);
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at % 251) as u8).collect();
    let short = filesystem.create(TOP, b"short-lived", &file).unwrap();
    filesystem.write_at(short, FileOffset::MIN, &content).unwrap();
    filesystem.writeback().write_all().unwrap();
    let view = filesystem.view();
    filesystem.unlink(TOP, b"short-lived").unwrap();
    // The commit settles the fate of the extent; then all free space is overwritten.
    filesystem.commit().unwrap();
    let with_view = Filling::Data.fill(&filesystem, "after", u64::MAX).unwrap();
    filesystem.commit().unwrap();
    let seen = view.open_file(short).unwrap();
    assert_eq!(seen.size(), ByteCount::of(content.len()));
    let mut found = vec![0; content.len()];
    let count = seen.read_at(FileOffset::MIN, &mut found).unwrap();
    assert!(
        count == content.len() && found == content,
        "its place was used again"
    );
    drop((seen, view));
    // Without the view, the space of the view's extent is available.
    let without_view = Filling::Data.fill(&filesystem, "later", u64::MAX).unwrap();
    assert!(
        with_view > 100 && without_view >= 1,
        "{with_view} files beside the view, {without_view} more without it"
    );
    filesystem.commit().unwrap();
    drop(filesystem);
    open_checked(&base).unwrap();
}

#[test]
fn readers_see_whole_states_only() {
    let base = empty(&[256 << 20], &Options::default()).unwrap();
    let filesystem = open_for_writing(&base).unwrap();
    let (left, right) = (b"left".as_slice(), b"right".as_slice());
    let directory = NewInode::of_root(0o755);
    let left = filesystem.make_directory(TOP, left, &directory).unwrap();
    let right = filesystem.make_directory(TOP, right, &directory).unwrap();
    let file = NewInode::of_root(0o600);
    for number in 0..2000 {
        filesystem
            .create(left, format!("file-{number}").as_bytes(), &file)
            .unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A rename is one operation, so a lookup always finds the file in exactly one of the two
        // directories.
        let writer = scope.spawn(|| {
            let _over = SetOnDrop::new(&done);
            for round in 0..20_u32 {
                let (from, to) = if round % 2 == 0 {
                    (left, right)
                } else {
                    (right, left)
                };
                for number in 0..2000 {
                    let name = format!("file-{number}");
                    let mode = buttress::RenameMode::NoReplace;
                    filesystem
                        .rename(from, name.as_bytes(), to, name.as_bytes(), mode)
                        .unwrap();
                }
                filesystem.commit().unwrap();
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut views = 0_u64;
                    while !done.load(Ordering::Relaxed) || views == 0 {
                        let view = filesystem.view();
                        let count = |directory| {
                            let entries: Result<Vec<_>, _> = view.read_dir(directory).unwrap().collect();
                            entries.unwrap().len()
                        };
                        assert_eq!(count(left) + count(right), 2000);
                        views += 1;
                    }
                    views
                })
            })
            .collect();
        writer.join().unwrap();
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    drop(filesystem);
    open_checked(&base).unwrap();
}

/// A writer's expected content of its subvolume, by name.
type Expected = BTreeMap<Vec<u8>, Vec<u8>>;

/// Creates, changes, renames and removes files of one subvolume.
fn write_randomly(filesystem: &WritableFilesystem, root: Location, seed: u64) -> Result<Expected> {
    let mut random = Random::new(seed);
    let mut files = Expected::new();
    for number in 0..2500_u64 {
        let name = format!("{seed}-{}", random.below(400)).into_bytes();
        let there = files.contains_key(&name);
        match random.below(4) {
            0 if there => {
                filesystem.unlink(root, &name)?;
                files.remove(&name);
            }
            1 if there => {
                let other = format!("{seed}-renamed-{number}").into_bytes();
                let mode = buttress::RenameMode::NoReplace;
                filesystem.rename(root, &name, root, &other, mode)?;
                let content = files.remove(&name).unwrap_or_default();
                files.insert(other, content);
            }
            _ if there => {
                let file = filesystem.live().lookup(root, &name)?.unwrap().target;
                filesystem.set_xattr(
                    file,
                    b"user.number",
                    &number.to_le_bytes(),
                    SetXattr::CreateOrReplace,
                )?;
            }
            _ => {
                let file = filesystem.create(root, &name, &NewInode::of_root(0o600))?;
                let content = vec![number as u8; random.below(9000) as usize];
                filesystem.write_at(file, FileOffset::MIN, &content)?;
                files.insert(name, content);
            }
        }
    }
    Ok(files)
}

fn files_of(filesystem: &Filesystem, root: Location) -> Result<Expected> {
    let mut files = Expected::new();
    for entry in filesystem.read_dir(root)? {
        let entry = entry?;
        let file = filesystem.open_file(entry.target)?;
        let mut content = vec![0; file.size().get() as usize];
        file.read_at(FileOffset::MIN, &mut content)?;
        files.insert(entry.name.to_vec(), content);
    }
    Ok(files)
}

/// A commit releases the edit lock during its reads, which are frequent with a very small cache.
/// The edits of a concurrent operation are completely in this commit, or completely in the next
/// one.
#[test]
fn writers_go_on_beside_commits_that_read() {
    let base = empty(&[512 << 20], &Options::default()).unwrap();
    let first = buttress_oracle::seeds::seed("readers", "BUTTRESS_SEED", 0);
    for cache in [1 << 20, 16 << 10] {
        let filesystem = open_for_writing_with_cache(&base, ByteCount::new(cache)).unwrap();
        let name = |seed: u64| format!("writer-{seed}-{cache}").into_bytes();
        let roots: Vec<Location> = (0..3)
            .map(|seed| Location::root_of(filesystem.subvolumes().create(TOP, &name(seed)).unwrap()))
            .collect();
        let done = AtomicBool::new(false);
        let expected: Vec<Expected> = std::thread::scope(|scope| {
            let over = SetOnDrop::new(&done);
            let writers: Vec<_> = (first..)
                .zip(&roots)
                .map(|(seed, root)| {
                    let filesystem = &filesystem;
                    scope.spawn(move || write_randomly(filesystem, *root, seed).unwrap())
                })
                .collect();
            // Snapshots share blocks, and are deleted again, the older one first.
            let committer = scope.spawn(|| {
                let mut rounds = 0_usize;
                while !done.load(Ordering::Relaxed) || rounds < 3 {
                    let source = roots[rounds % roots.len()].subvolume;
                    let kept = format!("snapshot-{cache}-{rounds}");
                    let made = filesystem
                        .subvolumes()
                        .snapshot(source, TOP, kept.as_bytes(), true)
                        .unwrap();
                    filesystem.commit().unwrap();
                    if !rounds.is_multiple_of(4) {
                        filesystem.subvolumes().delete(made).unwrap();
                        filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
                    }
                    rounds += 1;
                }
                rounds
            });
            let expected = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            drop(over);
            assert!(committer.join().unwrap() >= 3);
            expected
        });
        filesystem.commit().unwrap();
        drop(filesystem);
        let found = open_checked(&base).unwrap();
        for (root, expected) in roots.iter().zip(&expected) {
            assert!(
                files_of(&found, *root).unwrap() == *expected,
                "cache of {cache} bytes"
            );
        }
    }
}

/// The test reads more inodes than the cache holds. A read edits nothing, even while inodes are
/// pending for write-back.
#[test]
fn looks_at_very_many_inodes_edit_nothing() {
    const COUNT: usize = 65_600;
    let options = Options {
        node_bytes: Some(4096),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = empty(&[768 << 20], &options).unwrap();
    let filesystem = open_for_writing(&base).unwrap();
    let files: Vec<Location> = (0..COUNT)
        .map(|number| {
            let name = format!("file-{number}");
            filesystem
                .create(TOP, name.as_bytes(), &NewInode::of_root(0o600))
                .unwrap()
        })
        .collect();
    filesystem.commit().unwrap();
    // From now on every block on the path is shared, and a copy of a block looks up its extent.
    filesystem
        .subvolumes()
        .snapshot(SubvolumeId::TOP_LEVEL, TOP, b"snapshot", false)
        .unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = open_for_writing_with_cache(&base, ByteCount::new(16 << 20)).unwrap();
    for file in files.iter().step_by(10_000) {
        let changes = AttributeChanges {
            mode: Some(0o640),
            ..AttributeChanges::default()
        };
        filesystem.set_attributes(*file, &changes).unwrap();
    }
    for file in &files {
        assert_eq!(filesystem.contents().size_of(*file).unwrap(), 0);
    }
    filesystem.commit().unwrap();
    drop(filesystem);
    open_checked(&base).unwrap();
}

/// An operation that changes a file's content must check at each stage whether the file still
/// exists.
#[test]
fn files_that_go_while_their_content_is_changed_stop_nothing() {
    let base = empty(&[512 << 20], &Options::default()).unwrap();
    let filesystem = open_for_writing(&base).unwrap();
    let shared = filesystem
        .create(TOP, b"shared", &NewInode::of_root(0o600))
        .unwrap();
    for part in 0..64 {
        filesystem
            .write_at(shared, FileOffset::new(part << 13), &[part as u8; 4096])
            .unwrap();
    }
    filesystem.commit().unwrap();
    let allocate = |file, part: u64| {
        let range = FileOffset::new(part << 16)..FileOffset::new((part << 16) + 4096);
        filesystem.allocate(file, range, AllocateMode::Allocate)
    };
    let clone = |file, part: u64| {
        let range = FileOffset::MIN..FileOffset::new((63 << 13) + 4096);
        filesystem.clone_range(shared, range, file, FileOffset::new(part << 20))
    };
    let truncate = |file, part: u64| {
        filesystem.write_at(file, FileOffset::new(part << 16), &[1; 40_000])?;
        filesystem.writeback().write_file(file)?;
        filesystem.truncate(file, ByteCount::new(part))
    };
    let calls: [&(dyn Fn(Location, u64) -> Result<(), Error> + Sync); 3] = [&allocate, &clone, &truncate];
    for round in 0..240_u64 {
        let name = format!("file-{round}").into_bytes();
        let file = filesystem.create(TOP, &name, &NewInode::of_root(0o600)).unwrap();
        let call = calls[(round % 3) as usize];
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| (0..20).try_for_each(|part| call(file, part)));
            std::thread::sleep(std::time::Duration::from_micros(round * 37 % 1000));
            filesystem.unlink(TOP, &name).unwrap();
            match caller.join().unwrap() {
                Ok(()) | Err(Error::InodeNotFound { .. }) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        });
    }
    filesystem.commit().unwrap();
    drop(filesystem);
    open_checked(&base).unwrap();
}
