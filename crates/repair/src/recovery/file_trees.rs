//! Tree blocks of subvolumes that cannot be read.
//!
//! A lost block comes back if the scan found it at another place: a misdirected write, or a copy that
//! a chunk no longer names. It is then written to the place of its address.
//!
//! Otherwise it is cut out with consent: the nodes above it are written again without its pointer.
//! The other subtrees keep their blocks. A block that several subvolumes share is cut out once, and
//! all of them get the same replacement. Files then lose items, and the repair of files settles the
//! rest.
//!
//! # Left out
//!
//! Items of the lost keys in older blocks. They can name space that was used again.

use super::error::{Error, Result};
use super::packed::{self, Target};
use super::volume::{RecoveryOptions, account, newest};
use buttress_device::Device;
use buttress_exact::{Defect, usize_of};
use buttress_format::node::edit::NewBlock;
use buttress_format::{
    Generation, Incompat, ItemType, Key, KeyPointer, Logical, RootItem, TreeBlock, TreeId, Uuid,
};
use buttress_fs::filesystem::root_pointer;
use buttress_fs::{Filesystem, OpenOptions, Progress};
use buttress_packing::BlockFormat;
use buttress_salvage::BlockIndex;
use buttress_salvage::survey::tree_roots;
use buttress_tree::{BlockPointer, ReadAhead, Sectors};
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// The largest number of lost blocks.
const LOST_MAX: usize = 1 << 16;

/// The number of places of one address that are tried.
const COPIES_MAX: usize = 64;

/// A block of a subvolume that cannot be read.
#[derive(Clone, Debug)]
pub struct LostBlock {
    /// The pointer to the block.
    pub pointer: BlockPointer,
    /// The block, if it is at another place.
    found: Option<TreeBlock>,
}

impl LostBlock {
    /// Returns whether the block is at another place.
    #[must_use]
    pub const fn is_found(&self) -> bool {
        self.found.is_some()
    }
}

/// The lost blocks of all subvolumes, ready to be written or cut out.
#[derive(Debug)]
pub struct FileTreeRecovery<'a> {
    devices: &'a [Device],
    index: &'a BlockIndex,
    lost: Vec<LostBlock>,
}

impl<'a> FileTreeRecovery<'a> {
    /// Finds the lost blocks of all subvolumes, and their other places. Writes nothing. `index` is
    /// of the devices as they are now.
    ///
    /// # Errors
    /// Fails if the volume does not open, if a device is missing or behind, or if too many blocks
    /// are lost.
    pub fn plan(
        devices: &'a [Device],
        index: &'a BlockIndex,
        options: &RecoveryOptions,
        progress: &Progress,
    ) -> Result<Self> {
        newest(devices)?;
        let filesystem = open(devices, options)?;
        let mut lost: Vec<LostBlock> = Vec::new();
        let seen = Sectors::new(filesystem.sector_bytes());
        for (_, root) in subvolumes(&filesystem, progress)? {
            find(
                &filesystem,
                &BlockPointer::root(&root),
                &seen,
                &mut lost,
                progress,
            )?;
        }
        let mut reader = index.reader();
        for block in &mut lost {
            for record in reader.at(block.pointer.logical, COPIES_MAX)? {
                let device = devices.get(usize::from(record.device));
                let length = usize_of(filesystem.superblock().node_bytes);
                let read = device.map(|device| device.read(record.physical.get(), length));
                let Some(Ok(bytes)) = read.filter(|_| record.is_sound()) else {
                    continue;
                };
                let format = filesystem.forest().block_format();
                let checked = TreeBlock::check(bytes.into_bytes(), format, &block.pointer.expectation());
                block.found = block.found.take().or(checked.ok());
            }
        }
        Ok(Self { devices, index, lost })
    }

    /// Returns the lost blocks.
    #[must_use]
    pub fn lost(&self) -> &[LostBlock] {
        &self.lost
    }

    /// Returns whether a block is nowhere, so that its items are lost.
    #[must_use]
    pub fn loses_items(&self) -> bool {
        self.lost.iter().any(|block| block.found.is_none())
    }

    /// Writes the blocks that are at another place. With `cuts_out`, cuts out the other blocks, and
    /// rebuilds the trees that account for space; without it, the other blocks stay lost.
    ///
    /// # Errors
    /// Fails, and writes nothing, if the accounts cannot be rebuilt. Also fails with an error of a
    /// device.
    pub fn run(&self, options: &RecoveryOptions, cuts_out: bool, progress: &Progress) -> Result<()> {
        let trial: Vec<Device> = self.devices.iter().map(Device::with_changes_in_memory).collect();
        self.run_on(&trial, options, cuts_out, progress)?;
        drop(trial);
        self.run_on(self.devices, options, cuts_out, progress)
    }

    fn run_on(
        &self,
        devices: &[Device],
        options: &RecoveryOptions,
        cuts_out: bool,
        progress: &Progress,
    ) -> Result<()> {
        let filesystem = open(devices, options)?;
        let volume: &Volume = filesystem.volume();
        let found = self.lost.iter().filter_map(|block| block.found.as_ref());
        let writes: Vec<ExtentWrite> = found.map(write_of).collect();
        if !writes.is_empty() {
            volume.write(&writes)?;
            volume.flush()?;
        }
        if !cuts_out || !self.loses_items() {
            return Ok(());
        }
        drop(filesystem);
        // Caches still have the blocks as they were.
        let filesystem = open(devices, options)?;
        self.cut_out(&filesystem, progress)?;
        drop(filesystem);
        match account(devices, options, progress)? {
            None => Ok(()),
            Some(reason) => Err(Error::NotAccounted { reason }),
        }
    }

    /// Writes the nodes above lost blocks again, and a root tree that names the new roots.
    fn cut_out(&self, filesystem: &Filesystem, progress: &Progress) -> Result<()> {
        let superblock = filesystem.superblock();
        if superblock.incompat.contains(Incompat::MIXED_GROUPS) {
            return Err(Error::Unsupported {
                what: "lost blocks beside data in one chunk",
            });
        }
        let chunk_root = *filesystem.tree(TreeId::CHUNK)?.root();
        let chunk_root = filesystem.forest().read_block(&BlockPointer::root(&chunk_root));
        let chunk_tree_uuid = chunk_root
            .map_err(buttress_fs::Error::from)?
            .header()
            .chunk_tree_uuid;
        let roots = subvolumes(filesystem, progress)?;
        let trial = Rewriter::new(filesystem, chunk_tree_uuid, None).all(&roots, progress)?;
        let mut target = Target {
            volume: filesystem.volume(),
            index: &mut self.index.reader(),
            extents: filesystem.tree(TreeId::EXTENT).ok(),
            taken: Vec::new(),
        };
        let places = target.free(
            buttress_format::BlockGroupFlags::METADATA,
            superblock.node_bytes,
            trial.blocks.len(),
        )?;
        let done = Rewriter::new(filesystem, chunk_tree_uuid, Some(places)).all(&roots, progress)?;
        let mut items = BTreeMap::new();
        for item in filesystem.root_tree().range(.., ReadAhead::Forward) {
            let item = item.map_err(buttress_fs::Error::from)?;
            items.insert(item.key(), item.data().to_vec());
        }
        for (key, root) in &done.roots {
            let Some(data) = items.get_mut(key) else { continue };
            let item = RootItem::parse(key, data, superblock.sector_bytes);
            let item = item
                .map_err(|_| Defect::new("a root item changed"))
                .map_err(buttress_fs::Error::from)?;
            *data = root_item(item, root, superblock.generation).to_bytes().to_vec();
        }
        target.volume.write(&done.blocks)?;
        let format = BlockFormat {
            fsid: superblock.metadata_uuid,
            chunk_tree_uuid,
            node_bytes: superblock.node_bytes,
            checksum: superblock.checksum_type,
            generation: superblock.generation,
        };
        let items: Vec<(Key, Vec<u8>)> = items.into_iter().collect();
        let root = packed::write(&mut target, TreeId::ROOT, &items, format)?;
        packed::publish_root(filesystem.volume(), &superblock, &root)
    }
}

fn open(devices: &[Device], options: &RecoveryOptions) -> Result<Filesystem> {
    let opening = OpenOptions::new(devices.to_vec()).cache(options.cache);
    Ok(opening.for_inspection(true).open()?)
}

fn write_of(block: &TreeBlock) -> ExtentWrite {
    ExtentWrite {
        logical: block.logical(),
        bytes: Bytes::copy_from_slice(block.bytes()),
    }
}

/// The roots of subvolumes, by the keys of their items.
type Roots = Vec<(Key, buttress_tree::RootPointer)>;

/// Returns the roots of all subvolumes that are not being deleted.
fn subvolumes(filesystem: &Filesystem, progress: &Progress) -> Result<Roots> {
    let all = tree_roots(filesystem, progress)?.into_iter();
    let kept = all.filter_map(|(key, item)| {
        let tree = TreeId::new(key.objectid.get());
        let is_live = tree.as_subvolume().is_some() && item.references != 0;
        is_live.then(|| (key, root_pointer(tree, &item)))
    });
    Ok(kept.collect())
}

/// Finds the lost blocks of a subtree. The level of the pointer bounds the depth.
fn find(
    filesystem: &Filesystem,
    pointer: &BlockPointer,
    seen: &Sectors,
    lost: &mut Vec<LostBlock>,
    progress: &Progress,
) -> Result<()> {
    if !seen.insert(pointer.logical) {
        return Ok(());
    }
    progress.check()?;
    let Ok(block) = filesystem.forest().read_block(pointer) else {
        if lost.len() >= LOST_MAX {
            return Err(Error::Unsupported {
                what: "too many lost blocks",
            });
        }
        lost.push(LostBlock {
            pointer: *pointer,
            found: None,
        });
        return Ok(());
    };
    let children = (0..block.item_count()).map_while(|slot| pointer.child(&block, slot));
    children
        .collect::<Vec<_>>()
        .iter()
        .try_for_each(|child| find(filesystem, child, seen, lost, progress))
}

/// The result of cutting out.
#[derive(Debug, Default)]
struct Cut {
    blocks: Vec<ExtentWrite>,
    /// The new roots, by the keys of their items.
    roots: Vec<(Key, NewRoot)>,
}

/// A new root of a subvolume.
#[derive(Clone, Copy, Debug)]
struct NewRoot {
    logical: Logical,
    level: u8,
}

/// Returns a root item with a new root.
fn root_item(item: RootItem, root: &NewRoot, generation: Generation) -> RootItem {
    let has_later_fields = item.generation_v2 == item.generation;
    RootItem {
        logical: root.logical,
        level: root.level,
        generation,
        generation_v2: match has_later_fields {
            true => generation,
            false => item.generation_v2,
        },
        // Linux takes a block for unshared if it is newer than the last snapshot.
        last_snapshot: generation,
        ..item
    }
}

/// Writes nodes again, without pointers to lost blocks.
struct Rewriter<'a> {
    filesystem: &'a Filesystem,
    new: NewBlock,
    /// The addresses of the new blocks; `None` to count them.
    places: Option<std::vec::IntoIter<Logical>>,
    /// Blocks below which nothing is lost.
    whole: Sectors,
    /// The pointers in place of a pointer to a block above a lost one.
    replaced: HashMap<(Logical, Generation), Option<KeyPointer>>,
    cut: Cut,
}

/// The fate of a pointer.
enum Fate {
    Kept,
    Replaced(Option<KeyPointer>),
}

impl<'a> Rewriter<'a> {
    fn new(filesystem: &'a Filesystem, chunk_tree_uuid: Uuid, places: Option<Vec<Logical>>) -> Self {
        let superblock = filesystem.superblock();
        Self {
            filesystem,
            new: NewBlock {
                fsid: superblock.metadata_uuid,
                chunk_tree_uuid,
                logical: Logical::MIN,
                generation: superblock.generation,
                owner: TreeId::FS,
                level: 0,
            },
            places: places.map(Vec::into_iter),
            whole: Sectors::new(superblock.sector_bytes),
            replaced: HashMap::new(),
            cut: Cut::default(),
        }
    }

    fn all(mut self, roots: &Roots, progress: &Progress) -> Result<Cut> {
        for (key, root) in roots {
            let pointer = BlockPointer::root(root);
            let new = match self.visit(&pointer, progress)? {
                Fate::Kept => continue,
                Fate::Replaced(Some(new)) => NewRoot {
                    logical: new.logical,
                    level: root.level,
                },
                // A subvolume needs a directory.
                Fate::Replaced(None) => return Err(Error::Empty { tree: root.tree }),
            };
            self.cut.roots.push((*key, new));
        }
        Ok(self.cut)
    }

    /// Rewrites a subtree. The level of the pointer bounds the depth.
    fn visit(&mut self, pointer: &BlockPointer, progress: &Progress) -> Result<Fate> {
        let place = (pointer.logical, pointer.generation);
        if let Some(known) = self.replaced.get(&place) {
            return Ok(Fate::Replaced(*known));
        }
        if self.whole.contains(pointer.logical) {
            return Ok(Fate::Kept);
        }
        progress.check()?;
        let Ok(block) = self.filesystem.forest().read_block(pointer) else {
            self.replaced.insert(place, None);
            return Ok(Fate::Replaced(None));
        };
        let (mut kept, mut is_changed) = (Vec::new(), false);
        for slot in 0..block.item_count() {
            let (Some(child), Some(old)) = (pointer.child(&block, slot), block.pointer(slot)) else {
                break;
            };
            match self.visit(&child, progress)? {
                Fate::Kept => kept.push(old),
                Fate::Replaced(new) => {
                    is_changed = true;
                    kept.extend(new);
                }
            }
        }
        if !is_changed {
            self.whole.insert(pointer.logical);
            return Ok(Fate::Kept);
        }
        let new = match kept.first().copied() {
            None => None,
            Some(first) => Some(KeyPointer {
                key: first.key,
                logical: self.emit(block.header().owner, pointer.level, &kept)?,
                generation: self.new.generation,
            }),
        };
        self.replaced.insert(place, new);
        Ok(Fate::Replaced(new))
    }

    /// Makes a block with these pointers.
    fn emit(&mut self, owner: TreeId, level: u8, pointers: &[KeyPointer]) -> Result<Logical> {
        let defect = |what| Error::from(buttress_fs::Error::from(Defect::new(what)));
        let logical = match &mut self.places {
            None => Logical::MIN,
            Some(places) => places
                .next()
                .ok_or_else(|| defect("a new block without a place"))?,
        };
        let superblock = self.filesystem.superblock();
        let new = NewBlock {
            logical,
            owner,
            level,
            ..self.new
        };
        let mut block = TreeBlock::new_empty(superblock.node_bytes, &new);
        let fits = block.edit_node(|node| {
            let mut slots = pointers.iter().enumerate();
            slots.all(|(slot, pointer)| node.insert(slot, pointer))
        });
        if !fits {
            return Err(defect("fewer pointers do not fit a node"));
        }
        let sealed = block.seal(logical, superblock.checksum_type, |_| None);
        self.cut.blocks.push(write_of(&sealed));
        Ok(logical)
    }
}

/// Returns the inodes whose items a lost leaf or node may have had, as a range of numbers.
#[must_use]
pub fn inodes_of(pointer: &BlockPointer) -> (u64, u64) {
    let first = pointer.first_key.map_or(0, |key| key.objectid.get());
    let end = pointer
        .end_key
        .map_or(u64::MAX, |key| match (key.item_type, key.offset) {
            (ItemType::INODE_ITEM, 0) => key.objectid.get().saturating_sub(1), // Clamp: the end is not before the first.
            _ => key.objectid.get(),
        });
    (first, end.max(first))
}
