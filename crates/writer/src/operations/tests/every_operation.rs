//! Tests of each operation alone: its effect, its errors, and the consistency of the volume
//! afterwards.

use super::volume::{Image, ROOT};
use crate::WritableFilesystem;
use crate::operations::{AttributeChanges, NewInode, NodeKind, RenameMode, SetXattr};
use buttress_format::{FileKind, FileOffset, Timestamp};
use buttress_fs::error::Error;
use buttress_fs::inode::{DeviceNumber, FileAttributes};
use buttress_fs::location::Location;

const NEW: NewInode = NewInode {
    mode: 0o666,
    umask: 0o022,
    uid: 1000,
    gid: 100,
};

fn names(filesystem: &WritableFilesystem, directory: Location) -> Vec<String> {
    let view = filesystem.view();
    let entries = view.read_dir(directory).unwrap();
    entries
        .map(|entry| String::from_utf8(entry.unwrap().name).unwrap())
        .collect()
}

#[test]
fn every_kind_of_inode_is_made_and_removed() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let directory = filesystem
        .make_directory(ROOT, b"directory", &NewInode { mode: 0o777, ..NEW })
        .unwrap();
    let file = filesystem.create(directory, b"file", &NEW).unwrap();
    let link = filesystem
        .make_symlink(directory, b"link", &NEW, b"file")
        .unwrap();
    let device = NodeKind::BlockDevice(DeviceNumber {
        major: 259,
        minor: 0xabcde,
    });
    let node = filesystem.make_node(directory, b"node", &NEW, device).unwrap();
    filesystem
        .make_node(directory, b"fifo", &NEW, NodeKind::Fifo)
        .unwrap();
    filesystem
        .make_node(directory, b"socket", &NEW, NodeKind::Socket)
        .unwrap();
    image.commit_and_check(&filesystem);

    let view = filesystem.view();
    let metadata = view.metadata(file).unwrap();
    assert_eq!(
        (metadata.mode, metadata.uid, metadata.gid, metadata.nlink),
        (0o100_644, 1000, 100, 1)
    );
    assert_eq!(view.read_link(link).unwrap(), b"file");
    assert_eq!(
        view.metadata(node).unwrap().device,
        Some(DeviceNumber {
            major: 259,
            minor: 0xabcde
        })
    );
    assert_eq!(
        view.metadata(directory).unwrap().size.get(),
        2 * (4 + 4 + 4 + 4 + 6)
    );
    assert_eq!(
        names(&filesystem, directory),
        ["file", "link", "node", "fifo", "socket"]
    );
    drop(view);

    assert!(matches!(
        filesystem.create(directory, b"file", &NEW),
        Err(Error::Exists { .. })
    ));
    assert!(matches!(
        filesystem.create(file, b"file", &NEW),
        Err(Error::NotADirectory { .. })
    ));
    assert!(matches!(
        filesystem.create(directory, &[b'n'; 256], &NEW),
        Err(Error::NameTooLong { .. })
    ));
    assert!(matches!(
        filesystem.unlink(ROOT, b"directory"),
        Err(Error::IsADirectory { .. })
    ));
    assert!(matches!(
        filesystem.remove_directory(ROOT, b"directory"),
        Err(Error::NotEmpty { .. })
    ));
    assert!(matches!(
        filesystem.remove_directory(directory, b"file"),
        Err(Error::NotADirectory { .. })
    ));
    assert!(matches!(
        filesystem.unlink(directory, b"none"),
        Err(Error::NotFound { .. })
    ));

    for name in [&b"file"[..], b"link", b"node", b"fifo", b"socket"] {
        filesystem.unlink(directory, name).unwrap();
    }
    filesystem.remove_directory(ROOT, b"directory").unwrap();
    image.commit_and_check(&filesystem);
    assert!(names(&filesystem, ROOT).is_empty());
    assert!(matches!(
        filesystem.view().metadata(file),
        Err(Error::InodeNotFound { .. })
    ));
}

#[test]
fn names_are_added_moved_and_exchanged() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let one = filesystem.make_directory(ROOT, b"one", &NEW).unwrap();
    let two = filesystem.make_directory(ROOT, b"two", &NEW).unwrap();
    let file = filesystem.create(one, b"file", &NEW).unwrap();
    filesystem.link(file, one, b"second").unwrap();
    filesystem.link(file, two, b"third").unwrap();
    assert_eq!(filesystem.view().metadata(file).unwrap().nlink, 3);
    assert!(matches!(
        filesystem.link(one, two, b"one"),
        Err(Error::NotPermitted { .. })
    ));
    image.commit_and_check(&filesystem);

    let rename = |from, old: &[u8], to, new: &[u8], mode| filesystem.rename(from, old, to, new, mode);
    let replace = RenameMode::Replace;
    rename(one, b"file", two, b"moved", replace).unwrap();
    rename(one, b"second", two, b"third", replace).unwrap();
    assert_eq!(
        names(&filesystem, two),
        ["third", "moved"],
        "two names of one inode stay"
    );
    assert_eq!(names(&filesystem, one), ["second"]);
    assert!(matches!(
        rename(two, b"moved", one, b"second", RenameMode::NoReplace),
        Err(Error::Exists { .. })
    ));
    assert!(matches!(
        rename(ROOT, b"one", two, b"moved", replace),
        Err(Error::NotADirectory { .. })
    ));
    assert!(matches!(
        rename(two, b"moved", ROOT, b"one", replace),
        Err(Error::IsADirectory { .. })
    ));
    assert!(matches!(
        rename(ROOT, b"one", ROOT, b"two", replace),
        Err(Error::NotEmpty { .. })
    ));
    assert!(matches!(
        rename(ROOT, b"one", one, b"self", replace),
        Err(Error::Invalid { .. })
    ));
    rename(ROOT, b"one", two, b"inner", RenameMode::NoReplace).unwrap();
    assert!(matches!(
        rename(ROOT, b"two", one, b"deep", replace),
        Err(Error::Invalid { .. })
    ));
    image.commit_and_check(&filesystem);

    let other = filesystem.create(ROOT, b"other", &NEW).unwrap();
    rename(ROOT, b"other", two, b"inner", RenameMode::Exchange).unwrap();
    assert_eq!(
        filesystem.view().lookup(two, b"inner").unwrap().unwrap().target,
        other
    );
    assert_eq!(
        filesystem.view().lookup(ROOT, b"other").unwrap().unwrap().target,
        one
    );
    image.commit_and_check(&filesystem);

    rename(
        two,
        b"inner",
        ROOT,
        b"kept",
        RenameMode::Whiteout(NewInode::of_root(0)),
    )
    .unwrap();
    let whiteout = filesystem.view().lookup(two, b"inner").unwrap().unwrap();
    assert_eq!(whiteout.kind, FileKind::CharacterDevice);
    filesystem.create(ROOT, b"over", &NEW).unwrap();
    rename(ROOT, b"kept", ROOT, b"over", replace).unwrap();
    image.commit_and_check(&filesystem);
    assert_eq!(names(&filesystem, ROOT), ["two", "other", "over"]);
}

#[test]
fn attributes_and_flags() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let file = filesystem
        .create(ROOT, b"file", &NewInode { mode: 0o6755, ..NEW })
        .unwrap();
    let time = Timestamp {
        seconds: -7,
        nanoseconds: 9,
    };
    let changes = AttributeChanges {
        uid: Some(7),
        modified: Some(time),
        ..AttributeChanges::default()
    };
    filesystem.set_attributes(file, &changes).unwrap();
    let metadata = filesystem.view().metadata(file).unwrap();
    assert_eq!(
        (metadata.mode, metadata.uid, metadata.gid, metadata.modified),
        (0o100_755, 7, 100, time)
    );
    let nonsense = AttributeChanges {
        mode: Some(0o10_000),
        ..AttributeChanges::default()
    };
    assert!(matches!(
        filesystem.set_attributes(file, &nonsense),
        Err(Error::Invalid { .. })
    ));

    filesystem
        .set_flags(file, FileAttributes::COMPRESS | FileAttributes::NOATIME)
        .unwrap();
    assert_eq!(
        filesystem.view().metadata(file).unwrap().attributes().letters(),
        "Ac"
    );
    assert_eq!(
        filesystem
            .view()
            .xattr(file, b"btrfs.compression")
            .unwrap()
            .unwrap(),
        b"zlib"
    );
    filesystem.set_flags(file, FileAttributes::IMMUTABLE).unwrap();
    assert_eq!(filesystem.view().xattr(file, b"btrfs.compression").unwrap(), None);
    assert!(matches!(
        filesystem.unlink(ROOT, b"file"),
        Err(Error::NotPermitted { .. })
    ));
    assert!(matches!(
        filesystem.set_attributes(file, &changes),
        Err(Error::NotPermitted { .. })
    ));
    assert!(matches!(
        filesystem.link(file, ROOT, b"more"),
        Err(Error::NotPermitted { .. })
    ));
    filesystem.set_flags(file, FileAttributes::NOCOW).unwrap();
    assert_eq!(
        filesystem.view().metadata(file).unwrap().attributes().letters(),
        "C"
    );
    image.commit_and_check(&filesystem);
}

#[test]
fn attributes_with_names() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let set = |name: &[u8], value: &[u8], how| filesystem.set_xattr(file, name, value, how);
    set(b"user.one", b"1", SetXattr::Create).unwrap();
    assert!(matches!(
        set(b"user.one", b"2", SetXattr::Create),
        Err(Error::Exists { .. })
    ));
    assert!(matches!(
        set(b"user.two", b"2", SetXattr::Replace),
        Err(Error::AttributeNotFound { .. })
    ));
    set(b"user.one", b"a longer value", SetXattr::Replace).unwrap();
    set(b"user.empty", b"", SetXattr::CreateOrReplace).unwrap();
    assert!(matches!(
        set(b"nonsense", b"", SetXattr::CreateOrReplace),
        Err(Error::AttributesUnsupported { .. })
    ));
    assert!(matches!(
        set(b"btrfs.nonsense", b"", SetXattr::CreateOrReplace),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        set(b"btrfs.compression", b"zip", SetXattr::CreateOrReplace),
        Err(Error::Invalid { .. })
    ));
    set(b"btrfs.compression", b"zstd", SetXattr::CreateOrReplace).unwrap();
    let most = vec![7; 16_384 - 101 - 25 - 30 - b"user.large".len()];
    let too_long = vec![7; most.len() + 1];
    assert!(matches!(
        set(b"user.large", &too_long, SetXattr::CreateOrReplace),
        Err(Error::AttributeTooLarge { .. })
    ));
    set(b"user.large", &most, SetXattr::CreateOrReplace).unwrap();
    image.commit_and_check(&filesystem);
    let view = filesystem.view();
    assert_eq!(view.xattr(file, b"user.one").unwrap().unwrap(), b"a longer value");
    assert_eq!(view.xattr(file, b"user.large").unwrap().unwrap(), most);
    assert_eq!(view.metadata(file).unwrap().attributes().letters(), "c");
    filesystem.remove_xattr(file, b"user.large").unwrap();
    filesystem.remove_xattr(file, b"btrfs.compression").unwrap();
    assert!(matches!(
        filesystem.remove_xattr(file, b"user.large"),
        Err(Error::AttributeNotFound { .. })
    ));
    image.commit_and_check(&filesystem);
    assert_eq!(filesystem.view().xattrs(file).unwrap().len(), 2);
}

#[test]
fn unnamed_files_live_as_long_as_they_are_held() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let held = filesystem.make_unnamed(ROOT, &NEW).unwrap();
    let named = filesystem.make_unnamed(ROOT, &NEW).unwrap();
    image.commit_and_check(&filesystem);
    filesystem.link(named.location(), ROOT, b"named").unwrap();
    let (gone, kept) = (held.location(), named.location());
    drop((held, named));
    image.commit_and_check(&filesystem);
    let view = filesystem.view();
    assert!(matches!(view.metadata(gone), Err(Error::InodeNotFound { .. })));
    assert_eq!(view.metadata(kept).unwrap().nlink, 1);
    drop(view);

    // A file unlinked while open still exists, and the next opening after a crash removes it.
    let open = filesystem.open_inode(kept).unwrap();
    filesystem.unlink(ROOT, b"named").unwrap();
    assert_eq!(filesystem.view().metadata(kept).unwrap().nlink, 0);
    image.commit_and_check(&filesystem);
    let image = image.copy();
    let _still = open;
    let filesystem = image.open();
    assert!(matches!(
        filesystem.view().metadata(kept),
        Err(Error::InodeNotFound { .. })
    ));
    image.commit_and_check(&filesystem);
    assert_eq!(filesystem.orphans().clean(ROOT.subvolume).unwrap(), 0);
}

#[test]
fn set_times_survive_write_back() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    filesystem
        .write_at(file, FileOffset::MIN, &vec![7; 100_000])
        .unwrap();
    assert_eq!(filesystem.live().metadata(file).unwrap().size.get(), 100_000);
    let time = Timestamp {
        seconds: 5,
        nanoseconds: 6,
    };
    let changes = AttributeChanges {
        modified: Some(time),
        ..AttributeChanges::default()
    };
    filesystem.set_attributes(file, &changes).unwrap();
    let set = filesystem.live().metadata(file).unwrap();
    image.commit_and_check(&filesystem);
    let found = filesystem.view().metadata(file).unwrap();
    assert_eq!(
        (found.modified, found.changed, found.size.get()),
        (time, set.changed, 100_000)
    );
}

#[test]
fn a_removed_file_takes_its_content_along() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    // These file sizes give dirty data, content on disk, and content so large that its inode
    // becomes an orphan.
    for bytes in [100_000, 3 << 20] {
        for commit in [false, true] {
            let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
            filesystem
                .write_at(file, FileOffset::MIN, &vec![7; bytes])
                .unwrap();
            if commit {
                image.commit_and_check(&filesystem);
            }
            filesystem.unlink(ROOT, b"file").unwrap();
            assert!(matches!(
                filesystem.live().metadata(file),
                Err(Error::InodeNotFound { .. })
            ));
            image.commit_and_check(&filesystem);
        }
    }
    let used = filesystem.view().superblock().bytes_used.get();
    assert!(used < 1 << 20, "{used} bytes are left");
}
