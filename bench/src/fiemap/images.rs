//! Files of many extents. The kernel makes the compared ones; Buttress's writer makes the others.

use crate::Scale;
use crate::images::{kept, kept_unmounted};
use anyhow::Result;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{AllocateMode, Device, DeviceOptions, FileOffset, Location, NewInode, SubvolumeId};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The name of the file.
pub(crate) const NAME: &str = "foobar";

/// The subvolume with the file in the volumes of [`of_sizes`].
pub(crate) const SUBVOLUME: &str = "subvolume";

/// The distance between the starts of extents with holes between them.
const INTERVAL_BYTES: u64 = 8 << 10;

/// The longest compressed extent.
const COMPRESSED_BYTES: u64 = 128 << 10;

/// The layout of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A repeated byte, compressed with lzo: extents of 128 KiB.
    Compressed,
    /// A byte in every 8 KiB.
    Holey,
    /// A preallocated block in every 8 KiB, in a subvolume.
    Preallocated,
    /// As `Preallocated`, with a thousand snapshots of the subvolume (fewer in a tiny volume).
    Snapshots,
    /// As `Preallocated`, with the first half cloned.
    HalfShared,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Compressed => "lzo",
            Self::Holey => "a byte every 8 KiB",
            Self::Preallocated => "a block every 8 KiB",
            Self::Snapshots => "the same, 1,000 snapshots",
            Self::HalfShared => "the same, half of it cloned",
        }
    }
}

fn is_tiny(scale: Scale) -> bool {
    scale.name == "tiny"
}

/// Returns the files to compare with `filefrag`, with their numbers of extents.
pub(crate) fn of_files(scale: Scale) -> Vec<(Kind, u64)> {
    if is_tiny(scale) {
        return vec![(Kind::Compressed, 500), (Kind::Holey, 1000)];
    }
    vec![
        (Kind::Compressed, 163_840),
        (Kind::Compressed, 327_680),
        (Kind::Holey, 32_768),
        (Kind::Holey, 65_536),
        (Kind::Holey, 131_072),
    ]
}

/// Returns the files that show whether the time for an extent depends on the number of extents.
pub(crate) fn of_sizes(scale: Scale) -> Vec<(Kind, u64)> {
    if is_tiny(scale) {
        return vec![
            (Kind::Preallocated, 1000),
            (Kind::Snapshots, 1000),
            (Kind::HalfShared, 1000),
        ];
    }
    vec![
        (Kind::Preallocated, 1000),
        (Kind::Preallocated, 10_000),
        (Kind::Preallocated, 100_000),
        (Kind::Preallocated, 1_000_000),
        (Kind::Snapshots, 100_000),
        (Kind::HalfShared, 100_000),
        (Kind::HalfShared, 1_000_000),
    ]
}

/// Returns the image with a file of this kind and number of extents. The function makes the image
/// if it does not exist.
pub(crate) fn make(scale: Scale, kind: Kind, extents: u64) -> Result<PathBuf> {
    let name = format!("fiemap-{kind:?}-{extents}").to_lowercase();
    match kind {
        Kind::Compressed => kept(&name, scale, 16, "compress=lzo", |top| {
            let mut file = File::create(top.join(NAME))?;
            let block = vec![0xab; 1 << 20];
            for _ in 0..extents * COMPRESSED_BYTES / (1 << 20) {
                file.write_all(&block)?;
            }
            Ok(file.write_all(&block[..usize::try_from(extents * COMPRESSED_BYTES % (1 << 20))?])?)
        }),
        Kind::Holey => kept(&name, scale, 16, "", |top| {
            let file = File::create(top.join(NAME))?;
            for number in 0..extents {
                file.write_all_at(b"a", number * INTERVAL_BYTES)?;
            }
            Ok(file.set_len(extents * INTERVAL_BYTES)?)
        }),
        Kind::Preallocated | Kind::Snapshots | Kind::HalfShared => {
            kept_unmounted(&name, scale, 16, |image| {
                make_preallocated(image, kind, extents, is_tiny(scale))
            })
        }
    }
}

/// Makes preallocated blocks, which need almost no time and no space in the image.
///
/// Buttress's writer makes preallocated blocks, because the kernel takes minutes for the first
/// hundred thousand.
fn make_preallocated(image: &Path, kind: Kind, extents: u64, tiny: bool) -> Result<()> {
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let filesystem = OpenOptions::new(vec![Device::open(image, &options)?]).open()?;
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let subvolume = filesystem.subvolumes().create(top, SUBVOLUME.as_bytes())?;
    let home = Location::root_of(subvolume);
    let file = filesystem.create(home, NAME.as_bytes(), &NewInode::of_root(0o644))?;
    for number in 0..extents {
        let start = number * INTERVAL_BYTES;
        let block = FileOffset::new(start)..FileOffset::new(start + 4096);
        filesystem.allocate(file, block, AllocateMode::Allocate)?;
    }
    filesystem.commit()?;
    if kind == Kind::Snapshots {
        for number in 0..if tiny { 10 } else { 1000 } {
            let name = format!("snapshot-{number}");
            filesystem
                .subvolumes()
                .snapshot(subvolume, top, name.as_bytes(), true)?;
        }
    }
    if kind == Kind::HalfShared {
        let clone = filesystem.create(top, b"clone", &NewInode::of_root(0o644))?;
        let half = FileOffset::MIN..FileOffset::new(extents / 2 * INTERVAL_BYTES);
        filesystem.clone_range(file, half, clone, FileOffset::MIN)?;
    }
    filesystem.commit()?;
    Ok(())
}
