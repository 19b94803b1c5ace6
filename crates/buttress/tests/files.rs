//! Compares operations of `std::fs` on a directory of the host with operations of this crate on a
//! volume.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use buttress::{ByteCount, Device, ErrorKind, FileOffset, SnapshotMode, Volume, WritableVolume};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

fn volume() -> WritableVolume {
    let device = Device::memory(vec![0; 256 << 20]);
    Volume::create().on_devices(vec![device]).unwrap()
}

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const ENOTEMPTY: i32 = 39;

#[test]
fn failures_have_the_numbers_of_the_system() {
    let volume = volume();
    let root = volume.root();
    let folder = tempfile::tempdir().unwrap();
    let host = |name: &str| folder.path().join(name);
    root.create_dir_all("d/e").unwrap();
    std::fs::create_dir_all(host("d/e")).unwrap();
    root.write("f", "1").unwrap();
    std::fs::write(host("f"), "1").unwrap();
    type Pair = (buttress::Result<()>, std::io::Result<()>, i32);
    let pairs: Vec<Pair> = vec![
        (
            root.read("none").map(drop),
            std::fs::read(host("none")).map(drop),
            ENOENT,
        ),
        (
            root.read("f/x").map(drop),
            std::fs::read(host("f/x")).map(drop),
            ENOTDIR,
        ),
        (
            root.read("d").map(drop),
            std::fs::read(host("d")).map(drop),
            EISDIR,
        ),
        (
            root.create("d").map(drop),
            std::fs::File::create(host("d")).map(drop),
            EISDIR,
        ),
        (root.create_dir("f"), std::fs::create_dir(host("f")), EEXIST),
        (
            root.create_dir_all("f/g"),
            std::fs::create_dir_all(host("f/g")),
            ENOTDIR,
        ),
        (root.remove_dir("d"), std::fs::remove_dir(host("d")), ENOTEMPTY),
        (root.remove_dir("f"), std::fs::remove_dir(host("f")), ENOTDIR),
        (root.remove_file("d"), std::fs::remove_file(host("d")), EISDIR),
        (
            root.rename("f", "d"),
            std::fs::rename(host("f"), host("d")),
            EISDIR,
        ),
        (
            root.rename("none", "x"),
            std::fs::rename(host("none"), host("x")),
            ENOENT,
        ),
        (
            root.hard_link("f", "d"),
            std::fs::hard_link(host("f"), host("d")),
            EEXIST,
        ),
    ];
    for (ours, theirs, number) in pairs {
        let (ours, theirs) = (ours.unwrap_err(), theirs.unwrap_err());
        assert_eq!(theirs.raw_os_error(), Some(number), "{theirs}");
        assert_eq!(ours.errno(), number, "{ours}");
        let kind = match number {
            ENOENT => ErrorKind::NotFound,
            EEXIST => ErrorKind::Exists,
            EISDIR => ErrorKind::IsADirectory,
            _ => ErrorKind::Invalid,
        };
        assert_eq!(ours.kind(), kind, "{ours}");
    }
}

#[test]
fn messages_name_their_path_once() {
    let volume = volume();
    let root = volume.root();
    root.create_dir_all("a/b").unwrap();
    for error in [
        root.read("a/none").unwrap_err(),
        root.remove_dir("a").unwrap_err(),
        root.create_dir("a/b").unwrap_err(),
    ] {
        let text = error.to_string();
        assert_eq!(
            text.matches("a/").count().max(text.matches("a:").count()),
            1,
            "{text}"
        );
    }
    let hostile = root.read("x\x1b]0;title\x07").unwrap_err().to_string();
    assert!(!hostile.contains('\x1b'), "{hostile:?}");
}

#[test]
fn a_file_reads_writes_and_seeks_like_one_of_the_host() {
    let volume = volume();
    let folder = tempfile::tempdir().unwrap();
    let mut ours = volume.root().create("f").unwrap();
    let mut theirs = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(folder.path().join("f"))
        .unwrap();
    let mut seed = 42_u64;
    let mut next = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for step in 0..400_u32 {
        match next(5) {
            0 => {
                let position = SeekFrom::Start(next(200_000));
                assert_eq!(ours.seek(position).unwrap(), theirs.seek(position).unwrap());
            }
            1 => {
                let position = SeekFrom::End(i64::try_from(next(1000)).unwrap() - 500);
                assert_eq!(ours.seek(position).ok(), theirs.seek(position).ok());
            }
            2 => {
                let bytes = vec![step.to_le_bytes()[0]; usize::try_from(next(9000)).unwrap()];
                ours.write_all(&bytes).unwrap();
                theirs.write_all(&bytes).unwrap();
            }
            3 => {
                let mut both = [vec![0; 5000], vec![0; 5000]];
                let read = ours.read(&mut both[0]).unwrap();
                assert_eq!(read, theirs.read(&mut both[1]).unwrap());
                assert_eq!(both[0], both[1]);
            }
            _ => {
                let size = next(250_000);
                ours.set_size(ByteCount::new(size)).unwrap();
                theirs.set_len(size).unwrap();
            }
        }
        assert_eq!(ours.size().unwrap().get(), theirs.metadata().unwrap().len());
    }
    let mut content = Vec::new();
    theirs.seek(SeekFrom::Start(0)).unwrap();
    theirs.read_to_end(&mut content).unwrap();
    assert_eq!(volume.root().read("f").unwrap(), content);
}

#[test]
fn reading_of_a_volume_that_is_open_for_reading_seeks_too() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("v.img");
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    {
        let volume = Volume::create()
            .in_file(&image, ByteCount::new(256 << 20))
            .unwrap();
        volume.root().write("f", &content).unwrap();
        volume.sync().unwrap();
    }
    let mut file = Volume::open(&image).unwrap().root().open("f").unwrap();
    for start in [3_999_990_u64, 17, 2_000_000, 2_000_000, 5_000_000] {
        file.seek(SeekFrom::Start(start)).unwrap();
        let mut piece = [0; 100];
        let mut read = 0;
        while let Ok(more) = file.read(&mut piece[read..])
            && more > 0
        {
            read += more;
        }
        let start = usize::try_from(start).unwrap().min(content.len());
        assert_eq!(
            piece[..read],
            content[start..(start + 100).min(content.len())],
            "{start}"
        );
    }
}

#[test]
fn an_open_file_outlives_its_name() {
    let volume = volume();
    let root = volume.root();
    let file = root.create("f").unwrap();
    file.append(b"still here").unwrap();
    root.remove_file("f").unwrap();
    volume.sync().unwrap();
    let mut content = [0; 10];
    assert_eq!(file.read_at(FileOffset::MIN, &mut content).unwrap(), 10);
    assert_eq!(&content, b"still here");
    assert!(!root.exists("f").unwrap());
}

#[test]
fn directories_go_with_all_that_they_hold_but_subvolumes() {
    let volume = volume();
    let root = volume.root();
    root.create_dir_all("d/e/f").unwrap();
    for number in 0..5000 {
        root.write(format!("d/e/{number}"), "x").unwrap();
    }
    root.symlink("/etc", "d/link").unwrap();
    root.create_dir("etc").unwrap();
    root.write("etc/stays", "x").unwrap();
    root.remove_dir_all("d").unwrap();
    assert!(!root.exists("d").unwrap());
    assert!(root.exists("etc/stays").unwrap());

    root.create_dir("d").unwrap();
    let nested = root.create_subvolume("d/nested").unwrap();
    nested.write("kept", "x").unwrap();
    assert!(root.remove_dir_all("d").is_err());
    assert_eq!(root.read("d/nested/kept").unwrap(), b"x");
}

#[test]
fn snapshots_keep_content_and_renames_do_not_cross_them() {
    let volume = volume();
    let root = volume.root();
    let home = root.create_subvolume("home").unwrap();
    home.write("f", "one").unwrap();
    let snapshot = root
        .create_snapshot(&home, "then", SnapshotMode::ReadOnly)
        .unwrap();
    home.write("f", "two").unwrap();
    assert_eq!(snapshot.read("f").unwrap(), b"one");
    assert_eq!(home.read("f").unwrap(), b"two");
    assert!(snapshot.write("f", "three").is_err());
    assert_eq!(root.rename("home/f", "f").unwrap_err().errno(), EXDEV);
    let copied = root.copy("then/f", "copy").unwrap();
    assert_eq!((copied.get(), root.read("copy").unwrap()), (3, b"one".to_vec()));
    assert!(root.copy("copy", "/copy").is_err());
    assert_eq!(root.read("copy").unwrap(), b"one");
    assert!(snapshot.info().unwrap().is_read_only());
}

#[test]
fn a_new_image_that_cannot_be_made_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("v.img");
    assert!(Volume::create().in_file(&image, ByteCount::new(1 << 20)).is_err());
    assert!(!image.exists());
    std::fs::write(&image, "precious").unwrap();
    let error = Volume::create()
        .in_file(&image, ByteCount::new(256 << 20))
        .unwrap_err();
    assert_eq!(error.errno(), EEXIST);
    assert!(error.to_string().contains("v.img"), "{error}");
    assert_eq!(std::fs::read(&image).unwrap(), b"precious");
}
