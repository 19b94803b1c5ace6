//! Tests of images from entries in memory. The images are valid, hold the given entries, and have
//! the same bytes for any order and number of workers.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use buttress_build::{
    Attributes, BuildOptions, Compress, ContentReader, Contents, Entry, EntryKind, EntryPath, Error,
    FileContent, ImageBuilder, LinkKey, LocatorContents, MemorySource, Precedence, ShareKey, Source,
    SourceError, SubvolumeMark, Verdict,
};
use buttress_check::Options as CheckOptions;
use buttress_device::Device;
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, ChecksumType, Compression, FileOffset, SubvolumeId, Timestamp, Uuid};
use buttress_fs::{Filesystem, Follow, Location, OpenOptions, Progress, Xattr};
use buttress_mkfs::{Feature, Identity, Options};
use core::ops::Range;
use std::sync::Arc;

const SIZE: usize = 160 << 20;

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry {
        path: EntryPath::new(path.as_bytes()).unwrap(),
        precedence: Precedence::default(),
        kind,
        attributes: Attributes {
            permissions: 0o644,
            mtime: Timestamp {
                seconds: 1_000_000,
                nanoseconds: 7,
            },
            ..Attributes::default()
        },
    }
}

fn file(path: &str, content: &[u8]) -> Entry {
    let content = FileContent {
        data: None,
        size: ByteCount::of(content.len()),
        locator: content.to_vec(),
        share: None,
    };
    entry(path, EntryKind::File(content))
}

fn directory(path: &str) -> Entry {
    entry(path, EntryKind::Directory(None))
}

fn at(mut entry: Entry, precedence: u64) -> Entry {
    entry.precedence = Precedence(precedence);
    entry
}

fn identity() -> Identity {
    Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(4)],
        time: Timestamp {
            seconds: 2_000_000,
            nanoseconds: 0,
        },
    }
}

fn build(builder: ImageBuilder) -> Result<Device, Error> {
    let device = Device::memory(vec![0; SIZE]);
    let progress = Progress::new();
    let gathered = builder.gather(1, identity().time, &progress)?;
    gathered.write(std::slice::from_ref(&device), &identity(), &progress)?;
    Ok(device)
}

fn of(entries: Vec<Entry>) -> Result<Device, Error> {
    build(ImageBuilder::new(BuildOptions::default()).source(MemorySource::new(entries)))
}

/// Opens a built volume, after a check without findings.
fn opened(device: &Device) -> Filesystem {
    let filesystem = OpenOptions::new(vec![device.clone()]).open().unwrap();
    let options = CheckOptions {
        data_checksums: true,
        ..CheckOptions::default()
    };
    let report = buttress_check::check(&filesystem, &options, &Progress::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    filesystem
}

fn find(filesystem: &Filesystem, path: &str) -> Option<Location> {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    filesystem.resolve(root, path.as_bytes(), Follow::NotLast).ok()
}

fn content(filesystem: &Filesystem, path: &str) -> Vec<u8> {
    let file = filesystem.open_file(find(filesystem, path).unwrap()).unwrap();
    let mut bytes = vec![0; file.size().to_usize().unwrap()];
    assert_eq!(file.read_at(FileOffset::MIN, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Returns moderately compressible bytes that depend on the seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 59) as u8
    };
    (0..length).map(step).collect()
}

/// Returns a test tree with all kinds of entries.
fn tree() -> Vec<Entry> {
    let mut entries = vec![directory(""), directory("d"), directory("d/e")];
    for number in 0..200_usize {
        let path = format!("d/e/f{number}");
        entries.push(file(&path, &noise(number as u64, number * number)));
    }
    entries.push(file("large", &noise(1, 9_000_001)));
    entries.push(entry("link", EntryKind::Symlink(b"d/e/f7".to_vec())));
    entries.push(entry("made/on/the/way", EntryKind::Symlink(b"x".to_vec())));
    let mark = SubvolumeMark {
        read_only: true,
        default: false,
    };
    entries.push(entry("sub", EntryKind::Directory(Some(mark))));
    entries.push(file("sub/inside", b"in a subvolume"));
    for path in ["linked", "d/linked", "a-linked"] {
        let mut linked = file(path, b"linked content");
        linked.attributes.link = Some(LinkKey(5, 6));
        entries.push(linked);
    }
    entries.push(entry(
        "by-path",
        EntryKind::HardLink(EntryPath::new(b"d/e/f9").unwrap()),
    ));
    entries.push(entry(
        "chain",
        EntryKind::HardLink(EntryPath::new(b"by-path").unwrap()),
    ));
    let mut attributed = file("attributed", b"");
    attributed.attributes.xattrs = vec![Xattr {
        name: b"user.name".to_vec(),
        value: vec![9; 3000],
    }];
    entries.push(attributed);
    for path in ["same1", "same2", "sub/same3"] {
        let mut same = file(path, &noise(77, 300_000));
        if let EntryKind::File(content) = &mut same.kind {
            content.share = Some(ShareKey(77));
        }
        entries.push(same);
    }
    entries
}

#[test]
fn built_image_is_valid_and_holds_the_entries() {
    let zstd = Compress::With(CompressionMethod::new(Compression::Zstd));
    let without = |feature| vec![(feature, false)];
    let cases: [(Compress, Options); 6] = [
        (Compress::No, Options::default()),
        (zstd, Options::default()),
        (
            zstd,
            Options {
                checksum: Some(ChecksumType::Sha256),
                node_bytes: Some(4096),
                ..Options::default()
            },
        ),
        (
            Compress::No,
            Options {
                features: without(Feature::NoHoles),
                ..Options::default()
            },
        ),
        (
            Compress::No,
            Options {
                features: without(Feature::SkinnyMetadata),
                ..Options::default()
            },
        ),
        (
            zstd,
            Options {
                features: vec![
                    (Feature::MixedBlockGroups, true),
                    (Feature::BlockGroupTree, false),
                ],
                ..Options::default()
            },
        ),
    ];
    for (compression, volume) in cases {
        let options = BuildOptions {
            compression,
            volume,
            ..BuildOptions::default()
        };
        let device = build(ImageBuilder::new(options).source(MemorySource::new(tree()))).unwrap();
        let filesystem = opened(&device);
        for given in tree() {
            let path = String::from_utf8(given.path.as_bytes().to_vec()).unwrap();
            let EntryKind::File(wanted) = given.kind else {
                continue;
            };
            assert!(content(&filesystem, &path) == wanted.locator, "{path}");
            let metadata = filesystem.metadata(find(&filesystem, &path).unwrap()).unwrap();
            assert_eq!(metadata.modified, given.attributes.mtime);
        }
        let inode = |path| find(&filesystem, path).unwrap();
        assert_eq!(inode("linked"), inode("a-linked"));
        assert_eq!(inode("chain"), inode("d/e/f9"));
        assert_eq!(filesystem.metadata(inode("linked")).unwrap().nlink, 3);
        assert_eq!(filesystem.read_link(inode("link")).unwrap(), b"d/e/f7");
        assert_eq!(
            filesystem.xattrs(inode("attributed")).unwrap()[0].value,
            [9; 3000]
        );
        assert!(inode("sub").is_subvolume_root());
    }
}

#[test]
fn image_bytes_depend_on_neither_order_workers_nor_memory() {
    let with = |entries: Vec<Entry>, workers: usize, memory: u64| {
        let options = BuildOptions {
            compression: Compress::With(CompressionMethod::new(Compression::Zlib)),
            workers: Some(workers),
            memory: ByteCount::new(memory),
            ..BuildOptions::default()
        };
        let device = build(ImageBuilder::new(options).source(MemorySource::new(entries))).unwrap();
        device.read(0, SIZE).unwrap().to_vec()
    };
    let wanted = with(tree(), 1, 96 << 20);
    let mut reversed = tree();
    reversed.reverse();
    let mut turned = tree();
    turned.rotate_left(77);
    for (entries, workers, memory) in [
        (tree(), 8, 96 << 20),
        (reversed, 2, 96 << 20),
        (turned, 3, 20_000),
    ] {
        assert!(
            with(entries, workers, memory) == wanted,
            "{workers} workers, {memory} bytes"
        );
    }
}

#[test]
fn entry_of_highest_precedence_stays() {
    let below = MemorySource::new(vec![
        file("a/old", b"old"),
        file("a/kept", b"kept"),
        directory("b"),
        file("b/x", b"x"),
        file("c", b"file"),
        file("gone", b"still linked"),
        entry("to-gone", EntryKind::HardLink(EntryPath::new(b"gone").unwrap())),
        at(entry("gone", EntryKind::Whiteout), 1),
        at(entry("o", EntryKind::Opaque), 1),
        file("o/hidden", b""),
        at(file("o/seen", b""), 1),
    ]);
    let above = MemorySource::new(vec![
        at(entry("a/old", EntryKind::Whiteout), 0),
        file("b", b"a file now"),
        directory("c"),
        file("c/inside", b"inside"),
        file("left-out/x", b""),
    ]);
    let builder = ImageBuilder::new(BuildOptions::default())
        .source(below)
        .source(above);
    let builder = builder.adapt(|entry| match entry.path.as_bytes() {
        b"left-out/x" => Verdict::LeaveOut,
        _ => Verdict::Keep,
    });
    let device = build(builder).unwrap();
    let filesystem = opened(&device);
    let is_there = |path| find(&filesystem, path).is_some();
    for path in ["a/old", "b/x", "gone", "o/hidden", "left-out"] {
        assert!(!is_there(path), "{path}");
    }
    assert_eq!(content(&filesystem, "a/kept"), b"kept");
    assert_eq!(content(&filesystem, "b"), b"a file now");
    assert_eq!(content(&filesystem, "c/inside"), b"inside");
    assert_eq!(content(&filesystem, "to-gone"), b"still linked");
    assert!(is_there("o/seen"));
}

#[test]
fn entries_that_do_not_fit_together_are_named() {
    let link = |path, to: &str| entry(path, EntryKind::HardLink(EntryPath::new(to.as_bytes()).unwrap()));
    let default = SubvolumeMark {
        read_only: false,
        default: true,
    };
    let mut twice = file("twice", b"");
    twice.attributes.xattrs = vec![
        Xattr {
            name: b"user.a".to_vec(),
            value: Vec::new(),
        };
        2
    ];
    let cases: [(Vec<Entry>, &str); 12] = [
        (vec![file("a", b""), file("a", b"")], "names \"/a\" twice"),
        (
            vec![file("a", b""), file("a/b", b"")],
            "\"/a/b\": its parent \"/a\" is not a directory",
        ),
        (vec![link("a", "none")], "which does not exist"),
        (vec![link("a", "b"), link("b", "a")], "a loop of hard links"),
        (vec![directory("d"), link("a", "d")], "which is a directory"),
        (
            vec![entry("s", EntryKind::Symlink(Vec::new()))],
            "its target is invalid (found 0 bytes",
        ),
        (
            vec![
                entry("x", EntryKind::Directory(Some(default))),
                entry("y", EntryKind::Directory(Some(default))),
            ],
            "another subvolume is already the default",
        ),
        (vec![twice], "the same extended attribute twice"),
        (
            vec![file("", b"x")],
            "\"/\": the root of the tree is always a directory",
        ),
        (
            vec![file("a", b""), file("", b"x")],
            "the root of the tree is always a directory",
        ),
        (
            vec![entry("", EntryKind::Symlink(b"x".to_vec()))],
            "the root of the tree is always a directory",
        ),
        (
            vec![file("a", b""), link("", "a")],
            "the root of the tree is always a directory",
        ),
    ];
    for (entries, wanted) in cases {
        let error = of(entries).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error:?} does not say {wanted:?}");
    }
}

/// Contents that are shorter than stated, or fail.
struct Broken(bool);

impl Contents for Broken {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        if self.0 && path.as_bytes() == b"z" {
            return Ok(Box::new(Changing));
        }
        LocatorContents.open(path, content)
    }
}

struct Changing;

impl ContentReader for Changing {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        Ok(Some(from..FileOffset::new(from.get() + 4096)))
    }

    fn read_exact_at(&mut self, _: FileOffset, _: &mut [u8]) -> Result<(), SourceError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        Err(SourceError::Changed {
            place: "z".to_owned(),
            what: "it is another one".to_owned(),
        })
    }
}

struct BrokenSource(MemorySource);

impl Source for BrokenSource {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.0.next_entry()
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        Ok(Arc::new(Broken(true)))
    }
}

/// In this test, the devices held a volume before the build. After a failed build, the devices hold
/// neither that volume nor a part of the new one.
#[test]
fn failed_build_leaves_no_volume() {
    let device = of(tree()).unwrap();
    opened(&device);
    let entries = || vec![file("a", &noise(1, 3_000_000)), file("z", &noise(2, 4096))];
    let progress = Progress::new();
    let changing = || {
        let source = BrokenSource(MemorySource::new(entries()));
        ImageBuilder::new(BuildOptions::default()).source(source)
    };
    let gathered = changing().gather(1, identity().time, &progress).unwrap();
    let devices = std::slice::from_ref(&device);
    let error = gathered.write(devices, &identity(), &progress).unwrap_err();
    assert!(
        error.to_string().contains("z changed while it was read"),
        "{error}"
    );
    assert!(OpenOptions::new(vec![device.clone()]).open().is_err());

    // The device of this test has too little space for the data.
    let small = Device::memory(vec![0; 20 << 20]);
    let too_much = vec![file("large", &noise(1, 30 << 20))];
    let builder = ImageBuilder::new(BuildOptions::default()).source(MemorySource::new(too_much));
    let gathered = builder.gather(1, identity().time, &progress).unwrap();
    let error = gathered
        .write(std::slice::from_ref(&small), &identity(), &progress)
        .unwrap_err();
    assert!(matches!(error, Error::NoRoom { what: "data", .. }), "{error}");
    assert!(OpenOptions::new(vec![small]).open().is_err());

    // The job is cancelled.
    let builder = ImageBuilder::new(BuildOptions::default()).source(MemorySource::new(entries()));
    let gathered = builder.gather(1, identity().time, &progress).unwrap();
    progress.cancel();
    let error = gathered.write(devices, &identity(), &progress).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!(OpenOptions::new(vec![device]).open().is_err());
}

fn at_location(filesystem: &Filesystem, path: &str) -> Location {
    find(filesystem, path).unwrap()
}

fn used_bytes(filesystem: &Filesystem) -> u64 {
    filesystem.superblock().bytes_used.get()
}

/// A file's content occurs twice, half of it in a third file, and a fourth file is only similar.
/// Equal content is stored once.
#[test]
fn equal_content_is_stored_once_where_that_is_asked_for() {
    let (one, other) = (noise(5, 1_500_000), noise(6, 700_000));
    let mixed = [&one[..1 << 20], &other].concat();
    let mut similar = one.clone();
    similar[1_400_000] ^= 1;
    let entries = || {
        vec![
            file("a", &one),
            file("b/again", &one),
            file("c", &mixed),
            file("d", &similar),
            file("small", b"inline"),
        ]
    };
    for compression in [
        Compress::No,
        Compress::With(CompressionMethod::new(Compression::Zstd)),
    ] {
        let with = |dedupe: bool, workers: usize| {
            let options = BuildOptions {
                compression,
                dedupe,
                workers: Some(workers),
                ..BuildOptions::default()
            };
            build(ImageBuilder::new(options).source(MemorySource::new(entries()))).unwrap()
        };
        let (plain, shared) = (with(false, 1), with(true, 1));
        let (plain, filesystem) = (opened(&plain), opened(&shared));
        for (path, wanted) in [("a", &one), ("b/again", &one), ("c", &mixed), ("d", &similar)] {
            assert!(content(&filesystem, path) == *wanted, "{path}");
        }
        if compression == Compress::No {
            // The test saves the bytes of a, all of b, the first MiB of c, and all of d except its
            // last part.
            let saved = used_bytes(&plain) - used_bytes(&filesystem);
            assert!((3_400_000..3_800_000).contains(&saved), "{saved} bytes saved");
        } else {
            assert!(used_bytes(&filesystem) * 2 < used_bytes(&plain));
        }
        let again = with(true, 5);
        assert!(again.read(0, SIZE).unwrap()[..] == shared.read(0, SIZE).unwrap()[..]);
    }
}

fn subvolume(path: &str) -> Entry {
    entry(path, EntryKind::Directory(Some(SubvolumeMark::default())))
}

fn snapshot(path: &str, of: &str, read_only: bool) -> Entry {
    let mark = SubvolumeMark {
        read_only,
        default: false,
    };
    let of = EntryPath::new(of.as_bytes()).unwrap();
    entry(path, EntryKind::Snapshot { of, mark })
}

/// The test tree has subvolumes of one block and of many, each with snapshots. Some snapshots
/// precede their source in the tree, and some are snapshots of snapshots. For every kind of quotas,
/// the check verifies the counts, and each snapshot shows its source's content.
#[test]
fn snapshots_share_their_source_s_tree_and_quotas_count_that() {
    let entries = || {
        let mut entries = vec![
            subvolume("small"),
            file("small/f", &noise(3, 100_000)),
            subvolume("sub"),
            file("sub/large", &noise(4, 3_000_000)),
            subvolume("sub/nested"),
            file("sub/nested/x", b"nested"),
            snapshot("a-first", "sub", false),
            snapshot("snap/1", "sub", true),
            snapshot("snap/2", "snap/1", true),
            snapshot("snap/small", "small", false),
            snapshot("snap/top", "", true),
        ];
        for number in 0..2000_usize {
            entries.push(file(&format!("sub/f{number}"), &noise(number as u64, number)));
        }
        entries
    };
    for features in [
        vec![],
        vec![(Feature::Quotas, true)],
        vec![(Feature::SimpleQuotas, true)],
        vec![(Feature::SkinnyMetadata, false), (Feature::Quotas, true)],
    ] {
        let options = BuildOptions {
            volume: Options {
                features: features.clone(),
                node_bytes: Some(4096),
                ..Options::default()
            },
            ..BuildOptions::default()
        };
        let device = build(ImageBuilder::new(options).source(MemorySource::new(entries()))).unwrap();
        let filesystem = opened(&device);
        let large = noise(4, 3_000_000);
        for path in ["a-first/large", "snap/1/large", "snap/2/large", "sub/large"] {
            assert!(content(&filesystem, path) == large, "{path}");
        }
        assert_eq!(content(&filesystem, "snap/small/f"), noise(3, 100_000));
        assert_eq!(content(&filesystem, "snap/2/f1999"), noise(1999, 1999));
        let id = |path| at_location(&filesystem, path).subvolume;
        let info = |path| {
            let all = filesystem.subvolumes().unwrap();
            all.into_iter().find(|info| info.id == id(path)).unwrap()
        };
        assert_eq!(info("snap/2").parent_uuid(), info("snap/1").uuid());
        assert_eq!(info("a-first").parent_uuid(), info("sub").uuid());
        // No content is stored twice: the volume takes the space of one copy of each, plus roots.
        assert!(used_bytes(&filesystem) < 8 << 20, "{}", used_bytes(&filesystem));
    }
    for (of, wanted) in [
        ("none", "is not a subvolume"),
        ("small/f", "is not a subvolume"),
        ("s", "of itself"),
    ] {
        let error = of_error(vec![
            subvolume("small"),
            file("small/f", b""),
            snapshot("s", of, false),
        ]);
        assert!(error.contains(wanted), "{error}");
    }
}

fn of_error(entries: Vec<Entry>) -> String {
    of(entries).unwrap_err().to_string()
}
