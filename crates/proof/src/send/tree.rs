//! The content of a snapshot: names, attributes, content, holes, shared extents.
//!
//! Content and holes are separate, because a stream may have the same content with or without a
//! hole. Content consists of the blocks that are not all zeros. The map of a file's holes is that
//! of FIEMAP, with preallocated ranges as holes.
//!
//! The library reads shared extents from file extent items, which show the used part of a
//! compressed extent, unlike FIEMAP. For uncompressed extents, FIEMAP through the mount must agree.

use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Device, DeviceOptions, Follow, Location, RangeKind, SubvolumeId};
use buttress_oracle::manifest::{DataRange, Extra, Manifest, data_ranges, of_directory_by, shown};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Block size in bytes for separating content from zeros.
pub const BLOCK_BYTES: u64 = 4096;

/// Half-open ranges of bytes, in order.
pub type Ranges = Vec<(u64, u64)>;

/// Place of a block of a file: the address of its extent, and its offset in the extent, both in
/// bytes.
pub type Place = (u64, u64);

/// Content of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The manifest has everything except holes and places; the `data` of an entry has the runs of
    /// blocks that are not all zeros.
    pub manifest: Manifest,
    /// Ranges that FIEMAP shows as written, by path.
    pub data: BTreeMap<Vec<u8>, Ranges>,
    /// Places of the blocks of files, by path and offset.
    pub places: BTreeMap<Vec<u8>, BTreeMap<u64, Place>>,
}

/// Reads the snapshot at `top` of a mounted volume, without [`Tree::places`].
///
/// Omits the placeholder of a nested subvolume, which is not in the snapshot's tree.
pub fn of_snapshot(top: &Path) -> Result<Tree> {
    let mut data = BTreeMap::new();
    let mut manifest = of_directory_by(top, |path, file, entry| {
        entry.data = blocks_with_content(file, &data_ranges(file, entry.size)?)?;
        let place = top.join(std::ffi::OsStr::from_bytes(path));
        data.insert(path.to_vec(), written_ranges(&place, entry.size)?);
        Ok(())
    })?;
    manifest.retain(|_, entry| !entry.made_up);
    for entry in manifest.values_mut() {
        // The receiver itself chooses the other fields.
        entry.extra = entry.extra.take().map(|extra| Extra {
            accessed: extra.accessed,
            links: extra.links,
            ..Extra::default()
        });
        // A directory's size counts its names, including those of nested subvolumes, so the test
        // does not compare it.
        if entry.mode & 0o170_000 == 0o040_000 {
            entry.size = 0;
        }
    }
    Ok(Tree {
        manifest,
        data,
        places: BTreeMap::new(),
    })
}

/// Returns the written ranges, up to the end of the file. (SEEK_HOLE does not find preallocated
/// ranges that follow data and extend to the end of the file.)
fn written_ranges(path: &Path, size: u64) -> Result<Ranges> {
    let mut ranges = Ranges::new();
    for extent in fiemap::fiemap(path)? {
        let extent = extent?;
        let (start, end) = (
            extent.fe_logical,
            (extent.fe_logical + extent.fe_length).min(size),
        );
        if extent.fe_flags.contains(fiemap::FiemapExtentFlags::UNWRITTEN) || start >= end {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    Ok(ranges)
}

fn blocks_with_content(file: &File, ranges: &Ranges) -> Result<Vec<DataRange>> {
    let mut runs: Vec<DataRange> = Vec::new();
    let mut buffer = vec![0u8; 1 << 18];
    for (start, end) in ranges {
        let mut position = *start;
        while position < *end {
            let length = usize::try_from(end - position)?.min(buffer.len());
            let part = &mut buffer[..length];
            file.read_exact_at(part, position)?;
            for (number, block) in part.chunks(BLOCK_BYTES as usize).enumerate() {
                let start = position + number as u64 * BLOCK_BYTES;
                if block.iter().any(|byte| *byte != 0) {
                    add_block(&mut runs, start, block);
                }
            }
            position += length as u64;
        }
    }
    Ok(runs)
}

fn add_block(runs: &mut Vec<DataRange>, start: u64, block: &[u8]) {
    let end = start + block.len() as u64;
    match runs.last_mut() {
        Some(last) if last.end == start => {
            last.end = end;
            last.crc32c = crc32c::crc32c_append(last.crc32c, block);
        }
        _ => runs.push(DataRange {
            start,
            end,
            crc32c: crc32c::crc32c(block),
        }),
    }
}

/// Opens the volume on `image`, which may be mounted, in its last committed state.
pub fn open(image: &Path) -> Result<Filesystem> {
    let device = Device::open(image, &DeviceOptions::default())?;
    Ok(OpenOptions::new(vec![device]).open()?)
}

/// Fills in [`Tree::places`] for the snapshot `path`, relative to the top of the volume mounted at `mount`.
pub fn add_places(tree: &mut Tree, filesystem: &Filesystem, mount: &Path, path: &Path) -> Result<()> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let root = filesystem.resolve(top, path.as_os_str().as_bytes(), Follow::All)?;
    for (name, entry) in &tree.manifest {
        // Files without data, of which thousands may exist, have no place to compare.
        if tree.data.get(name).is_none_or(Vec::is_empty) {
            continue;
        }
        let location = filesystem
            .resolve(root, name, Follow::NotLast)
            .with_context(|| shown(name))?;
        let places = places(filesystem, location, entry.size)?;
        let seen = mount.join(path).join(std::ffi::OsStr::from_bytes(name));
        agrees_with_fiemap(&seen, &places).with_context(|| shown(name))?;
        tree.places.insert(
            name.clone(),
            places
                .into_iter()
                .map(|(offset, block)| (offset, block.place))
                .collect(),
        );
    }
    Ok(())
}

struct Block {
    place: Place,
    compressed: bool,
}

fn places(filesystem: &Filesystem, location: Location, size: u64) -> Result<BTreeMap<u64, Block>> {
    let mut places = BTreeMap::new();
    for range in filesystem.open_file(location)?.extents()? {
        let range = range?;
        let RangeKind::Data(extent) = &range.kind else {
            continue;
        };
        let (start, end) = (range.offset.get(), range.end().get().min(size));
        for offset in (start..end).step_by(BLOCK_BYTES as usize) {
            let block = Block {
                place: (extent.logical.get(), extent.offset.get() + (offset - start)),
                compressed: extent.compression != buttress::Compression::None,
            };
            places.insert(offset, block);
        }
    }
    Ok(places)
}

/// Asserts that FIEMAP of uncompressed extents agrees with their items.
fn agrees_with_fiemap(path: &Path, places: &BTreeMap<u64, Block>) -> Result<()> {
    for extent in fiemap::fiemap(path)? {
        let extent = extent?;
        let flags = fiemap::FiemapExtentFlags::ENCODED
            | fiemap::FiemapExtentFlags::DATA_INLINE
            | fiemap::FiemapExtentFlags::UNWRITTEN;
        if extent.fe_flags.intersects(flags) {
            continue;
        }
        for (offset, block) in places.range(extent.fe_logical..extent.fe_logical + extent.fe_length) {
            let physical = extent.fe_physical + (offset - extent.fe_logical);
            ensure!(
                !block.compressed && block.place.0 + block.place.1 == physical,
                "FIEMAP says that offset {offset} is at {physical}, the item {:?}",
                block.place
            );
        }
    }
    Ok(())
}
