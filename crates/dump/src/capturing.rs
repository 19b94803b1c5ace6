//! Writing the dump of a volume: which blocks it has, and from which copy.
//!
//! The order is that of btrfs-image: superblock, chunk tree, all other blocks by address. The extent
//! tree names all blocks, except those of logs. A walk from the roots finds blocks if the extent
//! tree is damaged.
//!
//! A block comes from the first copy whose checksum is right, else from the first copy that can be
//! read: a report needs damaged blocks, too. A copy counts only if its header has the block's own
//! address and a uuid of the volume. Other bytes may be file content, whatever a damaged pointer
//! claims.

use crate::block;
use crate::cluster::ITEM_BYTES_MAX;
use crate::error::{Error, Result};
use crate::reading::DumpItem;
use crate::sanitise::{Names, Sanitise, Survey};
use crate::walking::Walk;
use crate::writing::ClusterWriter;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_format::{BlockFormat, ByteCount, ChecksumType, ItemType, Key, Logical, TreeId};
use buttress_fs::{Filesystem, Progress};
use buttress_tree::ReadAhead;
use buttress_volume::Volume;
use buttress_volume::read::ExtentRead;
use std::collections::{HashMap, HashSet};
use std::io::Write;

/// Options of [`write()`].
#[derive(Clone, Copy, Debug)]
pub struct DumpOptions {
    /// The level of zlib, from 0 (none) to 9.
    pub level: u32,
    /// The number of threads that compress.
    pub threads: usize,
    /// Finds blocks by a walk from the roots instead of the extent tree.
    pub walk: bool,
    /// Replaces names and zeroes attributes. Without, only content is zeroed.
    pub sanitise: Option<Sanitise>,
}

impl Default for DumpOptions {
    /// Returns the options of an uncompressed dump by one thread, in which names stay.
    fn default() -> Self {
        Self {
            level: 0,
            threads: 1,
            walk: false,
            sanitise: None,
        }
    }
}

/// The result of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// The number of tree blocks.
    pub blocks: u64,
    /// The number of blocks that are not in the dump: no copy is readable and has the block's own
    /// header. In a sanitised dump, also blocks that changed after the choice of names.
    pub unreadable: u64,
    /// The number of bytes of the dump.
    pub bytes: u64,
    /// Whether the extent tree could not be read, and a walk found the blocks.
    pub walked: bool,
    /// The number of names that a sanitised dump keeps, because no replacement fits.
    pub kept_names: u64,
}

/// Writes a metadata dump of a volume, in the state of its last commit and with its log.
///
/// # Errors
/// Fails with an error of the output, if `progress` is cancelled, or with [`Error::NamesKept`] if
/// [`Sanitise::strict`] asks for it.
pub fn write(
    filesystem: &Filesystem,
    out: &mut dyn Write,
    options: &DumpOptions,
    progress: &Progress,
) -> Result<Dumped> {
    let superblock = filesystem.superblock();
    let mut source = Source {
        volume: filesystem.volume(),
        node_bytes: usize_of(superblock.block_format().node_bytes),
        checksum: superblock.checksum_type,
        format: filesystem.volume().block_format(),
        unreadable: 0,
        names: None,
        surveyed: HashMap::new(),
    };
    let mut chunks = Walk::default();
    chunks.add(superblock.chunk_root.get(), superblock.chunk_root_level);
    let chunks = chunks.run(|logical| source.read(logical));
    let mut walk = Walk::default();
    walk.add(superblock.log_root.get(), superblock.log_root_level);
    let mut dumped = Dumped::default();
    let named = match options.walk {
        true => None,
        false => by_extent_tree(filesystem, progress)?,
    };
    dumped.walked = named.is_none();
    if named.is_none() {
        walk.add(superblock.root.get(), superblock.root_level);
    }
    // Clamp: the walk found the blocks if the extent tree names none.
    let mut others = named.unwrap_or_default();
    others.extend(walk.run(|logical| source.read(logical)));
    let in_chunk_tree: HashSet<u64> = chunks.iter().copied().collect();
    others.retain(|logical| !in_chunk_tree.contains(logical));
    others.sort_unstable();
    others.dedup();
    let bytes = ByteCount::of(others.len().exact_mul(source.node_bytes));
    if let Some(sanitise) = &options.sanitise {
        progress.expect(ByteCount::new(bytes.get().exact_mul(3)));
        dumped.kept_names = source.survey([&chunks, &others], sanitise, progress)?;
    } else {
        progress.expect(bytes);
    }
    let mut clusters = ClusterWriter::new(out, options.level, options.threads);
    clusters.push(superblock_item(filesystem, options.sanitise.is_some())?)?;
    for addresses in [&chunks, &others] {
        dumped.blocks = dumped
            .blocks
            .exact_add(source.copy(addresses, &mut clusters, progress)?);
    }
    dumped.unreadable = source.unreadable;
    dumped.bytes = clusters.finish()?;
    Ok(dumped)
}

/// Returns the item of the superblock: the bytes of the primary on the device by which the volume was
/// opened. If that primary is not the superblock in use, the superblock is encoded again. A
/// sanitised superblock is always encoded again, without its label and without unused bytes.
fn superblock_item(filesystem: &Filesystem, is_sanitised: bool) -> Result<DumpItem> {
    let mut superblock = Superblock::clone(&filesystem.superblock());
    if is_sanitised {
        superblock.label.clear();
    }
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let slots = filesystem.volume().devices();
    let own = slots
        .iter()
        .find(|slot| slot.uuid() == superblock.device_item.uuid);
    let raw = own
        .and_then(|slot| slot.device())
        .and_then(|device| device.read(primary.get(), SUPERBLOCK_BYTES).ok());
    let is_current = |bytes: &[u8]| {
        Superblock::check(bytes, primary).is_ok_and(|found| found.generation == superblock.generation)
    };
    let bytes = match raw.filter(|bytes| !is_sanitised && is_current(bytes)) {
        Some(raw) => raw.to_vec(),
        None => superblock
            .encode_for(&superblock.device_item, primary)
            .map_err(buttress_volume::WriteRefusal::Superblock)
            .map_err(buttress_volume::Error::from)?,
    };
    Ok(DumpItem {
        logical: primary.get(),
        bytes,
    })
}

/// Returns the addresses of all tree blocks in the extent tree, or `None` if the tree is damaged.
fn by_extent_tree(filesystem: &Filesystem, progress: &Progress) -> Result<Option<Vec<u64>>> {
    /// The bit in an extent item's flags that marks a tree block, and the place of the flags.
    const TREE_BLOCK: u8 = 2;
    const FLAGS_AT: usize = 16;
    let Ok(tree) = filesystem.tree(TreeId::EXTENT) else {
        return Ok(None);
    };
    let mut found = Vec::new();
    for item in tree.range(Key::MIN..=Key::MAX, ReadAhead::Forward) {
        progress.check()?;
        let Ok(item) = item else { return Ok(None) };
        let key = item.key();
        let is_block = match key.item_type {
            ItemType::METADATA_ITEM => true,
            ItemType::EXTENT_ITEM => item
                .data()
                .get(FLAGS_AT)
                .is_some_and(|flags| flags & TREE_BLOCK != 0),
            _ => false,
        };
        if is_block {
            found.push(key.objectid.get());
        }
    }
    Ok(Some(found))
}

/// The volume of a dump.
struct Source<'a> {
    volume: &'a Volume,
    node_bytes: usize,
    checksum: ChecksumType,
    format: &'a BlockFormat,
    unreadable: u64,
    /// The replacements of names, in a sanitised dump.
    names: Option<Names>,
    /// The hash of each block for which `names` has all replacements.
    surveyed: HashMap<u64, u64>,
}

/// Returns a hash by which a changed block is found.
fn digest(bytes: &[u8]) -> u64 {
    let hash = ChecksumType::Xxhash64.compute(bytes);
    // Clamp: the hash has eight bytes.
    hash.as_bytes()
        .first_chunk()
        .copied()
        .map_or(0, u64::from_le_bytes)
}

impl Source<'_> {
    /// Returns the bytes of a block: the first whole copy, else the first that can be read. Copies
    /// with another header are passed over.
    fn read(&mut self, logical: u64) -> Option<Vec<u8>> {
        let read = ExtentRead {
            logical: Logical::new(logical),
            length: self.node_bytes,
        };
        // Clamp: an address without a chunk has no copies.
        let copies = self.volume.copies(read.logical).unwrap_or(0);
        let mut first = None;
        for copy in 1..=copies {
            let Ok(bytes) = self.volume.read_copy(read, copy) else {
                continue;
            };
            if !self.is_own(&bytes, logical) {
                continue;
            }
            if block::is_whole(&bytes, self.checksum) {
                return Some(bytes.to_vec());
            }
            first = first.or_else(|| Some(bytes.to_vec()));
        }
        if first.is_none() {
            self.unreadable = self.unreadable.exact_add(1);
        }
        first
    }

    /// Returns whether bytes have the header of the volume's block at an address.
    fn is_own(&self, bytes: &[u8], logical: u64) -> bool {
        let of_volume = |fsid| fsid == self.format.fsid || self.format.seed_fsids.contains(&fsid);
        block::address(bytes) == Some(logical) && block::fsid(bytes).is_some_and(of_volume)
    }

    /// Chooses the replacements of all names. Returns the number of names that stay.
    fn survey(&mut self, addresses: [&Vec<u64>; 2], options: &Sanitise, progress: &Progress) -> Result<u64> {
        // The copy counts the unreadable blocks.
        let unreadable = self.unreadable;
        let mut survey = Survey::new(options);
        for logical in addresses.into_iter().flatten() {
            progress.check()?;
            if let Some(bytes) = self.read(*logical) {
                survey.note_names(&bytes);
                self.surveyed.insert(*logical, digest(&bytes));
            }
            progress.advance(0, ByteCount::of(self.node_bytes));
        }
        for logical in addresses.into_iter().flatten() {
            progress.check()?;
            match self.read(*logical) {
                Some(bytes) if self.surveyed.get(logical) == Some(&digest(&bytes)) => {
                    survey.note_keys(&bytes);
                }
                // The copy leaves this block out.
                _ => {
                    self.surveyed.remove(logical);
                }
            }
            progress.advance(0, ByteCount::of(self.node_bytes));
        }
        self.unreadable = unreadable;
        let names = survey.finish(progress)?;
        let kept = names.kept();
        if options.strict && kept > 0 {
            return Err(Error::NamesKept { count: kept });
        }
        self.names = Some(names);
        Ok(kept)
    }

    /// Copies blocks into the dump, in runs of adjacent blocks of one chunk. Returns the number of
    /// blocks.
    fn copy(
        &mut self,
        addresses: &[u64],
        clusters: &mut ClusterWriter<'_>,
        progress: &Progress,
    ) -> Result<u64> {
        let mut copied = 0_u64;
        let mut run: Option<DumpItem> = None;
        let chunks = self.volume.chunk_map();
        for logical in addresses {
            progress.check()?;
            let Some(mut bytes) = self.read(*logical) else {
                continue;
            };
            match &self.names {
                // The survey did not see the names of this block.
                Some(_) if self.surveyed.get(logical) != Some(&digest(&bytes)) => {
                    self.unreadable = self.unreadable.exact_add(1);
                    continue;
                }
                Some(names) => names.block(&mut bytes, self.format),
                None => block::blank(&mut bytes, self.checksum),
            }
            copied = copied.exact_add(1);
            progress.advance(1, ByteCount::of(self.node_bytes));
            if let Some(item) = &mut run {
                let end = item.logical.checked_add(item.bytes.len() as u64);
                let fits = item.bytes.len().exact_add(bytes.len()) <= ITEM_BYTES_MAX;
                let starts_chunk = chunks
                    .find(Logical::new(*logical))
                    .is_some_and(|chunk| chunk.start().get() == *logical);
                if end == Some(*logical) && fits && !starts_chunk {
                    item.bytes.extend_from_slice(&bytes);
                    continue;
                }
            }
            let next = DumpItem {
                logical: *logical,
                bytes,
            };
            if let Some(full) = run.replace(next) {
                clusters.push(full)?;
            }
        }
        if let Some(last) = run {
            clusters.push(last)?;
        }
        Ok(copied)
    }
}
