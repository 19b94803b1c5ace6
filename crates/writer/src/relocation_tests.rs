//! Block groups are emptied while snapshots share what is in them: content and sharing stay, and btrfs-progs finds nothing.

mod beside;
mod commits;
mod sharing;

use crate::AllocateMode;
use crate::WritableFilesystem;
use crate::operations::NewInode;
use crate::operations::tests::volume::{Image, ROOT};
use buttress_engine::block_groups::Purpose;
use buttress_engine::relocation::{RelocationOptions, RelocationSummary};
use buttress_format::{FileOffset, Logical, SubvolumeId};
use buttress_fs::error::Result;
use buttress_fs::inode::FileAttributes;
use buttress_fs::location::Location;
use std::collections::BTreeMap;

const NEW: NewInode = NewInode::of_root(0o644);

/// A generator of pseudo-random numbers: the same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = core::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(length.div_ceil(8)).flatten().take(length).collect()
    }
}

const fn offset(at: u64) -> FileOffset {
    FileOffset::new(at)
}

/// Fills a subvolume: files with extents of their own, inline ones, clones, preallocated space, content without copy-on-write.
fn fill(
    filesystem: &WritableFilesystem,
    directory: Location,
    random: &mut Random,
    files: u64,
) -> Vec<Location> {
    let mut made = Vec::new();
    for number in 0..files {
        let name = format!("file-{number}-{}", random.next() % 1000);
        let file = filesystem.create(directory, name.as_bytes(), &NEW).unwrap();
        match number % 6 {
            0 => filesystem.write_at(file, offset(0), b"inline").unwrap(),
            1 => {
                let nocow = FileAttributes::NOCOW;
                filesystem.set_flags(file, nocow).unwrap();
                filesystem
                    .write_at(file, offset(0), &random.bytes(70_000))
                    .unwrap();
            }
            2 => {
                filesystem
                    .allocate(file, offset(0)..offset(200_000), AllocateMode::Allocate)
                    .unwrap();
                filesystem
                    .write_at(file, offset(8192), &random.bytes(20_000))
                    .unwrap();
            }
            3 if !made.is_empty() => {
                let source = made[(random.next() as usize) % made.len()];
                let size = filesystem.contents().size_of(source).unwrap() & !4095;
                if size > 0
                    && filesystem
                        .clone_range(source, offset(0)..offset(size), file, offset(0))
                        .is_err()
                {
                    filesystem.write_at(file, offset(0), &random.bytes(9000)).unwrap();
                }
            }
            _ => {
                let length = 1000 + (random.next() % 150_000) as usize;
                filesystem
                    .write_at(file, offset(0), &random.bytes(length))
                    .unwrap();
            }
        }
        made.push(file);
    }
    made
}

/// Every file of every subvolume, with its content.
fn contents(filesystem: &WritableFilesystem) -> BTreeMap<(u64, u64), Vec<u8>> {
    let view = filesystem.view();
    let mut all = BTreeMap::new();
    for subvolume in view.subvolumes().unwrap() {
        let root = Location::root_of(subvolume.id);
        for entry in view.read_dir(root).unwrap() {
            let entry = entry.unwrap();
            let Ok(file) = view.open_file(entry.target) else {
                continue;
            };
            let mut bytes = vec![0; usize::try_from(file.size().get()).unwrap()];
            assert_eq!(file.read_at(offset(0), &mut bytes).unwrap(), bytes.len());
            all.insert((entry.target.subvolume.get(), entry.target.inode.get()), bytes);
        }
    }
    all
}

/// Counts extents by length and references, without addresses: all data extents, and shared tree
/// blocks.
fn sharing(filesystem: &WritableFilesystem) -> BTreeMap<(bool, u64, u64), u64> {
    use buttress_format::{ExtentItem, ItemType, TreeId};
    let view = filesystem.view();
    let format = view.volume().block_format().clone();
    let mut counts = BTreeMap::new();
    let extents = view.tree(TreeId::EXTENT).unwrap();
    for item in extents.range(.., buttress_tree::ReadAhead::None) {
        let item = item.unwrap();
        let key = item.key();
        if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let extent = ExtentItem::parse(&key, item.data(), &format).unwrap();
        if extent.is_data() || extent.references > 1 {
            *counts
                .entry((extent.is_data(), extent.length.get(), extent.references))
                .or_default() += 1;
        }
    }
    counts
}

fn groups(filesystem: &WritableFilesystem, purpose: Option<Purpose>) -> Vec<Logical> {
    let map = filesystem.view().volume().chunk_map();
    let chunks = map.chunks().iter();
    chunks
        .filter(|chunk| purpose.is_none_or(|purpose| chunk.flags().contains(purpose.flag())))
        .map(|chunk| chunk.start())
        .collect()
}

fn relocate(filesystem: &WritableFilesystem, groups: &[Logical]) -> Result<RelocationSummary> {
    filesystem
        .relocations()
        .relocate(groups, &RelocationOptions::default())
}

/// A volume with a subvolume, and with snapshots of it that have changed since.
fn with_snapshots(image: &Image, snapshots: u64) -> WritableFilesystem {
    let filesystem = image.open();
    let mut random = Random(7);
    let home = filesystem.subvolumes().create(ROOT, b"home").unwrap();
    let mut files = fill(&filesystem, Location::root_of(home), &mut random, 120);
    for number in 0..snapshots {
        let name = format!("snapshot-{number}");
        let snapshot = filesystem
            .subvolumes()
            .snapshot(home, ROOT, name.as_bytes(), false)
            .unwrap();
        let change = |in_subvolume: SubvolumeId, random: &mut Random| {
            for _ in 0..3 {
                let file = files[(random.next() as usize) % files.len()];
                let file = Location::new(in_subvolume, file.inode);
                let at = random.next() % 60_000;
                filesystem
                    .write_at(file, offset(at), &random.bytes(5000))
                    .unwrap();
            }
        };
        change(home, &mut random);
        if number % 3 == 0 {
            change(snapshot, &mut random);
        }
        if number % 4 == 0 {
            files.extend(fill(&filesystem, Location::root_of(home), &mut random, 5));
        }
    }
    filesystem.commit().unwrap();
    filesystem
}
