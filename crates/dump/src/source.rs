//! The blocks of a volume that is dumped: their addresses, and the bytes of a copy.
//!
//! The extent tree names all blocks, except those of logs. A walk from the roots finds blocks if the
//! extent tree is damaged.
//!
//! A block comes from the first copy whose checksum is right, else from the first copy that can be
//! read: a report needs damaged blocks, too. A copy counts only if its header has the block's own
//! address and a uuid of the volume. Other bytes may be file content, whatever a damaged pointer
//! claims.

use crate::block;
use crate::cluster::ITEM_BYTES_MAX;
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::reading::DumpItem;
use crate::sanitise::{Names, Sanitise, Survey};
use crate::walking::Walk;
use crate::writing::ClusterWriter;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::{BlockFormat, ByteCount, ChecksumType, ItemType, Key, Logical, TreeId};
use buttress_fs::{Filesystem, Progress};
use buttress_tree::ReadAhead;
use buttress_volume::Volume;
use buttress_volume::read::ExtentRead;
use std::collections::{HashMap, HashSet};

/// The way to find the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Find {
    /// In the extent tree, or by a walk if the tree is damaged.
    ExtentTree,
    /// By a walk from the roots.
    Walk,
    /// By both: the extent tree may lack blocks, and blocks may be unused.
    Both,
}

/// The addresses of all tree blocks, each part in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) chunks: Vec<u64>,
    pub(crate) others: Vec<u64>,
    /// Whether the extent tree was not used.
    pub(crate) walked: bool,
}

impl Addresses {
    /// Returns all addresses in order.
    pub(crate) fn all(&self) -> Vec<u64> {
        let mut all = [&self.chunks[..], &self.others].concat();
        all.sort_unstable();
        all
    }
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
pub(crate) struct Source<'a> {
    volume: &'a Volume,
    node_bytes: usize,
    checksum: ChecksumType,
    format: &'a BlockFormat,
    unreadable: u64,
    /// The replacements of names, in a sanitised dump.
    names: Option<Names>,
    /// The hash of each block for which `names` has all replacements.
    surveyed: HashMap<u64, u64>,
    contents: Contents,
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

impl<'a> Source<'a> {
    pub(crate) fn new(filesystem: &'a Filesystem, contents: Contents) -> Self {
        let superblock = filesystem.superblock();
        Self {
            volume: filesystem.volume(),
            node_bytes: usize_of(superblock.block_format().node_bytes),
            checksum: superblock.checksum_type,
            format: filesystem.volume().block_format(),
            unreadable: 0,
            names: None,
            surveyed: HashMap::new(),
            contents,
        }
    }

    pub(crate) const fn node_bytes(&self) -> usize {
        self.node_bytes
    }

    pub(crate) const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    pub(crate) const fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the addresses of all tree blocks.
    pub(crate) fn addresses(
        &mut self,
        filesystem: &Filesystem,
        find: Find,
        progress: &Progress,
    ) -> Result<Addresses> {
        let superblock = filesystem.superblock();
        let mut chunks = Walk::default();
        chunks.add(superblock.chunk_root.get(), superblock.chunk_root_level);
        let chunks = chunks.run(|logical| self.read(logical));
        let mut walk = Walk::default();
        walk.add(superblock.log_root.get(), superblock.log_root_level);
        let named = match find {
            Find::Walk => None,
            Find::ExtentTree | Find::Both => by_extent_tree(filesystem, progress)?,
        };
        let walked = named.is_none();
        if walked || find == Find::Both {
            walk.add(superblock.root.get(), superblock.root_level);
        }
        // Clamp: the walk found the blocks if the extent tree names none.
        let mut others = named.unwrap_or_default();
        others.extend(walk.run(|logical| self.read(logical)));
        let in_chunk_tree: HashSet<u64> = chunks.iter().copied().collect();
        others.retain(|logical| !in_chunk_tree.contains(logical));
        others.sort_unstable();
        others.dedup();
        Ok(Addresses {
            chunks,
            others,
            walked,
        })
    }

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
    pub(crate) fn survey(
        &mut self,
        addresses: &Addresses,
        options: &Sanitise,
        progress: &Progress,
    ) -> Result<u64> {
        // The copy counts the unreadable blocks.
        let unreadable = self.unreadable;
        let mut survey = Survey::new(options);
        let all = || addresses.chunks.iter().chain(&addresses.others);
        for logical in all() {
            progress.check()?;
            if let Some(bytes) = self.read(*logical) {
                survey.note_names(&bytes);
                self.surveyed.insert(*logical, digest(&bytes));
            }
            progress.advance(0, ByteCount::of(self.node_bytes));
        }
        for logical in all() {
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

    /// Returns the bytes that the dump has of a block: without contents, and without names if the dump
    /// is sanitised. A sanitised dump has only blocks of which the survey saw the names.
    pub(crate) fn read_dumped(&mut self, logical: u64) -> Option<Vec<u8>> {
        let mut bytes = self.read(logical)?;
        let keeps = |inode| self.contents.keeps_inline(logical, inode);
        match &self.names {
            Some(_) if self.surveyed.get(&logical) != Some(&digest(&bytes)) => {
                self.unreadable = self.unreadable.exact_add(1);
                return None;
            }
            Some(names) => names.block(&mut bytes, self.format, &keeps),
            None => block::blank(&mut bytes, self.checksum, &keeps),
        }
        Some(bytes)
    }

    /// Copies blocks into the dump, in runs of adjacent blocks of one chunk. Returns the number of
    /// blocks.
    pub(crate) fn copy(
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
            let Some(bytes) = self.read_dumped(*logical) else {
                continue;
            };
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
