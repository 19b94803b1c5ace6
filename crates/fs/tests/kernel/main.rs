//! Tests that compare the kernel's mount of a volume with this crate's reads of its image.
//!
//! Needs root, loop devices and a kernel with btrfs. On a machine without these, each test reports
//! that it was skipped, and why.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use anyhow::{Context, Result, bail};
use buttress_device::Device;
use buttress_format::{FileKind, SubvolumeId, Timestamp};
use buttress_fs::{Content, Filesystem, Location, OpenOptions, WalkEntry, WalkItem, WalkOptions, WalkOrder};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{DataRange, Entry, Extra, Manifest, expect_equal, link_groups};
use buttress_oracle::skip::skip;
use buttress_oracle::tools::kernel_missing;
use buttress_oracle::volumes::{Fill, Specification, Volume, make, make_with};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Runs `test` if the machine can make volumes.
fn with_kernel(test: impl FnOnce() -> Result<()>) {
    match kernel_missing() {
        Some(missing) => skip(&missing),
        None => test().unwrap(),
    }
}

fn open(volume: &Volume) -> Result<Filesystem> {
    let devices: Result<Vec<Device>, _> = volume
        .images
        .iter()
        .map(|image| Device::open(image, &buttress_device::OpenOptions::default()))
        .collect();
    Ok(OpenOptions::new(devices?).open()?)
}

fn time(time: Timestamp) -> (i64, u32) {
    (time.seconds, time.nanoseconds)
}

/// Returns the data of a file as a mount's SEEK_DATA reports it, with adjacent runs merged.
fn data_of(entry: &mut WalkEntry) -> Result<Vec<DataRange>> {
    let sector_bytes = u64::from(entry.metadata().block_bytes);
    let size = entry.metadata().size.get();
    let mut reader = entry.reader()?;
    let mut ranges: Vec<DataRange> = Vec::new();
    let mut position = 0;
    while let Some(chunk) = reader.next_chunk()? {
        assert_eq!(chunk.offset.get(), position, "chunks leave no gaps");
        position += chunk.length.get();
        let bytes = match chunk.content {
            Content::Hole => continue,
            Content::Damaged(error) => return Err(error.into()),
            Content::Data(bytes) => bytes,
        };
        assert_eq!(bytes.len() as u64, chunk.length.get());
        match ranges.last_mut() {
            Some(last) if last.end == chunk.offset.get() => {
                last.end += bytes.len() as u64;
                last.crc32c = crc32c::crc32c_append(last.crc32c, &bytes);
            }
            _ => ranges.push(DataRange {
                start: chunk.offset.get(),
                end: position,
                crc32c: crc32c::crc32c(&bytes),
            }),
        }
    }
    assert_eq!(position, size, "chunks end at the end of the file");
    // Seeking in a file treats inline content as a whole sector with zeros at its end.
    if let Some(last) = ranges.last_mut()
        && last.end % sector_bytes != 0
        && last.end < size
    {
        let end = last.end.next_multiple_of(sector_bytes).min(size);
        last.crc32c = crc32c::crc32c_append(last.crc32c, &vec![0; usize::try_from(end - last.end)?]);
        last.end = end;
    }
    Ok(ranges)
}

fn entry_of(found: &mut WalkEntry) -> Result<Entry> {
    let metadata = found.metadata().clone();
    let device = metadata
        .device
        .map_or((0, 0), |device| (device.major, device.minor));
    Ok(Entry {
        mode: metadata.mode,
        uid: metadata.uid,
        gid: metadata.gid,
        size: metadata.size.get(),
        device,
        modified: time(metadata.modified),
        xattrs: found
            .xattrs()
            .iter()
            .map(|xattr| (xattr.name.clone(), xattr.value.clone()))
            .collect(),
        target: if metadata.kind == FileKind::Symlink {
            found.link_target()?
        } else {
            Vec::new()
        },
        data: if metadata.kind == FileKind::Regular {
            data_of(found)?
        } else {
            Vec::new()
        },
        linked: None,
        extra: Some(Extra {
            inode: metadata.location.inode.get(),
            links: metadata.nlink,
            blocks: metadata.blocks_512(),
            accessed: time(metadata.accessed),
            changed: time(metadata.changed),
            born: metadata.created.map_or((0, 0), time),
        }),
        ..Entry::default()
    })
}

/// Returns the manifest from one walk, in the same form as from the kernel's mount.
fn manifest_of(filesystem: &Filesystem, options: WalkOptions) -> Result<Manifest> {
    let root = Location::root_of(filesystem.default_subvolume()?);
    let mut manifest = Manifest::new();
    let mut groups: HashMap<Location, Vec<Vec<u8>>> = HashMap::new();
    for item in filesystem.walk(root, options) {
        match item {
            WalkItem::Entry(mut entry) => {
                let path = entry.path();
                let first = entry.hard_link.as_ref().map(|first| first.to_vec());
                if entry.metadata().nlink > 1 && !entry.metadata().is_directory() {
                    let group = groups.entry(entry.location()).or_default();
                    if let Some(first) = first {
                        assert_eq!(group.first(), Some(&first), "the first name comes first");
                    }
                    group.push(path.clone());
                }
                let found = entry_of(&mut entry).with_context(|| path.escape_ascii().to_string())?;
                if manifest.insert(path.clone(), found).is_some() {
                    bail!("{} came twice", path.escape_ascii());
                }
            }
            WalkItem::Failed(error) => return Err(error.into()),
            WalkItem::Enter(_) | WalkItem::Leave(_) => {}
        }
    }
    link_groups(&mut manifest, groups.into_values());
    Ok(manifest)
}

/// For a nested subvolume's empty directory, the kernel reports the time of the lookup.
fn without_placeholder_times(manifest: &Manifest) -> Manifest {
    let mut manifest = manifest.clone();
    for entry in manifest.values_mut() {
        if let Some(extra) = entry.extra.as_mut().filter(|extra| extra.inode == 2) {
            extra.changed = (0, 0);
            entry.modified = (0, 0);
        }
    }
    manifest
}

fn compare(specification: &Specification) -> Result<()> {
    let volume = make(specification)?;
    let expected = without_placeholder_times(&volume.manifest);
    let filesystem = open(&volume)?;
    assert_eq!(filesystem.notices(), []);
    for (what, options) in [
        ("depth first", WalkOptions::default()),
        ("no read-ahead", WalkOptions::without_content()),
        (
            "by directory",
            WalkOptions {
                order: WalkOrder::ByDirectory { sorted: true },
                ..WalkOptions::without_content()
            },
        ),
    ] {
        let found = without_placeholder_times(&manifest_of(&filesystem, options)?);
        expect_equal(what, &expected, &found)?;
    }
    assert!(filesystem.volume().faults().is_empty());
    Ok(())
}

#[test]
fn every_kind_of_file_is_read_as_the_kernel_shows_it() {
    with_kernel(|| compare(&Specification::default()));
}

#[test]
fn attributes_are_those_of_lsattr() {
    with_kernel(|| {
        let volume = make(&Specification {
            seed: 9,
            ..Specification::default()
        })?;
        let filesystem = open(&volume)?;
        let mount = Mount::new(&volume.images, "ro")?;
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let mut seen = 0;
        for item in filesystem.walk(root, WalkOptions::without_content()) {
            let WalkItem::Entry(entry) = item else { continue };
            let metadata = entry.metadata();
            if !matches!(metadata.kind, FileKind::Regular | FileKind::Directory)
                || metadata.location.placeholder().is_some()
            {
                continue;
            }
            let path = mount.path().join(OsStr::from_bytes(&entry.path()));
            let expected = rustix::fs::ioctl_getflags(File::open(&path)?)?.bits();
            assert_eq!(metadata.attributes().bits(), expected, "{}", path.display());
            seen |= expected;
        }
        assert_ne!(seen, 0, "no file has attributes");
        Ok(())
    });
}

#[test]
fn a_volume_with_a_log_is_read_as_of_its_last_commit() {
    with_kernel(|| {
        let copy = tempfile::NamedTempFile::new()?;
        let volume = make_with(
            &Specification {
                fill: Fill::Empty,
                ..Specification::default()
            },
            |mount| {
                std::fs::write(mount.path().join("committed"), b"before")?;
                rustix::fs::syncfs(File::open(mount.path())?)?;
                let mut synced = File::create(mount.path().join("synced"))?;
                synced.write_all(b"after")?;
                synced.sync_all()?;
                // The loop device has the content of its backing file.
                std::io::copy(&mut File::open(mount.devices()[0].path())?, &mut copy.as_file())?;
                Ok(())
            },
        )?;
        drop(volume);
        let device = Device::open(copy.path(), &buttress_device::OpenOptions::default())?;
        let filesystem = OpenOptions::new(vec![device]).open()?;
        assert!(
            matches!(
                &filesystem.notices()[..],
                [buttress_fs::Notice::PendingLog { .. }]
            ),
            "{:?}",
            filesystem.notices()
        );
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        assert!(filesystem.lookup(root, b"committed")?.is_some());
        assert!(filesystem.lookup(root, b"synced")?.is_none());
        Ok(())
    });
}

#[test]
fn compressed_files_are_read_as_the_kernel_shows_them() {
    for (mount, seed) in [
        ("compress-force=zlib", 2),
        ("compress-force=lzo", 3),
        ("compress-force=zstd", 4),
    ] {
        with_kernel(|| {
            compare(&Specification {
                mount,
                seed,
                ..Specification::default()
            })
        });
    }
}

#[test]
fn small_and_large_nodes_and_other_checksums() {
    for (node_kib, checksum, seed) in [(4, "xxhash", 5), (64, "blake2", 6)] {
        with_kernel(|| {
            compare(&Specification {
                node_kib,
                checksum,
                seed,
                ..Specification::default()
            })
        });
    }
}

#[test]
fn holes_with_items_and_without() {
    with_kernel(|| {
        compare(&Specification {
            features: &["^no-holes"],
            seed: 7,
            ..Specification::default()
        })
    });
}

#[test]
fn striped_data_on_several_devices() {
    let specification = Specification {
        data: "raid10",
        metadata: "raid1c3",
        devices: 4,
        seed: 8,
        ..Specification::default()
    };
    with_kernel(|| compare(&specification));
}
